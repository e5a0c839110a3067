//! A convolution together with the tensors that it is applied to.

use super::descriptor::{self, Convolution, Tensor};
use super::handle::{BAD_PARAM, DnnResult, NOT_SUPPORTED};
use crate::cublas::number::DataType::{self, Bf16, F16, F32, F64};

/// A forward convolution whose descriptors fit each other.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub input: Tensor,
    pub filter: Tensor,
    pub output: Tensor,
    pub convolution: Convolution,
}

/// The sums that cuDNN has for each type of elements.
const SUPPORTED: [(DataType, DataType); 5] =
    [(F32, F32), (F64, F64), (F16, F16), (F16, F32), (Bf16, F32)];

impl Shape {
    /// Reads the descriptors of a call.
    pub fn read(input: u64, filter: u64, convolution: u64, output: u64) -> DnnResult<Shape> {
        let shape = Shape {
            input: descriptor::tensor(input)?,
            filter: descriptor::filter(filter)?,
            output: descriptor::tensor(output)?,
            convolution: descriptor::convolution(convolution)?,
        };
        let kind = shape.input.kind;
        let [outputs, inputs, ..] = shape.filter.sizes;
        let groups = shape.convolution.groups;
        let fits = shape.filter.kind == kind
            && shape.output.kind == kind
            && inputs * groups == shape.input.sizes[1]
            && outputs.is_multiple_of(groups)
            && shape.expected() == Some(shape.output.sizes);
        if !fits {
            return Err(BAD_PARAM);
        }
        match SUPPORTED.contains(&(kind, shape.convolution.compute)) {
            true => Ok(shape),
            false => Err(NOT_SUPPORTED),
        }
    }

    /// A multiplication and an addition for each element of the output and each tap of the filter, padding included.
    pub fn flops(&self) -> u64 {
        let [_, taps @ ..] = self.filter.sizes;
        let sizes = taps.iter().chain(&self.output.sizes);
        sizes.fold(2, |flops: u64, &size| flops.saturating_mul(size as u64))
    }

    /// The bytes of the three tensors' elements.
    pub fn bytes(&self) -> u64 {
        let tensors = [self.input, self.filter, self.output];
        let bytes = tensors.map(|tensor| {
            let elements: usize = tensor.sizes.iter().product();
            elements as u64 * tensor.kind.bytes()
        });
        bytes.iter().sum()
    }

    /// The output's sizes, if the filter fits into the padded input.
    fn expected(&self) -> Option<[usize; 4]> {
        let Convolution {
            padding,
            stride,
            dilation,
            ..
        } = self.convolution;
        let along = |axis: usize| {
            let padded = self.input.sizes[axis + 2] + 2 * padding[axis];
            let reach = (self.filter.sizes[axis + 2] - 1) * dilation[axis] + 1;
            Some(padded.checked_sub(reach)? / stride[axis] + 1)
        };
        Some([
            self.input.sizes[0],
            self.filter.sizes[0],
            along(0)?,
            along(1)?,
        ])
    }
}
