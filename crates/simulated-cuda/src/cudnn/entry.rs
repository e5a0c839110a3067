//! The entry points of forward convolutions.

use super::algorithm::{COUNT, Performance, performances, workspace};
use super::convolution::{Places, compute};
use super::handle::{BAD_PARAM, answer, begin, check};
use super::shape::Shape;
use crate::counts;
use crate::cublas::number::DataType;
use crate::status::store;

/// The number of algorithms.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetConvolutionForwardAlgorithmMaxCount(
    handle: u64,
    count: *mut i32,
) -> u32 {
    answer(|| {
        check(handle)?;
        // SAFETY: null, or the caller passes a place for one number.
        unsafe { store(count, COUNT as i32) }.map_err(|_| BAD_PARAM)
    })
}

/// Lists algorithms, best first. Those that are not modelled come last, with a status of their own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetConvolutionForwardAlgorithm_v7(
    handle: u64,
    input: u64,
    filter: u64,
    convolution: u64,
    output: u64,
    requested: i32,
    returned: *mut i32,
    results: *mut Performance,
) -> u32 {
    answer(|| {
        let shape = Shape::read(input, filter, convolution, output)?;
        check(handle)?;
        let requested = usize::try_from(requested).map_err(|_| BAD_PARAM)?;
        if requested == 0 || results.is_null() {
            return Err(BAD_PARAM);
        }
        let count = requested.min(COUNT as usize);
        // SAFETY: null, or the caller passes a place for one number.
        unsafe { store(returned, count as i32) }.map_err(|_| BAD_PARAM)?;
        for (index, result) in performances(&shape).into_iter().take(count).enumerate() {
            // SAFETY: not null, and the caller has room for as many as it requests.
            unsafe { results.add(index).write_unaligned(result) };
        }
        Ok(())
    })
}

/// The bytes of workspace that an algorithm needs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetConvolutionForwardWorkspaceSize(
    handle: u64,
    input: u64,
    filter: u64,
    convolution: u64,
    output: u64,
    algorithm: u32,
    bytes: *mut usize,
) -> u32 {
    answer(|| {
        let shape = Shape::read(input, filter, convolution, output)?;
        check(handle)?;
        let needed = workspace(&shape, algorithm)? as usize;
        // SAFETY: null, or the caller passes a place for one number.
        unsafe { store(bytes, needed) }.map_err(|_| BAD_PARAM)
    })
}

/// A forward convolution. The scalars are `f64` for tensors of `f64`, and otherwise `f32`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnConvolutionForward(
    handle: u64,
    alpha: u64,
    input_descriptor: u64,
    input: u64,
    filter_descriptor: u64,
    filter: u64,
    convolution: u64,
    algorithm: u32,
    space: u64,
    space_bytes: usize,
    beta: u64,
    output_descriptor: u64,
    output: u64,
) -> u32 {
    answer(|| {
        if [alpha, input, filter, beta, output].contains(&0) {
            return Err(BAD_PARAM);
        }
        let shape = Shape::read(
            input_descriptor,
            filter_descriptor,
            convolution,
            output_descriptor,
        )?;
        let needed = workspace(&shape, algorithm)?;
        if needed > space_bytes as u64 {
            return Err(BAD_PARAM);
        }
        let operands = [
            (input, shape.input.bytes()),
            (filter, shape.filter.bytes()),
            (output, shape.output.bytes()),
            (space, needed),
        ];
        let Some(device) = begin(handle, "cudnnConvolutionForward", &operands)? else {
            return Ok(());
        };
        counts::library(shape.flops(), shape.bytes());
        if !device.does(shape.flops()) {
            return Ok(());
        }
        let places = Places {
            input,
            filter,
            output,
        };
        // SAFETY: the tensors were just checked, and stay live while the device is locked; the caller passes readable scalars.
        unsafe {
            if shape.input.kind == DataType::F64 {
                compute::<f64>(
                    &shape,
                    places,
                    DataType::F64.read(alpha),
                    DataType::F64.read(beta),
                );
            } else {
                compute::<f32>(
                    &shape,
                    places,
                    DataType::F32.read(alpha),
                    DataType::F32.read(beta),
                );
            }
        }
        Ok(())
    })
}
