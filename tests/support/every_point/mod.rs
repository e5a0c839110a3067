//! Every point of a job at which every kind of failure can strike a rank, with a timeout of a second. In each, all ranks that live end in time
//! with an error that names the struck one, or all go on; a job that ended is started again. All end with the bits of an undisturbed one.
//!
//! Time in which a machine is too busy to run a rank does not count, and ranks are warm before the timeout is short: a point fails for a reason.

pub mod rank;
mod strike;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Mutex;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::points::Points;
use rank::{Backend, EVERY, Report, Seen, Task, UPDATES};
use strike::TIMEOUT;
use table::{At, Case, End, KINDS, Kind, POINTS, cases, end};

/// The file with the task, in the ranks' environment.
const TASK: &str = "HEADROOM_POINTS_TASK";
/// What the others may take beyond the timeout.
const MORE: Duration = Duration::from_secs(2);
/// A job that runs longer hangs. One of several cases has a second more for each.
const HANG: Duration = Duration::from_secs(40);
/// Jobs at the same time: most of a job is waiting.
const JOBS: usize = 2;
/// Cases of one job in which all go on.
const SEVERAL: usize = 12;

/// What is wrong with a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wrong {
    /// A rank went on as if nothing had happened, or its error names another rank or none.
    Silent,
    /// A rank or the whole job did not end in time.
    Hanging,
    /// An update was applied twice, or by some ranks only, or the job did not continue where it was.
    AppliedTwice,
}

/// The suite, in a test of its own; in a rank that this test has started, that rank's part.
pub fn every_point<B: Backend>() {
    if let Some(file) = std::env::var_os(TASK) {
        let task = fs::read_to_string(file).expect("a task");
        return rank::run::<B>(&serde_json::from_str(&task).expect("a task"));
    }
    for (at, kind) in POINTS.iter().flat_map(|at| KINDS.map(|kind| (*at, kind))) {
        if let End::Cannot(why) = end(at, kind, 1) {
            println!("not a point: {kind:?} at {at:?}: {why}");
        }
    }
    let all = cases();
    let points = Points::chosen();
    let chosen = points.of(all.len() as u64);
    let chosen: Vec<_> = chosen.map(|point| all[point as usize - 1]).collect();
    let made = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let suite = Suite::new::<B>(made.path());
    let problems = suite.run::<B>(&chosen);
    for (case, wrong, what) in &problems {
        eprintln!("{case:?}: {wrong:?}: {what}");
    }
    let count = |wrong| {
        let cases = problems.iter().filter(|(_, it, _)| *it == wrong);
        let mut cases: Vec<_> = cases.map(|(case, ..)| format!("{case:?}")).collect();
        cases.dedup();
        cases.len()
    };
    let name = B::NAME;
    println!("figure: ranks/points_{name} = {} points", all.len());
    println!(
        "figure: ranks/points_tested_{name} = {} points",
        chosen.len()
    );
    for (what, wrong) in [
        ("silent", Wrong::Silent),
        ("hanging", Wrong::Hanging),
        ("applied_twice", Wrong::AppliedTwice),
    ] {
        println!("figure: ranks/{what}_{name} = {} points", count(wrong));
    }
    assert!(problems.is_empty(), "{} problems", problems.len());
}

type Problem = (Case, Wrong, String);

/// The jobs of the suite in a folder.
struct Suite {
    folder: PathBuf,
    /// By number of ranks, the bits after each update of a job that nothing disturbs, and its folder.
    undisturbed: BTreeMap<usize, (Vec<Vec<u32>>, PathBuf)>,
}

impl Suite {
    fn new<B: Backend>(folder: &Path) -> Self {
        let undisturbed = BTreeMap::from_iter([2, 3, 4].map(|ranks| {
            let place = folder.join(format!("undisturbed-{ranks}"));
            fs::create_dir(&place).expect("a folder");
            let task = Task::Undisturbed(place.clone());
            let job = Job::start::<B>(ranks, &task, &place);
            let output = job.wait(HANG, || {}).expect("an end");
            let reports = (0..ranks).map(|rank| Report::read(&place, "report", rank));
            let mut reports = reports.map(|report| report.unwrap_or_default());
            let first = reports.next().expect("rank 0");
            assert!(first.has_finished, "{output}");
            assert!(reports.all(|other| other.history == first.history));
            assert_eq!(first.history.len(), UPDATES as usize);
            (ranks, (first.history, place))
        }));
        Self {
            folder: folder.to_owned(),
            undisturbed,
        }
    }

    /// A folder for a case, with the checkpoint that its job begins from.
    fn place(&self, number: usize, case: &Case) -> PathBuf {
        let place = self.folder.join(format!("case-{number}"));
        let checkpoint = format!("step-{EVERY:09}");
        let (from, to) = (&self.undisturbed[&case.ranks].1, place.join("run"));
        let (from, to) = (from.join("run").join(&checkpoint), to.join(&checkpoint));
        fs::create_dir_all(&to).expect("a folder");
        for file in fs::read_dir(from).expect("a checkpoint") {
            let file = file.expect("a file");
            fs::copy(file.path(), to.join(file.file_name())).expect("a copy");
        }
        place
    }

    /// Runs these cases, and returns what is wrong.
    fn run<B: Backend>(&self, cases: &[Case]) -> Vec<Problem> {
        let places = cases.iter().enumerate();
        let all: Vec<_> = places
            .map(|(number, case)| (*case, self.place(number, case)))
            .collect();
        let (ending, going): (Vec<_>, Vec<_>) = all.into_iter().partition(|(case, _)| case.ends);
        let with = |ranks: usize, cases: &[(Case, PathBuf)]| -> Vec<_> {
            let cases = cases.iter().filter(|(case, _)| case.ranks == ranks);
            cases.cloned().collect()
        };
        let mut tasks = Vec::new();
        for ranks in [2, 3, 4] {
            for some in with(ranks, &going).chunks(SEVERAL) {
                tasks.push((ranks, Task::Several(some.to_vec())));
            }
        }
        tasks.extend(
            ending
                .iter()
                .map(|(case, place)| (case.ranks, Task::Once(*case, place.clone()))),
        );
        let mut problems = self.work::<B>(tasks);
        let again = [2, 3, 4].map(|ranks| (ranks, Task::Again(with(ranks, &ending))));
        problems.extend(self.work::<B>(again.into()));
        problems
    }

    /// Runs these tasks, some at a time.
    fn work<B: Backend>(&self, tasks: Vec<(usize, Task)>) -> Vec<Problem> {
        let tasks = Mutex::new(tasks.into_iter().enumerate());
        let problems = Mutex::new(Vec::new());
        // A rank finds its test by the name of the thread.
        let test = thread::current()
            .name()
            .expect("a test's thread")
            .to_owned();
        thread::scope(|scope| {
            for _ in 0..JOBS {
                let worker = || {
                    loop {
                        let next = tasks.lock().expect("the tasks").next();
                        let Some((number, (ranks, task))) = next else {
                            return;
                        };
                        let found = self.task::<B>(number, ranks, &task);
                        problems.lock().expect("the problems").extend(found);
                    }
                };
                let named = thread::Builder::new().name(test.clone());
                named.spawn_scoped(scope, worker).expect("a thread");
            }
        });
        problems.into_inner().expect("the problems")
    }

    fn task<B: Backend>(&self, number: usize, ranks: usize, task: &Task) -> Vec<Problem> {
        let (name, cases) = match task {
            Task::Once(case, place) => return self.once::<B>(case, place, task),
            Task::Several(cases) => ("report", cases),
            Task::Again(cases) => ("again", cases),
            Task::Undisturbed(_) => return Vec::new(),
        };
        if cases.is_empty() {
            return Vec::new();
        }
        let place = self.folder.join(format!("{name}-{ranks}-{number}"));
        fs::create_dir(&place).expect("a folder");
        let limit = HANG + TIMEOUT * cases.len() as u32;
        let ended = Job::start::<B>(ranks, task, &place).wait(limit, || {});
        let judged = cases.iter().flat_map(|(case, place)| {
            let reports = (0..ranks).map(|rank| Report::read(place, name, rank));
            let reports: Vec<_> = reports.collect();
            let wrong = match name {
                "again" => self.continued(case, &reports),
                _ => self.went_on(case, &reports),
            };
            wrong.into_iter().map(|(wrong, what)| (*case, wrong, what))
        });
        let mut problems: Vec<_> = judged.collect();
        match (problems.first_mut(), ended) {
            (Some((_, Wrong::Hanging, what)), Ok(output) | Err(output)) => what.push_str(&output),
            (None, Err(output)) => problems.push((cases[0].0, Wrong::Hanging, output)),
            _ => {}
        }
        problems
    }

    /// Whether a job in which all go on did so.
    fn went_on(&self, case: &Case, reports: &[Option<Report>]) -> Vec<(Wrong, String)> {
        let mut wrong = self.continued(case, reports);
        for (rank, report) in reports.iter().enumerate() {
            let errors = report.iter().flat_map(|report| &report.errors);
            let errors: Vec<_> = errors.collect();
            let is_quiet = matches!(case.kind, Kind::Late | Kind::SlowDisk);
            let was_struck = report.as_ref().is_some_and(|report| report.was_struck);
            if is_quiet && was_struck != (rank == case.victim) {
                wrong.push((
                    Wrong::Silent,
                    format!("rank {rank}: struck is {was_struck}"),
                ));
            }
            if errors.is_empty() != is_quiet {
                wrong.push((Wrong::Silent, format!("rank {rank} had {errors:?}")));
            } else if rank != case.victim {
                let misnamed = errors.iter().filter(|error| !names(error, case));
                wrong.extend(
                    misnamed.map(|error| (Wrong::Silent, format!("rank {rank}: {error:?}"))),
                );
            }
        }
        wrong
    }

    /// Whether all have the bits of an undisturbed job.
    fn continued(&self, case: &Case, reports: &[Option<Report>]) -> Vec<(Wrong, String)> {
        let undisturbed = &self.undisturbed[&case.ranks].0;
        let judged = reports.iter().enumerate().filter_map(|(rank, report)| {
            let Some(report) = report else {
                return Some((Wrong::Hanging, format!("rank {rank} did not report")));
            };
            let Report {
                resumed,
                updates,
                values,
                has_finished,
                ..
            } = report;
            if !has_finished {
                return Some((
                    Wrong::Silent,
                    format!("rank {rank} did not finish: {report:?}"),
                ));
            }
            let history = &undisturbed[*resumed as usize..];
            let is_same = report.history == history && Some(values) == undisturbed.last();
            // From a checkpoint to the end.
            let is_known = *resumed >= EVERY && (*resumed).max(*updates) == UPDATES;
            (!is_same || !is_known)
                .then(|| (Wrong::AppliedTwice, format!("rank {rank}: {report:?}")))
        });
        judged.collect()
    }

    /// A job that ends.
    fn once<B: Backend>(&self, case: &Case, place: &Path, task: &Task) -> Vec<Problem> {
        let others = (0..case.ranks).filter(|rank| *rank != case.victim);
        let have_ended = || {
            let mut others = others.clone();
            others.all(|rank| place.join(format!("report-{rank}")).exists())
        };
        let mut is_over = false;
        let ended = Job::start::<B>(case.ranks, task, place).wait(HANG, || {
            if !is_over && have_ended() {
                is_over = true;
                fs::write(place.join("survived"), "").expect("a file");
                if case.kind == Kind::Stop {
                    signal(place, case.victim, libc::SIGCONT);
                }
            }
        });
        let mut wrong = Vec::new();
        let output = match ended {
            Ok(output) => output,
            Err(output) => {
                for rank in 0..case.ranks {
                    signal(place, rank, libc::SIGKILL);
                }
                wrong.push((Wrong::Hanging, "the job does not end".to_owned()));
                output
            }
        };
        for rank in 0..case.ranks {
            let report = Report::read(place, "report", rank);
            let is_victim = rank == case.victim;
            wrong.extend(match report {
                Some(report) => self.ended(case, rank, &report),
                None if is_victim && matches!(case.kind, Kind::Kill | Kind::Panic) => Vec::new(),
                None => vec![(Wrong::Hanging, format!("rank {rank} did not report"))],
            });
        }
        if let Some((Wrong::Hanging, what)) = wrong.first_mut() {
            what.push_str(&output);
        }
        wrong
            .into_iter()
            .map(|(wrong, what)| (*case, wrong, what))
            .collect()
    }

    /// Whether a rank ended as it has to, in a job that ends.
    fn ended(&self, case: &Case, rank: usize, report: &Report) -> Vec<(Wrong, String)> {
        let mut wrong = Vec::new();
        let said = |what: &str| format!("rank {rank} {what}: {report:?}");
        if report.has_finished || report.errors.is_empty() {
            wrong.push((Wrong::Silent, said("had no error")));
        }
        if rank != case.victim {
            let is_first_known = (report.errors.first()).is_some_and(is_known_before);
            if is_first_known || report.errors.iter().any(|error| !names(error, case)) {
                wrong.push((Wrong::Silent, said("names another rank")));
            }
            let last = report.errors.last().map_or(0, |error| error.after);
            // The end of a process and an error are told, while a rank that does nothing is waited for.
            let limit = match case.kind {
                Kind::Stop | Kind::TooLate => TIMEOUT + MORE,
                _ if case.at == At::Joining => TIMEOUT + MORE,
                _ => TIMEOUT,
            };
            if Duration::from_millis(last) > limit {
                wrong.push((Wrong::Hanging, said("ended late")));
            }
        }
        let undisturbed = self.undisturbed[&case.ranks].0.iter();
        let mut pairs = undisturbed
            .skip(report.resumed as usize)
            .zip(&report.history);
        if pairs.any(|(expected, found)| expected != found) {
            wrong.push((Wrong::AppliedTwice, said("made another update")));
        }
        if !self.is_whole(case, report) {
            let values = (&report.values, &self.undisturbed[&case.ranks].0);
            let what = said("has other values");
            wrong.push((Wrong::AppliedTwice, format!("{what}: {values:?}")));
        }
        wrong
    }

    /// Whether the values are those after the last update. Where ranks exchange what each has updated, some may have come and others not.
    fn is_whole(&self, case: &Case, report: &Report) -> bool {
        let undisturbed = &self.undisturbed[&case.ranks].0;
        if report.updates == 0 {
            // It did not come to an update: nothing is loaded, or a part.
            return true;
        }
        let after = |update: u64| undisturbed.get((update as usize).checked_sub(1)?);
        let known = [report.updates - 1, report.updates, report.updates + 1];
        let known: Vec<_> = known.iter().filter_map(|update| after(*update)).collect();
        let values = &report.values;
        match case.is_sharded && matches!(case.at, At::Sum | At::Update) {
            false => after(report.updates) == Some(values),
            true => (0..values.len()).all(|at| known.iter().any(|it| it[at] == values[at])),
        }
    }
}

/// Whether the error says that an earlier one did.
fn is_known_before(error: &Seen) -> bool {
    error.text.contains("has failed before")
}

/// Whether the error names the struck rank, and no other.
fn names(error: &Seen, case: &Case) -> bool {
    if is_known_before(error) {
        return true;
    }
    match &error.ranks {
        Some(ranks) => *ranks == [case.victim],
        None => error.text.contains(&format!("rank {}", case.victim)),
    }
}

/// Signals a rank of a job by the number of its process.
fn signal(place: &Path, rank: usize, signal: i32) {
    let process = fs::read_to_string(place.join(format!("process-{rank}")));
    if let Some(process) = process.ok().and_then(|number| number.parse().ok()) {
        // SAFETY: the call takes two numbers.
        unsafe { libc::kill(process, signal) };
    }
}

/// The processes of a job.
struct Job {
    children: Vec<Child>,
    output: PathBuf,
}

impl Job {
    fn start<B: Backend>(ranks: usize, task: &Task, place: &Path) -> Self {
        let (file, output) = (place.join("task"), place.join("output"));
        fs::write(&file, serde_json::to_string(task).expect("JSON")).expect("a file");
        let children = B::start(ranks, (TASK, &file), &output);
        Self { children, output }
    }

    /// Waits for the end, with looks by `look`. Returns what was printed; as an error if there was no end.
    fn wait(mut self, limit: Duration, mut look: impl FnMut()) -> Result<String, String> {
        let began = Instant::now();
        let text = |path: &Path| fs::read(path).map(|it| String::from_utf8_lossy(&it).into_owned());
        loop {
            look();
            let mut children = self.children.iter_mut();
            if children.all(|child| child.try_wait().expect("a child").is_some()) {
                return Ok(text(&self.output).unwrap_or_default());
            }
            if began.elapsed() > limit {
                for child in &mut self.children {
                    let _ = child.kill();
                    let _ = child.wait();
                }
                return Err(text(&self.output).unwrap_or_default());
            }
            sleep(Duration::from_millis(5));
        }
    }
}
