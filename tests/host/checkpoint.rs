//! The memory of a checkpoint: a copy of the model where there is room for one.

use std::ops::ControlFlow::Continue;
use std::sync::Barrier;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::checkpoint::{Checkpoint, Checkpoints, Saving};
use candle_headroom::distributed::Group;
use candle_headroom::error::{CheckpointError, GroupError};
use candle_headroom::memory::Limit;
use candle_headroom::optim::ParamsSgd;
use candle_headroom::{AdamW, AdaptiveTrainer, ByteSize, DeviceMemory, Error, Sgd};

use crate::support::alone;

/// Of the model, in bytes.
const MODEL: u64 = 16 << 20;

#[test]
fn it_is_copied_if_there_is_room_and_else_written_in_place() {
    let _alone = alone();
    let temporary = tempfile::tempdir().unwrap();
    let w = Var::ones((MODEL / 4) as usize, DType::F32, &Device::Cpu).unwrap();
    let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.5);
    let mut trainer = AdaptiveTrainer::builder(optimizer.build().unwrap())
        .build()
        .unwrap();
    let builder = Checkpoints::builder(temporary.path()).every_updates(1);
    let mut checkpoints = builder.open().unwrap();
    let x = Tensor::ones(1, DType::F32, &Device::Cpu).unwrap();
    let step = |trainer: &mut AdaptiveTrainer<Sgd>| {
        trainer
            .step(&x, |x, _| w.sum_all()?.broadcast_mul(&x.sum_all()?))
            .unwrap()
    };
    // Gradients and buffers are there from now on.
    step(&mut trainer);

    let memory = DeviceMemory::host().open().unwrap();
    let limit = ByteSize(memory.in_use().unwrap() + 5 * MODEL);
    memory.set_limit(limit).unwrap();
    let report = step(&mut trainer);
    memory
        .set_limit(ByteSize(memory.in_use().unwrap() + MODEL / 2))
        .unwrap();
    let scope = memory.peak_scope();
    let saving = checkpoints.after(&report, &trainer).unwrap();
    assert!(matches!(saving, Continue(Saving::Saved(_))), "{saving:?}");
    let grown = scope.peak().unwrap() - scope.start().unwrap();
    // A buffer of 1 MiB for each of two small files.
    assert!(grown < MODEL / 4, "{grown} bytes for a model of {MODEL}");
    assert_eq!(
        Checkpoint::latest(temporary.path())
            .unwrap()
            .unwrap()
            .step(),
        2
    );

    // Loading keeps the values that it replaces until it has succeeded.
    let error = checkpoints.resume_trainer(&mut trainer).unwrap_err();
    let Error::Checkpoint(error) = error else {
        panic!("{error}")
    };
    assert!(matches!(*error, CheckpointError::Memory { .. }), "{error}");

    memory.set_limit(limit).unwrap();
    let report = step(&mut trainer);
    let scope = memory.peak_scope();
    let saving = checkpoints.after(&report, &trainer).unwrap();
    assert!(matches!(saving, Continue(Saving::Started)), "{saving:?}");
    checkpoints.flush().unwrap();
    let grown = scope.peak().unwrap() - scope.start().unwrap();
    assert!((MODEL..MODEL + MODEL / 4).contains(&grown), "{grown}");
    // The copy's memory is kept for the next one.
    let report = step(&mut trainer);
    let before = memory.in_use().unwrap();
    let scope = memory.peak_scope();
    assert!(checkpoints.after(&report, &trainer).unwrap().is_continue());
    checkpoints.flush().unwrap();
    assert!(scope.peak().unwrap() - before < MODEL / 4);
    checkpoints.resume_trainer(&mut trainer).unwrap().unwrap();
}

/// AdamW's state is twice the model, and is copied in any case: where that takes the room, the model is written in place.
#[test]
fn room_is_asked_for_the_state_and_the_model() {
    let _alone = alone();
    let temporary = tempfile::tempdir().unwrap();
    let w = Var::ones((MODEL / 4) as usize, DType::F32, &Device::Cpu).unwrap();
    let optimizer = AdamW::builder(vec![("w", w.clone())]).build().unwrap();
    let mut trainer = AdaptiveTrainer::builder(optimizer).build().unwrap();
    let builder = Checkpoints::builder(temporary.path()).every_updates(1);
    let mut checkpoints = builder.open().unwrap();
    let x = Tensor::ones(1, DType::F32, &Device::Cpu).unwrap();
    let mut step = || {
        let loss = |x: Tensor, _: &_| w.sum_all()?.broadcast_mul(&x.sum_all()?);
        trainer.step(&x, loss).unwrap()
    };
    step();
    let report = step();
    let memory = DeviceMemory::host().open().unwrap();
    // The model alone would fit beside what is there now.
    let limit = memory.in_use().unwrap() + 2 * MODEL + MODEL / 2;
    memory.set_limit(ByteSize(limit)).unwrap();
    let scope = memory.peak_scope();
    let saving = checkpoints.after(&report, &trainer).unwrap();
    assert!(matches!(saving, Continue(Saving::Saved(_))), "{saving:?}");
    assert!(scope.peak().unwrap() <= limit);
    let report = trainer
        .step(&x, |x, _| w.sum_all()?.broadcast_mul(&x.sum_all()?))
        .unwrap();
    let limit = memory.in_use().unwrap() + 4 * MODEL;
    memory.set_limit(ByteSize(limit)).unwrap();
    let scope = memory.peak_scope();
    let saving = checkpoints.after(&report, &trainer).unwrap();
    assert!(matches!(saving, Continue(Saving::Started)), "{saving:?}");
    checkpoints.flush().unwrap();
    assert!(scope.peak().unwrap() <= limit);
}

/// The ranks of one machine share its memory: each takes a copy of the state.
#[test]
fn ranks_of_one_machine_count_their_copies_together() {
    let _alone = alone();
    let temporary = tempfile::tempdir().unwrap();
    let trainer = || {
        let w = Var::ones((MODEL / 4) as usize, DType::F32, &Device::Cpu).unwrap();
        let params = ParamsSgd {
            momentum: 0.9,
            ..ParamsSgd::default()
        };
        let optimizer = Sgd::builder(vec![("w", w.clone())]).params(params);
        let trainer = AdaptiveTrainer::builder(optimizer.build().unwrap());
        (w, trainer.build().unwrap())
    };
    let (w, mut first) = trainer();
    let x = Tensor::ones(1, DType::F32, &Device::Cpu).unwrap();
    let loss = |x: Tensor| w.sum_all()?.broadcast_mul(&x.sum_all()?);
    first.step(&x, |x, _| loss(x)).unwrap();
    let mut checkpoints = Checkpoints::builder(temporary.path()).open().unwrap();
    checkpoints.save_now(&first).unwrap();
    checkpoints.finish().unwrap();
    drop(first);

    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let memory = DeviceMemory::host().open().unwrap();
    let meet = Barrier::new(2);
    let resume = |rank: usize| {
        let variables = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", "2".to_owned()),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", port.to_string()),
        ];
        let group = Group::builder().variables(variables).open().unwrap();
        let (_w, mut trainer) = trainer();
        let builder = Checkpoints::builder(temporary.path()).group(&group);
        let mut checkpoints = builder.open().unwrap();
        if meet.wait().is_leader() {
            // The parameters that are replaced, and the state: once and a half.
            let limit = memory.in_use().unwrap() + 5 * MODEL / 2;
            memory.set_limit(ByteSize(limit)).unwrap();
        }
        meet.wait();
        checkpoints
            .resume_trainer(&mut trainer)
            .map(drop)
            .unwrap_err()
    };
    let errors = std::thread::scope(|scope| {
        let other = scope.spawn(|| resume(1));
        [resume(0), other.join().unwrap()]
    });
    memory.set_limit(Limit::Unlimited).unwrap();
    let [Error::Checkpoint(first), Error::Group(other)] = &errors else {
        panic!("{errors:?}")
    };
    assert!(matches!(**first, CheckpointError::Memory { .. }), "{first}");
    assert!(
        matches!(**other, GroupError::PeerFailed { rank: 0, .. }),
        "{other}"
    );
}
