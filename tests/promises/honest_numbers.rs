//! Promise 8, honest numbers: a limit on host memory is kept, and errors carry what was measured. Compiled into the test program `host`.
//! The counts themselves: tests/host/memory.rs; without the allocator: tests/library/no_allocator.rs; on CUDA: tests/cuda/memory.rs, limits.rs.

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{BatchProcessor, Event, Halving, Samples};
use candle_headroom::error::{Cause, Phase, Resource};
use candle_headroom::memory::{Limit, PEAK_ERROR};
use candle_headroom::{
    AccumulatingTrainer, AdamW, AdaptiveTrainer, ByteSize, DeviceMemory, ResourceExhausted,
    StepReport,
};

use crate::language::{by_sgd, language, text};
use crate::support::{Schedule, adamw, alone, snapshot, wave};

#[test]
fn the_limit_is_kept_and_the_result_is_that_of_the_same_split() {
    let _alone = alone();
    let (model, vars) = language();
    let batch = text(64, 32);
    let start = DeviceMemory::host().open().unwrap().in_use().unwrap();
    let limit = start + (24 << 20);
    let memory = DeviceMemory::host()
        .limit(ByteSize::b(limit))
        .open()
        .unwrap();
    let mut trainer = AdaptiveTrainer::builder(adamw(&vars, 0.01))
        .memory(&memory)
        .build()
        .unwrap();
    let mut splits = Vec::new();
    for _ in 0..3 {
        let report = trainer
            .step(&batch, |(x, y), _| model.loss(&x, &y))
            .unwrap();
        let peak = report.peak.unwrap();
        assert!(peak <= limit + PEAK_ERROR, "{peak} of {limit}");
        assert_eq!((report.samples, report.retries), (64, 0));
        splits.push(report.sizes);
    }
    assert_eq!(splits[0][0], 1, "starts small: {splits:?}");
    assert!(splits[0].len() < 8, "and goes up fast: {splits:?}");
    let settled = splits[2][0];
    assert!(
        settled >= 4 && splits[2].iter().all(|&size| size == settled),
        "{splits:?}"
    );
    let trained = snapshot(&vars);
    drop(trainer);

    let (model, vars) = language();
    let mut trainer = AdaptiveTrainer::builder(adamw(&vars, 0.01))
        .policy(Schedule::new(&splits.concat()))
        .build()
        .unwrap();
    for _ in 0..3 {
        trainer
            .step(&batch, |(x, y), _| model.loss(&x, &y))
            .unwrap();
    }
    assert_eq!(trained, snapshot(&vars));
}

#[test]
fn longer_samples_are_predicted_from_their_cost() {
    let _alone = alone();
    let (model, vars) = language();
    let memory = DeviceMemory::host().open().unwrap();
    let start = memory.in_use().unwrap();
    memory.set_limit(ByteSize::b(start + (8 << 20))).unwrap();
    let mut trainer = by_sgd(&vars, &memory);
    let short = text(64, 8);
    for _ in 0..2 {
        trainer
            .step(&short, |(x, y), _| model.loss(&x, &y))
            .unwrap();
    }
    let long = text(64, 32);
    let report = trainer.step(&long, |(x, y), _| model.loss(&x, &y)).unwrap();
    assert_eq!(
        (report.samples, report.samples_retried),
        (64, 0),
        "{report}"
    );
    assert!(report.sizes[0] < 64 / 4, "predicted: {report:?}");
    assert!(report.peak.unwrap() <= start + (8 << 20) + PEAK_ERROR);
}

/// Samples whose cost does not tell what they need. Finished micro-batches are kept.
#[test]
fn heavier_samples_are_met_by_smaller_micro_batches() {
    let _alone = alone();
    let (model, vars) = language();
    let memory = DeviceMemory::host().open().unwrap();
    let start = memory.in_use().unwrap();
    memory.set_limit(ByteSize::b(start + (8 << 20))).unwrap();
    let mut trainer = by_sgd(&vars, &memory);
    let (short, long) = (text(64, 8), text(64, 32));
    let indices: Vec<usize> = (0..64).collect();
    let mut step = |text: &(Tensor, Tensor)| {
        trainer.step(&Samples(&indices), |chunk, _| {
            let cut = |whole: &Tensor| whole.narrow(0, chunk[0], chunk.len());
            model.loss(&cut(&text.0)?, &cut(&text.1)?)
        })
    };
    for _ in 0..2 {
        step(&short).unwrap();
    }
    let report = step(&long).unwrap();
    assert_eq!(report.samples, 64);
    assert!(report.samples_retried < 64, "{report}");
    let smaller = |event: &Event| match event {
        Event::Retried {
            samples, to, cause, ..
        } => *cause == Cause::Limit && *to < samples.len(),
        Event::Shrunk { from, to, .. } => to < from,
        _ => false,
    };
    assert!(report.events.iter().any(smaller), "{:?}", report.events);
}

#[test]
fn a_limit_that_one_sample_exceeds_is_an_error_with_the_numbers() {
    let _alone = alone();
    let (model, vars) = language();
    let before = snapshot(&vars);
    let memory = DeviceMemory::host().open().unwrap();
    let limit = memory.in_use().unwrap() + (400 << 10);
    memory.set_limit(ByteSize::b(limit)).unwrap();
    let mut trainer = by_sgd(&vars, &memory);
    let batch = text(8, 32);
    // Exceeds the limit by itself, whatever else the process holds.
    let ballast = || Tensor::zeros(limit as usize, DType::U8, &Device::Cpu);
    let failed = trainer.step(&batch, |(x, y), _| {
        let _ballast = ballast()?;
        model.loss(&x, &y)
    });
    let error = failed.unwrap_err();
    let exhausted = error.resource_exhausted().unwrap();
    assert_eq!(
        (exhausted.cause, exhausted.micro_batch),
        (Cause::NeverFits, Some(1))
    );
    // Before the backward pass, which would take more.
    assert_eq!(exhausted.phase, Some(Phase::Forward));
    assert_eq!(exhausted.bytes.limit, Some(limit));
    assert!(exhausted.bytes.peak.unwrap() > limit);
    assert!(exhausted.bytes.total.is_some());
    assert_eq!(exhausted.bytes.requested, None);
    assert!(error.to_string().contains("a limit of at least"), "{error}");
    assert_eq!(snapshot(&vars), before);

    memory.set_limit(ByteSize::gib(4)).unwrap();
    trainer
        .step(&batch, |(x, y), _| model.loss(&x, &y))
        .unwrap();
}

/// What another allocator says of its refusal stays, beside what is known of the memory.
#[test]
fn the_bytes_that_an_allocator_refused_are_in_the_error() {
    let _alone = alone();
    let (_, vars) = language();
    let memory = DeviceMemory::host().open().unwrap();
    let mut trainer = by_sgd(&vars, &memory);
    let failed = trainer.step(&text(1, 8), |_, _| -> candle_core::Result<Tensor> {
        let mut refused = ResourceExhausted::new(Resource::PinnedMemory, Cause::Unknown);
        refused.bytes.requested = Some(1 << 20);
        Err(refused.into())
    });
    let error = failed.unwrap_err();
    let exhausted = error.resource_exhausted().unwrap();
    assert_eq!(exhausted.resource, Resource::PinnedMemory);
    assert_eq!(exhausted.bytes.requested, Some(1 << 20));
    assert!(exhausted.bytes.total.is_some());
}

#[test]
fn inference_follows_the_limit_too() {
    let _alone = alone();
    let memory = DeviceMemory::host().open().unwrap();
    let x = wave(256 * 1024, 1, DType::F32)
        .unwrap()
        .reshape((256, 1024))
        .unwrap();
    let limit = memory.in_use().unwrap() + (3 << 20);
    memory.set_limit(ByteSize::b(limit)).unwrap();
    let mut processor = BatchProcessor::builder(Halving::builder().start(1).build().unwrap())
        .memory(&memory)
        .build();
    let scope = memory.peak_scope();
    // Each sample has 64 KiB of intermediate values.
    let processed = processor.process(&x, |chunk, _| {
        let wide = chunk
            .unsqueeze(1)?
            .broadcast_as((chunk.dim(0)?, 16, 1024))?
            .contiguous()?;
        wide.sum_all()?.to_scalar::<f32>()
    });
    let processed = processed.unwrap();
    assert_eq!(processed.sizes.iter().sum::<usize>(), 256);
    assert!(processed.sizes.contains(&16), "{:?}", processed.sizes);
    assert!(scope.peak().unwrap() <= limit + PEAK_ERROR);
}

/// An update's temporaries do not depend on the micro-batch, so both trainers report them.
#[test]
fn an_update_over_the_limit_is_an_event() {
    let _alone = alone();
    let memory = DeviceMemory::host().open().unwrap();
    let w = Var::zeros(1 << 20, DType::F32, &Device::Cpu).unwrap(); // 4 MiB
    let optimizer = || adamw(std::slice::from_ref(&w), 0.1);
    let x = Tensor::ones(2, DType::F32, &Device::Cpu).unwrap();
    let loss = |x: Tensor| w.narrow(0, 0, 1)?.broadcast_mul(&x)?.mean_all();

    let trainer = AdaptiveTrainer::builder(optimizer()).memory(&memory);
    let mut trainer = trainer.build().unwrap();
    reports_the_update(&memory, || trainer.step(&x, |x, _| loss(x)).unwrap());
    drop(trainer);

    let trainer = AccumulatingTrainer::builder(optimizer(), 1).memory(&memory);
    let mut trainer = trainer.build().unwrap();
    reports_the_update(&memory, || {
        let report = trainer.step(&x, |x, _| loss(x)).unwrap();
        report.expect("an update with each batch")
    });
}

fn reports_the_update(memory: &DeviceMemory, mut step: impl FnMut() -> StepReport) {
    memory.set_limit(Limit::Unlimited).unwrap();
    let free = step();
    assert!(free.events.is_empty(), "no limit: {:?}", free.events);
    // Room for the backward pass, but not for the temporaries of candle's AdamW.
    let limit = memory.in_use().unwrap() + (18 << 20);
    memory.set_limit(limit).unwrap();
    let report = step();
    let over = |event: &Event| matches!(event, Event::OverLimit { peak, .. } if *peak > limit);
    assert!(
        report.updated == Some(true) && report.events.iter().any(over),
        "{:?} {report}",
        report.events
    );
}

/// Remedies are ranked by the bytes that they save.
#[test]
fn remedies_say_what_they_would_save() {
    let _alone = alone();
    let (model, vars) = language();
    let memory = DeviceMemory::host().open().unwrap();
    let parameters: usize = vars.iter().map(|var| var.elem_count()).sum();
    // What products take for themselves on this processor, once for each thread, is no part of the step below.
    let (x, y) = text(8, 32);
    model.loss(&x, &y).unwrap().backward().unwrap();
    let (small, large): (Vec<Var>, Vec<Var>) = vars
        .iter()
        .cloned()
        .partition(|var| var.elem_count() < 1000);
    let optimizer = AdamW::builder(small).group(large.clone()).build().unwrap();
    let mut trainer = AdaptiveTrainer::builder(optimizer)
        .memory(&memory)
        .build()
        .unwrap();
    memory
        .set_limit(memory.in_use().unwrap() + (64 << 10))
        .unwrap();
    let error = trainer
        .step(&text(8, 32), |(x, y), _| model.loss(&x, &y))
        .unwrap_err();
    let exhausted = error.resource_exhausted().unwrap();
    let ranked: Vec<_> = exhausted.ranked_remedies().collect();
    let saves: Vec<_> = ranked.iter().map(|remedy| remedy.saves).collect();
    assert!(saves.is_sorted_by(|a, b| a >= b), "{error:#}");
    let of = |advice: &str| {
        let found = ranked.iter().find(|remedy| remedy.advice == advice);
        found
            .unwrap_or_else(|| panic!("{advice}: {ranked:?}"))
            .saves
    };
    let bytes = |count: usize| Some(count as u64);
    assert_eq!(of("moments in bf16"), bytes(4 * parameters));
    assert_eq!(of("Sgd without momentum"), bytes(8 * parameters));
    let large: usize = large.iter().map(|var| var.elem_count()).sum();
    assert_eq!(of("group 1 not trained"), bytes(12 * large));
    let long = format!("{exhausted:#}");
    assert!(long.contains("Sgd without momentum (saves about"), "{long}");
    memory.set_limit(Limit::Unlimited).unwrap();
}
