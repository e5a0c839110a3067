use candle_core::cuda_backend::cudarc::driver::{CudaView, DeviceRepr, LaunchConfig};
use candle_core::{Result, Tensor};

use crate::attention::chunks::chunk::Chunk;
use crate::attention::rule::{NAME, Rule};
use crate::kernel::Element;
use crate::kernel::cuda::{each_row, view};

/// Arguments of all kernels. `Chunk` in kernels/attention.cu has the same fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Geometry {
    heads: u64,
    queries: u64,
    keys: u64,
    first: u64,
    all_queries: u64,
    all_keys: u64,
    first_seen: i64,
    last_seen: i64,
    offset: i64,
    mask_strides: [u64; 4],
    softcap: f64,
    factor: f64,
    seed: u64,
    threshold: u64,
}

// SAFETY: plain numbers of 8 bytes, laid out as `Chunk` in kernels/attention.cu.
unsafe impl DeviceRepr for Geometry {}

pub struct Arguments<'a> {
    pub geometry: Geometry,
    mask: Option<&'a Tensor>,
    slopes: Option<&'a Tensor>,
    pub rows: usize,
    pub scores: usize,
}

impl<'a> Arguments<'a> {
    pub fn new(rule: &'a Rule, chunk: &Chunk) -> Self {
        let sizes = rule.sizes;
        let mut mask_strides = [0; 4];
        if let Some(mask) = &rule.mask {
            let of_dims = mask.dims().iter().zip(mask.stride());
            for (stride, (dim, of_dim)) in mask_strides.iter_mut().zip(of_dims) {
                *stride = if *dim == 1 { 0 } else { *of_dim as u64 };
            }
        }
        let dropout = rule.dropout.as_ref();
        let rows = sizes.batch * sizes.heads * chunk.queries;
        Self {
            geometry: Geometry {
                heads: sizes.heads as u64,
                queries: chunk.queries as u64,
                keys: chunk.keys as u64,
                first: chunk.first as u64,
                all_queries: sizes.queries as u64,
                all_keys: sizes.keys as u64,
                first_seen: rule.seen[0],
                last_seen: rule.seen[1],
                offset: rule.offset,
                mask_strides,
                softcap: rule.softcap.unwrap_or(0.),
                factor: dropout.map_or(0., |dropout| dropout.factor),
                seed: dropout.map_or(0, |dropout| dropout.seed),
                threshold: dropout.map_or(0, |dropout| dropout.threshold.into()),
            },
            mask: rule.mask.as_ref(),
            slopes: rule.slopes.as_ref(),
            rows,
            scores: rows * chunk.keys,
        }
    }

    /// Calls `launch` with the elements of the mask, and with ALiBi's slopes.
    pub fn with_bias<T: Element>(
        &self,
        launch: impl FnOnce(Option<&CudaView<'_, T>>, Option<&CudaView<'_, T::Sum>>) -> Result<()>,
    ) -> Result<()> {
        let mask = self.mask.map(Tensor::storage_and_layout);
        let mask = mask
            .as_ref()
            .map(|(storage, layout)| view(storage, layout, NAME));
        let slopes = self.slopes.map(Tensor::storage_and_layout);
        let slopes = slopes
            .as_ref()
            .map(|(storage, layout)| view(storage, layout, NAME));
        launch(mask.transpose()?.as_ref(), slopes.transpose()?.as_ref())
    }

    /// A block for each row.
    pub fn grid(&self) -> Result<LaunchConfig> {
        each_row(self.rows, self.geometry.keys as usize)
    }
}
