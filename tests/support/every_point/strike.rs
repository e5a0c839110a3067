//! The moment at which a rank is struck, and how.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use candle_core::backprop::GradStore;
use candle_headroom::batch::{EventKind, Observer, TrainingEvent};
use candle_headroom::error::Phase;
use candle_headroom::optim::{Commit, Committed, Parameter, Shard, StateDict};
use candle_headroom::testing::out_of_memory;
use candle_headroom::{Error, Result};

use super::table::{At, Case, Kind};

/// How long ranks wait for each other.
pub const TIMEOUT: Duration = Duration::from_secs(1);
/// The update in which a rank is struck, or after which it saves.
pub const STRUCK: u64 = 4;
/// Longer than all others wait.
const ENDLESS: Duration = Duration::from_secs(25);

/// A place in the program or below it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    Open,
    Describe,
    Shard,
    BeforeLoading,
    LoadState,
    Forward,
    Agreed,
    /// A while after it has gone into the sum.
    InSum,
    Summed,
    Updated,
    Stepped,
    BeforeSaving,
    SaveState,
}

/// Where the case strikes, unless a fault of the library, its loader or a setting does.
fn place(case: &Case) -> Option<Place> {
    use Kind::*;
    let writes = case.is_sharded || case.victim == 0;
    Some(match (case.at, case.kind) {
        (At::Joining, Kill | Stop | Late | TooLate) => Place::Open,
        (At::Joining, Panic | Caught) => Place::Describe,
        (At::Joining, Exhaustion) => Place::Shard,
        (At::Loading, Late | TooLate) => Place::BeforeLoading,
        (At::Loading, Kill | Panic | Caught | Exhaustion | Error | Stop) => Place::LoadState,
        (At::Message, Kill | Panic | Caught | Exhaustion | Error | Stop | Late | TooLate) => {
            Place::Forward
        }
        (At::Agreed, _) => Place::Agreed,
        (At::Sum, Kill | Stop) => Place::InSum,
        (At::Sum, Panic | Caught | Late | TooLate) => Place::Summed,
        (At::Update, Exhaustion | Error) if !case.is_sharded => Place::Stepped,
        (At::Update, Kill | Panic | Caught | Stop | Late | TooLate) => Place::Updated,
        (At::Saving, Exhaustion) => Place::SaveState,
        (At::Saving, Kill | Panic | Caught | Stop) if writes => Place::SaveState,
        (At::Saving, Kill | Panic | Caught | Stop | Late | TooLate) => Place::BeforeSaving,
        _ => return None,
    })
}

/// Strikes this rank once. It also is the observer by which it knows where the rank is.
#[derive(Debug)]
pub struct Striker {
    case: Option<Case>,
    pub is_victim: bool,
    /// Lets the victim's peer come late to the sum, so that the victim waits in it.
    delays: bool,
    folder: PathBuf,
    pub update: AtomicU64,
    /// How often the program has tried before.
    pub attempt: AtomicUsize,
    pub is_saving: AtomicBool,
    pub has_struck: AtomicBool,
}

impl Striker {
    pub fn new(case: Option<Case>, rank: usize, folder: &Path) -> Arc<Self> {
        let delayed = case.filter(|case| place(case) == Some(Place::InSum));
        // Not rank 0 if there is another, because rank 0 says who is missing.
        let last_other = |case: Case| (0..case.ranks).rfind(|rank| *rank != case.victim);
        Arc::new(Self {
            case,
            is_victim: case.is_some_and(|case| case.victim == rank),
            delays: delayed.and_then(last_other) == Some(rank),
            folder: folder.to_owned(),
            update: AtomicU64::new(0),
            attempt: AtomicUsize::new(0),
            is_saving: AtomicBool::new(false),
            has_struck: AtomicBool::new(false),
        })
    }

    /// Whether this is the victim's first attempt at what a fault of the library, a loader or a setting strikes.
    pub fn is_due(&self, at: At, kind: Kind) -> bool {
        let is_it = |case: Case| (case.at, case.kind) == (at, kind);
        self.is_victim && self.attempt.load(SeqCst) == 0 && self.case.is_some_and(is_it)
    }

    /// Notes that this rank is struck now: from here on the others' time is measured.
    pub fn mark(&self) {
        if !self.has_struck.swap(true, SeqCst) {
            fs::write(self.folder.join("struck"), "").expect("a file");
        }
    }

    pub fn strike(self: &Arc<Self>, at: Place) -> candle_core::Result<()> {
        let Some(case) = self.case.filter(|case| place(case) == Some(at)) else {
            return Ok(());
        };
        let update = match case.at {
            At::Joining | At::Loading => 0,
            _ => STRUCK,
        };
        let is_first = self.attempt.load(SeqCst) == 0 && self.update.load(SeqCst) == update;
        if !self.is_victim || !is_first {
            return Ok(());
        }
        // Memory stays out for the whole attempt.
        if self.has_struck.load(SeqCst) && case.kind != Kind::Exhaustion {
            return Ok(());
        }
        if at == Place::InSum {
            let own = Arc::clone(self);
            self.has_struck.store(true, SeqCst);
            thread::spawn(move || {
                sleep(TIMEOUT / 10);
                own.has_struck.store(false, SeqCst);
                own.mark();
                own.signal(case.kind);
            });
            return Ok(());
        }
        self.mark();
        match case.kind {
            Kind::Kill | Kind::Stop => self.signal(case.kind),
            Kind::Panic | Kind::Caught => panic!("on purpose"),
            Kind::Exhaustion => return Err(out_of_memory()),
            Kind::Late => sleep(TIMEOUT / 4),
            Kind::TooLate => self.wait_for_survivors(),
            _ => return Err(on_purpose()),
        }
        Ok(())
    }

    fn signal(&self, kind: Kind) {
        let signal = match kind {
            Kind::Stop => libc::SIGSTOP,
            _ => libc::SIGKILL,
        };
        // SAFETY: the call takes two numbers.
        unsafe { libc::kill(libc::getpid(), signal) };
        // Another thread may take the signal, and this one run on for a moment.
        self.wait_for_survivors();
    }

    fn wait_for_survivors(&self) {
        let (survived, began) = (self.folder.join("survived"), Instant::now());
        while !survived.exists() && began.elapsed() < ENDLESS {
            sleep(Duration::from_millis(5));
        }
    }
}

pub fn on_purpose() -> candle_core::Error {
    candle_core::Error::Msg("on purpose".to_owned())
}

/// The observer of a trainer.
#[derive(Debug)]
pub struct Watcher(pub Arc<Striker>);

impl Observer for Watcher {
    fn observe(&self, event: &TrainingEvent<'_>) {
        let EventKind::PhaseEnded { phase, .. } = event.kind else {
            return;
        };
        let places: &[Place] = match phase {
            Phase::Wait => &[Place::Agreed, Place::InSum],
            Phase::Reduce => &[Place::Summed],
            Phase::Optimizer => &[Place::Updated],
            _ => return,
        };
        for place in places {
            self.0.strike(*place).expect("no error is planned here");
        }
        if phase == Phase::Wait && self.0.delays && self.0.update.load(SeqCst) == STRUCK {
            sleep(TIMEOUT * 3 / 10);
        }
    }
}

/// An optimizer in which the rank may be struck.
pub struct Struck<O> {
    pub optimizer: O,
    pub striker: Arc<Striker>,
}

impl<O: Commit> Commit for Struck<O> {
    fn parameters(&self) -> &[Parameter] {
        self.optimizer.parameters()
    }

    fn commit(&mut self, gradients: &GradStore) -> Result<Committed> {
        self.optimizer.commit(gradients)
    }

    fn shard(&mut self, own: &Shard, state: Option<&StateDict>) -> Result<()> {
        self.striker.strike(Place::Shard)?;
        self.optimizer.shard(own, state)
    }

    fn describe(&self) -> Vec<String> {
        (self.striker.strike(Place::Describe)).expect("no error is planned here");
        self.optimizer.describe()
    }

    fn is_sharded(&self) -> bool {
        self.optimizer.is_sharded()
    }

    fn is_restored(&self) -> bool {
        self.optimizer.is_restored()
    }

    fn state(&self) -> Result<StateDict> {
        if self.striker.is_saving.load(SeqCst) {
            self.striker.strike(Place::SaveState)?;
        }
        self.optimizer.state()
    }

    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        self.striker.strike(Place::LoadState).map_err(Error::from)?;
        self.optimizer.load_state(state)
    }
}
