use std::borrow::{Borrow, Cow};

use serde::de::{Deserializer, Error};

use super::{FindingCode, Severity};
use crate::facts::Status;
use std::fmt::Display;

/// A condition of the machine: what was seen, the consequences, and what to do next.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Finding {
    /// The kind of finding.
    #[serde(flatten, deserialize_with = "known")]
    pub code: &'static FindingCode,
    /// NVML's index of the GPU that it is about; `None` for the machine.
    pub gpu: Option<u32>,
    /// CUDA's ordinal of the device that it is about, for results of a smoke test.
    pub ordinal: Option<u32>,
    /// The evidence.
    pub seen: String,
    /// What to do next; empty if nothing has to be done.
    pub next_step: Cow<'static, str>,
    /// A command that does it or looks further; empty if there is none.
    pub command: Cow<'static, str>,
}

impl Finding {
    pub(super) fn new(code: Kind, seen: impl Into<String>) -> Self {
        Self {
            code,
            gpu: None,
            ordinal: None,
            seen: seen.into(),
            next_step: code.next_step.into(),
            command: code.command.into(),
        }
    }

    /// The severity of its code.
    pub fn severity(&self) -> Severity {
        self.code.severity
    }

    /// Makes it about one GPU, whose index goes into the command.
    pub(super) fn set_gpu(&mut self, gpu: u32) {
        self.gpu = Some(gpu);
        if self.command.contains(" -i N") {
            let command = self.command.replace(" -i N", &format!(" -i {gpu}"));
            self.command = command.into();
        }
    }
}

/// The kind of finding with the id that was read, which must be one of this version's.
fn known<'de, D: Deserializer<'de>>(from: D) -> Result<&'static FindingCode, D::Error> {
    #[derive(serde::Deserialize)]
    struct Id {
        code: String,
    }
    let Id { code } = serde::Deserialize::deserialize(from)?;
    let mut all = FindingCode::all().iter().copied();
    let found = all.find(|known| known.id == code);
    found.ok_or_else(|| D::Error::custom(format!("no finding is called `{code}`")))
}

/// A status with its name and cause, if they are known.
pub(super) fn answer(call: &str, number: u32, status: Option<Status>) -> String {
    match status {
        Some(status) => format!("{call} returns {number} {}: {}", status.name, status.cause),
        None => format!("{call} returns {number}, an unknown status"),
    }
}

/// A value between two texts; nothing without one.
pub(super) fn around(before: &str, value: Option<impl Display>, after: &str) -> String {
    value.map_or(String::new(), |value| format!("{before}{value}{after}"))
}

pub(super) fn joined(parts: impl IntoIterator<Item = impl Borrow<str>>, by: &str) -> String {
    parts.into_iter().collect::<Vec<_>>().join(by)
}

type Kind = &'static FindingCode;

/// The findings of a check.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    pub(super) fn add(&mut self, code: Kind, seen: impl Into<String>) {
        self.begin(code, seen);
    }

    /// Adds a finding for the caller to complete.
    pub(super) fn begin(&mut self, code: Kind, seen: impl Into<String>) -> &mut Finding {
        let last = self.0.len();
        self.0.push(Finding::new(code, seen));
        &mut self.0[last]
    }

    /// Adds a finding that lists parts, unless there are none.
    pub(super) fn list(&mut self, code: Kind, parts: impl IntoIterator<Item = impl Borrow<str>>) {
        let seen = joined(parts, ", ");
        if !seen.is_empty() {
            self.add(code, seen);
        }
    }

    /// Adds a finding about a status, with the status's remedy.
    pub(super) fn answer(
        &mut self,
        code: Kind,
        (call, number): (&str, u32),
        status: fn(u32) -> Option<Status>,
    ) {
        const UNKNOWN: &str =
            "look the status up in NVIDIA's documentation; this version does not know it";
        let status = status(number);
        let finding = self.begin(code, answer(call, number, status));
        finding.next_step = status.map_or(UNKNOWN, |status| status.remedy).into();
    }
}
