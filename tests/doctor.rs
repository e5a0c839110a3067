//! The example `doctor` as a user runs it: what it prints, and the status with which it ends.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// The example's program, which `cargo test` builds beside the tests'.
fn doctor(arguments: &[&str]) -> Output {
    let test = std::env::current_exe().unwrap();
    let program: PathBuf = test.ancestors().nth(2).unwrap().join("examples/doctor");
    let mut command = Command::new(program.with_extension(std::env::consts::EXE_EXTENSION));
    command
        .args(arguments)
        .output()
        .expect("the example, built by `cargo test` or `cargo build --examples`")
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
}

#[test]
fn a_machine_without_a_gpu_is_told_so_at_once() {
    let started = Instant::now();
    let report = json(&[]);
    let took = started.elapsed();
    if !has(&report, "HR-101") {
        eprintln!("skipped: this machine has a GPU, or a driver");
        return;
    }
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(
        report["summary"],
        "training will run on the CPU: this machine has no NVIDIA GPU"
    );
    assert_eq!(doctor(&[]).status.code(), Some(0));
    assert_eq!(doctor(&["--require", "cuda"]).status.code(), Some(2));
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
fn a_requirement_that_nothing_meets_is_in_the_report() {
    let arguments = ["--require", "cuda,mem=900TiB"];
    assert_eq!(doctor(&arguments).status.code(), Some(2));
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
fn a_requirement_that_is_none_is_refused() {
    let output = doctor(&["--require", "gpu"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("give `cpu`, `cuda`, or `cuda,mem=8GiB`"),
        "{text}"
    );
}
