use std::collections::BTreeMap;

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::sample::{Health, NAMES, Sample};
use super::source::Source;

/// A sample as a JSON object. Values that are not known are left out. Serializing allocates nothing.
pub(crate) struct SampleLine<'a>(pub(crate) &'a Source, pub(crate) &'a Sample);

impl Serialize for SampleLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(source, sample) = self;
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("taken_unix_ms", &sample.unix_milliseconds())?;
        object.serialize_entry("source", &source.name)?;
        object.serialize_entry("index", &sample.source)?;
        if let Some(uuid) = &source.uuid {
            object.serialize_entry("uuid", uuid)?;
        }
        if let Some(ordinal) = source.cuda {
            object.serialize_entry("cuda", &ordinal)?;
        }
        object.serialize_entry("health", &sample.health)?;
        object.serialize_entry("took_us", &sample.microseconds())?;
        for (name, value) in NAMES.into_iter().zip(sample.values()) {
            if let Some(value) = value {
                object.serialize_entry(name, &value)?;
            }
        }
        object.end()
    }
}

/// A sample that was read back from a line of JSON.
///
/// ```
/// use candle_headroom::monitor::{Health, SampleRecord};
///
/// let line = r#"{"taken_unix_ms":0,"source":"host","index":0,"health":"good","took_us":7,"used_bytes":42}"#;
/// let sample: SampleRecord = serde_json::from_str(line).unwrap();
/// assert_eq!((sample.health, sample.values["used_bytes"]), (Health::Good, 42));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[non_exhaustive]
pub struct SampleRecord {
    /// When it was taken, in milliseconds since 1970.
    pub taken_unix_ms: u64,
    /// The name of its [`Source`].
    pub source: String,
    /// The index of its source.
    pub index: usize,
    /// The GPU's UUID.
    pub uuid: Option<String>,
    /// The GPU's CUDA ordinal.
    pub cuda: Option<usize>,
    /// Whether the source answered.
    pub health: Health,
    /// How long taking it took, in microseconds.
    pub took_us: u64,
    /// The known values by their names, which are those of a [`FileSink`](super::FileSink)'s columns.
    #[serde(flatten)]
    pub values: BTreeMap<String, u64>,
}
