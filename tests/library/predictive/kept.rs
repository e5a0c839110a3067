//! What is kept for another run, and input that is refused.

use candle_headroom::batch::{BatchPolicy, Completed, Decay, Extent, Failed};
use candle_headroom::error::{Cause, MemoryReading, PolicyError, Resource};
use candle_headroom::{Error, Predictive, ResourceExhausted};
use proptest::prelude::*;

use super::{failures, run};
use crate::curves::{Curve, Device};

#[test]
fn a_resumed_run_knows_what_the_first_one_learned() {
    let curve = Curve {
        once: 60.,
        lengths: vec![1., 2.],
        ..Curve::affine(1024, 300)
    };
    let mut first = Predictive::new();
    run(&mut first, &mut Device::new(&curve, 1), 20);
    let saved = first.state().unwrap();

    let mut resumed = Predictive::new();
    resumed.load_state(&saved).unwrap();
    assert_eq!(resumed.state().unwrap(), saved);
    let steps = run(&mut resumed, &mut Device::new(&curve, 2), 2);
    assert_eq!(failures(&steps), 0);
    assert_eq!(
        steps[0].sizes[..3],
        [1, 1, 256],
        "what is allocated once, one sample, then at once"
    );
    assert_eq!(steps[1].largest(), 147, "the longer ones");
}

/// Without a limit the first micro-batch is the whole batch, and what one sample took says nothing about that.
#[test]
fn a_resumed_run_without_a_limit_keeps_what_was_learned() {
    let mut first = Predictive::new();
    run(
        &mut first,
        &mut Device::new(&Curve::affine(1024, 300), 1),
        5,
    );
    let mut resumed = Predictive::new();
    resumed.load_state(&first.state().unwrap()).unwrap();
    let before = resumed.model().clone();
    resumed.begin(&Extent::new(1024, 1024 * 100));
    let mut completed = Completed::new(256);
    (completed.before, completed.peak) = (Some(0), Some(276 << 25));
    for _ in 0..2 {
        resumed.succeeded(&completed);
    }
    assert_eq!(resumed.model().largest_seen(), before.largest_seen());
}

/// Words that it has written itself, however it came to them.
#[test]
fn what_it_saves_it_can_restore() {
    // No room at all when a single sample fails.
    let mut policy = Predictive::new();
    let mut exhausted = ResourceExhausted::new(Resource::HostMemory, Cause::Limit);
    (exhausted.bytes.in_use, exhausted.bytes.limit) = (Some(1000), Some(1000));
    policy.begin(&Extent::new(1, 100));
    policy.failed(&Failed::new(1, &exhausted));
    Predictive::new()
        .load_state(&policy.state().unwrap())
        .unwrap();
    // Costs without end.
    let mut policy = Predictive::new();
    for samples in [2, usize::MAX] {
        policy.begin(&Extent::new(samples, usize::MAX));
        let mut completed = Completed::new(1);
        (completed.before, completed.limit) = (Some(0), Some(u64::MAX));
        completed.peak = Some(u64::MAX);
        policy.succeeded(&completed);
        policy.failed(&Failed::new(2, &exhausted));
    }
    Predictive::new()
        .load_state(&policy.state().unwrap())
        .unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_can_be_saved_and_gone_on_from(
        history in prop::collection::vec(
            (1usize..9, prop_oneof![1usize..2000, Just(usize::MAX)], 0u64..3000, 0u64..3000, any::<bool>()),
            1..40,
        ),
    ) {
        let mut policy = Predictive::new();
        for (samples, cost, bytes, limit, has_failed) in history {
            policy.begin(&Extent::new(samples, cost));
            let mut now = MemoryReading::default();
            (now.in_use, now.limit) = (Some(400), Some(limit));
            policy.prepare(&now);
            let size = policy.size(samples);
            if has_failed {
                let mut exhausted = ResourceExhausted::new(Resource::HostMemory, Cause::Limit);
                exhausted.bytes = now;
                policy.failed(&Failed::new(size, &exhausted));
            } else {
                let mut completed = Completed::new(size);
                (completed.before, completed.limit) = (Some(400), Some(limit));
                completed.peak = Some(400 + bytes);
                policy.succeeded(&completed);
            }
            let saved = policy.state().unwrap();
            let mut resumed = Predictive::new();
            resumed.load_state(&saved).unwrap();
            prop_assert_eq!(resumed.state().unwrap(), saved);
        }
    }
}

#[test]
fn bad_input_is_named() {
    for margin in [f64::NAN, -0.1, 0.95, f64::INFINITY] {
        let Err(Error::Policy(error)) = Predictive::new().margin(margin) else {
            panic!("{margin}");
        };
        assert!(matches!(*error, PolicyError::Margin { .. }), "{error}");
    }
    for factor in [f64::NAN, 0., 1., -1.] {
        let Err(Error::Policy(error)) = Decay::new(factor) else {
            panic!("{factor}");
        };
        assert!(error.to_string().contains("above 0 and below 1"), "{error}");
    }
    let mut policy = Predictive::new();
    for words in [
        "",
        "predictive 1",
        "predictive 2\n1 - 0 - - - -;0 0 false;0 0 false",
        "predictive 1\n0 - 0 - - - -;0 0 false;0 0 false",
        "predictive 1\n1 0 0 - - - -;0 0 false;0 0 false",
        "predictive 1\n1 - 0 - - - -;0 NaN false;0 0 false",
        "predictive 1\n1 - 0 - - - -;1 0 false 0:5:1;0 0 false",
        "predictive 1\n1 - 0 - - - -;1 0 false 4:5:9;0 0 false",
        "predictive 1\n1 - 0 - - - -;5 0 true 18446744073709551615:5:1;0 0 false",
        "predictive 1\n18446744073709551615 - 0 - - - -;0 0 false;0 0 false",
        "predictive 1\n1 - 0 - - - -;1 0 false 4:5;0 0 false",
        "predictive 1\n1 - 0 - - - -;2 0 false 4:5:1 4:5:2;0 0 false",
        "predictive 1\n1 - 0 -;0 0 false;0 0 false",
        "predictive 1\n1 - 0 - - - - 7;0 0 false;0 0 false",
    ] {
        let Err(Error::Policy(error)) = policy.load_state(words) else {
            panic!("{words}");
        };
        assert!(matches!(*error, PolicyError::Saved { .. }), "{error}");
    }
    assert_eq!(policy.size(64), 64, "nothing has changed");
}
