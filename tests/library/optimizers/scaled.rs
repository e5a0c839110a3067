//! Losses and the loss scale.

use super::*;

fn scaled(vars: &[Var], scale: LossScale) -> Sgd {
    let builder = Sgd::builder(vars.to_vec()).params(sgd(0.9));
    builder.loss_scale(scale).build().unwrap()
}

fn loss_of(vars: &[Var]) -> Tensor {
    vars[0].sqr().unwrap().sum_all().unwrap()
}

/// Gradients of a loss that was not scaled would make updates 65,536 times too small.
#[test]
fn gradients_of_an_unscaled_loss_are_refused() {
    let vars = make_vars(&[&[3]], DType::F32);
    let mut optimizer = scaled(&vars, LossScale::dynamic());
    let before = bits(&vars);
    let gradients = || loss_of(&vars).backward().unwrap();
    for _ in 0..2 {
        let error = optimizer_error(optimizer.commit(&gradients()).unwrap_err());
        assert_eq!(error, UNSCALED);
        assert_eq!(bits(&vars), before);
        let error = optimizer.step(&gradients()).unwrap_err();
        assert_eq!(optimizer_error(error.into()), UNSCALED);
    }
    // A scaled loss is good for one update, and the next one needs another.
    let loss = optimizer.scale_loss(&loss_of(&vars)).unwrap();
    let scaled = loss.backward().unwrap();
    assert_eq!(optimizer.commit(&scaled).unwrap(), Committed::Applied);
    assert_ne!(bits(&vars), before);
    let error = optimizer_error(optimizer.commit(&scaled).unwrap_err());
    assert_eq!(error, UNSCALED);
    assert_eq!(optimizer.progress().unwrap().steps, 1);
}

/// An update that failed is called again with the same gradients.
#[test]
fn an_update_that_failed_needs_no_other_loss() {
    let vars = make_vars(&[&[3]], DType::F32);
    let mut optimizer = scaled(&vars, LossScale::dynamic());
    let loss = optimizer.scale_loss(&loss_of(&vars)).unwrap();
    let gradients = loss.backward().unwrap();
    let armed = Faults::in_phase(Phase::Optimizer, 0).arm();
    optimizer.commit(&gradients).unwrap_err();
    drop(armed);
    optimizer.commit(&gradients).unwrap();
}

/// The scale that is loaded is another than that of the losses before.
#[test]
fn loading_state_asks_for_another_loss() {
    let vars = make_vars(&[&[3]], DType::F32);
    let mut optimizer = scaled(&vars, LossScale::dynamic());
    let loss = optimizer.scale_loss(&loss_of(&vars)).unwrap();
    let gradients = loss.backward().unwrap();
    let other = scaled(&vars, LossScale::fixed(8.));
    optimizer.load_state(&other.state().unwrap()).unwrap();
    assert_eq!(optimizer.progress().unwrap().loss_scale, Some(8.));
    let error = optimizer_error(optimizer.commit(&gradients).unwrap_err());
    assert_eq!(error, UNSCALED);
}

#[test]
fn backward_step_scales_the_loss() {
    let vars = make_vars(&[&[3], &[4]], DType::F32);
    let twins = copies(&vars);
    let mut optimizer = scaled(&vars, LossScale::dynamic());
    let mut twin = Sgd::builder(twins.clone())
        .params(sgd(0.9))
        .build()
        .unwrap();
    for _ in 0..3 {
        optimizer.backward_step(&loss_of(&vars)).unwrap();
        twin.backward_step(&loss_of(&twins)).unwrap();
    }
    // The scale is a power of two, so nothing is rounded.
    assert_eq!(bits(&vars), bits(&twins));
}

#[test]
fn what_came_of_an_update_is_known() {
    let vars = make_vars(&[&[3]], DType::F32);
    let builder = Sgd::builder(vars.clone()).skip_non_finite();
    let mut optimizer = builder.build().unwrap();
    let good = gradients(&vars, 0);
    let bad = store([(vars[0].clone(), (good.get(&vars[0]).unwrap() / 0.).unwrap())]);
    assert_eq!(optimizer.commit(&good).unwrap(), Committed::Applied);
    assert_eq!(optimizer.commit(&bad).unwrap(), Committed::Skipped);
    assert_eq!(optimizer.commit(&good).unwrap(), Committed::Applied);
}
