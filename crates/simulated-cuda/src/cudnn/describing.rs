//! The entry points that create, set and destroy descriptors.

use super::descriptor::{Convolution, Descriptor, Tensor, add, data_type, remove, with};
use super::handle::{BAD_PARAM, DnnResult, NOT_SUPPORTED, answer};
use crate::status::{not_modelled, store};

/// The most elements that a tensor may reach over, as cuDNN documents it.
const MOST_ELEMENTS: u64 = 2 << 30;

/// Declares the entry points that create and destroy one kind of descriptor.
macro_rules! descriptors {
    ($($kind:ident: fn $create:ident(), fn $destroy:ident();)*) => {$(
        /// Creates a descriptor, which holds nothing yet.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $create(descriptor: *mut u64) -> u32 {
            answer(|| {
                if descriptor.is_null() {
                    return Err(BAD_PARAM);
                }
                // SAFETY: not null, so the caller passes a place for one handle.
                unsafe { store(descriptor, add(Descriptor::$kind(None))) }.map_err(|_| BAD_PARAM)
            })
        }

        /// Destroys a descriptor.
        #[unsafe(no_mangle)]
        pub extern "C" fn $destroy(descriptor: u64) -> u32 {
            answer(|| remove(descriptor, |known| matches!(known, Descriptor::$kind(_))))
        }
    )*};
}

descriptors! {
    Tensor: fn cudnnCreateTensorDescriptor(), fn cudnnDestroyTensorDescriptor();
    Filter: fn cudnnCreateFilterDescriptor(), fn cudnnDestroyFilterDescriptor();
    Convolution: fn cudnnCreateConvolutionDescriptor(), fn cudnnDestroyConvolutionDescriptor();
}

/// Numbers that must be at least `least`.
fn numbers<const N: usize>(given: [i32; N], least: i32) -> DnnResult<[usize; N]> {
    match given.iter().all(|&number| number >= least) {
        true => Ok(given.map(|number| number as usize)),
        false => Err(BAD_PARAM),
    }
}

/// The strides of a contiguous tensor, for a `cudnnTensorFormat_t`.
fn strides(format: u32, [_, channels, height, width]: [usize; 4]) -> DnnResult<[usize; 4]> {
    match format {
        0 => Ok([channels * height * width, height * width, width, 1]),
        1 => Ok([height * width * channels, 1, width * channels, channels]),
        2 => not_modelled("cuDNN with channels in vectors"),
        _ => Err(BAD_PARAM),
    }
}

fn described(kind: u32, sizes: [usize; 4], strides: [usize; 4]) -> DnnResult<Tensor> {
    let tensor = Tensor {
        kind: data_type(kind),
        sizes,
        strides,
    };
    match tensor.reach() <= MOST_ELEMENTS {
        true => Ok(tensor),
        false => Err(NOT_SUPPORTED),
    }
}

fn set_tensor(descriptor: u64, tensor: Tensor) -> DnnResult {
    with(descriptor, |known| match known {
        Descriptor::Tensor(place) => {
            *place = Some(tensor);
            Ok(())
        }
        _ => Err(BAD_PARAM),
    })
}

/// Describes a contiguous tensor.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetTensor4dDescriptor(
    descriptor: u64,
    format: u32,
    kind: u32,
    images: i32,
    channels: i32,
    height: i32,
    width: i32,
) -> u32 {
    answer(|| {
        let sizes = numbers([images, channels, height, width], 1)?;
        set_tensor(descriptor, described(kind, sizes, strides(format, sizes)?)?)
    })
}

/// Describes a tensor with any strides.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetTensor4dDescriptorEx(
    descriptor: u64,
    kind: u32,
    images: i32,
    channels: i32,
    height: i32,
    width: i32,
    image_stride: i32,
    channel_stride: i32,
    row_stride: i32,
    column_stride: i32,
) -> u32 {
    answer(|| {
        let sizes = numbers([images, channels, height, width], 1)?;
        let strides = [image_stride, channel_stride, row_stride, column_stride];
        set_tensor(descriptor, described(kind, sizes, numbers(strides, 0)?)?)
    })
}

/// Describes a filter.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetFilter4dDescriptor(
    descriptor: u64,
    kind: u32,
    format: u32,
    outputs: i32,
    inputs: i32,
    height: i32,
    width: i32,
) -> u32 {
    answer(|| {
        let sizes = numbers([outputs, inputs, height, width], 1)?;
        let filter = described(kind, sizes, strides(format, sizes)?)?;
        with(descriptor, |known| match known {
            Descriptor::Filter(place) => {
                *place = Some(filter);
                Ok(())
            }
            _ => Err(BAD_PARAM),
        })
    })
}

/// Describes a convolution, of one group.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetConvolution2dDescriptor(
    descriptor: u64,
    padding_height: i32,
    padding_width: i32,
    stride_height: i32,
    stride_width: i32,
    dilation_height: i32,
    dilation_width: i32,
    mode: u32,
    compute: u32,
) -> u32 {
    answer(|| {
        if mode > 1 {
            return Err(BAD_PARAM);
        }
        let convolution = Convolution {
            padding: numbers([padding_height, padding_width], 0)?,
            stride: numbers([stride_height, stride_width], 1)?,
            dilation: numbers([dilation_height, dilation_width], 1)?,
            flips: mode == 0,
            compute: data_type(compute),
            groups: 1,
        };
        with(descriptor, |known| match known {
            Descriptor::Convolution(place) => {
                *place = Some(convolution);
                Ok(())
            }
            _ => Err(BAD_PARAM),
        })
    })
}

/// Sets the number of groups of a convolution that is described.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetConvolutionGroupCount(descriptor: u64, groups: i32) -> u32 {
    answer(|| {
        let [groups] = numbers([groups], 1)?;
        with(descriptor, |known| match known {
            Descriptor::Convolution(Some(convolution)) => {
                convolution.groups = groups;
                Ok(())
            }
            _ => Err(BAD_PARAM),
        })
    })
}
