//! The trainers' builders: which parameters may stay without a gradient, and what is refused.

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::optim::Group;
use candle_headroom::train::AdaptiveTrainerBuilder;
use candle_headroom::{
    AccumulatingTrainer, AdamW, AdaptiveTrainer, Error, GradientAccumulator, Sgd,
};

use crate::support::{ConvNet, Mlp, foreign, sgd};

/// Two Vars, of which only the first is used.
fn two() -> [Var; 2] {
    [0, 1].map(|_| Var::ones(2, DType::F32, &Device::Cpu).unwrap())
}

fn named([used, idle]: &[Var; 2]) -> Sgd {
    let vars = vec![("net.used", used.clone()), ("net.idle", idle.clone())];
    Sgd::builder(vars).learning_rate(0.1).build().unwrap()
}

fn step<O: candle_headroom::optim::Commit>(
    vars: &[Var; 2],
    builder: AdaptiveTrainerBuilder<O>,
) -> Result<(), Error> {
    let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    let mut trainer = builder.build()?;
    trainer.step(&x, |x, _| x.broadcast_mul(&vars[0])?.mean_all())?;
    Ok(())
}

fn unreached(error: &Error) -> &[String] {
    match error {
        Error::UnreachedParameters(unreached) => &unreached.names,
        error => panic!("{error}"),
    }
}

#[test]
fn what_may_stay_without_a_gradient_is_named() {
    let vars = two();
    let error = step(&vars, AdaptiveTrainer::builder(named(&vars))).unwrap_err();
    assert_eq!(unreached(&error), ["net.idle"]);
    for allowed in ["net.idle", "*.idle", "net.*", "*"] {
        let builder = AdaptiveTrainer::builder(named(&vars)).allow_unreached([allowed]);
        step(&vars, builder).unwrap();
    }
    let builder =
        AdaptiveTrainer::builder(named(&vars)).allow_unreached(vec![String::from("net.used")]);
    assert_eq!(unreached(&step(&vars, builder).unwrap_err()), ["net.idle"]);
    // All three kinds of trainers take it.
    let accumulating = AccumulatingTrainer::builder(named(&vars), 1).allow_unreached(["*.idle"]);
    let mut accumulating = accumulating.build().unwrap();
    let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu).unwrap();
    let loss = |x: Tensor| x.broadcast_mul(&vars[0])?.mean_all();
    accumulating.step(&x, |x, _| loss(x)).unwrap();
    let accumulator = GradientAccumulator::builder(named(&vars)).allow_unreached(["*.idle"]);
    let mut accumulator = accumulator.build().unwrap();
    accumulator.add(loss(x).unwrap(), 4).unwrap();
    accumulator.update().unwrap().unwrap();
    assert_eq!(accumulator.unreached()[0].name, "net.idle");
}

#[test]
fn a_var_without_a_name_has_its_place() {
    let vars = two();
    let foreign = || sgd(&vars, 0.1);
    let error = step(&vars, AdaptiveTrainer::builder(foreign())).unwrap_err();
    assert_eq!(unreached(&error), ["1"]);
    assert!(
        error.to_string().starts_with(
            "no gradient for 1 of 2 parameters in their first update: Var: 1 (1 of 2);"
        ),
        "{error}"
    );
    step(
        &vars,
        AdaptiveTrainer::builder(foreign()).allow_unreached(["1"]),
    )
    .unwrap();
}

/// A pattern that matches nothing is a typo.
#[test]
fn a_pattern_that_matches_nothing_is_refused() {
    let vars = two();
    for pattern in ["net.idel", "idle", "net.*.idle", "", "1"] {
        let allowed = ["net.used", pattern];
        let errors = [
            AdaptiveTrainer::builder(named(&vars))
                .allow_unreached(allowed)
                .build()
                .err(),
            AccumulatingTrainer::builder(named(&vars), 2)
                .allow_unreached(allowed)
                .build()
                .err(),
            GradientAccumulator::builder(named(&vars))
                .allow_unreached(allowed)
                .build()
                .err(),
        ];
        for error in errors {
            let error = error.expect("a pattern that matches nothing");
            assert!(
                error.is_parameter() && error.to_string().contains(&format!("`{pattern}`")),
                "{error}"
            );
        }
    }
}

#[test]
fn no_update_to_be_reached_in_is_refused() {
    let vars = two();
    let adaptive = AdaptiveTrainer::builder(named(&vars))
        .reach_within(0)
        .build();
    let accumulator = GradientAccumulator::builder(named(&vars))
        .reach_within(0)
        .build();
    for error in [adaptive.err(), accumulator.err()] {
        let error = error.expect("0 updates");
        assert!(
            error.to_string().contains("allow_unreached([\"*\"])"),
            "{error}"
        );
    }
    let accumulator = GradientAccumulator::builder(named(&vars)).reach_within(2);
    let mut accumulator = accumulator.build().unwrap();
    for is_last in [false, true] {
        accumulator.add(vars[0].sum_all().unwrap(), 1).unwrap();
        assert_eq!(accumulator.update().is_err(), is_last);
    }
}

/// A frozen parameter is known by its name, for the time when it is thawed.
#[test]
fn names_of_frozen_parameters_are_known() {
    let vars = two();
    let frozen = Group::from(vec![("net.idle", vars[1].clone())]).frozen();
    let used = vec![("net.used", vars[0].clone())];
    let optimizer = AdamW::builder(used).group(frozen).build().unwrap();
    let mut trainer = AdaptiveTrainer::builder(optimizer)
        .allow_unreached(["*.idle"])
        .build()
        .unwrap();
    let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu).unwrap();
    for frozen in [true, false] {
        let options = trainer.optimizer().groups()[1].frozen(frozen);
        trainer.optimizer_mut().set_group(1, options).unwrap();
        trainer
            .step(&x, |x, _| x.broadcast_mul(&vars[0])?.mean_all())
            .unwrap();
    }
    assert_eq!(trainer.unreached()[0].name, "net.idle");
}

/// BatchNorm's statistics without names are known where they are named buffers.
#[test]
fn named_buffers_need_no_gradient() {
    let train = |has_buffers: bool| {
        let model = ConvNet::new();
        let mut builder = AdaptiveTrainer::builder(sgd(&model.vars, 0.1));
        if has_buffers {
            builder = builder.buffers([model.norm.running_mean(), model.norm.running_var()]);
        }
        let mut trainer = builder.build().unwrap();
        trainer
            .step(&ConvNet::data(4), |(x, y), _| model.loss(&x, &y))
            .map(|_| ())
    };
    train(true).unwrap();
    let error = train(false).unwrap_err();
    assert_eq!(unreached(&error).len(), 2);
}

/// Candle's own optimizers, with a `VarMap`'s names.
#[test]
fn a_foreign_optimizer_has_names() {
    let model = Mlp::new(DType::F32);
    let optimizer = candle_headroom::Foreign::new(
        foreign::<candle_nn::SGD>(&model.vars, 0.1).into_inner(),
        &model.varmap,
    );
    let mut trainer = AdaptiveTrainer::builder(optimizer).build().unwrap();
    let x = Mlp::data(4, DType::F32).0;
    let error = trainer
        .step(&x, |x, _| model.forward(&x)?.detach().sum_all())
        .unwrap_err();
    assert_eq!(
        unreached(&error),
        ["first.bias", "first.weight", "second.bias", "second.weight"]
    );
}
