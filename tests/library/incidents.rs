//! What went wrong is in the file: whole, in order, bounded, and never at the cost of the work.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{
    BatchPolicy, BatchProcessor, Completed, Failed, Halving, Plan, Reason, Samples,
};
use candle_headroom::error::Phase;
use candle_headroom::incident::{IncidentLog, Incidents};
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
    let builder = builder.policy(Halving::from_size(8)).observer(log.clone());
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
    let log = IncidentLog::open(&path).unwrap().monitor(&monitor);
    step(&log);
    let incidents = Incidents::read(&path).unwrap();
    let kinds: Vec<_> = incidents
        .list
        .iter()
        .map(|incident| incident.kind.as_str())
        .collect();
    assert_eq!(kinds, ["exhausted", "retried", "exhausted", "retried"]);
    let first = &incidents.list[0];
    assert_eq!((first.step, incidents.unreadable), (1, 0));
    let exhausted = &first.fields["exhausted"];
    assert_eq!(exhausted["phase"], "backward");
    assert_eq!(exhausted["samples"].as_array().unwrap().len(), 2);
    assert!(exhausted["remedies"].as_array().unwrap().len() >= 2);
    assert!(exhausted["bytes"]["limit"].is_null(), "not known, so not 0");
    let samples = first.fields["samples"].as_array().unwrap();
    assert!(
        samples.iter().any(|sample| sample["source"] == "host"),
        "{samples:?}"
    );
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
fn a_fault_is_the_last_word() {
    let path = file("fault");
    let log = IncidentLog::open(&path).unwrap();
    let mut processor = BatchProcessor::builder(Halving::from_whole_batch())
        .observer(log)
        .build();
    let failed = processor.process(&Samples(&[1, 2]), |_, _| -> candle_core::Result<()> {
        Err(testing::illegal_address())
    });
    assert!(matches!(failed, Err(Error::DeviceFault(_))));
    let incidents = Incidents::read(&path).unwrap();
    assert_eq!(incidents.list.len(), 1);
    assert_eq!(incidents.list[0].fields["fault"]["code"], 700);
    assert_eq!(
        incidents.summary().to_string(),
        "no exhaustion, 1 step failed, the device was lost"
    );
    fs::remove_file(path).unwrap();
}

#[test]
fn the_final_exhaustion_is_told_as_one_and_as_the_end() {
    let path = file("final");
    let log = IncidentLog::open(&path).unwrap();
    let mut processor = BatchProcessor::builder(Halving::from_size(1))
        .observer(log)
        .build();
    let failed = processor.process(&Samples(&[1, 2]), |_, _| -> candle_core::Result<()> {
        Err(testing::out_of_memory())
    });
    assert!(failed.is_err());
    let incidents = Incidents::read(&path).unwrap();
    let last = incidents.list.last().unwrap();
    assert_eq!(
        last.fields["exhausted"]["cause"],
        "a single sample does not fit"
    );
    let summary = incidents.summary();
    assert_eq!(
        (summary.exhaustions, summary.failed, summary.faults),
        (1, 1, 0)
    );
    fs::remove_file(path).unwrap();
}

#[test]
fn a_full_disk_stops_nothing_and_is_told() {
    let log = IncidentLog::open("/dev/full").unwrap();
    step(&log);
    assert_eq!(log.lost(), 4);
    assert_eq!(log.failure().unwrap().kind, std::io::ErrorKind::StorageFull);
    let Err(Error::Output(error)) = IncidentLog::open("/no/such/folder/x") else {
        panic!("there is no such folder")
    };
    assert_eq!(error.path.as_deref(), Some("/no/such/folder/x".as_ref()));
    assert!(matches!(
        Incidents::read("/no/such/folder/x"),
        Err(Error::Output(_))
    ));
}

#[test]
fn the_file_is_bounded_and_the_latest_are_kept() {
    let path = file("bounded");
    let former = PathBuf::from(format!("{}.1", path.display()));
    let log = IncidentLog::bounded(&path, ByteSize::kib(8)).unwrap();
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
fn what_a_power_cut_leaves_is_passed_over() {
    let path = file("power-cut");
    step(&IncidentLog::open(&path).unwrap());
    let mut text = fs::read_to_string(&path).unwrap();
    text.truncate(text.len() - 40);
    fs::write(&path, &text).unwrap();
    step(&IncidentLog::open(&path).unwrap());
    let incidents = Incidents::read(&path).unwrap();
    assert_eq!((incidents.list.len(), incidents.unreadable), (7, 1));
    fs::remove_file(path).unwrap();
}

#[test]
fn a_summary_of_several_phases_and_a_neighbour() {
    let line = |minutes: u64, phase: &str, others: u64| {
        format!(
            "{{\"taken_unix_ms\":{},\"step\":1,\"kind\":\"exhausted\",\"text\":\"\",\"exhausted\":{{\"phase\":\"{phase}\",\
             \"cause\":\"another process holds the memory\",\"bytes\":{{\"others\":{others}}}}}}}\n",
            (14 * 60 + minutes) * 60_000
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

/// What the policy believed stands in each line, of training and of evaluation, and comes back as it was.
#[test]
fn the_plan_at_that_time_is_in_each_line() {
    let path = file("plan");
    let log = IncidentLog::open(&path).unwrap();
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
    let mut processor = BatchProcessor::builder(Predictive::new())
        .observer(log)
        .build();
    processor.process(&x, |x, _| room(&x, 1)).unwrap();

    let incidents = Incidents::read(&path).unwrap();
    let of = |task: &str| -> Vec<_> {
        let list = incidents.list.iter();
        list.filter(|incident| incident.task.as_deref() == Some(task))
            .collect()
    };
    assert_eq!(
        incidents.list.len(),
        of("training").len() + of("evaluation").len() + of("processing").len()
    );
    let last = |task| of(task).last().unwrap().plan;
    assert_eq!(last("training"), plan);
    assert_eq!(plan.unwrap().reason, Reason::Failed);
    assert_eq!(last("evaluation").unwrap().using, Some(2));
    assert_eq!(last("processing").unwrap().using, Some(1));
    assert!(
        incidents
            .list
            .iter()
            .all(|incident| incident.plan.is_some())
    );
    fs::remove_file(path).unwrap();
}

/// All of a plan, whatever it says; a policy that tells nothing has none.
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
    let mut plan = Predictive::new().plan().unwrap();
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
        let log = IncidentLog::open(&path).unwrap();
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

/// A file that cannot be written is told once, however often it is tried, and the last incident is not lost in a buffer.
#[test]
fn a_failure_to_write_is_told_once() {
    use tracing::{Event, Metadata, span};

    struct Counter(Arc<AtomicUsize>);
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
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    let told = Arc::new(AtomicUsize::new(0));
    // With a single subscriber, what another test's thread meets first is never told to this one either.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    tracing::subscriber::with_default(Counter(Arc::clone(&told)), || {
        let log = IncidentLog::open("/dev/full").unwrap();
        (0..3).for_each(|_| step(&log));
        assert_eq!(log.lost(), 12);
    });
    assert_eq!(told.load(Ordering::Relaxed), 1);
}

/// The process is gone in the middle of its work, without a word: each line is there all the same.
#[test]
fn what_happened_before_the_process_was_killed_is_in_the_file() {
    const CHILD: &str = "HEADROOM_TEST_KILLED";
    if let Some(path) = std::env::var_os(CHILD) {
        step(&IncidentLog::open(PathBuf::from(path)).unwrap());
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

/// The machine's end within a character, in the present file and in the one before.
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
    let missing = Incidents::read(&path).unwrap_err().to_string();
    assert!(missing.starts_with("cannot read "), "{missing}");
    std::fs::remove_dir_all(folder).unwrap();
}
