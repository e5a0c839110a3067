//! Normalization of rows, and of cells such as the channels of a picture.

pub mod cells;
pub mod groups;
pub mod rows;

use candle_core::{Error, Result, Tensor};

use super::graph::{Backward, Gradients};
use super::kernel::rows_at_once;
pub use super::kernel::sum_type as statistics_type;

/// Number of rows of `width` elements that are summed together, before these sums are added up. It does not depend on the number of
/// threads, so neither do the sums.
fn rows_of_part(rows: usize, width: usize) -> usize {
    const MOST_PARTS: usize = 64;
    rows_at_once(width).max(rows.div_ceil(MOST_PARTS))
}

/// The gradients of an operation without output.
pub fn zeros<const N: usize>(given: &Backward<N>) -> Result<Gradients<N>> {
    let mut gradients = [const { None }; N];
    for ((gradient, input), needs) in gradients.iter_mut().zip(&given.inputs).zip(given.needs) {
        if needs {
            *gradient = Some(input.zeros_like()?);
        }
    }
    Ok(gradients)
}

/// Fails if a parameter has another type than the input.
pub fn check_type(op: &'static str, xs: &Tensor, parameter: &Tensor) -> Result<()> {
    if xs.dtype() == parameter.dtype() {
        return Ok(());
    }
    let (lhs, rhs) = (xs.dtype(), parameter.dtype());
    Err(Error::DTypeMismatchBinaryOp { lhs, rhs, op }.bt())
}

/// The compositions for other devices against the kernels.
#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Result, Tensor};

    use super::cells::{CellGradient, CellMoments, CellScaling, CellSums, Cells};
    use super::rows::{Rows, RowsBackward, RowsForward};
    use crate::nn::kernel::{Kernel, run};

    fn agree<K: Kernel<IN, OUT>, const IN: usize, const OUT: usize>(
        kernel: &K,
        inputs: [&Tensor; IN],
    ) -> Result<()> {
        for (found, expected) in kernel.composed(inputs)?.iter().zip(&run(kernel, inputs)?) {
            assert_eq!(
                (found.dims(), found.dtype()),
                (expected.dims(), expected.dtype())
            );
            let off = (found - expected)?
                .to_dtype(DType::F64)?
                .abs()?
                .flatten_all()?;
            let off = off.to_vec1::<f64>()?.into_iter().fold(0., f64::max);
            // Values of at most some hundreds, in f32 or f64.
            assert!(off < 1e-3, "{}: {off} off", K::NAME);
        }
        Ok(())
    }

    fn normal(shape: &[usize], dtype: DType) -> Result<Tensor> {
        Tensor::randn(0f32, 1., shape, &Device::Cpu)?.to_dtype(dtype)
    }

    #[test]
    fn compositions_of_rows_agree_with_the_kernels() -> Result<()> {
        for (dtype, center) in [(DType::F32, true), (DType::F32, false), (DType::F64, true)] {
            let rows = Rows {
                width: 37,
                eps: 1e-3,
                center,
            };
            let (xs, dys) = (normal(&[4, 5, 37], dtype)?, normal(&[4, 5, 37], dtype)?);
            let (weight, bias) = (normal(&[37], dtype)?, normal(&[37], dtype)?);
            agree(&RowsForward(rows), [&xs, &weight, &bias])?;
            for with_sums in [true, false] {
                agree(&RowsBackward { rows, with_sums }, [&xs, &weight, &dys])?;
            }
        }
        Ok(())
    }

    #[test]
    fn compositions_of_cells_agree_with_the_kernels() -> Result<()> {
        for (dtype, inner) in [(DType::F32, 9), (DType::F64, 9), (DType::F32, 1)] {
            let cells = Cells {
                outer: 3,
                cells: 5,
                inner,
            };
            let (xs, dys) = (
                normal(&[3, 5, inner], dtype)?,
                normal(&[3, 5, inner], dtype)?,
            );
            let value = || normal(&[5], dtype);
            let (mean, scale, slope, shift) = (value()?, value()?, value()?, value()?);
            for center in [true, false] {
                agree(&CellMoments { cells, center }, [&xs])?;
            }
            agree(
                &CellSums {
                    cells,
                    mean: mean.clone(),
                },
                [&xs, &dys],
            )?;
            let (of_mean, of_scale, of_shift) = (mean.clone(), scale.clone(), shift.clone());
            let scaling = CellScaling {
                cells,
                mean: of_mean,
                scale: of_scale,
                shift: of_shift,
            };
            agree(&scaling, [&xs])?;
            agree(
                &CellGradient {
                    cells,
                    mean,
                    scale,
                    slope,
                    shift,
                },
                [&xs, &dys],
            )?;
        }
        Ok(())
    }
}
