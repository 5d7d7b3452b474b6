//! Keys become key groups by one stable hash, frozen: the same key lands in the same group in every build, forever.
//!
//! The hash is defined on the key's serde image, so any serialisable key has one and equal images hash alike:
//!
//! * `bool`, `char` and every integer up to 64 bits are widened to 64 bits (signed ones with their sign) and
//!   mixed in. So `7u32` and `7u64` hash alike, and `-1i64` hashes like `u64::MAX`.
//! * 128-bit integers are folded as two 64-bit halves, low half first.
//! * Floats are folded as the bits of an `f64`, with `-0.0` as `0.0` and every NaN as one NaN.
//! * Text and bytes are folded by XXH3-64, seeded with the state so far; a text and its UTF-8 bytes hash alike.
//! * Tuples and structs fold their length, then each part; sequences and maps each part, then their length; options
//!   fold 0 or 1, then the content; enum variants fold their index, then the content. Newtypes are transparent.
//!
//! The serde image asked for is the human-readable one. A map whose iteration order is not fixed (`HashMap`) is
//! no stable key. Nothing is allocated.

use serde::ser::{self, Serialize};
use std::fmt;
use std::ops::Range;
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// How many key groups a job has unless it says otherwise. Fixed at the first checkpoint.
pub const KEY_GROUPS: u16 = 128;

const START: u64 = 0x5765_6972_2f6b_6579;
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes `value` into `state`: the splitmix64 finaliser, a bijection in each argument.
#[inline]
pub(crate) const fn mix(state: u64, value: u64) -> u64 {
    let mut z = (state ^ value).wrapping_add(GOLDEN);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The stable 64-bit hash of a key. Its upper half picks the key group, its lower half is left to hash tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyHash(pub u64);

/// One of the fixed number of groups that keys are dealt into: the unit of routing, rescaling and ownership.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyGroup(pub u16);

/// Hashes a key: see the module for the exact definition, which is frozen.
///
/// A key whose own `Serialize` reports an error hashes by the parts it gave before that, which is as stable.
#[inline]
pub fn key_hash<K: Serialize + ?Sized>(k: &K) -> KeyHash {
    let mut fold = Fold { state: START };
    match k.serialize(&mut fold) {
        Ok(()) | Err(Refused) => KeyHash(fold.state),
    }
}

impl KeyHash {
    /// Picks the key group, evenly, by a multiply-high of the upper 32 bits.
    #[inline]
    pub const fn group(self, groups: u16) -> KeyGroup {
        KeyGroup((((self.0 >> 32) * groups as u64) >> 32) as u16)
    }

    /// Turns the hash for a table that holds the keys of one group or of a few.
    ///
    /// Keys of one group agree in their top bits, and tables such as hashbrown's tag their slots with just those.
    #[inline]
    pub const fn in_group(self) -> u64 {
        self.0.rotate_left(32)
    }
}

impl KeyGroup {
    /// Names the subtask that owns this group when `groups` are dealt, in contiguous ranges, to `parallelism` subtasks.
    ///
    /// # Panics
    /// When `groups` is 0.
    #[inline]
    pub const fn subtask(self, groups: u16, parallelism: usize) -> usize {
        self.0 as usize * parallelism / groups as usize
    }
}

impl fmt::Display for KeyGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The key groups that `subtask` of `parallelism` owns: the exact inverse of [`KeyGroup::subtask`].
///
/// The range is empty for a subtask beyond the number of groups.
///
/// # Panics
/// When `parallelism` is 0.
pub const fn key_groups_of(subtask: usize, parallelism: usize, groups: u16) -> Range<u16> {
    let n = groups as usize;
    let start = (subtask * n).div_ceil(parallelism);
    let end = ((subtask + 1) * n).div_ceil(parallelism);
    (if start > n { n } else { start }) as u16..(if end > n { n } else { end }) as u16
}

/// The running hash: a serialiser whose output is 64 bits of state.
struct Fold {
    state: u64,
}

/// A key's own `Serialize` gave up. Carries nothing: the message would have to be allocated.
#[derive(Debug)]
struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the key refused to be serialised")
    }
}

impl std::error::Error for Refused {}

impl ser::Error for Refused {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Refused
    }
}

impl Fold {
    #[inline]
    fn word(&mut self, v: u64) -> Result<(), Refused> {
        self.state = mix(self.state, v);
        Ok(())
    }

    #[inline]
    fn run(&mut self, v: &[u8]) -> Result<(), Refused> {
        self.state = xxh3_64_with_seed(v, self.state);
        Ok(())
    }

    #[inline]
    fn fixed(&mut self, len: usize) -> Result<Parts<'_>, Refused> {
        self.word(len as u64)?;
        Ok(Parts { fold: self, counted: None })
    }

    #[inline]
    fn open(&mut self) -> Result<Parts<'_>, Refused> {
        Ok(Parts { fold: self, counted: Some(0) })
    }
}

macro_rules! words {
    ($($name:ident: $t:ty),*) => { $(
        #[inline]
        fn $name(self, v: $t) -> Result<(), Refused> { self.word(v as u64) }
    )* };
}

impl<'a> ser::Serializer for &'a mut Fold {
    type Ok = ();
    type Error = Refused;
    type SerializeSeq = Parts<'a>;
    type SerializeTuple = Parts<'a>;
    type SerializeTupleStruct = Parts<'a>;
    type SerializeTupleVariant = Parts<'a>;
    type SerializeMap = Parts<'a>;
    type SerializeStruct = Parts<'a>;
    type SerializeStructVariant = Parts<'a>;

    words! {
        serialize_bool: bool, serialize_char: char, serialize_u8: u8, serialize_u16: u16, serialize_u32: u32,
        serialize_u64: u64, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64
    }
    #[inline]
    fn serialize_u128(self, v: u128) -> Result<(), Refused> {
        self.word(v as u64)?;
        self.word((v >> 64) as u64)
    }
    #[inline]
    fn serialize_i128(self, v: i128) -> Result<(), Refused> {
        self.serialize_u128(v as u128)
    }
    #[inline]
    fn serialize_f32(self, v: f32) -> Result<(), Refused> {
        self.serialize_f64(f64::from(v))
    }
    #[inline]
    fn serialize_f64(self, v: f64) -> Result<(), Refused> {
        let one = if v.is_nan() { 0x7ff8_0000_0000_0000 } else { (v + 0.0).to_bits() };
        self.word(one)
    }
    #[inline]
    fn serialize_str(self, v: &str) -> Result<(), Refused> {
        self.run(v.as_bytes())
    }
    #[inline]
    fn serialize_bytes(self, v: &[u8]) -> Result<(), Refused> {
        self.run(v)
    }
    #[inline]
    fn serialize_none(self) -> Result<(), Refused> {
        self.word(0)
    }
    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, v: &T) -> Result<(), Refused> {
        self.word(1)?;
        v.serialize(self)
    }
    #[inline]
    fn serialize_unit(self) -> Result<(), Refused> {
        self.word(0)
    }
    #[inline]
    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Refused> {
        self.word(0)
    }
    #[inline]
    fn serialize_unit_variant(self, _: &'static str, index: u32, _: &'static str) -> Result<(), Refused> {
        self.word(u64::from(index))
    }
    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, v: &T) -> Result<(), Refused> {
        v.serialize(self)
    }
    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        v: &T,
    ) -> Result<(), Refused> {
        self.word(u64::from(index))?;
        v.serialize(self)
    }
    #[inline]
    fn serialize_seq(self, _: Option<usize>) -> Result<Parts<'a>, Refused> {
        self.open()
    }
    #[inline]
    fn serialize_tuple(self, len: usize) -> Result<Parts<'a>, Refused> {
        self.fixed(len)
    }
    #[inline]
    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<Parts<'a>, Refused> {
        self.fixed(len)
    }
    #[inline]
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        len: usize,
    ) -> Result<Parts<'a>, Refused> {
        self.word(u64::from(index))?;
        self.fixed(len)
    }
    #[inline]
    fn serialize_map(self, _: Option<usize>) -> Result<Parts<'a>, Refused> {
        self.open()
    }
    #[inline]
    fn serialize_struct(self, _: &'static str, len: usize) -> Result<Parts<'a>, Refused> {
        self.fixed(len)
    }
    #[inline]
    fn serialize_struct_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        len: usize,
    ) -> Result<Parts<'a>, Refused> {
        self.word(u64::from(index))?;
        self.fixed(len)
    }
    fn collect_str<T: fmt::Display + ?Sized>(self, v: &T) -> Result<(), Refused> {
        let mut text = Streamed(Xxh3::with_seed(self.state));
        fmt::write(&mut text, format_args!("{v}")).map_err(|_| Refused)?;
        self.state = text.0.digest();
        Ok(())
    }
}

/// Displayed text on its way into the hash; gives what `serialize_str` gives for the same text.
struct Streamed(Xxh3);

impl fmt::Write for Streamed {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0.update(s.as_bytes());
        Ok(())
    }
}

/// The parts of a compound; `counted` when its length is folded at the end.
struct Parts<'a> {
    fold: &'a mut Fold,
    counted: Option<u64>,
}

impl Parts<'_> {
    #[inline]
    fn part<T: Serialize + ?Sized>(&mut self, v: &T) -> Result<(), Refused> {
        self.counted = self.counted.map(|n| n + 1);
        v.serialize(&mut *self.fold)
    }

    #[inline]
    fn close(self) -> Result<(), Refused> {
        self.counted.map_or(Ok(()), |n| self.fold.word(n))
    }
}

macro_rules! parts {
    ($($of:ident: $each:ident($($key:ident)?)),*) => { $(
        impl ser::$of for Parts<'_> {
            type Ok = ();
            type Error = Refused;
            #[inline]
            fn $each<T: Serialize + ?Sized>(&mut self, $($key: &'static str,)? v: &T) -> Result<(), Refused> {
                $(let _ = $key;)?
                self.part(v)
            }
            #[inline]
            fn end(self) -> Result<(), Refused> { self.close() }
        }
    )* };
}
parts! {
    SerializeSeq: serialize_element(), SerializeTuple: serialize_element(), SerializeTupleStruct: serialize_field(),
    SerializeTupleVariant: serialize_field(), SerializeStruct: serialize_field(name),
    SerializeStructVariant: serialize_field(name)
}

impl ser::SerializeMap for Parts<'_> {
    type Ok = ();
    type Error = Refused;
    #[inline]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, k: &T) -> Result<(), Refused> {
        self.part(k)
    }
    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, v: &T) -> Result<(), Refused> {
        v.serialize(&mut *self.fold)
    }
    #[inline]
    fn end(self) -> Result<(), Refused> {
        self.close()
    }
}

#[cfg(test)]
#[path = "key_tests.rs"]
mod tests;
