//! Failures injected by a test.

use crate::status::{Outcome, Status};

/// Lets a number of calls succeed and then fails a number of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Countdown {
    before: u64,
    failing: u64,
}

impl Countdown {
    /// Fails `times` calls, starting with the `nth` from now (1 is the next one).
    pub fn new(nth: u64, times: u64) -> Countdown {
        Countdown {
            before: nth.saturating_sub(1),
            failing: times,
        }
    }

    /// Counts a call, and returns whether it must fail.
    pub fn strikes(&mut self) -> bool {
        if self.failing == 0 {
            return false;
        }
        if self.before > 0 {
            self.before -= 1;
            return false;
        }
        self.failing -= 1;
        true
    }
}

/// A launch after which the context is lost.
#[derive(Clone, Copy, Debug)]
struct Loss {
    launch: Countdown,
    status: Status,
    /// Whether the launch itself reports the loss, instead of the next call.
    at_once: bool,
}

/// How a library says that it could not have device memory: each has a status of its own for these.
#[derive(Clone, Copy, Debug, Default)]
pub enum Lack {
    #[default]
    Allocation,
    NotInitialized,
    Internal,
    Execution,
}

/// The injected failures of a device, and whether its context is lost.
#[derive(Debug, Default)]
pub struct Faults {
    pub allocation: Countdown,
    pub host_allocation: Countdown,
    pub events: Countdown,
    /// Calls of libraries; they fail as [`lacks`](Self::lacks) says, as do those that the device has no memory for.
    pub library: Countdown,
    pub lacks: Lack,
    pub modules: Countdown,
    /// New pools.
    pub pools: Countdown,
    /// Copies, memsets and kernel launches; they return `work_status`.
    pub work: Countdown,
    pub work_status: Status,
    /// The status with which retaining the primary context fails.
    pub context: Option<Status>,
    /// How many queries of an event return `NOT_READY` after it was recorded.
    pub event_lag: u32,
    loss: Option<Loss>,
    /// Calls until the context is lost with `call_status`.
    call: Countdown,
    call_status: Status,
    pub lost: Option<Status>,
    /// Frees that the lost context refused.
    pub refused: Vec<u64>,
}

impl Faults {
    /// Loses the context at the `nth` launch from now, or at once if `nth` is 0.
    pub fn order_loss(&mut self, nth: u64, status: Status, at_once: bool) {
        if nth == 0 {
            self.lost = Some(status);
        } else {
            self.loss = Some(Loss {
                launch: Countdown::new(nth, 1),
                status,
                at_once,
            });
        }
    }

    /// Loses the context at the `nth` call from now that needs a context.
    pub fn order_loss_at_call(&mut self, nth: u64, status: Status) {
        (self.call, self.call_status) = (Countdown::new(nth, 1), status);
    }

    /// Counts a call that needs a context.
    pub fn call(&mut self) {
        if self.call.strikes() {
            self.lost = Some(self.call_status);
        }
    }

    /// Counts a launch, and returns whether to do its work.
    pub fn launch(&mut self) -> Outcome<bool> {
        self.check()?;
        if let Some(loss) = &mut self.loss
            && loss.launch.strikes()
        {
            let (status, at_once) = (loss.status, loss.at_once);
            self.loss = None;
            self.lost = Some(status);
            return if at_once { Err(status) } else { Ok(false) };
        }
        Ok(true)
    }

    /// Counts a copy, a memset or a kernel launch. One that must fail is not done, and the context stays valid.
    pub fn work(&mut self) -> Outcome {
        match self.work.strikes() {
            true => Err(self.work_status),
            false => Ok(()),
        }
    }

    /// Fails if the context is lost.
    pub fn check(&self) -> Outcome {
        self.lost.map_or(Ok(()), Err)
    }

    /// Removes the injected failures; a lost context stays lost.
    pub fn disarm(&mut self) {
        let lost = self.lost;
        let refused = std::mem::take(&mut self.refused);
        *self = Faults {
            lost,
            refused,
            ..Faults::default()
        };
    }
}
