//! The record of a run: the trace follows its format, the page needs nothing but a browser, and both tell what happened.

use std::collections::HashMap;
use std::io::{self, Write};

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{BatchProcessor, Fixed, Halving, Samples};
use candle_headroom::error::Phase;
use candle_headroom::testing::Faults;
use candle_headroom::{AccumulatingTrainer, AdaptiveTrainer, Error, Sgd, Timeline};
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
}

/// When the list is full, numbers are merged; their means stay between them.
#[test]
fn means_of_huge_numbers_are_finite() {
    let timeline = Timeline::new();
    for index in 0..20_000 {
        timeline.number("huge", f64::MAX);
        timeline.number("both", if index % 2 == 0 { f64::MAX } else { f64::MIN });
        timeline.number("same", 0.1);
    }
    let events = trace(&timeline);
    let counters = events.iter().filter(|event| event["ph"] == "C");
    for event in counters {
        let name = event["name"].as_str().unwrap();
        let value = event["args"].as_object().unwrap().values().next().unwrap();
        let value = value.as_f64().unwrap_or_else(|| panic!("{event}"));
        match name {
            "huge" => assert_eq!(value, f64::MAX),
            "same" => assert_eq!(value, 0.1),
            _ => assert!(value.is_finite(), "{event}"),
        }
    }
}

/// The caller's code runs while an error is displayed, and it may use the same record.
#[test]
fn an_error_that_uses_the_timeline_does_not_block_it() {
    #[derive(Debug)]
    struct Noting(Timeline);
    impl std::fmt::Display for Noting {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.0.note("displayed");
            f.write_str("an external error")
        }
    }
    impl std::error::Error for Noting {}
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let timeline = Timeline::new();
        let builder = BatchProcessor::builder(Fixed::new(4).unwrap());
        let mut processor = builder.observer(timeline.clone()).build();
        let x = Tensor::ones(8, DType::F32, &Device::Cpu).unwrap();
        let failed = processor.process(&x, |_, _| -> candle_core::Result<()> {
            Err(candle_core::Error::wrap(Noting(timeline.clone())))
        });
        assert!(failed.is_err());
        let events = trace(&timeline);
        let has = |text: &str| events.iter().any(|event| event.to_string().contains(text));
        sender
            .send((has("displayed"), has("an external error")))
            .unwrap();
    });
    let noted = receiver.recv_timeout(std::time::Duration::from_secs(60));
    assert_eq!(noted, Ok((true, true)), "the record is blocked");
}

#[test]
fn an_empty_record_can_be_written() {
    let timeline = Timeline::new();
    let mut page = Vec::new();
    timeline.write_page("nothing", &mut page).unwrap();
    assert!(trace(&timeline).iter().all(|event| event["ph"] == "M"));
}

/// The record is bounded, and merged steps keep their samples.
#[test]
fn a_long_run_is_kept_coarsely() {
    let timeline = Timeline::new();
    let mut processor = BatchProcessor::builder(Fixed::new(1).unwrap())
        .observer(timeline.clone())
        .build();
    for _ in 0..10_000 {
        processor.process(&Samples(&[1, 2]), |_, _| Ok(())).unwrap();
    }
    let events = trace(&timeline);
    assert!(events.len() < 4096 + 16_384 + 4096 + 10);
    let steps = events.iter().filter(|event| event["cat"] == "step");
    let samples: u64 = steps
        .map(|event| event["args"]["samples"].as_u64().unwrap())
        .sum();
    assert_eq!(samples, 20_000);
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

/// A failed step is recorded once, with its error, and the next one is recorded again.
#[test]
fn a_failed_step_is_recorded() {
    let timeline = Timeline::new();
    let mut processor = BatchProcessor::builder(Fixed::new(4).unwrap())
        .observer(timeline.clone())
        .build();
    let x = Samples(&[1, 2, 3, 4]);
    let failed = processor.process(&x, |_, _| -> candle_core::Result<()> {
        candle_core::bail!("no such file\nwith a second line")
    });
    assert!(failed.is_err());
    processor.process(&x, |_, _| Ok(())).unwrap();
    let events = trace(&timeline);
    let failed = events.iter().filter(|event| event["name"] == "failed");
    let failed: Vec<_> = failed.collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0]["args"]["text"], "no such file");
}

/// A lost device has a mark of its own kind.
#[test]
fn a_fault_is_recorded_as_one() {
    let timeline = Timeline::new();
    let builder = BatchProcessor::builder(Fixed::new(4).unwrap());
    let mut processor = builder.observer(timeline.clone()).build();
    let failed = processor.process(&Samples(&[1, 2]), |_, _| -> candle_core::Result<()> {
        Err(candle_headroom::testing::illegal_address())
    });
    assert!(matches!(failed, Err(Error::DeviceFault(_))));
    let data = data(&timeline);
    assert_eq!(data["marks"][0]["kind"], "fault");
    assert_eq!(data["totals"]["failures"], 1);
}

/// Evaluations are recorded apart from steps.
#[test]
fn evaluations_count_apart() {
    let timeline = Timeline::new();
    let w = Var::new(&[1f32, 2.], &Device::Cpu).unwrap();
    let optimizer = Sgd::builder(vec![w.clone()])
        .learning_rate(0.1)
        .build()
        .unwrap();
    let builder = AdaptiveTrainer::builder(optimizer);
    let mut trainer = builder.observer(timeline.clone()).build().unwrap();
    let x = Tensor::ones((8, 2), DType::F32, &Device::Cpu).unwrap();
    for _ in 0..2 {
        trainer
            .step(&x, |x, _| x.broadcast_mul(&w)?.sqr()?.mean_all())
            .unwrap();
        let evaluated = trainer.evaluate(&x, |x, _| match x.dim(0)? {
            0..=4 => Ok(()),
            _ => Err(candle_headroom::testing::out_of_memory()),
        });
        assert_eq!(evaluated.unwrap().results.len(), 2);
    }
    let data = data(&timeline);
    assert_eq!(
        (&data["totals"]["steps"], &data["totals"]["samples"]),
        (&2.into(), &16.into())
    );
    assert_eq!(data["evaluations"].as_array().unwrap().len(), 2);
    assert_eq!(data["steps"]["most"], serde_json::json!([8, 8]));
    assert_eq!(data["steps"]["reason"][0], "nothing bounds it");
    let mark = &data["marks"][0];
    assert_eq!(mark["step"], 1, "it came after the first step");
    assert!(
        mark["text"]
            .as_str()
            .unwrap()
            .starts_with("evaluation: micro-batch 8 → 4"),
        "{mark}"
    );
    let events = trace(&timeline);
    let spans = events.iter().filter(|event| event["cat"] == "evaluation");
    assert_eq!(spans.count(), 2);
}

/// The update of accumulated batches is not a step of its own.
#[test]
fn windows_of_batches_are_counted_by_their_batches() {
    let timeline = Timeline::new();
    let w = Var::new(&[1f32, 2.], &Device::Cpu).unwrap();
    let optimizer = Sgd::builder(vec![w.clone()])
        .learning_rate(0.1)
        .build()
        .unwrap();
    let builder = AccumulatingTrainer::builder(optimizer, 4);
    let mut trainer = builder.observer(timeline.clone()).build().unwrap();
    let x = Tensor::ones((8, 2), DType::F32, &Device::Cpu).unwrap();
    for _ in 0..8 {
        let loss = |x: Tensor, _: &_| x.broadcast_mul(&w)?.sqr()?.mean_all();
        trainer.step(&x, loss).unwrap();
    }
    let events = trace(&timeline);
    let steps = events.iter().filter(|event| event["cat"] == "step").count();
    assert_eq!((trainer.updates(), steps), (2, 8));
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
