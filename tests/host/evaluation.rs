//! `AdaptiveTrainer::evaluate` and `find_batch_size`.

use std::cell::{Cell, RefCell};

use crate::support::{ConvNet, Mlp, alone, distance, flat, snapshot};
use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{Fixed, Samples, find_batch_size};
use candle_headroom::error::{Cause, Phase};
use candle_headroom::memory::Limit;
use candle_headroom::testing::{Faults, illegal_address, out_of_memory};
use candle_headroom::{AdaptiveTrainer, ByteSize, DeviceMemory, Error, Sgd};
use candle_nn::ModuleT;
use proptest::prelude::*;

#[test]
fn a_metric_counts_each_sample_once_or_is_not_there() {
    let _alone = alone();
    let model = Mlp::new(DType::F32);
    let optimizer = Sgd::builder(model.vars.clone())
        .learning_rate(0.1)
        .build()
        .unwrap();
    let mut trainer = AdaptiveTrainer::builder(optimizer).build().unwrap();
    let (x, _) = Mlp::data(50, DType::F32);
    let expected = [flat(&model.forward(&x).unwrap())];
    for point in 0..4 {
        let armed = Faults::in_phase(Phase::Forward, point).times(2).arm();
        let evaluated = trainer.evaluate(&x, |x, _| Ok(flat(&model.forward(&x)?)));
        drop(armed);
        // Other splits round differently.
        let found = [evaluated.unwrap().results.concat()];
        assert!(distance(&found, &expected) < 1e-5, "point {point}");
    }
    let before = snapshot(&model.vars);
    let chunks = Cell::new(0);
    let error = trainer.evaluate(&x, |x, _| {
        chunks.set(chunks.get() + 1);
        match chunks.get() {
            1 => Err(out_of_memory()),
            2 => Ok(flat(&x)),
            _ => Err(illegal_address()),
        }
    });
    assert!(matches!(error, Err(Error::DeviceFault(_))));
    assert_eq!((snapshot(&model.vars), trainer.updates()), (before, 0));
}

#[test]
fn named_buffers_are_what_they_were() {
    let _alone = alone();
    let net = ConvNet::new();
    let optimizer = Sgd::builder(net.trained())
        .learning_rate(0.1)
        .build()
        .unwrap();
    let mut trainer = AdaptiveTrainer::builder(optimizer)
        .buffers([net.norm.running_mean(), net.norm.running_var()])
        .build()
        .unwrap();
    let (x, _) = ConvNet::data(6);
    let before = snapshot(&net.vars);
    let wide = x.repeat((1, 4, 1, 1)).unwrap();
    // In training mode, by mistake.
    trainer
        .evaluate(&wide, |x, _| net.norm.forward_t(&x, true)?.sum_all())
        .unwrap();
    assert_eq!(snapshot(&net.vars), before);
}

/// More samples fit without gradients, so evaluation learns sizes of its own.
#[test]
fn evaluation_has_a_model_of_its_own() {
    let _alone = alone();
    let model = Mlp::new(DType::F32);
    let memory = DeviceMemory::host().open().unwrap();
    memory
        .set_limit(ByteSize::b(memory.in_use().unwrap() + (8 << 20)))
        .unwrap();
    let optimizer = Sgd::builder(model.vars.clone())
        .learning_rate(0.1)
        .build()
        .unwrap();
    let mut trainer = AdaptiveTrainer::builder(optimizer)
        .memory(&memory)
        .build()
        .unwrap();
    let data = Mlp::data(4000, DType::F32);
    // Each sample takes 4 KiB, and in training 8 KiB more.
    let ballast =
        |x: &Tensor, count: usize| Tensor::zeros((x.dim(0)?, count), DType::F32, &Device::Cpu);
    for _ in 0..3 {
        trainer
            .step(&data, |(x, y), _| {
                let _ballast = ballast(&x, 3072)?;
                model.loss(&x, &y)
            })
            .unwrap();
        let evaluated = trainer.evaluate(&data.0, |x, _| {
            let _ballast = ballast(&x, 1024)?;
            Ok(flat(&model.forward(&x)?).len())
        });
        let evaluated = evaluated.unwrap();
        assert_eq!(evaluated.retries, 0);
        assert_eq!(evaluated.results.iter().sum::<usize>(), 4000 * 3);
        assert!(evaluated.peak.unwrap() <= memory.limit().unwrap());
    }
    let (training, evaluation) = (trainer.plan().unwrap(), trainer.evaluation_plan().unwrap());
    let text = format!("{training}\n{evaluation}");
    assert!(
        training.each.unwrap() > 2 * evaluation.each.unwrap(),
        "{text}"
    );
    assert!(
        evaluation.fits.unwrap() > 2 * training.fits.unwrap(),
        "{text}"
    );
    assert!(
        text.starts_with("base ") && text.contains("\nbase "),
        "{text}"
    );
    let json = serde_json::to_value(training).unwrap();
    assert_eq!(json["each"], training.each.unwrap());
    assert!(json["reason"].is_string());
}

#[test]
fn the_largest_batch_is_found_within_a_limit_that_is_kept() {
    let _alone = alone();
    let memory = DeviceMemory::host().open().unwrap();
    let start = memory.in_use().unwrap();
    memory.set_limit(ByteSize::b(start + (20 << 20))).unwrap();
    let scope = memory.peak_scope();
    let sizes = RefCell::new(Vec::new());
    let found = find_batch_size(&Device::Cpu, Some(&memory), 4096, |size| {
        sizes.borrow_mut().push(size);
        Tensor::zeros((size, 64 << 10), DType::U8, &Device::Cpu) // 64 KiB each: 320
    });
    let found = found.unwrap();
    let sizes = sizes.take();
    assert!((312..=320).contains(&found), "{found} {sizes:?}");
    assert!(sizes.len() <= 8, "{sizes:?}");
    assert!(scope.peak().unwrap() <= memory.limit().unwrap());

    let nothing = find_batch_size(&Device::Cpu, Some(&memory), 8, |size| {
        Tensor::zeros((size, 64 << 20), DType::U8, &Device::Cpu)
    });
    let error = nothing.unwrap_err();
    let exhausted = error.resource_exhausted().unwrap();
    assert_eq!(exhausted.cause, Cause::NeverFits);
    assert!(exhausted.bytes.peak.unwrap() > exhausted.bytes.limit.unwrap());
}

/// Curves with a base of more than half of the room, and with a workspace that is needed from some size on.
#[test]
fn the_largest_batch_is_found_with_few_calls_on_every_curve() {
    let _alone = alone();
    let memory = DeviceMemory::host().open().unwrap();
    let start = memory.in_use().unwrap();
    memory.set_limit(ByteSize::b(start + (50 << 20))).unwrap();
    for (base, from, workspace, expected) in [
        (26, usize::MAX, 0, 88..=96),
        (30, usize::MAX, 0, 72..=80),
        (45, usize::MAX, 0, 16..=20),
        (0, 65, 35, 64..=64),
        (0, 100, 20, 110..=120),
    ] {
        let mut calls = 0;
        let found = find_batch_size(&Device::Cpu, Some(&memory), 4096, |size| {
            calls += 1;
            let extra = if size >= from { workspace } else { 0 };
            let bytes = ((base + extra) << 20) + size * (256 << 10);
            Ok(vec![1u8; bytes])
        });
        let found = found.unwrap();
        assert!(expected.contains(&found), "{base} {workspace}: {found}");
        assert!(calls <= 14, "{base} {workspace}: {calls}");
    }
    memory.set_limit(Limit::Unlimited).unwrap();
}

/// A forward pass whose base takes more than half of the room.
#[test]
fn a_large_base_does_not_keep_evaluation_at_one_sample() {
    let _alone = alone();
    let memory = DeviceMemory::host().open().unwrap();
    let start = memory.in_use().unwrap();
    memory.set_limit(ByteSize::b(start + (50 << 20))).unwrap();
    let model = Mlp::new(DType::F32);
    let optimizer = Sgd::builder(model.vars.clone())
        .learning_rate(0.1)
        .build()
        .unwrap();
    let mut trainer = AdaptiveTrainer::builder(optimizer)
        .memory(&memory)
        .build()
        .unwrap();
    let data = [0u8; 400];
    let mut evaluate = || {
        let evaluated = trainer.evaluate(&Samples(&data), |chunk, _| {
            Ok(vec![1u8; (30 << 20) + chunk.len() * (64 << 10)].len())
        });
        let evaluated = evaluated.unwrap();
        assert!(evaluated.peak.unwrap() <= memory.limit().unwrap());
        evaluated.sizes.len()
    };
    assert!(evaluate() <= 12);
    assert_eq!(evaluate(), 2);
    memory.set_limit(Limit::Unlimited).unwrap();
}

#[test]
fn bad_input_and_other_errors_come_back_at_once() {
    let _alone = alone();
    let error = find_batch_size(&Device::Cpu, None, 0, |_| Ok(())).unwrap_err();
    assert!(error.is_policy(), "{error}");
    let calls = Cell::new(0);
    let error = find_batch_size(&Device::Cpu, None, 64, |size| {
        calls.set(calls.get() + 1);
        match size {
            4 => candle_core::bail!("a bug"),
            _ => Ok(()),
        }
    });
    assert!(matches!(error, Err(Error::Candle(_))));
    assert_eq!(calls.get(), 3);
    let error = find_batch_size(&Device::Cpu, None, 64, |_| -> candle_core::Result<()> {
        Err(out_of_memory())
    });
    let error = error.unwrap_err();
    assert_eq!(error.resource_exhausted().unwrap().cause, Cause::NeverFits);
}

#[test]
fn it_is_the_largest() {
    let _alone = alone();
    proptest!(|(room in 1usize..3000, limit in 1usize..3000)| {
        let found = find_batch_size(&Device::Cpu, None, limit, |size| match size > room {
            true => Err(out_of_memory()),
            false => Ok(()),
        });
        prop_assert_eq!(found.unwrap(), room.min(limit));
    });
}

#[test]
fn evaluation_is_cut_by_a_policy_of_its_own() {
    let _alone = alone();
    let w = Var::ones(2, DType::F32, &Device::Cpu).unwrap();
    let optimizer = Sgd::builder(vec![w.clone()])
        .learning_rate(0.1)
        .build()
        .unwrap();
    let mut trainer = AdaptiveTrainer::builder(optimizer)
        .policy(Fixed::new(3).unwrap())
        .evaluation_policy(Fixed::new(8).unwrap())
        .build()
        .unwrap();
    let x = Tensor::ones((20, 2), DType::F32, &Device::Cpu).unwrap();
    let evaluated = trainer.evaluate(&x, |_, _| Ok(())).unwrap();
    assert_eq!(evaluated.sizes, [8, 8, 4]);
    assert_eq!(trainer.micro_batch(20), 3);
}
