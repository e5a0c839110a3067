//! The fused optimizers on the CPU: against candle's and against naive loops, at the edges of sizes, types and layouts, and as
//! a whole or not at all.

mod support;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::testing::Faults;
use candle_headroom::{
    Adam, AdamW, Algorithm, Error, Fused, Group, GroupOptions, LossScale, OptimizerError,
    ParameterError, ParamsAdafactor, ParamsAdam, ParamsAdamW, ParamsLion, ParamsSgd, Phase,
    Progress, Sgd,
};
use candle_nn::Optimizer;
use proptest::prelude::*;
use support::{Mlp, distance, flat, snapshot, wave};

/// Every rule, with hyper-parameters under which all of its terms count.
macro_rules! for_each_algorithm {
    (|$params:ident| $body:expr) => {{
        for_each_algorithm!(@one $params, $body, adamw());
        for_each_algorithm!(@one $params, $body, adam());
        for_each_algorithm!(@one $params, $body, sgd(0.));
        for_each_algorithm!(@one $params, $body, sgd(0.9));
        for_each_algorithm!(@one $params, $body, lion());
        for_each_algorithm!(@one $params, $body, adafactor());
    }};
    (@one $params:ident, $body:expr, $value:expr) => {{
        let $params = $value;
        $body
    }};
}

fn adamw() -> ParamsAdamW {
    ParamsAdamW {
        lr: 0.01,
        weight_decay: 0.1,
        ..Default::default()
    }
}

fn adam() -> ParamsAdam {
    ParamsAdam {
        lr: 0.01,
        weight_decay: 0.1,
        ..Default::default()
    }
}

fn sgd(momentum: f64) -> ParamsSgd {
    ParamsSgd {
        lr: 0.05,
        momentum,
        dampening: momentum / 3.,
        weight_decay: 0.1,
        nesterov: momentum > 0.,
    }
}

fn lion() -> ParamsLion {
    ParamsLion {
        lr: 0.01,
        weight_decay: 0.3,
        ..Default::default()
    }
}

fn adafactor() -> ParamsAdafactor {
    ParamsAdafactor {
        weight_decay: 0.1,
        ..Default::default()
    }
}

/// From 64 Ki elements on a parameter is shared out among threads, 16 Ki at a time; this is a bit more than a whole number of them.
const LARGE: usize = 64 * 1024 + 16 * 1024 + 17;

fn tensor(shape: &[usize], phase: usize, dtype: DType) -> Tensor {
    let len = shape.iter().product();
    wave(len, phase, dtype).unwrap().reshape(shape).unwrap()
}

fn make_vars(shapes: &[&[usize]], dtype: DType) -> Vec<Var> {
    let vars = shapes.iter().enumerate();
    let vars = vars.map(|(i, shape)| Var::from_tensor(&tensor(shape, i, dtype)).unwrap());
    vars.collect()
}

fn copies(vars: &[Var]) -> Vec<Var> {
    let vars = vars.iter();
    vars.map(|var| Var::from_tensor(&var.as_detached_tensor()).unwrap())
        .collect()
}

fn store(pairs: impl IntoIterator<Item = (Var, Tensor)>) -> GradStore {
    let mut store = GradStore::default();
    for (var, gradient) in pairs {
        store.insert(&var, gradient);
    }
    store
}

/// A gradient of its own for each Var and step.
fn gradients(vars: &[Var], step: usize) -> GradStore {
    store(vars.iter().enumerate().map(|(i, var)| {
        let gradient = tensor(var.dims(), 100 + 31 * step + i, var.dtype());
        (var.clone(), gradient)
    }))
}

fn bits(vars: &[Var]) -> Vec<Vec<u64>> {
    let values = snapshot(vars).into_iter();
    values
        .map(|values| values.into_iter().map(f64::to_bits).collect())
        .collect()
}

/// Progress to the bit: a norm that is not a number equals itself here.
fn counted(progress: Progress) -> (u64, u64, Option<u64>, Option<u64>) {
    (
        progress.steps,
        progress.skipped,
        progress.loss_scale.map(f64::to_bits),
        progress.gradient_norm.map(f64::to_bits),
    )
}

fn optimizer_error(error: Error) -> OptimizerError {
    match error {
        Error::Optimizer(error) => *error,
        other => panic!("{other:?}"),
    }
}

// Against candle's own.

/// What a program does with any optimizer of candle's interface.
fn train<O: Optimizer>(dtype: DType, config: O::Config) -> Vec<Vec<f64>> {
    let model = Mlp::new(dtype);
    let mut optimizer = O::from_slice(&model.vars.iter().collect::<Vec<_>>(), config).unwrap();
    for step in 0..200 {
        let (x, y) = Mlp::data(24, dtype);
        let samples = |data: &Tensor| data.narrow(0, step % 17, 8).unwrap();
        let loss = model.loss(&samples(&x), &samples(&y)).unwrap();
        optimizer.backward_step(&loss).unwrap();
        optimizer.set_learning_rate(optimizer.learning_rate() * 0.995);
    }
    snapshot(&model.vars)
}

#[test]
fn adamw_trains_as_candles_does() {
    let start = snapshot(&Mlp::new(DType::F64).vars);
    for (dtype, tolerance) in AS_CANDLE {
        let theirs = train::<candle_nn::AdamW>(dtype, adamw());
        let ours = train::<AdamW>(dtype, adamw());
        assert!(distance(&ours, &start) > 0.1);
        let error = distance(&ours, &theirs);
        println!("AdamW against candle's, {dtype:?}: {error:e}");
        assert!(error <= tolerance, "{dtype:?}: {error:e}");
    }
}

#[test]
fn sgd_trains_as_candles_does() {
    let start = snapshot(&Mlp::new(DType::F64).vars);
    for (dtype, tolerance) in AS_CANDLE {
        let theirs = train::<candle_nn::SGD>(dtype, 0.05);
        let params = ParamsSgd {
            lr: 0.05,
            ..Default::default()
        };
        let ours = train::<Sgd>(dtype, params);
        assert!(distance(&ours, &start) > 0.1);
        let error = distance(&ours, &theirs);
        println!("Sgd against candle's, {dtype:?}: {error:e}");
        assert!(error <= tolerance, "{dtype:?}: {error:e}");
    }
}

/// The gradients are those of each one's own parameters, so that 200 steps carry rounding on; candle rounds moments and bias
/// corrections once more than a fused pass does.
const AS_CANDLE: [(DType, f64); 2] = [(DType::F64, 1e-14), (DType::F32, 2e-6)];

// Against naive loops, at the edges of sizes.

/// Element by element in f64, as the paper writes it.
fn naive_adamw(params: &ParamsAdamW, parameter: &mut [f64], gradients: &[Vec<f64>]) {
    for (i, p) in parameter.iter_mut().enumerate() {
        let (mut m, mut v) = (0., 0.);
        for (t, gradient) in (1..).zip(gradients) {
            let g = gradient[i];
            m = params.beta1 * m + (1. - params.beta1) * g;
            v = params.beta2 * v + (1. - params.beta2) * g * g;
            let m_hat = m / (1. - params.beta1.powi(t));
            let v_hat = v / (1. - params.beta2.powi(t));
            *p -= params.lr * params.weight_decay * *p;
            *p -= params.lr * m_hat / (v_hat.sqrt() + params.eps);
        }
    }
}

/// Adafactor of a stack of matrices, or of anything else with a full second moment, as PyTorch's documentation writes it.
fn naive_adafactor(
    params: &ParamsAdafactor,
    dims: &[usize],
    parameter: &mut [f64],
    gradients: &[Vec<f64>],
) {
    let rms = |values: &[f64]| {
        let squares: f64 = values.iter().map(|value| value * value).sum();
        (squares / values.len() as f64).sqrt()
    };
    let eps1 = params.eps1.unwrap_or(f64::EPSILON);
    let (mut rows, mut columns, mut full) = (vec![], vec![], vec![]);
    for (t, gradient) in (1..).zip(gradients) {
        let t = f64::from(t);
        let keep = 1. - t.powf(params.beta2_decay);
        let rho = params.lr.min(1. / t.sqrt());
        let alpha = rms(parameter).max(params.eps2) * rho;
        let len = parameter.len();
        let blend = |old: &mut f64, new: f64| *old = keep * *old + (1. - keep) * new;
        let estimate: Vec<f64> = match *dims {
            [.., height, width] => {
                rows.resize(len / width, 0.);
                columns.resize(len / height, 0.);
                for (row, old) in rows.iter_mut().enumerate() {
                    let of_row = (0..width).map(|x| gradient[row * width + x].powi(2));
                    blend(old, of_row.sum::<f64>() / width as f64);
                }
                for (column, old) in columns.iter_mut().enumerate() {
                    let (matrix, x) = (column / width, column % width);
                    let at = |y| (matrix * height + y) * width + x;
                    let of_column = (0..height).map(|y| gradient[at(y)].powi(2));
                    blend(old, of_column.sum::<f64>() / height as f64);
                }
                let means: Vec<f64> = (rows.chunks(height))
                    .map(|rows| (rows.iter().sum::<f64>() / height as f64).max(eps1))
                    .collect();
                let estimate = (0..len).map(|i| {
                    let (row, x) = (i / width, i % width);
                    let matrix = row / height;
                    rows[row] * columns[matrix * width + x] / means[matrix]
                });
                estimate.collect()
            }
            _ => {
                full.resize(len, 0.);
                for (old, g) in full.iter_mut().zip(gradient) {
                    blend(old, g * g);
                }
                full.clone()
            }
        };
        let step = gradient.iter().zip(estimate);
        let step = step.map(|(g, square)| g / square.max(eps1 * eps1).sqrt());
        let step: Vec<f64> = step.collect();
        let size = alpha / (rms(&step) / params.clip_threshold).max(1.);
        for (p, u) in parameter.iter_mut().zip(step) {
            *p -= params.lr * params.weight_decay * *p;
            *p -= size * u;
        }
    }
}

/// Very large, empty, of no dimension, wider and taller than what a thread takes at a time, and a thousand small ones.
fn edges() -> Vec<Vec<usize>> {
    let mut shapes = vec![
        vec![5],
        vec![LARGE],
        vec![],
        vec![1],
        vec![0],
        vec![0, 3],
        vec![1, 1],
        vec![300, 311],
        vec![3, 30_000],
        vec![30_000, 3],
        vec![2, 3, 5],
        vec![7, 129, 101],
        vec![64 * 1024],
        vec![64 * 1024 - 1],
    ];
    shapes.extend((0..1000).map(|i| vec![1 + i % 13]));
    shapes
}

fn edge_run<A: Algorithm>(
    params: A,
    dtype: DType,
    naive: impl Fn(&[usize], &mut [f64], &[Vec<f64>]),
) -> f64 {
    let shapes = edges();
    let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
    let vars = make_vars(&shapes, dtype);
    let mut expected = snapshot(&vars);
    let mut optimizer = Fused::new(vars.clone(), params).unwrap();
    let steps: Vec<_> = (0..3).map(|step| gradients(&vars, step)).collect();
    for (var, values) in vars.iter().zip(&mut expected) {
        let gradients: Vec<_> = steps
            .iter()
            .map(|store| flat(store.get(var).unwrap()))
            .collect();
        if !values.is_empty() {
            naive(var.dims(), values, &gradients);
        }
    }
    for step in &steps {
        optimizer.commit(step).unwrap();
    }
    distance(&snapshot(&vars), &expected)
}

#[test]
fn every_size_moves_as_in_a_naive_loop() {
    // A few products' rounding; f32's is 2^29 times coarser.
    for (dtype, tolerance) in [(DType::F64, 1e-15), (DType::F32, 5e-7)] {
        let params = adamw();
        let error = edge_run(adamw(), dtype, |_, p, g| naive_adamw(&params, p, g));
        println!("AdamW against a naive loop, {dtype:?}: {error:e}");
        assert!(error <= tolerance, "{dtype:?}: {error:e}");

        let params = ParamsAdafactor {
            eps1: Some(f32::EPSILON.into()),
            ..adafactor()
        };
        let error = edge_run(params, dtype, |dims, p, g| {
            naive_adafactor(&params, dims, p, g)
        });
        println!("Adafactor against a naive loop, {dtype:?}: {error:e}");
        assert!(error <= tolerance, "{dtype:?}: {error:e}");
    }
}

#[test]
fn a_parameter_moves_the_same_whatever_lies_beside_it() {
    fn moves<A: Algorithm>(params: A, shapes: &[&[usize]], beside: usize) -> Vec<Vec<u64>> {
        let vars = make_vars(shapes, DType::F32);
        let others = vec![&[3usize][..]; beside];
        let others = make_vars(&others, DType::F32);
        // Between the others, so that another thread comes to them.
        let (before, after) = others.split_at(beside / 3);
        let all = [before, &vars, after].concat();
        let mut optimizer = Fused::new(all, params).unwrap();
        for step in 0..3 {
            let mut store = gradients(&vars, step);
            store.extend(gradients(&others, step)).unwrap();
            optimizer.commit(&store).unwrap();
        }
        bits(&vars)
    }
    fn check<A: Algorithm>(params: A) {
        let shapes: [&[usize]; 4] = [&[7, 9], &[LARGE], &[], &[300, 300]];
        let alone = moves(params.clone(), &shapes, 0);
        assert_eq!(moves(params.clone(), &shapes, 40), alone);
        let one_by_one = shapes.map(|shape| {
            let phase = shapes.iter().position(|other| *other == shape).unwrap();
            let var = Var::from_tensor(&tensor(shape, phase, DType::F32)).unwrap();
            let mut optimizer = Fused::new(vec![var.clone()], params.clone()).unwrap();
            for step in 0..3 {
                let gradient = tensor(shape, 100 + 31 * step + phase, DType::F32);
                optimizer.commit(&store([(var.clone(), gradient)])).unwrap();
            }
            bits(&[var]).remove(0)
        });
        assert_eq!(one_by_one.to_vec(), alone);
    }
    for_each_algorithm!(|params| check(params));
}

#[test]
fn a_parameter_without_a_gradient_waits() {
    fn check<A: Algorithm>(params: A) {
        let vars = make_vars(&[&[5], &[4, 3]], DType::F64);
        let twin = copies(&vars[1..]);
        let mut optimizer = Fused::new(vars.clone(), params.clone()).unwrap();
        let mut alone = Fused::new(twin.clone(), params).unwrap();
        let second = |vars: &[Var], step| {
            let gradient = tensor(&[4, 3], step, DType::F64);
            store([(vars[vars.len() - 1].clone(), gradient)])
        };
        let first = bits(&vars[..1]);
        for step in 0..3 {
            // Its own steps are counted: the first one here is the first for bias correction and dampening.
            optimizer.commit(&GradStore::default()).unwrap();
            optimizer.commit(&second(&vars, step)).unwrap();
            alone.commit(&second(&twin, step)).unwrap();
        }
        assert_eq!(bits(&vars[..1]), first);
        assert_eq!(bits(&vars[1..]), bits(&twin));
        assert_eq!(optimizer.progress().unwrap().steps, 6);
    }
    for_each_algorithm!(|params| check(params));
}

// Layouts and types.

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
            let builder = Fused::builder(params.clone()).group(vars.clone());
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
        let builder = Fused::builder(params.clone()).group(vars.clone());
        let builder = if has_masters {
            builder.master_weights()
        } else {
            builder
        };
        let mut optimizer = builder.build().unwrap();
        let mut twin = Fused::new(twins.clone(), params.clone()).unwrap();
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
    let run = |has_masters: bool| {
        let var = Var::ones(300, DType::BF16, &Device::Cpu).unwrap();
        let params = ParamsSgd {
            lr: 1e-4,
            ..Default::default()
        };
        let builder = Sgd::builder(params).group(vec![var.clone()]);
        let builder = if has_masters {
            builder.master_weights()
        } else {
            builder
        };
        let mut optimizer = builder.build().unwrap();
        let gradient = Tensor::ones(300, DType::F32, &Device::Cpu).unwrap();
        for _ in 0..1000 {
            optimizer
                .commit(&store([(var.clone(), gradient.clone())]))
                .unwrap();
        }
        flat(&var)[299]
    };
    assert_eq!(run(false), 1.);
    assert!((run(true) - 0.9).abs() < 0.004, "{}", run(true));
}

#[test]
fn masters_change_nothing_for_full_parameters() {
    for dtype in [DType::F64, DType::F32] {
        let vars = make_vars(&[&[40]], dtype);
        let twins = copies(&vars);
        let builder = AdamW::builder(adamw()).group(vars.clone()).master_weights();
        let mut optimizer = builder.build().unwrap();
        let mut twin = AdamW::new(twins.clone(), adamw()).unwrap();
        optimizer.commit(&gradients(&vars, 0)).unwrap();
        twin.commit(&gradients(&twins, 0)).unwrap();
        assert_eq!(bits(&vars), bits(&twins));
    }
}

/// The mean of steps at the end of a run in which the gradient falls from 1 to a tenth: the second moment rises and falls by a
/// thousandth in a step, which bf16, rounded to the nearest, could not follow either way.
fn last_steps(params: ParamsAdam, moments: DType, len: usize) -> [f64; 2] {
    let var = Var::zeros(len, DType::F32, &Device::Cpu).unwrap();
    let builder = Adam::builder(params).group(vec![var.clone()]);
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
        let builder = AdamW::builder(adamw()).group(vars.clone());
        let mut optimizer = builder.moments(DType::BF16).build().unwrap();
        (0..3).for_each(|step| optimizer.commit(&gradients(&vars, step)).unwrap());
        bits(&vars)
    };
    assert_eq!(run(), run());
}

// Groups and what is done to gradients.

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

rates!(
    ParamsAdafactor,
    ParamsAdam,
    ParamsAdamW,
    ParamsLion,
    ParamsSgd
);

/// Each group against an optimizer of its own, with the rates spelt out.
fn check_groups<A: Rates>(params: A) {
    let vars = make_vars(&[&[5], &[4, 3], &[6]], DType::F64);
    let twins = copies(&vars);
    let group = |i: usize| Group::from(vec![vars[i].clone()]);
    let builder = Fused::builder(params.clone()).group(group(0));
    let builder = builder.group(group(1).learning_rate_factor(0.25).weight_decay(0.02));
    let builder = builder.group(group(2).frozen()).clip_norm(1e9);
    let mut optimizer = builder.build().unwrap();
    let alone = |i: usize, params: A| Fused::new(vec![twins[i].clone()], params).unwrap();
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
        // What stands still does not count for the norm.
        let squares = vars[..2]
            .iter()
            .flat_map(|var| flat(store.get(var).unwrap()));
        let norm = squares.map(|g| g * g).sum::<f64>().sqrt();
        let found = optimizer.progress().unwrap().gradient_norm.unwrap();
        assert!((found / norm - 1.).abs() < 1e-15);
    }
    assert_eq!(bits(&vars), bits(&twins));

    // Thawed, its first step is its first; and the second stands still from now on.
    let frozen = GroupOptions {
        is_frozen: true,
        ..optimizer.group(1).unwrap()
    };
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
fn groups_have_rates_of_their_own_and_can_stand_still() {
    for_each_algorithm!(|params| check_groups(params));
}

#[test]
fn a_new_learning_rate_moves_all_groups() {
    let vars = make_vars(&[&[5], &[4]], DType::F64);
    let builder = Sgd::builder(ParamsSgd::default()).group(vec![vars[0].clone()]);
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
        let builder = Fused::builder(params.clone()).group(vars.clone());
        let mut clips = builder.clip_norm(0.5).build().unwrap();
        let mut hand = Fused::new(by_hand.clone(), params.clone()).unwrap();
        let builder = Fused::builder(params.clone()).group(clamped.clone());
        let mut clamps = builder.clip_value(0.1).build().unwrap();
        let mut twin = Fused::new(twins.clone(), params).unwrap();
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
        let builder = Fused::builder(params.clone()).group(vars.clone());
        let mut optimizer = builder.skip_non_finite().build().unwrap();
        let mut twin = Fused::new(twins.clone(), params).unwrap();
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
    let mut optimizer = Sgd::new(vars.clone(), sgd(0.)).unwrap();
    optimizer.commit(&spoilt(&vars, 0, 0, 1, f64::NAN)).unwrap();
    let values = flat(&vars[0]);
    assert!(values[0].is_finite() && values[1].is_nan() && values[2].is_finite());
    assert_eq!(optimizer.progress().unwrap().skipped, 0);
}

#[test]
fn a_frozen_parameters_gradient_may_be_what_it_likes() {
    let vars = make_vars(&[&[3], &[4]], DType::F32);
    let builder = Sgd::builder(sgd(0.)).group(vec![vars[0].clone()]);
    let frozen = Group::from(vec![vars[1].clone()]).frozen();
    let mut optimizer = builder.group(frozen).skip_non_finite().build().unwrap();
    optimizer.commit(&spoilt(&vars, 0, 1, 2, f64::NAN)).unwrap();
    assert_eq!(optimizer.progress().unwrap().skipped, 0);
}

#[test]
fn a_loss_scale_falls_with_each_skip_and_grows_after_a_while() {
    let vars = make_vars(&[&[3], &[4]], DType::F32);
    let twins = copies(&vars);
    let scale = LossScale {
        initial: 8.,
        growth: 4.,
        backoff: 0.25,
        interval: 2,
    };
    let builder = Sgd::builder(sgd(0.9)).group(vars.clone());
    let mut optimizer = builder.loss_scale(scale).build().unwrap();
    let mut twin = Sgd::new(twins.clone(), sgd(0.9)).unwrap();
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
        let scale = LossScale {
            initial: 1024.,
            growth: 1e30,
            backoff: f64::MIN_POSITIVE,
            interval: 1,
        };
        let builder = Sgd::builder(sgd(0.)).group(vars.clone());
        let mut optimizer = builder.loss_scale(scale).build().unwrap();
        for _ in 0..3 {
            optimizer.commit(&spoilt(&vars, 0, 0, 0, value)).unwrap();
            let scale = optimizer.progress().unwrap().loss_scale.unwrap() as f32;
            assert!(scale.is_normal(), "{factor:e}: {scale:e}");
        }
    }
}

#[test]
fn a_half_loss_is_scaled_in_f32() {
    let vars = make_vars(&[&[3]], DType::F16);
    let builder = AdamW::builder(adamw()).group(vars.clone());
    let optimizer = builder.loss_scale(LossScale::dynamic()).build().unwrap();
    let loss = Tensor::new(half::f16::from_f32(3.), &Device::Cpu).unwrap();
    let scaled = optimizer.scale_loss(&loss).unwrap();
    assert_eq!(scaled.to_scalar::<f32>().unwrap(), 3. * 65536.);
    let unscaled = AdamW::new(vars, adamw()).unwrap();
    assert_eq!(unscaled.scale_loss(&loss).unwrap().dtype(), DType::F16);
}

// What cannot be worked with.

fn refused_at_first<A: Algorithm>(optimizer: Result<Fused<A>, Error>) -> OptimizerError {
    optimizer_error(optimizer.unwrap_err())
}

fn is_hyper_parameter(error: OptimizerError, expected: &str) -> bool {
    matches!(error, OptimizerError::HyperParameter { name, .. } if name == expected)
}

#[test]
fn hyper_parameters_out_of_range_are_refused_and_named() {
    /// Built with it, and set to it later: the second leaves the first in force.
    fn check<A: Algorithm>(good: &A, name: &str, bad: A) {
        let vars = make_vars(&[&[3]], DType::F64);
        let twins = copies(&vars);
        let error = refused_at_first(Fused::new(vars.clone(), bad.clone()));
        assert!(is_hyper_parameter(error, name), "{bad:?}");
        let mut optimizer = Fused::new(vars.clone(), good.clone()).unwrap();
        let error = optimizer_error(optimizer.set_params(bad.clone()).unwrap_err());
        assert!(is_hyper_parameter(error, name), "{bad:?}");
        let mut twin = Fused::new(twins.clone(), good.clone()).unwrap();
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
    refuse!(adafactor(); lr: -0.1, nan, inf; beta2_decay: 0.1, nan, -inf; eps1: -1., nan, inf;
        eps2: -1., nan, inf; clip_threshold: 0., -1., nan, inf; weight_decay: -0.1, nan, inf;);
}

#[test]
fn a_learning_rate_set_by_candles_interface_is_refused_at_the_next_step() {
    fn check<A: Algorithm>(params: A) {
        let vars = make_vars(&[&[3], &[4, 5]], DType::F32);
        let twins = copies(&vars);
        let mut optimizer = Fused::new(vars.clone(), params.clone()).unwrap();
        let mut twin = Fused::new(twins.clone(), params).unwrap();
        let good = optimizer.learning_rate();
        for bad in [-0.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            optimizer.set_learning_rate(bad);
            let before = (bits(&vars), counted(optimizer.progress().unwrap()));
            let error = optimizer.step(&gradients(&vars, 0)).unwrap_err();
            let error = optimizer_error(Error::from(error));
            assert!(is_hyper_parameter(error, "lr"));
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
    let builder = || Sgd::builder(sgd(0.)).group(make_vars(&[&[3]], DType::F32));
    for bad in [0., -1., f64::NAN, f64::INFINITY] {
        let error = refused_at_first(builder().clip_norm(bad).build());
        assert!(is_hyper_parameter(error, "clip_norm"));
        let error = refused_at_first(builder().clip_value(bad).build());
        assert!(is_hyper_parameter(error, "clip_value"));
        let scale = |scale| refused_at_first(builder().loss_scale(scale).build());
        let good = LossScale::dynamic();
        assert!(is_hyper_parameter(
            scale(LossScale::fixed(bad)),
            "the loss scale"
        ));
        let growth = scale(LossScale {
            growth: bad,
            ..good
        });
        assert!(is_hyper_parameter(growth, "the loss scale's growth"));
        let backoff = scale(LossScale {
            backoff: bad,
            ..good
        });
        assert!(is_hyper_parameter(backoff, "the loss scale's backoff"));
    }
    let interval = LossScale {
        interval: 0,
        ..LossScale::dynamic()
    };
    let error = refused_at_first(builder().loss_scale(interval).build());
    assert!(is_hyper_parameter(error, "the loss scale's interval"));
}

#[test]
fn group_options_out_of_range_are_refused_and_named() {
    let group = || Group::from(make_vars(&[&[3]], DType::F32));
    for bad in [-1., f64::NAN, f64::INFINITY] {
        let error = refused_at_first(Sgd::new(group().learning_rate_factor(bad), sgd(0.)));
        assert!(is_hyper_parameter(error, "learning_rate_factor"));
        let error = refused_at_first(Sgd::new(group().weight_decay(bad), sgd(0.)));
        assert!(is_hyper_parameter(error, "weight_decay"));

        let mut optimizer = Sgd::new(group(), sgd(0.)).unwrap();
        let options = GroupOptions {
            learning_rate_factor: bad,
            ..Default::default()
        };
        let error = optimizer_error(optimizer.set_group(0, options).unwrap_err());
        assert!(is_hyper_parameter(error, "learning_rate_factor"));
        assert_eq!(optimizer.group(0).unwrap(), GroupOptions::default());
    }
    let mut optimizer = Sgd::new(group(), sgd(0.)).unwrap();
    let expected = OptimizerError::Group {
        group: 1,
        groups: 1,
    };
    assert_eq!(optimizer_error(optimizer.group(1).unwrap_err()), expected);
    let error = optimizer.set_group(1, GroupOptions::default()).unwrap_err();
    assert_eq!(optimizer_error(error), expected);
}

#[test]
fn lists_that_cannot_be_trained_are_refused() {
    let parameter_error = |group: Vec<Group>| {
        let builder = group
            .into_iter()
            .fold(Sgd::builder(sgd(0.9)), |b, group| b.group(group));
        match builder.build().unwrap_err() {
            Error::Parameter(error) => *error,
            other => panic!("{other:?}"),
        }
    };
    let integer = || Var::zeros(3, DType::U32, &Device::Cpu).unwrap();
    let [a, b] = [0, 1].map(|i| make_vars(&[&[3], &[4]], DType::F32).swap_remove(i));
    assert_eq!(parameter_error(vec![]), ParameterError::None);
    assert_eq!(
        parameter_error(vec![Group::default()]),
        ParameterError::None
    );
    let integers = vec![integer(), integer()];
    assert_eq!(parameter_error(vec![integers.into()]), ParameterError::None);

    // Counted as they were listed, over all groups, whatever is passed over or worked on first.
    let large = make_vars(&[&[LARGE]], DType::F32).remove(0);
    let twice = vec![integer(), a.clone(), large.clone(), a.clone()];
    let duplicate = |first, second| ParameterError::Duplicate { first, second };
    assert_eq!(parameter_error(vec![twice.into()]), duplicate(1, 3));
    let groups = vec![
        vec![b.clone(), a.clone()].into(),
        vec![large, b.clone()].into(),
    ];
    assert_eq!(parameter_error(groups), duplicate(0, 3));

    let names = vec![("w", a.clone()), ("w", b.clone())];
    let expected = OptimizerError::Name {
        name: "w".to_owned(),
    };
    assert_eq!(refused_at_first(Sgd::new(names, sgd(0.))), expected);
    let builder = Sgd::builder(sgd(0.)).group(vec![("w", a)]);
    assert_eq!(
        refused_at_first(builder.group(vec![("w", b)]).build()),
        expected
    );
}

#[test]
fn integer_vars_are_passed_over() {
    let vars = make_vars(&[&[3]], DType::F32);
    let integer = Var::zeros(3, DType::I64, &Device::Cpu).unwrap();
    let mut optimizer = AdamW::new(vec![integer.clone(), vars[0].clone()], adamw()).unwrap();
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
    let mut optimizer = Sgd::new(vars.clone(), sgd(0.)).unwrap();
    let kept = |kept: &str| OptimizerError::Kept {
        optimizer: "Sgd",
        kept: kept.to_owned(),
    };
    let error = optimizer.set_params(sgd(0.9)).unwrap_err();
    assert_eq!(optimizer_error(error), kept("nothing"));
    assert_eq!(*optimizer.params(), sgd(0.));
    optimizer.commit(&gradients(&vars, 0)).unwrap();

    let mut optimizer = Sgd::new(vars, sgd(0.9)).unwrap();
    let error = optimizer.set_params(sgd(0.)).unwrap_err();
    assert_eq!(optimizer_error(error), kept("momentum_buffer"));
    optimizer.set_params(sgd(0.5)).unwrap();
    assert_eq!(optimizer.params().momentum, 0.5);
}

#[test]
fn moments_that_are_not_kept_are_refused() {
    for (parameter, moments) in [
        (DType::F32, DType::F16),
        (DType::BF16, DType::F16),
        (DType::F32, DType::U32),
        (DType::F32, DType::F64),
        (DType::F64, DType::BF16),
        (DType::F64, DType::F32),
    ] {
        let builder = AdamW::builder(adamw()).group(make_vars(&[&[3]], parameter));
        let expected = OptimizerError::Moments {
            parameter: "0".to_owned(),
            parameter_dtype: parameter,
            dtype: moments,
        };
        assert_eq!(refused_at_first(builder.moments(moments).build()), expected);
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let builder = AdamW::builder(adamw()).group(make_vars(&[&[3]], dtype));
        builder.moments(DType::F32).build().unwrap();
    }
}

#[test]
fn gradients_that_do_not_fit_are_refused_before_anything_moves() {
    fn check<A: Algorithm>(params: A, dtype: DType, bad: &dyn Fn(&Var) -> Vec<(Tensor, bool)>) {
        let vars = make_vars(&[&[LARGE], &[4, 5], &[3], &[4, 3]], dtype);
        let twins = copies(&vars);
        let named = ["large", "first", "second", "third"]
            .into_iter()
            .zip(vars.clone());
        let builder = Fused::builder(params.clone()).group(named.collect::<Group>());
        let mut optimizer = builder.clip_norm(1.).build().unwrap();
        let mut twin = Fused::builder(params)
            .group(twins.clone())
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
            let parameter = "third".to_owned();
            let expected = match bad.dims() != vars[3].dims() {
                _ if is_shared => OptimizerError::GradientShared { parameter },
                true => OptimizerError::GradientShape {
                    parameter,
                    expected: vars[3].shape().clone(),
                    found: bad.shape().clone(),
                },
                false => OptimizerError::GradientDType {
                    parameter,
                    expected: dtype,
                    found: bad.dtype(),
                },
            };
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
    let mut optimizer = AdamW::new(vars.clone(), adamw()).unwrap();
    let before = bits(&vars);
    let swapped = store([
        (vars[0].clone(), vars[1].as_detached_tensor()),
        (vars[1].clone(), vars[0].as_detached_tensor()),
    ]);
    let error = optimizer_error(optimizer.commit(&swapped).unwrap_err());
    assert!(matches!(error, OptimizerError::GradientShared { .. }));
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
        let mut optimizer = Fused::new(vars.clone(), params.clone()).unwrap();
        let mut twin = Fused::new(twins.clone(), params).unwrap();
        optimizer
            .commit(&store(vars.iter().cloned().zip(shared.clone())))
            .unwrap();
        twin.commit(&store(twins.iter().cloned().zip(owned.clone())))
            .unwrap();
        assert_eq!(bits(&vars), bits(&twins));
    }
    for_each_algorithm!(|params| check(params));
}

// As a whole or not at all.

/// Lets every point of an update fail, one after the other, and then goes on as if nothing had been.
fn check_atomic<A: Algorithm>(params: A) {
    let mut shapes = vec![&[3usize, 4][..], &[LARGE], &[0], &[], &[300, 300]];
    shapes.resize(23, &[7]);
    let vars = make_vars(&shapes, DType::F32);
    let twins = copies(&vars);
    let build = |vars: &[Var]| {
        let builder = Fused::builder(params.clone()).group(vars.to_vec());
        builder
            .clip_norm(0.5)
            .loss_scale(LossScale::dynamic())
            .build()
            .unwrap()
    };
    let (mut optimizer, mut twin) = (build(&vars), build(&twins));
    for step in 0..3 {
        let store = gradients(&vars, step);
        let mut points = 0;
        loop {
            let before = (bits(&vars), counted(optimizer.progress().unwrap()));
            let armed = Faults::in_phase(Phase::Optimizer, points).arm();
            let result = optimizer.commit(&store);
            if armed.fired() == 0 {
                result.unwrap();
                break;
            }
            assert!(
                matches!(result, Err(Error::ResourceExhausted(_))),
                "{result:?}"
            );
            let after = (bits(&vars), counted(optimizer.progress().unwrap()));
            assert_eq!(before, after, "point {points}");
            points += 1;
        }
        assert!(points >= vars.len(), "{points}");
        twin.commit(&gradients(&twins, step)).unwrap();
        assert_eq!(bits(&vars), bits(&twins));
        let [ours, twins] = [&optimizer, &twin].map(|o| counted(o.progress().unwrap()));
        assert_eq!(ours, twins);
    }
}

#[test]
fn a_failure_at_any_point_leaves_all_as_it_was() {
    for_each_algorithm!(|params| check_atomic(params));
}

/// What a run is made of, at random.
#[derive(Debug, Clone)]
struct Run {
    dtype: DType,
    shapes: Vec<Vec<usize>>,
    clip_norm: Option<f64>,
    clip_value: Option<f64>,
    has_scale: bool,
    has_masters: bool,
    has_bf16_moments: bool,
    is_strided: bool,
    /// For each step: the parameters without a gradient, as bits; the point that fails, if it is passed; and whether a gradient is
    /// not finite.
    steps: Vec<(u8, Option<usize>, bool)>,
}

fn runs() -> impl Strategy<Value = Run> {
    let dtype = prop::sample::select(vec![DType::F64, DType::F32, DType::F16, DType::BF16]);
    let shape = prop::collection::vec(0usize..7, 0..4);
    let large = Just(vec![LARGE]);
    let shapes = prop::collection::vec(prop_oneof![30 => shape, 1 => large], 1..8);
    let step = (
        any::<u8>(),
        prop::option::of(0usize..9),
        prop::bool::weighted(0.1),
    );
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let clips = (prop::option::of(1e-3..10.), prop::option::of(1e-3..1.));
    (
        dtype,
        shapes,
        clips,
        flags,
        prop::collection::vec(step, 1..6),
    )
        .prop_map(
            |(dtype, shapes, (clip_norm, clip_value), flags, steps)| Run {
                dtype,
                shapes,
                clip_norm,
                clip_value,
                has_scale: flags.0,
                has_masters: flags.1,
                has_bf16_moments: flags.2 && dtype != DType::F64,
                is_strided: flags.3,
                steps,
            },
        )
}

impl Run {
    fn build<A: Algorithm>(&self, params: A, vars: &[Var]) -> Fused<A> {
        let mut builder = Fused::builder(params).group(vars.to_vec());
        if let Some(norm) = self.clip_norm {
            builder = builder.clip_norm(norm);
        }
        if let Some(value) = self.clip_value {
            builder = builder.clip_value(value);
        }
        if self.has_scale {
            builder = builder.loss_scale(LossScale::dynamic());
        }
        if self.has_masters {
            builder = builder.master_weights();
        }
        if self.has_bf16_moments {
            builder = builder.moments(DType::BF16);
        }
        builder.build().unwrap()
    }

    fn gradients(&self, vars: &[Var], step: usize, is_strided: bool) -> GradStore {
        let (missing, _, is_bad) = self.steps[step];
        let all = gradients(vars, step);
        let mut given = GradStore::default();
        for (i, var) in vars.iter().enumerate() {
            let mut gradient = all.get(var).unwrap().clone();
            if missing >> i & 1 == 1 {
                continue;
            }
            if is_bad && i == 0 {
                gradient = (gradient / 0.).unwrap();
            }
            if is_strided && var.rank() > 1 {
                gradient = gradient.t().unwrap().contiguous().unwrap().t().unwrap();
            }
            given.insert(var, gradient);
        }
        given
    }

    /// With failures and strides, against a twin without.
    fn check<A: Algorithm>(&self, params: A) -> Result<(), TestCaseError> {
        let shapes: Vec<&[usize]> = self.shapes.iter().map(Vec::as_slice).collect();
        let vars = make_vars(&shapes, self.dtype);
        let twins = copies(&vars);
        let mut optimizer = self.build(params.clone(), &vars);
        let mut twin = self.build(params, &twins);
        for (step, (_, point, _)) in self.steps.iter().enumerate() {
            let store = self.gradients(&vars, step, self.is_strided);
            if let Some(point) = *point {
                let before = (bits(&vars), counted(optimizer.progress().unwrap()));
                let armed = Faults::in_phase(Phase::Optimizer, point).arm();
                let result = optimizer.commit(&store);
                prop_assert_eq!(result.is_err(), armed.fired() == 1);
                drop(armed);
                if result.is_err() {
                    let after = (bits(&vars), counted(optimizer.progress().unwrap()));
                    prop_assert_eq!(before, after);
                    optimizer.commit(&store).unwrap();
                }
            } else {
                optimizer.commit(&store).unwrap();
            }
            twin.commit(&self.gradients(&twins, step, false)).unwrap();
            prop_assert_eq!(bits(&vars), bits(&twins));
            let [ours, twins] = [&optimizer, &twin].map(|o| counted(o.progress().unwrap()));
            prop_assert_eq!(ours, twins);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn an_update_happens_as_a_whole_or_not_at_all(run in runs()) {
        for_each_algorithm!(|params| run.check(params)?);
    }
}
