//! Two optimizers that make one update together.

use candle_headroom::AdaptiveTrainer;
use candle_headroom::batch::Fixed;
use candle_headroom::optim::{Both, Ema, StateDict};

use super::*;

const FIRST: usize = 3;
const SECOND: usize = 4;

fn make(seed: usize) -> Vec<(String, Var)> {
    let shapes = [&[3usize, 4][..], &[LARGE], &[], &[7], &[0], &[300], &[2, 2]];
    let vars = shapes.iter().enumerate().map(|(index, shape)| {
        let var = Var::from_tensor(&tensor(shape, seed + index, DType::F32)).unwrap();
        (format!("p{index}"), var)
    });
    vars.collect()
}

fn vars(named: &[(String, Var)]) -> Vec<Var> {
    named.iter().map(|(_, var)| var.clone()).collect()
}

type Pair = Both<AdamW, Sgd>;

/// The first clips, the second has momentum.
fn build(named: &[(String, Var)]) -> Pair {
    let (first, second) = named.split_at(FIRST);
    let first = AdamW::builder(first.to_vec()).params(adamw());
    let second = Sgd::builder(second.to_vec()).params(sgd(0.9));
    let first = first.clip_norm(0.5).build().unwrap();
    let second = second.skip_non_finite().build().unwrap();
    Both::new(("actor", first), ("critic", second)).unwrap()
}

type Counts = [(u64, u64, Option<u64>, Option<u64>); 2];

fn counts(both: &Pair) -> Counts {
    let [first, second] = [both.first().progress(), both.second().progress()];
    [counted(first.unwrap()), counted(second.unwrap())]
}

fn contents(state: &StateDict) -> Vec<(String, Vec<f64>)> {
    let tensors = state.tensors.iter();
    tensors
        .map(|(name, tensor)| (name.clone(), flat(tensor)))
        .collect()
}

/// Lets every point of an update fail. Before the first optimizer has moved nothing has changed; after that the update is interrupted, and
/// the second one has not moved.
#[test]
fn both_move_or_neither() {
    let (named, twins) = (make(0), make(0));
    let (vars, twin_vars) = (vars(&named), vars(&twins));
    let (mut both, mut twin) = (build(&named), build(&twins));
    for step in 0..3 {
        let store = gradients(&vars, step);
        let state = both.state().unwrap();
        let values: Vec<_> = vars.iter().map(|var| var.copy().unwrap()).collect();
        let (before, counts_before) = (bits(&vars), counts(&both));
        let (mut points, mut interrupted) = (0, 0);
        loop {
            let armed = Faults::in_phase(Phase::Optimizer, points).arm();
            let result = both.commit(&store);
            if armed.fired() == 0 {
                assert_eq!(result.unwrap(), Committed::Applied);
                break;
            }
            drop(armed);
            match result.unwrap_err() {
                Error::ResourceExhausted(_) => {}
                Error::UpdateInterrupted(error) => {
                    assert!(matches!(error.reason, Some(Error::ResourceExhausted(_))));
                    let now = bits(&vars);
                    assert_ne!(now[..FIRST], before[..FIRST]);
                    assert_eq!(now[FIRST..], before[FIRST..]);
                    for (var, value) in vars.iter().zip(&values) {
                        var.set(value).unwrap();
                    }
                    both.load_state(&state).unwrap();
                    interrupted += 1;
                }
                other => panic!("{other}"),
            }
            assert_eq!(bits(&vars), before, "point {points}");
            assert_eq!(contents(&both.state().unwrap()), contents(&state));
            let now = counts(&both).map(|(steps, skipped, ..)| (steps, skipped));
            let then = counts_before.map(|(steps, skipped, ..)| (steps, skipped));
            assert_eq!(now, then, "point {points}");
            points += 1;
        }
        // Each has a point for each parameter when all is checked, and again when it moves.
        assert_eq!((points, interrupted), (2 * (FIRST + SECOND), SECOND));
        twin.commit(&gradients(&twin_vars, step)).unwrap();
        assert_eq!(bits(&vars), bits(&twin_vars));
        assert_eq!(counts(&both), counts(&twin));
    }
}

/// As two optimizers that are called one after the other.
#[test]
fn each_updates_as_alone() {
    let (named, twins) = (make(0), make(0));
    let (vars, twin_vars) = (vars(&named), vars(&twins));
    let mut both = build(&named);
    let (mut first, mut second) = build(&twins).into_inner();
    for step in 0..4 {
        both.commit(&gradients(&vars, step)).unwrap();
        first.commit(&gradients(&twin_vars, step)).unwrap();
        second.commit(&gradients(&twin_vars, step)).unwrap();
        first.set_learning_rate(0.01 / (step + 1) as f64);
        both.change(|first, _| first.set_learning_rate(0.01 / (step + 1) as f64));
    }
    assert_eq!(bits(&vars), bits(&twin_vars));
    assert_eq!(both.learning_rate(), None);
    assert_eq!(both.first().learning_rate(), 0.0025);
    let bytes = first.state_bytes() + second.state_bytes();
    assert_eq!(Commit::state_bytes(&both), Some(bytes));
    let (x, y) = (first.gradient_norm().unwrap(), second.gradient_norm());
    let norm = (x * x + y.unwrap().powi(2)).sqrt();
    assert_eq!(both.gradient_norm(), Some(norm));
    let remedies = both.remedies();
    let is_named = |name: &str| remedies.iter().any(|one| one.advice.starts_with(name));
    assert!(is_named("actor: moments in bf16") && is_named("critic: "));
    let lines = both.describe();
    assert!(lines.contains(&"actor: the optimizer is AdamW".to_owned()));
    assert!(lines.contains(&"critic: the optimizer is Sgd".to_owned()));
}

#[test]
fn each_skips_by_itself() {
    let named = make(0);
    let vars = vars(&named);
    let mut both = build(&named);
    let bad = |indices: &[usize]| {
        let mut store = gradients(&vars, 0);
        for &index in indices {
            let gradient = (store.get(&vars[index]).unwrap() / 0.).unwrap();
            store.insert(&vars[index], gradient);
        }
        store
    };
    let before = bits(&vars);
    assert_eq!(both.commit(&bad(&[0, 3])).unwrap(), Committed::Skipped);
    assert_eq!(bits(&vars), before);
    assert_eq!(both.commit(&bad(&[3])).unwrap(), Committed::Applied);
    assert_ne!(bits(&vars)[..FIRST], before[..FIRST]);
    assert_eq!(bits(&vars)[FIRST..], before[FIRST..]);
}

#[test]
fn groups_that_are_frozen_are_followed() {
    let named = make(0);
    let mut both = build(&named);
    let names = |both: &Pair| {
        let parameters = both.parameters().iter();
        parameters.map(|p| p.name.clone()).collect::<Vec<_>>()
    };
    let all: Vec<_> = named.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(names(&both), all);
    both.change(|_, critic| critic.set_group(0, GroupOptions::default().frozen(true)))
        .unwrap();
    assert_eq!(names(&both), all[..FIRST]);
    assert_eq!(both.frozen().len(), SECOND);
}

/// A trainer's run goes on bit by bit.
#[test]
fn a_run_goes_on_with_both() {
    let (x, y) = Mlp::data(8, DType::F32);
    let start = || {
        let model = Mlp::new(DType::F32);
        let mut named: Vec<_> = model
            .varmap
            .data()
            .lock()
            .unwrap()
            .clone()
            .into_iter()
            .collect();
        named.sort_by(|(a, _), (b, _)| a.cmp(b));
        let rest = named.split_off(1);
        let adamw = AdamW::builder(named).learning_rate(0.01).build().unwrap();
        let sgd = Sgd::builder(rest).params(sgd(0.9)).build().unwrap();
        let ema = Ema::new(sgd, 0.9).unwrap();
        let both = Both::new(("first", adamw), ("rest", ema)).unwrap();
        let builder = AdaptiveTrainer::builder(both).policy(Fixed::new(4).unwrap());
        (model, builder.build().unwrap())
    };
    let (model, mut whole) = start();
    let (again, mut resumed) = start();
    let batch = (x, y);
    let train = |model: &Mlp, trainer: &mut AdaptiveTrainer<Both<AdamW, Ema<Sgd>>>| {
        trainer
            .step(&batch, |(x, y), _| model.loss(&x, &y))
            .unwrap();
    };
    (0..3).for_each(|_| train(&model, &mut whole));
    for (name, var) in again.varmap.data().lock().unwrap().iter() {
        var.set(&model.varmap.data().lock().unwrap()[name]).unwrap();
    }
    resumed.load_state(&whole.state().unwrap()).unwrap();
    (0..2).for_each(|_| train(&model, &mut whole));
    (0..2).for_each(|_| train(&again, &mut resumed));
    let [whole, resumed] = [&whole, &resumed].map(|t| t.optimizer().state().unwrap());
    assert_eq!(contents(&whole), contents(&resumed));
    let is_there = |begin: &str, end: &str| {
        let mut names = whole.tensors.keys();
        names.any(|name| name.starts_with(begin) && name.ends_with(end))
    };
    assert!(is_there("first.", ".exp_avg") && is_there("rest.", ".ema"));
    assert!(whole.metadata.contains_key("rest.optimizer"));
}

#[test]
fn state_that_does_not_fit_changes_nothing() {
    let named = make(0);
    let vars = vars(&named);
    let mut both = build(&named);
    both.commit(&gradients(&vars, 0)).unwrap();
    let old = both.state().unwrap();
    both.commit(&gradients(&vars, 1)).unwrap();
    let before = both.state().unwrap();
    let one = || Tensor::ones(1, DType::F32, &Device::Cpu).unwrap();
    let mut short = old.clone();
    short.tensors.remove("critic.p3.momentum_buffer");
    let mut other = old.clone();
    other.tensors.insert("judge.p3.exp_avg".to_owned(), one());
    let mut more = old.clone();
    more.tensors.insert("actor.p9.exp_avg".to_owned(), one());
    for (state, word) in [
        (short, "missing: p3.momentum_buffer"),
        (other, "unexpected: judge.p3.exp_avg"),
        (more, "unexpected: p9.exp_avg"),
        (StateDict::default(), "missing"),
    ] {
        let error = both.load_state(&state).unwrap_err();
        assert!(matches!(error, Error::State(_)), "{error}");
        assert!(error.to_string().contains(word), "{error}");
        let after = both.state().unwrap();
        assert_eq!(contents(&after), contents(&before));
        assert_eq!(after.metadata, before.metadata);
    }
    both.load_state(&old).unwrap();
    assert_eq!(contents(&both.state().unwrap()), contents(&old));
}

#[test]
fn what_cannot_be_put_together_is_refused() {
    let named = make(0);
    let sgd = |part: &[(String, Var)]| Sgd::builder(part.to_vec());
    let one = |index: usize| sgd(&named[index..=index]).build().unwrap();
    let refused = |names: [&str; 2]| {
        let both = Both::new((names[0], one(0)), (names[1], one(1)));
        optimizer_error(both.unwrap_err())
    };
    for names in [["a", "b.c"], ["", "b"]] {
        assert!(refused(names).contains("without a dot"));
    }
    assert!(refused(["a", "a"]).contains("give each its own"));

    let twice = Both::new(("a", one(0)), ("b", one(0))).unwrap_err();
    assert!(
        twice.is_parameter()
            && twice
                .to_string()
                .starts_with("parameter `p0` is listed twice"),
        "{twice}"
    );
    let same_name = vec![("p0".to_owned(), named[1].1.clone())];
    let same_name = sgd(&same_name).build().unwrap();
    let error = optimizer_error(Both::new(("a", one(0)), ("b", same_name)).unwrap_err());
    assert_eq!(
        error,
        "two parameters have the name `p0`: give each its own"
    );
    let sharded = sgd(&named[1..2]).sharded().build().unwrap();
    let error = optimizer_error(Both::new(("a", one(0)), ("b", sharded)).unwrap_err());
    assert!(error.contains("sharded()"), "{error}");

    // One loss cannot have two scales.
    let scaled = sgd(&named[1..2]).loss_scale(LossScale::dynamic());
    let both = Both::new(("a", one(0)), ("b", scaled.build().unwrap())).unwrap();
    let loss = Tensor::ones((), DType::F32, &Device::Cpu).unwrap();
    let error = optimizer_error(both.scale_loss(&loss).unwrap_err());
    assert!(error.contains("loss_scale"), "{error}");
}
