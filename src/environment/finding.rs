use std::borrow::Cow;

use candle_core::DeviceLocation;
use serde::Serializer;
use serde::ser::SerializeMap;

use super::code::{FindingCode, Severity};
use crate::facts::Status;

/// A condition of the machine: what was seen, the consequences, and what to do next.
///
/// ```
/// use candle_headroom::Environment;
///
/// for finding in Environment::new().check().findings() {
///     println!("{} {}: {}", finding.code.id, finding.code.title, finding.seen);
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// The kind of finding.
    #[serde(flatten, serialize_with = "kind")]
    pub code: &'static FindingCode,
    /// NVML's index of the GPU that it is about; `None` for the machine.
    pub gpu: Option<u32>,
    /// The candle device that it is about, for results of a smoke test.
    #[serde(serialize_with = "device")]
    pub device: Option<DeviceLocation>,
    /// The evidence.
    pub seen: String,
    /// The consequences here.
    pub leads_to: Cow<'static, str>,
    /// What to do next; empty if nothing has to be done.
    pub next_step: Cow<'static, str>,
    /// A command that does it or looks further; empty if there is none.
    pub command: Cow<'static, str>,
}

/// The fields of the code that the finding does not have itself.
fn kind<S: Serializer>(code: &FindingCode, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(4))?;
    map.serialize_entry("code", code.id)?;
    map.serialize_entry("severity", &code.severity)?;
    map.serialize_entry("prevents_cuda", &code.prevents_cuda)?;
    map.serialize_entry("title", code.title)?;
    map.end()
}

/// Such as `cuda:0`.
fn device<S: Serializer>(
    device: &Option<DeviceLocation>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let name = device.map(|device| match device {
        DeviceLocation::Cpu => "cpu".to_owned(),
        DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
    });
    serde::Serialize::serialize(&name, serializer)
}

impl Finding {
    pub(super) fn new(code: &'static FindingCode, seen: impl Into<String>) -> Self {
        Self {
            code,
            gpu: None,
            device: None,
            seen: seen.into(),
            leads_to: Cow::Borrowed(code.leads_to),
            next_step: Cow::Borrowed(code.next_step),
            command: Cow::Borrowed(code.command),
        }
    }

    /// The severity of its code.
    pub fn severity(&self) -> Severity {
        self.code.severity
    }

    /// About one GPU, whose index goes into the command.
    pub(super) fn on(mut self, gpu: u32) -> Self {
        self.gpu = Some(gpu);
        if self.command.contains(" -i N") {
            self.command = Cow::Owned(self.command.replace(" -i N", &format!(" -i {gpu}")));
        }
        self
    }

    /// About one of candle's devices.
    pub(super) fn of(mut self, device: DeviceLocation) -> Self {
        self.device = Some(device);
        self
    }

    pub(super) fn next(mut self, text: impl Into<Cow<'static, str>>) -> Self {
        self.next_step = text.into();
        self
    }

    pub(super) fn by(mut self, command: impl Into<Cow<'static, str>>) -> Self {
        self.command = command.into();
        self
    }

    /// With the remedy for a status.
    pub(super) fn advised(self, status: Option<&'static Status>) -> Self {
        match status {
            Some(status) => self.next(status.remedy),
            None => self.next(
                "look the status up in NVIDIA's documentation; this version does not know it",
            ),
        }
    }
}

/// A status with its name and cause, if they are known.
pub(super) fn answer(call: &str, number: u32, status: Option<&'static Status>) -> String {
    match status {
        Some(status) => format!("{call} returns {number} {}: {}", status.name, status.cause),
        None => format!("{call} returns {number}, an unknown status"),
    }
}
