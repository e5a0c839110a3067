//! Groups and what is done to gradients.

use super::*;

/// The same hyper-parameters with a group's rates in them.
trait Rates: Algorithm {
    fn with(&self, factor: f64, weight_decay: Option<f64>) -> Self;
}

macro_rules! rates {
    ($($params:ty),+) => {$(
        impl Rates for $params {
            fn with(&self, factor: f64, weight_decay: Option<f64>) -> Self {
                let mut params = self.clone();
                params.lr *= factor;
                params.weight_decay = weight_decay.unwrap_or(params.weight_decay);
                params
            }
        }
    )+};
}

rates!(ParamsAdam, ParamsAdamW, ParamsLion, ParamsSgd);

#[test]
fn groups_are_split_by_patterns_of_names() {
    let names = [
        "embed.weight",
        "block.0.norm.weight",
        "block.0.bias",
        "head",
    ];
    let vars = make_vars(&[&[2][..]; 4], DType::F32);
    let group = || Group::from(Vec::from_iter(names.into_iter().zip(vars.clone())));
    let split = |patterns: &[&str]| {
        let (first, second) = group().matching(patterns.iter().copied()).unwrap();
        [first, second].map(|group| {
            let optimizer = Sgd::builder(group).build().unwrap();
            let named = optimizer.parameters().iter().map(|p| p.name.clone());
            Vec::from_iter(named)
        })
    };
    assert_eq!(
        split(&["*bias", "*.norm.*"]),
        [&names[1..3], &[names[0], names[3]]]
    );
    assert_eq!(split(&["head"]), [&names[3..], &names[..3]]);
    let error = group().matching(["*bias", "blok.*"]).unwrap_err();
    assert!(
        error.is_parameter() && error.to_string().contains("matches `blok.*`"),
        "{error}"
    );
}

/// Each group against an optimizer of its own, with the rates spelt out.
fn check_groups<A: Rates>(params: A) {
    let vars = make_vars(&[&[5], &[4, 3], &[6]], DType::F64);
    let twins = copies(&vars);
    let group = |i: usize| Group::from(vec![vars[i].clone()]);
    let builder = Fused::builder(group(0)).params(params.clone());
    let builder = builder.group(group(1).learning_rate_factor(0.25).weight_decay(0.02));
    let builder = builder.group(group(2).frozen()).clip_norm(1e9);
    let mut optimizer = builder.build().unwrap();
    let alone = |i: usize, params: A| {
        Fused::builder(vec![twins[i].clone()])
            .params(params)
            .build()
            .unwrap()
    };
    let mut alone = [
        alone(0, params.clone()),
        alone(1, params.with(0.25, Some(0.02))),
        alone(2, params),
    ];
    for step in 0..2 {
        let store = gradients(&vars, step);
        optimizer.commit(&store).unwrap();
        let twin_store = gradients(&twins, step);
        alone[0].commit(&twin_store).unwrap();
        alone[1].commit(&twin_store).unwrap();
        // Frozen gradients do not count for the norm.
        let squares = vars[..2]
            .iter()
            .flat_map(|var| flat(store.get(var).unwrap()));
        let norm = squares.map(|g| g * g).sum::<f64>().sqrt();
        let found = optimizer.progress().unwrap().gradient_norm.unwrap();
        assert!((found / norm - 1.).abs() < 1e-15);
    }
    assert_eq!(bits(&vars), bits(&twins));

    // A thawed parameter starts at step 1. The second group is frozen from now on.
    let frozen = optimizer.groups()[1].frozen(true);
    optimizer.set_group(1, frozen).unwrap();
    optimizer.set_group(2, GroupOptions::default()).unwrap();
    assert_eq!(optimizer.groups()[1], frozen);
    optimizer.commit(&gradients(&vars, 2)).unwrap();
    let twin_store = gradients(&twins, 2);
    alone[0].commit(&twin_store).unwrap();
    alone[2].commit(&twin_store).unwrap();
    assert_eq!(bits(&vars), bits(&twins));
}

#[test]
fn groups_have_their_own_rates_and_can_be_frozen() {
    for_each_algorithm!(|params| check_groups(params));
}

#[test]
fn a_new_learning_rate_moves_all_groups() {
    let vars = make_vars(&[&[5], &[4]], DType::F64);
    let builder = Sgd::builder(vec![vars[0].clone()]);
    let slower = Group::from(vec![vars[1].clone()]).learning_rate_factor(0.5);
    let mut optimizer = builder.group(slower).build().unwrap();
    optimizer.set_learning_rate(0.5);
    assert_eq!(optimizer.params().lr, 0.5);
    let before = snapshot(&vars);
    let store = gradients(&vars, 0);
    optimizer.commit(&store).unwrap();
    for ((var, before), rate) in vars.iter().zip(before).zip([0.5, 0.25]) {
        let gradient = flat(store.get(var).unwrap());
        let expected = before.iter().zip(gradient).map(|(p, g)| p - rate * g);
        assert_eq!(flat(var), expected.collect::<Vec<_>>());
    }
}

#[test]
fn clipping_is_scaling_and_clamping_by_hand() {
    fn check<A: Algorithm>(params: A) {
        let vars = make_vars(&[&[LARGE], &[4, 3], &[]], DType::F64);
        let [by_hand, clamped, twins] = [copies(&vars), copies(&vars), copies(&vars)];
        let builder = Fused::builder(vars.clone()).params(params.clone());
        let mut clips = builder.clip_norm(0.5).build().unwrap();
        let mut hand = Fused::builder(by_hand.clone())
            .params(params.clone())
            .build()
            .unwrap();
        let builder = Fused::builder(clamped.clone()).params(params.clone());
        let mut clamps = builder.clip_value(0.1).build().unwrap();
        let mut twin = Fused::builder(twins.clone())
            .params(params)
            .build()
            .unwrap();
        for step in 0..3 {
            // The last is too small to be clipped.
            let size = if step == 2 { 1e-5 } else { 3. };
            let raw: Vec<_> = vars
                .iter()
                .enumerate()
                .map(|(i, var)| (tensor(var.dims(), step + i, DType::F64) * size).unwrap())
                .collect();
            let given = |vars: &[Var], change: &dyn Fn(&Tensor) -> Tensor| {
                store(vars.iter().cloned().zip(raw.iter().map(change)))
            };
            let squares = raw.iter().flat_map(flat).map(|g| g * g).sum::<f64>();
            let factor = (0.5 / (squares.sqrt() + 1e-6)).min(1.);
            assert_eq!(factor == 1., step == 2);

            clips.commit(&given(&vars, &Tensor::clone)).unwrap();
            hand.commit(&given(&by_hand, &|g| (g * factor).unwrap()))
                .unwrap();
            let norm = clips.progress().unwrap().gradient_norm.unwrap();
            assert!((norm / squares.sqrt() - 1.).abs() < 1e-13);
            clamps.commit(&given(&clamped, &Tensor::clone)).unwrap();
            twin.commit(&given(&twins, &|g| g.clamp(-0.1, 0.1).unwrap()))
                .unwrap();
        }
        // The sum of squares is added up in another order.
        assert!(distance(&snapshot(&vars), &snapshot(&by_hand)) < 1e-13);
        assert_eq!(bits(&clamped), bits(&twins));
        assert_eq!(clamps.progress().unwrap().gradient_norm, None);
    }
    for_each_algorithm!(|params| check(params));
}

/// The element of this index, in the gradient of the parameter of this index, replaced.
fn spoilt(vars: &[Var], step: usize, which: usize, element: usize, value: f64) -> GradStore {
    let mut store = gradients(vars, step);
    let gradient = store.remove(&vars[which]).unwrap();
    let mut values = flat(&gradient);
    values[element] = value;
    let values = Tensor::from_vec(values, gradient.shape(), &Device::Cpu).unwrap();
    store.insert(&vars[which], values.to_dtype(gradient.dtype()).unwrap());
    store
}

#[test]
fn a_step_that_is_not_finite_is_skipped_and_counted() {
    fn check<A: Algorithm>(params: A, dtype: DType) {
        let mut shapes = vec![&[3usize, 4][..]; 30];
        shapes.push(&[LARGE]);
        let vars = make_vars(&shapes, dtype);
        let twins = copies(&vars);
        let builder = Fused::builder(vars.clone()).params(params.clone());
        let mut optimizer = builder.skip_non_finite().build().unwrap();
        let mut twin = Fused::builder(twins.clone())
            .params(params)
            .build()
            .unwrap();
        optimizer.commit(&gradients(&vars, 0)).unwrap();
        twin.commit(&gradients(&twins, 0)).unwrap();
        let before = bits(&vars);
        let places = [(0, 0), (17, 11), (30, LARGE - 1), (30, 20_000)];
        let bad = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
        for (n, (which, element)) in places.into_iter().enumerate() {
            for (m, value) in bad.into_iter().enumerate() {
                optimizer
                    .commit(&spoilt(&vars, 1, which, element, value))
                    .unwrap();
                assert_eq!(bits(&vars), before);
                let progress = optimizer.progress().unwrap();
                assert_eq!(
                    (progress.steps, progress.skipped),
                    (1, (3 * n + m + 1) as u64)
                );
                assert!(progress.gradient_norm.unwrap().is_nan());
                assert_eq!(progress.loss_scale, None);
            }
        }
        // What is kept has not moved either.
        optimizer.commit(&gradients(&vars, 2)).unwrap();
        twin.commit(&gradients(&twins, 2)).unwrap();
        assert_eq!(bits(&vars), bits(&twins));
    }
    for_each_algorithm!(|params| check(params, DType::F32));
    for dtype in [DType::F64, DType::F16, DType::BF16] {
        check(adamw(), dtype);
    }
}

#[test]
fn without_being_asked_to_look_a_step_goes_through() {
    let vars = make_vars(&[&[3]], DType::F32);
    let mut optimizer = Sgd::builder(vars.clone()).params(sgd(0.)).build().unwrap();
    optimizer.commit(&spoilt(&vars, 0, 0, 1, f64::NAN)).unwrap();
    let values = flat(&vars[0]);
    assert!(values[0].is_finite() && values[1].is_nan() && values[2].is_finite());
    assert_eq!(optimizer.progress().unwrap().skipped, 0);
}

#[test]
fn a_frozen_parameters_gradient_may_be_what_it_likes() {
    let vars = make_vars(&[&[3], &[4]], DType::F32);
    let builder = Sgd::builder(vec![vars[0].clone()]).params(sgd(0.));
    let frozen = Group::from(vec![vars[1].clone()]).frozen();
    let mut optimizer = builder.group(frozen).skip_non_finite().build().unwrap();
    optimizer.commit(&spoilt(&vars, 0, 1, 2, f64::NAN)).unwrap();
    assert_eq!(optimizer.progress().unwrap().skipped, 0);
}

#[test]
fn a_loss_scale_falls_with_each_skip_and_grows_after_a_while() {
    let vars = make_vars(&[&[3], &[4]], DType::F32);
    let twins = copies(&vars);
    let scale = LossScale::fixed(8.).growth(4.).backoff(0.25).interval(2);
    let builder = Sgd::builder(vars.clone()).params(sgd(0.9));
    let mut optimizer = builder.loss_scale(scale).build().unwrap();
    let mut twin = Sgd::builder(twins.clone())
        .params(sgd(0.9))
        .build()
        .unwrap();
    let loss_of = |vars: &[Var]| (vars[0].sqr()?.sum_all()? + vars[1].sqr()?.sum_all()?)? / 3.;
    let (mut expected, mut streak) = (8., 0);
    for (step, is_bad) in [0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0].into_iter().enumerate() {
        let progress = optimizer.progress().unwrap();
        assert_eq!(progress.loss_scale, Some(expected), "step {step}");
        let loss = loss_of(&vars).unwrap();
        let scaled = optimizer.scale_loss(&loss).unwrap();
        assert_eq!(flat(&scaled)[0], flat(&loss)[0] * expected);
        let mut store = scaled.backward().unwrap();
        if is_bad == 1 {
            store.insert(
                &vars[1],
                Tensor::new(&[1f32, f32::NAN, 1., 1.], &Device::Cpu).unwrap(),
            );
            (expected, streak) = (expected * 0.25, 0);
        } else {
            streak += 1;
            let plain = loss_of(&twins).unwrap().backward().unwrap();
            twin.commit(&plain).unwrap();
        }
        if streak == 2 {
            (expected, streak) = (expected * 4., 0);
        }
        optimizer.commit(&store).unwrap();
        // By powers of two, so that nothing is rounded: the same as without a scale.
        assert_eq!(bits(&vars), bits(&twins), "step {step}");
    }
    let progress = optimizer.progress().unwrap();
    assert_eq!((progress.steps, progress.skipped), (8, 3));
}

#[test]
fn a_loss_scale_stays_where_f32_can_multiply_with_it() {
    let vars = make_vars(&[&[3]], DType::F32);
    for (factor, value) in [(f64::MIN_POSITIVE, f64::NAN), (1e30, 1.)] {
        let scale = LossScale::fixed(1024.)
            .growth(1e30)
            .backoff(f64::MIN_POSITIVE);
        let builder = Sgd::builder(vars.clone()).params(sgd(0.));
        let mut optimizer = builder.loss_scale(scale).build().unwrap();
        for _ in 0..3 {
            commit(&mut optimizer, &spoilt(&vars, 0, 0, 0, value)).unwrap();
            let scale = optimizer.progress().unwrap().loss_scale.unwrap() as f32;
            assert!(scale.is_normal(), "{factor:e}: {scale:e}");
        }
    }
}

#[test]
fn a_half_loss_is_scaled_in_f32() {
    let vars = make_vars(&[&[3]], DType::F16);
    let builder = AdamW::builder(vars.clone()).params(adamw());
    let optimizer = builder.loss_scale(LossScale::dynamic()).build().unwrap();
    let loss = Tensor::new(half::f16::from_f32(3.), &Device::Cpu).unwrap();
    let scaled = optimizer.scale_loss(&loss).unwrap();
    assert_eq!(scaled.to_scalar::<f32>().unwrap(), 3. * 65536.);
    let unscaled = AdamW::builder(vars).params(adamw()).build().unwrap();
    assert_eq!(unscaled.scale_loss(&loss).unwrap().dtype(), DType::F16);
}
