//! The record of a run: the trace follows its format, the page needs nothing but a browser, and both tell what happened.

mod ranks;
mod recorded;
mod saved;

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{Halving, Recompute};
use candle_headroom::distributed::Group;
use candle_headroom::error::Phase;
use candle_headroom::nn::recompute;
use candle_headroom::testing::Faults;
use candle_headroom::{AdaptiveTrainer, Error, Sgd, Timeline};
use serde_json::Value;

/// Three steps of 8 samples; memory runs out twice in the second.
fn recorded() -> Timeline {
    let timeline = Timeline::new();
    let w = Var::new(&[1f32, 2.], &Device::Cpu).unwrap();
    let optimizer = Sgd::builder(vec![w.clone()])
        .learning_rate(0.1)
        .build()
        .unwrap();
    let mut trainer = AdaptiveTrainer::builder(optimizer)
        .policy(Halving::builder().start(4).build().unwrap())
        .observer(timeline.clone())
        .build()
        .unwrap();
    let x = Tensor::ones((8, 2), DType::F32, &Device::Cpu).unwrap();
    for step in 0..3 {
        let armed = (step == 1).then(|| Faults::in_phase(Phase::Backward, 0).times(2).arm());
        let report = trainer.step(&x, |x, _| x.broadcast_mul(&w)?.sqr()?.mean_all());
        assert_eq!(report.unwrap().retries, if step == 1 { 2 } else { 0 });
        drop(armed);
        timeline.number("loss", 1. / f64::from(step));
    }
    timeline
}

fn trace(timeline: &Timeline) -> Vec<Value> {
    let mut bytes = Vec::new();
    timeline.write_trace(&mut bytes).unwrap();
    let trace: Value = serde_json::from_slice(&bytes).unwrap();
    trace["traceEvents"].as_array().unwrap().clone()
}

/// The data of the page's script.
fn data(timeline: &Timeline) -> Value {
    let mut page = Vec::new();
    timeline.write_page("", &mut page).unwrap();
    data_of(page)
}

fn data_of(page: Vec<u8>) -> Value {
    let page = String::from_utf8(page).unwrap();
    let data = page.split("id=\"data\">").nth(1).unwrap();
    serde_json::from_str(data.split("</script>").next().unwrap()).unwrap()
}

/// Google's "Trace Event Format": complete events, counters, instants and metadata.
#[test]
fn the_trace_is_in_the_format() {
    let events = trace(&recorded());
    assert!(events.len() > 30);
    let mut ends: HashMap<u64, f64> = HashMap::new();
    for event in &events {
        let field = |name: &str| &event[name];
        assert!(field("name").is_string(), "{event}");
        assert!(field("pid").is_u64() && field("tid").is_u64(), "{event}");
        let at = field("ts").as_f64().unwrap();
        assert!(at >= 0., "{event}");
        match field("ph").as_str().unwrap() {
            "X" => {
                let duration = field("dur").as_f64().unwrap();
                assert!(duration >= 0., "{event}");
                // Viewers would nest spans of one row that overlap.
                let end = ends.entry(field("tid").as_u64().unwrap()).or_default();
                assert!(at >= *end - 1e-3, "{event} begins before {end}");
                *end = at + duration;
            }
            "C" => {
                let values = field("args").as_object().unwrap();
                assert!(
                    !values.is_empty() && values.values().all(Value::is_number),
                    "{event}"
                );
            }
            "i" => assert!(
                matches!(field("s").as_str(), Some("g" | "p" | "t")),
                "{event}"
            ),
            "M" => assert!(field("args")["name"].is_string(), "{event}"),
            other => panic!("unexpected event `{other}`"),
        }
    }
}

#[test]
fn the_trace_tells_what_happened() {
    let events = trace(&recorded());
    let count = |kind: &str, category: &str| {
        let of = |event: &&Value| event["ph"] == kind && event["cat"] == category;
        events.iter().filter(of).count()
    };
    assert_eq!(count("X", "step"), 3);
    // At least two in each step.
    assert!(count("X", "micro-batch") >= 6);
    let failed = |event: &&Value| event["args"]["succeeded"] == false;
    let failed: Vec<_> = events.iter().filter(failed).collect();
    assert_eq!(failed.len(), 2);
    assert!(failed.iter().all(|event| event["name"] == "backward"));
    let marks = events.iter().filter(|event| event["ph"] == "i");
    let marks: Vec<_> = marks.filter(|event| event["name"] == "exhausted").collect();
    assert_eq!(marks.len(), 2);
    assert_eq!(marks[0]["args"]["step"], 2);
    let text = marks[0]["args"]["detail"].as_str().unwrap();
    assert!(text.contains("out of device memory in backward"), "{text}");
    // 1/0 is not finite and ignored.
    let losses = events.iter().filter(|event| event["name"] == "loss");
    assert_eq!(losses.count(), 2);
}

#[test]
fn the_page_is_one_file_without_requests() {
    let mut page = Vec::new();
    let title = "<b> & </script><script>alert(1)</script>";
    let timeline = recorded();
    timeline.number("</script>", 1.);
    timeline.write_page(title, &mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    assert!(!page.contains("alert(1)</script>"), "the title is text");
    assert_eq!(page.matches("</script>").count(), 2, "the data is text");
    assert!(page.contains("default-src 'none'"));
    for outside in ["src=\"", "href=\"", "@import", "url(http", "fetch("] {
        assert!(!page.contains(outside), "{outside}");
    }
    let data = data(&timeline);
    assert_eq!(data["totals"]["steps"], 3);
    assert_eq!(data["totals"]["samples"], 24);
    assert_eq!(data["totals"]["exhaustions"], 2);
    assert_eq!(data["steps"]["limit"][0], Value::Null, "unknown, so not 0");
    assert!(data.get("ranks").is_none(), "one process");
}

#[test]
fn an_empty_record_can_be_written() {
    let timeline = Timeline::new();
    let mut page = Vec::new();
    timeline.write_page("nothing", &mut page).unwrap();
    assert!(trace(&timeline).iter().all(|event| event["ph"] == "M"));
}

#[test]
fn a_failure_to_write_names_the_path() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let timeline = recorded();
    for error in [
        timeline.write_trace(&mut Full).unwrap_err(),
        timeline.write_page("", &mut Full).unwrap_err(),
    ] {
        let Error::Output(error) = error else {
            panic!("{error}")
        };
        assert_eq!(error.kind, io::ErrorKind::StorageFull);
    }
    let Err(Error::Output(error)) = timeline.save_page("", "/no/such/folder/page.html") else {
        panic!("there is no such folder")
    };
    assert!(
        error.to_string().contains("/no/such/folder/page.html"),
        "{error}"
    );
}

/// In a group of one, the files are those of a process alone, and nobody waits.
#[test]
fn a_group_of_one_has_a_plain_page_and_trace() {
    let none: [(String, String); 0] = [];
    let alone = Group::builder().variables(none).open().unwrap();
    let timeline = recorded();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.7");
    let times = timeline.save_all(&alone, "one", &path).unwrap();
    let text = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let saved: Value = serde_json::from_str(&text("run.7.json")).unwrap();
    assert_eq!(saved["traceEvents"], Value::from(trace(&timeline)));
    assert!(text("run.7.json").contains("candle-headroom"));
    assert!(!text("run.7.html").contains("\"ranks\":{"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    assert_eq!(times.to_string(), "no rank keeps the others waiting");
    assert_eq!((times.ranks.len(), times.slowest()), (1, None));
    let time = &times.ranks[0];
    assert_eq!((time.exhaustions, time.waiting), (2, Duration::ZERO));
    assert!(time.computing > Duration::ZERO && time.computing <= time.total);
    let missing = folder.path().join("none").join("run");
    let error = timeline.save_all(&alone, "one", &missing).unwrap_err();
    assert!(matches!(error, Error::Output(_)), "{error}");
}

/// Notes are on the page and in the trace; the latest 64 are kept, one line of each.
#[test]
fn notes_are_kept_with_their_time() {
    let timeline = Timeline::new();
    for i in 0..70 {
        timeline.note(&format!("note {i}\nand more"));
    }
    let data = data(&timeline);
    let notes = data["notes"].as_array().unwrap();
    assert_eq!((notes.len(), &notes[63]["text"]), (64, &"note 69".into()));
    assert!(notes.is_sorted_by(|a, b| a["at"].as_f64() <= b["at"].as_f64()));
    let events = trace(&timeline);
    let notes = events.iter().filter(|event| event["name"] == "note");
    assert_eq!(notes.count(), 64);
}

/// A page replaces a file as a whole and keeps its mode; a new one gets the process's default mode.
#[test]
#[cfg(unix)]
fn a_page_replaces_a_file_and_keeps_its_mode() {
    use std::fs;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    let folder = std::env::temp_dir().join(format!("headroom-page-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let (page, plain) = (folder.join("page.html"), folder.join("plain"));
    fs::write(&plain, "").unwrap();
    Timeline::new().save_page("", &page).unwrap();
    assert_eq!(mode(&page), mode(&plain), "the umask's");
    fs::set_permissions(&page, fs::Permissions::from_mode(0o640)).unwrap();
    Timeline::new().save_page("", &page).unwrap();
    assert_eq!(mode(&page), 0o640);
    Timeline::new().save_page("", "/dev/null").unwrap();
    // A socket can neither be written nor replaced.
    let socket = folder.join("socket");
    let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    Timeline::new().save_page("", &socket).unwrap_err();
    assert!(fs::metadata(&socket).unwrap().file_type().is_socket());
    assert_eq!(
        fs::read_dir(&folder).unwrap().count(),
        3,
        "nothing is left behind"
    );
    fs::remove_dir_all(folder).unwrap();
}

/// Recomputation lies within the backward pass, whose own time is what is left.
#[test]
fn recomputed_regions_are_a_part_of_the_backward_pass() {
    let timeline = Timeline::new();
    let w = Var::new(&[1f32, 2.], &Device::Cpu).unwrap();
    let optimizer = Sgd::builder(vec![w.clone()]).build().unwrap();
    let mut trainer = AdaptiveTrainer::builder(optimizer)
        .recompute(Recompute::Always)
        .observer(timeline.clone())
        .build()
        .unwrap();
    let x = Tensor::ones((8, 2), DType::F32, &Device::Cpu).unwrap();
    for _ in 0..2 {
        let stepped = trainer.step(&x, |x, _| {
            let w = w.clone();
            recompute(&x, move |x| x.broadcast_mul(&w))?
                .sqr()?
                .mean_all()
        });
        stepped.unwrap();
    }
    let events = trace(&timeline);
    let span = |event: &Value| {
        let began = event["ts"].as_f64().unwrap();
        (began, began + event["dur"].as_f64().unwrap())
    };
    let named = |name: &str| -> Vec<_> {
        let named = events.iter().filter(|event| event["name"] == name);
        named.map(span).collect()
    };
    let (backward, recomputed) = (named("backward"), named("recompute"));
    assert_eq!((backward.len(), recomputed.len()), (2, 2));
    for (outer, inner) in backward.iter().zip(&recomputed) {
        // Written with a thousandth of a microsecond.
        assert!(
            outer.0 <= inner.0 + 0.002 && inner.1 <= outer.1 + 0.002,
            "{outer:?} {inner:?}"
        );
    }
    let data = data(&timeline);
    let totals = data["totals"]["phases"].as_array().unwrap();
    let total = |name: &str| {
        let total = totals.iter().find(|total| total["phase"] == name).unwrap();
        total["time"].as_f64().unwrap()
    };
    let whole: f64 = backward.iter().map(|(began, ended)| ended - began).sum();
    let off = total("backward") + total("recompute") - whole;
    assert!(off.abs() < 0.01, "{off}");
    assert!(total("backward") > 0. && total("recompute") > 0.);
    let reason = data["steps"]["reason"][1].as_str().unwrap();
    assert!(reason.contains("regions recomputed: as asked"), "{reason}");
}
