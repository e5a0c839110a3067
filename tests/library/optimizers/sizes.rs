//! Against naive loops, at the edges of sizes.

use super::*;

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

fn edge_run<A: Algorithm>(params: A, dtype: DType, naive: impl Fn(&mut [f64], &[Vec<f64>])) -> f64 {
    let shapes = edges();
    let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
    let vars = make_vars(&shapes, dtype);
    let mut expected = snapshot(&vars);
    let mut optimizer = Fused::builder(vars.clone()).params(params).build().unwrap();
    let steps: Vec<_> = (0..3).map(|step| gradients(&vars, step)).collect();
    for (var, values) in vars.iter().zip(&mut expected) {
        let gradients: Vec<_> = steps
            .iter()
            .map(|store| flat(store.get(var).unwrap()))
            .collect();
        if !values.is_empty() {
            naive(values, &gradients);
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
        let error = edge_run(adamw(), dtype, |p, g| naive_adamw(&params, p, g));
        println!("AdamW against a naive loop, {dtype:?}: {error:e}");
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
        let mut optimizer = Fused::builder(all).params(params).build().unwrap();
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
            let mut optimizer = Fused::builder(vec![var.clone()])
                .params(params.clone())
                .build()
                .unwrap();
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
        let mut optimizer = Fused::builder(vars.clone())
            .params(params.clone())
            .build()
            .unwrap();
        let mut alone = Fused::builder(twin.clone()).params(params).build().unwrap();
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
