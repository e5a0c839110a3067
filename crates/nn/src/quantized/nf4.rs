use candle_core::{DType, Device, Error, Result, Tensor, bail};

use crate::kernel::{by_rows, no_kernels, on_all_threads, runs_on, slice_of};

const NAME: &str = "nf4";

/// The numbers that a code of four bits stands for: quantiles of the normal distribution (Dettmers et al. 2023, "QLoRA", appendix E).
#[allow(clippy::excessive_precision, reason = "as they are published")]
const NUMBERS: [f32; 16] = [
    -1.0,
    -0.696_192_800_998_687_7,
    -0.525_073_051_452_636_7,
    -0.394_917_488_098_144_53,
    -0.284_441_381_692_886_35,
    -0.184_773_430_228_233_34,
    -0.091_050_036_251_545_14,
    0.0,
    0.079_580_299_556_255_34,
    0.160_930_201_411_247_25,
    0.246_112_301_945_686_34,
    0.337_915_241_718_292_24,
    0.440_709_829_330_444_34,
    0.562_617_003_917_694_1,
    0.722_956_836_223_602_3,
    1.0,
];

/// A frozen weight (out, in) in NF4 with double quantization, 4.13 bits an element, as QLoRA's and bitsandbytes'.
///
/// Blocks of 64 elements of the flattened weight are multiples of their largest magnitude, in codes of four bits. The magnitudes less their
/// mean are coded in 8 bits, blocks of 256 as multiples of an f32. Codes and values are those of bitsandbytes; the 8-bit code is the nearest one,
/// as on its GPUs (its CPU code takes the second nearest for some in a thousand).
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::Module;
/// use candle_headroom_nn::quantized::{FrozenLinear, Nf4};
///
/// let weight = Tensor::randn(0f32, 1., (64, 32), &Device::Cpu)?; // [out, in]
/// let layer = FrozenLinear::new(Nf4::quantize(&weight, &Device::Cpu)?, None)?;
/// let x = Tensor::randn(0f32, 1., (4, 32), &Device::Cpu)?; // [samples, in]
/// assert_eq!(layer.forward(&x)?.dims(), [4, 64]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Nf4 {
    /// Two in each byte, the first in the higher bits.
    codes: Tensor,
    /// A code of 8 bits for each block.
    scales: Tensor,
    /// The f32 of each block of scales.
    of_scales: Tensor,
    /// The numbers of the codes of 4 bits, then of those of 8 bits.
    levels: Tensor,
    /// What is added to each scale.
    pub(crate) mean: f32,
    dims: (usize, usize),
}

impl Nf4 {
    /// Elements of a block.
    pub(crate) const BLOCK: usize = 64;
    /// Blocks whose scales are a block of their own.
    pub(crate) const OF_SCALES: usize = 256;

    /// Quantizes a weight (out, in) of floating-point numbers, those of f64 rounded to f32, onto a device.
    ///
    /// Besides the weight and the result, it takes 4 bytes for each block of 64 elements, the codes, and some MiB on the host.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::quantized::{FrozenWeight, Nf4};
    ///
    /// let weight = Tensor::ones((64, 128), DType::BF16, &Device::Cpu)?; // [out, in]
    /// let weight = FrozenWeight::from(Nf4::quantize(&weight, &Device::Cpu)?);
    /// assert_eq!(weight.dequantize()?.to_vec2::<f32>()?, vec![vec![1.; 128]; 64]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the weight is not a matrix, is empty, or has an element that is not finite.
    pub fn quantize(weight: &Tensor, device: &Device) -> Result<Self> {
        /// Elements that are f32 at a time.
        const AT_ONCE: usize = 1 << 20;
        let (dims, dtype) = (weight.dims2()?, weight.dtype());
        if !dtype.is_float() {
            return Err(Error::UnsupportedDTypeForOp(dtype, NAME).bt());
        }
        if weight.elem_count() == 0 {
            bail!("{NAME}: a weight of {dims:?} has no element to quantize");
        }
        if !runs_on(device) {
            return Err(no_kernels(NAME));
        }
        let (flat, len) = (weight.detach().flatten_all()?, weight.elem_count());
        let mut codes = vec![0; len.div_ceil(2)];
        let mut scales = vec![0.; len.div_ceil(Self::BLOCK)];
        let slices = codes.chunks_mut(AT_ONCE / 2);
        let slices = slices.zip(scales.chunks_mut(AT_ONCE / Self::BLOCK));
        for (index, (codes, scales)) in slices.enumerate() {
            let first = index * AT_ONCE;
            let values = flat.narrow(0, first, AT_ONCE.min(len - first))?;
            let values = values.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
            let (storage, layout) = values.storage_and_layout();
            quantize(slice_of(&storage, layout, NAME)?, codes, scales)?;
        }
        if let Some(block) = scales.iter().position(|scale| !scale.is_finite()) {
            let row = block * Self::BLOCK / dims.1;
            bail!("{NAME}: row {row} of a weight of {dims:?} has an element that is not finite");
        }
        let sum: f64 = scales.iter().map(|scale| f64::from(*scale)).sum();
        let mean = (sum / scales.len() as f64) as f32;
        let map = map();
        let (scales, of_scales) = quantize_scales(&scales, mean, &map);
        let on_device = |tensor: Result<Tensor>| tensor?.to_device(device);
        let host = &Device::Cpu;
        Ok(Self {
            codes: on_device(Tensor::from_vec(codes, len.div_ceil(2), host))?,
            scales: on_device(Tensor::from_vec(scales, len.div_ceil(Self::BLOCK), host))?,
            of_scales: on_device(Tensor::new(of_scales, host))?,
            levels: on_device(Tensor::new([&NUMBERS[..], &map].concat(), host))?,
            mean,
            dims,
        })
    }

    pub(crate) fn dims(&self) -> (usize, usize) {
        self.dims
    }

    pub(crate) fn device(&self) -> &Device {
        self.codes.device()
    }

    /// The codes, the scales, their scales, and the levels, as the kernel reads them.
    pub(crate) fn tensors(&self) -> [&Tensor; 4] {
        [&self.codes, &self.scales, &self.of_scales, &self.levels]
    }

    /// Rows on the CPU, from a number on, in f32. kernels/dequantize.cu has the same.
    pub(super) fn rows(&self, first: usize, len: usize) -> Result<Tensor> {
        let (_, width) = self.dims;
        let storages = self.tensors().map(Tensor::storage_and_layout);
        let [codes, scales, of_scales, levels] = storages.each_ref();
        let codes = slice_of::<u8>(&codes.0, codes.1, NAME)?;
        let scales = slice_of::<u8>(&scales.0, scales.1, NAME)?;
        let of_scales = slice_of::<f32>(&of_scales.0, of_scales.1, NAME)?;
        let (numbers, map) = slice_of::<f32>(&levels.0, levels.1, NAME)?.split_at(NUMBERS.len());
        let scale_of = |block: usize| {
            map[usize::from(scales[block])] * of_scales[block / Self::OF_SCALES] + self.mean
        };
        let mut ys = vec![0f32; len * width];
        by_rows(&mut ys, 1, |at, ys| {
            let at = first * width + at;
            let mut scale = scale_of(at / Self::BLOCK);
            for (at, y) in (at..).zip(ys) {
                if at.is_multiple_of(Self::BLOCK) {
                    scale = scale_of(at / Self::BLOCK);
                }
                let code = codes[at / 2] >> (if at.is_multiple_of(2) { 4 } else { 0 }) & 15;
                *y = numbers[usize::from(code)] * scale;
            }
        })?;
        Tensor::from_vec(ys, (len, width), &Device::Cpu)
    }
}

/// The codes of 4 bits and the scale of each block.
fn quantize(values: &[f32], codes: &mut [u8], scales: &mut [f32]) -> Result<()> {
    /// Blocks that a thread takes at a time.
    const BLOCKS: usize = 128;
    let values = values.chunks(BLOCKS * Nf4::BLOCK);
    let codes = codes.chunks_mut(BLOCKS * Nf4::BLOCK / 2);
    let bounds = bounds(&NUMBERS);
    let items = values.zip(codes).zip(scales.chunks_mut(BLOCKS));
    on_all_threads(items.collect(), &|_, ((values, codes), scales)| {
        let blocks = values.chunks(Nf4::BLOCK);
        let blocks = blocks.zip(codes.chunks_mut(Nf4::BLOCK / 2)).zip(scales);
        for ((values, codes), scale) in blocks {
            *scale = largest(values);
            let rest = values.len() < Nf4::BLOCK;
            let (size, factor) = (scale.max(1e-38), 1. / scale.max(1e-38));
            let code = |value: &f32| {
                // bitsandbytes divides in the last, shorter block.
                let part = if rest { value / size } else { value * factor };
                nearest(part, &bounds)
            };
            for (byte, pair) in codes.iter_mut().zip(values.chunks(2)) {
                let low = pair.get(1).map_or(nearest(0., &bounds), code);
                *byte = pair.first().map_or(0, code) << 4 | low;
            }
        }
        Ok(())
    })
}

/// The scales as multiples of the largest one of their block, in codes of 8 bits, and these largest ones.
fn quantize_scales(scales: &[f32], mean: f32, map: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let bounds = bounds(map);
    let blocks = scales.chunks(Nf4::OF_SCALES).map(|scales| {
        let scales: Vec<_> = scales.iter().map(|scale| scale - mean).collect();
        let size = largest(&scales);
        let factor = 1. / size.max(1e-38);
        let codes = scales
            .into_iter()
            .map(|scale| nearest(scale * factor, &bounds));
        (codes.collect::<Vec<_>>(), size)
    });
    let (codes, sizes): (Vec<_>, Vec<_>) = blocks.unzip();
    (codes.concat(), sizes)
}

/// The largest magnitude; NaN if there is one.
fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0., |largest: f32, value| {
        match value.abs() > largest || value.is_nan() {
            true => value.abs(),
            false => largest,
        }
    })
}

/// Where the numbers that are nearest to two neighbours of a code meet.
fn bounds(numbers: &[f32]) -> Vec<f32> {
    let pairs = numbers.iter().zip(numbers.iter().skip(1));
    pairs.map(|(low, high)| (low + high) / 2.).collect()
}

/// The code of the nearest number, of two the lower one, given their bounds.
fn nearest(value: f32, bounds: &[f32]) -> u8 {
    let value = value.clamp(-1., 1.);
    bounds.partition_point(|bound| *bound < value) as u8
}

/// bitsandbytes' dynamic map of 8 bits (Dettmers 2015, arXiv 1511.04561): in each of seven decades twice as many numbers as in the one below, in
/// the middles of equal parts, with both signs, 0, and 1. Parts end where PyTorch's `linspace` rounds them to.
fn map() -> Vec<f32> {
    let mut above = Vec::with_capacity(127);
    for (decade, end) in [1e-6f32, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.]
        .iter()
        .enumerate()
    {
        let parts = 1u16 << decade;
        let step = (1. - 0.1) / f32::from(parts);
        let bound = |index: u16| match index < parts.div_ceil(2) {
            true => step.mul_add(f32::from(index), 0.1),
            false => (-step).mul_add(f32::from(parts - index), 1.),
        };
        above.extend((0..parts).map(|index| end * ((bound(index) + bound(index + 1)) / 2.)));
    }
    let below = above.iter().rev().map(|number| -number);
    below
        .chain([0.])
        .chain(above.iter().copied())
        .chain([1.])
        .collect()
}
