//! What is there: each file looks at one subject and judges nothing.
//!
//! Probes read through `Source`, which bounds what is read, and load the driver's libraries through `patience`. Nothing that they find is an
//! error of the check: a library that is missing, fails or does not answer is a [`Reply`] of its own.

pub(super) mod cuda;
pub(super) mod kernel;
pub(super) mod libraries;
pub(super) mod nvml;
pub(super) mod ranks;

use crate::facts::Version;
use crate::patience::LoadError;

/// What the probe of a library returns: a version that is known even where a later call fails, and the rest.
pub(crate) type Answer<T> = Result<(Option<Version>, Reply<T>), LoadError>;

/// What one of the driver's libraries tells.
#[derive(Debug)]
pub(crate) enum Reply<T> {
    /// The probe did not finish, for which there is a finding.
    Unknown,
    /// Why the library cannot be loaded.
    Missing(String),
    /// The first call that failed, and its status.
    Failed(&'static str, u32),
    Works(T),
}

impl<T> Reply<T> {
    pub(crate) fn of(outcome: Result<T, (&'static str, u32)>) -> Self {
        outcome.map_or_else(|(call, status)| Self::Failed(call, status), Self::Works)
    }

    pub(crate) fn works(&self) -> Option<&T> {
        match self {
            Self::Works(value) => Some(value),
            _ => None,
        }
    }

    /// Whether a call failed with this status.
    pub(crate) fn failed_with(&self, status: u32) -> bool {
        matches!(self, Self::Failed(_, number) if *number == status)
    }

    /// For a machine without GPUs: `no NVML`, or `NVML returns 9`.
    pub(crate) fn described(&self, library: &str, call: &str) -> Option<String> {
        match self {
            Self::Unknown => None,
            Self::Missing(_) => Some(format!("no {library}")),
            Self::Failed(_, status) => Some(format!("{call} returns {status}")),
            Self::Works(_) => Some(format!("{library} counts 0")),
        }
    }
}
