//! Parameters that others read and write, too.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::*;

/// candle's operations hold the locks of what they read while they wait for candle's threads; an update that waited for such a lock
/// on those threads would wait for ever.
#[test]
fn updates_and_forward_passes_do_not_wait_for_each_other() {
    // Updates until there were enough of them and of what runs beside them. Returns how many.
    let update = |vars: &[Var], is_enough: &dyn Fn(usize) -> bool| {
        let params = ParamsAdamW {
            lr: 1e-6,
            ..adamw()
        };
        let builder = AdamW::builder(vars.to_vec()).params(params);
        let (mut optimizer, mut updates) = (builder.build().unwrap(), 0);
        let gradients = gradients(vars, 0);
        while !is_enough(updates) {
            optimizer.commit(&gradients).unwrap();
            updates += 1;
        }
        updates
    };
    let make = || make_vars(&[&[512][..]; 200], DType::F32);
    let vars = make();
    let (ended, end) = mpsc::channel();
    let (told, is_over) = (ended.clone(), Arc::new(AtomicBool::new(false)));
    let (over, committed) = (is_over.clone(), vars.clone());
    let passes = Arc::new(AtomicUsize::new(0));
    let (passed, read) = (passes.clone(), vars.clone());
    std::thread::spawn(move || {
        let is_enough = |updates| updates >= 300 && passed.load(Ordering::Relaxed) >= 50;
        let updates = update(&committed, &is_enough);
        over.store(true, Ordering::Relaxed);
        told.send(updates).unwrap();
    });
    std::thread::spawn(move || {
        // Large enough for candle's threads.
        let x = Tensor::ones((256, 512), DType::F32, &Device::Cpu).unwrap();
        while !is_over.load(Ordering::Relaxed) {
            let y = x.broadcast_add(&read[0]).unwrap();
            y.broadcast_mul(&read[1]).unwrap();
            passes.fetch_add(1, Ordering::Relaxed);
        }
        ended.send(0).unwrap();
    });
    let ends = [(); 2].map(|()| end.recv_timeout(Duration::from_secs(120)));
    let updates: usize = ends
        .map(|end| end.expect("both come to an end"))
        .iter()
        .sum();
    let alone = make();
    update(&alone, &|done| done == updates);
    assert!(bits(&vars) == bits(&alone));
}

/// Several optimizers, each on a thread of its own, take turns on the threads for small parameters.
#[test]
fn several_optimizers_update_at_once() {
    let run = || {
        let vars = make_vars(&[&[512][..]; 200], DType::F32);
        let builder = AdamW::builder(vars.clone()).params(adamw());
        let mut optimizer = builder.clip_norm(0.5).build().unwrap();
        for step in 0..20 {
            optimizer.commit(&gradients(&vars, step)).unwrap();
        }
        bits(&vars)
    };
    let alone = run();
    std::thread::scope(|scope| {
        let others = [(); 3].map(|()| scope.spawn(run));
        for other in others {
            assert!(other.join().unwrap() == alone);
        }
    });
}

/// What is written to a parameter holds, and not the master from before.
#[test]
fn a_parameter_that_is_written_to_goes_on_from_there() {
    for dtype in [DType::BF16, DType::F16] {
        let var = Var::ones(5, dtype, &Device::Cpu).unwrap();
        let params = ParamsSgd {
            lr: 0.001,
            ..ParamsSgd::default()
        };
        let builder = Sgd::builder(vec![var.clone()]).params(params);
        let mut optimizer = builder.master_weights().build().unwrap();
        let gradient = Tensor::ones(5, dtype, &Device::Cpu).unwrap();
        let gradients = store([(var.clone(), gradient)]);
        // Less than the type can tell apart, but it adds up in the master.
        optimizer.commit(&gradients).unwrap();
        let written = Tensor::new(&[100f32, 1., 7., 0., -2.], &Device::Cpu).unwrap();
        let old = flat(&var)[1];
        var.set(&written.to_dtype(dtype).unwrap()).unwrap();
        let is_same = flat(&var)[1] == old;
        for _ in 0..4 {
            optimizer.commit(&gradients).unwrap();
        }
        let moved = flat(&var);
        let steps = if is_same { 5. } else { 4. };
        for (value, expected) in [
            (moved[0], 99.996),
            (moved[1], 1. - 0.001 * steps),
            (moved[2], 6.996),
            (moved[3], -0.004),
            (moved[4], -2.004),
        ] {
            let rounding = half::bf16::EPSILON.to_f64() * f64::abs(expected);
            assert!((value - expected).abs() <= rounding, "{value} {expected}");
        }
    }
}
