use std::io;

use crate::error::classify::AnyError;
use crate::error::{Error, Invalid, Phase, Subject, UnreachedParameters, no_match};
use crate::nn::{AuditError, IndexRangeError, RecomputeError, SecondRun};

pub use crate::nn::modules::by_module;

/// Those of `nn` inside of candle's. As when a phase of a trainer ends, an exhaustion in the second run of a region gets its phase.
pub fn unwrap(error: io::Error) -> Result<Error, io::Error> {
    let error = match error.downcast::<SecondRun>() {
        Ok(SecondRun(error)) => return Ok(Error::from(error).in_phase(Phase::Recompute)),
        Err(error) => error,
    };
    let error = match error.downcast::<RecomputeError>() {
        Ok(error) => return Ok(error.into()),
        Err(error) => error,
    };
    error.downcast::<AuditError>().map(Error::from)
}

/// Whether this is an error in the second run of a region.
pub fn is_second_run(error: &AnyError) -> bool {
    error.is::<SecondRun>()
}

/// Whether a tensor has more elements than a kernel can index.
pub fn is_index_range(error: &AnyError) -> bool {
    error.is::<IndexRangeError>()
}

/// The error of candle that one of `nn` shows in its text.
pub fn shown(error: &AnyError) -> Option<&AnyError> {
    if let Some(SecondRun(reason)) = error.downcast_ref() {
        return Some(reason);
    }
    match error.downcast_ref() {
        Some(AuditError::Candle(reason)) => Some(reason),
        _ => None,
    }
}

impl From<AuditError> for Error {
    fn from(error: AuditError) -> Self {
        match error {
            AuditError::Unreached { names, others, .. } => {
                UnreachedParameters::new(names, others).into()
            }
            AuditError::NoMatch(pattern) => no_match(&pattern),
            AuditError::Candle(error) => error.into(),
            loss => Invalid::of(Subject::Loss, loss).into(),
        }
    }
}
