//! `MemoryModel`: what it predicts, what it must never do, and what it refuses to load.

use candle_headroom::{Error, MemoryModel, PolicyError};
use proptest::prelude::*;

fn model(observations: &[(usize, u64)]) -> MemoryModel {
    let mut model = MemoryModel::new();
    for (cost, bytes) in observations {
        model.observe(*cost, *bytes).unwrap();
    }
    model
}

#[test]
fn nothing_known_is_none() {
    let model = MemoryModel::new();
    assert_eq!(
        (
            model.base(),
            model.slope(),
            model.predict(4),
            model.largest_fitting(100)
        ),
        (None, None, None, None)
    );
    assert_eq!(model.to_string(), "nothing seen yet");
}

#[test]
fn what_is_allocated_once_counts_until_there_is_a_second_observation() {
    let mut model = model(&[(1, 1000)]);
    assert_eq!(model.predict(1).unwrap().bytes, 1000);
    for cost in [1, 2, 4] {
        model.observe(cost, 50 + 10 * cost as u64).unwrap();
    }
    assert_eq!((model.base(), model.slope()), (Some(50), Some(10.)));
}

#[test]
fn a_single_spike_is_not_believed() {
    let mut seen: Vec<_> = [1, 1, 2, 4, 8, 16, 32]
        .map(|cost| (cost, 100 + 10 * cost as u64))
        .to_vec();
    seen.push((16, 3000));
    let model = model(&seen);
    assert_eq!(model.slope(), Some(10.));
    assert!(model.predict(32).unwrap().bytes == 420);
}

#[test]
fn another_curve_is_learned_anew() {
    let mut model = model(&[1, 1, 2, 4, 8].map(|cost| (cost, 100 + 10 * cost as u64)));
    for cost in [8, 4, 8, 4, 8, 2, 4, 8] {
        model.observe(cost, 300 + 40 * cost as u64).unwrap();
    }
    assert_eq!((model.base(), model.slope()), (Some(300), Some(40.)));
}

#[test]
fn no_more_than_sixteen_costs_are_kept_and_the_words_stay_small() {
    let mut model = MemoryModel::new();
    for cost in (1..10_000).step_by(7) {
        model.observe(cost, 1 << 40).unwrap();
    }
    let json = serde_json::to_string(&model).unwrap();
    assert!(json.len() < 2000, "{}", json.len());
}

#[test]
fn it_comes_back_from_json_and_refuses_what_it_cannot_be() {
    let model = model(&[1, 1, 2, 4, 8, 30].map(|cost| (cost, 100 + 10 * cost as u64)));
    let json = serde_json::to_value(&model).unwrap();
    let loaded: MemoryModel = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(loaded, model);
    assert_eq!(loaded.predict(60), model.predict(60));

    type Spoil = fn(&mut serde_json::Value);
    let spoiled: [(Spoil, &str); 6] = [
        (|json| json["levels"][0]["cost"] = 0.into(), "a cost of 0"),
        (
            |json| json["levels"][1]["cost"] = 30.into(),
            "the same cost twice",
        ),
        (
            |json| json["observed"] = 1.into(),
            "fewer observations than costs",
        ),
        (|json| json["scatter"] = (-1.).into(), "a scatter"),
        (|json| json["scatter"] = 7.into(), "a scatter"),
        (
            |json| {
                let level = json["levels"][0].clone();
                json["levels"] = vec![level; 17].into();
            },
            "more than 16 costs",
        ),
    ];
    for (spoil, words) in spoiled {
        let mut json = json.clone();
        spoil(&mut json);
        let error = serde_json::from_value::<MemoryModel>(json).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    let Err(Error::Policy(error)) = MemoryModel::new().observe(0, 1) else {
        panic!("a cost of 0");
    };
    assert!(matches!(*error, PolicyError::Zero { .. }));
}

proptest! {
    /// A step's peak is the highest of several lines. On a single one, what is said to fit does; where a line ends beyond what was
    /// seen, nobody can know, and the policy therefore looks at the forward pass as well.
    #[test]
    fn it_errs_on_the_large_side(
        lines in proptest::collection::vec((0f64..1e9, 1e3f64..1e7), 1..4),
        costs in proptest::collection::vec(1usize..64, 1..6),
        part in 1.1f64..8.,
    ) {
        let peak = |cost: usize| {
            let peaks = lines.iter().map(|(base, each)| base + each * cost as f64);
            peaks.fold(0., f64::max)
        };
        let mut costs = costs;
        costs.sort_unstable();
        let mut model = MemoryModel::new();
        for cost in [1].iter().chain(&costs) {
            model.observe(*cost, peak(*cost) as u64).unwrap();
        }
        let top = *costs.last().unwrap();
        let room = peak(top) * part;
        if let Some(fits) = model.largest_fitting(room as u64) {
            let slack = if lines.len() == 1 { 1.0001 } else { 2. };
            prop_assert!(peak(fits) <= room * slack, "{} of {room} at {fits}", peak(fits));
        }
    }

    #[test]
    fn what_fits_is_what_is_predicted(
        observations in proptest::collection::vec((1usize..5000, 1u64..1 << 40), 1..60),
        bytes in 1u64..1 << 42,
        cost in 1usize..20_000,
    ) {
        let model = model(&observations);
        if let Some(fits) = model.largest_fitting(bytes) {
            prop_assert!(model.predict(fits).unwrap().most <= bytes + 1 || model.predict(fits).unwrap().bytes <= bytes + 1);
        }
        let (near, far) = (model.predict(cost).unwrap(), model.predict(cost * 2).unwrap());
        prop_assert!(near.bytes <= near.most);
        prop_assert!(far.most >= model.predict(cost).unwrap().bytes.min(far.most));
    }
}
