//! The moment at which a rank of a job dies.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use candle_core::backend::BackendStorage;
use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use candle_headroom::optim::{Commit, Committed, Parameter, Shard, StateDict};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Death {
    pub rank: usize,
    /// The number of the update; 0 outside of updates.
    pub step: u64,
    pub at: At,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum At {
    /// Before the group.
    Start,
    /// Before there is a trainer.
    Joined,
    /// While the others resume.
    Opened,
    /// So many microseconds after it began to resume.
    Resuming(u64),
    Resumed,
    Forward,
    /// In the forward pass, when all others wait.
    Awaited,
    Backward,
    /// So many microseconds after its backward pass began: then the ranks exchange gradients.
    Exchange(u64),
    /// After its part, while the others are slow.
    Waiting,
    /// In the optimizer, before it has updated and after.
    Commit,
    Committed,
    /// After the step, before the checkpoint.
    Stepped,
    /// So many microseconds after it began to save.
    Saving(u64),
    /// At this file operation of the rank.
    File(usize),
    Saved,
    Ended,
    Finishing,
}

static DEATH: OnceLock<Option<Death>> = OnceLock::new();
static STEP: AtomicU64 = AtomicU64::new(0);

/// Says who dies in this process.
pub fn expect(death: Option<Death>) {
    DEATH.get_or_init(|| death);
}

/// The update that is made now.
pub fn begin(step: u64) {
    STEP.store(step, Ordering::SeqCst);
}

/// Where this process dies now.
fn due() -> Option<Death> {
    let rank = std::env::var("OMPI_COMM_WORLD_RANK").ok()?;
    let death = DEATH.get().copied().flatten()?;
    let is_due = rank.parse() == Ok(death.rank) && death.step == STEP.load(Ordering::SeqCst);
    is_due.then_some(death)
}

/// Dies if it is so planned.
pub fn strike(at: At) {
    if due().is_some_and(|death| death.at == at) {
        end();
    }
}

/// Dies a while after this call if it is so planned.
pub fn arm(time: impl Fn(At) -> Option<u64>) {
    if let Some(death) = due()
        && let Some(micros) = time(death.at)
    {
        thread::spawn(move || {
            thread::sleep(Duration::from_micros(micros));
            end()
        });
    }
}

/// Sleeps in the update in which another rank waits for this one, or this one is waited for.
pub fn dawdle() {
    const LONG: Duration = Duration::from_millis(60);
    let death = DEATH.get().copied().flatten();
    let Some(death) = death.filter(|it| it.step == STEP.load(Ordering::SeqCst)) else {
        return;
    };
    let is_victim = due().is_some();
    match death.at {
        At::Awaited if is_victim => thread::sleep(LONG),
        At::Waiting if !is_victim => thread::sleep(LONG),
        At::Waiting => arm(|_| Some(LONG.as_micros() as u64 / 2)),
        _ => {}
    }
}

fn end() -> ! {
    // SAFETY: the call takes two numbers.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    // Another thread may take the signal, and this one run on for a moment.
    loop {
        thread::sleep(Duration::from_secs(1));
    }
}

/// Leaves a loss as it is, and may die in its backward pass.
pub struct Through;

impl CustomOp1 for Through {
    fn name(&self) -> &'static str {
        "through"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((storage.try_clone(layout)?, layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        strike(At::Backward);
        arm(|at| match at {
            At::Exchange(micros) => Some(micros),
            _ => None,
        });
        Ok(Some(gradient.clone()))
    }
}

/// An optimizer that may die before or after its update.
pub struct Dying<O>(pub O);

impl<O: Commit> Commit for Dying<O> {
    fn parameters(&self) -> &[Parameter] {
        self.0.parameters()
    }

    fn commit(&mut self, gradients: &GradStore) -> candle_headroom::Result<Committed> {
        strike(At::Commit);
        let committed = self.0.commit(gradients);
        strike(At::Committed);
        committed
    }

    fn shard(&mut self, own: &Shard, state: Option<&StateDict>) -> candle_headroom::Result<()> {
        self.0.shard(own, state)
    }

    fn is_sharded(&self) -> bool {
        self.0.is_sharded()
    }

    fn state(&self) -> candle_headroom::Result<StateDict> {
        self.0.state()
    }

    fn load_state(&mut self, state: &StateDict) -> candle_headroom::Result<()> {
        self.0.load_state(state)
    }
}
