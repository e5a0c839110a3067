//! A trace is read back as what was recorded.

use std::fs;
use std::path::Path;

use candle_headroom::timeline::SavedTrace;
use candle_headroom::{Error, Timeline};
use serde_json::Value;

use super::{data_of, recorded};

/// The data of the page of a trace that was read back.
fn read_back(path: &Path) -> Value {
    let mut page = Vec::new();
    let saved = SavedTrace::read(path).unwrap();
    saved.write_page("", &mut page).unwrap();
    data_of(page)
}

/// Compares all but the time until which a page goes.
fn assert_same(timeline: &Timeline) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    timeline.save_trace(&path).unwrap();
    let (mut before, mut after) = (super::data(timeline), read_back(&path));
    let now = |data: &mut Value| data["now"].take().as_f64().unwrap();
    // The page was written a moment later.
    let apart = now(&mut before) - now(&mut after);
    assert!((0. ..60e6).contains(&apart), "{apart} µs");
    assert_eq!(before, after);
}

#[test]
fn failures_numbers_and_notes_come_back() {
    let timeline = recorded();
    timeline.note("a note");
    for value in [f64::MAX, f64::MIN_POSITIVE, 0.1, -0.] {
        timeline.number("quality", value);
    }
    assert_same(&timeline);
    assert_same(&Timeline::new());
}

#[test]
fn a_saved_page_replaces_a_file() -> candle_headroom::Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    recorded().save_trace(at("run.json"))?;
    fs::write(at("run.html"), "before").unwrap();
    let saved = SavedTrace::read(at("run.json"))?;
    saved.save_page("run", at("run.html"))?;
    assert!(
        fs::read_to_string(at("run.html"))
            .unwrap()
            .starts_with("<!doctype html>")
    );
    let Err(Error::Output(error)) = saved.save_page("run", at("missing/run.html")) else {
        panic!("there is no such folder");
    };
    assert_eq!(
        (error.action, error.kind),
        ("write", std::io::ErrorKind::NotFound)
    );
    Ok(())
}

/// Every beginning of a trace, and every row of another kind, is a typed error.
#[test]
fn damaged_traces_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    recorded().save_trace(&path).unwrap();
    let whole = fs::read_to_string(&path).unwrap();
    let refused = |content: &str| {
        fs::write(&path, content).unwrap();
        let Err(Error::Output(error)) = SavedTrace::read(&path) else {
            panic!("{content} was read");
        };
        assert_eq!(
            (error.action, error.kind),
            ("read", std::io::ErrorKind::InvalidData)
        );
        assert!(
            error
                .to_string()
                .contains("not a whole trace of a `Timeline`"),
            "{error}"
        );
    };
    let end = whole.trim_end().len();
    for length in (0..end).step_by(end / 50) {
        refused(&whole[..length]);
    }
    for field in [
        "\"micro_batches\":",
        "\"succeeded\":",
        "\"traceEvents\":",
        "\"records\":",
    ] {
        refused(&whole.replace(field, "\"other\":"));
    }
    // A field that this version does not know is none of its business.
    fs::write(
        &path,
        whole.replace("\"micro_batches\":", "\"new\":1,\"micro_batches\":"),
    )
    .unwrap();
    SavedTrace::read(&path).unwrap();
}
