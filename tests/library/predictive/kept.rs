//! Saved state, and input that is refused.

use candle_headroom::batch::{BatchPolicy, Completed, Extent, Failed};
use candle_headroom::error::{Cause, MemoryReading, Resource};
use candle_headroom::{Predictive, ResourceExhausted};
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
    let mut first = Predictive::default();
    run(&mut first, &mut Device::new(&curve, 1), 20);
    let saved = first.state().unwrap();

    let mut resumed = Predictive::default();
    resumed.load_state(&saved).unwrap();
    assert_eq!(resumed.state().unwrap(), saved);
    let steps = run(&mut resumed, &mut Device::new(&curve, 2), 2);
    assert_eq!(failures(&steps), 0);
    assert_eq!(steps[0].sizes[..3], [256; 3], "the saved size at once");
    assert_eq!(steps[1].largest(), 147, "the longer ones");
}

/// With the same readings a resumed run uses the same sizes, wherever it was interrupted: promise 12 needs that.
#[test]
fn a_resumed_run_does_what_an_uninterrupted_one_does() {
    let affine = || Curve::affine(1024, 300);
    let lengths = vec![1., 2., 0.5];
    let rooms = vec![(0, 300), (8, 120)];
    for (name, curve) in [
        ("affine", affine()),
        (
            "lengths",
            Curve {
                lengths,
                ..affine()
            },
        ),
        (
            "rooms",
            Curve {
                rooms: rooms.clone(),
                ..affine()
            },
        ),
        (
            "noisy",
            Curve {
                noise: 0.02,
                ..affine()
            },
        ),
        (
            "workspace",
            Curve {
                workspace: Some((120, 90.)),
                ..affine()
            },
        ),
        (
            "blind",
            Curve {
                is_blind: true,
                rooms,
                ..affine()
            },
        ),
    ] {
        let mut device = Device::new(&curve, 1);
        let mut policy = Predictive::default();
        let (mut states, mut steps) = (Vec::new(), Vec::new());
        for _ in 0..30 {
            states.push((policy.state().unwrap(), device.clone()));
            steps.extend(run(&mut policy, &mut device, 1));
        }
        for (at, (state, mut device)) in states.into_iter().enumerate() {
            let mut resumed = Predictive::default();
            if !curve.is_blind {
                // When the trainer was built: nothing that the first micro-batch allocates was in use.
                let mut now = MemoryReading::default();
                (now.in_use, now.limit) = (Some(0), Some(2 * device.limit() as u64));
                resumed.prepare(&now);
            }
            resumed.load_state(&state).unwrap();
            let rest = run(&mut resumed, &mut device, 30 - at);
            assert_eq!(rest, steps[at..], "{name}, resumed after {at} steps");
        }
    }
}

/// Without a limit the first micro-batch is the whole batch, and the model is that of an earlier run.
#[test]
fn a_resumed_run_without_a_limit_keeps_what_was_learned() {
    let mut first = Predictive::default();
    run(
        &mut first,
        &mut Device::new(&Curve::affine(1024, 300), 1),
        5,
    );
    let mut resumed = Predictive::default();
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

/// Extreme states that it can reach by itself.
#[test]
fn what_it_saves_it_can_load() {
    // No room at all when a single sample fails.
    let mut policy = Predictive::default();
    let mut exhausted = ResourceExhausted::new(Resource::HostMemory, Cause::Limit);
    (exhausted.bytes.in_use, exhausted.bytes.limit) = (Some(1000), Some(1000));
    policy.begin(&Extent::new(1, 100));
    policy.failed(&Failed::new(1, &exhausted));
    Predictive::default()
        .load_state(&policy.state().unwrap())
        .unwrap();
    // The largest costs.
    let mut policy = Predictive::default();
    for samples in [2, usize::MAX] {
        policy.begin(&Extent::new(samples, usize::MAX));
        let mut completed = Completed::new(1);
        (completed.before, completed.limit) = (Some(0), Some(u64::MAX));
        completed.peak = Some(u64::MAX);
        policy.succeeded(&completed);
        policy.failed(&Failed::new(2, &exhausted));
    }
    Predictive::default()
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
        let mut policy = Predictive::default();
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
            let mut resumed = Predictive::default();
            resumed.load_state(&saved).unwrap();
            prop_assert_eq!(resumed.state().unwrap(), saved);
        }
    }
}

/// A policy with two shapes and a failure.
fn learned() -> Predictive {
    let mut policy = Predictive::default();
    let curve = Curve {
        lengths: vec![1., 2.],
        workspace: Some((300, 90.)),
        ..Curve::affine(1024, 300)
    };
    run(&mut policy, &mut Device::new(&curve, 1), 40);
    policy
}

/// Loads `state` into a policy that has learned something; if it is refused, nothing may have changed.
fn refused(policy: &mut Predictive, state: &str) -> bool {
    let before = policy.state();
    match policy.load_state(state) {
        Ok(()) => false,
        Err(error) => {
            assert!(
                error.is_policy() && error.to_string().starts_with("saved state holds"),
                "{error}"
            );
            assert_eq!(policy.state(), before);
            true
        }
    }
}

#[test]
fn a_state_is_json_with_the_policy_and_a_version() {
    let state: serde_json::Value = serde_json::from_str(&learned().state().unwrap()).unwrap();
    assert_eq!(
        (&state["policy"], &state["version"]),
        (&"predictive".into(), &6.into())
    );
    assert_eq!(state["shapes"].as_array().unwrap().len(), 2);
}

#[test]
fn a_damaged_state_is_refused() {
    let mut policy = learned();
    let mut refused = |state: &str| refused(&mut policy, state);
    let state = learned().state().unwrap();
    assert!(!refused(&state));
    for end in 0..state.len() {
        assert!(refused(&state[..end]), "{}", &state[..end]);
    }
    for text in [
        "",
        "null",
        "[]",
        "{}",
        "predictive 1",
        "\u{0}",
        &"[".repeat(100_000),
    ] {
        assert!(refused(text), "{text}");
    }
    let json: serde_json::Value = serde_json::from_str(&state).unwrap();
    type Spoil = fn(&mut serde_json::Value);
    let spoiled: [Spoil; 21] = [
        |json| json["policy"] = "halving".into(),
        |json| json["version"] = 1.into(),
        |json| json["more"] = 1.into(),
        |json| json["shapes"] = Vec::<u8>::new().into(),
        |json| json["shapes"] = vec![json["shapes"][0].clone(); 33].into(),
        |json| json["shapes"][0]["kept"]["each"] = 0.into(),
        |json| json["shapes"][0]["kept"]["each"] = u64::MAX.into(),
        |json| json["shapes"][0]["kept"]["each"] = (-1).into(),
        |json| json["shapes"][0]["kept"]["cap"] = 0.into(),
        |json| json["shapes"][0]["kept"]["proven"] = u64::MAX.into(),
        |json| json["shapes"][0]["kept"]["ceiling"] = serde_json::json!({ "cost": 0 }),
        |json| json["shapes"][0]["kept"]["model"]["scatter"] = f64::NAN.into(),
        |json| json["shapes"][0]["kept"]["model"]["scatter"] = 2.into(),
        |json| json["shapes"][0]["kept"]["model"]["levels"][0]["cost"] = 0.into(),
        |json| json["shapes"][0]["kept"]["model"]["scatter"] = (-1.).into(),
        |json| json["shapes"][0]["kept"]["model"]["observed"] = 1.into(),
        |json| json["shapes"][0]["kept"]["model"]["levels"][0]["mean"] = 1e300.into(),
        |json| {
            json["shapes"][0]["kept"]["model"]["levels"][1] =
                json["shapes"][0]["kept"]["model"]["levels"][0].clone()
        },
        |json| {
            let level = json["shapes"][0]["kept"]["model"]["levels"][0].clone();
            json["shapes"][0]["kept"]["model"]["levels"] = vec![level; 17].into();
        },
        |json| json["shapes"][0]["recomputed"]["each"] = 7.into(),
        |json| json["shapes"][0]["choice"]["patience"] = (-7).into(),
    ];
    for (index, spoil) in spoiled.into_iter().enumerate() {
        let mut json = json.clone();
        spoil(&mut json);
        assert!(refused(&json.to_string()), "{index}: {json}");
    }
    for (from, to) in [
        ("false", "NaN"),
        ("null", "1e999"),
        ("\"version\":6", "\"version\":6e99999"),
    ] {
        assert!(
            state.contains(from) && refused(&state.replacen(from, to, 1)),
            "{to}"
        );
    }
}

/// A digit that became another one cannot be seen; the policy has to work all the same.
#[test]
fn a_flipped_bit_is_refused_or_does_no_harm() {
    let state = learned().state().unwrap().into_bytes();
    for position in 0..state.len() {
        for bit in 0..8 {
            let mut flipped = state.clone();
            flipped[position] ^= 1 << bit;
            let Ok(flipped) = String::from_utf8(flipped) else {
                continue;
            };
            let mut policy = Predictive::default();
            if policy.load_state(&flipped).is_err() {
                continue;
            }
            let mut device = Device::new(&Curve::affine(8, 3), 1);
            let steps = run(&mut policy, &mut device, 8);
            // Each step does its whole batch. It takes a few micro-batches to see what is wrong, and then it is forgotten.
            assert!(failures(&steps) <= 16, "{flipped}");
            assert!(failures(&steps[4..]) <= 4, "{flipped}");
            assert!(policy.plan().is_some());
        }
    }
}

#[test]
fn bad_input_is_named() {
    for margin in [f64::NAN, -0.1, 0.95, f64::INFINITY] {
        let error = Predictive::builder().margin(margin).build().unwrap_err();
        assert!(
            error.is_policy() && error.to_string().starts_with("`margin`"),
            "{error}"
        );
    }
    assert!(Predictive::builder().at_most(0).build().is_err());
}
