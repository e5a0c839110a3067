//! cuBLAS against a plain reference, and cuRAND.

mod support;

use half::{bf16, f16};
use simulated_cuda::control::*;
use simulated_cuda::cublas::{entry::*, handle::*};
use simulated_cuda::curand::*;
use support::*;

/// Small multiples of a quarter, so that all types represent them and the sums of their products exactly.
fn numbers(count: usize, seed: usize) -> Vec<f64> {
    (0..count)
        .map(|index| ((index * 7 + seed * 13) % 17) as f64 / 4.0 - 2.0)
        .collect()
}

/// A plain product; `a` and `b` are column-major with leading dimensions `lda` and `ldb`.
fn reference(
    ops: (u32, u32),
    (m, n, k): (usize, usize, usize),
    a: &[f64],
    lda: usize,
    b: &[f64],
    ldb: usize,
) -> Vec<f64> {
    let a = |i: usize, l: usize| {
        if ops.0 == 0 {
            a[i + l * lda]
        } else {
            a[l + i * lda]
        }
    };
    let b = |l: usize, j: usize| {
        if ops.1 == 0 {
            b[l + j * ldb]
        } else {
            b[j + l * ldb]
        }
    };
    (0..n * m)
        .map(|at| (0..k).map(|l| a(at % m, l) * b(l, at / m)).sum())
        .collect()
}

/// All transpositions, with padded columns, two strided products, and a `beta` that reads the old contents.
fn check<T: Copy + Default>(
    kind: u32,
    compute: u32,
    narrow: impl Fn(f64) -> T,
    widen: impl Fn(T) -> f64,
) {
    let _bench = Bench::new();
    let handle = out(|place| unsafe { cublasCreate_v2(place) });
    let (m, n, k, batch) = (13usize, 6usize, 9usize, 2usize);
    for ops in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)] {
        let (lda, columns_a) = if ops.0 == 0 { (m + 2, k) } else { (k + 2, m) };
        let (ldb, columns_b) = if ops.1 == 0 { (k + 1, n) } else { (n + 1, k) };
        let ldc = m + 3;
        let (size_a, size_b, size_c) = (lda * columns_a, ldb * columns_b, ldc * n);
        let (a, b, c) = (
            numbers(size_a * batch, 1),
            numbers(size_b * batch, 2),
            numbers(size_c * batch, 3),
        );
        let put = |values: &[f64]| {
            upload(
                &values
                    .iter()
                    .map(|&value| narrow(value))
                    .collect::<Vec<T>>(),
            )
        };
        let (at_a, at_b, at_c) = (put(&a), put(&b), put(&c));
        let (alpha, beta) = (2.0, 0.5);
        let call = |alpha: u64, beta: u64| unsafe {
            cublasGemmStridedBatchedEx(
                handle,
                ops.0,
                ops.1,
                m as i32,
                n as i32,
                k as i32,
                alpha,
                at_a,
                kind,
                lda as i32,
                size_a as i64,
                at_b,
                kind,
                ldb as i32,
                size_b as i64,
                beta,
                at_c,
                kind,
                ldc as i32,
                size_c as i64,
                batch as i32,
                compute,
                0,
            )
        };
        let status = if compute == 70 {
            call(&raw const alpha as u64, &raw const beta as u64)
        } else {
            let (alpha, beta) = (alpha as f32, beta as f32);
            call(&raw const alpha as u64, &raw const beta as u64)
        };
        assert_eq!(status, 0);
        let result: Vec<T> = download(at_c, size_c * batch);
        for index in 0..batch {
            let expected = reference(
                ops,
                (m, n, k),
                &a[index * size_a..],
                lda,
                &b[index * size_b..],
                ldb,
            );
            for (at, expected) in expected.into_iter().enumerate() {
                let place = index * size_c + at % m + at / m * ldc;
                let wanted = widen(narrow(alpha * expected + beta * c[place]));
                assert_eq!(widen(result[place]), wanted, "{ops:?} {at}");
            }
        }
        assert_eq!(widen(result[m]), c[m], "padding stays");
        give_back(&[at_a, at_b, at_c]);
    }
    assert_eq!(cublasDestroy_v2(handle), 0);
    assert_eq!(counters().live_libraries, 0);
}

#[test]
fn products_in_single_precision() {
    check(0, 68, |value| value as f32, f64::from);
}

#[test]
fn products_in_double_precision() {
    check(1, 70, |value| value, |value| value);
}

#[test]
fn products_of_halves() {
    check(2, 68, f16::from_f64, f16::to_f64);
    check(14, 68, bf16::from_f64, bf16::to_f64);
}

#[test]
fn a_product_beyond_its_memory_loses_the_context_and_ordered_failures_do_not() {
    let _bench = Bench::new();
    let handle = out(|place| unsafe { cublasCreate_v2(place) });
    let block = upload(&[1.0f32; 4]);
    let to = upload(&[f32::NAN; 4]);
    let (one, zero) = (1.0f32, 0.0f32);
    let product = |size| unsafe {
        let (one, zero) = (&raw const one as u64, &raw const zero as u64);
        cublasSgemm_v2(
            handle, 0, 0, size, size, size, one, block, size, block, size, zero, to, size,
        )
    };
    simulated_cuda_fail_library(0, 1, 1, 0);
    assert_eq!(product(2), ALLOC_FAILED);
    assert_eq!(product(2), 0);
    assert_eq!(
        download::<f32>(to, 4),
        [2.0; 4],
        "beta of zero does not read"
    );
    assert_eq!(product(3), 0);
    assert_eq!(counters().lost_context, 700);
    assert_eq!(product(2), EXECUTION_FAILED);
    simulated_cuda_clear_fault(0);
    give_back(&[block, to]);
    assert_eq!(cublasDestroy_v2(handle), 0);
}

#[test]
fn a_large_product_takes_milliseconds() {
    let _bench = Bench::new();
    let handle = out(|place| unsafe { cublasCreate_v2(place) });
    let operands = [(); 3].map(|()| upload(&vec![0.5f32; 256 * 256]));
    let (one, zero) = (1.0f32, 0.0f32);
    let [a, b, c] = operands;
    let start = std::time::Instant::now();
    let (one, zero) = (&raw const one as u64, &raw const zero as u64);
    assert_eq!(
        unsafe {
            cublasSgemm_v2(
                handle, 0, 0, 256, 256, 256, one, a, 256, b, 256, zero, c, 256,
            )
        },
        0
    );
    println!("256 × 256 × 256: {:?}", start.elapsed());
    assert_eq!(download::<f32>(c, 1), [64.0]);
    give_back(&operands);
    assert_eq!(cublasDestroy_v2(handle), 0);
}

#[test]
fn random_numbers_follow_from_the_seed() {
    let _bench = Bench::new();
    let draw = |seed| {
        let generator = out(|place| unsafe { curandCreateGenerator(place, 100) });
        assert_eq!(curandSetPseudoRandomGeneratorSeed(generator, seed), 0);
        let block = upload(&[0.0f32; 10_000]);
        assert_eq!(curandGenerateNormal(generator, block, 9_999, 0.0, 1.0), 105);
        assert_eq!(curandGenerateUniform(generator, block, 5_000), 0);
        assert_eq!(
            curandGenerateNormal(generator, block + 20_000, 5_000, 3.0, 2.0),
            0
        );
        let values = download::<f32>(block, 10_000);
        give_back(&[block]);
        assert_eq!(curandDestroyGenerator(generator), 0);
        values
    };
    let values = draw(1);
    assert_eq!(values, draw(1));
    assert_ne!(values, draw(2));
    let mean = |values: &[f32]| values.iter().sum::<f32>() / values.len() as f32;
    let (uniform, normal) = values.split_at(5_000);
    assert!(uniform.iter().all(|&value| value > 0.0 && value <= 1.0));
    assert!((mean(uniform) - 0.5).abs() < 0.02);
    assert!((mean(normal) - 3.0).abs() < 0.15);
    let spread = mean(
        &normal
            .iter()
            .map(|value| (value - 3.0).powi(2))
            .collect::<Vec<_>>(),
    );
    assert!((spread - 4.0).abs() < 0.4);
}
