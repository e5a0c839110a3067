//! Runs that are killed, stopped by signals, or short of disk and memory. The test program runs itself as the training.

#[path = "../support/run.rs"]
pub mod run;

use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use candle_headroom::checkpoint::{Checkpoints, Saving, Signal};
use candle_headroom::testing::FileFaults;
use rand::{Rng, SeedableRng};
use run::{Run, differing, latest, memory_folder, uninterrupted};

pub const FOLDER: &str = "CANDLE_HEADROOM_TEST_RUN";
/// Of the kills at chosen operations.
const STEPS: u64 = 6;

/// Reads what a training process was told.
fn told<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// A training that saves each step (or each second one) and is killed at a file operation or from outside. What it has saved is noted
/// beside its folder.
#[test]
#[ignore = "the training of the other tests"]
fn training() {
    let folder = std::env::var(FOLDER).unwrap();
    let folder = Path::new(&folder);
    let note = |saving: Saving| {
        if let Saving::Saved(path) = saving {
            std::fs::write(folder.with_extension("saved"), path.to_str().unwrap()).unwrap();
        }
    };
    let mut builder = Checkpoints::builder(folder)
        .every_updates(told("EVERY").unwrap())
        .keep_last(1);
    if told::<String>("WHERE").as_deref() == Some("foreground") {
        builder = builder.in_foreground();
    }
    let kill_at = told("KILL_AT").unwrap_or(usize::MAX);
    let _armed = FileFaults::in_folder(folder).at(kill_at).killing().arm();
    let mut checkpoints = builder.open().unwrap();
    let mut run = Run::new();
    checkpoints.resume_trainer(&mut run.trainer).unwrap();
    run.until(told("STEPS").unwrap(), &mut checkpoints, |_, saving| {
        note(saving);
        std::thread::sleep(Duration::from_millis(told("PAUSE").unwrap_or(0)));
    })
    .unwrap();
    checkpoints.finish().unwrap();
}

pub fn start(test: &str, folder: &Path, told: &[(&str, &str)]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command.env(FOLDER, folder).envs(told.iter().copied());
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// The step that a killed training noted last.
fn noted(folder: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(folder.with_extension("saved")).ok()?;
    let name = Path::new(&text)
        .file_name()?
        .to_str()?
        .strip_prefix("step-")?;
    name.split('-').next()?.parse().ok()
}

/// Continues what was interrupted, and returns the bits in which it differs from a run that was not.
fn resumed(
    folder: &Path,
    until: u64,
    whole: &[std::collections::BTreeMap<String, Vec<u64>>],
) -> u64 {
    assert!(latest(folder) >= noted(folder), "what was saved is there");
    let mut checkpoints = Checkpoints::builder(folder)
        .every_updates(1)
        .open()
        .unwrap();
    let mut run = Run::new();
    let mut wrong = 0;
    if let Some(resumed) = checkpoints.resume_trainer(&mut run.trainer).unwrap() {
        assert_eq!(resumed.skipped, [], "a kill damages nothing");
        wrong += differing(&run.bits(), &whole[resumed.step as usize]);
    }
    run.until(
        until.max(run.trainer.updates()),
        &mut checkpoints,
        |_, _| {},
    )
    .unwrap();
    checkpoints.finish().unwrap();
    let entries = folder.read_dir().unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names.filter(|name| name.contains("partial")).count() == 0);
    wrong + differing(&run.bits(), &whole[run.trainer.updates() as usize])
}

/// SIGKILL at every file operation of a run, in the foreground and in the background.
#[test]
fn killed_at_every_file_operation() {
    let whole = uninterrupted(STEPS as usize);
    let (mut points, mut wrong) = (0, 0);
    for place in ["foreground", "background"] {
        for point in 0.. {
            let temporary = memory_folder();
            let folder = temporary.path().join("run");
            let (point, steps) = (point.to_string(), STEPS.to_string());
            let told = [
                ("KILL_AT", &*point),
                ("WHERE", place),
                ("EVERY", "2"),
                ("STEPS", &*steps),
                ("PAUSE", "4"),
            ];
            let status = start("checkpoint::training", &folder, &told)
                .wait()
                .unwrap();
            if status.success() {
                break;
            }
            assert!(was_killed(status), "{status}");
            wrong += resumed(&folder, STEPS, &whole);
            points += 1;
        }
    }
    println!("figure: resume/kill_points_tested = {points} points");
    println!("figure: resume/bits_differing_after_kills = {wrong} bits");
    // Three checkpoints of three files and a manifest, each created, written and flushed, in both places.
    assert!(points > 2 * 3 * 12, "{points}");
    assert_eq!(wrong, 0);
}

/// SIGKILL from outside, at moments that nobody chose.
#[test]
fn killed_at_random_moments() {
    const KILLS: usize = 200;
    const MOST: usize = 400;
    let whole = uninterrupted(MOST);
    let mut random = rand::rngs::StdRng::seed_from_u64(16);
    let (mut wrong, mut between) = (0, 0);
    let mut killed = 0;
    while killed < KILLS {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().join("run");
        let (place, steps) = (["foreground", "background"][killed % 2], MOST.to_string());
        let told = [("WHERE", place), ("EVERY", "1"), ("STEPS", &*steps)];
        let mut child = start("checkpoint::training", &folder, &told);
        // Every fourth is killed before or during its first checkpoint.
        let is_ready = || match killed % 4 {
            0 => folder.exists(),
            _ => latest(&folder).is_some(),
        };
        while !is_ready() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_micros(random.random_range(0..20_000)));
        child.kill().unwrap();
        if was_killed(child.wait().unwrap()) {
            killed += 1;
            between += usize::from(latest(&folder).is_some_and(|step| step > 0));
            wrong += resumed(
                &folder,
                (latest(&folder).unwrap_or(0) + 2).min(MOST as u64),
                &whole,
            );
        }
    }
    println!("figure: resume/random_kills_tested = {killed} kills");
    println!("figure: resume/random_kills_after_a_checkpoint = {between} kills");
    println!("figure: resume/bits_differing_after_random_kills = {wrong} bits");
    assert!(between > KILLS / 2, "{between}");
    assert_eq!(wrong, 0);
}

#[cfg(unix)]
pub fn was_killed(status: ExitStatus) -> bool {
    std::os::unix::process::ExitStatusExt::signal(&status) == Some(9)
}

#[cfg(not(unix))]
pub fn was_killed(status: ExitStatus) -> bool {
    !status.success()
}

/// A training that stops when a signal comes, or that only notes it beside its folder.
#[test]
#[ignore = "the training of the other tests"]
fn stopping() {
    let folder = std::env::var(FOLDER).unwrap();
    let signals = [Signal::Interrupt, Signal::Terminate, Signal::User1];
    let builder = Checkpoints::builder(&folder)
        .every_updates(1_000_000)
        .on_signals(signals);
    let mut checkpoints = builder.open().unwrap();
    let mut run = Run::new();
    let note = |name: &str| {
        std::fs::write(Path::new(&folder).with_extension(name), "").unwrap();
    };
    let drops = told::<bool>("DROPS") == Some(true);
    loop {
        let report = run.step().unwrap();
        if !drops {
            note("ready");
        }
        std::thread::sleep(Duration::from_millis(2));
        if told::<bool>("STOPS") == Some(false) {
            if checkpoints.signal().is_some() {
                note("noted");
            }
            continue;
        }
        if let ControlFlow::Break(stopped) = checkpoints.after(&report, &run.trainer).unwrap() {
            assert_eq!(stopped.step, run.trainer.updates());
            assert!(stopped.to_string().contains(": saved in "), "{stopped}");
            std::process::exit(stopped.signal.exit_status());
        }
        if drops {
            drop(checkpoints);
            note("ready");
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
}

#[cfg(unix)]
#[test]
fn signals_save_and_stop() {
    use std::os::unix::process::ExitStatusExt;
    use std::time::Instant;

    const LONGEST: Duration = Duration::from_secs(60);
    const LATER: Duration = Duration::from_millis(2_200);
    let stopped = |told: &[(&str, &str)], signals: &[&str]| {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().join("run");
        let mut child = start("checkpoint::stopping", &folder, told);
        let until = |name: &str| {
            let began = Instant::now();
            while !folder.with_extension(name).exists() {
                assert!(began.elapsed() < LONGEST, "it is not {name}");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        until("ready");
        for (index, signal) in signals.iter().enumerate() {
            if index > 0 {
                until("noted"); // two signals at once may be one
            }
            if *signal == "wait" {
                std::thread::sleep(LATER);
                assert_eq!(child.try_wait().unwrap(), None, "it goes on");
                continue;
            }
            let mut kill = Command::new("kill");
            kill.args([*signal, &child.id().to_string()]);
            assert!(kill.status().unwrap().success());
        }
        let began = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if began.elapsed() > LONGEST {
                child.kill().unwrap();
                panic!("{signals:?} did not end it");
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        (status, latest(&folder))
    };
    for (signal, expected) in [("-INT", 130), ("-TERM", 143), ("-USR1", 138)] {
        let (status, saved) = stopped(&[], &[signal]);
        assert_eq!(status.code(), Some(expected), "{signal}: {status}");
        assert!(saved > Some(0), "{signal}");
    }
    let began = Instant::now();
    let (status, saved) = stopped(&[("STOPS", "false")], &["-INT", "-INT", "wait", "-INT"]);
    assert_eq!(
        (status.signal(), saved),
        (Some(2), None),
        "one that comes later ends it"
    );
    // A launcher signals a process and its group: the second one, which came at once, did not.
    assert!(began.elapsed() > LATER, "{:?}", began.elapsed());
    let (status, _) = stopped(&[("DROPS", "true")], &["-TERM"]);
    assert_eq!(status.signal(), Some(15), "the default action is back");
}

/// A signal that comes after the last look is neither lost nor reported to a later run twice.
#[cfg(unix)]
#[test]
fn a_late_signal_is_there_for_who_asks() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("run");
    let mut child = start("checkpoint::late", &folder, &[]);
    assert!(child.wait().unwrap().success());
    let entries = folder.read_dir().unwrap();
    assert!(entries.count() > 1, "it ran");
}

#[cfg(unix)]
#[test]
#[ignore = "the training of the other test"]
fn late() {
    let folder = std::env::var(FOLDER).unwrap();
    let open = || {
        let builder = Checkpoints::builder(&folder);
        builder.on_signals([Signal::Terminate]).open().unwrap()
    };
    let receive = || {
        // SAFETY: the call takes a number. It returns when the signal has been handled.
        unsafe { libc::raise(Signal::Terminate.number()) };
    };
    let mut run = Run::new();
    let mut checkpoints = open();
    run.until(1, &mut checkpoints, |_, _| {}).unwrap();
    assert_eq!(checkpoints.signal(), None);
    checkpoints.save_now(&run.trainer).unwrap();
    receive();
    assert_eq!(checkpoints.signal(), Some(Signal::Terminate));
    drop(checkpoints);
    assert_eq!(open().signal(), None, "it was reported");

    let checkpoints = open();
    receive();
    drop(checkpoints);
    let mut checkpoints = open();
    checkpoints.resume_trainer(&mut run.trainer).unwrap();
    let report = run.step().unwrap();
    let stopped = checkpoints.after(&report, &run.trainer).unwrap();
    assert!(stopped.is_break(), "nobody was told of it");
    drop(checkpoints);
    assert_eq!(open().signal(), None);
}

/// A process that may not write files of more than a few bytes: as a full disk, for root too.
#[cfg(target_os = "linux")]
#[test]
fn a_limit_on_the_size_of_files_does_not_end_the_training() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("run");
    let program = std::env::current_exe().unwrap();
    let script = "ulimit -f 0; exec \"$0\" --exact checkpoint::limited --ignored";
    let mut command = Command::new("bash");
    command
        .args(["-c", script])
        .arg(program)
        .env(FOLDER, &folder);
    let output = command.stdout(Stdio::null()).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(latest(&folder), None);
}

#[test]
#[ignore = "the training of the other tests"]
fn limited() {
    let folder = std::env::var(FOLDER).unwrap();
    let mut checkpoints = Checkpoints::builder(&folder)
        .every_updates(1)
        .in_foreground()
        .open()
        .unwrap();
    let mut run = Run::new();
    let mut failures = 0;
    run.until(4, &mut checkpoints, |_, saving| match saving {
        Saving::Failed(error) => {
            assert!(error.to_string().contains("File too large"), "{error}");
            failures += 1;
        }
        other => assert!(matches!(other, Saving::NotDue), "{other:?}"),
    })
    .unwrap();
    assert_eq!(failures, 3, "at steps 1, 2 and 4");
}
