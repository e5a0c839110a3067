use candle_core::{Result, Tensor};

/// The elements of a vector, or the rows of a matrix, with zeros where `counted` is 0, whatever was there, also NaN.
pub fn zero_others(counted: &Tensor, values: &Tensor) -> Result<Tensor> {
    let shape = values.shape();
    let counted = match values.rank() {
        1 => counted.clone(),
        _ => counted.unsqueeze(1)?.broadcast_as(shape)?,
    };
    let zeros = Tensor::zeros((), values.dtype(), values.device())?.broadcast_as(shape)?;
    counted.where_cond(values, &zeros)
}
