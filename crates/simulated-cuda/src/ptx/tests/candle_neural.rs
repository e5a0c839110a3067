//! Candle's reductions, norms, index operations and convolutions, launched as candle launches them.

use super::{Arguments, candle_module, entry};

fn wave(count: usize) -> Vec<f32> {
    (0..count)
        .map(|i| ((i * 37 % 101) as f32 - 50.0) / 13.0)
        .collect()
}

fn close(name: &str, got: f32, want: f32) {
    assert!(
        (got - want).abs() <= 1e-4 * want.abs().max(1.0),
        "{name}: {got} and not {want}"
    );
}

#[test]
fn reductions() {
    let Some(module) = candle_module("reduce") else {
        return;
    };
    for (rows, columns) in [(5, 100), (3, 2500), (7, 33), (2, 1024)] {
        let mut x = wave(rows * columns);
        // Rows of a contiguous tensor, and columns of its transposed view.
        for transposed in [false, true] {
            let at = |row: usize, column: usize| {
                if transposed {
                    column * rows + row
                } else {
                    row * columns + column
                }
            };
            let stride = if transposed { [1, rows] } else { [columns, 1] };
            let mut info = [
                rows as u64,
                columns as u64,
                stride[0] as u64,
                stride[1] as u64,
            ];
            let threads = columns.min(1024).next_power_of_two() as u32;
            let row = |row: usize| (0..columns).map(move |column| at(row, column));
            let mut run = |name: &str, out: &mut [f32]| {
                let arguments = Arguments::default()
                    .value(x.len() as u64)
                    .value(columns as u64)
                    .value(2u64);
                let arguments = arguments.buffer(&mut info).buffer(&mut x).buffer(out);
                arguments
                    .launch(&entry(&module, name), rows as u32, threads)
                    .unwrap();
            };
            let (mut sums, mut tops, mut places) =
                (vec![0f32; rows], vec![0f32; rows], vec![0f32; rows]);
            run("fast_sum_f32", &mut sums);
            run("fast_max_f32", &mut tops);
            run("fast_argmax_f32", &mut places);
            for index in 0..rows {
                close("fast_sum", sums[index], row(index).map(|i| x[i]).sum());
                let top = row(index).map(|i| x[i]).fold(f32::MIN, f32::max);
                assert_eq!(tops[index], top);
                assert_eq!(x[at(index, places[index].to_bits() as usize)], top);
            }
        }
    }
    let mut x = wave(60);
    let mut out = vec![0f32; 12];
    let mut info = [12u64, 5, 5, 1];
    let arguments = Arguments::default()
        .value(12u64)
        .value(5u64)
        .value(2u64)
        .buffer(&mut info);
    arguments
        .buffer(&mut x)
        .buffer(&mut out)
        .launch(&entry(&module, "fast_sum_small_f32"), 1, 256)
        .unwrap();
    (0..12).for_each(|i| close("fast_sum_small", out[i], x[i * 5..i * 5 + 5].iter().sum()));
}

#[test]
fn norms() {
    let Some(module) = candle_module("reduce") else {
        return;
    };
    for columns in [7usize, 100, 1500] {
        let (mut x, mut out) = (wave(3 * columns), vec![0f32; 3 * columns]);
        let arguments = Arguments::default()
            .buffer(&mut x)
            .buffer(&mut out)
            .value(columns as i32);
        arguments
            .launch_shaped(&entry(&module, "softmax_f32"), [3, 1, 1], [1, 32, 1], 0)
            .unwrap();
        for (row, out) in x.chunks(columns).zip(out.chunks(columns)) {
            let top = row.iter().copied().fold(f32::MIN, f32::max);
            let sum: f32 = row.iter().map(|x| (x - top).exp()).sum();
            (0..columns).for_each(|i| {
                close(
                    "softmax",
                    out[i] * 100.0,
                    (row[i] - top).exp() / sum * 100.0,
                )
            });
        }
        let threads = if columns < 1024 { 32 } else { 1024 };
        let (mut alpha, mut beta) = (wave(columns), wave(columns));
        let arguments = Arguments::default()
            .buffer(&mut x)
            .buffer(&mut out)
            .buffer(&mut alpha);
        let arguments = arguments
            .value(columns as i32)
            .value(threads as i32)
            .value(1e-5f32);
        arguments
            .launch(&entry(&module, "rmsnorm_f32"), 3, threads)
            .unwrap();
        for (row, out) in x.chunks(columns).zip(out.chunks(columns)) {
            let mean = row.iter().map(|x| x * x).sum::<f32>() / columns as f32;
            (0..columns)
                .for_each(|i| close("rmsnorm", out[i], row[i] / (mean + 1e-5).sqrt() * alpha[i]));
        }
        let arguments = Arguments::default()
            .buffer(&mut x)
            .buffer(&mut out)
            .buffer(&mut alpha)
            .buffer(&mut beta);
        let arguments = arguments
            .value(columns as i32)
            .value(threads as i32)
            .value(1e-5f32);
        arguments
            .launch(&entry(&module, "layernorm_f32"), 3, threads)
            .unwrap();
        for (row, out) in x.chunks(columns).zip(out.chunks(columns)) {
            let mean = row.iter().sum::<f32>() / columns as f32;
            let variance =
                row.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / columns as f32;
            let scale = 1.0 / (variance + 1e-5).sqrt();
            (0..columns).for_each(|i| {
                close(
                    "layernorm",
                    out[i],
                    (row[i] - mean) * scale * alpha[i] + beta[i],
                )
            });
        }
    }
}

#[test]
fn indices() {
    let Some(module) = candle_module("indexing") else {
        return;
    };
    let (mut x, mut ids) = (wave(40), [3u32, 0, 9, 3]);
    let mut info = [4u64, 1];
    let select = |ids: &mut [u32; 4], x: &mut Vec<f32>, out: &mut Vec<f32>, info: &mut [u64; 2]| {
        let arguments = Arguments::default()
            .value(16u64)
            .value(1u64)
            .buffer(info)
            .buffer(ids)
            .buffer(x)
            .buffer(out);
        let arguments = arguments.value(1u64).value(10u64).value(4u64).value(4u64);
        arguments.launch(&entry(&module, "is_u32_f32"), 1, 1024)
    };
    let mut out = vec![0f32; 16];
    select(&mut ids, &mut x, &mut out, &mut info).unwrap();
    (0..16).for_each(|i| assert_eq!(out[i], x[ids[i / 4] as usize * 4 + i % 4]));
    let fault = select(&mut [0, 10, 0, 0], &mut x, &mut out, &mut info).unwrap_err();
    assert!(
        matches!(&fault, super::Fault::Assert(text) if text.contains("index_select")),
        "{fault}"
    );

    let mut sums = vec![0f32; 40];
    let arguments = Arguments::default()
        .buffer(&mut ids)
        .value(4u64)
        .buffer(&mut out)
        .buffer(&mut sums);
    let arguments = arguments.value(1u64).value(4u64).value(10u64).value(4u64);
    arguments.launch_for(&entry(&module, "ia_u32_f32"), 4);
    let want = |i: usize| {
        (0..4)
            .filter(|j| ids[*j] as usize == i / 4)
            .map(|j| out[j * 4 + i % 4])
            .sum::<f32>()
    };
    (0..40).for_each(|i| assert_eq!(sums[i], want(i)));
}

#[test]
fn convolutions_and_pools() {
    let Some(module) = candle_module("conv") else {
        return;
    };
    let (height, width) = (5usize, 6usize);
    let mut x = wave(2 * height * width);
    let mut info = [1u64, 2, 5, 6, 60, 30, 6, 1];
    // Columns of 3 × 3 windows with padding 1: position, channel, kernel row, kernel column.
    let mut columns = vec![0f32; 30 * 18];
    let mut arguments = Arguments::default();
    for number in [540u64, 5, 6, 3, 3, 1, 1, 1] {
        arguments = arguments.value(number);
    }
    let arguments = arguments
        .buffer(&mut info)
        .buffer(&mut x)
        .buffer(&mut columns);
    arguments.launch_for(&entry(&module, "im2col_f32"), 540);
    for (i, got) in columns.iter().enumerate() {
        let (place, channel, row, column) = (i / 18, i / 9 % 2, i / 3 % 3, i % 3);
        let (y, z) = (
            (place / 6 + row).wrapping_sub(1),
            (place % 6 + column).wrapping_sub(1),
        );
        let want = if y < height && z < width {
            x[channel * 30 + y * 6 + z]
        } else {
            0.0
        };
        assert_eq!(*got, want, "im2col {i}");
    }
    // Square windows, because candle uses the width as the height.
    for (name, average) in [("max_pool2d_f32", false), ("avg_pool2d_f32", true)] {
        let mut square = wave(2 * 36);
        let mut info = [1u64, 2, 6, 6, 72, 36, 6, 1];
        let mut out = vec![0f32; 2 * 9];
        let mut arguments = Arguments::default();
        for number in [72u64, 2, 2, 2, 2] {
            arguments = arguments.value(number);
        }
        arguments
            .buffer(&mut info)
            .buffer(&mut square)
            .buffer(&mut out)
            .launch_for(&entry(&module, name), 18);
        for (i, got) in out.iter().enumerate() {
            let corner = i / 9 * 36 + i / 3 % 3 * 12 + i % 3 * 2;
            let window = [0, 1, 6, 7].map(|step| square[corner + step]);
            let want = if average {
                window.iter().sum::<f32>() / 4.0
            } else {
                window.into_iter().fold(f32::MIN, f32::max)
            };
            close(name, *got, want);
        }
    }
    // A transposed convolution of one channel, stride 2, by a 2 × 2 kernel: no windows overlap.
    let (mut small, mut kernel, mut out) = (wave(9), vec![1f32, 2.0, 3.0, 4.0], vec![0f32; 36]);
    let mut info = [1u64, 1, 3, 3, 9, 9, 3, 1, 1, 1, 2, 2, 4, 4, 2, 1];
    let mut arguments = Arguments::default();
    for number in [9u64, 6, 6, 2, 0, 0, 1] {
        arguments = arguments.value(number);
    }
    let arguments = arguments
        .buffer(&mut info)
        .buffer(&mut small)
        .buffer(&mut kernel)
        .buffer(&mut out);
    arguments.launch_for(&entry(&module, "conv_transpose2d_f32"), 36);
    (0..36).for_each(|i| {
        close(
            "conv_transpose2d",
            out[i],
            small[i / 12 * 3 + i % 6 / 2] * kernel[i / 6 % 2 * 2 + i % 2],
        )
    });
}

#[test]
fn sorting() {
    let Some(module) = candle_module("sort") else {
        return;
    };
    let (mut x, mut out) = (wave(2 * 100), vec![0u32; 2 * 100]);
    let arguments = Arguments::default()
        .buffer(&mut x)
        .buffer(&mut out)
        .value(100i32)
        .value(128i32);
    arguments
        .launch_shaped(
            &entry(&module, "asort_asc_f32"),
            [2, 1, 1],
            [128, 1, 1],
            512,
        )
        .unwrap();
    for (row, order) in x.chunks(100).zip(out.chunks(100)) {
        assert!(
            order
                .windows(2)
                .all(|pair| row[pair[0] as usize] <= row[pair[1] as usize])
        );
        let mut places = order.to_vec();
        places.sort_unstable();
        assert!(places.into_iter().eq(0..100), "each place once");
    }
}
