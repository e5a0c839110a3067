//! What serde reads rows and their values from.

use parquet::record::Field;
use serde::de::value::{Error, MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

type Result<T> = std::result::Result<T, Error>;

/// A value in a row, or a row: a map from column to value, or the values in order where a tuple is asked for.
#[derive(Clone, Copy)]
pub(super) struct Value<'r>(pub &'r Field);

impl<'de> Deserializer<'de> for Value<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.0 {
            Field::Null => visitor.visit_unit(),
            Field::Bool(value) => visitor.visit_bool(*value),
            Field::Byte(value) => visitor.visit_i8(*value),
            Field::Short(value) => visitor.visit_i16(*value),
            Field::Int(value) | Field::Date(value) | Field::TimeMillis(value) => {
                visitor.visit_i32(*value)
            }
            Field::Long(value)
            | Field::TimeMicros(value)
            | Field::TimestampMillis(value)
            | Field::TimestampMicros(value) => visitor.visit_i64(*value),
            Field::UByte(value) => visitor.visit_u8(*value),
            Field::UShort(value) => visitor.visit_u16(*value),
            Field::UInt(value) => visitor.visit_u32(*value),
            Field::ULong(value) => visitor.visit_u64(*value),
            Field::Float16(value) => visitor.visit_f32(value.to_f32()),
            Field::Float(value) => visitor.visit_f32(*value),
            Field::Double(value) => visitor.visit_f64(*value),
            Field::Decimal(_) => visitor.visit_string(self.0.to_string()),
            Field::Str(text) => visitor.visit_borrowed_str(text),
            // `Vec<u8>` and any value can be read from a sequence, but not from bytes.
            Field::Bytes(bytes) => {
                visitor.visit_seq(SeqDeserializer::new(bytes.data().iter().copied()))
            }
            Field::Group(row) => {
                let fields = row
                    .get_column_iter()
                    .map(|(name, field)| (name.as_str(), Self(field)));
                visitor.visit_map(MapDeserializer::new(fields))
            }
            Field::ListInternal(list) => {
                visitor.visit_seq(SeqDeserializer::new(list.elements().iter().map(Self)))
            }
            Field::MapInternal(map) => {
                let entries = map
                    .entries()
                    .iter()
                    .map(|(key, value)| (Self(key), Self(value)));
                visitor.visit_map(MapDeserializer::new(entries))
            }
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.0 {
            Field::Group(row) => {
                let fields = row.get_column_iter().map(|(_, field)| Self(field));
                visitor.visit_seq(SeqDeserializer::new(fields))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V>(self, _: &str, _: usize, visitor: V) -> Result<V::Value>
    where
        V: Visitor<'de>,
    {
        self.deserialize_seq(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.0 {
            Field::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    /// Some writers do not mark strings.
    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.0 {
            Field::Bytes(bytes) => visitor
                .visit_borrowed_str(std::str::from_utf8(bytes.data()).map_err(Error::custom)?),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.0 {
            Field::Bytes(bytes) => visitor.visit_borrowed_bytes(bytes.data()),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &str, visitor: V) -> Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        match self.0 {
            Field::Str(text) => text
                .as_str()
                .into_deserializer()
                .deserialize_enum(name, variants, visitor),
            _ => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char unit unit_struct map struct identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de> for Value<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}
