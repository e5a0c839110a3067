//! Starts a test's own program under `mpirun`.

use std::env;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use candle_headroom::distributed::Group;

/// Set in the ranks.
const RANK_OF: &str = "HEADROOM_RANK_OF";

/// Runs the calling test again in `ranks` processes, in each of which `body` runs with the group. All have to succeed.
pub fn together(ranks: usize, body: impl FnOnce(&Group)) {
    if is_rank() {
        return body(&open());
    }
    let output = mpirun(ranks, &[]);
    assert!(output.status.success(), "{}", text(&output));
    print!("{}", String::from_utf8_lossy(&output.stdout));
}

/// As [`together`], with options of `mpirun`'s; the caller judges the outcome.
pub fn mpirun(ranks: usize, options: &[&str]) -> Output {
    let _turn = turn();
    let output = command(ranks, options).output();
    output.expect("mpirun: install Open MPI")
}

/// Held while ranks run, so that the tests of this program do not take each other's time.
pub fn turn() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    // Another test may have failed.
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The command that runs the calling test again in `ranks` processes.
pub fn command(ranks: usize, options: &[&str]) -> Command {
    let name = thread::current()
        .name()
        .expect("a test's thread")
        .to_owned();
    let mut command = Command::new("mpirun");
    command
        .args([
            "--oversubscribe",
            "--bind-to",
            "none",
            "-n",
            &ranks.to_string(),
        ])
        .args(options);
    command.arg(env::current_exe().expect("this program"));
    command.args(["--exact", &name, "--nocapture", "--test-threads", "1"]);
    command.env(RANK_OF, &name).env("RAYON_NUM_THREADS", "1");
    // The tests run as root in containers.
    command.envs([
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ]);
    command
}

/// Whether this process is a rank of the calling test.
pub fn is_rank() -> bool {
    env::var(RANK_OF).is_ok_and(|name| thread::current().name() == Some(name.as_str()))
}

pub fn open() -> Group {
    Group::builder()
        .timeout(Duration::from_secs(60))
        .open()
        .expect("a group")
}

/// What ranks printed.
pub fn text(output: &Output) -> String {
    let parts = [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part));
    format!("{}\n{}\n{}", output.status, parts[0], parts[1])
}
