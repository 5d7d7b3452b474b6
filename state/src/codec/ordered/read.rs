//! Reads keys: ordered bytes in, serde out.

use serde::de::{self, DeserializeSeed, IntoDeserializer, Visitor};

use super::{END, ESCAPED, Problem, WIDE};

/// What is not yet read.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    #[inline]
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or(Problem::TooShort)?;
        self.0 = rest;
        Ok(*bytes)
    }

    /// True for 1, false for 0.
    fn flag(&mut self, what: &'static str) -> Result<bool, Problem> {
        match self.take()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(Problem::Unexpected(what, other)),
        }
    }

    fn run(&mut self) -> Result<Vec<u8>, Problem> {
        let mut run = Vec::new();
        loop {
            let zero = self.0.iter().position(|b| *b == 0).ok_or(Problem::TooShort)?;
            run.extend_from_slice(&self.0[..zero]);
            self.0 = &self.0[zero + 1..];
            match self.take()? {
                [ESCAPED] => run.push(0),
                [END] => return Ok(run),
                [other] => return Err(Problem::Unexpected("end of a text", other)),
            }
        }
    }

    fn text(&mut self) -> Result<String, Problem> {
        String::from_utf8(self.run()?).map_err(|_| Problem::NotText)
    }
}

macro_rules! unsigned {
    ($($name:ident, $visit:ident: $t:ty),*) => { $(
        #[inline]
        fn $name<V: Visitor<'de>>(self, v: V) -> Result<V::Value, Problem> {
            v.$visit(<$t>::from_be_bytes(self.take()?))
        }
    )* };
}
macro_rules! signed {
    ($($name:ident, $visit:ident: $t:ty),*) => { $(
        #[inline]
        fn $name<V: Visitor<'de>>(self, v: V) -> Result<V::Value, Problem> {
            v.$visit(<$t>::from_be_bytes(self.take()?) ^ <$t>::MIN)
        }
    )* };
}

impl<'de> de::Deserializer<'de> for &mut Reader<'_> {
    type Error = Problem;

    fn is_human_readable(&self) -> bool {
        false
    }

    unsigned! {
        deserialize_u8, visit_u8: u8, deserialize_u16, visit_u16: u16, deserialize_u32, visit_u32: u32,
        deserialize_u64, visit_u64: u64, deserialize_u128, visit_u128: u128
    }
    signed! {
        deserialize_i8, visit_i8: i8, deserialize_i16, visit_i16: i16, deserialize_i32, visit_i32: i32,
        deserialize_i64, visit_i64: i64, deserialize_i128, visit_i128: i128
    }
    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Problem> {
        Err(Problem::NeedsType)
    }
    fn deserialize_bool<V: Visitor<'de>>(self, v: V) -> Result<V::Value, Problem> {
        v.visit_bool(self.flag("bool")?)
    }
    fn deserialize_char<V: Visitor<'de>>(self, v: V) -> Result<V::Value, Problem> {
        v.visit_char(char::from_u32(u32::from_be_bytes(self.take()?)).ok_or(Problem::NotText)?)
    }
    fn deserialize_f32<V: Visitor<'de>>(self, v: V) -> Result<V::Value, Problem> {
        let turned = u32::from_be_bytes(self.take()?);
        let bits = if turned >> 31 == 0 { !turned } else { turned & !(1 << 31) };
        v.visit_f32(f32::from_bits(bits))
    }
    fn deserialize_f64<V: Visitor<'de>>(self, v: V) -> Result<V::Value, Problem> {
        let turned = u64::from_be_bytes(self.take()?);
        let bits = if turned >> 63 == 0 { !turned } else { turned & !(1 << 63) };
        v.visit_f64(f64::from_bits(bits))
    }
    fn deserialize_str<V: Visitor<'de>>(self, v: V) -> Result<V::Value, Problem> {
        v.visit_string(self.text()?)
    }
    fn deserialize_string<V: Visitor<'de>>(self, v: V) -> Result<V::Value, Problem> {
        v.visit_string(self.text()?)
    }
    fn deserialize_bytes<V: Visitor<'de>>(self, v: V) -> Result<V::Value, Problem> {
        v.visit_byte_buf(self.run()?)
    }
    fn deserialize_byte_buf<V: Visitor<'de>>(self, v: V) -> Result<V::Value, Problem> {
        v.visit_byte_buf(self.run()?)
    }
    fn deserialize_option<V: Visitor<'de>>(self, v: V) -> Result<V::Value, Problem> {
        if self.flag("option")? { v.visit_some(self) } else { v.visit_none() }
    }
    fn deserialize_unit<V: Visitor<'de>>(self, v: V) -> Result<V::Value, Problem> {
        v.visit_unit()
    }
    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, v: V) -> Result<V::Value, Problem> {
        v.visit_unit()
    }
    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, v: V) -> Result<V::Value, Problem> {
        v.visit_newtype_struct(self)
    }
    fn deserialize_seq<V: Visitor<'de>>(self, v: V) -> Result<V::Value, Problem> {
        v.visit_seq(Elements(self))
    }
    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, v: V) -> Result<V::Value, Problem> {
        v.visit_seq(Parts(self, length))
    }
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        length: usize,
        v: V,
    ) -> Result<V::Value, Problem> {
        v.visit_seq(Parts(self, length))
    }
    fn deserialize_map<V: Visitor<'de>>(self, v: V) -> Result<V::Value, Problem> {
        v.visit_map(Elements(self))
    }
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        v: V,
    ) -> Result<V::Value, Problem> {
        v.visit_seq(Parts(self, fields.len()))
    }
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        v: V,
    ) -> Result<V::Value, Problem> {
        v.visit_enum(self)
    }
    fn deserialize_identifier<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Problem> {
        Err(Problem::NeedsType)
    }
    fn deserialize_ignored_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Problem> {
        Err(Problem::NeedsType)
    }
}

/// Elements of which there may be any number.
struct Elements<'a, 'r>(&'a mut Reader<'r>);

impl<'de> de::SeqAccess<'de> for Elements<'_, '_> {
    type Error = Problem;
    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Problem> {
        if self.0.flag("element")? { seed.deserialize(&mut *self.0).map(Some) } else { Ok(None) }
    }
}

impl<'de> de::MapAccess<'de> for Elements<'_, '_> {
    type Error = Problem;
    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Problem> {
        if self.0.flag("element")? { seed.deserialize(&mut *self.0).map(Some) } else { Ok(None) }
    }
    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Problem> {
        seed.deserialize(&mut *self.0)
    }
}

/// So many parts are still to come.
struct Parts<'a, 'r>(&'a mut Reader<'r>, usize);

impl<'de> de::SeqAccess<'de> for Parts<'_, '_> {
    type Error = Problem;
    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Problem> {
        let Some(left) = self.1.checked_sub(1) else { return Ok(None) };
        self.1 = left;
        seed.deserialize(&mut *self.0).map(Some)
    }
    fn size_hint(&self) -> Option<usize> {
        Some(self.1)
    }
}

impl<'de> de::EnumAccess<'de> for &mut Reader<'_> {
    type Error = Problem;
    type Variant = Self;
    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Problem> {
        let index = match self.take()? {
            [WIDE] => u32::from_be_bytes(self.take()?),
            [small] => u32::from(small),
        };
        let variant: de::value::U32Deserializer<Problem> = index.into_deserializer();
        Ok((seed.deserialize(variant)?, self))
    }
}

impl<'de> de::VariantAccess<'de> for &mut Reader<'_> {
    type Error = Problem;
    fn unit_variant(self) -> Result<(), Problem> {
        Ok(())
    }
    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Problem> {
        seed.deserialize(self)
    }
    fn tuple_variant<V: Visitor<'de>>(self, length: usize, v: V) -> Result<V::Value, Problem> {
        v.visit_seq(Parts(self, length))
    }
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        v: V,
    ) -> Result<V::Value, Problem> {
        v.visit_seq(Parts(self, fields.len()))
    }
}
