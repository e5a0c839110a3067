//! candle's kernels that layers, trainers and models call. A case's name is the kernel's, or the operation's where that has several. Of kernels
//! that load several elements at once (`cast`, `usilu`, `badd`) the last ones are not in the last block: only the first element and addresses are checked.

use candle_core::{D, DType, Result, Tensor};
use half::bf16;

use super::memory::Large;
use super::{Case, WIDTH, candles};

pub fn cases() -> Vec<Case> {
    vec![
        candles("copy of a contiguous tensor", |large| {
            large.expect_ends_of::<bf16>(&marked(large)?.copy()?, |x| x)
        }),
        candles("ucopy: contiguous()", |large| {
            let x = marked(large)?.reshape((WIDTH, large.rows()))?.t()?;
            expect_ends(large, &x.contiguous()?, [1., 3.])
        }),
        candles("cast", |large| {
            large.expect_of::<f32>(&marked(large)?.to_dtype(DType::F32)?, 0, 1.)
        }),
        candles("uneg", |large| {
            large.expect_ends_of::<bf16>(&marked(large)?.neg()?, |x| -x)
        }),
        candles("uexp", |large| {
            large.expect_ends_of::<bf16>(&marked(large)?.exp()?, f64::exp)
        }),
        candles("usilu", |large| {
            let y = marked(large)?.silu()?;
            large.expect_of::<bf16>(&y, 0, 1. / (1. + (-1f64).exp()))
        }),
        candles("urelu, f32", |large| {
            let x = large.tensor(large.marked::<f32>()?, large.elements);
            large.expect_ends_of::<f32>(&x.relu()?, |x| x.max(0.))
        }),
        candles("affine", |large| {
            large.expect_ends_of::<bf16>(&marked(large)?.affine(2., 1.)?, |x| 2. * x + 1.)
        }),
        candles("badd", |large| {
            let x = marked(large)?;
            large.expect_of::<bf16>(&(&x + &x)?, 0, 2.)
        }),
        candles("badd, f32", |large| {
            let x = large.tensor(large.marked::<f32>()?, large.elements);
            large.expect_of::<f32>(&(&x + &x)?, 0, 2.)
        }),
        candles("bmaximum", |large| {
            let x = marked(large)?;
            large.expect_ends_of::<bf16>(&x.maximum(&x)?, |x| x)
        }),
        candles("bmul, broadcast", |large| {
            let factor = large.tensor(large.full::<bf16>(&[2.; WIDTH])?, WIDTH);
            let x = marked(large)?.reshape((large.rows(), WIDTH))?;
            large.expect_ends_of::<bf16>(&x.broadcast_mul(&factor)?, |x| 2. * x)
        }),
        candles("gt", |large| {
            let x = marked(large)?;
            let zeros = large.tensor(large.zeros::<bf16>(large.elements)?, large.elements);
            large.expect_ends_of::<u8>(&x.gt(&zeros)?, |x| f64::from(x > 0.))
        }),
        candles("where", |large| {
            let x = marked(large)?;
            let holds = large.tensor(large.marked::<u8>()?, large.elements);
            // Negative marks are 0 as a byte, and so is a half.
            let y = holds.where_cond(&x, &(x.clone()))?;
            large.expect_ends_of::<bf16>(&y, |x| x)
        }),
        candles("const_set: ones", |large| {
            let x = Tensor::ones(large.elements, DType::BF16, &large.device())?;
            large.expect_ends_of::<bf16>(&x, |_| 1.)
        }),
        candles("copy2d: cat", |large| {
            let x = marked(large)?.reshape((large.rows(), WIDTH))?;
            let (a, b) = (x.narrow(1, 0, 8)?, x.narrow(1, 8, WIDTH - 8)?);
            let (a, b) = (a.contiguous()?, b.contiguous()?);
            let y = Tensor::cat(&[a, b], 1)?;
            expect_ends(large, &y, [1., 3.])
        }),
        candles("copy2d: slice_set", |large| {
            let shape = (large.rows(), WIDTH);
            let into = large.tensor(large.zeros::<bf16>(large.elements)?, shape);
            into.slice_set(&narrow_rows(large, 8)?, 1, 0)?;
            large.expect_of::<bf16>(&into, 0, 1.)?;
            large.expect_of::<bf16>(&into, large.elements - WIDTH + 7, 3.)
        }),
        candles("index_select: the rows of a table", |large| {
            let table = large.tensor(large.full::<bf16>(&[3.; 2 * WIDTH])?, (2, WIDTH));
            let rows = large.tensor(large.zeros::<u32>(large.rows())?, large.rows());
            let y = table.index_select(&rows, 0)?;
            expect_ends(large, &y, [3., 3.])
        }),
        candles("index_select: of a large table", |large| {
            let table = marked(large)?.reshape((large.rows(), WIDTH))?;
            let numbers = [0., large.rows() as f64 - 1.];
            let rows = large.tensor(large.full::<i64>(&numbers)?, 2);
            let y = table.index_select(&rows, 0)?;
            large.expect_of::<bf16>(&y, 0, 1.)?;
            large.expect_of::<bf16>(&y, 2 * WIDTH - 1, 3.)
        }),
        candles("gather", |large| {
            let rows = large.rows();
            let table = marked(large)?.reshape((rows, WIDTH))?;
            let mut numbers = large.zeros::<i64>(rows)?;
            large.put(&mut numbers, rows - 1, WIDTH as f64 - 1.)?;
            let y = table.gather(&large.tensor(numbers, (rows, 1)), 1)?;
            large.expect_of::<bf16>(&y, 0, 1.)?;
            large.expect_of::<bf16>(&y, rows - 1, 3.)
        }),
        candles("scatter_add", |large| {
            let rows = large.rows();
            let table = marked(large)?.reshape((rows, WIDTH))?;
            let mut numbers = large.zeros::<i64>(rows)?;
            large.put(&mut numbers, rows - 1, WIDTH as f64 - 1.)?;
            let source = large.tensor(large.with_rows::<bf16>(rows, &[2.])?, (rows, 1));
            let numbers = large.tensor(numbers, (rows, 1));
            let y = table.scatter_add(&numbers, &source, 1)?;
            expect_ends(large, &y, [3., 5.])
        }),
        candles("fast_sum: of rows", |large| {
            let y = marked(large)?
                .reshape((large.rows(), WIDTH))?
                .sum(D::Minus1)?;
            large.expect_of::<bf16>(&y, 0, 1.)?;
            large.expect_of::<bf16>(&y, large.rows() - 1, sum_of_last_row(large))
        }),
        candles("fast_max: of rows", |large| {
            let y = marked(large)?
                .reshape((large.rows(), WIDTH))?
                .max(D::Minus1)?;
            large.expect_of::<bf16>(&y, 0, 1.)?;
            large.expect_of::<bf16>(&y, large.rows() - 1, 3.)
        }),
        candles("softmax (candle_nn)", |large| {
            let y = candle_nn::ops::softmax_last_dim(&rows(large)?)?;
            let e = 1f64.exp();
            expect_row_ends(large, &y, e / (e + WIDTH as f64 - 1.))
        }),
        candles("rmsnorm (candle_nn)", |large| {
            let ones = large.tensor(large.full::<bf16>(&[1.; WIDTH])?, WIDTH);
            let y = candle_nn::ops::rms_norm(&rows(large)?, &ones, 1e-9)?;
            expect_row_ends(large, &y, 8.)
        }),
        candles("layernorm (candle_nn)", |large| {
            let ones = large.tensor(large.full::<bf16>(&[1.; WIDTH])?, WIDTH);
            let y = candle_nn::ops::layer_norm(&rows(large)?, &ones, &ones, 1e-9)?;
            expect_row_ends(large, &y, 1. + 63f64.sqrt())
        }),
        candles("rope", |large| rope(large, candle_nn::rotary_emb::rope)),
        candles("rope_i", |large| rope(large, candle_nn::rotary_emb::rope_i)),
        candles("rope_thd", |large| {
            let x = rows(large)?.reshape((1, large.rows(), 1, WIDTH))?;
            let (cos, sin) = tables(large)?;
            let y = candle_nn::rotary_emb::rope_thd(&x, &cos, &sin)?;
            expect_row_ends(large, &y, 2.)
        }),
        candles("max_pool2d", |large| {
            let x = marked(large)?.reshape((large.rows(), 1, 8, 8))?;
            let y = x.max_pool2d(8)?;
            large.expect_of::<bf16>(&y, 0, 1.)?;
            large.expect_of::<bf16>(&y, large.rows() - 1, 3.)
        }),
        candles("avg_pool2d", |large| {
            let x = marked(large)?.reshape((large.rows(), 1, 8, 8))?;
            let y = x.avg_pool2d(8)?;
            large.expect_of::<bf16>(&y, 0, 1. / 64.)?;
            large.expect_of::<bf16>(&y, large.rows() - 1, sum_of_last_row(large) / 64.)
        }),
        candles("upsample_nearest2d", |large| {
            let x = large.zeros::<bf16>(large.rows())?;
            let mut x = x;
            large.put(&mut x, 0, 1.)?;
            large.put(&mut x, large.rows() - 1, 3.)?;
            let x = large.tensor(x, (large.rows(), 1, 1, 1));
            expect_ends(large, &x.upsample_nearest2d(8, 8)?, [1., 3.])
        }),
    ]
}

fn marked(large: &Large) -> Result<Tensor> {
    Ok(large.tensor(large.marked::<bf16>()?, large.elements))
}

fn sum_of_last_row(large: &Large) -> f64 {
    let marks = large.marks();
    marks[marks.len() - 2..]
        .iter()
        .map(|(_, value)| value)
        .sum()
}

/// Rows of zeros, but for a 1 that the first and the last row begin with.
fn rows(large: &Large) -> Result<Tensor> {
    let mut row = [0.; WIDTH];
    row[0] = 1.;
    let all = large.with_rows::<bf16>(large.elements, &row)?;
    Ok(large.tensor(all, (large.rows(), WIDTH)))
}

/// As many rows of so many elements, whose first is 1 and whose last is 3.
fn narrow_rows(large: &Large, width: usize) -> Result<Tensor> {
    let len = large.rows() * width;
    let mut all = large.zeros::<bf16>(len)?;
    large.put(&mut all, 0, 1.)?;
    large.put(&mut all, len - 1, 3.)?;
    Ok(large.tensor(all, (large.rows(), width)))
}

fn expect_ends(large: &Large, of: &Tensor, ends: [f64; 2]) -> Result<()> {
    large.expect_of::<bf16>(of, 0, ends[0])?;
    large.expect_of::<bf16>(of, large.elements - 1, ends[1])
}

/// Compares the first elements of the first and the last row.
fn expect_row_ends(large: &Large, of: &Tensor, expected: f64) -> Result<()> {
    large.expect_of::<bf16>(of, 0, expected)?;
    large.expect_of::<bf16>(of, large.elements - WIDTH, expected)
}

/// Doubles what it should turn.
fn tables(large: &Large) -> Result<(Tensor, Tensor)> {
    let (rows, half) = (large.rows(), WIDTH / 2);
    let cos = large.with_rows::<bf16>(rows * half, &[2.; WIDTH / 2])?;
    let sin = large.zeros::<bf16>(rows * half)?;
    Ok((
        large.tensor(cos, (rows, half)),
        large.tensor(sin, (rows, half)),
    ))
}

fn rope(large: &Large, by: fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>) -> Result<()> {
    let x = rows(large)?.reshape((1, 1, large.rows(), WIDTH))?;
    let (cos, sin) = tables(large)?;
    expect_row_ends(large, &by(&x, &cos, &sin)?, 2.)
}
