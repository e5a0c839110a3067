//! Prints the times of launches (`--nocapture`, in release), of kernels that do their work.

use super::{Arguments, candle_module, entry};
use std::time::{Duration, Instant};

fn best(mut run: impl FnMut()) -> Duration {
    (0..7)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed()
        })
        .min()
        .unwrap_or_default()
}

#[test]
fn elementwise() {
    let (Some(affine), Some(binary)) = (candle_module("affine"), candle_module("binary")) else {
        return;
    };
    for count in [1_000, 1_000_000] {
        let (mut a, mut b, mut out) = (vec![1f32; count], vec![2f32; count], vec![0f32; count]);
        let kernel = entry(&affine, "affine_f32");
        let time = best(|| {
            let arguments = Arguments::default()
                .value(count as u64)
                .value(1u64)
                .value(0u64)
                .buffer(&mut a);
            arguments
                .buffer(&mut out)
                .value(2f32)
                .value(1f32)
                .launch_for(&kernel, count);
        });
        assert!(out.iter().all(|value| *value == 3.), "2 · 1 + 1");
        println!("affine_f32, {count} elements: {time:?}");
        let kernel = entry(&binary, "badd_f32");
        out.fill(0.);
        let time = best(|| {
            let arguments = Arguments::default()
                .value(count as u64)
                .value(1u64)
                .value(0u64)
                .buffer(&mut a);
            arguments
                .buffer(&mut b)
                .buffer(&mut out)
                .launch_for(&kernel, count);
        });
        assert!(out.iter().all(|value| *value == 3.), "1 + 2");
        println!("badd_f32, {count} elements: {time:?}");
    }
}
