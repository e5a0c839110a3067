//! What cannot be sharded, and what is not said.

use candle_headroom::Foreign;
use candle_nn::SGD;

use super::*;

/// An optimizer of two parameters, with 4,096 and 5 elements, and the error for these elements of the first.
fn refusal<A: Algorithm>(
    builder: FusedBuilder<A>,
    vars: &[Var],
    start: usize,
    end: usize,
) -> String {
    let mut optimizer = builder.build().unwrap();
    let bytes = optimizer.state_bytes();
    let mut shard = Shard::of(optimizer.parameters());
    shard.own(&vars[1], 0..5);
    shard.own(&vars[0], start..end);
    let error = optimizer_error(optimizer.shard(&shard, None).unwrap_err());
    assert_eq!(optimizer.state_bytes(), bytes);
    optimizer.commit(&gradients(vars, 0)).unwrap();
    let expected =
        format!("elements {start}..{end} of parameter `0` cannot be a piece of a shard: ");
    assert!(error.starts_with(&expected), "{error}");
    error
}

#[test]
fn pieces_that_cannot_be_updated_by_themselves() {
    let vars = make_vars(&[&[64, 64], &[5]], DType::F32);
    let builder = || AdamW::builder(vars.clone());
    assert!(refusal(builder(), &vars, 4000, 4097).contains("4096 elements"));
    let coded = || builder().moments(Moments::EightBit);
    for (start, end) in [(0, 255), (1, 512), (256, 4095), (100, 200)] {
        let text = refusal(coded(), &vars, start, end);
        assert!(text.contains("multiples of 256"), "{text}");
    }
    // Blocks that are whole, and one that the parameter's end cuts.
    let mut optimizer = coded().build().unwrap();
    let mut shard = Shard::of(optimizer.parameters());
    shard.own(&vars[0], 3840..4096);
    shard.own(&vars[0], 256..512);
    shard.own(&vars[0], 512..768);
    assert_eq!(shard.ranges(&vars[0]).unwrap(), [256..768, 3840..4096]);
    optimizer.shard(&shard, None).unwrap();
}

#[test]
fn other_optimizers_are_named() {
    let vars = make_vars(&[&[5]], DType::F32);
    let mut foreign = Foreign::new(SGD::new(vars.clone(), 0.1).unwrap(), vars.clone());
    let shard = Shard::of(foreign.parameters());
    let error = optimizer_error(foreign.shard(&shard, None).unwrap_err());
    assert!(error.contains("cannot be sharded over ranks"), "{error}");
    assert!(error.contains("SGD"), "{error}");
    let gradients = gradients(&vars, 0);
    assert_eq!(foreign.measure(&gradients, &shard).unwrap(), None);
    let committed = foreign.commit_measured(&gradients, 0.).unwrap();
    assert_eq!(committed, Committed::Applied);
}

/// An optimizer that waits for its shard has no state, and does nothing.
#[test]
fn nothing_is_done_without_a_shard() {
    let vars = make_vars(&[&[64, 64], &[5]], DType::F32);
    let before = bits(&vars);
    let named = vec![("a", vars[0].clone()), ("b", vars[1].clone())];
    let mut optimizer = AdamW::builder(named.clone()).sharded().build().unwrap();
    let whole = AdamW::builder(named).build().unwrap();
    assert_eq!(optimizer.state_bytes(), 0);
    let error = optimizer.commit(&gradients(&vars, 0)).unwrap_err();
    assert_eq!(optimizer_error(error), unlisted("a"));
    // State that would be lost.
    let error = optimizer.load_state(&whole.state().unwrap()).unwrap_err();
    assert_eq!(optimizer_error(error), unlisted("a"));
    let mut shard = Shard::default();
    shard.own(&vars[1], 0..2);
    let error = optimizer_error(optimizer.shard(&shard, None).unwrap_err());
    assert_eq!(error, unlisted("a"));
    assert_eq!((bits(&vars), optimizer.state_bytes()), (before.clone(), 0));
    // Listed, and nothing of it owned.
    shard.own(&vars[0], 0..0);
    optimizer.shard(&shard, None).unwrap();
    optimizer.commit(&gradients(&vars, 0)).unwrap();
    let after = bits(&vars);
    assert_eq!((&after[0], &after[1][2..]), (&before[0], &before[1][2..]));
    assert!(
        after[1][..2]
            .iter()
            .zip(&before[1])
            .all(|(after, before)| after != before)
    );
    // A rank that owns nothing at all counts its steps.
    let none = Shard::of(optimizer.parameters());
    optimizer.shard(&none, None).unwrap();
    optimizer.commit(&gradients(&vars, 1)).unwrap();
    assert_eq!((bits(&vars), optimizer.state_bytes()), (after, 0));
    assert_eq!(optimizer.progress().unwrap().steps, 2);
}

/// A rank cannot know the norm of all gradients.
#[test]
fn a_sum_over_all_ranks_is_asked_for() {
    let vars = make_vars(&[&[64, 64], &[5]], DType::F32);
    let clipped = AdamW::builder(vars.clone()).clip_norm(1.).build().unwrap();
    let watchful = AdamW::builder(vars.clone()).skip_non_finite().build();
    for mut optimizer in [clipped, watchful.unwrap()] {
        let mut shard = Shard::of(optimizer.parameters());
        shard.own(&vars[0], 0..4096);
        optimizer.shard(&shard, None).unwrap();
        let before = bits(&vars);
        let gradients = gradients(&vars, 0);
        let error = optimizer_error(optimizer.commit(&gradients).unwrap_err());
        assert!(
            error.contains("needs a sum over the gradients of all ranks"),
            "{error}"
        );
        assert_eq!(bits(&vars), before);
        // Another rank's sum is not a number.
        let here = optimizer.measure(&gradients, &shard).unwrap().unwrap();
        assert!(here.is_finite() && here > 0.);
        let sum = here + f64::NAN;
        let committed = optimizer.commit_measured(&gradients, sum).unwrap();
        assert_eq!(
            (committed, bits(&vars)),
            (Committed::Skipped, before.clone())
        );
        let committed = optimizer.commit_measured(&gradients, here).unwrap();
        assert_eq!(committed, Committed::Applied);
        assert_ne!(bits(&vars), before);
        let wrong = Shard::default();
        let error = optimizer_error(optimizer.measure(&gradients, &wrong).unwrap_err());
        assert_eq!(error, unlisted("0"));
        // A box hands the question on.
        let own = optimizer.measure(&gradients, &shard).unwrap();
        let mut boxed: Box<dyn Commit> = Box::new(optimizer);
        assert_eq!(boxed.measure(&gradients, &shard).unwrap(), own);
    }
}
