//! What the lines say, and what is read back from them.

use std::time::Duration;

use candle_headroom::batch::{
    BatchPolicy, BatchProcessor, Completed, Event, Failed, Plan, Reason, Samples, Task,
};
use candle_headroom::error::{Cause, Resource};
use candle_headroom::{Monitor, Predictive};

use super::*;

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
    assert_eq!(exhausted.resource, Resource::DeviceMemory);
    assert_eq!(exhausted.samples, Some(0..8));
    assert!(exhausted.remedies.len() >= 2);
    assert_eq!(exhausted.bytes.limit, None, "unknown, so not 0");
    assert!(matches!(
        incidents.list[1].event,
        Some(Event::Retried { ref samples, to: 4, .. }) if *samples == (0..8)
    ));
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
    assert!(!line.contains("rank"), "a process alone: {line}");
    let ranked = line.replace(r#""step":"#, r#""rank":3,"step":"#);
    let ranked = Incidents::parse(&ranked).list.remove(0);
    assert_eq!((first.rank, ranked.rank), (None, Some(3)));
    let summary = incidents.summary();
    assert_eq!(summary.count(&[Exhausted]), 2);
    assert_eq!(summary.count(&[IncidentKind::Failed]), 0);
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
    let fault = &incidents.list[0];
    assert_eq!(fault.fault, Some(700));
    assert!(fault.text.contains("CUDA_ERROR_ILLEGAL_ADDRESS"));
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
    assert_eq!(exhausted.cause, Cause::NeverFits);
    let summary = incidents.summary();
    assert_eq!(
        [
            IncidentKind::Exhausted,
            IncidentKind::Failed,
            IncidentKind::Fault
        ]
        .map(|kind| summary.count(&[kind])),
        [1, 1, 0]
    );
    fs::remove_file(path).unwrap();
}

#[test]
fn a_summary_of_several_phases_and_a_neighbour() {
    let line = |minutes: u64, phase: &str, others: u64| {
        let at = (14 * 60 + minutes) * 60_000;
        format!(
            r#"{{"taken_unix_ms":{at},"step":1,"kind":"exhausted","text":"","exhausted":{{"phase":"{phase}","cause":"neighbour","bytes":{{"total":{others},"free":0,"reserved":0}}}}}}
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
        let changes = [IncidentKind::Grown, IncidentKind::Shrunk];
        assert_eq!(incidents.summary().count(&changes), 1);
        fs::remove_file(path).unwrap();
    }
}

/// Identifiers of a newer version are unknown, and the rest of the line is read.
#[test]
fn identifiers_of_a_newer_version_are_unknown() {
    let line = r#"{"taken_unix_ms":0,"step":1,"kind":"new","text":"","task":"new","plan":{"reason":"new"},"event":{"new":{}},
        "exhausted":{"phase":"new","cause":"new","resource":"new","bytes":{"limit":7},"new":1},"new":1}"#;
    let incidents = Incidents::parse(&line.replace('\n', ""));
    let [incident] = &incidents.list[..] else {
        panic!("{incidents:?}")
    };
    assert_eq!((incident.kind, incident.task), (IncidentKind::Other, None));
    assert_eq!((incident.plan, &incident.event), (None, &None));
    let exhausted = incident.exhausted.as_ref().unwrap();
    assert_eq!(exhausted.phase, None);
    assert_eq!(exhausted.resource, Resource::Unknown);
    assert_eq!(
        (exhausted.cause, exhausted.bytes.limit),
        (Cause::Unknown, Some(7))
    );
}

/// Errors of the caller's may hold addresses that open what they name.
#[test]
fn addresses_lose_their_credentials_before_they_reach_the_disk() {
    let secrets = [
        "https://bucket.s3.amazonaws.com/part-7.parquet?X-Amz-Credential=AKIA7&X-Amz-Signature=5ec7e7",
        "s3://key:5ec7e7@storage.local:9000/train/part-7.parquet#5ec7e7",
        "(HTTPS://user:5ec7e7@host/part-7.parquet?sig=5ec7e7)",
        "Authorization: Bearer 5ec7e7.a-b_c+/= for /part-7.parquet",
    ];
    for secret in secrets {
        for is_exhaustion in [false, true] {
            let path = file("secrets");
            let log = IncidentLog::builder(&path).open().unwrap();
            let policy = Halving::builder().start(1).build().unwrap();
            let builder = BatchProcessor::builder(policy).observer(log);
            let x = Tensor::ones(1, DType::F32, &Device::Cpu).unwrap();
            let result = builder
                .build()
                .process(&x, |_, _| -> candle_core::Result<()> {
                    match is_exhaustion {
                        true => candle_core::bail!(
                            "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\") for {secret}"
                        ),
                        false => candle_core::bail!("cannot read {secret}: status 403"),
                    }
                });
            let error = result.expect_err("an error").to_string();
            assert!(
                is_exhaustion || error.contains("5ec7e7"),
                "the caller sees it: {error}"
            );
            let text = fs::read_to_string(&path).unwrap();
            assert!(
                !text.contains("5ec7e7") && !text.contains("AKIA7"),
                "{text}"
            );
            assert!(text.contains("part-7.parquet"), "the rest stays: {text}");
            fs::remove_file(path).unwrap();
        }
    }
}
