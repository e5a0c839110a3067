//! Several trainers in one process share one limit.

use std::sync::{Barrier, Mutex, mpsc};
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{BatchProcessor, Fixed};
use candle_headroom::error::{Cause, Holding};
use candle_headroom::memory::Limit;
use candle_headroom::{AdaptiveTrainer, ByteSize, DeviceMemory, Error, Sgd};

use crate::support::alone;

const MIB: u64 = 1 << 20;

/// A sample takes about 3 MiB.
fn loss(w: &Var, x: &Tensor) -> candle_core::Result<Tensor> {
    let wide = x.broadcast_mul(w)?; // samples × 262,144
    wide.sqr()?.mean_all()
}

/// A trainer of `w` in micro-batches of at most two samples.
fn trainer(memory: &DeviceMemory, w: &Var) -> AdaptiveTrainer<Sgd> {
    let optimizer = Sgd::builder(vec![w.clone()]).learning_rate(1e-3);
    let builder = AdaptiveTrainer::builder(optimizer.build().unwrap());
    let policy = Fixed::new(2).unwrap();
    builder.memory(memory).policy(policy).build().unwrap()
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
    trainer.step(&x, |x, _| loss(&w, &x)).unwrap(); // one-time allocations

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
    memory.set_limit(Limit::Unlimited).unwrap();
}

/// Evaluation and a processor know less of what is held than a training step, and blame the limit as well.
#[test]
fn what_others_hold_is_named_in_evaluation_and_processing() {
    let _alone = alone();
    let memory = DeviceMemory::host().open().unwrap();
    let w = Var::ones(262_144, DType::F32, &Device::Cpu).unwrap();
    let mut trainer = trainer(&memory, &w);
    let processor = BatchProcessor::builder(Fixed::new(2).unwrap());
    let mut processor = processor.memory(&memory).build();
    let x = Tensor::ones((4, 1), DType::F32, &Device::Cpu).unwrap();
    trainer.step(&x, |x, _| loss(&w, &x)).unwrap(); // one-time allocations

    let other = std::thread::spawn(|| vec![1u8; 40 << 20]).join().unwrap();
    let in_use = memory.in_use().unwrap();
    memory.set_limit(ByteSize(in_use + 2 * MIB)).unwrap();
    let one = x.narrow(0, 0, 1).unwrap();
    let mut work = |bytes: usize| {
        let ballast = move || Ok(vec![1u8; bytes].len());
        let evaluated = trainer.evaluate(&one, |_, _| ballast()).map(|_| ());
        let processed = processor.process(&one, |_, _| ballast()).map(|_| ());
        [evaluated, processed]
    };
    for failed in work(3 << 20) {
        let Err(Error::ResourceExhausted(exhausted)) = failed else {
            panic!("{failed:?}")
        };
        assert_eq!(exhausted.cause, Cause::Limit, "{exhausted:#}");
        let mut held = exhausted.held.iter();
        let others = held.find(|held| held.what == Holding::OTHER);
        assert!(others.unwrap().bytes >= 40 * MIB, "{exhausted:#}");
    }
    // More than the limit by itself, whatever else is in use.
    for failed in work((in_use + 3 * MIB) as usize) {
        let error = failed.unwrap_err();
        let exhausted = error.resource_exhausted().unwrap();
        assert_eq!(exhausted.cause, Cause::NeverFits, "{exhausted:#}");
    }
    drop(other);
    for done in work(1 << 20) {
        done.unwrap();
    }
    memory.set_limit(Limit::Unlimited).unwrap();
}

/// The peak of a batch that failed without losing the window is in the report of the update.
#[test]
fn the_peak_of_a_failed_batch_is_reported() {
    let _alone = alone();
    let memory = DeviceMemory::host().open().unwrap();
    let w = Var::ones(4, DType::F32, &Device::Cpu).unwrap();
    let mut trainer = trainer(&memory, &w);
    let x = Tensor::ones((2, 1), DType::F32, &Device::Cpu).unwrap();
    trainer.accumulate(&x, |x, _| loss(&w, &x)).unwrap();
    let before = memory.in_use().unwrap();
    let failed = trainer.accumulate(&x, |_, _| -> candle_core::Result<Tensor> {
        candle_core::bail!("a bug after {} bytes", vec![1u8; 32 << 20].len())
    });
    assert!(matches!(failed, Err(Error::Candle(_))), "{failed:?}");
    let report = trainer.update().unwrap().expect("one batch");
    assert!(report.peak.unwrap() >= before + 31 * MIB, "{report}");
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
    memory.set_limit(Limit::Unlimited).unwrap();
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
    memory.set_limit(Limit::Unlimited).unwrap();
    assert!(
        peak <= limit + limit / 20,
        "a peak of {peak} with a limit of {limit}"
    );
}

/// A trainer that waits runs its micro-batch before the other one's next.
#[test]
fn whoever_waits_is_next() {
    let _alone = alone();
    // Nobody can tell when the other one waits, and on a busy machine its thread may be late.
    let mut pauses = [300, 3_000, 20_000].into_iter().map(Duration::from_millis);
    assert!(pauses.any(|pause| turns(pause)[..2] == ["first", "other"]));
}

/// Who runs when, where one trainer's step begins while another one's works for so long.
fn turns(pause: Duration) -> Vec<&'static str> {
    let memory = DeviceMemory::host().limit(ByteSize::gib(8)).open().unwrap();
    let x = Tensor::ones((4, 1), DType::F32, &Device::Cpu).unwrap();
    let order = Mutex::new(Vec::new());
    let (sender, first_is_at_work) = mpsc::channel();
    let (beginning, other_begins) = mpsc::channel();
    std::thread::scope(|threads| {
        let other = threads.spawn(|| {
            let w = Var::ones(4, DType::F32, &Device::Cpu).unwrap();
            let mut trainer = trainer(&memory, &w);
            first_is_at_work.into_iter().next().unwrap();
            beginning.send(()).unwrap();
            trainer.step(&x, |x, _| {
                order.lock().unwrap().push("other");
                loss(&w, &x)
            })
        });
        let w = Var::ones(4, DType::F32, &Device::Cpu).unwrap();
        let stepped = trainer(&memory, &w).step(&x, |x, _| {
            order.lock().unwrap().push("first");
            if sender.send(()).is_ok() {
                let begins = other_begins.recv_timeout(Duration::from_secs(60));
                begins.expect("the other one's step");
                std::thread::sleep(pause); // until it waits
            }
            loss(&w, &x)
        });
        assert_eq!(stepped.unwrap().sizes, [2, 2]);
        other.join().unwrap().unwrap();
    });
    order.into_inner().unwrap()
}

/// A thread does not wait for itself.
#[test]
fn a_trainer_may_work_within_another_s_closure() {
    let _alone = alone();
    let memory = DeviceMemory::host().limit(ByteSize::gib(8)).open().unwrap();
    let x = Tensor::ones((4, 1), DType::F32, &Device::Cpu).unwrap();
    let [w, inner_w] = [(); 2].map(|()| Var::ones(4, DType::F32, &Device::Cpu).unwrap());
    let mut inner = trainer(&memory, &inner_w);
    let began = Instant::now();
    let stepped = trainer(&memory, &w).step(&x, |outer, _| {
        inner.step(&x, |x, _| loss(&inner_w, &x)).unwrap();
        loss(&w, &outer)
    });
    assert_eq!(stepped.unwrap().samples, 4);
    assert!(began.elapsed() < Duration::from_secs(30));
}
