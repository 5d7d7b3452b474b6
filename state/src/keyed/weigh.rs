//! `weigh`: about how many bytes a value takes in memory, seen through its `Serialize`; long sequences are judged by their start.
// HOT: called per changed entry and batch: no allocation; of a sequence or map at most the first 64 elements are looked at.

use std::fmt;

use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

/// What a pointer, a length and a capacity take.
const TRIPLE: usize = 24;
/// What an allocation takes beside what was asked for.
const ALLOCATION: usize = 16;
/// What is longer is judged by so many of its elements.
const MANY: usize = 64;

/// About how many bytes a value takes, itself included. One that cannot be serialised counts up to there: writing it tells.
#[inline]
pub(super) fn weigh<T: Serialize + ?Sized>(value: &T) -> usize {
    let mut scale = Scale(0);
    let _ = value.serialize(&mut scale);
    scale.0
}

/// Adds up what it is given.
struct Scale(usize);

impl Scale {
    #[inline]
    fn add(&mut self, bytes: usize) -> Result<(), fmt::Error> {
        self.0 += bytes;
        Ok(())
    }

    /// All of a sequence or map by what its first elements take.
    fn all_by_the_first<I>(
        &mut self,
        mut of: impl ExactOrNot<Item = I>,
        mut add: impl FnMut(&mut Scale, I) -> Result<(), fmt::Error>,
    ) -> Result<(), fmt::Error> {
        let (all, before) = (of.length(), self.0);
        let mut seen = 0;
        for item in of.by_ref() {
            add(self, item)?;
            seen += 1;
            if seen == MANY && all.is_some_and(|all| all > MANY) {
                break;
            }
        }
        if let Some(all) = all.filter(|all| *all > seen) {
            let first = self.0 - before;
            self.0 = before + (first as f64 / seen as f64 * all as f64) as usize;
        }
        Ok(())
    }
}

/// An iterator that may say how long it is.
trait ExactOrNot: Iterator {
    fn length(&self) -> Option<usize>;
}

impl<I: Iterator> ExactOrNot for I {
    fn length(&self) -> Option<usize> {
        let (least, most) = self.size_hint();
        (most == Some(least)).then_some(least)
    }
}

macro_rules! flat {
    ($($method:ident: $of:ty),*) => {
        $(#[inline]
        fn $method(self, _: $of) -> Result<(), fmt::Error> {
            self.add(size_of::<$of>())
        })*
    };
}

impl Serializer for &mut Scale {
    type Ok = ();
    type Error = fmt::Error;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    flat! {
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_i128: i128, serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64,
        serialize_u128: u128, serialize_f32: f32, serialize_f64: f64, serialize_char: char
    }

    #[inline]
    fn serialize_str(self, text: &str) -> Result<(), fmt::Error> {
        self.add(TRIPLE + ALLOCATION + text.len())
    }
    #[inline]
    fn serialize_bytes(self, bytes: &[u8]) -> Result<(), fmt::Error> {
        self.add(TRIPLE + ALLOCATION + bytes.len())
    }
    #[inline]
    fn serialize_none(self) -> Result<(), fmt::Error> {
        self.add(8)
    }
    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), fmt::Error> {
        value.serialize(self)
    }
    fn serialize_unit(self) -> Result<(), fmt::Error> {
        Ok(())
    }
    fn serialize_unit_struct(self, _: &'static str) -> Result<(), fmt::Error> {
        Ok(())
    }
    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Result<(), fmt::Error> {
        self.add(8)
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), fmt::Error> {
        value.serialize(self)
    }
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), fmt::Error> {
        self.add(8)?;
        value.serialize(self)
    }
    fn serialize_seq(self, _: Option<usize>) -> Result<Self, fmt::Error> {
        self.add(TRIPLE + ALLOCATION)?;
        Ok(self)
    }
    fn serialize_tuple(self, _: usize) -> Result<Self, fmt::Error> {
        Ok(self)
    }
    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, fmt::Error> {
        Ok(self)
    }
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, fmt::Error> {
        self.add(8)?;
        Ok(self)
    }
    fn serialize_map(self, _: Option<usize>) -> Result<Self, fmt::Error> {
        self.add(2 * TRIPLE + ALLOCATION)?;
        Ok(self)
    }
    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, fmt::Error> {
        Ok(self)
    }
    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, fmt::Error> {
        self.add(8)?;
        Ok(self)
    }

    fn collect_seq<I: IntoIterator<Item: Serialize>>(self, of: I) -> Result<(), fmt::Error> {
        self.add(TRIPLE + ALLOCATION)?;
        self.all_by_the_first(of.into_iter(), |scale, item| item.serialize(scale))
    }
    fn collect_map<K: Serialize, V: Serialize, I: IntoIterator<Item = (K, V)>>(
        self,
        of: I,
    ) -> Result<(), fmt::Error> {
        self.add(2 * TRIPLE + ALLOCATION)?;
        self.all_by_the_first(of.into_iter(), |scale, (key, value)| {
            // A hash table's own byte, and its share of the free room.
            scale.add(2)?;
            key.serialize(&mut *scale)?;
            value.serialize(scale)
        })
    }
    fn collect_str<T: fmt::Display + ?Sized>(self, text: &T) -> Result<(), fmt::Error> {
        struct Counts<'a>(&'a mut Scale);
        impl fmt::Write for Counts<'_> {
            fn write_str(&mut self, part: &str) -> fmt::Result {
                self.0.add(part.len())
            }
        }
        self.add(TRIPLE)?;
        fmt::Write::write_fmt(&mut Counts(self), format_args!("{text}"))
    }
    fn is_human_readable(&self) -> bool {
        false
    }
}

macro_rules! elements {
    ($($of:ident: $method:ident),*) => {
        $(impl $of for &mut Scale {
            type Ok = ();
            type Error = fmt::Error;
            #[inline]
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), fmt::Error> {
                value.serialize(&mut **self)
            }
            fn end(self) -> Result<(), fmt::Error> {
                Ok(())
            }
        })*
    };
}
elements!(
    SerializeSeq: serialize_element,
    SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field,
    SerializeTupleVariant: serialize_field
);

macro_rules! fields {
    ($($of:ident),*) => {
        $(impl $of for &mut Scale {
            type Ok = ();
            type Error = fmt::Error;
            #[inline]
            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                _: &'static str,
                value: &T,
            ) -> Result<(), fmt::Error> {
                value.serialize(&mut **self)
            }
            fn end(self) -> Result<(), fmt::Error> {
                Ok(())
            }
        })*
    };
}
fields!(SerializeStruct, SerializeStructVariant);

impl SerializeMap for &mut Scale {
    type Ok = ();
    type Error = fmt::Error;
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), fmt::Error> {
        key.serialize(&mut **self)
    }
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), fmt::Error> {
        value.serialize(&mut **self)
    }
    fn end(self) -> Result<(), fmt::Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use super::*;

    #[derive(serde::Serialize)]
    struct Cart {
        user: u64,
        items: Vec<(u32, String)>,
        note: Option<String>,
    }

    #[test]
    fn values_weigh_about_what_they_take() {
        assert_eq!(weigh(&7u64), 8);
        assert_eq!(weigh(&(1u32, 2u8)), 5);
        assert_eq!(weigh(&()), 0);
        assert_eq!(weigh("four"), 44);
        let cart = Cart { user: 1, items: vec![(1, "ab".to_owned()), (2, String::new())], note: None };
        assert_eq!(weigh(&cart), 8 + 40 + (4 + 42) + (4 + 40) + 8);
    }

    #[test]
    fn long_sequences_and_maps_are_judged_by_their_start() {
        assert_eq!(weigh(&vec![1u64; 1_000_000]), 8_000_040);
        assert_eq!(weigh(&vec![0u8; 5 << 20]), (5 << 20) + 40);
        let texts: Vec<String> = (0..10_000).map(|n| format!("{n:0>100}")).collect();
        assert_eq!(weigh(&texts), 40 + 10_000 * 140);
        let map: BTreeMap<u32, String> = (0..1_000).map(|n| (n, "x".repeat(60))).collect();
        assert_eq!(weigh(&map), 64 + 1_000 * 106);
        assert_eq!(weigh(&map.into_iter().collect::<HashMap<_, _>>()), 64 + 1_000 * 106);
        // One long value among few is seen.
        assert_eq!(weigh(&vec!["x".repeat(1 << 20), String::new()]), 40 + (1 << 20) + 80);
    }
}
