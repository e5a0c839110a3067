//! A rank in trouble, and what the others see of it.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use candle_core::{DType, Tensor};
use candle_headroom::batch::{
    Batch, CutFinding, EventKind, Extent, Fixed, MicroBatch, Observer, TrainingEvent,
};
use candle_headroom::distributed::Group;
use candle_headroom::error::{CutCause, GroupError};
use candle_headroom::{AdaptiveTrainer, Error, Sgd};

use crate::launch::{is_rank, mpirun, open, text, together};
use crate::model::{Model, cut, data};

fn trainer(model: &Model, group: &Group) -> candle_headroom::Result<AdaptiveTrainer<Sgd>> {
    let sgd = Sgd::builder(&model.varmap).learning_rate(0.1).build()?;
    AdaptiveTrainer::builder(sgd)
        .group(group)
        .policy(Fixed::new(2)?)
        .build()
}

fn group_error(error: &Error) -> &GroupError {
    match error {
        Error::Group(error) => error,
        other => panic!("not a group's error: {other}"),
    }
}

/// A batch that one rank cannot read is that rank's error, and the others hear of it at once, also of an update of several batches.
#[test]
fn a_batch_that_cannot_be_read_on_one_rank_is_told_to_the_others() {
    together(3, |group| {
        let model = Model::new(&[3, 5, 2], DType::F32, 7);
        let mut trainer = trainer(&model, group).expect("a trainer");
        for failing in 0..group.size() {
            let batch = data(6, (3, 2), DType::F32, failing as u64);
            let before = model.values();
            if failing == 1 {
                let done = trainer.accumulate(&batch, |(x, y), _| model.loss(&x, &y));
                done.expect("a batch");
            }
            let item = match group.rank() == failing {
                true => Err(std::io::Error::other("shard 3 is damaged")),
                false => Ok(batch.clone()),
            };
            let began = Instant::now();
            let error = trainer.step(item, |(x, y), _| model.loss(&x, &y));
            let mut error = error.expect_err("a batch that one rank does not have");
            assert!(began.elapsed() < Duration::from_secs(20));
            if failing == 1 {
                // The batches before it are lost on all ranks alike.
                let Error::WindowLost(lost) = error else {
                    panic!("{error}")
                };
                assert_eq!(lost.samples, 6);
                error = lost.reason;
            }
            if group.rank() == failing {
                let own = error.downcast_ref::<std::io::Error>();
                assert_eq!(own.expect("its own").to_string(), "shard 3 is damaged");
            } else {
                match group_error(&error) {
                    GroupError::PeerFailed { rank, reason, .. } => {
                        assert_eq!(*rank, failing);
                        assert!(reason.contains("shard 3 is damaged"), "{reason}");
                    }
                    other => panic!("{other}"),
                }
            }
            assert_eq!(model.values(), before);
            let report = trainer.step(&batch, |(x, y), _| model.loss(&x, &y));
            assert_eq!(report.expect("the next step").step, failing as u64 + 1);
        }
    });
}

/// Each rank checks its closure by itself, before it meets the others.
#[test]
fn a_loss_that_depends_on_the_cut_on_one_rank_leaves_all_as_they_were() {
    together(3, |group| {
        let model = Model::new(&[3, 5, 2], DType::F32, 7);
        let mut trainer = trainer(&model, group).expect("a trainer");
        let batch = data(6, (3, 2), DType::F32, 3);
        let before = model.values();
        let failed = trainer.step(&batch, |(x, y), _| match group.rank() {
            1 => model.loss(&x, &y)? * x.dim(0)? as f64,
            _ => model.loss(&x, &y),
        });
        let error = failed.expect_err("a sum");
        match (group.rank(), &error) {
            (1, Error::DependsOnCut(error)) => {
                assert_eq!(error.cause, CutCause::Sum, "{error}");
            }
            (_, error) => match group_error(error) {
                GroupError::PeerFailed { rank, reason, .. } => {
                    assert_eq!(*rank, 1);
                    assert!(
                        reason.contains("depends on how the batch is cut"),
                        "{reason}"
                    );
                }
                other => panic!("{other}"),
            },
        }
        assert_eq!(model.values(), before);
        let report = trainer.step(&batch, |(x, y), _| model.loss(&x, &y));
        let report = report.expect("the next step");
        let checked = report.cut_check().map(|check| &check.finding);
        // The other ranks had checked theirs.
        let expected = (group.rank() == 1).then_some(&CutFinding::Agrees);
        assert_eq!((report.step, checked), (1, expected));
    });
}

/// A batch with a bug of its own.
struct Buggy;

impl Batch for Buggy {
    type Slice<'a> = Tensor;

    fn extent(&self) -> candle_headroom::Result<Extent> {
        panic!("on purpose")
    }

    fn slice(&self, _: Range<usize>) -> candle_headroom::Result<Tensor> {
        panic!("on purpose")
    }
}

/// Otherwise the others would train on this batch together with this rank's next one.
#[test]
fn a_panic_of_a_batch_that_is_caught_is_told_to_the_others() {
    together(2, |group| {
        let model = Model::new(&[3, 2], DType::F32, 7);
        let mut trainer = trainer(&model, group).expect("a trainer");
        let batch = data(4, (3, 2), DType::F32, 0);
        if group.rank() == 1 {
            let step = std::panic::AssertUnwindSafe(|| trainer.step(&Buggy, |x, _| x.mean_all()));
            assert!(std::panic::catch_unwind(step).is_err());
        } else {
            let done = trainer.step(&batch, |(x, y), _| model.loss(&x, &y));
            let error = done.expect_err("the other panicked");
            assert!(
                matches!(group_error(&error), GroupError::PeerFailed { rank: 1, .. }),
                "{error}"
            );
        }
        trainer
            .step(&batch, |(x, y), _| model.loss(&x, &y))
            .expect("the next step");
    });
}

#[test]
fn different_models_are_refused_on_every_rank() {
    together(2, |group| {
        let width = 4 + group.rank();
        let model = Model::new(&[3, width, 2], DType::F32, 7);
        let error = trainer(&model, group).expect_err("other shapes");
        let text = error.to_string();
        assert!(
            text.contains("on rank 1 `0.bias` is [5] F32")
                && text.contains("not on rank 1: `0.bias` is [4] F32"),
            "{text}"
        );
        // So do optimizers of which one is sharded, or that have other rates.
        for is_sharded in [true, false] {
            let model = Model::new(&[3, 2], DType::F32, 7);
            let rank = group.rank();
            let sgd = Sgd::builder(&model.varmap).learning_rate(0.1 + 0.1 * rank as f64);
            let sgd = if is_sharded && rank == 1 {
                sgd.sharded()
            } else {
                sgd
            };
            let trainer = AdaptiveTrainer::builder(sgd.build().expect("an optimizer")).group(group);
            let text = trainer.build().expect_err("other options").to_string();
            assert!(
                text.contains("on rank 1 `lr` is 0.2") || text.contains("`learning_rate` is 0.2"),
                "{text}"
            );
            assert!(
                !is_sharded || text.contains("on rank 1 state is sharded"),
                "{text}"
            );
        }
        // Or parameters that need no gradient.
        let model = Model::new(&[3, 2], DType::F32, 7);
        let sgd = Sgd::builder(&model.varmap).build().expect("an optimizer");
        let allowed = if group.rank() == 1 {
            vec!["*.bias"]
        } else {
            vec![]
        };
        let other = AdaptiveTrainer::builder(sgd)
            .group(group)
            .allow_unreached(allowed);
        let text = other.build().expect_err("other options").to_string();
        assert!(
            text.contains("on rank 1 gradients arrive within 1 updates"),
            "{text}"
        );
        // The group still works.
        let model = Model::new(&[3, 2], DType::F32, 7);
        trainer(&model, group).expect("equal shapes");
    });
}

#[derive(Debug, Default)]
struct Steps(Mutex<Vec<(u64, usize)>>);

impl Observer for Steps {
    fn observe(&self, event: &TrainingEvent<'_>) {
        if let EventKind::BatchBegan { samples, .. } = event.kind {
            self.0
                .lock()
                .expect("the steps")
                .push((event.step, samples));
        }
    }
}

/// A rank whose part of a batch is empty counts it as the others do, in events and in seeds.
#[test]
fn an_empty_part_of_a_batch_has_the_batchs_number() {
    together(2, |group| {
        let model = Model::new(&[3, 2], DType::F32, 7);
        let sgd = Sgd::builder(&model.varmap).build().expect("an optimizer");
        let steps = Arc::new(Steps::default());
        let trainer = AdaptiveTrainer::builder(sgd).group(group);
        let trainer = trainer.observer(Arc::clone(&steps)).build();
        let mut trainer = trainer.expect("a trainer");
        let mut seen = Vec::new();
        for number in 0..4 {
            let batch = data(4, (3, 2), DType::F32, number);
            // Rank 0 has nothing of every second batch.
            let len = if group.rank() == 0 && number % 2 == 1 {
                0
            } else {
                2
            };
            let batch = cut(&batch, 0..len);
            let mut loss = |(x, y), micro: &MicroBatch| {
                seen.push(micro.step);
                model.loss(&x, &y)
            };
            if number < 2 {
                trainer.accumulate(&batch, &mut loss).expect("a batch");
            } else {
                trainer.step(&batch, &mut loss).expect("a step");
            }
        }
        let steps = steps.0.lock().expect("the steps");
        let expected = match group.rank() {
            0 => ([(0, 2), (1, 0), (2, 2), (3, 0)], vec![0, 2]),
            _ => ([(0, 2), (1, 2), (2, 2), (3, 2)], vec![0, 1, 2, 3]),
        };
        assert_eq!((&steps[..], seen), (&expected.0[..], expected.1));
    });
}

#[test]
fn different_calls_are_refused_on_every_rank() {
    together(2, |group| {
        let model = Model::new(&[3, 2], DType::F32, 7);
        let mut trainer = trainer(&model, group).expect("a trainer");
        let error = match group.rank() {
            0 => group.barrier().expect_err("the other steps"),
            _ => {
                let batch = data(4, (3, 2), DType::F32, 0);
                trainer
                    .step(&batch, |(x, y), _| model.loss(&x, &y))
                    .expect_err("the other waits")
            }
        };
        assert!(error.is_group(), "{error}");
        let calls = "the ranks called different methods: rank 0 `barrier`, rank 1 `update`;";
        assert!(error.to_string().starts_with(calls), "{error}");
    });
}

#[test]
fn a_rank_that_diverges_is_named() {
    together(3, |group| {
        let model = Model::new(&[3, 2], DType::F32, 7);
        let sgd = Sgd::builder(&model.varmap)
            .learning_rate(0.1)
            .build()
            .expect("an optimizer");
        let trainer = AdaptiveTrainer::builder(sgd).group(group).compare_every(4);
        let mut trainer = trainer.build().expect("a trainer");
        let batch = data(4, (3, 2), DType::F32, 0);
        for update in 0..8 {
            if update == 2 && group.rank() == 1 {
                trainer.optimizer_mut().set_learning_rate(0.2);
            }
            let done = trainer.step(&batch, |(x, y), _| model.loss(&x, &y));
            if update < 4 {
                done.expect("not noticed yet");
                continue;
            }
            let error = done.expect_err("compared");
            let text =
                "after 4 updates the parameters of rank 1 differ from those of the other ranks";
            assert!(
                error.is_group() && error.to_string().starts_with(text),
                "{error}"
            );
            break;
        }
    });
}

/// Each rank processes a part; the whole comes in order, or the error.
#[test]
fn results_are_collected_in_order() {
    together(3, |group| {
        let batch = data(10, (3, 2), DType::F32, 0);
        let part = cut(&batch, group.share(10));
        let rows =
            candle_headroom::process_batches(&part.0, 2, |x| x.sum_all()?.to_scalar::<f32>());
        let all = group.collect(rows).expect("results");
        assert_eq!(all.len(), group.hosts().len() * 2);
        let expected = group.collect::<f32>(match group.rank() {
            1 => Err(Error::external(std::io::Error::other("on purpose"))),
            _ => Ok(vec![1.]),
        });
        let error = expected.expect_err("rank 1 failed");
        assert!(error.to_string().contains("on purpose"), "{error}");
    });
}

/// This crate's communicator returns errors. The program's own ends the process, as MPI says.
#[test]
fn an_error_of_the_programs_own_communication_is_not_swallowed() {
    use mpi::traits::*;

    if is_rank() {
        let group = open();
        let world = mpi::topology::SimpleCommunicator::world();
        match group.rank() {
            0 => {
                let mut too_small = [0u8; 2];
                world.process_at_rank(1).receive_into(&mut too_small);
                println!("went on with {too_small:?}");
            }
            _ => world.process_at_rank(0).send(&[7u8; 4]),
        }
        return;
    }
    let output = mpirun(2, &[]);
    let text = text(&output);
    // MPI's own message is sometimes lost when it ends the process.
    assert!(
        !output.status.success() && !text.contains("went on"),
        "{text}"
    );
}
