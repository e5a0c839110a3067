//! The memory of a checkpoint: a copy of the model where there is room for one.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow::Continue;
use std::path::Path;
use std::sync::Barrier;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::checkpoint::{Checkpoint, Checkpoints, Saving};
use candle_headroom::distributed::Group;
use candle_headroom::error::{Cause, GroupError, Phase, Resource};
use candle_headroom::memory::Limit;
use candle_headroom::optim::{Parameter, ParamsSgd, StateDict};
use candle_headroom::train::Resumable;
use candle_headroom::{AdamW, AdaptiveTrainer, ByteSize, DeviceMemory, Error, Result, Sgd};

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
    let exhausted = error.resource_exhausted().expect("an exhaustion");
    let is = (exhausted.resource, exhausted.cause, exhausted.phase);
    assert_eq!(is, (Resource::HostMemory, Cause::Limit, Some(Phase::Load)));
    let path = temporary.path().join("step-000000002");
    let remedy = exhausted.remedies[0].to_string();
    assert!(
        remedy.contains(&format!("loading {}", path.display())),
        "{remedy}"
    );

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

/// Nobody needs back the values that a new trainer was made with.
#[test]
fn a_new_trainer_keeps_no_copy_of_what_it_replaces() {
    let _alone = alone();
    let temporary = tempfile::tempdir().unwrap();
    let make = || {
        let var = || Var::ones((MODEL / 4 / 8) as usize, DType::F32, &Device::Cpu).unwrap();
        let vars: Vec<_> = (0..8).map(|index| (format!("w{index}"), var())).collect();
        let optimizer = Sgd::builder(vars).build().unwrap();
        AdaptiveTrainer::builder(optimizer).build().unwrap()
    };
    let mut checkpoints = Checkpoints::builder(temporary.path()).open().unwrap();
    checkpoints.save_now(&make()).unwrap();
    checkpoints.finish().unwrap();
    let memory = DeviceMemory::host().open().unwrap();
    let latest = Checkpoint::latest(temporary.path()).unwrap().unwrap();
    let grown = |trainer: &mut AdaptiveTrainer<Sgd>| {
        let scope = memory.peak_scope();
        latest.resume(trainer).unwrap();
        scope.peak().unwrap() - scope.start().unwrap()
    };
    let mut trainer = make();
    // One parameter at a time is read.
    let new = grown(&mut trainer);
    assert!(new < MODEL / 4, "{new}");
    // It has values now that somebody may want back.
    let loaded = grown(&mut trainer);
    assert!((MODEL..MODEL + MODEL / 4).contains(&loaded), "{loaded}");
}

/// A trainer whose state is as large as the model, and has come with its first update.
fn with_momentum() -> (Var, AdaptiveTrainer<Sgd>) {
    let w = Var::ones((MODEL / 4) as usize, DType::F32, &Device::Cpu).unwrap();
    let params = ParamsSgd {
        momentum: 0.9,
        ..ParamsSgd::default()
    };
    let optimizer = Sgd::builder(vec![("w", w.clone())]).params(params);
    let trainer = AdaptiveTrainer::builder(optimizer.build().unwrap());
    (w, trainer.build().unwrap())
}

/// Takes memory when its model is asked for, and waits until others have done so.
struct Taking<'a> {
    trainer: AdaptiveTrainer<Sgd>,
    bytes: usize,
    taken: OnceCell<Vec<u8>>,
    all_have: Option<&'a Barrier>,
}

impl Resumable for Taking<'_> {
    fn model(&self) -> Vec<Parameter> {
        self.taken.get_or_init(|| {
            let taken = vec![1; self.bytes];
            self.all_have.map(Barrier::wait);
            taken
        });
        self.trainer.model()
    }

    fn state(&self) -> Result<StateDict> {
        self.trainer.state()
    }

    fn progress(&self) -> Result<BTreeMap<String, String>> {
        self.trainer.progress()
    }

    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        self.trainer.load_state(state)
    }

    fn updates(&self) -> u64 {
        self.trainer.updates()
    }
}

/// Resumes on all ranks of this process with this room for all of them, where all ranks but the first take `bytes` before they look for room.
/// Returns their errors.
fn resume_with(ranks: usize, room: u64, bytes: usize) -> Vec<Error> {
    let temporary = tempfile::tempdir().unwrap();
    let (w, mut first) = with_momentum();
    let x = Tensor::ones(1, DType::F32, &Device::Cpu).unwrap();
    let loss = |x: Tensor| w.sum_all()?.broadcast_mul(&x.sum_all()?);
    first.step(&x, |x, _| loss(x)).unwrap();
    let mut checkpoints = Checkpoints::builder(temporary.path()).open().unwrap();
    checkpoints.save_now(&first).unwrap();
    checkpoints.finish().unwrap();
    drop((first, w));

    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let memory = DeviceMemory::host().open().unwrap();
    let (meet, taken) = (Barrier::new(ranks), Barrier::new(ranks - 1));
    let resume = |rank: usize, folder: &Path| {
        let variables = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", ranks.to_string()),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", port.to_string()),
        ];
        let group = Group::builder().variables(variables).open().unwrap();
        let mut trainer = Taking {
            trainer: with_momentum().1,
            bytes: if rank == 0 { 0 } else { bytes },
            taken: OnceCell::new(),
            all_have: (rank > 0).then_some(&taken),
        };
        let builder = Checkpoints::builder(folder).group(&group);
        let mut checkpoints = builder.open().unwrap();
        if meet.wait().is_leader() {
            let limit = memory.in_use().unwrap() + room;
            memory.set_limit(ByteSize(limit)).unwrap();
        }
        meet.wait();
        let error = checkpoints
            .resume_trainer(&mut trainer)
            .map(drop)
            .unwrap_err();
        // No rank has freed anything while another one looks.
        meet.wait();
        error
    };
    let errors = std::thread::scope(|scope| {
        let (resume, folder) = (&resume, temporary.path());
        let ranks = (0..ranks).map(|rank| scope.spawn(move || resume(rank, folder)));
        let ranks: Vec<_> = ranks.collect();
        let errors = ranks.into_iter().map(|rank| rank.join().unwrap());
        errors.collect()
    });
    memory.set_limit(Limit::Unlimited).unwrap();
    errors
}

/// The bytes for which a rank found no room.
fn wanted(error: &Error) -> u64 {
    match error {
        Error::ResourceExhausted(exhausted) => exhausted.bytes.requested.unwrap(),
        _ => panic!("{error}"),
    }
}

/// The rank whose error this rank has.
fn failed(error: &Error) -> usize {
    match error {
        Error::Group(error) => match **error {
            GroupError::PeerFailed { rank, .. } => rank,
            _ => panic!("{error}"),
        },
        _ => panic!("{error}"),
    }
}

/// The ranks of one machine share its memory: each takes a copy of the state.
#[test]
fn ranks_of_one_machine_count_their_copies_together() {
    let _alone = alone();
    // The parameters that are replaced, and the state: once and a half.
    let errors = resume_with(2, 5 * MODEL / 2, 0);
    assert!(wanted(&errors[0]) >= 3 * MODEL, "{errors:?}");
    assert_eq!(failed(&errors[1]), 0);
}

/// There was room when rank 0 looked. Then the others look, each of which knows of the others, none of whom has taken a copy.
#[test]
fn ranks_beside_rank_0_count_their_copies_together() {
    let _alone = alone();
    // For rank 0 the parameters that are replaced and the state three times; then less, since each of the others takes three quarters.
    let (room, taken) = (4 * MODEL + MODEL / 4, 3 * MODEL / 4);
    let errors = resume_with(3, room, taken as usize);
    assert_eq!(failed(&errors[0]), 1);
    for error in &errors[1..] {
        assert!(
            (3 * MODEL..3 * MODEL + MODEL / 4).contains(&wanted(error)),
            "{errors:?}"
        );
    }
}
