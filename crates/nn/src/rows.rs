//! Products of linear layers, over the rows of inputs of any number of dimensions.

use candle_core::{D, Result, Tensor};

use super::kernel::dense;

/// x · Wᵀ, as candle computes it for a contiguous x.
///
/// candle multiplies a strided x of three or four dimensions with a broadcast weight. On the CPU it then takes rows that lie transposed
/// for rows that follow each other, and the product is wrong (0.11.1).
pub fn product(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    // On other devices candle multiplies some strided matrices only.
    let (x, weight) = match x.device().is_cpu() && x.rank() == 2 {
        true => (x.clone(), weight.clone()),
        false => (dense("linear", x)?, dense("linear", weight)?),
    };
    let mut dims = x.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = weight.dim(0)?;
    }
    let product = x.flatten_to(D::Minus2)?.matmul(&weight.t()?)?;
    product.reshape(dims)
}

/// All but the last dimension as one, contiguous.
pub fn rows(tensor: &Tensor) -> Result<Tensor> {
    dense("linear", tensor)?.flatten_to(D::Minus2)
}

/// Writes rows into a matrix of zeros, which the first of them makes.
pub fn fill(whole: &mut Option<Tensor>, rows: usize, start: usize, part: &Tensor) -> Result<()> {
    let whole = match whole {
        Some(whole) => whole,
        None => {
            let shape = (rows, part.dim(1)?);
            whole.insert(Tensor::zeros(shape, part.dtype(), part.device())?)
        }
    };
    whole.slice_set(&dense("fill", part)?, 0, start)
}
