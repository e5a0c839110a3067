//! A signal to one rank stops all of them after the same update.

use std::ops::ControlFlow::Break;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use candle_headroom::checkpoint::{Checkpoint, Checkpoints, Signal, Stopped};
use candle_headroom::distributed::Group;

use crate::launch::{command, is_rank, open, together, turn};
use crate::run::{Run, folder, same};

const FOLDER: &str = "HEADROOM_SIGNALLED_FOLDER";

fn raise(signal: Signal) {
    // SAFETY: the call takes a number.
    unsafe { libc::raise(signal.number()) };
}

/// Steps until a signal comes, with `f` before each step.
fn stopped(group: &Group, checkpoints: &mut Checkpoints, f: impl Fn(u64)) -> Stopped {
    let mut run = Run::new(group, 7);
    checkpoints
        .resume_trainer(&mut run.trainer)
        .expect("no error");
    loop {
        f(run.trainer.updates() + 1);
        let report = run.step().expect("a step");
        let after = checkpoints.after(&report, &run.trainer);
        if let Break(stopped) = after.expect("no error") {
            assert_eq!(stopped.step, run.trainer.updates());
            return stopped;
        }
    }
}

#[test]
fn one_ranks_signal_stops_all_after_the_same_update() {
    together(3, |group| {
        let (_made, folder) = folder(group);
        // Rank 2 alone waits for SIGUSR2: the others ask it all the same.
        for (raised, waiting, signal) in [
            (vec![1], vec![0, 1, 2], Signal::User1),
            (vec![2, 1], vec![0, 1, 2], Signal::Terminate),
            (vec![2], vec![2], Signal::User2),
        ] {
            let before = Checkpoint::latest(&folder).expect("a folder");
            let before = before.map_or(0, |before| before.step());
            let own = waiting.contains(&group.rank());
            let builder = Checkpoints::builder(&folder).group(group);
            let builder = builder.on_signals(own.then_some(signal));
            let mut checkpoints = builder.open().expect("a folder");
            let stopped = stopped(group, &mut checkpoints, |step| {
                // Ranks are interrupted during different updates.
                let order = raised.iter().position(|&rank| rank == group.rank());
                if order.is_some_and(|order| step == before + 3 + order as u64) {
                    raise(signal);
                }
            });
            let text = same(group, stopped.to_string());
            let expected = format!("{signal} after step {}: saved in ", before + 3);
            assert!(text.contains(&expected), "{text}");
            assert_eq!(checkpoints.signal(), Some(signal));
            checkpoints.finish().expect("an end");
        }
    });
}

#[test]
fn a_late_signal_is_seen_by_all() {
    together(2, |group| {
        let (_made, folder) = folder(group);
        let builder = Checkpoints::builder(&folder).group(group);
        let mut checkpoints = builder
            .on_signals([Signal::User1])
            .open()
            .expect("a folder");
        let mut run = Run::new(group, 7);
        let report = run.step().expect("a step");
        let after = checkpoints.after(&report, &run.trainer).expect("no error");
        assert!(after.is_continue());
        if group.rank() == 1 {
            raise(Signal::User1);
        }
        assert_eq!(checkpoints.signal(), None, "before they have met");
        checkpoints.save_now(&run.trainer).expect("a checkpoint");
        assert_eq!(checkpoints.signal(), Some(Signal::User1));
    });
}

/// What reaches `mpirun` reaches the ranks: SIGUSR1 as it is, SIGTERM with little time to save.
#[test]
fn a_signal_to_mpirun_saves_and_stops_the_job() {
    if is_rank() {
        let group = open();
        let folder = PathBuf::from(std::env::var_os(FOLDER).expect("a folder"));
        let builder = Checkpoints::builder(&folder).group(&group);
        let signals = [Signal::User1, Signal::Terminate];
        let mut checkpoints = builder.on_signals(signals).open().expect("a folder");
        let stopped = stopped(&group, &mut checkpoints, |step| {
            if step == 3 && group.rank() == 0 {
                std::fs::write(folder.with_extension("ready"), "").expect("a file");
            }
            thread::sleep(Duration::from_millis(5));
        });
        same(&group, stopped.to_string());
        checkpoints.finish().expect("an end");
        return;
    }
    for signal in [Signal::User1, Signal::Terminate] {
        let made = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
        let folder = made.path().join("run");
        let _turn = turn();
        // Between SIGTERM and SIGKILL; a second by default. mpirun waits about twice that in any case.
        let mut command = command(2, &["--mca", "odls_base_sigkill_timeout", "5"]);
        command.env(FOLDER, &folder).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("mpirun");
        let began = Instant::now();
        while !folder.with_extension("ready").exists() {
            assert!(
                child.try_wait().expect("a child").is_none(),
                "it ended early"
            );
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "it does not begin"
            );
            thread::sleep(Duration::from_millis(2));
        }
        let pid = child.id() as libc::pid_t;
        // SAFETY: the call takes two numbers; the child is not waited for yet, so the number is its.
        unsafe { libc::kill(pid, signal.number()) };
        let status = child.wait().expect("a child");
        let saved = Checkpoint::latest(&folder).expect("a folder");
        assert!(
            saved.is_some_and(|saved| saved.step() > 2),
            "{signal}: {status}"
        );
        // mpirun counts a job that SIGTERM has ended as failed.
        assert!(status.success() || signal == Signal::Terminate, "{status}");
    }
}
