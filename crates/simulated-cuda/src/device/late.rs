//! Work that has been launched and not yet executed. A test can have kernels, copies with pinned memory and memsets of streams executed as
//! late as CUDA may: when something waits for them, or depends on them. A collective of NCCL is executed once all ranks have called it, and
//! holds up the work behind it, which is then late too. All streams share one order, that of the calls.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::thread;
use std::time::Duration;

use super::Device;
use crate::status::{Outcome, Status, answer};

/// `None` while it has to wait for another process.
type Work = Box<dyn FnMut(&mut Device) -> Option<Outcome> + Send>;

/// The time between two looks at a collective that waits for other ranks.
const PAUSE: Duration = Duration::from_micros(50);

struct Item {
    is_collective: bool,
    work: Work,
}

/// The work of one device that awaits its execution.
#[derive(Default)]
pub struct Late {
    /// Whether work is executed late.
    pub on: bool,
    waiting: VecDeque<Item>,
    /// The number of collectives so far.
    pub collectives: u64,
    /// The number of collectives that are executed.
    pub executed: u64,
}

impl fmt::Debug for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Late")
            .field("on", &self.on)
            .field("waiting", &self.waiting.len())
            .field("collectives", &self.collectives)
            .field("executed", &self.executed)
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

    /// Whether a collective is not executed yet.
    pub fn has_collectives(&self) -> bool {
        self.executed < self.collectives
    }
}

/// What a call does with waiting work when it locks a device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Executes it all, and waits for collectives.
    All,
    /// Executes what no collective holds up.
    Ready,
    /// Leaves it as it is.
    Nothing,
}

thread_local! {
    static WAIT: Cell<Wait> = const { Cell::new(Wait::All) };
}

fn answer_with(wait: Wait, body: impl FnOnce() -> Outcome) -> u32 {
    WAIT.set(wait);
    let status = answer(body);
    WAIT.set(Wait::All);
    status
}

/// Runs an entry point that does not wait for work, and returns its `CUresult`.
pub fn answer_at_once(body: impl FnOnce() -> Outcome) -> u32 {
    answer_with(Wait::Nothing, body)
}

/// Runs an entry point that does not wait for collectives, and returns its `CUresult`.
pub fn answer_when_ready(body: impl FnOnce() -> Outcome) -> u32 {
    answer_with(Wait::Ready, body)
}

/// What the present call does with waiting work.
pub fn wait() -> Wait {
    WAIT.get()
}

impl Device {
    /// Executes work now or, if the test wants it or a collective holds it up, late. An error is the fault that loses the context.
    pub fn execute(&mut self, work: impl FnOnce(&mut Device) -> Outcome + Send + 'static) {
        if !self.defers() {
            let outcome = work(self);
            return self.lose_at(outcome);
        }
        let mut work = Some(work);
        self.late.waiting.push_back(Item {
            is_collective: false,
            work: Box::new(move |device| Some(work.take().map_or(Ok(()), |work| work(device)))),
        });
    }

    /// Executes a collective behind all other work. `work` returns `None` until all ranks have called it.
    pub fn collect(&mut self, work: impl FnMut(&mut Device) -> Option<Outcome> + Send + 'static) {
        self.late.collectives += 1;
        self.late.waiting.push_back(Item {
            is_collective: true,
            work: Box::new(work),
        });
    }

    /// Whether work that is launched now is executed later.
    pub fn defers(&mut self) -> bool {
        self.late.on || !self.advance()
    }

    /// Executes all work that waits, and waits for collectives. A lost context executes nothing.
    pub fn finish(&mut self) {
        while !self.advance() {
            thread::sleep(PAUSE);
        }
    }

    /// Executes work until a collective waits for other ranks; returns whether none does.
    pub fn advance(&mut self) -> bool {
        self.advance_while(|late| !late.waiting.is_empty())
    }

    /// The same, up to the last collective.
    pub fn advance_collectives(&mut self) {
        self.advance_while(Late::has_collectives);
    }

    fn advance_while(&mut self, goes_on: impl Fn(&Late) -> bool) -> bool {
        while goes_on(&self.late)
            && let Some(mut item) = self.late.waiting.pop_front()
        {
            let outcome = match self.faults.lost {
                None => (item.work)(self),
                Some(_) => Some(Ok(())),
            };
            let Some(outcome) = outcome else {
                self.late.waiting.push_front(item);
                return false;
            };
            self.lose_at(outcome);
            self.late.executed += u64::from(item.is_collective);
        }
        true
    }

    fn lose_at(&mut self, outcome: Outcome) {
        if let Err(status) = outcome {
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
