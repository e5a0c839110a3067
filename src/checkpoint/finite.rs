use serde::ser::{self, Error as _, Serialize, Serializer};

/// A serializer without output that fails at the first number that is not finite, which JSON has no text for: `serde_json` writes `null`,
/// and that is not read as a number again.
pub(super) struct Finite;

type Result<T = ()> = std::result::Result<T, serde_json::Error>;

fn check(value: f64) -> Result {
    match value.is_finite() {
        true => Ok(()),
        false => Err(serde_json::Error::custom(format!(
            "{value} is not finite, and JSON has no such number: use an `Option`, or save it as text"
        ))),
    }
}

macro_rules! accept {
    ($($name:ident($($argument:ty),*);)+) => {$(
        fn $name(self, $(_: $argument),*) -> Result {
            Ok(())
        }
    )+};
}

/// Values that begin a list, whose elements are checked.
macro_rules! begin {
    ($($name:ident($($argument:ty),*);)+) => {$(
        fn $name(self, $(_: $argument),*) -> Result<Self> {
            Ok(self)
        }
    )+};
}

impl Serializer for Finite {
    type Ok = ();
    type Error = serde_json::Error;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    accept! {
        serialize_bool(bool);
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_i128(i128);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
        serialize_u128(u128);
        serialize_char(char);
        serialize_str(&str);
        serialize_bytes(&[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(&'static str);
        serialize_unit_variant(&'static str, u32, &'static str);
    }

    begin! {
        serialize_seq(Option<usize>);
        serialize_tuple(usize);
        serialize_tuple_struct(&'static str, usize);
        serialize_tuple_variant(&'static str, u32, &'static str, usize);
        serialize_map(Option<usize>);
        serialize_struct(&'static str, usize);
        serialize_struct_variant(&'static str, u32, &'static str, usize);
    }

    fn serialize_f32(self, value: f32) -> Result {
        check(value.into())
    }

    fn serialize_f64(self, value: f64) -> Result {
        check(value)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Result {
        value.serialize(self)
    }
}

/// Checks each element, which comes after these arguments.
macro_rules! elements {
    ($($list:ident: $($name:ident($($argument:ty),*)),+;)+) => {$(
        impl ser::$list for Finite {
            type Ok = ();
            type Error = serde_json::Error;

            $(fn $name<T: Serialize + ?Sized>(&mut self, $(_: $argument,)* value: &T) -> Result {
                value.serialize(Finite)
            })+

            fn end(self) -> Result {
                Ok(())
            }
        }
    )+};
}

elements! {
    SerializeSeq: serialize_element();
    SerializeTuple: serialize_element();
    SerializeTupleStruct: serialize_field();
    SerializeTupleVariant: serialize_field();
    SerializeMap: serialize_key(), serialize_value();
    SerializeStruct: serialize_field(&'static str);
    SerializeStructVariant: serialize_field(&'static str);
}
