//! Work that has been launched and not yet executed. A test can have kernels, copies with pinned memory and memsets of streams executed as
//! late as CUDA may: when something waits for them, or depends on them. All streams share one order, that of the calls.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;

use super::Device;
use crate::status::{Outcome, Status, answer};

type Work = Box<dyn FnOnce(&mut Device) -> Outcome + Send>;

/// The work of one device that awaits its execution.
#[derive(Default)]
pub struct Late {
    /// Whether work is executed late.
    pub on: bool,
    waiting: VecDeque<Work>,
}

impl fmt::Debug for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Late")
            .field("on", &self.on)
            .field("waiting", &self.waiting.len())
            .finish()
    }
}

impl Late {
    pub fn new() -> Late {
        Late {
            on: std::env::var("SIMULATED_CUDA_LATE").is_ok_and(|late| late == "1"),
            ..Late::default()
        }
    }
}

thread_local! {
    static LEAVES_WORK: Cell<bool> = const { Cell::new(false) };
}

/// Runs an entry point that does not wait for work, and returns its `CUresult`. Every other one executes it first.
pub fn answer_at_once(body: impl FnOnce() -> Outcome) -> u32 {
    LEAVES_WORK.set(true);
    let status = answer(body);
    LEAVES_WORK.set(false);
    status
}

/// Whether the present call leaves work as it is.
pub fn leaves_work() -> bool {
    LEAVES_WORK.get()
}

impl Device {
    /// Executes work now or, if the test wants it, late. An error is the fault that loses the context.
    pub fn execute(&mut self, work: impl FnOnce(&mut Device) -> Outcome + Send + 'static) {
        match self.late.on {
            true => self.late.waiting.push_back(Box::new(work)),
            false => self.lose_at(work),
        }
    }

    /// Executes all work that waits. A lost context executes nothing.
    pub fn finish(&mut self) {
        while let Some(work) = self.late.waiting.pop_front() {
            if self.faults.lost.is_none() {
                self.lose_at(work);
            }
        }
    }

    fn lose_at(&mut self, work: impl FnOnce(&mut Device) -> Outcome) {
        if let Err(status) = work(self) {
            self.faults.lost = Some(status);
        }
    }

    /// Whether addresses are still those of live memory, when late work uses them.
    pub fn check_live(&self, addresses: &[u64], bytes: u64) -> Outcome {
        let mut addresses = addresses.iter();
        match addresses.all(|&address| self.memory.covers(address, bytes)) {
            true => Ok(()),
            false => Err(Status::ILLEGAL_ADDRESS),
        }
    }
}
