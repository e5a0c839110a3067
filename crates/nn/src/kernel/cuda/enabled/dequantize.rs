//! How parts of quantized weights are dequantized, in one launch.

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{CudaDevice, DType, Result, Shape, Tensor};

use super::launch::{Launch, Module, each_element, module};
use crate::kernel::mismatch;
use crate::quantized::Nf4;

const DEQUANTIZE: Module = module!("dequantize");

/// Some rows and columns of a matrix: of each the first one and how many.
pub type Part = [(usize, usize); 2];

/// A part of a weight (out, in), of whole blocks; `None` of a format without a kernel.
pub fn ggml_part(weight: &QTensor, [rows, columns]: Part, dtype: DType) -> Result<Option<Tensor>> {
    let format = weight.dtype();
    let name = match format {
        GgmlDType::Q4_0 => "dequantize_q4_0",
        GgmlDType::Q8_0 => "dequantize_q8_0",
        GgmlDType::Q4K => "dequantize_q4_k",
        GgmlDType::Q5K => "dequantize_q5_k",
        GgmlDType::Q6K => "dequantize_q6_k",
        _ => return Ok(None),
    };
    let (dims, of_block, size) = (
        weight.shape().dims2()?,
        format.block_size(),
        format.type_size(),
    );
    let stride = dims.1 / of_block * size;
    let is_within =
        is_within([rows, columns], dims) && dims.0 * stride <= weight.storage_size_in_bytes();
    let is_whole = [dims.1, columns.0, columns.1]
        .iter()
        .all(|of| of % of_block == 0);
    if !is_within || !is_whole {
        return Err(mismatch(name));
    }
    let device = weight.device();
    let (device, elements) = (device.as_cuda_device()?, rows.1 * columns.1);
    // (len, columns, stride, blocks, ys): `len` elements in rows of `columns`, whose blocks were checked to lie within the weight. It is borrowed
    // until the launch is on its stream, of which candle's guard tells other streams.
    let stream = device.cuda_stream();
    let (blocks, _reads) = weight.device_ptr_with_guard(&stream)?;
    let first = rows.0 * stride + columns.0 / of_block * size;
    let blocks = blocks as u64 + first as u64;
    let numbers = [elements as u64, columns.1 as u64, stride as u64, blocks];
    let launch = Launch::new(DEQUANTIZE, each_element(elements), numbers, [elements]);
    made(launch, name, device, dtype, &[], (rows.1, columns.1)).map(Some)
}

/// The same of a weight in NF4, of any columns.
pub fn nf4_part(weight: &Nf4, [rows, columns]: Part, dtype: DType) -> Result<Tensor> {
    const NAME: &str = "dequantize_nf4";
    let (_, width) = weight.dims();
    if !is_within([rows, columns], weight.dims()) {
        return Err(mismatch(NAME));
    }
    let (first, elements) = (rows.0 * width + columns.0, rows.1 * columns.1);
    // (len, columns, width, first, mean, codes, scales, scales of scales, levels, ys): of the elements of the rows up to the last there are two in a
    // byte of codes, 64 to a scale, and 64 · 256 to a scale of scales. The levels are 16 + 256.
    let end = (rows.0 + rows.1) * width;
    let blocks = end.div_ceil(Nf4::BLOCK);
    let counts = [
        end.div_ceil(2),
        blocks,
        blocks.div_ceil(Nf4::OF_SCALES),
        16 + 256,
        elements,
    ];
    let mean = u64::from(weight.mean.to_bits());
    let numbers = [elements, columns.1, width, first].map(|number| number as u64);
    let numbers = numbers.into_iter().chain([mean]);
    let launch = Launch::new(DEQUANTIZE, each_element(elements), numbers, counts);
    let sources = weight.tensors().map(Some);
    let device = weight.device();
    let shape = (rows.1, columns.1);
    made(
        launch,
        NAME,
        device.as_cuda_device()?,
        dtype,
        &sources,
        shape,
    )
}

fn is_within(part: Part, dims: (usize, usize)) -> bool {
    part.iter()
        .zip([dims.0, dims.1])
        .all(|((first, len), all)| first + len <= all)
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
