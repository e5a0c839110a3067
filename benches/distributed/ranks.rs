//! The ranks of this run, with times that all of them know.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use candle_headroom::distributed::Group;
use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::CommunicatorCollectives;

use crate::support::{Contender, figure};

/// Fields are dropped in this order: MPI ends last.
pub struct Ranks {
    pub group: Group,
    /// For calls of MPI without this crate.
    pub world: SimpleCommunicator,
    _universe: Universe,
}

impl Ranks {
    /// Initializes MPI, which the group then finds.
    pub fn open() -> anyhow::Result<Self> {
        let started = mpi::initialize_with_threading(Threading::Serialized);
        let (universe, threading) = started.context("MPI was initialized before")?;
        ensure!(threading >= Threading::Serialized, "{threading:?}");
        Ok(Self {
            group: Group::from_environment()?,
            world: universe.world(),
            _universe: universe,
        })
    }

    /// Whether this rank prints.
    pub fn is_first(&self) -> bool {
        self.group.rank() == 0
    }

    pub fn figure(&self, name: &str, number: f64, unit: &str) {
        if self.is_first() {
            figure(&format!("distributed/{name}"), number, unit);
        }
    }

    /// A function that all ranks run at once: its time is that of the slowest one.
    pub fn together<'a>(&'a self, name: &'static str, mut run: impl FnMut() + 'a) -> Contender<'a> {
        Contender::timing_itself(name, move || self.slowest(self.timed(&mut run)))
    }

    /// The time of this rank, from when all are ready.
    pub fn timed(&self, run: impl FnOnce()) -> Duration {
        self.world.barrier();
        let began = Instant::now();
        run();
        began.elapsed()
    }

    /// The longest of the ranks' times.
    pub fn slowest(&self, time: Duration) -> Duration {
        let mut slowest = 0.;
        let max = SystemOperation::max();
        self.world
            .all_reduce_into(&time.as_secs_f64(), &mut slowest, max);
        Duration::from_secs_f64(slowest)
    }

    /// The time of one rank that is as fast as all of them on average.
    pub fn average(&self, time: Duration) -> Duration {
        let (speed, mut speeds) = (time.as_secs_f64().recip(), 0.);
        let sum = SystemOperation::sum();
        self.world.all_reduce_into(&speed, &mut speeds, sum);
        Duration::from_secs_f64(self.group.size() as f64 / speeds)
    }
}
