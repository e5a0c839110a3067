//! Promise 6, cleanup before a retry. Compiled into the test program `host`, which counts allocations. On CUDA: tests/cuda/recovery.rs.

use std::cell::RefCell;

use candle_core::DType;
use candle_headroom::error::Phase;
use candle_headroom::testing::Faults;
use candle_headroom::{AdaptiveTrainer, DeviceMemory};

use crate::language::{by_sgd, language, text};
use crate::support::{self, Halves, Mlp, adamw, alone};

#[test]
fn a_size_that_has_worked_is_tried_once_more_before_it_shrinks() {
    let _alone = alone();
    let model = Mlp::new(DType::F32);
    let batch = Mlp::data(16, DType::F32);
    let mut trainer = support::by_sgd(&model).policy(Halves(8)).build().unwrap();
    let mut step = || {
        trainer
            .step(&batch, |(x, y), _| model.loss(&x, &y))
            .unwrap()
    };
    step();
    let armed = Faults::in_phase(Phase::Forward, 0).arm();
    let report = step();
    drop(armed);
    assert_eq!((report.sizes, report.retries), (vec![8, 8], 1));
    let armed = Faults::in_phase(Phase::Forward, 0).times(2).arm();
    let report = step();
    drop(armed);
    assert_eq!((report.sizes, report.retries), (vec![4; 4], 2));
}

#[test]
fn a_settled_step_leaves_nothing_behind() {
    let _alone = alone();
    let (model, vars) = language();
    let memory = DeviceMemory::host().open().unwrap();
    let batch = text(16, 32);
    let mut trainer = AdaptiveTrainer::builder(adamw(&vars, 0.01))
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
    // A pool's thread allocates its own buffers the first time it works, and there are only so many threads: one of these rounds ends with
    // not a byte more than it began with. What leaks in one step of ten grows in all of them.
    let mut least = || {
        let uses = (0..10).map(|_| {
            step();
            memory.in_use().unwrap()
        });
        uses.min().unwrap()
    };
    let mut uses = Vec::with_capacity(30); // counted, too
    uses.push(least());
    while uses.len() < 30 {
        uses.push(least());
        if let [.., before, now] = uses[..]
            && now <= before
        {
            return;
        }
    }
    panic!("it grows: {uses:?}");
}

/// The memory of a failed micro-batch is freed before it is tried again.
#[test]
fn nothing_of_a_failed_micro_batch_is_left_when_it_is_tried_again() {
    let _alone = alone();
    let (model, vars) = language();
    let memory = DeviceMemory::host().open().unwrap();
    let batch = text(192, 32);
    let mut trainer = by_sgd(&vars, &memory);
    let uses = RefCell::new(Vec::new());
    for _ in 0..3 {
        trainer
            .step(&batch, |(x, y), _| model.loss(&x, &y))
            .unwrap(); // the pools' threads allocate their buffers
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
