//! Moments of 8 bits.

use candle_headroom::optim::StateDict;

use super::*;

/// The smallest that is kept in 8 bits, one that is not, whole blocks, parts of blocks, and one that threads share.
const SHAPES: [&[usize]; 5] = [&[64, 64], &[63, 65], &[4097], &[129, 100], &[LARGE]];

fn named(dtype: DType) -> Vec<(String, Var)> {
    let vars = make_vars(&SHAPES, dtype).into_iter().enumerate();
    vars.map(|(i, var)| (format!("p{i}"), var)).collect()
}

fn of(named: &[(String, Var)]) -> Vec<Var> {
    named.iter().map(|(_, var)| var.clone()).collect()
}

fn state_bits(state: &StateDict) -> Vec<(String, Vec<u64>)> {
    let tensors = state.tensors.iter();
    tensors
        .map(|(name, tensor)| {
            let bits = flat(tensor).into_iter().map(f64::to_bits).collect();
            (name.clone(), bits)
        })
        .collect()
}

/// Gradients of very different sizes, as a model's.
fn uneven(vars: &[Var], step: usize) -> GradStore {
    let mut store = gradients(vars, step);
    for var in vars {
        let gradient = store.get(var).unwrap().to_dtype(DType::F32).unwrap();
        let gradient = gradient.powf(9.).unwrap().to_dtype(var.dtype()).unwrap();
        store.insert(var, gradient);
    }
    store
}

/// The three rules of the issue, and momentum.
macro_rules! for_each_with_moments {
    (|$params:ident| $body:expr) => {{
        for_each_algorithm!(@one $params, $body, adamw());
        for_each_algorithm!(@one $params, $body, adam());
        for_each_algorithm!(@one $params, $body, sgd(0.9));
        for_each_algorithm!(@one $params, $body, lion());
    }};
}

/// A step is that of f32 moments which are coded before and after it: bit by bit.
#[test]
fn a_step_is_one_in_f32_between_codings() {
    fn check<A: Algorithm>(params: &A, dtype: DType) {
        let (here, there, other) = (named(dtype), named(dtype), named(dtype));
        let build = |named: &[(String, Var)], moments: Moments| {
            let builder = Fused::builder(named.to_vec()).params(params.clone());
            let builder = builder.clip_norm(100.).master_weights();
            builder.moments(moments).build().unwrap()
        };
        let mut coded = build(&here, Moments::EightBit);
        let mut plain = build(&there, DType::F32.into());
        let mut again = build(&other, Moments::EightBit);
        for step in 0..4 {
            plain.load_state(&coded.state().unwrap()).unwrap();
            coded.commit(&uneven(&of(&here), step)).unwrap();
            plain.commit(&uneven(&of(&there), step)).unwrap();
            assert_eq!(bits(&of(&here)), bits(&of(&there)), "{params:?} {step}");
            let (exact, state) = (plain.state().unwrap(), coded.state().unwrap());
            assert!(
                state_bits(&exact) != state_bits(&state),
                "nothing was coded"
            );
            // Rounded at random: a step of the code is at most a part of 0.0142 of the largest element.
            for (name, coded) in &state.tensors {
                let (exact, coded) = (flat(&exact.tensors[name]), flat(coded));
                for (coded, exact) in coded.chunks(256).zip(exact.chunks(256)) {
                    let largest = exact.iter().fold(0f64, |most, value| most.max(value.abs()));
                    let apart = coded.iter().zip(exact).map(|(a, b)| (a - b).abs());
                    let furthest = apart.fold(0., f64::max);
                    assert!(furthest <= 0.0142 * largest, "{params:?} {name}");
                }
            }
            // What is saved and loaded stays the same.
            again.load_state(&state).unwrap();
            let (again, state) = (again.state().unwrap(), coded.state().unwrap());
            assert!(state_bits(&again) == state_bits(&state), "{params:?}");
        }
    }
    for_each_with_moments!(|params| {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            check(&params, dtype);
        }
    });
}

#[test]
fn they_are_saved_in_f32_under_the_same_names() {
    let here = named(DType::BF16);
    let build = |moments: Moments| {
        let builder = AdamW::builder(here.clone()).master_weights();
        builder.moments(moments).build().unwrap()
    };
    let (coded, plain) = (build(Moments::EightBit), build(DType::F32.into()));
    let describe = |optimizer: &AdamW| -> Vec<_> {
        let state = optimizer.state().unwrap().tensors.into_iter();
        state
            .map(|(name, tensor)| (name, tensor.dtype(), tensor.dims().to_vec()))
            .collect()
    };
    assert_eq!(describe(&coded), describe(&plain));
}

/// 2 bytes for each element and a scale for each block of 256, but f32 below 4,096 elements; the remedy says what this saves.
#[test]
fn their_bytes_are_counted_and_advised() {
    let build = |moments: Moments| {
        let builder = AdamW::builder(named(DType::F32)).moments(moments);
        builder.build().unwrap()
    };
    let coded = [64 * 64, 4097, 129 * 100, LARGE];
    let bytes = coded.map(|len| 2 * (len + 4 * len.div_ceil(256)));
    let expected = bytes.iter().sum::<usize>() + 8 * 63 * 65;
    let small = build(Moments::EightBit);
    assert_eq!(small.state_bytes(), expected as u64);
    for (moments, advised) in [
        (DType::F32.into(), true),
        (DType::BF16.into(), true),
        (Moments::EightBit, false),
    ] {
        let optimizer = build(moments);
        let remedies = Commit::remedies(&optimizer);
        let found = remedies.iter().find(|r| r.advice == "moments of 8 bits");
        assert_eq!(found.is_some(), advised, "{remedies:?}");
        if let Some(remedy) = found {
            let saved = optimizer.state_bytes() - small.state_bytes();
            assert_eq!(remedy.saves, Some(saved));
        }
    }
}

#[test]
fn a_frozen_group_drops_them() {
    let [first, second] = [0, 1].map(|i| named(DType::F32)[i..=i].to_vec());
    let builder = Fused::builder(first).group(second).params(lion());
    let mut optimizer = builder.moments(Moments::EightBit).build().unwrap();
    let all = optimizer.state_bytes();
    let [thawed, frozen] = [false, true].map(|f| optimizer.groups()[0].frozen(f));
    optimizer.set_group(0, frozen).unwrap();
    assert_eq!(optimizer.state_bytes(), all - 4096 - 4 * 16);
    assert_eq!(optimizer.state().unwrap().tensors.len(), 2);
    optimizer.set_group(0, thawed).unwrap();
    assert_eq!(optimizer.state_bytes(), all);
    let momentum = &optimizer.state().unwrap().tensors["p0.exp_avg"];
    assert!(flat(momentum).iter().all(|value| *value == 0.));
}

/// A step that is skipped leaves the bytes as they were.
#[test]
fn a_skipped_step_leaves_them() {
    let here = named(DType::F32);
    let builder = AdamW::builder(here.clone()).moments(Moments::EightBit);
    let mut optimizer = builder.skip_non_finite().build().unwrap();
    optimizer.commit(&gradients(&of(&here), 0)).unwrap();
    let before = state_bits(&optimizer.state().unwrap());
    let mut bad = gradients(&of(&here), 1);
    bad.insert(&here[0].1, here[0].1.affine(f64::NAN, 0.).unwrap());
    assert_eq!(optimizer.commit(&bad).unwrap(), Committed::Skipped);
    assert!(state_bits(&optimizer.state().unwrap()) == before);
}

/// A second moment falls also beside one that stays, by steps that are a third of what 8 bits can tell apart. Rounded to nearest it would
/// stop at 0.6.
#[test]
fn a_second_moment_follows_small_changes() {
    let var = Var::zeros((64, 64), DType::F32, &Device::Cpu).unwrap();
    let params = ParamsAdam {
        beta2: 0.99,
        weight_decay: 0.,
        ..adam()
    };
    let builder = Adam::builder(vec![var.clone()]).params(params);
    let mut optimizer = builder.moments(Moments::EightBit).build().unwrap();
    let ones = vec![1f32; 64 * 64];
    let mut fallen = vec![0.5; 64 * 64];
    fallen.iter_mut().step_by(256).for_each(|stays| *stays = 1.);
    for (gradient, steps) in [(ones, 500), (fallen, 700)] {
        let gradient = Tensor::from_vec(gradient, (64, 64), &Device::Cpu).unwrap();
        for _ in 0..steps {
            let gradients = store([(var.clone(), gradient.clone())]);
            optimizer.commit(&gradients).unwrap();
        }
    }
    let moments = flat(&optimizer.state().unwrap().tensors["0.exp_avg_sq"]);
    let mean = (moments.iter().sum::<f64>() - 16.) / (4096. - 16.);
    // The mean of 4,080 elements that are each off by some hundredths.
    assert!((mean - 0.25).abs() < 0.005, "{mean}");
}

/// As the row of a rare word in an embedding: a small gradient beside a large one, and then none. A second moment of 0 would divide the
/// first by `eps` alone.
#[test]
fn a_faint_element_makes_no_large_step() {
    let var = Var::zeros((64, 64), DType::F32, &Device::Cpu).unwrap();
    let params = ParamsAdam {
        weight_decay: 0.,
        ..adam()
    };
    let builder = Adam::builder(vec![var.clone()]).params(params);
    let mut optimizer = builder.moments(Moments::EightBit).build().unwrap();
    let mut first = vec![1e-4f32; 64 * 64];
    first.iter_mut().step_by(256).for_each(|large| *large = 1.);
    let first = Tensor::from_vec(first, (64, 64), &Device::Cpu).unwrap();
    let none = first.zeros_like().unwrap();
    let mut before = flat(&var);
    for step in 0..60 {
        let gradient = if step == 0 { &first } else { &none };
        let gradient = store([(var.clone(), gradient.clone())]);
        optimizer.commit(&gradient).unwrap();
        let after = flat(&var);
        let moved = before.iter().zip(&after).map(|(a, b)| (a - b).abs());
        let furthest = moved.fold(0., f64::max);
        assert!(furthest <= 1.1 * params.lr, "{step}: {furthest}");
        before = after;
    }
}

/// How far elements go, in learning rates, in 1,500 steps after their gradients have ended beside others that go on.
fn drifts<A: Algorithm>(params: &A, lr: f64, moments: Moments) -> Vec<f64> {
    let var = Var::zeros((64, 64), DType::F32, &Device::Cpu).unwrap();
    let builder = Fused::builder(vec![var.clone()]).params(params.clone());
    let mut optimizer = builder.moments(moments).build().unwrap();
    let goes_on = (0..64 * 64).map(|i| if i % 2 == 0 { 1f32 } else { 0. });
    let goes_on = Tensor::from_iter(goes_on, &Device::Cpu).unwrap();
    let goes_on = goes_on.reshape((64, 64)).unwrap();
    let early: Vec<_> = (0..10)
        .map(|i| tensor(&[64, 64], 37 * i, DType::F32))
        .collect();
    let late: Vec<_> = early
        .iter()
        .map(|early| (early * &goes_on).unwrap())
        .collect();
    let mut train = |gradients: &[Tensor], steps: usize| {
        for gradient in gradients.iter().cycle().take(steps) {
            let gradients = store([(var.clone(), gradient.clone())]);
            optimizer.commit(&gradients).unwrap();
        }
        flat(&var)
    };
    let (from, to) = (train(&early, 200), train(&late, 1500));
    let distances = from.iter().zip(&to).map(|(a, b)| (a - b).abs() / lr);
    distances.skip(1).step_by(2).collect()
}

/// As the row of a word that comes no more, beside the rows of others: its first moment has to fall faster than the second. Rounded to
/// nearest it would stay where it is, and each step would go on by more and more of a learning rate.
#[test]
fn elements_come_to_rest_when_their_gradients_end() {
    fn check<A: Algorithm>(params: A, lr: f64) {
        let moments = [DType::F32.into(), Moments::EightBit];
        let [exact, coded] = moments.map(|moments| drifts(&params, lr, moments));
        let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
        let most = |of: &[f64]| of.iter().copied().fold(0., f64::max);
        // The mean of 2,048 elements that are each off by some hundredths; the furthest by some more.
        let (mean, most) = (mean(&coded) / mean(&exact), most(&coded) / most(&exact));
        assert!((0.95..1.05).contains(&mean) && most < 1.3, "{mean} {most}");
    }
    let params = ParamsAdam {
        weight_decay: 0.,
        ..adam()
    };
    check(params, params.lr);
    let params = ParamsSgd {
        weight_decay: 0.,
        ..sgd(0.9)
    };
    check(params, params.lr);
}

/// An embedding in f32 beside others in 8 bits: each moves as in an optimizer of its own, and comes back from a file.
#[test]
fn a_group_may_have_moments_of_its_own() {
    let (here, there) = (named(DType::F32), named(DType::F32));
    let (vars, twins) = (of(&here), of(&there));
    let split =
        |named: &[(String, Var)]| Group::from(named.to_vec()).partition(|name, _| name == "p0");
    let build = || {
        let (own, rest) = split(&here);
        let builder = AdamW::builder(own.moments(DType::F32)).group(rest);
        builder.moments(Moments::EightBit).build().unwrap()
    };
    let (own, rest) = split(&there);
    let mut plain = AdamW::builder(own).build().unwrap();
    let builder = AdamW::builder(rest).moments(Moments::EightBit);
    let mut coded = builder.build().unwrap();
    let mut optimizer = build();
    for step in 0..4 {
        let gradients = uneven(&twins, step);
        optimizer.commit(&uneven(&vars, step)).unwrap();
        plain.commit(&gradients).unwrap();
        coded.commit(&gradients).unwrap();
        assert_eq!(bits(&vars), bits(&twins), "{step}");
        let state = optimizer.state().unwrap();
        optimizer = build();
        optimizer.load_state(&state).unwrap();
    }
    assert_eq!(
        optimizer.state_bytes(),
        plain.state_bytes() + coded.state_bytes()
    );
    // What is kept so on purpose is not advised against.
    let remedies = Commit::remedies(&optimizer);
    assert!(
        !remedies
            .iter()
            .any(|remedy| remedy.advice == "moments of 8 bits")
    );

    // What its type cannot have is refused, and what the optimizer's cannot be for it does not matter then.
    let group = || Group::from(make_vars(&[&[3]], DType::F64));
    let own = AdamW::builder(group().moments(DType::F64)).moments(Moments::EightBit);
    own.build().unwrap();
    let own = AdamW::builder(group().moments(Moments::EightBit));
    let error = optimizer_error(own.build().unwrap_err());
    assert!(
        error.starts_with("moments of parameter `0`, which is F64, cannot be U8"),
        "{error}"
    );
}

/// The square of a gradient that f32 cannot hold becomes the largest that it can.
#[test]
fn a_square_that_overflows_leaves_finite_parameters() {
    let named = named(DType::F32);
    let builder = AdamW::builder(named.clone()).moments(Moments::EightBit);
    let mut optimizer = builder.build().unwrap();
    for step in 0..3 {
        let mut store = gradients(&of(&named), step);
        if step == 1 {
            let mut huge = vec![0.5f32; 64 * 64];
            (huge[300], huge[700]) = (1e30, f32::MIN);
            let huge = Tensor::from_vec(huge, (64, 64), &Device::Cpu).unwrap();
            store.insert(&named[0].1, huge);
        }
        optimizer.commit(&store).unwrap();
    }
    for values in snapshot(&of(&named)) {
        assert!(values.iter().all(|value| value.is_finite()));
    }
}

/// Two parameters with the same values and gradients: their moments are rounded apart, and one's alone as beside the other.
#[test]
fn each_parameter_has_noise_of_its_own() {
    let train = |names: &[&str], moments: Moments| {
        let dtype = DType::F32;
        let vars: Vec<_> = (names
            .iter()
            .map(|_| make_vars(&[&[64, 64]], dtype).remove(0)))
        .collect();
        let named = names.iter().map(|name| name.to_string()).zip(vars.clone());
        let builder = AdamW::builder(Vec::from_iter(named)).moments(moments);
        let mut optimizer = builder.build().unwrap();
        for step in 0..4 {
            let mut store = GradStore::default();
            for var in &vars {
                let gradient = wave(var.elem_count(), step, dtype).unwrap();
                store.insert(var, gradient.reshape(var.shape()).unwrap());
            }
            optimizer.commit(&store).unwrap();
        }
        let state = optimizer.state().unwrap();
        let of = |name: &&str| flat(&state.tensors[&format!("{name}.exp_avg_sq")]);
        names.iter().map(of).collect::<Vec<_>>()
    };
    for moments in [Moments::EightBit, DType::BF16.into()] {
        let both = train(&["a", "b"], moments);
        let pairs = both[0].iter().zip(&both[1]);
        let apart = pairs.filter(|(a, b)| a != b).count();
        assert!(apart > 400, "{moments:?}: {apart} of 4096");
        // As after a thaw, or on a rank that has one of them.
        assert_eq!(train(&["b", "a"], moments)[1], both[0], "{moments:?}");
        assert_eq!(train(&["b"], moments)[0], both[1], "{moments:?}");
    }
}
