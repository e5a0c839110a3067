//! How rows of quantized weights are dequantized, in one launch.

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{CudaDevice, DType, Result, Shape, Tensor};

use super::launch::{Launch, Module, each_element, module};
use crate::kernel::mismatch;
use crate::quantized::Nf4;

const DEQUANTIZE: Module = module!("dequantize");

/// Rows of a weight (out, in) from a number on; `None` of a format without a kernel.
pub fn ggml_rows(
    weight: &QTensor,
    (first, len): (usize, usize),
    dtype: DType,
) -> Result<Option<Tensor>> {
    let format = weight.dtype();
    let name = match format {
        GgmlDType::Q4_0 => "dequantize_q4_0",
        GgmlDType::Q8_0 => "dequantize_q8_0",
        GgmlDType::Q4K => "dequantize_q4_k",
        GgmlDType::Q5K => "dequantize_q5_k",
        GgmlDType::Q6K => "dequantize_q6_k",
        _ => return Ok(None),
    };
    let ((rows, width), of_block) = (weight.shape().dims2()?, format.block_size());
    let bytes = width / of_block * format.type_size();
    let is_within = first + len <= rows && rows * bytes <= weight.storage_size_in_bytes();
    if width % of_block != 0 || !is_within {
        return Err(mismatch(name));
    }
    let device = weight.device();
    let (device, elements) = (device.as_cuda_device()?, len * width);
    // (len, blocks, ys): `len` elements, whose blocks were checked to lie within the weight. It is borrowed until the launch is on its stream, of
    // which candle's guard tells other streams.
    let stream = device.cuda_stream();
    let (blocks, _reads) = weight.device_ptr_with_guard(&stream)?;
    let blocks = blocks as u64 + (first * bytes) as u64;
    let (grid, numbers) = (each_element(elements), [elements as u64, blocks]);
    let launch = Launch::new(DEQUANTIZE, grid, numbers, [elements]);
    made(launch, name, device, dtype, &[], (len, width)).map(Some)
}

/// The same of a weight in NF4.
pub fn nf4_rows(weight: &Nf4, (first, len): (usize, usize), dtype: DType) -> Result<Tensor> {
    const NAME: &str = "dequantize_nf4";
    let (rows, width) = weight.dims();
    if first + len > rows {
        return Err(mismatch(NAME));
    }
    let (first, elements) = (first * width, len * width);
    // (len, first, mean, codes, scales, scales of scales, levels, ys): of the elements up to first + len there are two in a byte of codes, 64 to
    // a scale, and 64 · 256 to a scale of scales. The levels are 16 + 256.
    let blocks = (first + elements).div_ceil(Nf4::BLOCK);
    let counts = [
        (first + elements).div_ceil(2),
        blocks,
        blocks.div_ceil(Nf4::OF_SCALES),
        16 + 256,
        elements,
    ];
    let mean = u64::from(weight.mean.to_bits());
    let numbers = [elements as u64, first as u64, mean];
    let launch = Launch::new(DEQUANTIZE, each_element(elements), numbers, counts);
    let sources = weight.tensors().map(Some);
    let device = weight.device();
    let shape = (len, width);
    made(
        launch,
        NAME,
        device.as_cuda_device()?,
        dtype,
        &sources,
        shape,
    )
}

fn made(
    launch: Launch,
    name: &'static str,
    device: &CudaDevice,
    dtype: DType,
    sources: &[Option<&Tensor>],
    shape: (usize, usize),
) -> Result<Tensor> {
    let [rows] = launch.make(
        name,
        device,
        dtype,
        sources,
        None,
        [(Shape::from(shape), dtype)],
    )?;
    Ok(rows)
}
