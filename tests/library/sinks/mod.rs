//! Samples in files: whole lines, readable by others, and bounded.

#[cfg(unix)]
mod processes;

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use candle_headroom::distributed::Group;
use candle_headroom::monitor::{
    FileSink, FileSinkBuilder, Health, MonitorBuilder, Sample, SampleRecord, Sink, Source,
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

const BOTH: [fn(PathBuf) -> FileSinkBuilder; 2] = [FileSink::csv, FileSink::json_lines];

#[test]
fn csv_is_appended_to_and_has_one_header() {
    let folder = Folder::new("csv");
    let path = folder.0.join("samples.csv");
    for _ in 0..2 {
        let sink = FileSink::csv(&path).open().unwrap();
        drop(sample_for(50, Monitor::builder().sink(sink)));
    }
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.matches("taken_unix_ms").count(), 1);
    assert!(text.lines().count() > 4 && text.ends_with('\n'));
    let columns = text.lines().next().unwrap().split(',').count();
    assert!(
        text.lines().all(|line| line.split(',').count() == columns),
        "{text}"
    );
    assert!(text.contains(",host,0,,,good,"), "{text}");
}

#[test]
fn a_name_with_commas_and_quotes_stays_one_field() {
    let folder = Folder::new("quotes");
    let path = folder.0.join("samples.csv");
    let (mut source, sample) = host();
    source.name = "GPU, \"A\"".to_owned();
    let mut sink = FileSink::csv(&path).open().unwrap();
    sink.write(&source, &sample).unwrap();
    let mut reader = csv::Reader::from_path(&path).unwrap();
    let record = reader.records().next().unwrap().unwrap();
    assert_eq!(&record[1], "GPU, \"A\"");
}

/// A clock before 1970 is written as 0, a value of 0 is written, and an unknown one is not.
#[test]
fn zero_is_a_value_and_unknown_is_none() {
    let folder = Folder::new("zero");
    let (source, mut sample) = host();
    sample.taken = UNIX_EPOCH - Duration::from_secs(5);
    (sample.used, sample.total, sample.health) = (Some(0), None, Health::Lost);
    let shown = sample.to_string();
    assert!(shown.starts_with("lost, 0 B of n/a used"), "{shown}");
    for (name, builder) in ["csv", "jsonl"].into_iter().zip(BOTH) {
        let mut sink = builder(folder.0.join(name)).open().unwrap();
        sink.write(&source, &sample).unwrap();
    }
    let line = fs::read_to_string(folder.0.join("jsonl")).unwrap();
    let record: SampleRecord = serde_json::from_str(&line).unwrap();
    assert_eq!((record.taken_unix_ms, record.health), (0, Health::Lost));
    assert_eq!(record.values.get("used_bytes"), Some(&0));
    assert_eq!(record.values.get("total_bytes"), None);
    let csv = fs::read_to_string(folder.0.join("csv")).unwrap();
    let line = csv.lines().nth(1).unwrap();
    assert!(line.starts_with("0,host,0,,,lost,"), "{line}");
    // Total and used follow the time that the sample took.
    let values: Vec<&str> = line.split(',').skip(7).take(2).collect();
    assert_eq!(values, ["", "0"]);
}

/// The last column is empty for a process alone, which JSON leaves out.
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
        let line = |name: &str, builder: fn(PathBuf) -> FileSinkBuilder| {
            let path = folder.0.join(format!("{name}-{rank:?}"));
            let sink = builder(path.clone()).open();
            sink.unwrap().write(&source, &sample).unwrap();
            fs::read_to_string(path).unwrap()
        };
        let csv = line("csv", FileSink::csv);
        assert!(csv.lines().all(|line| line.split(',').count() == 25));
        assert_eq!(csv.matches(",rank\n").count(), 1, "{csv}");
        let last = csv.lines().last().unwrap().rsplit(',').next().unwrap();
        assert_eq!(last, rank.map(|rank| rank.to_string()).unwrap_or_default());
        let json = line("json", FileSink::json_lines);
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
    for (name, builder) in ["csv", "jsonl"].into_iter().zip(BOTH) {
        let path = folder.0.join(name);
        let former = folder.0.join(format!("{name}.1"));
        let mut sink = builder(path.clone())
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
            let begins = if name == "csv" { "taken_unix_ms" } else { "{" };
            assert!(text.starts_with(begins), "{text}");
        }
        // A file that was moved away is begun anew.
        fs::remove_file(&path).unwrap();
        (0..20).for_each(|_| sink.write(&source, &sample).unwrap());
        assert!(fs::metadata(&path).unwrap().len() <= 1024);
    }
    let text = fs::read_to_string(folder.0.join("jsonl")).unwrap();
    for line in text.lines() {
        let sample: Value = serde_json::from_str(line).unwrap();
        assert_eq!(
            (&sample["source"], &sample["health"]),
            (&"host".into(), &"good".into())
        );
        assert!(sample["total_bytes"].is_u64() && sample.get("temperature_celsius").is_none());
    }
}

/// Hand-made fragments: of the header, of a line, within a character; and a file of somebody else, which loses nothing.
#[test]
fn opening_removes_an_incomplete_last_line() {
    let folder = Folder::new("torn");
    let (source, sample) = host();
    for (index, builder) in BOTH.into_iter().enumerate() {
        let path = folder.0.join(format!("torn-{index}"));
        let mut sink = builder(path.clone()).open().unwrap();
        let header = fs::read(&path).unwrap();
        (0..2).for_each(|_| sink.write(&source, &sample).unwrap());
        let whole = fs::read(&path).unwrap();
        for cut in [1, 7, 40, whole.len() - header.len() - 1, whole.len() - 1] {
            fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            let mut sink = builder(path.clone()).open().unwrap();
            sink.write(&source, &sample).unwrap();
            let text = fs::read_to_string(&path).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            let full = std::str::from_utf8(&whole).unwrap();
            assert!(
                lines
                    .iter()
                    .all(|line| full.lines().any(|whole| whole == *line)),
                "{text}"
            );
            assert!(
                text.ends_with('\n') && text.as_bytes().starts_with(&header),
                "{text}"
            );
        }
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
    for builder in BOTH {
        let mut sink = builder("/dev/full".into()).open();
        // CSV begins with a header, for which there is no room.
        if let Ok(sink) = &mut sink {
            let error = sink.write(&source, &sample).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::StorageFull);
        }
    }
    let sink = FileSink::json_lines("/dev/full").open().unwrap();
    let monitor = sample_for(50, Monitor::builder().sink(sink));
    let (failed, taken) = (monitor.failed_writes(), monitor.history(0).len());
    assert!(failed > 2 && taken > 2, "{failed} of {taken}");
}

#[test]
fn a_path_that_cannot_be_written_is_a_typed_error() {
    for builder in BOTH {
        let Err(Error::Output(error)) = builder("/no/such/folder/x".into()).open() else {
            panic!("there is no such folder")
        };
        assert!(error.target.starts_with("/no/such"));
    }
}
