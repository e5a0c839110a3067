//! Samples in files: whole lines, readable by others, within their bounds.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use candle_headroom::monitor::{CsvSink, JsonLinesSink};
use candle_headroom::{ByteSize, Error, Monitor};
use serde_json::Value;

/// A folder of this test's own, which goes away with the value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("headroom-sinks-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn watch_for(milliseconds: u64, builder: candle_headroom::monitor::MonitorBuilder) -> Monitor {
    // SAFETY: there is no such library.
    let builder = unsafe { builder.library("/no/library") }.interval(Duration::from_millis(2));
    let monitor = builder.start().unwrap();
    std::thread::sleep(Duration::from_millis(milliseconds));
    monitor
}

#[test]
fn csv_is_gone_on_with_and_has_one_header() {
    let folder = Folder::new("csv");
    let path = folder.0.join("samples.csv");
    for _ in 0..2 {
        drop(watch_for(
            50,
            Monitor::builder().sink(CsvSink::open(&path).unwrap()),
        ));
    }
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.matches("taken_unix_ms").count(), 1);
    assert!(text.lines().count() > 4 && text.ends_with('\n'));
    let columns = text.lines().next().unwrap().split(',').count();
    assert!(
        text.lines().all(|line| line.split(',').count() == columns),
        "{text}"
    );
    assert!(text.contains("\"host\",0,,,good,"), "{text}");
}

#[test]
fn json_lines_rotate_and_each_is_an_object() {
    let folder = Folder::new("jsonl");
    let path = folder.0.join("samples.jsonl");
    let sink = JsonLinesSink::rotating(&path, ByteSize::kib(1)).unwrap();
    drop(watch_for(100, Monitor::builder().sink(sink)));
    for path in [path.clone(), folder.0.join("samples.jsonl.1")] {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.len() <= 1024);
        for line in text.lines() {
            let sample: Value = serde_json::from_str(line).unwrap();
            assert_eq!(
                (&sample["source"], &sample["health"]),
                (&"host".into(), &"good".into())
            );
            assert!(sample["total_bytes"].is_u64() && sample.get("temperature_celsius").is_none());
        }
    }
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 2);
}

#[test]
fn a_full_disk_is_counted_and_watching_goes_on() {
    let sink = JsonLinesSink::open("/dev/full").unwrap();
    let monitor = watch_for(50, Monitor::builder().sink(sink));
    let (failed, taken) = (monitor.failed_writes(), monitor.history(0).len());
    assert!(failed > 2 && taken > 2, "{failed} of {taken}");
}

#[test]
fn a_path_that_cannot_be_written_is_told_by_type() {
    for error in [
        CsvSink::open("/no/such/folder/x.csv").unwrap_err(),
        JsonLinesSink::open("/no/such/folder/x.jsonl").unwrap_err(),
    ] {
        let Error::Output(error) = error else {
            panic!("{error}")
        };
        assert!(error.path.is_some_and(|path| path.starts_with("/no/such")));
    }
}
