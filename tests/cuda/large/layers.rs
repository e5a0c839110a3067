//! The kernels of crates/nn/kernels, launched as crates/nn/src/kernel/cuda/enabled does, but for tensors of which only the ends are not zero.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use candle_core::cuda_backend::cudarc::driver::{CudaSlice, LaunchConfig};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::nn::{Module, RmsNorm, ops};
use half::bf16;

use super::memory::{Large, Value, each_element, each_row, grid, launch};
use super::{Case, WIDTH, ours};

/// Compiled files by the names of their sources, from the newest build of crates/nn.
static CODE: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let program = std::env::current_exe().expect("this program");
    let build = program.ancestors().nth(2).expect("a profile").join("build");
    let built = fs::read_dir(&build).expect("builds");
    let folders = built.filter_map(|folder| Some(folder.ok()?.path().join("out")));
    let of_layers = folders.filter(|folder| folder.join("cross_entropy.ptx").is_file());
    // A build compiles again only what has changed.
    let age = |folder: &PathBuf| {
        let files = fs::read_dir(folder).expect("files");
        let ages = files.filter_map(|file| file.ok()?.metadata().ok()?.modified().ok());
        ages.max()
    };
    let folder = of_layers.max_by_key(age).expect("the kernels of crates/nn");
    let files = fs::read_dir(folder).expect("files");
    let paths = files.filter_map(|file| Some(file.ok()?.path()));
    let paths = paths.filter(|path| path.extension().is_some_and(|end| end == "ptx"));
    let text = |path: PathBuf| {
        let name = path.file_stem()?.to_str()?.to_owned();
        Some((name, fs::read_to_string(path).ok()?))
    };
    paths.filter_map(text).collect()
});

fn code(name: &str) -> &'static str {
    let found = CODE.iter().find(|(file, _)| file == name);
    &found.expect("a file of crates/nn/kernels").1
}

/// Fails for a kernel of crates/nn/kernels without a case.
pub fn assert_complete(cases: &[&str]) {
    let kernels = CODE.iter().flat_map(|(_, code)| {
        let entries = code
            .lines()
            .filter_map(|line| line.strip_prefix(".visible .entry "));
        entries.filter_map(|entry| Some(entry.split_once('(')?.0.rsplit_once('_')?.0))
    });
    let kernels: BTreeSet<_> = kernels.collect();
    assert!(kernels.len() > 15, "{kernels:?}");
    let missing: Vec<_> = kernels
        .iter()
        .filter(|kernel| !cases.contains(kernel))
        .collect();
    assert!(missing.is_empty(), "kernels without a case: {missing:?}");
}

/// A block of ggml's at either end of 2^31 or 2^32 elements, rounded up to whole blocks.
macro_rules! dequantize {
    ($name:literal, $kernel:literal, $format:expr) => {
        ours($name, |large| {
            let numbers = row().repeat(256 / WIDTH);
            let numbers = Tensor::from_vec(numbers, 256, &Device::Cpu)?.to_dtype(DType::F32)?;
            let quantized = QTensor::quantize(&numbers, $format)?;
            let row = quantized.dequantize(&Device::Cpu)?.to_dtype(DType::F64)?.to_vec1()?;
            let elements = large.elements.next_multiple_of(256);
            let bytes = quantized.data()?;
            let blocks = bytes.iter().map(|byte| f64::from(*byte)).collect::<Vec<_>>();
            let blocks = large.with_rows::<u8>(elements / 256 * bytes.len(), &blocks)?;
            let mut ys = large.zeros::<bf16>(elements)?;
            let (len, columns, stride) = (elements as u64, 256u64, bytes.len() as u64);
            launch!(large, code("dequantize"), $kernel, each_element(elements);
                &len, &columns, &stride, &blocks, &mut ys);
            large.expect_rows::<bf16>(&ys, &row)
        })
    };
}

pub fn cases() -> Vec<Case> {
    vec![
        ours("activation", activation),
        ours("activation_backward", activation_backward),
        ours("swiglu", swiglu),
        ours("swiglu_backward", swiglu_backward),
        ours("silu_mul", silu_mul),
        ours("silu_mul_backward", silu_mul_backward),
        ours("rotate_both", rotate_both),
        ours("copy_strided", copy_strided),
        ours("attention_weights", attention_weights),
        ours("attention_gradients", attention_gradients),
        ours("add_to_rows", add_to_rows),
        ours("cell_sums", cell_sums),
        ours("cell_sums of columns", cell_sums_of_columns),
        ours("cell_scaling", cell_scaling),
        ours("cell_gradient", cell_gradient),
        ours("cross_entropy", cross_entropy),
        ours("cross_entropy_backward", cross_entropy_backward),
        ours("linear_cross_entropy", linear_cross_entropy),
        ours("scale", scale),
        ours("dropout", dropout),
        ours("embedding_backward", embedding_backward),
        ours(
            "embedding_backward of a large table",
            embedding_backward_of_a_table,
        ),
        dequantize!("dequantize_q4_0", "dequantize_q4_0_bf16", GgmlDType::Q4_0),
        dequantize!("dequantize_q8_0", "dequantize_q8_0_bf16", GgmlDType::Q8_0),
        dequantize!("dequantize_q4_k", "dequantize_q4_k_bf16", GgmlDType::Q4K),
        dequantize!("dequantize_q5_k", "dequantize_q5_k_bf16", GgmlDType::Q5K),
        dequantize!("dequantize_q6_k", "dequantize_q6_k_bf16", GgmlDType::Q6K),
        ours("dequantize_nf4", dequantize_nf4),
        ours("rows_forward", rows_forward),
        ours("rows_backward", rows_backward),
        ours("rows_backward with sums", rows_backward_with_sums),
        ours("rows_forward_sum", rows_forward_sum),
        ours("rows_backward_sum", rows_backward_sum),
        ours("sum_of_rows", sum_of_rows),
        ours("add_parts", add_parts),
        ours("softmax", softmax),
        ours("softmax_backward", softmax_backward),
        ours("nn::ops::silu", |large| {
            let y = ops::silu(&marked(large)?)?;
            large.expect_marks_of::<bf16>(&y, silu)
        }),
        ours("nn::ops::softmax_last_dim", |large| {
            let y = ops::softmax_last_dim(&with_rows(large, &row())?)?;
            expect_rows_of(large, &y, &weights(&row()))
        }),
        ours("nn::RmsNorm", |large| {
            let ones = large.tensor(large.full::<bf16>(&[1.; WIDTH])?, WIDTH);
            let y = RmsNorm::new(ones, 1e-5).forward(&with_rows(large, &row())?)?;
            let size = mean(&row().map(|x| x * x)).sqrt();
            expect_rows_of(large, &y, &row().map(|x| x / size))
        }),
    ]
}

fn marked(large: &Large) -> Result<Tensor> {
    Ok(large.tensor(large.marked::<bf16>()?, large.elements))
}

fn with_rows(large: &Large, row: &[f64]) -> Result<Tensor> {
    let all = large.with_rows::<bf16>(large.elements, row)?;
    Ok(large.tensor(all, (large.rows(), WIDTH)))
}

fn expect_rows_of(large: &Large, tensor: &Tensor, row: &[f64]) -> Result<()> {
    for first in [0, large.elements - WIDTH] {
        for (at, value) in row.iter().enumerate() {
            large.expect_of::<bf16>(tensor, first + at, *value)?;
        }
    }
    Ok(())
}

/// The first and the last row, which end with what would be missing of them.
fn row() -> [f64; WIDTH] {
    let mut row = [0.; WIDTH];
    (row[0], row[1], row[WIDTH - 1]) = (1., -0.5, 2.);
    row
}

fn mean(row: &[f64]) -> f64 {
    row.iter().sum::<f64>() / row.len() as f64
}

fn sigmoid(x: f64) -> f64 {
    1. / (1. + (-x).exp())
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

fn slope_of_silu(x: f64) -> f64 {
    sigmoid(x) * (1. + x * (1. - sigmoid(x)))
}

fn weights(row: &[f64]) -> Vec<f64> {
    let sum: f64 = row.iter().map(|x| x.exp()).sum();
    row.iter().map(|x| x.exp() / sum).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

const SILU: u32 = 2;

fn activation(large: &Large) -> Result<()> {
    let (xs, mut ys) = (
        large.marked::<bf16>()?,
        large.zeros::<bf16>(large.elements)?,
    );
    let (len, zero) = (large.elements as u64, 0f64);
    launch!(large, code("activation"), "activation_bf16", each_element(large.elements);
        &len, &SILU, &zero, &zero, &xs, &mut ys);
    large.expect_marks(&ys, silu)
}

/// Codes, scales and their scales differ at both ends.
fn dequantize_nf4(large: &Large) -> Result<()> {
    let blocks = large.elements.div_ceil(64);
    let codes = large.with_ends::<u8>(large.elements / 2, [&[18.], &[52.]])?;
    let scales = large.with_ends::<u8>(blocks, [&[1.], &[2.]])?;
    let of_scales = large.with_ends::<f32>(blocks.div_ceil(256), [&[4.], &[8.]])?;
    let levels: Vec<_> = (0..16).chain(0..256).map(f64::from).collect();
    let (levels, mut ys) = (
        large.full::<f32>(&levels)?,
        large.zeros::<bf16>(large.elements)?,
    );
    // Rows of one element.
    let (len, one, first, mean) = (large.elements as u64, 1u64, 0u64, 0.5f32);
    launch!(large, code("dequantize"), "dequantize_nf4_bf16", each_element(large.elements);
        &len, &one, &one, &first, &mean, &codes, &scales, &of_scales, &levels, &mut ys);
    let last = large.elements - 2;
    for (at, expected) in [(0, 4.5), (1, 9.), (last, 3. * 16.5), (last + 1, 4. * 16.5)] {
        large.expect(&ys, at, expected)?;
    }
    Ok(())
}

/// Keys of all elements beside a pair of queries: neighbours by half a turn, whose cosine is -1.
fn rotate_both(large: &Large) -> Result<()> {
    let (q, k) = (large.full::<bf16>(&[1., 2.])?, large.marked::<bf16>()?);
    let (mut yq, mut yk) = (
        large.zeros::<bf16>(2)?,
        large.zeros::<bf16>(large.elements)?,
    );
    let (cos, sin) = (large.full::<bf16>(&[-1.])?, large.full::<bf16>(&[0.])?);
    let (pairs, one, on, off) = (large.elements as u64 / 2, 1u64, 1u32, 0u32);
    launch!(large, code("rotary"), "rotate_both_bf16", each_element(large.elements / 2 + 1);
        &one, &pairs, &one, &pairs, &one, &one, &on, &off, &off, &off, &cos, &sin, &q, &k, &mut yq, &mut yk);
    large.expect_marks(&yk, |x| -x)
}

/// Columns become rows.
fn copy_strided(large: &Large) -> Result<()> {
    let (xs, mut ys) = (
        large.marked::<bf16>()?,
        large.zeros::<bf16>(large.elements)?,
    );
    let (len, rows, width) = (large.elements as u64, large.rows() as u64, WIDTH as u64);
    let (zero, one) = (0u64, 1u64);
    launch!(large, code("strided"), "copy_strided_bf16", each_element(large.elements);
        &len, &one, &width, &rows, &zero, &zero, &one, &width, &xs, &mut ys);
    let marks = large.marks();
    let ends = [marks.first(), marks.last()].into_iter().flatten();
    ends.copied()
        .try_for_each(|(at, value)| large.expect(&ys, at, value))
}

fn silu_mul(large: &Large) -> Result<()> {
    let (gate, up) = (large.marked::<bf16>()?, large.marked::<bf16>()?);
    let mut ys = large.zeros::<bf16>(large.elements)?;
    let len = large.elements as u64;
    launch!(large, code("gated"), "silu_mul_bf16", each_element(large.elements);
        &len, &gate, &up, &mut ys);
    large.expect_marks(&ys, |x| silu(x) * x)
}

fn silu_mul_backward(large: &Large) -> Result<()> {
    let (gate, up) = (large.marked::<bf16>()?, large.marked::<bf16>()?);
    let dys = large.marked::<bf16>()?;
    let zeros = || large.zeros::<bf16>(large.elements);
    let (mut dgate, mut dup) = (zeros()?, zeros()?);
    let len = large.elements as u64;
    launch!(large, code("gated"), "silu_mul_backward_bf16", each_element(large.elements);
        &len, &gate, &up, &dys, &mut dgate, &mut dup);
    large.expect_marks(&dgate, |x| x * slope_of_silu(x) * x)?;
    large.expect_marks(&dup, |x| silu(x) * x)
}

fn activation_backward(large: &Large) -> Result<()> {
    let (xs, dys) = (large.marked::<bf16>()?, large.marked::<bf16>()?);
    let mut dxs = large.zeros::<bf16>(large.elements)?;
    let (len, zero) = (large.elements as u64, 0f64);
    launch!(large, code("activation"), "activation_backward_bf16", each_element(large.elements);
        &len, &SILU, &zero, &zero, &xs, &dys, &mut dxs);
    large.expect_marks(&dxs, |x| x * slope_of_silu(x))
}

/// Gates that are the marks, and 3 where they are.
fn pairs(large: &Large) -> Result<CudaSlice<bf16>> {
    let mut xs = large.zeros(2 * large.elements)?;
    for (at, value) in large.marks() {
        let gate = at + at / WIDTH * WIDTH;
        large.put(&mut xs, gate, value)?;
        large.put(&mut xs, gate + WIDTH, 3.)?;
    }
    Ok(xs)
}

fn swiglu(large: &Large) -> Result<()> {
    let (xs, mut ys) = (pairs(large)?, large.zeros::<bf16>(large.elements)?);
    let (len, width) = (large.elements as u64, WIDTH as u64);
    launch!(large, code("activation"), "swiglu_bf16", each_element(large.elements);
        &len, &width, &xs, &mut ys);
    large.expect_marks(&ys, |x| silu(x) * 3.)
}

fn swiglu_backward(large: &Large) -> Result<()> {
    let (xs, dys) = (pairs(large)?, large.marked::<bf16>()?);
    let mut dxs = large.zeros::<bf16>(2 * large.elements)?;
    let (len, width) = (large.elements as u64, WIDTH as u64);
    launch!(large, code("activation"), "swiglu_backward_bf16", each_element(large.elements);
        &len, &width, &xs, &dys, &mut dxs);
    for (at, x) in large.marks() {
        let gate = at + at / WIDTH * WIDTH;
        large.expect(&dxs, gate, 3. * slope_of_silu(x) * x)?;
        large.expect(&dxs, gate + WIDTH, silu(x) * x)?;
    }
    Ok(())
}

/// `Chunk` of attention.cu: one head, all keys of all rows.
fn chunk(large: &Large) -> [u64; 19] {
    let (rows, keys) = (large.rows() as u64, WIDTH as u64);
    let far = 1i64 << 40;
    let mut chunk = [0; 19];
    (chunk[0], chunk[1], chunk[2]) = (1, rows, keys);
    (chunk[4], chunk[5]) = (rows, keys);
    (chunk[6], chunk[7]) = (-far as u64, far as u64);
    // The mask has a row for each query.
    (chunk[11], chunk[12]) = (keys, 1);
    chunk[18] = WIDTH as u64;
    chunk
}

fn attention_weights(large: &Large) -> Result<()> {
    // Half of each sum.
    let half = row().map(|x| x / 2.);
    let mask = large.with_rows::<bf16>(large.elements, &half)?;
    let scores = large.with_rows::<f32>(large.elements, &half)?;
    let mut statistics = large.zeros::<f32>(2 * large.rows())?;
    let mut all = large.zeros::<bf16>(large.elements)?;
    launch!(large, code("attention"), "attention_weights_bf16", each_row(large.rows(), WIDTH);
        &chunk(large), &mask, &0u64, &scores, &mut statistics, &mut all);
    let sum: f64 = row().map(|x| (x - 2.).exp()).iter().sum();
    large.expect_rows(&statistics, &[2., 1. / sum])?;
    large.expect_rows(&all, &weights(&row()))
}

fn attention_gradients(large: &Large) -> Result<()> {
    let rows = large.rows();
    let sum: f64 = row().map(|x| (x - 2.).exp()).iter().sum();
    let statistics = large.with_rows::<f32>(2 * rows, &[2., 1. / sum])?;
    let outputs = large.with_rows::<bf16>(large.elements, &row())?;
    let scores = large.with_rows::<f32>(large.elements, &row())?;
    let (mut all, mut slopes) = (
        large.zeros::<bf16>(large.elements)?,
        large.zeros::<bf16>(large.elements)?,
    );
    launch!(large, code("attention"), "attention_gradients_bf16", each_row(rows, WIDTH);
        &chunk(large), &0u64, &0u64, &statistics, &outputs, &outputs, &scores, &scores, &mut all, &mut slopes);
    let (of_row, along) = (weights(&row()), dot(&row(), &row()));
    large.expect_rows(&all, &of_row)?;
    let slope = of_row.iter().zip(row()).map(|(w, x)| w * (x - along));
    large.expect_rows(&slopes, &slope.collect::<Vec<_>>())
}

fn add_to_rows(large: &Large) -> Result<()> {
    let (mut ys, bias) = (large.marked::<bf16>()?, large.full::<bf16>(&[4.; WIDTH])?);
    let (len, width) = (large.elements as u64, WIDTH as u64);
    launch!(large, code("bias"), "add_to_rows_bf16", each_element(large.elements);
        &len, &width, &bias, &mut ys);
    large.expect_marks(&ys, |x| x + 4.)
}

/// Each cell has half a row at either end of the tensor: so the first and the last cell have the first and the last elements.
fn cell_sums(large: &Large) -> Result<()> {
    let (cells, half) = (large.rows(), &row()[..WIDTH / 2]);
    let twice: Vec<_> = half.iter().map(|x| 2. * x).collect();
    let xs = large.with_ends::<bf16>(large.elements, [half, &twice])?;
    let dys = large.with_ends::<bf16>(large.elements, [half, &twice])?;
    let means = large.zeros::<f32>(cells)?;
    let mut sums = large.zeros::<f32>(2 * cells)?;
    // Threads take four elements at once, and a part may have more than there are.
    let (len, number, inner) = (WIDTH as u64 / 4, cells as u64, WIDTH as u64 / 2);
    launch!(large, code("cells"), "cell_sums_bf16", each_row(cells, WIDTH);
        &len, &number, &inner, &2048u64, &0u32, &means, &xs, &dys, &mut sums);
    for (cell, half) in [(0, half), (cells - 1, &twice)] {
        large.expect(&sums, cell, half.iter().sum())?;
        large.expect(&sums, cells + cell, dot(half, half))?;
    }
    Ok(())
}

/// Two rows of cells that lie side by side: the first cell has the first element, and the last cell the last one.
fn cell_sums_of_columns(large: &Large) -> Result<()> {
    let cells = large.elements / 2;
    let xs = large.with_ends::<bf16>(large.elements, [&[2.], &[3.]])?;
    let dys = large.with_ends::<bf16>(large.elements, [&[5.], &[7.]])?;
    let means = large.zeros::<f32>(cells)?;
    let mut sums = large.zeros::<f32>(2 * cells)?;
    launch!(large, code("cells"), "cell_sums_bf16", each_column(cells, 1);
        &2u64, &(cells as u64), &1u64, &64u64, &0u32, &means, &xs, &dys, &mut sums);
    for (cell, sum, product) in [(0, 5., 10.), (cells - 1, 7., 21.)] {
        large.expect(&sums, cell, sum)?;
        large.expect(&sums, cells + cell, product)?;
    }
    Ok(())
}

fn cell_scaling(large: &Large) -> Result<()> {
    let (xs, mut ys) = (
        large.marked::<bf16>()?,
        large.zeros::<bf16>(large.elements)?,
    );
    let [means, scales, shifts] = [1., 2., 4.].map(|value| large.full::<f32>(&[value; WIDTH]));
    let (len, cells, inner) = (large.elements as u64, WIDTH as u64, 1u64);
    launch!(large, code("cells"), "cell_scaling_bf16", each_element(large.elements);
        &len, &cells, &inner, &means?, &scales?, &shifts?, &xs, &mut ys);
    large.expect_marks(&ys, |x| (x - 1.) * 2. + 4.)
}

fn cell_gradient(large: &Large) -> Result<()> {
    let (xs, dys) = (large.marked::<bf16>()?, large.marked::<bf16>()?);
    let mut dxs = large.zeros::<bf16>(large.elements)?;
    let [means, scales, slopes, shifts] =
        [1., 2., 4., 8.].map(|value| large.full::<f32>(&[value; WIDTH]));
    let (len, cells, inner) = (large.elements as u64, WIDTH as u64, 1u64);
    launch!(large, code("cells"), "cell_gradient_bf16", each_element(large.elements);
        &len, &cells, &inner, &means?, &scales?, &slopes?, &shifts?, &xs, &dys, &mut dxs);
    large.expect_marks(&dxs, |x| x * 2. - (x - 1.) * 4. - 8.)
}

/// The last class in the last row, the first one in all others.
fn targets(large: &Large) -> Result<CudaSlice<i64>> {
    let mut targets = large.zeros(large.rows())?;
    large.put(&mut targets, large.rows() - 1, WIDTH as f64 - 1.)?;
    Ok(targets)
}

/// The first and the last row of logits.
fn logits() -> [[f64; WIDTH]; 2] {
    [row(), row().map(|x| 2. * x)]
}

/// The loss of the first and of the last row, and their slopes.
fn losses() -> [(f64, Vec<f64>); 2] {
    let [first, last] = logits();
    [(first, 0), (last, WIDTH - 1)].map(|(row, target)| {
        let mut slopes = weights(&row);
        let loss = -slopes[target].ln();
        slopes[target] -= 1.;
        (loss, slopes)
    })
}

fn expect_slopes<T: Value>(large: &Large, dxs: &CudaSlice<T>) -> Result<()> {
    for (first, (_, slopes)) in [0, large.elements - WIDTH].into_iter().zip(losses()) {
        for (at, slope) in slopes.iter().enumerate() {
            large.expect(dxs, first + at, *slope)?;
        }
    }
    Ok(())
}

fn expect_losses(large: &Large, found: &CudaSlice<f32>) -> Result<()> {
    let [(first, _), (last, _)] = losses();
    large.expect(found, 0, first)?;
    large.expect(found, large.rows() - 1, last)
}

/// The logarithm of the sum of exponentials below the largest one, of the first and of the last row.
fn logs() -> [f64; 2] {
    logits().map(|row| {
        let above = row[WIDTH - 1];
        row.map(|x| (x - above).exp()).iter().sum::<f64>().ln()
    })
}

fn cross_entropy(large: &Large) -> Result<()> {
    let (rows, targets, [first, last]) = (large.rows(), targets(large)?, logits());
    let xs = large.with_ends::<bf16>(large.elements, [&first, &last])?;
    let (mut losses, mut logs) = (large.zeros::<f32>(rows)?, large.zeros::<f32>(rows)?);
    launch!(large, code("cross_entropy"), "cross_entropy_bf16", each_row(rows, WIDTH);
        &(WIDTH as u64), &-100i64, &targets, &xs, &mut losses, &mut logs);
    expect_losses(large, &losses)?;
    let [first, last] = self::logs();
    large.expect(&logs, 0, first)?;
    large.expect(&logs, rows - 1, last)
}

fn cross_entropy_backward(large: &Large) -> Result<()> {
    let (rows, targets, [first, last]) = (large.rows(), targets(large)?, logits());
    let xs = large.with_ends::<bf16>(large.elements, [&first, &last])?;
    let [of_first, of_last] = logs();
    let logs = large.with_ends::<f32>(rows, [&[of_first], &[of_last]])?;
    let (factor, mut dxs) = (
        large.full::<f32>(&[1.])?,
        large.zeros::<bf16>(large.elements)?,
    );
    launch!(large, code("cross_entropy"), "cross_entropy_backward_bf16", each_row(rows, WIDTH);
        &(WIDTH as u64), &-100i64, &targets, &logs, &factor, &xs, &mut dxs);
    expect_slopes(large, &dxs)
}

fn linear_cross_entropy(large: &Large) -> Result<()> {
    let (rows, targets, [first, last]) = (large.rows(), targets(large)?, logits());
    let mut xs = large.with_ends::<f32>(large.elements, [&first, &last])?;
    let mut losses = large.zeros::<f32>(rows)?;
    launch!(large, code("linear_cross_entropy"), "linear_cross_entropy_f32", each_row(rows, WIDTH);
        &(WIDTH as u64), &-100i64, &0f32, &0f32, &0f32, &1u32, &targets, &0u64, &0u64, &mut xs, &mut losses);
    expect_losses(large, &losses)?;
    expect_slopes(large, &xs)
}

fn scale(large: &Large) -> Result<()> {
    let (factor, mut xs) = (large.full::<f32>(&[4.])?, large.marked::<f32>()?);
    launch!(large, code("linear_cross_entropy"), "scale_f32", each_element(large.elements);
        &(large.elements as u64), &factor, &mut xs);
    large.expect_marks(&xs, |x| 4. * x)
}

fn dropout(large: &Large) -> Result<()> {
    let (xs, mut ys) = (
        large.marked::<bf16>()?,
        large.zeros::<bf16>(large.elements)?,
    );
    // A thread has four elements. None is dropped.
    let (len, threshold, factor) = (large.elements as u64, 0u32, 2f64);
    launch!(large, code("dropout"), "dropout_bf16", each_element(large.elements / 4);
        &len, &1u64, &2u64, &threshold, &factor, &xs, &mut ys);
    large.expect_marks(&ys, |x| 2. * x)
}

/// One token more than the elements of 2^21 columns; the first and the last one take rows.
fn embedding_backward(large: &Large) -> Result<()> {
    let (width, rows) = (1 << 21, 2);
    let tokens = large.elements / width + 1;
    let mut numbers = large.full::<i64>(&vec![-1.; tokens])?;
    large.put(&mut numbers, 0, 0.)?;
    large.put(&mut numbers, tokens - 1, 1.)?;
    let [first, last] = logits();
    let dys = large.with_ends::<bf16>(tokens * width, [&first, &last])?;
    let mut sums = large.zeros::<bf16>(rows * width)?;
    launch!(large, code("embedding"), "embedding_backward_bf16", grid(rows, 256);
        &(tokens as u64), &(width as u64), &u64::MAX, &numbers, &dys, &mut sums);
    for (at, value) in first.iter().enumerate() {
        large.expect(&sums, at, *value)?;
    }
    for (at, value) in last.iter().enumerate() {
        large.expect(&sums, rows * width - WIDTH + at, *value)?;
    }
    Ok(())
}

fn embedding_backward_of_a_table(large: &Large) -> Result<()> {
    let (rows, tokens) = (large.rows(), 300);
    let mut numbers = large.full::<i64>(&vec![-1.; tokens])?;
    large.put(&mut numbers, 0, 0.)?;
    large.put(&mut numbers, tokens - 1, rows as f64 - 1.)?;
    let dys = large.with_rows::<bf16>(tokens * WIDTH, &row())?;
    let mut sums = large.zeros::<bf16>(large.elements)?;
    launch!(large, code("embedding"), "embedding_backward_bf16", grid(rows, 256);
        &(tokens as u64), &(WIDTH as u64), &u64::MAX, &numbers, &dys, &mut sums);
    large.expect_rows(&sums, &row())
}

/// A normalized row, and 1 / its deviation.
fn normal() -> ([f64; WIDTH], f64) {
    let middle = mean(&row());
    let scale = 1. / mean(&row().map(|x| (x - middle).powi(2))).sqrt();
    (row().map(|x| (x - middle) * scale), scale)
}

fn rows_forward(large: &Large) -> Result<()> {
    let xs = large.with_rows::<bf16>(large.elements, &row())?;
    let mut ys = large.zeros::<bf16>(large.elements)?;
    let [weight, bias] = [2., 4.].map(|value| large.full::<bf16>(&[value; WIDTH]));
    launch!(large, code("norm"), "rows_forward_bf16", each_row(large.rows(), WIDTH);
        &(WIDTH as u64), &1e-9f64, &1u32, &xs, &weight?, &bias?, &mut ys);
    large.expect_rows(&ys, &normal().0.map(|x| 2. * x + 4.))
}

fn rows_forward_sum(large: &Large) -> Result<()> {
    let half = row().map(|x| x / 2.);
    let xs = large.with_rows::<bf16>(large.elements, &half)?;
    let mut sums = large.zeros::<bf16>(large.elements)?;
    let mut ys = large.zeros::<bf16>(large.elements)?;
    let [weight, bias] = [2., 4.].map(|value| large.full::<bf16>(&[value; WIDTH]));
    launch!(large, code("norm"), "rows_forward_sum_bf16", each_row(large.rows(), WIDTH);
        &(WIDTH as u64), &1e-9f64, &1u32, &xs, &xs, &weight?, &bias?, &mut sums, &mut ys);
    large.expect_rows(&sums, &row())?;
    large.expect_rows(&ys, &normal().0.map(|x| 2. * x + 4.))
}

/// The gradients of normal rows.
fn upwards() -> [f64; WIDTH] {
    let mut upwards = [0.; WIDTH];
    (upwards[0], upwards[WIDTH - 1]) = (1., -3.);
    upwards
}

/// The gradients of rows.
fn slopes() -> [f64; WIDTH] {
    let ((normal, scale), upwards) = (normal(), upwards());
    let (along, middle) = (dot(&upwards, &normal) / WIDTH as f64, mean(&upwards));
    std::array::from_fn(|at| scale * (upwards[at] - middle - normal[at] * along))
}

fn rows_backward(large: &Large) -> Result<()> {
    let rows = large.rows();
    let xs = large.with_rows::<bf16>(large.elements, &row())?;
    let dys = large.with_rows::<bf16>(large.elements, &upwards())?;
    let mut dxs = large.zeros::<bf16>(large.elements)?;
    let (weight, mut none) = (large.full::<bf16>(&[1.; WIDTH])?, large.zeros::<f32>(1)?);
    launch!(large, code("norm"), "rows_backward_bf16", each_row(rows, WIDTH);
        &(WIDTH as u64), &(rows as u64), &1u64, &1e-9f64, &1u32, &0u32, &xs, &weight, &dys, &mut dxs, &mut none);
    large.expect_rows(&dxs, &slopes())
}

fn rows_backward_sum(large: &Large) -> Result<()> {
    let rows = large.rows();
    let xs = large.with_rows::<bf16>(large.elements, &row())?;
    let dys = large.with_rows::<bf16>(large.elements, &upwards())?;
    let mut dxs = large.zeros::<bf16>(large.elements)?;
    let (weight, mut none) = (large.full::<bf16>(&[1.; WIDTH])?, large.zeros::<f32>(1)?);
    launch!(large, code("norm"), "rows_backward_sum_bf16", each_row(rows, WIDTH);
        &(WIDTH as u64), &(rows as u64), &1u64, &1e-9f64, &1u32, &0u32, &xs, &weight, &dys, &xs, &mut dxs, &mut none);
    let both: Vec<_> = slopes()
        .iter()
        .zip(row())
        .map(|(dx, more)| dx + more)
        .collect();
    large.expect_rows(&dxs, &both)
}

/// Parts of a sum.
const BLOCKS: usize = 512;

/// Columns of a block of kernels/columns.cuh.
const COLUMNS: usize = 128;

fn rows_backward_with_sums(large: &Large) -> Result<()> {
    let width = large.elements.div_ceil(2 * BLOCKS) + 1;
    let len = BLOCKS * width;
    let xs = large.with_rows::<bf16>(len, &[1.])?;
    let dys = large.with_rows::<bf16>(len, &[3.])?;
    let (weight, mut dxs) = (large.zeros::<bf16>(width)?, large.zeros::<bf16>(len)?);
    let mut sums = large.zeros::<f32>(2 * len)?;
    // Each block has one row. The root of its mean of squares is that of eps.
    launch!(large, code("norm"), "rows_backward_bf16", each_row(BLOCKS, width);
        &(width as u64), &(BLOCKS as u64), &1u64, &1f64, &0u32, &1u32, &xs, &weight, &dys, &mut dxs, &mut sums);
    // Of the first and of the last row, the product with the normal element, and the element.
    for at in [0, len - 1, len, 2 * len - 1] {
        large.expect(&sums, at, 3.)?;
    }
    Ok(())
}

/// A grid of a block for each 128 columns in x.
fn each_column(width: usize, count: u32) -> LaunchConfig {
    let mut grid = grid(width.div_ceil(COLUMNS), 256);
    grid.grid_dim.1 = count;
    grid
}

fn sum_of_rows(large: &Large) -> Result<()> {
    let rows = large.rows();
    let of_part = rows.div_ceil(BLOCKS);
    let parts = rows.div_ceil(of_part);
    let xs = large.with_rows::<bf16>(large.elements, &row())?;
    let mut sums = large.zeros::<f32>(parts * WIDTH)?;
    launch!(large, code("sums"), "sum_of_rows_bf16", each_column(WIDTH, parts as u32);
        &(WIDTH as u64), &(rows as u64), &(of_part as u64), &xs, &mut sums);
    large.expect_rows(&sums, &row())
}

/// The first block has the first columns of the first sum, the last block the last columns of the last one.
fn add_parts(large: &Large) -> Result<()> {
    let width = large.elements.div_ceil(2 * BLOCKS) + 1;
    let parts = large.with_ends::<f32>(2 * BLOCKS * width, [&[3.], &[5.]])?;
    let (mut first, mut last) = (large.zeros::<bf16>(width)?, large.zeros::<bf16>(width)?);
    launch!(large, code("sums"), "add_parts_bf16", each_column(width, 2);
        &(width as u64), &(BLOCKS as u64), &parts, &mut first, &mut last);
    large.expect(&first, 0, 3.)?;
    large.expect(&last, width - 1, 5.)
}

fn softmax(large: &Large) -> Result<()> {
    let xs = large.with_rows::<bf16>(large.elements, &row())?;
    let mut ys = large.zeros::<bf16>(large.elements)?;
    launch!(large, code("softmax"), "softmax_bf16", each_row(large.rows(), WIDTH);
        &(WIDTH as u64), &0u32, &xs, &mut ys);
    large.expect_rows(&ys, &weights(&row()))
}

fn softmax_backward(large: &Large) -> Result<()> {
    let ys = large.with_rows::<bf16>(large.elements, &row())?;
    let mut dxs = large.zeros::<bf16>(large.elements)?;
    launch!(large, code("softmax"), "softmax_backward_bf16", each_row(large.rows(), WIDTH);
        &(WIDTH as u64), &0u32, &ys, &ys, &mut dxs);
    let along = dot(&row(), &row());
    large.expect_rows(&dxs, &row().map(|y| y * (y - along)))
}
