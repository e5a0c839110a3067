//! Promise 7, no ratchet: when the room returns, the size grows back. Compiled into the test program `host`. The default policy on hundreds of
//! random devices: tests/library/predictive; on CUDA: tests/cuda/adaptation.rs.

use std::cell::Cell;

use candle_core::DType;
use candle_headroom::batch::{Event, Fixed};
use candle_headroom::error::{Cause, Phase};
use candle_headroom::memory::{Limit, PEAK_ERROR};
use candle_headroom::{AdamW, AdaptiveTrainer, ByteSize, DeviceMemory};

use crate::language::{by_sgd, language, text};
use crate::support::{self, Mlp, alone, with_room};

#[test]
fn it_shrinks_under_pressure_and_grows_back_when_that_goes() {
    let _alone = alone();
    let model = Mlp::new(DType::F32);
    let batch = Mlp::data(64, DType::F32);
    let mut trainer = support::by_sgd(&model).build().unwrap();
    let room = Cell::new(20);
    let mut step = || {
        trainer.step(&batch, |(x, y), _| {
            with_room(&room, &x)?;
            model.loss(&x, &y)
        })
    };
    let report = step().unwrap();
    assert_eq!(
        (report.sizes, report.retries, report.samples_retried),
        (vec![16; 4], 2, 64 + 32)
    );
    let Event::Retried {
        samples,
        to: 32,
        phase: Some(Phase::Forward),
        cause: Cause::Unknown,
        ..
    } = &report.events[0]
    else {
        panic!("{:?}", report.events)
    };
    assert_eq!(*samples, 0..64);
    // While the room stays small, larger sizes are tried now and then: with four micro-batches, at most 1/24 of the work.
    let reports: Vec<_> = (0..200).map(|_| step().unwrap()).collect();
    let retries: usize = reports.iter().map(|report| report.retries).sum();
    let samples_retried: usize = reports.iter().map(|report| report.samples_retried).sum();
    assert!(
        retries > 0 && 24 * samples_retried <= 200 * 64 + samples_retried,
        "{retries} {samples_retried}"
    );
    room.set(64);
    let mut steps = 0;
    while step().unwrap().sizes != [64] {
        steps += 1;
        assert!(steps <= 10, "a ratchet");
    }
    assert_eq!(step().unwrap().retries, 0);
}

#[test]
fn the_size_follows_the_limit_down_and_up() {
    let _alone = alone();
    let (model, vars) = language();
    let batch = text(96, 32);
    let memory = DeviceMemory::host().open().unwrap();
    let start = memory.in_use().unwrap();
    memory.set_limit(ByteSize::b(start + (30 << 20))).unwrap();
    let mut trainer = by_sgd(&vars, &memory);
    let mut step = || {
        trainer
            .step(&batch, |(x, y), _| model.loss(&x, &y))
            .unwrap()
    };
    step();
    let wide = step().micro_batch();

    memory.set_limit(ByteSize::b(start + (12 << 20))).unwrap();
    // The size shrinks before the limit is exceeded, since earlier steps have shown what a sample needs.
    let report = step();
    assert_eq!(report.retries, 0);
    let narrow = report.micro_batch();
    assert!(narrow < wide, "{narrow} {wide}");
    assert!(report.peak.unwrap() <= start + (12 << 20) + PEAK_ERROR);

    memory.set_limit(ByteSize::b(start + (30 << 20))).unwrap();
    step();
    assert_eq!(step().micro_batch(), wide);
}

#[test]
fn a_resumed_run_keeps_the_limit_and_its_sizes() {
    let _alone = alone();
    let (model, vars) = language();
    let named: Vec<_> = vars
        .iter()
        .enumerate()
        .map(|(i, var)| (i.to_string(), var.clone()))
        .collect();
    let memory = DeviceMemory::host().open().unwrap();
    let batch = text(64, 32);
    let trainer = || {
        let optimizer = AdamW::builder(named.clone())
            .learning_rate(0.01)
            .build()
            .unwrap();
        let trainer = AdaptiveTrainer::builder(optimizer);
        trainer.memory(&memory).build().unwrap()
    };
    let mut first = trainer();
    let limit = memory.in_use().unwrap() + (24 << 20);
    memory.set_limit(limit).unwrap();
    let sizes = |trainer: &mut AdaptiveTrainer<AdamW>| {
        let report = trainer
            .step(&batch, |(x, y), _| model.loss(&x, &y))
            .unwrap();
        assert_eq!(report.retries, 0);
        assert!(report.peak.unwrap() <= limit + PEAK_ERROR, "{report}");
        report.sizes
    };
    for _ in 0..2 {
        sizes(&mut first);
    }
    let settled = sizes(&mut first);
    let saved = first.state().unwrap();
    drop(first);

    let mut resumed = trainer();
    resumed.load_state(&saved).unwrap();
    for _ in 0..2 {
        assert_eq!(sizes(&mut resumed), settled);
    }

    let before = resumed.state().unwrap().metadata;
    let mut wrong = saved.clone();
    wrong.tensors.clear();
    assert!(resumed.load_state(&wrong).is_err());
    let after = resumed.state().unwrap().metadata;
    assert_eq!(after, before, "nothing has changed");
    assert_eq!(sizes(&mut resumed), settled);

    // State that cannot be read is ignored, and so is the state of another policy.
    let mut strange = saved.clone();
    strange
        .metadata
        .insert("micro_batches.evaluation".to_owned(), "nonsense".to_owned());
    resumed.load_state(&strange).unwrap();
    drop(resumed);
    let optimizer = AdamW::builder(named.clone())
        .learning_rate(0.01)
        .build()
        .unwrap();
    let other = AdaptiveTrainer::builder(optimizer);
    let mut other = other.policy(Fixed::new(8).unwrap()).build().unwrap();
    other.load_state(&saved).unwrap();
    assert_eq!(other.micro_batch(64), 8);
    memory.set_limit(Limit::Unlimited).unwrap();
}
