//! `headroom doctor`: its output and its exit status.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use super::PROGRAM;

fn doctor(arguments: &[&str]) -> Output {
    let mut command = program();
    command.args(arguments).output().expect("the program")
}

fn program() -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("doctor");
    command
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let output = doctor(&[arguments, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).expect("JSON and nothing else")
}

fn has(report: &serde_json::Value, code: &str) -> bool {
    let findings = report["findings"].as_array().unwrap();
    findings.iter().any(|finding| finding["code"] == code)
}

#[test]
fn any_machine_is_fit_for_the_cpu() {
    let output = doctor(&["--require", "cpu"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.starts_with("candle-headroom 0.1.0: "), "{text}");
    assert!(!text.contains('\u{1b}'), "no colours where no terminal is");
    assert!(text.contains("HR-800"), "{text}");
    let verdict = "\nthe requirement is met: work on the CPU\n";
    assert!(text.ends_with(verdict), "{text}");
}

#[test]
fn a_machine_without_a_gpu_is_reported_at_once() {
    let timed = |_| {
        let started = Instant::now();
        (json(&[]), started.elapsed())
    };
    // The fastest of three, because other tests use the processor too.
    let runs = (0..3).map(timed).min_by_key(|(_, took)| *took);
    let (report, took) = runs.expect("three runs");
    if !has(&report, "HR-101") {
        eprintln!("skipped: this machine has a GPU, or a driver");
        return;
    }
    // 10 milliseconds on a machine that does nothing else; the benchmark has the figure.
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert_eq!(
        report["summary"],
        "training will run on the CPU: this machine has no NVIDIA GPU"
    );
    assert_eq!(doctor(&[]).status.code(), Some(0));
    assert_eq!(doctor(&["--require", "cuda"]).status.code(), Some(1));
    let warns = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .any(|finding| finding["severity"] == "warning");
    assert_eq!(
        doctor(&["--strict"]).status.code(),
        Some(if warns { 1 } else { 0 })
    );
}

#[test]
fn an_unmet_requirement_is_in_the_report() {
    let arguments = ["--require", "cuda,mem=900TiB"];
    let output = doctor(&arguments);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    let verdict = "\nthe requirement is not met: work on a GPU with 900.0 TiB of free memory (HR-";
    assert!(text.contains(verdict), "{text}");
    let report = json(&arguments);
    assert!(
        ["HR-101", "HR-910", "HR-911", "HR-912"]
            .iter()
            .any(|code| has(&report, code))
            || !has(&report, "HR-300"),
        "{report}"
    );
}

#[test]
fn an_unknown_requirement_is_rejected() {
    let output = doctor(&["--require", "gpu"]);
    assert_eq!(
        output.status.code(),
        Some(2),
        "not what an unfit machine gives"
    );
    assert_eq!(doctor(&["--help"]).status.code(), Some(0));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("use `cpu`, `cuda`, `cuda,mem=8GiB`, or `ranks`"),
        "{text}"
    );
}

/// Destructors of the driver's libraries may wait for a call that a probe has left behind.
#[cfg(target_os = "linux")]
#[test]
fn a_library_that_hangs_at_exit_does_not_block_the_doctor() {
    const LIBRARY: &str = r#"
        #[unsafe(no_mangle)]
        pub extern "C" fn cuInit(_flags: u32) -> u32 { 999 }
        extern "C" fn at_end() { loop { std::thread::park(); } }
        #[used]
        #[unsafe(link_section = ".fini_array")]
        static AT_END: extern "C" fn() = at_end;
    "#;
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("hangs-at-end");
    std::fs::create_dir_all(&folder).unwrap();
    let source = folder.join("library.rs");
    std::fs::write(&source, LIBRARY).unwrap();
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition=2024", "--crate-type=cdylib", "-o"]);
    rustc.arg(folder.join("libcuda.so.1")).arg(&source);
    assert!(rustc.status().expect("rustc").success());

    let mut path = std::ffi::OsString::from(&folder);
    if let Some(more) = std::env::var_os("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(more);
    }
    let mut doctor = program();
    doctor.env("LD_LIBRARY_PATH", path);
    let mut child = doctor.stdout(std::process::Stdio::null()).spawn().unwrap();
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > Duration::from_secs(20) {
            child.kill().unwrap();
            panic!("it waits for the library");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn closed_or_full_output_is_not_a_crash() {
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = program().stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.starts_with("error: cannot write the output: "),
        "{text}"
    );

    let mut child = program()
        .args(["--require", "cpu"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "what the machine is, whoever reads"
    );
    assert!(output.stderr.is_empty());
}

/// Runs it on two ranks: rank 1 has this variable, and each requires something.
#[cfg(feature = "mpi")]
fn two_ranks(variable: &str, requirements: [&str; 2]) -> (Option<i32>, String) {
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "--timeout", "120"]);
    command.args(["-n", "1", PROGRAM, "doctor"]);
    command.args(["--ranks", "--require", requirements[0], ":"]);
    command.args(["-n", "1", "env", variable, PROGRAM, "doctor"]);
    command.args(["--ranks", "--require", requirements[1]]);
    // The tests run as root in containers.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1");
    command.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let output = command.output().expect("mpirun: install Open MPI");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), text)
}

#[cfg(feature = "mpi")]
#[test]
fn the_machines_of_all_ranks_are_judged() {
    let (status, text) = two_ranks("NOTHING=1", ["cpu", "cpu"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(!text.contains("rank 1"), "they have one machine: {text}");

    let (status, text) = two_ranks("CUDA_HOME=/nowhere", ["cpu", "cpu"]);
    assert_eq!(status, Some(0), "a warning: {text}");
    assert!(text.contains("\nrank 1 on "), "{text}");
    assert!(text.contains(": warning HR-503: "), "{text}");

    let (status, text) = two_ranks("NOTHING=1", ["cpu", "cuda,mem=900TiB"]);
    assert_eq!(status, Some(1), "{text}");
    let verdict = "the requirement is not met: work on the CPU (rank 1: HR-";
    assert!(text.contains(verdict), "{text}");
    assert_eq!(text.matches("candle-headroom 0.1.0: ").count(), 1, "{text}");
}
