//! What is recorded of steps, failures, evaluations and windows, and what is merged when there is much of it.

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{BatchProcessor, Fixed, Samples};
use candle_headroom::{AccumulatingTrainer, AdaptiveTrainer, Error, Sgd, Timeline};

use super::{data, trace};

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

/// Pages and traces are given to others.
#[test]
fn a_record_holds_no_credentials() {
    let secrets = [
        "https://bucket.s3.amazonaws.com/part-7.parquet?X-Amz-Signature=5ec7e7",
        "s3://key:5ec7e7@storage.local:9000/train/part-7.parquet#5ec7e7",
        "Authorization: Bearer 5ec7e7.a-b_c+/= for /part-7.parquet",
    ];
    let timeline = Timeline::new();
    let x = Tensor::ones(1, DType::F32, &Device::Cpu).unwrap();
    for secret in secrets {
        for failure in [
            "cannot read",
            "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"…\") for",
        ] {
            let builder = BatchProcessor::builder(Fixed::new(1).unwrap());
            let mut processor = builder.observer(timeline.clone()).build();
            let failed = processor.process(&x, |_, _| -> candle_core::Result<()> {
                candle_core::bail!("{failure} {secret}")
            });
            assert!(failed.is_err());
        }
    }
    let (mut page, mut trace) = (Vec::new(), Vec::new());
    timeline.write_page("a run", &mut page).unwrap();
    timeline.write_trace(&mut trace).unwrap();
    for text in [page, trace] {
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("part-7.parquet"), "the rest stays");
        assert!(!text.contains("5ec7e7"));
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
