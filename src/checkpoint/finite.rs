use serde::Serialize;
use serde::ser::Error as _;

/// Fails at the first number that is not finite, which JSON has no text for: `serde_json` writes `null`, and that is not read as a number
/// again.
pub(super) fn check_finite<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<()> {
    let value = ciborium::Value::serialized(value).map_err(serde_json::Error::custom)?;
    match infinite(&value) {
        None => Ok(()),
        Some(number) => Err(serde_json::Error::custom(format!(
            "{number} is not finite, and JSON has no such number: use an `Option`, or save it as text"
        ))),
    }
}

fn infinite(value: &ciborium::Value) -> Option<f64> {
    match value {
        ciborium::Value::Float(number) => Some(*number).filter(|number| !number.is_finite()),
        ciborium::Value::Tag(_, value) => infinite(value),
        ciborium::Value::Array(values) => values.iter().find_map(infinite),
        ciborium::Value::Map(entries) => {
            let mut all = entries.iter().flat_map(|(key, value)| [key, value]);
            all.find_map(infinite)
        }
        _ => None,
    }
}
