//! cuDNN's forward convolutions against plain loops.

mod support;

use half::{bf16, f16};
use simulated_cuda::cudnn::describing::*;
use support::convolution::*;
use support::*;

/// The plain loops, over contiguous images and filters.
fn reference(case: &Case, input: &[f64], filter: &[f64], flips: bool) -> Vec<f64> {
    let ([height, width], [down, across]) = (case.output(), case.filter);
    let (inputs, outputs) = (case.inputs / case.groups, case.outputs / case.groups);
    let mut results = Vec::new();
    for (image, output, row, column) in places([case.images, case.outputs, height, width]) {
        let mut sum = 0.0;
        for (channel, i, j, _) in places([inputs, down, across, 1]) {
            let at = |axis: usize, place: usize, tap: usize| {
                (place * case.stride[axis] + tap * case.dilation[axis])
                    .checked_sub(case.padding[axis])
                    .filter(|&at| at < case.size[axis])
            };
            if let (Some(y), Some(x)) = (at(0, row, i), at(1, column, j)) {
                let from = output / outputs * inputs + channel;
                let from = (image * case.inputs + from) * case.size[0] + y;
                let (i, j) = match flips {
                    true => (down - 1 - i, across - 1 - j),
                    false => (i, j),
                };
                let weight = ((output * inputs + channel) * down + i) * across + j;
                sum += filter[weight] * input[from * case.size[1] + x];
            }
        }
        results.push(sum);
    }
    results
}

fn places(sizes: [usize; 4]) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    let [a, b, c, d] = sizes;
    (0..a * b * c * d).map(move |at| (at / d / c / b, at / d / c % b, at / d % c, at % d))
}

/// Small multiples of a quarter, so that all types represent them and the sums of their products exactly.
fn numbers(count: usize, seed: usize) -> Vec<f64> {
    (0..count)
        .map(|index| ((index * 7 + seed * 13) % 17) as f64 / 4.0 - 2.0)
        .collect()
}

/// Computes a case in one type, with scalars that read the old output.
fn check<T: Copy + Default>(
    case: Case,
    (kind, compute, mode): (u32, u32, u32),
    narrow: impl Fn(f64) -> T,
    widen: impl Fn(T) -> f64,
) {
    let [rows, columns] = case.output();
    let input = numbers(case.images * case.inputs * case.size[0] * case.size[1], 1);
    let filter = case.outputs * case.inputs / case.groups * case.filter[0] * case.filter[1];
    let filter = numbers(filter, 2);
    let old = numbers(case.images * case.outputs * rows * columns, 3);
    let put = |values: &[f64]| {
        let values: Vec<T> = values.iter().map(|&value| narrow(value)).collect();
        upload(&values)
    };
    let tensors = [put(&input), put(&filter), put(&old)];
    let call = Call::new(&case, kind, compute, mode);
    let status = match kind {
        1 => call.forward((2.0, 0.5), tensors, (0, 0, 0)),
        _ => call.forward((2.0f32, 0.5), tensors, (0, 0, 0)),
    };
    assert_eq!(status, 0);
    let result: Vec<T> = download(tensors[2], old.len());
    let sums = reference(&case, &input, &filter, mode == 0);
    for (at, sum) in sums.into_iter().enumerate() {
        let wanted = widen(narrow(2.0 * sum + 0.5 * old[at]));
        assert_eq!(widen(result[at]), wanted, "{case:?} {at}");
    }
    give_back(&tensors);
}

fn cases() -> [Case; 7] {
    [
        PLAIN,
        Case {
            padding: [2, 1],
            ..PLAIN
        },
        Case {
            stride: [2, 3],
            padding: [1, 1],
            ..PLAIN
        },
        Case {
            dilation: [2, 3],
            padding: [1, 2],
            ..PLAIN
        },
        Case {
            stride: [3, 2],
            dilation: [2, 1],
            padding: [4, 5],
            groups: 2,
            ..PLAIN
        },
        // Padding that reaches further than the filter, so that some outputs see nothing.
        Case {
            size: [1, 2],
            filter: [1, 1],
            padding: [3, 2],
            ..PLAIN
        },
        // A line, as candle describes it.
        Case {
            size: [9, 1],
            filter: [3, 1],
            padding: [1, 0],
            stride: [2, 1],
            ..PLAIN
        },
    ]
}

#[test]
fn convolutions_in_single_precision() {
    let _bench = Bench::new();
    for case in cases() {
        check(case, (0, 0, 1), |value| value as f32, f64::from);
        check(case, (0, 0, 0), |value| value as f32, f64::from);
    }
    assert_eq!(counters().live_libraries, 0);
}

#[test]
fn convolutions_in_other_types() {
    let _bench = Bench::new();
    for case in cases() {
        check(case, (1, 1, 1), |value| value, |value| value);
        check(case, (2, 0, 1), f16::from_f64, f16::to_f64);
        check(case, (2, 2, 1), f16::from_f64, f16::to_f64);
        check(case, (9, 0, 1), bf16::from_f64, bf16::to_f64);
    }
}

#[test]
fn strides_of_tensors_are_followed() {
    let _bench = Bench::new();
    let case = Case {
        images: 1,
        inputs: 1,
        outputs: 1,
        size: [2, 3],
        filter: [1, 1],
        ..PLAIN
    };
    let call = Call::new(&case, 0, 0, 1);
    // The transpose of a matrix of three rows.
    let status = cudnnSetTensor4dDescriptorEx(call.input, 0, 1, 1, 2, 3, 6, 6, 1, 2);
    assert_eq!(status, 0);
    let tensors = [
        upload(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]),
        upload(&[1.0f32]),
        upload(&[f32::NAN; 6]),
    ];
    assert_eq!(call.forward((1.0f32, 0.0), tensors, (0, 0, 0)), 0);
    let result: Vec<f32> = download(tensors[2], 6);
    assert_eq!(result, [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
    give_back(&tensors);
}
