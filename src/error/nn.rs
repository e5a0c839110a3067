//! Errors of `nn`, which knows nothing of this crate's.

use std::io;

use super::circumstances::Phase;
use super::error::Error;
use super::input::{LossError, ParameterError};
use super::unreached::UnreachedParameters;
use crate::nn::{AuditError, RecomputeError, SecondRun};

/// Those of `nn` inside of candle's. As when a phase of a trainer ends, an exhaustion in the second run of a region gets its phase.
pub(super) fn unwrap(error: io::Error) -> Result<Error, io::Error> {
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

impl From<AuditError> for Error {
    fn from(error: AuditError) -> Self {
        match error {
            AuditError::NotScalar(shape) => LossError::NotScalar(shape).into(),
            AuditError::NotRepeatable(first, second) => {
                LossError::NotRepeatable(first, second).into()
            }
            AuditError::Unreached { names, others, .. } => {
                UnreachedParameters::new(names, others).into()
            }
            AuditError::Wrong(names) => ParameterError::WrongGradients(names).into(),
            AuditError::NoMatch(pattern) => ParameterError::NoMatch(pattern).into(),
            AuditError::Candle(error) => error.into(),
        }
    }
}
