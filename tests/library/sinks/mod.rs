//! Samples in files: whole lines, readable by others, and bounded.

#[cfg(unix)]
mod processes;

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use candle_headroom::distributed::Group;
use candle_headroom::monitor::{
    FileSink, Health, MonitorBuilder, Sample, SampleRecord, Sink, Source,
};
use candle_headroom::{ByteSize, Error, Monitor};
use serde_json::Value;

/// A folder of one test, removed when it is dropped.
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

fn sample_for(milliseconds: u64, builder: MonitorBuilder) -> Monitor {
    // SAFETY: there is no such file.
    let builder = unsafe { builder.library("/no/library") };
    let monitor = builder.interval(Duration::from_millis(2)).start().unwrap();
    std::thread::sleep(Duration::from_millis(milliseconds));
    monitor
}

/// A sample of the host.
fn host() -> (Source, Sample) {
    let monitor = sample_for(0, Monitor::builder());
    (monitor.sources()[0].clone(), monitor.latest()[0])
}

/// A clock before 1970 is written as 0, a value of 0 is written, and an unknown one is not.
#[test]
fn zero_is_a_value_and_unknown_is_none() {
    let folder = Folder::new("zero");
    let (source, mut sample) = host();
    sample.taken = UNIX_EPOCH - Duration::from_secs(5);
    (sample.used, sample.total, sample.health) = (Some(0), None, Health::Lost);
    let shown = sample.to_string();
    assert!(shown.starts_with("lost, 0 B used, "), "{shown}");
    let path = folder.0.join("samples.jsonl");
    let mut sink = FileSink::json_lines(&path).open().unwrap();
    sink.write(&source, &sample).unwrap();
    let line = fs::read_to_string(path).unwrap();
    let record: SampleRecord = serde_json::from_str(&line).unwrap();
    assert_eq!((record.taken_unix_ms, record.health), (0, Health::Lost));
    assert_eq!(record.values.get("used_bytes"), Some(&0));
    assert_eq!(record.values.get("total_bytes"), None);
}

#[test]
fn the_rank_is_written_where_there_is_one() {
    let folder = Folder::new("rank");
    let none: [(String, String); 0] = [];
    let alone = Group::builder().variables(none).open().unwrap();
    let monitor = sample_for(0, Monitor::builder().group(&alone));
    assert_eq!(monitor.sources()[0].rank, None, "a group of one");
    let (mut source, sample) = host();
    for rank in [None, Some(3)] {
        source.rank = rank;
        let path = folder.0.join(format!("{rank:?}"));
        let mut sink = FileSink::json_lines(&path).open().unwrap();
        sink.write(&source, &sample).unwrap();
        let json = fs::read_to_string(path).unwrap();
        assert_eq!(json.contains("\"rank\":3"), rank.is_some(), "{json}");
        let record: SampleRecord = serde_json::from_str(&json).unwrap();
        assert_eq!(record.rank, rank);
        assert!(!record.values.contains_key("rank"));
    }
}

#[test]
fn files_rotate_and_are_never_longer_than_asked_for() {
    let folder = Folder::new("rotated");
    let (source, sample) = host();
    let path = folder.0.join("jsonl");
    let former = folder.0.join("jsonl.1");
    let mut sink = FileSink::json_lines(&path)
        .rotate_at(ByteSize::kib(1))
        .open()
        .unwrap();
    for _ in 0..20 {
        sink.write(&source, &sample).unwrap();
        assert!(fs::metadata(&path).unwrap().len() <= 1024);
    }
    for path in [&path, &former] {
        let text = fs::read_to_string(path).unwrap();
        assert!(text.len() <= 1024 && text.ends_with('\n'));
        assert!(text.starts_with('{'), "{text}");
    }
    // A file that was moved away is begun anew.
    fs::remove_file(&path).unwrap();
    (0..20).for_each(|_| sink.write(&source, &sample).unwrap());
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

/// Hand-made fragments of a line, within a character too; and a file of somebody else, which loses nothing.
#[test]
fn opening_removes_an_incomplete_last_line() {
    let folder = Folder::new("torn");
    let (source, sample) = host();
    let path = folder.0.join("torn");
    let open = || FileSink::json_lines(&path).open().unwrap();
    let mut sink = open();
    (0..2).for_each(|_| sink.write(&source, &sample).unwrap());
    let whole = fs::read_to_string(&path).unwrap();
    for cut in [1, 7, 40, whole.len() - 1] {
        fs::write(&path, &whole[..whole.len() - cut]).unwrap();
        open().write(&source, &sample).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let is_whole = |line: &str| whole.lines().any(|whole| whole == line);
        assert!(text.ends_with('\n') && text.lines().all(is_whole), "{text}");
    }
    let path = folder.0.join("notes");
    fs::write(&path, "first\nnot a sample").unwrap();
    let mut sink = FileSink::json_lines(&path).open().unwrap();
    sink.write(&source, &sample).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("first\nnot a sample\n{"), "{text}");
}

#[test]
fn a_full_disk_is_counted_and_sampling_goes_on() {
    let (source, sample) = host();
    let mut sink = FileSink::json_lines("/dev/full").open().unwrap();
    let error = sink.write(&source, &sample).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    let sink = FileSink::json_lines("/dev/full").open().unwrap();
    let monitor = sample_for(50, Monitor::builder().sink(sink));
    let (failed, taken) = (monitor.failed_writes(), monitor.history(0).len());
    assert!(failed > 2 && taken > 2, "{failed} of {taken}");
}

#[test]
fn a_path_that_cannot_be_written_is_a_typed_error() {
    let Err(Error::Output(error)) = FileSink::json_lines("/no/such/folder/x").open() else {
        panic!("there is no such folder")
    };
    assert!(error.target.starts_with("/no/such"));
}
