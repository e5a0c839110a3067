use std::borrow::Cow;

use candle_core::DeviceLocation;

use super::code::{FindingCode, Severity};
use crate::facts::Status;

/// Something that was found: what was seen, what it leads to, and what to do next.
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
    /// What it is in general.
    #[serde(flatten, serialize_with = "general")]
    pub code: &'static FindingCode,
    /// Which GPU it is about, by NVML's number; `None` for the machine.
    pub gpu: Option<u32>,
    /// Which of candle's devices it is about, where work was tried on one.
    #[serde(serialize_with = "device")]
    pub device: Option<DeviceLocation>,
    /// The evidence.
    pub seen: String,
    /// What it leads to here.
    pub leads_to: Cow<'static, str>,
    /// What to do next; empty where nothing has to be done.
    pub next_step: Cow<'static, str>,
    /// The command that does it or looks further; empty where there is none.
    pub command: Cow<'static, str>,
}

/// The part of a code that a finding does not say itself.
fn general<S: serde::Serializer>(code: &FindingCode, serializer: S) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeMap;
    let mut map = serializer.serialize_map(Some(4))?;
    map.serialize_entry("code", code.id)?;
    map.serialize_entry("severity", &code.severity)?;
    map.serialize_entry("prevents_cuda", &code.prevents_cuda)?;
    map.serialize_entry("title", code.title)?;
    map.end()
}

/// As in `cuda:0`.
fn device<S: serde::Serializer>(
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

    /// How grave it is.
    pub fn severity(&self) -> Severity {
        self.code.severity
    }

    /// About one GPU, whose number goes into the command.
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

    /// With the next step that the facts name for a status.
    pub(super) fn advised(self, status: Option<&'static Status>) -> Self {
        match status {
            Some(status) => self.next(status.remedy),
            None => {
                self.next("look it up in NVIDIA's documentation: it is newer than this checker")
            }
        }
    }
}

/// How a status is written: its number, and its name and cause where they are known.
pub(super) fn told(library: &str, number: u32, status: Option<&'static Status>) -> String {
    match status {
        Some(status) => format!("{library} {number} {}: {}", status.name, status.cause),
        None => format!("{library} {number}, which is not known here"),
    }
}
