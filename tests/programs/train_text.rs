//! The example `train_text` as a user runs it: what it reports, and what it refuses.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use candle_headroom::checkpoint::Checkpoint;

/// Path of the example's program, which `cargo test` builds beside the test programs.
pub fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples/train_text");
    program.with_extension(std::env::consts::EXE_EXTENSION)
}

fn train_text(arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.args(arguments).env("RUST_BACKTRACE", "1");
    command
        .output()
        .expect("the example, built by `cargo test` or `cargo build --examples`")
}

pub fn figure(output: &str, name: &str) -> f64 {
    crate::figures::figure("train_text", output, name)
}

const SHORT: [&str; 6] = ["--steps", "5", "--batch", "16", "--context", "32"];
/// Enough to learn by, whatever this project's text says at the time.
const LEARNING: [&str; 6] = ["--steps", "10", "--batch", "16", "--context", "32"];

#[test]
fn it_learns_within_its_budget_and_reports_it() {
    let arguments = [&LEARNING[..], &["--budget", "16MiB"]].concat();
    let output = train_text(&arguments);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        figure(&text, "loss_last") < figure(&text, "loss_first") - 0.5,
        "{text}"
    );
    assert!(figure(&text, "peak_over_budget") <= 1.05, "{text}");
    assert_eq!(figure(&text, "retries"), 0.);
    assert!(
        text.contains("step 1: micro-batch 1 → ") && text.contains("more fits"),
        "{text}"
    );
}

/// Without a terminal each step is a line, and all changes of the size in it are another one. The run ends with three lines.
#[test]
fn a_step_is_a_line_and_a_run_ends_with_three() {
    let steps = ["--steps", "12", "--batch", "16", "--context", "32"];
    for (given, used, next) in [
        // The batch takes about 11 MiB.
        (&["--budget", "64MiB"][..], " of 64.0 MiB", "`--batch "),
        (
            &["--unlimited"],
            " without a budget",
            "`--checkpoint run-1`",
        ),
    ] {
        let output = train_text(&[&steps[..], given].concat());
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        let count = |words: &str| text.lines().filter(|line| line.starts_with(words)).count();
        for step in 1..=12 {
            assert_eq!(count(&format!("step {step}: loss ")), 1, "{text}");
            assert!(count(&format!("step {step}: micro-batch ")) <= 1, "{text}");
        }
        let words = text.lines().filter(|line| !line.starts_with("figure: "));
        let words: Vec<&str> = words.collect();
        let [.., reached, cost, suggested] = &words[..] else {
            panic!("{text}")
        };
        let losses = reached.strip_prefix("reached  loss ");
        let losses = losses.and_then(|rest| rest.strip_suffix(" nats a byte in 12 steps"));
        let (first, last) = losses.and_then(|rest| rest.split_once(" → ")).unwrap();
        for (name, loss) in [("loss_first", first), ("loss_last", last)] {
            let loss: f64 = loss.parse().unwrap();
            assert!((loss - figure(&text, name)).abs() < 6e-4, "{name}: {text}");
        }
        let took = cost.starts_with("cost     ") && cost.contains(" s, peak ");
        let samples = format!("{used}, 192 samples, 0 retried; ");
        assert!(took && cost.contains(&samples), "{text}");
        assert!(suggested.starts_with(&format!("next     {next}")), "{text}");
    }
}

/// An object a line, for each step and for the run, and nothing else.
#[test]
fn json_is_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("out.html");
    let options = ["--budget", "16MiB", "--report", page.to_str().unwrap()];
    let options = [&SHORT[..], &options].concat();
    let output = train_text(&[&options[..], &["--json"]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(output.stderr.is_empty(), "{text}");
    let (steps, run) = crate::figures::objects(&text);
    assert_eq!(steps.len(), 5, "{text}");
    for (step, number) in steps.iter().zip(1..) {
        assert_eq!(step["step"], number, "{text}");
        assert_eq!(step["samples"], 16, "{text}");
        assert_eq!(step["limit"], 16 << 20, "{text}");
        assert_eq!(step["learning_rate"], 5e-3, "{text}");
        let [parts, largest, peak] =
            ["micro_batches", "micro_batch", "peak"].map(|name| step[name].as_u64().unwrap());
        assert!((largest..=parts * largest).contains(&16), "{text}");
        assert!(peak > 1 << 20, "{text}");
    }
    let events = steps[0]["events"].as_array().unwrap();
    let grown = |event: &serde_json::Value| event.as_str().unwrap().starts_with("micro-batch 1 → ");
    assert!(events.iter().any(grown), "{text}");
    for name in ["samples", "retries", "retried_samples"] {
        let sum: u64 = steps.iter().map(|step| step[name].as_u64().unwrap()).sum();
        assert_eq!(run[name], sum, "{name}: {text}");
    }
    let peak = steps.iter().map(|step| step["peak"].as_u64()).max();
    assert_eq!(run["peak"].as_u64(), peak.unwrap(), "{text}");
    assert_eq!(run["steps"], 5, "{text}");
    assert_eq!(run["steps_before"], 0, "{text}");
    assert_eq!(run["loss_first"], steps[0]["loss"], "{text}");
    assert_eq!(run["loss_last"], steps[4]["loss"], "{text}");
    assert!(run["plan"]["each"].is_u64(), "{text}");
    assert!(
        run["stopped"].is_null() && run["next"].is_string(),
        "{text}"
    );
    let report = serde_json::json!([{ "kind": "report", "path": page.to_str() }]);
    assert_eq!(run["files"], report, "{text}");
    assert!(
        std::fs::read_to_string(&page)
            .unwrap()
            .contains("\"name\":\"loss\"")
    );

    let output = train_text(&options);
    let words = String::from_utf8_lossy(&output.stdout);
    let loss = run["loss_last"].as_f64().unwrap();
    assert!(
        (figure(&words, "loss_last") - loss).abs() < 1e-3,
        "{words}{text}"
    );
}

#[test]
fn quiet_prints_nothing_and_writes_files() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("out.html");
    let options = ["--quiet", "--estimate", "--report", page.to_str().unwrap()];
    let output = train_text(&[&SHORT[..], &options].concat());
    let printed = [output.stdout, output.stderr].concat();
    assert!(output.status.success());
    assert!(printed.is_empty(), "{}", String::from_utf8_lossy(&printed));
    assert!(
        std::fs::read_to_string(&page)
            .unwrap()
            .contains("\"name\":\"loss\"")
    );

    let output = train_text(&["--quiet", "--json"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("cannot be used with"), "{errors}");
    assert!(output.stdout.is_empty());
}

/// Before and after the first step, with what the blocks take where they are recomputed.
#[test]
fn it_estimates_what_training_takes() {
    let asked = ["--budget", "16MiB", "--estimate", "--recompute", "always"];
    let output = train_text(&[&SHORT[..], &asked].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    let (before, after) = text.split_once("after the first step: ").expect("two");
    assert!(before.contains("before the first step: "), "{text}");
    assert!(
        before.contains("held in all") && !before.contains("peak with"),
        "{text}"
    );
    assert!(after.contains("peak with micro-batches of 8"), "{text}");
    assert!(after.contains("regions recomputed: as asked"), "{text}");
}

#[test]
fn it_learns_in_fewer_bits() {
    for bits in [
        ["--dtype", "bf16", "--moments", "8bit"],
        ["--dtype", "f16", "--moments", "bf16"],
    ] {
        let output = train_text(&[&LEARNING[..], &["--unlimited"], &bits].concat());
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}{errors}");
        assert!(
            figure(&text, "loss_last") < figure(&text, "loss_first") - 0.5,
            "{bits:?}: {text}"
        );
    }
}

#[test]
fn a_seed_gives_the_same_run() {
    let losses = |seed| {
        let arguments = [&SHORT[..], &["--unlimited", "--seed", seed]].concat();
        let output = train_text(&arguments);
        figure(&String::from_utf8_lossy(&output.stdout), "loss_last")
    };
    assert_eq!(losses("7"), losses("7"));
    assert_ne!(losses("7"), losses("8"));
}

/// The page, the trace and the incidents that a run writes.
#[test]
fn it_leaves_a_page_a_trace_and_its_incidents() {
    let folder = std::env::temp_dir().join(format!("train-text-watched-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (page, trace, incidents) = (path("out.html"), path("out.json"), path("out.jsonl"));
    let watched = [
        "--report",
        &page,
        "--trace",
        &trace,
        "--incidents",
        &incidents,
        "--monitor",
    ];
    let output = train_text(&[&SHORT[..], &["--budget", "16MiB"], &watched].concat());
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("out.jsonl: no exhaustion"), "{text}");
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    assert!(read(&page).contains("\"name\":\"loss\""));
    assert!(read(&page).contains("host: GiB used"));
    let trace: serde_json::Value = serde_json::from_str(&read(&trace)).unwrap();
    let counters = trace["traceEvents"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["ph"] == "C");
    let names: Vec<_> = counters
        .filter_map(|event| event["name"].as_str())
        .collect();
    assert!(
        ["in use", "limit", "loss"]
            .iter()
            .all(|name| names.contains(name)),
        "{names:?}"
    );
    let lines = read(&incidents);
    let grown = lines.lines().next().unwrap();
    assert!(
        grown.contains("micro-batch 1 → ") && grown.contains("more fits"),
        "{grown}"
    );
    assert!(
        grown.contains("\"plan\":{") && grown.contains("\"samples\":[{"),
        "{grown}"
    );
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A report of each Var, and no training.
#[test]
fn an_audit_lists_every_parameter() {
    let output = train_text(&[&SHORT[..], &["--audit"]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    let (_, report) = text.split_once(" Vars: ").expect("a report");
    let (counts, lines) = report.split_once('\n').expect("lines");
    assert!(
        !counts.contains("wrong") && !counts.contains("no gradient"),
        "{text}"
    );
    let (_, right) = counts.split_once("right ").expect("right ones");
    assert!(right.parse::<usize>().expect("a number") > 20, "{text}");
    let of_the_head =
        |line: &&str| line.starts_with("  head.weight ") && line.contains("[256, 64]");
    assert!(lines.lines().any(|line| of_the_head(&line)), "{text}");
    let vars = lines.lines().filter(|line| line.starts_with("  "));
    assert_eq!(vars.count(), 30, "{text}");
    assert!(!text.contains("step 1"), "{text}");
}

/// Each bad input ends with one line and status 2, before training.
#[test]
fn bad_input_is_refused_in_one_line() {
    let folder = std::env::temp_dir().join(format!("train-text-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (empty, short) = (file("empty", ""), file("short", "too short"));
    let directory = folder.to_str().unwrap().to_owned();
    const HUGE: &str = "18446744073709551615";
    for (arguments, words) in [
        (vec!["--batch", "0"], "--batch 0"),
        (vec!["--context", "0"], "--context 0"),
        (vec!["--steps", "0"], "--steps 0"),
        (vec!["--budget", "1KiB"], "below"),
        (
            vec!["--budget", "4MiB", "--context", "1024"],
            "a single sample does not fit",
        ),
        (vec!["no-such-file"], "no-such-file"),
        (vec!["--report", "/no/folder/x.html"], "/no/folder/x.html"),
        (
            vec!["--batch", "1000000000000"],
            "--batch 1000000000000 is too large",
        ),
        (vec!["--batch", HUGE], "is too large"),
        (vec!["--context", "5000"], "--context 5000 is too long"),
        (vec!["--context", HUGE], "is too long"),
        (vec!["--report", &directory], "is not a regular file"),
        (vec!["--trace", &directory], "is not a regular file"),
        #[cfg(unix)]
        (vec!["--incidents", "/dev/full"], "is not a regular file"),
        #[cfg(unix)]
        (vec!["/dev/zero"], "/dev/zero is too large"),
        (vec!["--incidents", "/no/folder/x"], "/no/folder/x"),
        #[cfg(not(feature = "cuda"))]
        (
            vec!["--device", "cuda:0"],
            "build candle-headroom with its feature `cuda`",
        ),
        #[cfg(feature = "cuda")]
        (vec!["--device", "cuda:99"], "no CUDA device 99"),
        (vec![&empty], "is empty"),
        (vec![&short], "too short"),
        (vec!["--audit", "--json"], "leave out --json"),
        (vec!["--quiet", "--batch", "0"], "--batch 0"),
        (vec!["--json", "no-such-file"], "no-such-file"),
    ] {
        let output = train_text(&arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
        let trained = String::from_utf8_lossy(&output.stdout).contains("step ");
        assert!(!trained, "{arguments:?}: refused only after training");
        assert_eq!(
            stderr.trim_end().lines().count(),
            1,
            "{arguments:?}: {stderr}"
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Standard output that is closed or full ends the run with one line and status 2, before training.
#[cfg(unix)]
#[test]
fn output_that_is_closed_or_full_is_no_crash() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let full = std::fs::File::options().write(true).open("/dev/full");
    for output in [std::process::Stdio::from(writer), full.unwrap().into()] {
        let mut command = Command::new(program());
        command
            .args(SHORT)
            .env("RUST_BACKTRACE", "1")
            .stdout(output);
        let output = command.stderr(std::process::Stdio::piped());
        let output = output.spawn().unwrap().wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(
            stderr.contains("cannot write to standard output"),
            "{stderr}"
        );
        assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
    }
}

/// A machine without a GPU is reported in one line. The simulated driver stands in for one.
#[cfg(feature = "cuda")]
#[test]
fn a_machine_without_a_gpu_refuses_in_one_line() {
    let mut command = Command::new(program());
    command.args(["--device", "cuda:0"]);
    command.env("SIMULATED_CUDA_DEVICES", "0");
    let output = command.env("RUST_BACKTRACE", "1").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("returned CUDA_ERROR_NO_DEVICE"), "{stderr}");
    assert_eq!(stderr.matches("cannot be opened").count(), 1, "{stderr}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
}

/// The model in the only or the latest checkpoint of a folder.
fn saved_model(folder: &Path) -> Vec<u8> {
    let checkpoint = Checkpoint::latest(folder).unwrap().unwrap();
    std::fs::read(checkpoint.path().join("model.safetensors")).unwrap()
}

/// Ctrl-C saves and ends with status 130; the resumed run ends with the bits of the uninterrupted one.
#[cfg(unix)]
#[test]
fn it_goes_on_after_an_interruption() {
    let folder = crate::checkpoint::run::memory_folder();
    let [whole, parts] = ["whole", "parts"].map(|name| folder.path().join(name));
    let options = |folder: &Path, more: &[&str]| -> Vec<String> {
        let given = [
            "--steps",
            "60", // enough to be interrupted in
            "--batch",
            "16",
            "--context",
            "32",
            "--unlimited",
            "--checkpoint",
        ];
        let given = given.into_iter().chain([folder.to_str().unwrap()]);
        given
            .chain(more.iter().copied())
            .map(str::to_owned)
            .collect()
    };
    let run = |folder: &Path, more: &[&str]| {
        let output = Command::new(program())
            .args(options(folder, more))
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (status, text, errors) = run(&whole, &[]);
    assert_eq!(status, Some(0), "{text}{errors}");

    let mut command = Command::new(program());
    let mut child = command
        .args(options(&parts, &["--every", "3"]))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The first checkpoint shows that it is training.
    while Checkpoint::latest(&parts).ok().flatten().is_none() {
        std::thread::sleep(Duration::from_millis(5));
        assert!(child.try_wait().unwrap().is_none());
    }
    let id = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &id])
            .status()
            .unwrap()
            .success()
    );
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(130), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    let [.., stopped, reached, cost, next] = &lines[..] else {
        panic!("{text}")
    };
    assert!(stopped.starts_with("SIGINT after step "), "{text}");
    assert!(reached.starts_with("reached ") && cost.starts_with("cost "));
    assert!(
        next.starts_with("next     go on with the same options") && next.ends_with(" --resume`"),
        "{text}"
    );

    // Without `--resume`, nothing is mixed up.
    let (status, _, errors) = run(&parts, &[]);
    assert_eq!(status, Some(2));
    assert!(
        errors.contains("holds checkpoints of another run: give `--resume`"),
        "{errors}"
    );
    let (status, text, errors) = run(&parts, &["--resume"]);
    assert_eq!(status, Some(0), "{text}{errors}");
    assert!(text.contains("resumed at step "), "{text}");
    assert!(
        saved_model(&whole) == saved_model(&parts),
        "other bits at the end"
    );
    let (status, text, _) = run(&parts, &["--resume"]);
    assert_eq!(status, Some(0));
    assert!(text.contains("nothing is left to do"), "{text}");
}
