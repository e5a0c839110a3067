//! Numbers out of their range.

use super::*;

fn is_hyper_parameter(error: &str, expected: &str) -> bool {
    error.starts_with(&format!("`{expected}` of ")) && error.contains(" must be ")
}

#[test]
fn hyper_parameters_out_of_range_are_refused_and_named() {
    /// Built with it, and set to it later: the second leaves the first in force.
    fn check<A: Algorithm>(good: &A, name: &str, bad: A) {
        let vars = make_vars(&[&[3]], DType::F64);
        let twins = copies(&vars);
        let error = refused_at_first(Fused::builder(vars.clone()).params(bad.clone()).build());
        assert!(is_hyper_parameter(&error, name), "{bad:?}: {error}");
        let mut optimizer = Fused::builder(vars.clone())
            .params(good.clone())
            .build()
            .unwrap();
        let error = optimizer_error(optimizer.set_params(bad.clone()).unwrap_err());
        assert!(is_hyper_parameter(&error, name), "{bad:?}: {error}");
        let mut twin = Fused::builder(twins.clone())
            .params(good.clone())
            .build()
            .unwrap();
        optimizer.commit(&gradients(&vars, 0)).unwrap();
        twin.commit(&gradients(&twins, 0)).unwrap();
        assert_eq!(bits(&vars), bits(&twins));
    }
    macro_rules! refuse {
        ($good:expr; $($field:ident: $($value:expr),+;)+) => {$($({
            let (good, mut bad) = ($good, $good);
            bad.$field = $value.into();
            check(&good, stringify!($field), bad);
        })+)+};
    }
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    refuse!(adamw(); lr: -0.1, nan, inf; beta1: 1., -0.1, nan; beta2: 1., 2., nan;
        eps: -1e-8, nan, inf; weight_decay: -0.1, nan, inf;);
    refuse!(adam(); lr: -0.1, nan, inf; beta1: 1., -0.1, nan; beta2: 1., 2., nan;
        eps: -1e-8, nan, inf; weight_decay: -0.1, nan, inf;);
    refuse!(sgd(0.9); lr: -0.1, nan, inf; momentum: -0.1, nan, inf; dampening: -0.1, nan, inf;
        weight_decay: -0.1, nan, inf;);
    refuse!(lion(); lr: -0.1, nan, inf; beta1: 1., -0.1, nan; beta2: 1., 2., nan;
        weight_decay: -0.1, nan, inf;);
}

#[test]
fn a_learning_rate_set_by_candles_interface_is_refused_at_the_next_step() {
    fn check<A: Algorithm>(params: A) {
        let vars = make_vars(&[&[3], &[4, 5]], DType::F32);
        let twins = copies(&vars);
        let mut optimizer = Fused::builder(vars.clone())
            .params(params.clone())
            .build()
            .unwrap();
        let mut twin = Fused::builder(twins.clone())
            .params(params)
            .build()
            .unwrap();
        let good = optimizer.learning_rate();
        for bad in [-0.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            optimizer.set_learning_rate(bad);
            let before = (bits(&vars), counted(optimizer.progress().unwrap()));
            let error = optimizer.step(&gradients(&vars, 0)).unwrap_err();
            let error = optimizer_error(Error::from(error));
            assert!(is_hyper_parameter(&error, "lr"));
            let after = (bits(&vars), counted(optimizer.progress().unwrap()));
            assert_eq!(before, after);
        }
        optimizer.set_learning_rate(good);
        optimizer.step(&gradients(&vars, 0)).unwrap();
        twin.step(&gradients(&twins, 0)).unwrap();
        assert_eq!(bits(&vars), bits(&twins));
    }
    for_each_algorithm!(|params| check(params));
}

#[test]
fn adjustments_out_of_range_are_refused_and_named() {
    let builder = || Sgd::builder(make_vars(&[&[3]], DType::F32)).params(sgd(0.));
    for bad in [0., -1., f64::NAN, f64::INFINITY] {
        let error = refused_at_first(builder().clip_norm(bad).build());
        assert!(is_hyper_parameter(&error, "clip_norm"));
        let error = refused_at_first(builder().clip_value(bad).build());
        assert!(is_hyper_parameter(&error, "clip_value"));
        let scale = |scale| refused_at_first(builder().loss_scale(scale).build());
        let good = LossScale::dynamic();
        let initial = scale(LossScale::fixed(bad));
        assert!(is_hyper_parameter(&initial, "loss_scale.initial"));
        let growth = scale(good.growth(bad));
        assert!(is_hyper_parameter(&growth, "loss_scale.growth"));
        let backoff = scale(good.backoff(bad));
        assert!(is_hyper_parameter(&backoff, "loss_scale.backoff"));
    }
    let interval = LossScale::dynamic().interval(0);
    let error = refused_at_first(builder().loss_scale(interval).build());
    assert!(is_hyper_parameter(&error, "loss_scale.interval"));
}

#[test]
fn group_options_out_of_range_are_refused_and_named() {
    let group = || Group::from(make_vars(&[&[3]], DType::F32));
    for bad in [-1., f64::NAN, f64::INFINITY] {
        let error = refused_at_first(
            Sgd::builder(group().learning_rate_factor(bad))
                .params(sgd(0.))
                .build(),
        );
        assert!(is_hyper_parameter(&error, "learning_rate_factor"));
        let error = refused_at_first(
            Sgd::builder(group().weight_decay(bad))
                .params(sgd(0.))
                .build(),
        );
        assert!(is_hyper_parameter(&error, "weight_decay"));

        let mut optimizer = Sgd::builder(group()).params(sgd(0.)).build().unwrap();
        let options = GroupOptions::default().learning_rate_factor(bad);
        let error = optimizer_error(optimizer.set_group(0, options).unwrap_err());
        assert!(is_hyper_parameter(&error, "learning_rate_factor"));
        assert_eq!(optimizer.groups()[0], GroupOptions::default());
    }
    let mut optimizer = Sgd::builder(group()).params(sgd(0.)).build().unwrap();
    let error = optimizer.set_group(1, GroupOptions::default()).unwrap_err();
    assert_eq!(
        optimizer_error(error),
        "there is no group 1: the optimizer has 1, counted from 0"
    );
}

#[test]
fn a_part_of_the_moments_is_above_0_and_at_most_1() {
    let vars = make_vars(&[&[3, 4], &[20]], DType::F32);
    for bad in [0., -0.5, 1.5, f64::NAN, f64::INFINITY] {
        let builder = AdamW::builder(vars.clone()).moments_on_host(bad);
        let error = refused_at_first(builder.build());
        assert_eq!(
            error,
            format!("`moments_on_host` of AdamW must be above 0 and at most 1, got {bad}")
        );
    }
    // On the CPU the moments are on the host anyway.
    let moved = AdamW::builder(vars).moments_on_host(1.).build().unwrap();
    assert_eq!((moved.state_bytes(), moved.host_state_bytes()), (8 * 32, 0));
}
