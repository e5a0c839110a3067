//! A real model under a real limit on host memory: the limit is kept, finished work is kept, and the size follows the limit.

mod support;

use std::cell::RefCell;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{BatchProcessor, Event, Fixed, Halving};
use candle_headroom::error::{Cause, Phase};
use candle_headroom::memory::PEAK_ERROR;
use candle_headroom::testing::Faults;
use candle_headroom::{AdaptiveTrainer, ByteSize, DeviceMemory, Predictive, TrackingAllocator};
use candle_nn::{AdamW, Optimizer, SGD, VarBuilder, VarMap};
use support::transformer::{Config, Transformer};
use support::{Schedule, alone, settle, snapshot, wave};

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

fn language() -> (Transformer, Vec<Var>) {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let config = Config {
        context: 32,
        width: 32,
        heads: 2,
        layers: 1,
    };
    (Transformer::new(config, vb).unwrap(), settle(&varmap))
}

/// A trainer of all Vars by plain gradient descent, under this memory.
fn by_sgd(vars: &[Var], memory: &DeviceMemory) -> AdaptiveTrainer<SGD> {
    let optimizer = SGD::new(vars.to_vec(), 0.01).unwrap();
    let trainer = AdaptiveTrainer::builder(vars.to_vec(), optimizer);
    trainer.memory(memory).build().unwrap()
}

fn text(samples: usize, length: usize) -> (Tensor, Tensor) {
    let text = |shift: u32| {
        let bytes = (0..(samples * length) as u32).map(|i| (i * 31 + shift) % 256);
        let bytes = Tensor::from_iter(bytes, &Device::Cpu).unwrap();
        bytes.reshape((samples, length)).unwrap()
    };
    (text(0), text(31))
}

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
    let optimizer = AdamW::new_lr(vars.clone(), 0.01).unwrap();
    let mut trainer = AdaptiveTrainer::builder(vars.clone(), optimizer)
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
    let optimizer = AdamW::new_lr(vars.clone(), 0.01).unwrap();
    let mut trainer = AdaptiveTrainer::builder(vars.clone(), optimizer)
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
fn the_size_follows_the_limit_down_and_up() {
    let _alone = alone();
    let (model, vars) = language();
    let batch = text(32, 32);
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
    // Before it is overrun: what a sample needs is known from the steps before.
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
fn longer_samples_are_predicted_from_their_cost() {
    let _alone = alone();
    let (model, vars) = language();
    let memory = DeviceMemory::host().open().unwrap();
    let start = memory.in_use().unwrap();
    memory.set_limit(ByteSize::b(start + (10 << 20))).unwrap();
    let mut trainer = by_sgd(&vars, &memory);
    let short = text(64, 8);
    for _ in 0..2 {
        trainer
            .step(&short, |(x, y), _| model.loss(&x, &y))
            .unwrap();
    }
    let long = text(64, 32);
    let report = trainer.step(&long, |(x, y), _| model.loss(&x, &y)).unwrap();
    assert_eq!((report.samples, report.recomputed), (64, 0), "{report}");
    assert!(report.sizes[0] < 64 / 4, "predicted: {report:?}");
    assert!(report.peak.unwrap() <= start + (10 << 20) + PEAK_ERROR);
}

/// Samples whose cost says nothing of what they take: what was finished is kept.
#[test]
fn heavier_samples_are_met_by_smaller_micro_batches() {
    let _alone = alone();
    let (model, vars) = language();
    let memory = DeviceMemory::host().open().unwrap();
    let start = memory.in_use().unwrap();
    memory.set_limit(ByteSize::b(start + (10 << 20))).unwrap();
    let mut trainer = by_sgd(&vars, &memory);
    let (short, long) = (text(64, 8), text(64, 32));
    let indices: Vec<usize> = (0..64).collect();
    let mut step = |text: &(Tensor, Tensor)| {
        trainer.step(&indices[..], |chunk, _| {
            let cut = |whole: &Tensor| whole.narrow(0, chunk[0], chunk.len());
            model.loss(&cut(&text.0)?, &cut(&text.1)?)
        })
    };
    for _ in 0..2 {
        step(&short).unwrap();
    }
    let report = step(&long).unwrap();
    assert_eq!(report.samples, 64);
    assert!(report.recomputed < 64, "{report}");
    let smaller = |event: &Event| match event {
        Event::Retried {
            samples, to, cause, ..
        } => *cause == Cause::Limit && *to < samples.len(),
        Event::Shrunk { from, to } => to < from,
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
    let error = trainer
        .step(&batch, |(x, y), _| model.loss(&x, &y))
        .unwrap_err();
    let exhausted = error.resource_exhausted().unwrap();
    assert_eq!(
        (exhausted.cause, exhausted.micro_batch),
        (Cause::NeverFits, Some(1))
    );
    assert!(matches!(
        exhausted.phase,
        Some(Phase::Forward | Phase::Backward)
    ));
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
    let mut processor = BatchProcessor::new(Halving::from_one()).memory(&memory);
    let scope = memory.peak_scope();
    // Each sample makes 64 KiB of intermediate values.
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

#[test]
fn a_settled_step_leaves_nothing_behind() {
    let _alone = alone();
    let (model, vars) = language();
    let memory = DeviceMemory::host().open().unwrap();
    let batch = text(16, 32);
    let optimizer = AdamW::new_lr(vars.clone(), 0.01).unwrap();
    let mut trainer = AdaptiveTrainer::builder(vars.clone(), optimizer)
        .memory(&memory)
        .build()
        .unwrap();
    let mut step = || {
        drop(
            trainer
                .step(&batch, |(x, y), _| model.loss(&x, &y))
                .unwrap(),
        )
    };
    // Pools' threads make buffers of their own whenever they first take part, so single jumps are no leak; a leak is in every step.
    let uses: Vec<u64> = (0..30)
        .map(|_| {
            step();
            memory.in_use().unwrap()
        })
        .collect();
    let grown = uses
        .windows(2)
        .filter(|pair| pair[1] > pair[0] + 64)
        .count();
    assert!(grown <= 5, "{uses:?}");
}

/// Promise 6: what a failed micro-batch held is gone before it is tried again.
#[test]
fn nothing_of_a_failed_micro_batch_is_left_when_it_is_tried_again() {
    let _alone = alone();
    let (model, vars) = language();
    let memory = DeviceMemory::host().open().unwrap();
    let batch = text(64, 32);
    let mut trainer = by_sgd(&vars, &memory);
    let uses = RefCell::new(Vec::new());
    for _ in 0..3 {
        trainer
            .step(&batch, |(x, y), _| model.loss(&x, &y))
            .unwrap(); // pools' threads make their buffers
    }
    for phase in [Phase::Backward, Phase::Accumulate] {
        let armed = Faults::in_phase(phase, 0).arm();
        let stepped = trainer.step(&batch, |(x, y), _| {
            uses.borrow_mut().push(memory.in_use().unwrap());
            model.loss(&x, &y)
        });
        assert!(
            stepped.unwrap().peak.unwrap() > uses.borrow()[0] + (20 << 20),
            "graphs are large"
        );
        drop(armed);
    }
    let uses = uses.take();
    let spread = uses.iter().max().unwrap() - uses.iter().min().unwrap();
    assert!(uses.len() >= 4 && spread < 512 << 10, "{uses:?}");
}

/// An update's temporaries do not depend on the micro-batch: they are told.
#[test]
fn an_update_over_the_limit_is_an_event() {
    let _alone = alone();
    let memory = DeviceMemory::host().open().unwrap();
    let w = Var::zeros(1 << 20, DType::F32, &Device::Cpu).unwrap(); // 4 MiB
    let optimizer = AdamW::new_lr(vec![w.clone()], 0.1).unwrap();
    let mut trainer = AdaptiveTrainer::builder(vec![w.clone()], optimizer)
        .memory(&memory)
        .build()
        .unwrap();
    let x = Tensor::ones(2, DType::F32, &Device::Cpu).unwrap();
    let mut step = || {
        trainer
            .step(&x, |x, _| w.narrow(0, 0, 1)?.broadcast_mul(&x)?.mean_all())
            .unwrap()
    };
    let free = step();
    assert!(free.events.is_empty(), "no limit: {:?}", free.events);
    // Room for the gradient's way, not for AdamW's dozen temporaries.
    let limit = memory.in_use().unwrap() + (18 << 20);
    memory.set_limit(limit).unwrap();
    let report = step();
    let over = |event: &Event| matches!(event, Event::OverLimit { peak, .. } if *peak > limit);
    assert!(
        report.updated && report.events.iter().any(over),
        "{:?} {report}",
        report.events
    );
}

/// What would help is counted and ranked in bytes.
#[test]
fn remedies_say_what_they_would_save() {
    let _alone = alone();
    let (model, vars) = language();
    let memory = DeviceMemory::host().open().unwrap();
    let parameters: usize = vars.iter().map(|var| var.elem_count()).sum();
    let (small, large): (Vec<Var>, Vec<Var>) = vars
        .iter()
        .cloned()
        .partition(|var| var.elem_count() < 1000);
    let optimizer = candle_headroom::AdamW::builder(Default::default())
        .group(small)
        .group(large.clone())
        .build()
        .unwrap();
    let mut trainer = AdaptiveTrainer::builder(vars.clone(), optimizer)
        .memory(&memory)
        .build()
        .unwrap();
    memory
        .set_limit(memory.in_use().unwrap() + (400 << 10))
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
    assert!(of("Adafactor") < of("Sgd without momentum"));
    assert!(of("Adafactor") > bytes(7 * parameters));
    let large: usize = large.iter().map(|var| var.elem_count()).sum();
    assert_eq!(of("group 1 not trained"), bytes(12 * large));
    let long = format!("{exhausted:#}");
    assert!(long.contains("Sgd without momentum (saves about"), "{long}");
    memory.set_limit(candle_headroom::Limit::Unlimited).unwrap();
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
        let optimizer = candle_headroom::AdamW::new_lr(named.clone(), 0.01).unwrap();
        let trainer = AdaptiveTrainer::builder(vars.clone(), optimizer);
        let policy = Predictive::new().regardless_of_speed();
        trainer.memory(&memory).policy(policy).build().unwrap()
    };
    let mut first = trainer();
    let limit = memory.in_use().unwrap() + (24 << 20);
    memory.set_limit(limit).unwrap();
    let sizes = |trainer: &mut AdaptiveTrainer<candle_headroom::AdamW>| {
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
    let saved = first.state_dict().unwrap();
    drop(first);

    let mut resumed = trainer();
    resumed.load_state_dict(&saved).unwrap();
    let split = sizes(&mut resumed);
    assert_eq!(split[0], 1, "what is allocated once comes first");
    assert!(split.len() <= settled.len() + 2, "{split:?} {settled:?}");
    assert_eq!(sizes(&mut resumed), settled);

    let before = resumed.learned();
    let mut wrong = saved.clone();
    wrong.tensors.clear();
    assert!(resumed.load_state_dict(&wrong).is_err());
    assert_eq!(resumed.learned(), before, "nothing has changed");
    assert_eq!(sizes(&mut resumed), settled);

    // Unreadable state costs no more than learning again, and another policy is given none.
    let mut strange = saved.clone();
    strange
        .metadata
        .insert("micro_batches.evaluation".to_owned(), "nonsense".to_owned());
    resumed.load_state_dict(&strange).unwrap();
    drop(resumed);
    let optimizer = candle_headroom::AdamW::new_lr(named.clone(), 0.01).unwrap();
    let other = AdaptiveTrainer::builder(vars.clone(), optimizer);
    let mut other = other.policy(Fixed::new(8).unwrap()).build().unwrap();
    other.load_state_dict(&saved).unwrap();
    assert_eq!(other.micro_batch(64), 8);
    memory.set_limit(candle_headroom::Limit::Unlimited).unwrap();
}
