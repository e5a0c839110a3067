//! What cannot be worked with.

use super::*;

/// The error's text says the same as these words, in any order.
fn says(error: &str, words: &[&str]) -> bool {
    words.iter().all(|word| error.contains(word))
}

#[test]
fn lists_that_cannot_be_trained_are_refused() {
    let parameter_error = |group: Vec<Group>| {
        let builder = group
            .into_iter()
            .fold(Sgd::builder(Group::default()), |b, group| b.group(group));
        match builder.build().unwrap_err() {
            error if error.is_parameter() => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let integer = || Var::zeros(3, DType::U32, &Device::Cpu).unwrap();
    let [a, b] = [0, 1].map(|i| make_vars(&[&[3], &[4]], DType::F32).swap_remove(i));
    let integers = vec![integer(), integer()];
    for nothing in [vec![], vec![Group::default()], vec![integers.into()]] {
        let error = parameter_error(nothing);
        assert!(
            error.starts_with("there is no floating-point Var to train"),
            "{error}"
        );
    }

    // Counted as they were listed, over all groups, whatever is passed over or worked on first.
    let large = make_vars(&[&[LARGE]], DType::F32).remove(0);
    let twice = vec![integer(), a.clone(), large.clone(), a.clone()];
    let duplicate = "parameter `3` is listed twice: list each Var once";
    assert_eq!(parameter_error(vec![twice.into()]), duplicate);
    let groups = vec![
        vec![b.clone(), a.clone()].into(),
        vec![large, b.clone()].into(),
    ];
    assert_eq!(parameter_error(groups), duplicate);

    let names = vec![("w", a.clone()), ("w", b.clone())];
    let expected = "two parameters have the name `w`: give each its own";
    let error = refused_at_first(Sgd::builder(names).params(sgd(0.)).build());
    assert_eq!(error, expected);
    let builder = Sgd::builder(vec![("w", a)]).params(sgd(0.));
    let error = refused_at_first(builder.group(vec![("w", b)]).build());
    assert_eq!(error, expected);
}

#[test]
fn integer_vars_are_passed_over() {
    let vars = make_vars(&[&[3]], DType::F32);
    let integer = Var::zeros(3, DType::I64, &Device::Cpu).unwrap();
    let mut optimizer = AdamW::builder(vec![integer.clone(), vars[0].clone()])
        .params(adamw())
        .build()
        .unwrap();
    let before = bits(&vars);
    let mut store = gradients(&vars, 0);
    store.insert(&integer, integer.as_detached_tensor());
    optimizer.commit(&store).unwrap();
    assert_ne!(bits(&vars), before);
    assert_eq!(integer.to_vec1::<i64>().unwrap(), [0; 3]);
}

#[test]
fn state_that_is_not_there_is_refused() {
    let vars = make_vars(&[&[3]], DType::F64);
    let mut optimizer = Sgd::builder(vars.clone()).params(sgd(0.)).build().unwrap();
    let keeps = |error, kept: &str| {
        let expected =
            format!("Sgd keeps {kept}, not what these hyper-parameters need: build a new one");
        optimizer_error(error) == expected
    };
    let error = optimizer.set_params(sgd(0.9)).unwrap_err();
    assert!(keeps(error, "nothing"));
    assert_eq!(*optimizer.params(), sgd(0.));
    optimizer.commit(&gradients(&vars, 0)).unwrap();

    let mut optimizer = Sgd::builder(vars).params(sgd(0.9)).build().unwrap();
    let error = optimizer.set_params(sgd(0.)).unwrap_err();
    assert!(keeps(error, "momentum_buffer"));
    optimizer.set_params(sgd(0.5)).unwrap();
    assert_eq!(optimizer.params().momentum, 0.5);
}

#[test]
fn moments_that_are_not_kept_are_refused() {
    for (parameter, moments) in [
        (DType::F32, DType::F16),
        (DType::BF16, DType::F16),
        (DType::F32, DType::U32),
        (DType::F32, DType::U8),
        (DType::F32, DType::F64),
        (DType::F64, DType::BF16),
        (DType::F64, DType::F32),
    ] {
        let builder = AdamW::builder(make_vars(&[&[3]], parameter)).params(adamw());
        let error = refused_at_first(builder.moments(moments).build());
        let words = [
            "`0`",
            &format!("{parameter:?}"),
            &format!("cannot be {moments:?}"),
        ];
        assert!(says(&error, &words), "{error}");
    }
    let in_f64 = AdamW::builder(make_vars(&[&[3]], DType::F64));
    let error = refused_at_first(in_f64.moments(Moments::EightBit).build());
    assert!(says(&error, &["`0`", "F64", "cannot be U8"]), "{error}");
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let builder = AdamW::builder(make_vars(&[&[3]], dtype)).params(adamw());
        builder.moments(DType::F32).build().unwrap();
        let builder = AdamW::builder(make_vars(&[&[3]], dtype)).params(adamw());
        builder.moments(Moments::EightBit).build().unwrap();
    }
}

/// f16 cannot be rounded at random; what is not rounded at all may stand beside bf16.
#[test]
fn stochastic_rounding_of_f16_is_refused() {
    let build = |dtype| {
        let vars = vec![("norm", make_vars(&[&[3]], DType::F32).remove(0))];
        let halves = vec![("half", make_vars(&[&[3]], dtype).remove(0))];
        AdamW::builder(vars).group(halves).stochastic_rounding()
    };
    let error = refused_at_first(build(DType::F16).build());
    assert!(
        says(&error, &["`half` is f16", "master_weights()"]),
        "{error}"
    );
    build(DType::BF16).build().unwrap();
    build(DType::F64).build().unwrap();
    // The later of both options counts.
    let masters = build(DType::F16).master_weights().build().unwrap();
    assert_eq!(masters.state_bytes(), 3 * 8 + 3 * 12);
}

#[test]
fn gradients_that_do_not_fit_are_refused_before_anything_moves() {
    fn check<A: Algorithm>(params: A, dtype: DType, bad: &dyn Fn(&Var) -> Vec<(Tensor, bool)>) {
        let vars = make_vars(&[&[LARGE], &[4, 5], &[3], &[4, 3]], dtype);
        let twins = copies(&vars);
        let named = ["large", "first", "second", "third"]
            .into_iter()
            .zip(vars.clone());
        let builder = Fused::builder(named.collect::<Vec<_>>()).params(params.clone());
        let mut optimizer = builder.clip_norm(1.).build().unwrap();
        let mut twin = Fused::builder(twins.clone())
            .params(params)
            .clip_norm(1.)
            .build()
            .unwrap();
        optimizer.commit(&gradients(&vars, 0)).unwrap();
        twin.commit(&gradients(&twins, 0)).unwrap();
        let before = (bits(&vars), counted(optimizer.progress().unwrap()));
        for (bad, is_shared) in bad(&vars[3]) {
            let mut store = gradients(&vars, 1);
            store.insert(&vars[3], bad.clone());
            let error = optimizer_error(optimizer.commit(&store).unwrap_err());
            let (has_shape, shape) = (bad.dims() == vars[3].dims(), bad.shape());
            let (expected, found) = (vars[3].shape(), bad.dtype());
            let problem = if is_shared {
                "is a parameter's own memory: pass a copy".to_owned()
            } else if !has_shape {
                format!("has shape {shape:?}, not {expected:?}")
            } else {
                format!(
                    "is {found:?}: it must be {dtype:?} as the parameter, or f32 if that is f16 or bf16"
                )
            };
            let expected = format!("the gradient of parameter `third` {problem}");
            assert_eq!(error, expected);
            let after = (bits(&vars), counted(optimizer.progress().unwrap()));
            assert_eq!(before, after);
        }
        optimizer.commit(&gradients(&vars, 1)).unwrap();
        twin.commit(&gradients(&twins, 1)).unwrap();
        assert_eq!(bits(&vars), bits(&twins));
    }
    fn bad(var: &Var) -> Vec<(Tensor, bool)> {
        let of = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
        let other = |dtype| match dtype {
            DType::F64 => vec![DType::F32, DType::F16, DType::BF16, DType::U32, DType::I64],
            DType::F32 => vec![DType::F64, DType::F16, DType::BF16, DType::U32, DType::I64],
            DType::F16 => vec![DType::F64, DType::BF16, DType::U32],
            _ => vec![DType::F64, DType::F16, DType::U32],
        };
        let mut bad = vec![
            (of(&[3, 4], var.dtype()), false),
            (of(&[12], var.dtype()), false),
            (of(&[], var.dtype()), false),
            (of(&[4, 3, 1], var.dtype()), false),
            // Its own memory, in all the ways to come by it.
            (var.as_tensor().clone(), true),
            (var.as_detached_tensor(), true),
            (
                var.narrow(0, 1, 1).unwrap().broadcast_as((4, 3)).unwrap(),
                true,
            ),
        ];
        bad.extend(
            other(var.dtype())
                .into_iter()
                .map(|dtype| (of(&[4, 3], dtype), false)),
        );
        bad
    }
    for_each_algorithm!(|params| check(params, DType::F32, &bad));
    for dtype in [DType::F64, DType::F16, DType::BF16] {
        check(adamw(), dtype, &bad);
    }
}

/// Whichever moves first, the other would see it: from one run to the next, by the threads.
#[test]
fn a_gradient_that_is_another_parameters_memory_is_refused() {
    let vars = make_vars(&[&[3], &[3]], DType::F32);
    let mut optimizer = AdamW::builder(vars.clone())
        .params(adamw())
        .build()
        .unwrap();
    let before = bits(&vars);
    let swapped = store([
        (vars[0].clone(), vars[1].as_detached_tensor()),
        (vars[1].clone(), vars[0].as_detached_tensor()),
    ]);
    let error = optimizer_error(optimizer.commit(&swapped).unwrap_err());
    assert_eq!(
        error,
        "the gradient of parameter `0` is a parameter's own memory: pass a copy"
    );
    assert_eq!(bits(&vars), before);
}

/// One tensor may be the gradient of several parameters.
#[test]
fn gradients_may_share_memory_with_each_other() {
    fn check<A: Algorithm>(params: A) {
        let vars = make_vars(&[&[3, 4], &[3, 4], &[4, 3]], DType::F32);
        let twins = copies(&vars);
        let gradient = tensor(&[3, 4], 8, DType::F32);
        let shared = [gradient.clone(), gradient.clone(), gradient.t().unwrap()];
        let owned = shared.clone().map(|gradient| gradient.copy().unwrap());
        let mut optimizer = Fused::builder(vars.clone())
            .params(params.clone())
            .build()
            .unwrap();
        let mut twin = Fused::builder(twins.clone())
            .params(params)
            .build()
            .unwrap();
        optimizer
            .commit(&store(vars.iter().cloned().zip(shared.clone())))
            .unwrap();
        twin.commit(&store(twins.iter().cloned().zip(owned.clone())))
            .unwrap();
        assert_eq!(bits(&vars), bits(&twins));
    }
    for_each_algorithm!(|params| check(params));
}
