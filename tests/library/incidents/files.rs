//! Full disks, rotation, and lines that were cut.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

#[test]
fn a_full_disk_stops_nothing_and_is_reported() {
    let log = IncidentLog::builder("/dev/full").open().unwrap();
    step(&log);
    assert_eq!(log.lost(), 4);
    assert_eq!(log.failure().unwrap().kind, std::io::ErrorKind::StorageFull);
    let Err(Error::Output(error)) = IncidentLog::builder("/no/such/folder/x").open() else {
        panic!("there is no such folder")
    };
    assert_eq!(error.target, "/no/such/folder/x");
    for path in ["/no/such/folder/x", "/dev/zero"] {
        assert!(matches!(Incidents::read(path), Err(Error::Output(_))));
    }
}

#[test]
fn the_file_is_bounded_and_the_latest_are_kept() {
    let path = file("bounded");
    let former = PathBuf::from(format!("{}.1", path.display()));
    let log = IncidentLog::builder(&path)
        .rotate_at(ByteSize::kib(8))
        .open()
        .unwrap();
    for _ in 0..20 {
        step(&log);
    }
    for path in [&path, &former] {
        assert!(fs::metadata(path).unwrap().len() <= 8192);
    }
    let incidents = Incidents::read(&path).unwrap();
    assert!(incidents.list.len() > 8, "{}", incidents.list.len());
    assert_eq!(incidents.unreadable, 0);
    assert_eq!(log.lost(), 0);
    fs::remove_file(path).unwrap();
    fs::remove_file(former).unwrap();
}

#[test]
fn an_incomplete_last_line_is_skipped_and_removed_when_the_log_is_opened() {
    let path = file("power-cut");
    step(&IncidentLog::builder(&path).open().unwrap());
    let mut text = fs::read_to_string(&path).unwrap();
    text.truncate(text.len() - 40);
    fs::write(&path, &text).unwrap();
    let incidents = Incidents::read(&path).unwrap();
    assert_eq!((incidents.list.len(), incidents.unreadable), (3, 1));
    step(&IncidentLog::builder(&path).open().unwrap());
    let incidents = Incidents::read(&path).unwrap();
    assert_eq!((incidents.list.len(), incidents.unreadable), (7, 0));
    fs::remove_file(path).unwrap();
}

/// Failures to write are logged once, and the subscriber may ask the log while it receives the event.
#[test]
fn a_failure_to_write_is_logged_once_by_a_subscriber_that_asks_the_log() {
    use tracing::{Event, Metadata, span};

    struct Counter(Arc<AtomicUsize>, IncidentLog);
    impl tracing::Subscriber for Counter {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target().starts_with("candle_headroom::incident")
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, _: &Event<'_>) {
            assert!(self.1.lost() > 0 && self.1.failure().is_some());
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    let told = Arc::new(AtomicUsize::new(0));
    // With a single subscriber, `tracing` caches another test's lack of interest in a call site for this one too.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let log = IncidentLog::builder("/dev/full").open().unwrap();
    tracing::subscriber::with_default(Counter(Arc::clone(&told), log.clone()), || {
        (0..3).for_each(|_| step(&log));
        assert_eq!(log.lost(), 12);
    });
    assert_eq!(told.load(Ordering::Relaxed), 1);
}

/// The process aborts in the middle of its work; each line is there.
#[test]
fn what_happened_before_the_process_was_killed_is_in_the_file() {
    const CHILD: &str = "HEADROOM_TEST_KILLED";
    if let Some(path) = std::env::var_os(CHILD) {
        step(&IncidentLog::builder(path).open().unwrap());
        std::process::abort();
    }
    let path = file("killed");
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([
        "--exact",
        "incidents::files::what_happened_before_the_process_was_killed_is_in_the_file",
    ]);
    let output = child.env(CHILD, &path).output().unwrap();
    assert!(output.status.code().is_none(), "{output:?}");
    let incidents = Incidents::read(&path).unwrap();
    assert_eq!((incidents.list.len(), incidents.unreadable), (4, 0));
    fs::remove_file(path).unwrap();
}

/// A line that ends within a character, in the latest file and in the one before.
#[test]
fn a_line_that_ends_within_a_character_costs_itself_alone() {
    let folder = std::env::temp_dir().join(format!("incidents-cut-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("log");
    let line = r#"{"taken_unix_ms":0,"step":3,"kind":"grown","text":"8 → 16"}"#;
    let cut = &line.as_bytes()[..line.find('→').unwrap() + 1];
    let written = [line.as_bytes(), b"\n", cut].concat();
    for former in [false, true] {
        std::fs::write(&path, &written).unwrap();
        if former {
            std::fs::write(folder.join("log.1"), &written).unwrap();
        }
        let read = Incidents::read(&path).unwrap();
        let files = 1 + usize::from(former);
        assert_eq!((read.list.len(), read.unreadable), (files, files));
    }
    std::fs::remove_file(&path).unwrap();
    // A kill between renaming the file and creating the new one leaves the former alone.
    assert_eq!(Incidents::read(&path).unwrap().list.len(), 1);
    std::fs::remove_file(folder.join("log.1")).unwrap();
    let missing = Incidents::read(&path).unwrap_err().to_string();
    assert!(missing.starts_with("cannot read "), "{missing}");
    std::fs::remove_dir_all(folder).unwrap();
}
