//! The example `train_images` as a user runs it: what it learns within its budget, and what it refuses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::train_text;

fn program() -> PathBuf {
    let name = Path::new("train_images").with_extension(std::env::consts::EXE_EXTENSION);
    train_text::program().with_file_name(name)
}

fn train_images(arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.args(arguments).env("RUST_BACKTRACE", "1");
    command
        .output()
        .expect("the example, built by `cargo test` or `cargo build --examples`")
}

/// Standard output of a run that must succeed.
fn learned(arguments: &[&str]) -> String {
    let output = train_images(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn figure(output: &str, name: &str) -> f64 {
    crate::figures::figure("train_images", output, name)
}

/// The file beside the example.
fn data() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(root.join("examples/train_images/digits.txt")).unwrap()
}

/// The numbers of images of each digit, as they are published with the dataset.
const COUNTS: [usize; 10] = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180];

#[test]
fn the_data_are_those_of_the_source() {
    let data = data();
    let (first, rest) = data.split_once('\n').unwrap();
    // The same as in the example's README.
    assert_eq!(first, "# crc32 53e9f029");
    assert_eq!(crc32fast::hash(rest.as_bytes()), 0x53e9_f029);
    let mut counts = [0; 10];
    for line in rest.lines() {
        counts[line[..1].parse::<usize>().unwrap()] += 1;
    }
    assert_eq!(counts, COUNTS);
}

#[test]
fn it_learns_within_its_budget_and_shows_its_mistakes() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("out.html");
    let page = page.to_str().unwrap();
    let text = learned(&["--passes", "2", "--budget", "11MiB", "--report", page]);
    // A net that has seen each image twice; by chance it would be 10 %.
    assert!(figure(&text, "test_accuracy") > 80., "{text}");
    assert!(
        figure(&text, "loss_last") < figure(&text, "loss_first") - 1.,
        "{text}"
    );
    // A batch takes 13.1 MiB in one piece.
    assert!(figure(&text, "micro_batches") > 1.5, "{text}");
    assert!(figure(&text, "peak_over_budget") <= 1.05, "{text}");
    assert_eq!(figure(&text, "retries"), 0., "{text}");

    let (_, table) = text.split_once("taken for ").expect("a table");
    let rows = table.lines().skip(1).take(10);
    let numbers = rows.flat_map(|row| row.split_whitespace().skip(1));
    let sum: usize = numbers
        .filter_map(|number| number.parse::<usize>().ok())
        .sum();
    assert_eq!(sum, 357, "{text}");
    let drawn = table.contains(" mistake") && table.contains('█');
    assert!(drawn, "{text}");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("test accuracy, %") && page.contains("Handwritten digits"));
}

/// 1,440 images in batches of 128.
#[test]
fn json_is_the_run_and_quiet_prints_nothing() {
    let short = ["--passes", "1", "--unlimited"];
    let text = learned(&[&short[..], &["--json"]].concat());
    let (steps, run) = crate::figures::objects(&text);
    assert_eq!(steps.len(), 12, "{text}");
    let samples = steps.iter().map(|step| step["samples"].as_u64().unwrap());
    assert_eq!(run["samples"], samples.sum::<u64>(), "{text}");
    assert_eq!(run["steps"], 12, "{text}");
    assert_eq!(run["samples"], 1440, "{text}");
    assert!(run["limit"].is_null(), "{text}");
    assert!(run["test_accuracy"].is_f64(), "{text}");

    assert_eq!(learned(&[&short[..], &["--quiet"]].concat()), "");
    let output = train_images(&["--quiet", "--json"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("cannot be used with"), "{errors}");
}

/// Images are distorted by their index, so neither the number of workers nor their order changes a bit of the loss.
#[test]
fn a_seed_gives_the_same_run_with_any_number_of_workers() {
    let loss = |more: &[&str]| {
        let text = learned(&[&["--passes", "1", "--unlimited"], more].concat());
        figure(&text, "loss_last")
    };
    let one = loss(&[]);
    assert_eq!(one, loss(&["--workers", "0"]));
    assert_eq!(one, loss(&["--workers", "4"]));
    assert_ne!(one, loss(&["--seed", "1"]));
    assert_ne!(one, loss(&["--plain"]));
}

/// Each bad input ends with one line and status 2, before training.
#[test]
fn bad_input_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let data = data();
    let (_, plain) = data.split_once('\n').unwrap();
    let line = plain.lines().next().unwrap();
    let in_line_7 = |from: &str, to: &str| {
        let lines = plain.lines().enumerate();
        let lines = lines.map(|(place, line)| match place {
            6 => line.replacen(from, to, 1) + "\n",
            _ => format!("{line}\n"),
        });
        lines.collect::<String>()
    };
    let changed = file("changed", &data.replacen("\n0 0", "\n1 0", 1));
    let cut = file("cut", &data[..data.len() - 67]);
    let pixel = file("pixel", &in_line_7("c", "h"));
    let label = file("label", &in_line_7("6 ", "x "));
    let short = file("short", &in_line_7("00", "0"));
    let blank = file("blank", &in_line_7("6 ", ""));
    let few = file("few", &format!("{line}\n").repeat(49));
    let (empty, binary) = (file("empty", ""), folder.path().join("binary"));
    fs::write(&binary, [0xff; 100]).unwrap();
    let binary = binary.to_str().unwrap().to_owned();
    let directory = folder.path().to_str().unwrap().to_owned();
    const HUGE: &str = "18446744073709551615";
    for (arguments, words) in [
        (
            vec!["--data", "no-such-file"],
            "name a file of digits by `--data`",
        ),
        (vec!["--data", &directory], "cannot read"),
        (
            vec!["--data", &changed],
            "restore the file, or remove that line",
        ),
        (
            vec!["--data", &cut],
            "restore the file, or remove that line",
        ),
        (vec!["--data", &pixel], "line 7: 'h' is no pixel"),
        (vec!["--data", &label], "line 7: \"x\" is no digit"),
        (vec!["--data", &short], "line 7: it has 63 pixels, not 64"),
        (vec!["--data", &blank], "line 7: "),
        (vec!["--data", &few], "has 49 digits: 50 are needed"),
        (vec!["--data", &empty], "has 0 digits"),
        (vec!["--data", &binary], "cannot read"),
        #[cfg(unix)]
        (vec!["--data", "/dev/zero"], "/dev/zero is too large"),
        (vec!["--batch", "0"], "--batch 0 is out of range"),
        (vec!["--batch", HUGE], "is out of range"),
        (vec!["--passes", "0"], "--passes 0 is out of range"),
        (vec!["--passes", HUGE], "is out of range"),
        (vec!["--workers", "1000000"], "`workers` must be at most"),
        (vec!["--learning-rate", "NaN"], "--learning-rate NaN"),
        (vec!["--learning-rate=-1"], "--learning-rate -1"),
        (vec!["--budget", "1KiB"], "below"),
        (
            vec!["--budget", "2MiB"],
            "out of host memory in forward of a micro-batch of 1",
        ),
        (vec!["--report", "/no/folder/x.html"], "/no/folder/x.html"),
        (vec!["--report", &directory], "is not a regular file"),
        #[cfg(unix)]
        (vec!["--report", "/dev/full"], "is not a regular file"),
    ] {
        let output = train_images(&arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
        let trained = String::from_utf8_lossy(&output.stdout).contains("step ");
        assert!(!trained, "{arguments:?}: refused only after training");
        let lines = stderr.trim_end().lines().count();
        assert_eq!(lines, 1, "{arguments:?}: {stderr}");
    }
}
