//! `headroom incidents`.

use std::fs;

use candle_core::{Device, Tensor};
use candle_headroom::batch::{BatchProcessor, Halving};
use candle_headroom::incident::IncidentLog;
use candle_headroom::testing;
use serde_json::{Value, json};

use super::{Answer, is_readable, path, refuses, run, run_with};

/// Lines of exhaustions and their retries, as a log writes them, from work with room for 4 of 16 samples.
fn recorded() -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("incidents.jsonl");
    let log = IncidentLog::builder(&file).open().unwrap();
    let x = Tensor::arange(0f32, 16., &Device::Cpu).unwrap();
    let mut processor = BatchProcessor::builder(Halving::default())
        .observer(log)
        .build();
    let done = processor.process(&x, |chunk, _| match chunk.dim(0)? {
        0..=4 => Ok(()),
        _ => Err(testing::out_of_memory()),
    });
    done.unwrap();
    fs::read_to_string(file).unwrap()
}

/// An incident at this hour of the 23rd of November 2023.
fn line(hour: u64, kind: &str, more: Value) -> String {
    let mut line = json!({
        "taken_unix_ms": (1_700_697_600 + hour * 3600) * 1000, "process": 1, "task": "training", "step": hour, "kind": kind, "text": "text",
    });
    line.as_object_mut()
        .unwrap()
        .extend(more.as_object().cloned().unwrap_or_default());
    format!("{line}\n")
}

#[test]
fn a_log_is_listed_with_a_summary() {
    let log = recorded();
    let Answer {
        status,
        text,
        errors,
    } = run_with(&["incidents", "-"], log.as_bytes());
    assert_eq!((status, &*errors), (Some(0), ""), "all were retried");
    is_readable(&text);
    assert!(
        text.contains("  processing 1: exhausted\n  out of"),
        "{text}"
    );
    assert!(text.contains("\n  micro-batch 16 → 8: "), "{text}");
    let last = text.lines().last().unwrap();
    assert!(
        last.starts_with("2 exhaustions, all in forward, "),
        "{text}"
    );

    let long = run_with(&["incidents", "-", "--long"], log.as_bytes()).text;
    assert!(long.contains("what would help"), "{long}");
}

#[test]
fn a_failed_step_is_a_finding() {
    let failed = line(3, "failed", Value::Null);
    let log = line(2, "exhausted", Value::Null) + &failed + &line(4, "grown", Value::Null);
    assert_eq!(
        run_with(&["incidents", "-"], log.as_bytes()).status,
        Some(1)
    );
    let filtered = run_with(
        &["incidents", "-", "--since", "2023-11-23T03:01"],
        log.as_bytes(),
    );
    assert_eq!(filtered.status, Some(0), "{}", filtered.text);
    assert!(
        filtered
            .text
            .starts_with("2023-11-23 04:00:00  training 4: grown\n")
    );
    let fault = line(2, "fault", json!({ "fault": 700 }));
    assert_eq!(
        run_with(&["incidents", "-"], fault.as_bytes()).status,
        Some(1)
    );
}

#[test]
fn filters_choose_among_incidents() {
    let ranked = |hour, kind: &str, rank: usize| line(hour, kind, json!({ "rank": rank }));
    let log = [
        ranked(1, "exhausted", 0),
        ranked(2, "retried", 0),
        ranked(3, "exhausted", 1),
        ranked(4, "over_limit", 1),
    ];
    let steps = |arguments: &[&str]| {
        let arguments = [&["incidents", "-", "--json"], arguments].concat();
        let Answer { text, .. } = run_with(&arguments, log.concat().as_bytes());
        let lines = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines
            .map(|line| line["step"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(steps(&[]), [1, 2, 3, 4]);
    assert_eq!(steps(&["--rank", "1"]), [3, 4]);
    assert_eq!(steps(&["--kind", "exhausted"]), [1, 3]);
    assert_eq!(
        steps(&["--kind", "exhausted,over_limit", "--rank", "1"]),
        [3, 4]
    );
    assert_eq!(steps(&["--since", "2023-11-23 03:00"]), [3, 4]);
    // Years after.
    assert_eq!(steps(&["--since", "1s"]), [0u64; 0]);

    let summary = run_with(
        &["incidents", "-", "--json", "--summary", "--rank", "1"],
        log.concat().as_bytes(),
    );
    let summary: Value = serde_json::from_str(&summary.text).unwrap();
    assert_eq!(summary["incidents"], 2);
    assert_eq!(summary["kinds"], json!({ "exhausted": 1, "over_limit": 1 }));
    assert_eq!(summary["first_exhaustion_unix_ms"], 1_700_708_400_000u64);
    let text = run_with(&["incidents", "-", "--summary"], log.concat().as_bytes()).text;
    assert!(text.starts_with("2 exhaustions, "), "{text}");
}

/// Seconds as `date -u -d … +%s` prints them.
#[test]
fn times_are_those_of_the_calendar() {
    for (time, shown, seconds) in [
        ("1970-01-01", "1970-01-01 00:00:00", 0),
        ("1970-03-01", "1970-03-01 00:00:00", 5_097_600),
        ("1999-12-31", "1999-12-31 00:00:00", 946_598_400),
        ("2000-02-29", "2000-02-29 00:00:00", 951_782_400),
        ("2000-03-01", "2000-03-01 00:00:00", 951_868_800),
        ("2026-11-23", "2026-11-23 00:00:00", 1_795_392_000),
        ("2026-11-23T14:02", "2026-11-23 14:02:00", 1_795_442_520),
        ("2026-11-23T14:02:11", "2026-11-23 14:02:11", 1_795_442_531),
        ("2026-11-23 14:02:11Z", "2026-11-23 14:02:11", 1_795_442_531),
        ("2100-02-28", "2100-02-28 00:00:00", 4_107_456_000),
        ("2100-03-01", "2100-03-01 00:00:00", 4_107_542_400u64),
    ] {
        let at = |unix_ms: u64| line(0, "grown", json!({ "taken_unix_ms": unix_ms }));
        let log = at((seconds * 1000).saturating_sub(1)) + &at(seconds * 1000 + 999);
        let text = run_with(&["incidents", "-", "--since", time], log.as_bytes()).text;
        let found: Vec<_> = text.lines().filter(|line| line.contains("grown")).collect();
        // Nothing is before 1970.
        let first = if seconds == 0 { 2 } else { 1 };
        assert_eq!(found.len(), first, "{time}: {text}");
        assert!(found[first - 1].starts_with(shown), "{time}: {text}");
    }
    let ever = format!("{}d", u64::MAX / 86_400_000);
    let log = line(1, "grown", Value::Null);
    let text = run_with(&["incidents", "-", "--since", &ever], log.as_bytes()).text;
    assert!(text.contains("grown"), "before 1970: {text}");
    let far = line(1, "grown", json!({ "taken_unix_ms": u64::MAX }));
    let answer = run_with(&["incidents", "-"], far.as_bytes());
    assert_eq!(answer.status, Some(0), "{}", answer.errors);
}

#[test]
fn what_is_no_time_is_refused() {
    for text in [
        "",
        "h",
        "-2h",
        "+2h",
        "2",
        "2 h",
        "2026",
        "2026-11",
        "2026-02-29",
        "2026-13-01",
        "2026-00-10",
        "2026-01-00",
        "2026-01-01T",
        "2026-01-01T24:00",
        "2026-01-01T10",
        "2026-01-01T10:00+02:00",
        "10:00",
        "1969-12-31",
        "99999999999-01-01",
        "99999999999999999999h",
        "é",
        "2é",
    ] {
        let answer = run_with(&["incidents", "-", &format!("--since={text}")], b"");
        assert_eq!(answer.status, Some(2), "`{text}`: {}", answer.text);
        assert!(answer.errors.contains("use `30m`"), "{}", answer.errors);
    }
}

/// Lines of other versions, of other programs, and of a writer that was killed.
#[test]
fn what_is_no_incident_is_counted() {
    let newer = line(
        5,
        "melted",
        json!({ "text": "a new kind\u{1b}[31m", "task": "dreaming", "field": [1] }),
    );
    let older =
        r#"{"taken_unix_ms":1795392000000,"step":1,"kind":"grown","text":"without a process"}"#;
    let torn = line(6, "exhausted", Value::Null);
    let log = format!(
        "{newer}{older}\n\nWARN something else\n{}",
        &torn[..torn.len() / 2]
    );
    let Answer { status, text, .. } = run_with(&["incidents", "-"], log.as_bytes());
    assert_eq!(status, Some(0));
    is_readable(&text);
    assert!(text.contains("step 5: other\n  a new kind"), "{text}");
    assert!(
        text.contains("step 1: grown\n  without a process"),
        "{text}"
    );
    assert!(
        text.ends_with("\n2 lines are not incidents and were skipped\n"),
        "{text}"
    );

    let Answer { text, errors, .. } = run_with(&["incidents", "-", "--json"], log.as_bytes());
    assert_eq!((text.lines().count(), errors.lines().count()), (2, 1));
    // Half of a character at the end.
    let bytes = [newer.as_bytes(), &[0xe2, 0x86]].concat();
    assert_eq!(run_with(&["incidents", "-"], &bytes).status, Some(0));
}

#[test]
fn several_logs_are_put_in_order_with_the_files_before_them() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, hours: &[u64]| {
        let lines: Vec<_> = hours
            .iter()
            .map(|hour| line(*hour, "grown", Value::Null))
            .collect();
        fs::write(folder.path().join(name), lines.concat()).unwrap();
        path(&folder.path().join(name)).to_owned()
    };
    let (first, _, other) = (write("a", &[3, 4]), write("a.1", &[1]), write("b", &[2, 5]));
    let Answer { text, .. } = run(&["incidents", &first, &other]);
    let steps: Vec<_> = text
        .lines()
        .filter_map(|line| line.split("training ").nth(1))
        .collect();
    assert_eq!(
        steps,
        ["1: grown", "2: grown", "3: grown", "4: grown", "5: grown"]
    );
}

#[test]
fn what_is_no_log_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        fs::write(folder.path().join(name), content).unwrap();
        path(&folder.path().join(name)).to_owned()
    };
    refuses(
        &["incidents", &file("text", "a\nb\n")],
        "no incident in 2 lines",
    );
    refuses(
        &["incidents", path(&folder.path().join("missing"))],
        "missing: ",
    );
    refuses(&["incidents", path(folder.path())], "not a regular file");
    #[cfg(unix)]
    refuses(&["incidents", "/dev/zero"], "not a regular file");
    #[cfg(unix)]
    if let Some(file) = super::unreadable(folder.path(), "secret") {
        refuses(&["incidents", &file], "ermission denied");
    }
    // Without an incident nothing is wrong.
    assert_eq!(
        run(&["incidents", &file("empty", "")]).text,
        "no exhaustion\n"
    );
    for (option, value) in [
        ("--kind", "melted"),
        ("--since", "yesterday"),
        ("--rank", "-1"),
    ] {
        assert_eq!(
            run(&["incidents", "-", option, value]).status,
            Some(2),
            "{option}"
        );
    }
}

/// Standard input may have no end.
#[cfg(unix)]
#[test]
fn endless_input_is_refused() {
    use std::process::{Command, Stdio};
    let zeros = fs::File::open("/dev/zero").unwrap();
    let mut command = Command::new(super::PROGRAM);
    let output = command
        .args(["incidents", "-"])
        .stdin(Stdio::from(zeros))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("cannot read standard input: it has more than 256.0 MiB"),
        "{text}"
    );
}
