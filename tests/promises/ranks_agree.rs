//! Promise 13: all ranks apply the same update or none does; a lost rank is an error on every other one, never a hang. Part of the suite `ranks`,
//! which needs MPI.

use std::time::{Duration, Instant};

use candle_core::DType;
use candle_headroom::batch::Halving;
use candle_headroom::distributed::Group;
use candle_headroom::error::{GroupError, Phase};
use candle_headroom::testing::Faults;
use candle_headroom::{AdamW, AdaptiveTrainer, Error};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::launch::{is_rank, mpirun, open, text, together};
use crate::model::{Model, cut, data};

/// What happens to one rank in a step.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trouble {
    None,
    /// Memory runs out once, and the micro-batch is computed again.
    Passing(Phase),
    /// Memory stays out.
    Lasting(Phase),
    /// The closure fails.
    Error,
}

const TROUBLES: [Trouble; 6] = [
    Trouble::None,
    Trouble::Passing(Phase::Forward),
    Trouble::Passing(Phase::Backward),
    Trouble::Lasting(Phase::Forward),
    Trouble::Lasting(Phase::Backward),
    Trouble::Error,
];

fn trainer(model: &Model, group: &Group, is_sharded: bool) -> AdaptiveTrainer<AdamW> {
    let adam = AdamW::builder(&model.varmap).learning_rate(0.01);
    let adam = match is_sharded {
        true => adam.sharded(),
        false => adam,
    };
    let adam = adam.build().expect("an optimizer");
    let trainer = AdaptiveTrainer::builder(adam).group(group);
    let policy = Halving::default();
    trainer.policy(policy).build().expect("a trainer")
}

/// The parameters of all ranks, in bits.
fn all_values(group: &Group, model: &Model) -> Vec<Vec<u8>> {
    let values = model.values();
    let bits: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    group.gather(&bits).expect("the ranks' parameters")
}

/// Random troubles on a random rank: after each step the ranks have the same bits, which have changed on all or on none.
fn check_random_troubles(is_sharded: bool) {
    together(3, |group| {
        let model = Model::new(&[4, 6, 2], DType::F32, 3);
        let mut trainer = trainer(&model, group, is_sharded);
        let mut generator = StdRng::seed_from_u64(13); // the same on all ranks
        let mut updates = 0;
        for step in 0..60 {
            let trouble = TROUBLES[step as usize % TROUBLES.len()];
            let troubled = generator.random_range(0..group.size());
            let samples = generator.random_range(2 * group.size()..14);
            let batch = data(samples, (4, 2), DType::F32, step);
            let own = cut(&batch, group.share(samples));
            let before = all_values(group, &model);
            let is_mine = troubled == group.rank();
            let armed = match trouble {
                Trouble::Passing(phase) if is_mine => Some(Faults::in_phase(phase, 0).arm()),
                Trouble::Lasting(phase) if is_mine => {
                    Some(Faults::in_phase(phase, 0).times(usize::MAX).arm())
                }
                _ => None,
            };
            let done = trainer.step(&own, |(x, y), _| {
                if is_mine && trouble == Trouble::Error {
                    candle_core::bail!("on purpose")
                }
                model.loss(&x, &y)
            });
            drop(armed);
            let after = all_values(group, &model);
            assert!(
                after.iter().all(|theirs| *theirs == after[0]),
                "step {step}"
            );
            let is_update = matches!(trouble, Trouble::None | Trouble::Passing(_));
            assert_eq!(before != after, is_update, "step {step}, {trouble:?}");
            updates += u64::from(is_update);
            assert_eq!(trainer.updates(), updates, "step {step}, {trouble:?}");
            match done {
                Ok(_) => assert!(is_update, "step {step}, {trouble:?}"),
                Err(Error::Group(error)) if !is_mine => assert!(
                    matches!(*error, GroupError::PeerFailed { rank, .. } if rank == troubled),
                    "step {step}: {error}"
                ),
                Err(error) => assert!(is_mine && !is_update, "step {step}: {error}"),
            }
        }
        assert_eq!(updates, 30);
    });
}

#[test]
fn all_ranks_apply_an_update_or_none_does() {
    check_random_troubles(false);
}

#[test]
fn also_with_sharded_state() {
    check_random_troubles(true);
}

/// A rank is killed in the middle of a step: the others have an error long before the timeout, and the parameters that they had.
#[test]
fn a_lost_rank_is_an_error_on_the_others_and_no_update() {
    if !is_rank() {
        // By default mpirun kills the others, too.
        let output = mpirun(3, &["--enable-recovery", "--timeout", "60"]);
        let all = text(&output);
        assert_eq!(all.matches("noticed").count(), 2, "{all}");
        assert!(!all.contains("time limit"), "a rank did not end: {all}");
        return;
    }
    let group = open();
    let model = Model::new(&[4, 6, 2], DType::F32, 3);
    let mut trainer = trainer(&model, &group, false);
    let batch = data(12, (4, 2), DType::F32, 0);
    let own = cut(&batch, group.share(12));
    trainer
        .step(&own, |(x, y), _| model.loss(&x, &y))
        .expect("a step");
    group.barrier().expect("all have made it");
    let (before, began) = (model.values(), Instant::now());
    let error = trainer.step(&own, |(x, y), _| {
        if group.rank() == 1 {
            // By now the others have heard of the barrier's end, and wait in this step.
            std::thread::sleep(Duration::from_millis(500));
            // SAFETY: the call takes two numbers.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        model.loss(&x, &y)
    });
    let Err(Error::Group(error)) = error else {
        panic!("rank 1 is dead, and the step gives {error:?}")
    };
    assert!(
        matches!(&*error, GroupError::PeerLost { ranks, .. } if ranks == &[1]),
        "{error}"
    );
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(model.values(), before);
    println!("noticed");
}
