//! Layouts and types.

use super::*;

/// The same gradient as it may lie in memory.
fn layouts(gradient: &Tensor) -> Vec<Tensor> {
    let (rows, columns) = gradient.dims2().unwrap();
    let transposed = gradient.t().unwrap().contiguous().unwrap().t().unwrap();
    let zeros =
        |rows, columns| Tensor::zeros((rows, columns), gradient.dtype(), &Device::Cpu).unwrap();
    let shifted = Tensor::cat(&[&zeros(2, columns), gradient], 0).unwrap();
    let narrowed = Tensor::cat(&[&zeros(rows, 3), gradient, &zeros(rows, 1)], 1).unwrap();
    vec![
        transposed,
        shifted.narrow(0, 2, rows).unwrap(),
        narrowed.narrow(1, 3, columns).unwrap(),
    ]
}

#[test]
fn a_gradient_may_lie_in_memory_as_it_likes() {
    fn check<A: Algorithm>(params: &A, shape: (usize, usize), dtype: DType) {
        let var = Var::from_tensor(&tensor(&[shape.0, shape.1], 1, dtype)).unwrap();
        let gradient = tensor(&[shape.0, shape.1], 2, dtype);
        let moved = |gradient: &Tensor| {
            let vars = copies(std::slice::from_ref(&var));
            let builder = Fused::builder(vars.clone()).params(params.clone());
            let mut optimizer = builder.clip_norm(0.5).build().unwrap();
            for _ in 0..2 {
                let store = store([(vars[0].clone(), gradient.clone())]);
                optimizer.commit(&store).unwrap();
            }
            bits(&vars)
        };
        let expected = moved(&gradient);
        for layout in layouts(&gradient) {
            assert_eq!(flat(&layout), flat(&gradient));
            assert_eq!(moved(&layout), expected, "{:?}", layout.layout());
        }
        // One number, one row or one column for all: strides of 0.
        for seed in [(1, 1), (1, shape.1), (shape.0, 1)] {
            let seed = tensor(&[seed.0, seed.1], 3, dtype);
            let expanded = seed.broadcast_as(shape).unwrap();
            let expected = moved(&expanded.force_contiguous().unwrap());
            assert_eq!(moved(&expanded), expected, "{:?}", expanded.layout());
        }
    }
    for_each_algorithm!(|params| {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            check(&params, (19, 23), dtype);
        }
        check(&params, (257, 319), DType::F32);
    });
}

#[test]
fn half_parameters_are_f32_ones_rounded() {
    fn check<A: Algorithm>(params: &A, dtype: DType, has_masters: bool) {
        let vars = make_vars(&[&[19, 31], &[600], &[], &[257, 319]], dtype);
        let twins: Vec<_> = vars
            .iter()
            .map(|var| var.to_dtype(DType::F32).unwrap())
            .collect();
        let twins: Vec<_> = twins
            .iter()
            .map(|twin| Var::from_tensor(twin).unwrap())
            .collect();
        let builder = Fused::builder(vars.clone()).params(params.clone());
        let builder = if has_masters {
            builder.master_weights()
        } else {
            builder
        };
        let mut optimizer = builder.build().unwrap();
        let mut twin = Fused::builder(twins.clone())
            .params(params.clone())
            .build()
            .unwrap();
        for step in 0..4 {
            // Gradients in f32 and, as `backward` gives them, in the type itself.
            let mut own = GradStore::default();
            let mut full = GradStore::default();
            for (i, (var, twin)) in vars.iter().zip(&twins).enumerate() {
                let gradient = tensor(var.dims(), 17 * step + i, DType::F32);
                let half = gradient.to_dtype(dtype).unwrap();
                let is_full = step % 2 == 0;
                let widened = half.to_dtype(DType::F32).unwrap();
                full.insert(twin, if is_full { gradient.clone() } else { widened });
                own.insert(var, if is_full { gradient } else { half });
            }
            optimizer.commit(&own).unwrap();
            twin.commit(&full).unwrap();
            for (var, twin) in vars.iter().zip(&twins) {
                let rounded = twin.to_dtype(dtype).unwrap();
                assert_eq!(flat(var), flat(&rounded), "{dtype:?}, step {step}");
                if !has_masters {
                    twin.set(&rounded.to_dtype(DType::F32).unwrap()).unwrap();
                }
            }
        }
    }
    for_each_algorithm!(|params| {
        for dtype in [DType::F16, DType::BF16] {
            check(&params, dtype, false);
            check(&params, dtype, true);
        }
    });
}

#[test]
fn masters_add_up_what_a_half_cannot_tell_apart() {
    type Builder = FusedBuilder<ParamsSgd>;
    let run = |options: fn(Builder) -> Builder| {
        let var = Var::ones(300, DType::BF16, &Device::Cpu).unwrap();
        let params = ParamsSgd {
            lr: 1e-4,
            ..Default::default()
        };
        let builder = Sgd::builder(vec![var.clone()]).params(params);
        let mut optimizer = options(builder).build().unwrap();
        let gradient = Tensor::ones(300, DType::F32, &Device::Cpu).unwrap();
        for _ in 0..1000 {
            optimizer
                .commit(&store([(var.clone(), gradient.clone())]))
                .unwrap();
        }
        flat(&var)
    };
    assert_eq!(run(|builder| builder)[299], 1.);
    let masters = run(|builder| builder.master_weights());
    assert!((masters[299] - 0.9).abs() < 0.004, "{}", masters[299]);
    let random = run(|builder| builder.stochastic_rounding());
    let mean = random.iter().sum::<f64>() / 300.;
    // Each element ends about 0.02 off, so the mean of 300 some 0.001.
    assert!((mean - 0.9).abs() < 0.005, "{mean}");
    assert_eq!(run(|builder| builder.stochastic_rounding()), random);
}

/// Each element of each rule goes to one of the two neighbours of what masters in f32 would have.
#[test]
fn stochastic_rounding_takes_a_neighbour() {
    fn check<A: Algorithm>(params: A) {
        let vars = make_vars(&[&[19, 31], &[LARGE], &[]], DType::BF16);
        let twins: Vec<_> = vars.iter().map(|var| var.to_dtype(DType::F32)).collect();
        let twins: Vec<_> = twins
            .into_iter()
            .map(|twin| Var::from_tensor(&twin.unwrap()).unwrap())
            .collect();
        let builder = Fused::builder(vars.clone()).params(params.clone());
        let mut optimizer = builder.stochastic_rounding().build().unwrap();
        let mut exact = Fused::builder(twins.clone())
            .params(params)
            .build()
            .unwrap();
        let full = gradients(&twins, 0);
        let own = vars.iter().zip(&twins);
        let own = own.map(|(var, twin)| (var.clone(), full.get(twin).unwrap().clone()));
        optimizer.commit(&store(own)).unwrap();
        exact.commit(&full).unwrap();
        let mut errors = Vec::new();
        let all = snapshot(&vars).into_iter().zip(snapshot(&twins));
        for (rounded, exact) in all.flat_map(|(a, b)| a.into_iter().zip(b)) {
            let [down, up] = [0, 0xffff].map(|add| ((exact as f32).to_bits() + add) & 0xffff_0000);
            let [down, up] = [down, up].map(|bits| f64::from(f32::from_bits(bits)));
            assert!(rounded == down || rounded == up, "{rounded} {exact}");
            if down != up {
                errors.push((rounded - exact) / (up - down).abs());
            }
        }
        // In the mean nothing is lost: the mean of 82,000 errors of half a unit at most is off by some 0.002.
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        assert!(mean.abs() < 0.01, "{mean} of {}", errors.len());
    }
    for_each_algorithm!(|params| check(params));
}

#[test]
fn masters_change_nothing_for_full_parameters() {
    for dtype in [DType::F64, DType::F32] {
        let vars = make_vars(&[&[40]], dtype);
        let twins = copies(&vars);
        let builder = AdamW::builder(vars.clone())
            .params(adamw())
            .master_weights();
        let mut optimizer = builder.build().unwrap();
        let mut twin = AdamW::builder(twins.clone())
            .params(adamw())
            .build()
            .unwrap();
        optimizer.commit(&gradients(&vars, 0)).unwrap();
        twin.commit(&gradients(&twins, 0)).unwrap();
        assert_eq!(bits(&vars), bits(&twins));
    }
}

/// The mean of steps at the end of a run in which the gradient falls from 1 to a tenth: the second moment rises and falls by a
/// thousandth in a step, which bf16, rounded to the nearest, could not follow either way.
fn last_steps(params: ParamsAdam, moments: DType, len: usize) -> [f64; 2] {
    let var = Var::zeros(len, DType::F32, &Device::Cpu).unwrap();
    let builder = Adam::builder(vec![var.clone()]).params(params);
    let mut optimizer = builder.moments(moments).build().unwrap();
    [1f32, 0.1].map(|size| {
        let gradient = Tensor::full(size, len, &Device::Cpu).unwrap();
        let store = store([(var.clone(), gradient)]);
        let mut before = flat(&var);
        for _ in 0..600 {
            before = flat(&var);
            optimizer.commit(&store).unwrap();
        }
        let steps = before
            .iter()
            .zip(flat(&var))
            .map(|(before, now)| before - now);
        steps.sum::<f64>() / len as f64
    })
}

#[test]
fn moments_in_bf16_move_with_those_in_f32() {
    let params = ParamsAdam {
        weight_decay: 0.,
        ..adam()
    };
    let exact = last_steps(params, DType::F32, 8);
    let rounded = last_steps(params, DType::BF16, 1024);
    for (exact, rounded) in exact.iter().zip(rounded) {
        // The mean of 1,024 elements, each off by some hundredths.
        let error = (rounded / exact - 1.).abs();
        println!("bf16 moments: {rounded:e} for {exact:e}, {error:e} off");
        assert!(error < 0.01, "{rounded:e} for {exact:e}");
    }
}

#[test]
fn moments_in_bf16_are_the_same_bits_in_each_run() {
    let run = || {
        let vars = make_vars(&[&[LARGE], &[40, 7]], DType::F32);
        let builder = AdamW::builder(vars.clone()).params(adamw());
        let mut optimizer = builder.moments(DType::BF16).build().unwrap();
        for step in 0..3 {
            optimizer.commit(&gradients(&vars, step)).unwrap();
        }
        bits(&vars)
    };
    assert_eq!(run(), run());
}
