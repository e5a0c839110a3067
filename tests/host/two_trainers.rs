//! Several trainers in one process share one limit.

use std::sync::Barrier;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::error::{Cause, Holding};
use candle_headroom::{AdaptiveTrainer, ByteSize, DeviceMemory, Error, Sgd};

use crate::support::alone;

const MIB: u64 = 1 << 20;

/// Each sample needs some 3 MiB.
fn loss(w: &Var, x: &Tensor) -> candle_core::Result<Tensor> {
    let wide = x.broadcast_mul(w)?; // samples × 262,144
    wide.sqr()?.mean_all()
}

#[test]
fn what_others_hold_is_named_where_one_sample_would_fit_alone() {
    let _alone = alone();
    let memory = DeviceMemory::host().open().unwrap();
    let w = Var::ones(262_144, DType::F32, &Device::Cpu).unwrap();
    let optimizer = Sgd::builder(vec![w.clone()])
        .learning_rate(1e-3)
        .build()
        .unwrap();
    let mut trainer = AdaptiveTrainer::builder(optimizer)
        .memory(&memory)
        .build()
        .unwrap();
    let x = Tensor::ones((4, 1), DType::F32, &Device::Cpu).unwrap();
    trainer.step(&x, |x, _| loss(&w, &x)).unwrap(); // makes the allocations of a first step

    let other = std::thread::spawn(|| vec![1u8; 40 << 20]).join().unwrap();
    let limit = memory.in_use().unwrap() + 2 * MIB;
    memory.set_limit(ByteSize(limit)).unwrap();
    let failed = trainer.step(&x, |x, _| loss(&w, &x));
    let Err(Error::ResourceExhausted(exhausted)) = failed else {
        panic!("{failed:?}")
    };
    assert_eq!(exhausted.cause, Cause::Limit, "{exhausted:#}");
    let others = exhausted
        .held
        .iter()
        .find(|held| held.what == Holding::OTHER);
    assert!(
        others.expect("they are named").bytes >= 40 * MIB,
        "{exhausted:#}"
    );

    let advice = exhausted.ranked_remedies().next().unwrap();
    assert!(advice.advice.starts_with("freeing other memory"));
    assert!(advice.saves >= Some(40 * MIB), "{exhausted:#}");

    drop(other);
    let report = trainer.step(&x, |x, _| loss(&w, &x)).unwrap();
    assert_eq!(report.samples, 4, "and training goes on");
    memory
        .set_limit(candle_headroom::memory::Limit::Unlimited)
        .unwrap();
}

#[test]
fn a_sample_that_never_fits_is_still_called_so() {
    let _alone = alone();
    let memory = DeviceMemory::host().open().unwrap();
    let w = Var::ones(262_144, DType::F32, &Device::Cpu).unwrap();
    let optimizer = Sgd::builder(vec![w.clone()])
        .learning_rate(1e-3)
        .build()
        .unwrap();
    let mut trainer = AdaptiveTrainer::builder(optimizer)
        .memory(&memory)
        .build()
        .unwrap();
    let x = Tensor::ones((4, 1), DType::F32, &Device::Cpu).unwrap();
    trainer.step(&x, |x, _| loss(&w, &x)).unwrap();
    let other = vec![1u8; 1 << 20];
    let limit = memory.in_use().unwrap() + MIB / 2;
    memory.set_limit(ByteSize(limit)).unwrap();
    let failed = trainer.step(&x, |x, _| {
        // Exceeds the limit by itself, whatever else the process holds.
        let _ballast = vec![1u8; limit as usize];
        loss(&w, &x)
    });
    let Err(Error::ResourceExhausted(exhausted)) = failed else {
        panic!("{failed:?}")
    };
    assert_eq!(exhausted.cause, Cause::NeverFits, "{exhausted:#}");
    drop(other);
    memory
        .set_limit(candle_headroom::memory::Limit::Unlimited)
        .unwrap();
}

/// Two threads train at the same time. Their micro-batches take turns, so that no step fails and the limit holds.
#[test]
fn two_trainers_on_one_limit_stay_below_it() {
    let _alone = alone();
    let memory = DeviceMemory::host().open().unwrap();
    let x = Tensor::ones((16, 1), DType::F32, &Device::Cpu).unwrap();
    let limit = memory.in_use().unwrap() + 48 * MIB;
    memory.set_limit(ByteSize(limit)).unwrap();
    memory.reset_peak();
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        // Joined one by one, so that thread-local memory is freed before other tests measure.
        let trainers = [(); 2].map(|()| {
            scope.spawn(|| {
                let w = Var::ones(262_144, DType::F32, &Device::Cpu).unwrap();
                let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(1e-3);
                let builder = AdaptiveTrainer::builder(optimizer.build().unwrap());
                let mut trainer = builder.memory(&memory).build().unwrap();
                barrier.wait();
                for _ in 0..12 {
                    let report = trainer.step(&x, |x, _| loss(&w, &x)).unwrap();
                    assert_eq!(report.samples, 16);
                }
            })
        });
        for trainer in trainers {
            trainer.join().unwrap();
        }
    });
    let peak = memory.stats().peak.unwrap();
    memory
        .set_limit(candle_headroom::memory::Limit::Unlimited)
        .unwrap();
    assert!(
        peak <= limit + limit / 20,
        "a peak of {peak} with a limit of {limit}"
    );
}
