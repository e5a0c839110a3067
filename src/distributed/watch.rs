use std::sync::Arc;
use std::time::Duration;

use super::control::{Control, GRACE};
use crate::error::Result;

/// Ends a wait for other ranks when one of them is lost, or takes too long.
#[derive(Debug, Clone)]
pub struct Watch {
    control: Arc<Control>,
    /// By the control's clock.
    until: Duration,
    what: &'static str,
}

impl Watch {
    /// Gives the others the group's timeout from now on to do `what`.
    pub(crate) fn new(control: &Arc<Control>, what: &'static str) -> Self {
        let grace = match control.rank() {
            0 => Duration::ZERO,
            _ => GRACE,
        };
        Self {
            control: Arc::clone(control),
            until: control.now() + control.timeout() + grace,
            what,
        }
    }

    /// Fails if a rank is known to be lost, or the time is up. An engine calls it again and again while it waits.
    ///
    /// # Errors
    /// [`GroupError::PeerLost`](crate::error::GroupError::PeerLost).
    pub fn check(&self) -> Result<()> {
        self.control.check(self.what)?;
        match self.control.now() < self.until {
            true => Ok(()),
            false => Err(self.control.time_out(self.what)),
        }
    }
}
