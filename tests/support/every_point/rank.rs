//! What a rank of the suite does: a training that saves itself, in which one rank is struck.

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, id};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::Fixed;
use candle_headroom::checkpoint::{Checkpoints, Saving};
use candle_headroom::data::{Items, Loader};
use candle_headroom::distributed::Group;
use candle_headroom::error::{BoxedError, GroupError, Phase};
use candle_headroom::optim::ParamsSgd;
use candle_headroom::testing::{ArmedFileFaults, Faults, FileFaults, FileOperation, out_of_memory};
use candle_headroom::{AdaptiveTrainer, Error, Result, Sgd};
use serde::{Deserialize, Serialize};

use super::strike::{Place, STRUCK, Striker, Struck, TIMEOUT, Watcher, on_purpose};
use super::table::{At, Case, Kind};

/// How long the ranks wait for each other where nothing is tested.
const LONG: Duration = Duration::from_secs(60);
const SAMPLES: usize = 18;
const BATCH: usize = 6;
pub const UPDATES: u64 = 6;
/// Updates between checkpoints.
pub const EVERY: u64 = 2;
const WIDTH: usize = 4;
/// The order of the samples, and another one.
const SEED: u64 = 9;
const OTHER: u64 = 10;

/// How ranks are started, and what they compute on.
pub trait Backend {
    const NAME: &'static str;

    /// Starts the calling test again in this many ranks, with this variable, and output into the file.
    fn start(ranks: usize, variable: (&str, &Path), output: &Path) -> Vec<Child>;

    /// This process's number, before there is a group.
    fn number() -> usize;

    /// Opens a group; a second one beside another one.
    fn open(timeout: Duration, beside: Option<&Group>) -> Result<Group>;

    fn device(group: &Group) -> Device;
}

/// What a job's ranks do, in a file that all of them read.
#[derive(Debug, Serialize, Deserialize)]
pub enum Task {
    /// Trains undisturbed, in this folder.
    Undisturbed(PathBuf),
    /// After each of these cases all go on.
    Several(Vec<(Case, PathBuf)>),
    /// The job ends.
    Once(Case, PathBuf),
    /// Jobs that have ended are started again.
    Again(Vec<(Case, PathBuf)>),
}

/// An error that a rank had.
#[derive(Serialize, Deserialize)]
pub struct Seen {
    pub text: String,
    /// The ranks that it names.
    pub ranks: Option<Vec<usize>>,
    /// Milliseconds after the rank was struck, of those in which this process ran.
    pub after: u64,
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} ms `{}`", self.after, self.text)
    }
}

/// How it ended for a rank.
#[derive(Default, Serialize, Deserialize)]
pub struct Report {
    pub has_finished: bool,
    pub was_struck: bool,
    pub errors: Vec<Seen>,
    /// The update from which it continued.
    pub resumed: u64,
    pub updates: u64,
    /// The bits of the parameters in the end, and after each update before.
    pub values: Vec<u32>,
    pub history: Vec<Vec<u32>>,
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            resumed,
            updates,
            errors,
            ..
        } = self;
        write!(f, "from {resumed} to {updates}, {errors:?}")
    }
}

impl Report {
    pub fn read(folder: &Path, name: &str, rank: usize) -> Option<Self> {
        let text = fs::read_to_string(folder.join(format!("{name}-{rank}"))).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Complete at once, because others wait for the file.
    fn write(&self, folder: &Path, name: &str, rank: usize) {
        let text = serde_json::to_string(self).expect("JSON");
        let begun = folder.join(format!("begun-{name}-{rank}"));
        fs::write(&begun, text).expect("a file");
        fs::rename(begun, folder.join(format!("{name}-{rank}"))).expect("a file");
    }
}

/// Runs this rank's part of the task.
pub fn run<B: Backend>(task: &Task) {
    let rank = B::number();
    let outer = || B::open(LONG, None).expect("a group");
    match task {
        Task::Undisturbed(folder) => {
            let group = outer();
            let report = Run::new::<B>(None, folder).report(|| Ok(group.clone()), B::device);
            report.write(folder, "report", rank);
        }
        Task::Again(jobs) => {
            let group = outer();
            for (case, folder) in jobs {
                let mut run = Run::new::<B>(None, folder);
                run.is_sharded = case.is_sharded;
                let report = run.report(|| Ok(group.clone()), B::device);
                report.write(folder, "again", rank);
                group.barrier().expect("all");
            }
        }
        Task::Several(jobs) => {
            let group = outer();
            for (case, folder) in jobs {
                let mut run = Run::new::<B>(Some(*case), folder);
                group.barrier().expect("all");
                let report = run.report(|| B::open(TIMEOUT, Some(&group)), B::device);
                report.write(folder, "report", rank);
            }
        }
        Task::Once(case, folder) => {
            fs::write(folder.join(format!("process-{rank}")), id().to_string()).expect("a file");
            let mut run = Run::new::<B>(Some(*case), folder);
            // Where a rank is struck before it has a group, this is the first one.
            let is_first = case.at == At::Joining && !matches!(case.kind, Kind::Panic);
            let outer = match is_first {
                true => {
                    meet(folder, case.ranks);
                    None
                }
                false => {
                    let group = outer();
                    warm_up(&group, &B::device(&group));
                    Some(group)
                }
            };
            let report = run.report(|| B::open(TIMEOUT, outer.as_ref()), B::device);
            report.write(folder, "report", rank);
        }
    }
}

/// Waits until all processes of the job run.
fn meet(folder: &Path, ranks: usize) {
    let is_here = |rank: usize| folder.join(format!("process-{rank}")).exists();
    let began = Instant::now();
    while !(0..ranks).all(is_here) {
        assert!(began.elapsed() < LONG, "a process does not start");
        sleep(Duration::from_millis(2));
    }
}

/// An update of another model, so that kernels and connections are there before time is short.
fn warm_up(group: &Group, device: &Device) {
    let vars = parameters(device).expect("parameters");
    let sgd = Sgd::builder(named(&vars)).build().expect("an optimizer");
    let builder = AdaptiveTrainer::builder(sgd).group(group);
    let mut trainer = builder.build().expect("a trainer");
    let x = rows(&[0, 1], device).expect("rows");
    let step = trainer.step(&x, |x, _| loss(&vars, &x));
    step.expect("a step");
    group.barrier().expect("all");
}

fn parameters(device: &Device) -> Result<[Var; 2]> {
    let make = |shape: &[usize], phase| -> Result<Var> {
        Ok(Var::from_tensor(&curve(shape, phase, device)?)?)
    };
    Ok([make(&[WIDTH, 3], 0.1)?, make(&[3], 0.7)?])
}

fn named(vars: &[Var; 2]) -> Vec<(&'static str, Var)> {
    vec![("weight", vars[0].clone()), ("bias", vars[1].clone())]
}

/// Values of a curve, so that no two are alike.
fn curve(shape: &[usize], phase: f64, device: &Device) -> Result<Tensor> {
    let count = shape.iter().product::<usize>();
    let values = (0..count).map(|index| (index as f64 * 0.9 + phase).sin() as f32);
    let values = Tensor::from_vec(values.collect::<Vec<_>>(), shape, &Device::Cpu)?;
    Ok(values.to_device(device)?)
}

fn rows(samples: &[usize], device: &Device) -> Result<Tensor> {
    let row = |sample: &usize| curve(&[1, WIDTH], *sample as f64 * 1.7, device);
    let rows = samples.iter().map(row).collect::<Result<Vec<_>>>()?;
    Ok(Tensor::cat(&rows, 0)?)
}

fn loss(vars: &[Var; 2], x: &Tensor) -> candle_core::Result<Tensor> {
    let y = x.matmul(&vars[0])?.broadcast_add(&vars[1])?;
    y.tanh()?.affine(1., -0.3)?.sqr()?.mean_all()
}

fn bits(vars: &[Var; 2]) -> Vec<u32> {
    let values = vars.iter().flat_map(|var| {
        let values = var.flatten_all().and_then(|it| it.to_vec1::<f32>());
        values.expect("values")
    });
    values.map(f32::to_bits).collect()
}

/// This rank's part of a training that may be struck.
struct Run {
    case: Option<Case>,
    is_sharded: bool,
    folder: PathBuf,
    striker: Arc<Striker>,
    clock: Arc<AtomicU64>,
    report: Report,
    vars: Option<[Var; 2]>,
}

impl Run {
    fn new<B: Backend>(case: Option<Case>, folder: &Path) -> Self {
        let striker = Striker::new(case, B::number(), folder);
        Self {
            case,
            is_sharded: case.is_some_and(|case| case.is_sharded),
            folder: folder.to_owned(),
            striker,
            clock: clock(folder.join("struck")),
            report: Report::default(),
            vars: None,
        }
    }

    fn report(
        &mut self,
        open: impl Fn() -> Result<Group>,
        device: impl Fn(&Group) -> Device,
    ) -> Report {
        let done = self.train(open, device);
        let mut report = std::mem::take(&mut self.report);
        report.has_finished = done.is_ok();
        report.was_struck = self.striker.has_struck.load(SeqCst);
        report.values = self.vars.as_ref().map(bits).unwrap_or_default();
        report
    }

    fn saw(&mut self, error: &Error) {
        // A group that has ended, or an update that was interrupted, is refused again and again.
        let text = error.to_string();
        let refused = ["has failed before", "was interrupted during an update"];
        let is_refused = refused.iter().any(|refused| text.contains(refused));
        if is_refused && !self.report.errors.is_empty() {
            return;
        }
        let ranks = match error {
            Error::Group(error) => match &**error {
                GroupError::PeerLost { ranks, .. } => Some(ranks.clone()),
                GroupError::PeerFailed { rank, .. } => Some(vec![*rank]),
                _ => None,
            },
            _ => None,
        };
        let after = self.clock.load(SeqCst);
        self.report.errors.push(Seen { text, ranks, after });
    }

    /// Calls `f` until it succeeds, as a program does that goes on after an error, up to three times. A struck rank may catch its panic.
    fn again<T>(&mut self, mut f: impl FnMut(&mut Self) -> Result<T>) -> Result<T> {
        let catches = (self.case).is_some_and(|case| case.kind == Kind::Caught);
        let catches = catches && self.striker.is_victim;
        let mut attempt = 0;
        loop {
            self.striker.attempt.store(attempt, SeqCst);
            let done = match catches {
                true => catch_unwind(AssertUnwindSafe(|| f(self))).unwrap_or_else(|_| {
                    let error = Error::external(std::io::Error::other("a panic was caught"));
                    Err(error)
                }),
                false => f(self),
            };
            match done {
                Ok(done) => {
                    self.striker.attempt.store(0, SeqCst);
                    return Ok(done);
                }
                Err(error) => {
                    self.saw(&error);
                    attempt += 1;
                    if attempt == 3 {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// What fails in this update.
    fn faults(&self, update: u64) -> Option<Faults> {
        let is_due = |at, kind| update == STRUCK && self.striker.is_due(at, kind);
        let all = [
            (At::Sum, Faults::after_exchange(0)),
            (At::Update, Faults::in_phase(Phase::Reduce, 1)),
        ];
        // Without a sharded state nothing of the library follows the update.
        let all = all
            .into_iter()
            .filter(|(at, _)| self.is_sharded || *at == At::Sum);
        let mut due = all.filter_map(|(at, faults)| match () {
            () if is_due(at, Kind::Exhaustion) => Some(faults.failing_with(out_of_memory)),
            () if is_due(at, Kind::Error) => Some(faults.failing_with(on_purpose)),
            () => None,
        });
        due.next()
    }

    /// The order and the place of the wrong batch that this update is given.
    fn other_batch(&self, update: u64) -> Option<(u64, usize)> {
        let at = update as usize - 1;
        match update {
            STRUCK if self.striker.is_due(At::Message, Kind::Loader) => Some((OTHER, at)),
            // As if a batch had been left out after the update before.
            _ if update == STRUCK + 1 && self.striker.is_due(At::Update, Kind::Loader) => {
                Some((SEED, at + 1))
            }
            _ => None,
        }
    }

    /// A file that fails, or takes longer than the others wait for each other.
    fn file_faults(&self, at: At, folder: &Path) -> Option<FileFaults> {
        let (update, operation) = match at {
            At::Loading => (0, FileOperation::Read),
            _ => (STRUCK, FileOperation::Sync),
        };
        if self.striker.update.load(SeqCst) != update {
            return None;
        }
        let faults = FileFaults::in_folder(folder).at(0);
        match () {
            () if self.striker.is_due(at, Kind::SlowDisk) => {
                Some(faults.only(operation).delaying(TIMEOUT * 7 / 2))
            }
            () if at == At::Saving && self.striker.is_due(at, Kind::Error) => {
                let full = faults.only(FileOperation::Write);
                Some(full.failing_with(ErrorKind::StorageFull))
            }
            () => None,
        }
    }

    fn note(&self, armed: Option<ArmedFileFaults>) {
        if armed.is_some_and(|armed| armed.fired() == 1) {
            self.striker.mark();
        }
    }

    fn train(
        &mut self,
        open: impl Fn() -> Result<Group>,
        device: impl Fn(&Group) -> Device,
    ) -> Result<()> {
        let striker = Arc::clone(&self.striker);
        let (is_sharded, folder) = (self.is_sharded, self.folder.join("run"));
        striker.strike(Place::Open)?;
        let group = open().inspect_err(|error| self.saw(error))?;
        let device = device(&group);
        let vars = parameters(&device)?;
        self.vars = Some(vars.clone());
        let mut trainer = self.again(|_| {
            let params = ParamsSgd {
                lr: 0.1,
                momentum: 0.9,
                ..ParamsSgd::default()
            };
            let mut sgd = Sgd::builder(named(&vars)).params(params);
            if is_sharded {
                sgd = sgd.sharded();
            }
            let is_wrong = striker.is_due(At::Joining, Kind::Error);
            let (optimizer, striker) = (sgd.build()?, Arc::clone(&striker));
            let watcher = Watcher(Arc::clone(&striker));
            let builder = AdaptiveTrainer::builder(Struck { optimizer, striker });
            let builder = builder.compare_every(if is_wrong { 0 } else { 1000 });
            let builder = builder.group(&group).observer(watcher);
            builder.policy(Fixed::new(2)?).build()
        })?;
        let mut checkpoints = self.again(|_| {
            let builder = Checkpoints::builder(&folder).every_updates(EVERY);
            builder.in_foreground().group(&group).open()
        })?;
        striker.strike(Place::BeforeLoading)?;
        let mut loader = self.again(|own| {
            let armed = own.file_faults(At::Loading, &folder).map(FileFaults::arm);
            let is_other = striker.is_due(At::Loading, Kind::Loader);
            let loader = batches(&group, &device, if is_other { OTHER } else { SEED })?;
            let resumed = checkpoints.resume(&mut trainer, loader);
            own.note(armed);
            resumed
        })?;
        let resumed = checkpoints.resumed().map_or(0, |resumed| resumed.step);
        self.report.resumed = resumed;
        for update in resumed + 1..=UPDATES {
            striker.update.store(update, SeqCst);
            let batch = loader.next().expect("a batch")?;
            let report = self.again(|own| {
                let armed = own.faults(update).map(Faults::arm);
                if armed.is_some() {
                    striker.mark();
                }
                if let Some((seed, at)) = own.other_batch(update) {
                    let mut other = batches(&group, &device, seed)?;
                    let batch = other.nth(at).expect("a batch")?;
                    return trainer.step(&batch, |x, _| loss(&vars, &x));
                }
                trainer.step(&batch, |x, _| {
                    striker.strike(Place::Forward)?;
                    loss(&vars, &x)
                })
            });
            self.report.updates = trainer.updates();
            let report = report?;
            self.report.history.push(bits(&vars));
            striker
                .strike(Place::Stepped)
                .map_err(Error::from)
                .inspect_err(|error| self.saw(error))?;
            self.again(|own| {
                striker.strike(Place::BeforeSaving)?;
                let armed = own.file_faults(At::Saving, &folder).map(FileFaults::arm);
                striker.is_saving.store(true, SeqCst);
                let saved = checkpoints.after(&report, &trainer);
                striker.is_saving.store(false, SeqCst);
                own.note(armed);
                match saved?.continue_value() {
                    Some(Saving::Failed(error)) => own.saw(&error),
                    Some(_) => {}
                    None => panic!("nobody has stopped the run"),
                }
                Ok(())
            })?;
        }
        checkpoints.finish().inspect_err(|error| self.saw(error))
    }
}

fn batches(group: &Group, device: &Device, seed: u64) -> Result<Loader<Tensor>> {
    let device = device.clone();
    let collate = move |samples: Vec<usize>| -> Result<Tensor, BoxedError> {
        match samples.is_empty() {
            true => Ok(Tensor::zeros((0, WIDTH), DType::F32, &device)?),
            false => Ok(rows(&samples, &device)?),
        }
    };
    let loader = Loader::builder(Items(Vec::from_iter(0..SAMPLES)), collate).batch(BATCH);
    loader.shuffle(seed).epochs(2).group(group).build()
}

/// Milliseconds since the file is there, of those in which this process runs: a busy machine takes no time from a rank.
fn clock(struck: PathBuf) -> Arc<AtomicU64> {
    const PAUSE: Duration = Duration::from_millis(5);
    let clock = Arc::new(AtomicU64::new(0));
    let looked = Arc::downgrade(&clock);
    thread::spawn(move || {
        let (mut last, mut ran, mut is_struck) = (Instant::now(), Duration::ZERO, false);
        while let Some(clock) = looked.upgrade() {
            let now = Instant::now();
            if is_struck {
                // A wake that is later than that is time in which the machine runs others.
                ran += (now - last).min(PAUSE * 2);
                clock.store(ran.as_millis() as u64, SeqCst);
            }
            is_struck |= struck.exists();
            last = now;
            drop(clock);
            sleep(PAUSE);
        }
    });
    clock
}
