//! Avro's values as what serde can make any type of: a value that may be null, or is promoted, fits wherever it makes sense.

use apache_avro::types::Value;
use serde::de::value::{Error, MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

/// A value to read from.
#[derive(Clone, Copy)]
pub(super) struct Given<'a>(pub(super) &'a Value);

impl<'de> IntoDeserializer<'de, Error> for Given<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Given<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Boolean(value) => visitor.visit_bool(*value),
            Value::Int(value) | Value::Date(value) | Value::TimeMillis(value) => visitor.visit_i32(*value),
            Value::Long(value)
            | Value::TimeMicros(value)
            | Value::TimestampMillis(value)
            | Value::TimestampMicros(value)
            | Value::TimestampNanos(value)
            | Value::LocalTimestampMillis(value)
            | Value::LocalTimestampMicros(value)
            | Value::LocalTimestampNanos(value) => visitor.visit_i64(*value),
            Value::Float(value) => visitor.visit_f32(*value),
            Value::Double(value) => visitor.visit_f64(*value),
            Value::Bytes(value) | Value::Fixed(_, value) => visitor.visit_borrowed_bytes(value),
            Value::String(value) | Value::Enum(_, value) => visitor.visit_borrowed_str(value),
            Value::Union(_, value) => Given(value).deserialize_any(visitor),
            Value::Array(all) => visitor.visit_seq(SeqDeserializer::new(all.iter().map(Given))),
            Value::Map(all) => visitor.visit_map(MapDeserializer::new(
                all.iter().map(|(name, value)| (name.as_str(), Given(value))),
            )),
            Value::Record(all) => visitor.visit_map(MapDeserializer::new(
                all.iter().map(|(name, value)| (name.as_str(), Given(value))),
            )),
            Value::Uuid(value) => visitor.visit_string(value.to_string()),
            // The unscaled number, as it is written: the scale is the schema's.
            Value::Decimal(value) => {
                visitor.visit_byte_buf(Vec::try_from(value).map_err(|e| Error::custom(e.to_string()))?)
            }
            Value::BigDecimal(value) => visitor.visit_string(value.to_string()),
            Value::Duration(value) => visitor.visit_bytes(&<[u8; 12]>::from(value)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            Value::Union(_, value) => Given(value).deserialize_option(visitor),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Enum(_, variant) | Value::String(variant) => {
                visitor.visit_enum(variant.as_str().into_deserializer())
            }
            Value::Union(_, value) => Given(value).deserialize_enum(name, variants, visitor),
            other => {
                Err(Error::custom(format!("a value of {:?} where one of {variants:?} is due", kind(other))))
            }
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct
        map struct identifier ignored_any
    }
}

fn kind(value: &Value) -> apache_avro::schema::SchemaKind {
    value.into()
}
