//! What becomes of the choice to recompute: in a resumed run, and where a whole batch leaves no margin free.

use candle_headroom::Predictive;
use candle_headroom::batch::{BatchPolicy, Recompute, RecomputeReason};

use super::recompute::{Machine, auto, plan, reason};

#[test]
fn a_resumed_run_knows_the_choice() {
    let machine = Machine {
        batch: 64,
        limit: 1200,
        launch: 1.,
        load: 1.,
    };
    let mut policy = auto();
    for _ in 0..20 {
        machine.run(&mut policy);
    }
    let mut resumed = auto();
    resumed
        .load_state(&policy.state().expect("state"))
        .expect("a state of its own");
    assert!(resumed.recomputes());
    assert_eq!(machine.run(&mut resumed).1, 0);
}

/// A trial is not saved, and the state says that regions are recomputed in every second batch of one.
#[test]
fn a_run_resumed_in_a_trial_chooses_again() {
    for (launch, is_faster) in [(8., true), (0.2, false)] {
        let machine = Machine {
            batch: 16,
            limit: 1790,
            launch,
            load: 1.,
        };
        let (mut policy, mut in_trials) = (auto(), 0);
        for batch in 0..40 {
            machine.run(&mut policy);
            in_trials += usize::from(reason(&policy) == (true, RecomputeReason::Timing));
            let mut resumed = auto();
            let state = policy.state().expect("a state");
            resumed.load_state(&state).expect("a state of its own");
            for _ in 0..60 {
                machine.run(&mut resumed);
            }
            let chosen = (is_faster, RecomputeReason::Faster);
            assert_eq!(reason(&resumed), chosen, "{batch}: {}", plan(&resumed));
        }
        assert!(in_trials >= 3, "{in_trials} of 40 in a trial");
    }
}

/// The size stays in use where the room shrinks to a little more than it takes, and recomputation could only cost time.
#[test]
fn a_whole_batch_in_the_margin_is_not_compared() {
    let mut machine = Machine {
        batch: 16,
        limit: 8000, // 16 samples take 7,400
        launch: 8.,
        load: 1.,
    };
    let mut policy = Predictive::builder()
        .margin(0.05)
        .build()
        .expect("a policy");
    policy.set_recompute(Recompute::Auto);
    for limit in [8000, 7500] {
        machine.limit = limit;
        for _ in 0..60 {
            assert_eq!(machine.run(&mut policy).1, 0);
            assert_eq!(reason(&policy), (false, RecomputeReason::NoNeed), "{limit}");
        }
        assert_eq!(policy.size(16), 16);
    }
}
