//! Programs in processes of their own, for what is set by variables or written at an exit. A program is an ignored test of the same file.

use std::path::PathBuf;
use std::process::{Command, ExitStatus};

/// How a program ended, and what it has left.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub report: String,
    pub stderr: String,
}

/// Runs one of the programs, without computing unless the variables say so.
pub fn run(program: &str, variables: &[(&str, &str)]) -> Ended {
    let file = file(program);
    _ = std::fs::remove_file(&file);
    let mut command = Command::new(std::env::current_exe().expect("the test runs"));
    command.args([
        "--exact",
        program,
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    command.env("SIMULATED_CUDA_REPORT", &file);
    command.env("SIMULATED_CUDA_MODE", "allocate");
    command.envs(variables.iter().copied());
    let ended = command.output().expect("it starts");
    let report = std::fs::read_to_string(&file).unwrap_or_default();
    _ = std::fs::remove_file(&file);
    Ended {
        status: ended.status,
        report,
        stderr: String::from_utf8_lossy(&ended.stderr).into_owned(),
    }
}

fn file(program: &str) -> PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id();
    std::env::temp_dir().join(format!("simulated-cuda-{process}-{number}-{program}.jsonl"))
}
