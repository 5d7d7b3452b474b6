//! Writes keys: serde in, ordered bytes out.

use serde::ser::{self, Serialize};

use super::{END, ESCAPED, Problem, WIDE};

/// Appends to the bytes.
pub(super) struct Writer<'a>(pub(super) &'a mut Vec<u8>);

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn variant(&mut self, index: u32) -> Result<(), Problem> {
        match u8::try_from(index) {
            Ok(small) if small < WIDE => self.put(&[small]),
            _ => {
                self.0.push(WIDE);
                self.put(&index.to_be_bytes())
            }
        }
    }
}

macro_rules! unsigned {
    ($($name:ident: $t:ty),*) => { $(
        #[inline]
        fn $name(self, v: $t) -> Result<(), Problem> { self.put(&v.to_be_bytes()) }
    )* };
}
macro_rules! signed {
    ($($name:ident: $t:ty),*) => { $(
        #[inline]
        fn $name(self, v: $t) -> Result<(), Problem> { self.put(&(v ^ <$t>::MIN).to_be_bytes()) }
    )* };
}

impl<'a, 'w> ser::Serializer for &'a mut Writer<'w> {
    type Ok = ();
    type Error = Problem;
    type SerializeSeq = Elements<'a, 'w>;
    type SerializeTuple = Parts<'a, 'w>;
    type SerializeTupleStruct = Parts<'a, 'w>;
    type SerializeTupleVariant = Parts<'a, 'w>;
    type SerializeMap = Elements<'a, 'w>;
    type SerializeStruct = Parts<'a, 'w>;
    type SerializeStructVariant = Parts<'a, 'w>;

    fn is_human_readable(&self) -> bool {
        false
    }

    unsigned! {
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_u128: u128
    }
    signed! {
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_i128: i128
    }
    fn serialize_bool(self, v: bool) -> Result<(), Problem> {
        self.put(&[v.into()])
    }
    fn serialize_char(self, v: char) -> Result<(), Problem> {
        self.put(&u32::from(v).to_be_bytes())
    }
    fn serialize_f32(self, v: f32) -> Result<(), Problem> {
        let bits = v.to_bits();
        let turned = if v.is_sign_negative() { !bits } else { bits | 1 << 31 };
        self.put(&turned.to_be_bytes())
    }
    fn serialize_f64(self, v: f64) -> Result<(), Problem> {
        let bits = v.to_bits();
        let turned = if v.is_sign_negative() { !bits } else { bits | 1 << 63 };
        self.put(&turned.to_be_bytes())
    }
    fn serialize_str(self, v: &str) -> Result<(), Problem> {
        self.serialize_bytes(v.as_bytes())
    }
    fn serialize_bytes(self, v: &[u8]) -> Result<(), Problem> {
        let mut runs = v.split(|b| *b == 0);
        self.0.extend_from_slice(runs.next().unwrap_or_default());
        for run in runs {
            self.0.extend_from_slice(&[0, ESCAPED]);
            self.0.extend_from_slice(run);
        }
        self.put(&[0, END])
    }
    fn serialize_none(self) -> Result<(), Problem> {
        self.put(&[0])
    }
    fn serialize_some<T: Serialize + ?Sized>(self, v: &T) -> Result<(), Problem> {
        self.0.push(1);
        v.serialize(self)
    }
    fn serialize_unit(self) -> Result<(), Problem> {
        Ok(())
    }
    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Problem> {
        Ok(())
    }
    fn serialize_unit_variant(self, _: &'static str, index: u32, _: &'static str) -> Result<(), Problem> {
        self.variant(index)
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, v: &T) -> Result<(), Problem> {
        v.serialize(self)
    }
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        v: &T,
    ) -> Result<(), Problem> {
        self.variant(index)?;
        v.serialize(self)
    }
    fn serialize_seq(self, _: Option<usize>) -> Result<Elements<'a, 'w>, Problem> {
        Ok(Elements(self))
    }
    fn serialize_tuple(self, _: usize) -> Result<Parts<'a, 'w>, Problem> {
        Ok(Parts(self))
    }
    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Parts<'a, 'w>, Problem> {
        Ok(Parts(self))
    }
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Parts<'a, 'w>, Problem> {
        self.variant(index)?;
        Ok(Parts(self))
    }
    fn serialize_map(self, _: Option<usize>) -> Result<Elements<'a, 'w>, Problem> {
        Ok(Elements(self))
    }
    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Parts<'a, 'w>, Problem> {
        Ok(Parts(self))
    }
    fn serialize_struct_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Parts<'a, 'w>, Problem> {
        self.variant(index)?;
        Ok(Parts(self))
    }
}

/// Elements of which there may be any number.
pub(super) struct Elements<'a, 'w>(&'a mut Writer<'w>);

impl Elements<'_, '_> {
    fn element<T: Serialize + ?Sized>(&mut self, v: &T) -> Result<(), Problem> {
        self.0.0.push(1);
        v.serialize(&mut *self.0)
    }
}

impl ser::SerializeSeq for Elements<'_, '_> {
    type Ok = ();
    type Error = Problem;
    fn serialize_element<T: Serialize + ?Sized>(&mut self, v: &T) -> Result<(), Problem> {
        self.element(v)
    }
    fn end(self) -> Result<(), Problem> {
        self.0.put(&[0])
    }
}

impl ser::SerializeMap for Elements<'_, '_> {
    type Ok = ();
    type Error = Problem;
    fn serialize_key<T: Serialize + ?Sized>(&mut self, k: &T) -> Result<(), Problem> {
        self.element(k)
    }
    fn serialize_value<T: Serialize + ?Sized>(&mut self, v: &T) -> Result<(), Problem> {
        v.serialize(&mut *self.0)
    }
    fn end(self) -> Result<(), Problem> {
        self.0.put(&[0])
    }
}

/// Parts of which the type says how many there are.
pub(super) struct Parts<'a, 'w>(&'a mut Writer<'w>);

macro_rules! parts {
    ($($of:ident: $each:ident($($key:ident)?)),*) => { $(
        impl ser::$of for Parts<'_, '_> {
            type Ok = ();
            type Error = Problem;
            fn $each<T: Serialize + ?Sized>(&mut self, $($key: &'static str,)? v: &T) -> Result<(), Problem> {
                $(let _ = $key;)?
                v.serialize(&mut *self.0)
            }
            fn end(self) -> Result<(), Problem> { Ok(()) }
        }
    )* };
}
parts! {
    SerializeTuple: serialize_element(), SerializeTupleStruct: serialize_field(),
    SerializeTupleVariant: serialize_field(), SerializeStruct: serialize_field(name),
    SerializeStructVariant: serialize_field(name)
}
