//! Candle's elementwise kernels, launched as candle launches them.

use super::{Arguments, candle_module, entry};
use half::{bf16, f16};

fn wave(count: usize) -> Vec<f32> {
    (0..count)
        .map(|i| ((i * 37 % 101) as f32 - 50.0) / 13.0)
        .collect()
}

fn close(name: &str, got: f64, want: f64, tolerance: f64) {
    let same = got == want || (got.is_nan() && want.is_nan());
    assert!(
        same || (got - want).abs() <= tolerance * want.abs().max(1e-3),
        "{name}: {got} and not {want}"
    );
}

#[test]
fn affine() {
    let Some(module) = candle_module("affine") else {
        return;
    };
    let mut input = wave(3000);
    let mut out = vec![0f32; 3000];
    let arguments = Arguments::default().value(3000u64).value(1u64).value(0u64);
    let arguments = arguments
        .buffer(&mut input)
        .buffer(&mut out)
        .value(1.5f32)
        .value(-0.25f32);
    arguments.launch_for(&entry(&module, "affine_f32"), 3000);
    assert!(
        out.iter()
            .zip(&input)
            .all(|(out, x)| *out == x.mul_add(1.5, -0.25))
    );

    // A transposed view of 30 rows and 7 columns.
    let mut info = [7u64, 30, 1, 7];
    let mut strided = vec![0f64; 210];
    let mut wide: Vec<f64> = input[..210].iter().map(|x| *x as f64).collect();
    let arguments = Arguments::default()
        .value(210u64)
        .value(2u64)
        .buffer(&mut info);
    let arguments = arguments
        .buffer(&mut wide)
        .buffer(&mut strided)
        .value(3f64)
        .value(1f64);
    arguments.launch_for(&entry(&module, "affine_f64"), 210);
    for (index, out) in strided.iter().enumerate() {
        assert_eq!(*out, wide[index % 30 * 7 + index / 30].mul_add(3.0, 1.0));
    }

    let mut halves: Vec<bf16> = input.iter().map(|x| bf16::from_f32(*x)).collect();
    let mut out = vec![bf16::ZERO; 3000];
    let arguments = Arguments::default()
        .value(3000u64)
        .value(1u64)
        .value(0u64)
        .buffer(&mut halves)
        .buffer(&mut out);
    let arguments = arguments
        .value(bf16::from_f32(1.5))
        .value(bf16::from_f32(0.5));
    arguments.launch_for(&entry(&module, "affine_bf16"), 3000);
    for (out, x) in out.iter().zip(&halves) {
        assert_eq!(
            *out,
            bf16::from_f32(bf16::from_f32(x.to_f32() * 1.5).to_f32() + 0.5)
        );
    }
    let mut halves: Vec<f16> = input.iter().map(|x| f16::from_f32(*x)).collect();
    let mut out = vec![f16::ZERO; 3000];
    let arguments = Arguments::default()
        .value(3000u64)
        .value(1u64)
        .value(0u64)
        .buffer(&mut halves)
        .buffer(&mut out);
    arguments
        .value(f16::from_f32(1.5))
        .value(f16::from_f32(0.5))
        .launch_for(&entry(&module, "affine_f16"), 3000);
    for (out, x) in out.iter().zip(&halves) {
        close("affine_f16", out.to_f64(), x.to_f64() * 1.5 + 0.5, 2e-3);
    }
}

#[test]
fn binary() {
    let Some(module) = candle_module("binary") else {
        return;
    };
    let (mut a, mut b) = (wave(1500), wave(1500));
    b.rotate_left(11);
    type Case = (&'static str, fn(f32, f32) -> f32);
    let cases: [Case; 6] = [
        ("badd_f32", |a, b| a + b),
        ("bsub_f32", |a, b| a - b),
        ("bmul_f32", |a, b| a * b),
        ("bdiv_f32", |a, b| a / b),
        ("bmaximum_f32", f32::max),
        ("bminimum_f32", f32::min),
    ];
    for (name, f) in cases {
        let mut out = vec![0f32; 1500];
        let arguments = Arguments::default()
            .value(1500u64)
            .value(1u64)
            .value(0u64)
            .buffer(&mut a)
            .buffer(&mut b);
        arguments
            .buffer(&mut out)
            .launch_for(&entry(&module, name), 1500);
        (0..1500).for_each(|i| close(name, out[i] as f64, f(a[i], b[i]) as f64, 0.0));
    }
    for (name, f) in [
        ("lt_f32", f32::lt as fn(&f32, &f32) -> bool),
        ("eq_f32", f32::eq),
        ("ge_f32", f32::ge),
    ] {
        let mut out = vec![9u8; 1500];
        let mut info = [50u64, 30, 30, 1, 1, 50];
        let arguments = Arguments::default()
            .value(1500u64)
            .value(2u64)
            .buffer(&mut info)
            .buffer(&mut a);
        arguments
            .buffer(&mut b)
            .buffer(&mut out)
            .launch_for(&entry(&module, name), 1500);
        (0..1500).for_each(|i| {
            assert_eq!(
                out[i],
                f(&a[i], &b[i % 30 * 50 + i / 30]) as u8,
                "{name} {i}"
            )
        });
    }
}

#[test]
fn unary() {
    let Some(module) = candle_module("unary") else {
        return;
    };
    let inputs = wave(2000);
    type Case = (&'static str, fn(f64) -> f64);
    let cases: [Case; 11] = [
        ("uexp", f64::exp),
        ("ulog", f64::ln),
        ("utanh", f64::tanh),
        ("usilu", |x| x / (1.0 + (-x).exp())),
        ("usqrt", f64::sqrt),
        ("usin", f64::sin),
        ("ucos", f64::cos),
        ("urelu", |x| x.max(0.0)),
        ("usqr", |x| x * x),
        ("uneg", |x| -x),
        ("urecip", |x| 1.0 / x),
    ];
    for (name, f) in cases {
        macro_rules! check {
            ($t:ident, $from:expr, $to:expr, $tolerance:expr) => {
                let mut x: Vec<$t> = inputs.iter().map(|x| $from(*x)).collect();
                let mut out = x.clone();
                let arguments = Arguments::default()
                    .value(2000u64)
                    .value(1u64)
                    .value(0u64)
                    .buffer(&mut x);
                let name = format!("{name}_{}", stringify!($t));
                arguments
                    .buffer(&mut out)
                    .launch_for(&entry(&module, &name), 2000);
                (0..2000).for_each(|i| close(&name, $to(out[i]), f($to(x[i])), $tolerance));
            };
        }
        check!(f32, |x: f32| x, |x: f32| x as f64, 2e-6);
        check!(f64, |x: f32| x as f64, |x: f64| x, 1e-14);
        check!(bf16, bf16::from_f32, |x: bf16| x.to_f64(), 2e-2);
        check!(f16, f16::from_f32, |x: f16| x.to_f64(), 4e-3);
    }
    // Large angles take the slow reduction, which calls a function in 64 bits.
    let mut x = vec![1e9f64, 3e15, -7.25e22, 1e300];
    let mut out = vec![0f64; 4];
    let arguments = Arguments::default()
        .value(4u64)
        .value(1u64)
        .value(0u64)
        .buffer(&mut x)
        .buffer(&mut out);
    arguments.launch_for(&entry(&module, "usin_f64"), 4);
    (0..4).for_each(|i| close("usin_f64", out[i], x[i].sin(), 1e-13));
    let mut x = vec![1e5f32, 3e15, -7.25e22, 1e38];
    let mut out = vec![0f32; 4];
    let arguments = Arguments::default()
        .value(4u64)
        .value(1u64)
        .value(0u64)
        .buffer(&mut x)
        .buffer(&mut out);
    arguments.launch_for(&entry(&module, "ucos_f32"), 4);
    (0..4).for_each(|i| close("ucos_f32", out[i] as f64, (x[i] as f64).cos(), 1e-6));
    // gelu by erf at a known point.
    let mut x = vec![1.0f32];
    let mut out = vec![0f32];
    let arguments = Arguments::default()
        .value(1u64)
        .value(1u64)
        .value(0u64)
        .buffer(&mut x)
        .buffer(&mut out);
    arguments.launch_for(&entry(&module, "ugelu_erf_f32"), 1);
    close("ugelu_erf_f32", out[0] as f64, 0.841_344_75, 1e-6);
}

#[test]
fn powers_copies_and_fills() {
    let Some(module) = candle_module("unary") else {
        return;
    };
    let mut x: Vec<f64> = wave(500).iter().map(|x| x.abs() as f64).collect();
    let mut out = vec![0f64; 500];
    let arguments = Arguments::default()
        .value(500u64)
        .value(1u64)
        .value(0u64)
        .value(2.5f64);
    arguments
        .buffer(&mut x)
        .buffer(&mut out)
        .launch_for(&entry(&module, "upowf_f64"), 500);
    (0..500).for_each(|i| close("upowf_f64", out[i], x[i].powf(2.5), 1e-13));
    let mut info = [2u64, 3, 4, 1, 8, 2];
    let mut copied = vec![0f64; 24];
    let arguments = Arguments::default()
        .value(24u64)
        .value(3u64)
        .buffer(&mut info);
    arguments
        .buffer(&mut x)
        .buffer(&mut copied)
        .launch_for(&entry(&module, "ucopy_f64"), 24);
    (0..24).for_each(|i| assert_eq!(copied[i], x[i / 12 + i / 4 % 3 * 8 + i % 4 * 2]));
}

#[test]
fn casts_and_choices() {
    let Some(module) = candle_module("cast") else {
        return;
    };
    let mut x = wave(700);
    let mut out = vec![bf16::ZERO; 700];
    let arguments = Arguments::default()
        .value(700u64)
        .value(1u64)
        .value(0u64)
        .buffer(&mut x)
        .buffer(&mut out);
    arguments.launch_for(&entry(&module, "cast_f32_bf16"), 700);
    (0..700).for_each(|i| assert_eq!(out[i], bf16::from_f32(x[i])));
    let mut numbers: Vec<u32> = (0..700).map(|i| i * 6_000_000).collect();
    let mut out = vec![0f32; 700];
    let arguments = Arguments::default()
        .value(700u64)
        .value(1u64)
        .value(0u64)
        .buffer(&mut numbers)
        .buffer(&mut out);
    arguments.launch_for(&entry(&module, "cast_u32_f32"), 700);
    (0..700).for_each(|i| assert_eq!(out[i], numbers[i] as f32));

    let Some(module) = candle_module("ternary") else {
        return;
    };
    let mut choice: Vec<u8> = (0..700).map(|i| (i % 3 == 0) as u8).collect();
    let mut y = x.iter().map(|x| x + 1.0).collect::<Vec<_>>();
    let mut out = vec![0f32; 700];
    let mut info = [700u64, 1, 1, 1];
    let arguments = Arguments::default()
        .value(700u64)
        .value(1u64)
        .buffer(&mut info)
        .buffer(&mut choice);
    arguments
        .buffer(&mut x)
        .buffer(&mut y)
        .buffer(&mut out)
        .launch_for(&entry(&module, "where_u8_f32"), 700);
    (0..700).for_each(|i| assert_eq!(out[i], if choice[i] == 1 { x[i] } else { y[i] }));
}
