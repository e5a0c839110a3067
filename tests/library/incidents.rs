//! The incident log: complete, in order, bounded, and never in the way of the work.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{
    BatchPolicy, BatchProcessor, Completed, Failed, Halving, Plan, Reason, Samples, Task,
};
use candle_headroom::error::{Cause, Phase, Resource};
use candle_headroom::incident::{IncidentKind, IncidentLog, Incidents};
use candle_headroom::testing::{self, Faults};
use candle_headroom::{AdaptiveTrainer, ByteSize, Error, Monitor, Predictive, Sgd};

fn file(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("headroom-{}-{name}.jsonl", std::process::id()));
    let _ = fs::remove_file(&path);
    path
}

/// A step in which memory runs out twice, in the backward pass.
fn step(log: &IncidentLog) {
    let w = Var::new(&[1f32, 2.], &Device::Cpu).unwrap();
    let optimizer = Sgd::builder(vec![w.clone()])
        .learning_rate(0.1)
        .build()
        .unwrap();
    let builder = AdaptiveTrainer::builder(optimizer);
    let builder = builder
        .policy(Halving::builder().start(8).build().unwrap())
        .observer(log.clone());
    let mut trainer = builder.build().unwrap();
    let x = Tensor::ones((8, 2), DType::F32, &Device::Cpu).unwrap();
    let _armed = Faults::in_phase(Phase::Backward, 0).times(2).arm();
    let report = trainer.step(&x, |x, _| x.broadcast_mul(&w)?.sqr()?.mean_all());
    assert_eq!(report.unwrap().retries, 2);
}

#[test]
fn each_exhaustion_and_what_came_of_it() {
    let path = file("each");
    let monitor = Monitor::builder()
        .interval(Duration::from_millis(5))
        .start()
        .unwrap();
    let log = IncidentLog::builder(&path)
        .monitor(&monitor)
        .open()
        .unwrap();
    step(&log);
    let incidents = Incidents::read(&path).unwrap();
    let kinds: Vec<_> = incidents
        .list
        .iter()
        .map(|incident| incident.kind)
        .collect();
    use IncidentKind::{Exhausted, Retried};
    assert_eq!(kinds, [Exhausted, Retried, Exhausted, Retried]);
    let first = &incidents.list[0];
    assert_eq!((first.step, incidents.unreadable), (1, 0));
    let exhausted = first.exhausted.as_ref().unwrap();
    assert_eq!(exhausted.phase, Some(Phase::Backward));
    assert_eq!(exhausted.resource, Some(Resource::DeviceMemory));
    assert_eq!(exhausted.samples, Some(0..8));
    assert!(exhausted.remedies.len() >= 2);
    assert_eq!(exhausted.bytes.limit, None, "unknown, so not 0");
    assert_eq!(incidents.list[1].size, Some((8, 4)));
    let host = first.samples.iter().find(|sample| sample.source == "host");
    assert!(host.unwrap().values["used_bytes"] > 0);
    // Identifiers, not prose, stand in the file.
    let text = fs::read_to_string(&path).unwrap();
    let line = text.lines().next().unwrap();
    for id in [
        r#""task":"training""#,
        r#""kind":"exhausted""#,
        r#""resource":"device_memory""#,
        r#""phase":"backward""#,
        r#""cause":"unknown""#,
        r#""health":"good""#,
    ] {
        assert!(line.contains(id), "{id} in {line}");
    }
    let summary = incidents.summary();
    assert_eq!((summary.exhaustions, summary.failed), (2, 0));
    let text = summary.to_string();
    assert!(
        text.starts_with("2 exhaustions, all in backward, "),
        "{text}"
    );
    fs::remove_file(path).unwrap();
}

#[test]
fn a_fault_ends_the_batch() {
    let path = file("fault");
    let log = IncidentLog::builder(&path).open().unwrap();
    let mut processor = BatchProcessor::builder(Halving::default())
        .observer(log)
        .build();
    let failed = processor.process(&Samples(&[1, 2]), |_, _| -> candle_core::Result<()> {
        Err(testing::illegal_address())
    });
    assert!(matches!(failed, Err(Error::DeviceFault(_))));
    let incidents = Incidents::read(&path).unwrap();
    assert_eq!(incidents.list.len(), 1);
    let fault = incidents.list[0].fault.as_ref().unwrap();
    assert_eq!(
        (fault.name.as_str(), fault.code),
        ("CUDA_ERROR_ILLEGAL_ADDRESS", 700)
    );
    assert_eq!(
        incidents.summary().to_string(),
        "no exhaustion, 1 step failed, the device was lost"
    );
    fs::remove_file(path).unwrap();
}

#[test]
fn the_final_exhaustion_is_an_exhaustion_and_a_failure() {
    let path = file("final");
    let log = IncidentLog::builder(&path).open().unwrap();
    let mut processor = BatchProcessor::builder(Halving::builder().start(1).build().unwrap())
        .observer(log)
        .build();
    let failed = processor.process(&Samples(&[1, 2]), |_, _| -> candle_core::Result<()> {
        Err(testing::out_of_memory())
    });
    assert!(failed.is_err());
    let incidents = Incidents::read(&path).unwrap();
    let last = incidents.list.last().unwrap();
    let exhausted = last.exhausted.as_ref().unwrap();
    assert_eq!(exhausted.cause, Some(Cause::NeverFits));
    let summary = incidents.summary();
    assert_eq!(
        (summary.exhaustions, summary.failed, summary.faults),
        (1, 1, 0)
    );
    fs::remove_file(path).unwrap();
}

#[test]
fn a_full_disk_stops_nothing_and_is_reported() {
    let log = IncidentLog::builder("/dev/full").open().unwrap();
    step(&log);
    assert_eq!(log.lost(), 4);
    assert_eq!(log.failure().unwrap().kind, std::io::ErrorKind::StorageFull);
    let Err(Error::Output(error)) = IncidentLog::builder("/no/such/folder/x").open() else {
        panic!("there is no such folder")
    };
    assert_eq!(error.path.as_deref(), Some("/no/such/folder/x".as_ref()));
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

#[test]
fn a_summary_of_several_phases_and_a_neighbour() {
    let line = |minutes: u64, phase: &str, others: u64| {
        let at = (14 * 60 + minutes) * 60_000;
        format!(
            r#"{{"taken_unix_ms":{at},"step":1,"kind":"exhausted","text":"","exhausted":{{"phase":"{phase}","cause":"neighbour","others":{others}}}}}
"#
        )
    };
    let backward = (2..=5).map(|minutes| line(minutes, "backward", 31 << 30));
    let text: String = backward.collect();
    assert_eq!(
        Incidents::parse(&text).summary().to_string(),
        "4 exhaustions, all in backward, between 14:02 and 14:05 UTC, a neighbour held 31.0 GiB"
    );
    let text = text + &line(60 * 24 * 3, "forward", 1);
    let summary = Incidents::parse(&text).summary().to_string();
    assert!(
        summary.starts_with("5 exhaustions, 4 in backward and 1 in forward, over 3.0 days"),
        "{summary}"
    );
}

/// Each line has the policy's plan at that time, in training and evaluation alike.
#[test]
fn the_plan_at_that_time_is_in_each_line() {
    let path = file("plan");
    let log = IncidentLog::builder(&path).open().unwrap();
    let w = Var::new(&[1f32, 2.], &Device::Cpu).unwrap();
    let optimizer = Sgd::builder(vec![w.clone()])
        .learning_rate(0.1)
        .build()
        .unwrap();
    let builder = AdaptiveTrainer::builder(optimizer);
    let mut trainer = builder.observer(log.clone()).build().unwrap();
    let x = Tensor::ones((8, 2), DType::F32, &Device::Cpu).unwrap();
    let room = |x: &Tensor, room: usize| match x.dim(0)? <= room {
        true => Ok(()),
        false => Err(testing::out_of_memory()),
    };
    trainer
        .step(&x, |x, _| {
            room(&x, 4)?;
            x.broadcast_mul(&w)?.sqr()?.mean_all()
        })
        .unwrap();
    let plan = trainer.plan();
    trainer.evaluate(&x, |x, _| room(&x, 2)).unwrap();
    let mut processor = BatchProcessor::builder(Predictive::default())
        .observer(log)
        .build();
    processor.process(&x, |x, _| room(&x, 1)).unwrap();

    let incidents = Incidents::read(&path).unwrap();
    let of = |task: Task| -> Vec<_> {
        let list = incidents.list.iter();
        list.filter(|incident| incident.task == Some(task))
            .collect()
    };
    assert_eq!(
        incidents.list.len(),
        of(Task::Training).len() + of(Task::Evaluation).len() + of(Task::Processing).len()
    );
    let last = |task| of(task).last().unwrap().plan;
    assert_eq!(last(Task::Training), plan);
    assert_eq!(plan.unwrap().reason, Reason::Failed);
    assert_eq!(last(Task::Evaluation).unwrap().using, Some(2));
    assert_eq!(last(Task::Processing).unwrap().using, Some(1));
    assert!(
        incidents
            .list
            .iter()
            .all(|incident| incident.plan.is_some())
    );
    fs::remove_file(path).unwrap();
}

/// Every reason and extreme numbers survive writing and reading.
#[test]
fn a_plan_is_read_back_as_it_was() {
    #[derive(Debug)]
    struct Planned(Plan, usize);
    impl BatchPolicy for Planned {
        fn size(&self, remaining: usize) -> usize {
            self.1.min(remaining)
        }
        fn succeeded(&mut self, _: &Completed) {
            self.1 = 3;
        }
        fn failed(&mut self, _: &Failed<'_>) {}
        fn plan(&self) -> Option<Plan> {
            Some(self.0)
        }
    }
    let mut plan = Predictive::default().plan().unwrap();
    for reason in [
        Reason::Unbounded,
        Reason::Unmeasured,
        Reason::Room,
        Reason::Failed,
        Reason::Speed,
        Reason::Timing,
        Reason::Allowed,
    ] {
        let path = file("read-back");
        plan.reason = reason;
        (plan.base, plan.each, plan.room) = (Some(u64::MAX), Some(2), None);
        (plan.fits, plan.using) = (Some(usize::MAX), Some(3));
        let log = IncidentLog::builder(&path).open().unwrap();
        let mut processor = BatchProcessor::builder(Planned(plan, 1))
            .observer(log)
            .build();
        processor
            .process(&Samples(&[1, 2, 3]), |_, _| Ok(()))
            .unwrap();
        let incidents = Incidents::read(&path).unwrap();
        assert_eq!(incidents.list[0].plan, Some(plan));
        assert_eq!(incidents.summary().adaptations, 1);
        fs::remove_file(path).unwrap();
    }
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
        "incidents::what_happened_before_the_process_was_killed_is_in_the_file",
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

/// Identifiers of a newer version are unknown, and the rest of the line is read.
#[test]
fn identifiers_of_a_newer_version_are_unknown() {
    let line = r#"{"taken_unix_ms":0,"step":1,"kind":"new","text":"","task":"new","plan":{"reason":"new"},
        "exhausted":{"phase":"new","cause":"new","resource":"new","bytes":{"limit":7},"new":1},"new":1}"#;
    let incidents = Incidents::parse(&line.replace('\n', ""));
    let [incident] = &incidents.list[..] else {
        panic!("{incidents:?}")
    };
    assert_eq!((incident.kind, incident.task), (IncidentKind::Other, None));
    assert_eq!(incident.plan, None);
    let exhausted = incident.exhausted.as_ref().unwrap();
    assert_eq!((exhausted.phase, exhausted.resource), (None, None));
    assert_eq!(
        (exhausted.cause, exhausted.bytes.limit),
        (Some(Cause::Unknown), Some(7))
    );
}
