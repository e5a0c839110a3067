//! The computation of a forward convolution.

use super::descriptor::Tensor;
use super::shape::Shape;
use crate::cublas::number::Compute;

/// The addresses of a convolution's tensors.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    pub input: u64,
    pub filter: u64,
    pub output: u64,
}

/// All elements of a tensor, row after row.
///
/// # Safety
/// The tensor lies in memory at this address.
unsafe fn pack<C: Compute>(tensor: &Tensor, address: u64) -> Vec<C> {
    let [images, channels, height, width] = tensor.sizes;
    let mut packed = Vec::with_capacity(images * channels * height * width);
    for image in 0..images {
        for channel in 0..channels {
            for row in 0..height {
                for column in 0..width {
                    let at = tensor.at(address, [image, channel, row, column]);
                    // SAFETY: within the tensor.
                    packed.push(unsafe { tensor.kind.read(at) });
                }
            }
        }
    }
    packed
}

/// The part of an output's line whose tap lies within the input, and the input's place for the first of it.
struct Line {
    from: usize,
    to: usize,
    first: usize,
}

impl Line {
    /// For a tap at this distance from the start of the padded input.
    fn new(outputs: usize, inputs: usize, stride: usize, padding: usize, offset: usize) -> Line {
        let from = padding.saturating_sub(offset).div_ceil(stride);
        // The first output whose tap is behind the input's end.
        let to = (inputs + padding).saturating_sub(offset).div_ceil(stride);
        let to = to.min(outputs);
        Line {
            from: from.min(to),
            to,
            first: (from * stride + offset).saturating_sub(padding),
        }
    }
}

/// Adds what one channel of the input gives to one channel of the output.
fn add_channel<C: Compute>(shape: &Shape, input: &[C], filter: &[C], sums: &mut [C]) {
    let [.., height, width] = shape.filter.sizes;
    let [.., rows_in, columns_in] = shape.input.sizes;
    let [.., rows, columns] = shape.output.sizes;
    let convolution = &shape.convolution;
    let line = |axis: usize, outputs, inputs, tap: usize| {
        let offset = tap * convolution.dilation[axis];
        let (stride, padding) = (convolution.stride[axis], convolution.padding[axis]);
        Line::new(outputs, inputs, stride, padding, offset)
    };
    for (tap, &weight) in filter.iter().enumerate() {
        let tap = match convolution.flips {
            true => height * width - 1 - tap,
            false => tap,
        };
        let down = line(0, rows, rows_in, tap / width);
        let across = line(1, columns, columns_in, tap % width);
        for row in down.from..down.to {
            let from = down.first + (row - down.from) * convolution.stride[0];
            let from = input[from * columns_in..][..columns_in].iter();
            let to = &mut sums[row * columns..][across.from..across.to];
            for (sum, &value) in to
                .iter_mut()
                .zip(from.skip(across.first).step_by(convolution.stride[1]))
            {
                *sum += weight * value;
            }
        }
    }
}

/// Computes `output = alpha · convolution + beta · output`. The old output is not read when `beta` is zero.
///
/// # Safety
/// The tensors lie in memory at these places.
pub unsafe fn compute<C: Compute>(shape: &Shape, places: Places, alpha: C, beta: C) {
    let [outputs, inputs, height, width] = shape.filter.sizes;
    let [images, channels, rows_in, columns_in] = shape.input.sizes;
    let [.., rows, columns] = shape.output.sizes;
    // SAFETY: by contract, for both.
    let (input, filter) = unsafe {
        (
            pack::<C>(&shape.input, places.input),
            pack::<C>(&shape.filter, places.filter),
        )
    };
    let (plane, taps) = (rows_in * columns_in, height * width);
    let mut sums = vec![C::default(); rows * columns];
    for (image, output) in
        (0..images).flat_map(|image| (0..outputs).map(move |output| (image, output)))
    {
        sums.fill(C::default());
        let group = output / (outputs / shape.convolution.groups);
        for channel in 0..inputs {
            let from = (image * channels + group * inputs + channel) * plane;
            let weights = (output * inputs + channel) * taps;
            add_channel(
                shape,
                &input[from..][..plane],
                &filter[weights..][..taps],
                &mut sums,
            );
        }
        for (at, &sum) in sums.iter().enumerate() {
            let kind = shape.output.kind;
            let at = shape
                .output
                .at(places.output, [image, output, at / columns, at % columns]);
            let mut value = alpha * sum;
            if beta != C::default() {
                // SAFETY: within the output, by contract.
                value += beta * unsafe { kind.read::<C>(at) };
            }
            // SAFETY: within the output, by contract.
            unsafe { kind.write(at, value) };
        }
    }
}
