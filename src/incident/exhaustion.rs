use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;

use candle_core::DeviceLocation;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::{Cause, MemoryReading, Neighbour, Phase, Remedy, Resource, ResourceExhausted};
use crate::output::first_line;

/// The parts of a [`ResourceExhausted`] that an incident keeps. A value that was not known is `null` in the file.
///
/// ```
/// use candle_headroom::error::{Cause, Phase};
/// use candle_headroom::incident::Exhaustion;
///
/// let exhausted: Exhaustion = serde_json::from_str(r#"{"phase":"backward","cause":"neighbour"}"#).unwrap();
/// assert_eq!((exhausted.phase, exhausted.cause), (Some(Phase::Backward), Some(Cause::Neighbour)));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Exhaustion {
    /// The device, as in `cuda:0`.
    pub device: Option<String>,
    /// What ran out.
    #[serde(deserialize_with = "known")]
    pub resource: Option<Resource>,
    /// In which part of the work.
    #[serde(deserialize_with = "known")]
    pub phase: Option<Phase>,
    /// Why it ran out.
    #[serde(deserialize_with = "known")]
    pub cause: Option<Cause>,
    /// The memory's state, in bytes.
    pub bytes: MemoryReading,
    /// Memory on the device outside the program's pool, in bytes: of other processes, and CUDA's own.
    pub others: Option<u64>,
    /// The peak that the policy's model predicts for the micro-batch, in bytes.
    pub expected_peak: Option<u64>,
    /// What is known to hold the memory, in bytes.
    pub held: BTreeMap<String, u64>,
    /// Other processes on the GPU.
    pub neighbours: Vec<Neighbour>,
    /// The size of the failed micro-batch, in samples.
    pub micro_batch: Option<usize>,
    /// The failed samples, as positions in the batch.
    pub samples: Option<Range<usize>>,
    /// What would help, by what it saves, the most first.
    pub remedies: Vec<Remedy>,
    /// The first line of candle's error.
    pub source: Option<String>,
}

impl From<&ResourceExhausted> for Exhaustion {
    fn from(exhausted: &ResourceExhausted) -> Self {
        let held = exhausted.held.iter();
        let held = held.map(|held| (held.what.to_string(), held.bytes));
        let source = exhausted.source().map(ToString::to_string);
        Self {
            device: exhausted.device.map(|device| match device {
                DeviceLocation::Cpu => "cpu".to_owned(),
                DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
                DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
            }),
            resource: Some(exhausted.resource),
            phase: exhausted.phase,
            cause: Some(exhausted.cause),
            bytes: exhausted.bytes,
            others: exhausted.others(),
            expected_peak: exhausted.expected_peak,
            held: held.collect(),
            neighbours: exhausted.neighbours.clone(),
            micro_batch: exhausted.micro_batch,
            samples: exhausted.samples.clone(),
            remedies: exhausted.ranked_remedies().cloned().collect(),
            source: source.map(|source| first_line(&source).to_owned()),
        }
    }
}

/// Reads a value, or `None` if it is not one that this version knows.
pub(super) fn known<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    value: D,
) -> Result<Option<T>, D::Error> {
    let value = serde_json::Value::deserialize(value)?;
    Ok(serde_json::from_value(value).ok())
}
