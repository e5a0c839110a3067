//! What went wrong is in the file: whole, in order, bounded, and never at the cost of the work.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::testing::{self, Faults};
use candle_headroom::{
    AdaptiveTrainer, BatchProcessor, ByteSize, Error, Halving, IncidentLog, Incidents, Monitor,
    Phase, Sgd,
};

fn file(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("headroom-{}-{name}.jsonl", std::process::id()));
    let _ = fs::remove_file(&path);
    path
}

/// A step in which memory runs out twice, in the backward pass.
fn step(log: &IncidentLog) {
    let w = Var::new(&[1f32, 2.], &Device::Cpu).unwrap();
    let optimizer = Sgd::new_lr(vec![w.clone()], 0.1).unwrap();
    let builder = AdaptiveTrainer::builder(vec![w.clone()], optimizer);
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
    let mut processor = BatchProcessor::new(Halving::from_whole_batch()).observer(log);
    let failed = processor.process(&[1, 2][..], |_, _| -> candle_core::Result<()> {
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
    let mut processor = BatchProcessor::new(Halving::from_size(1)).observer(log);
    let failed = processor.process(&[1, 2][..], |_, _| -> candle_core::Result<()> {
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
