use crate::error::{Error, Phase, Result};
use crate::testing;

/// Runs one phase of a micro-batch: an exhaustion names the phase, and tests can inject a failure here.
pub(crate) fn run_phase<T, E: Into<Error>>(
    phase: Phase,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T> {
    testing::inject(phase)
        .map_err(Error::from)
        .and_then(|()| work().map_err(Into::into))
        .map_err(|error| error.in_phase(phase))
}
