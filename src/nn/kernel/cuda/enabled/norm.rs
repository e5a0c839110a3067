use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaView, LaunchConfig, PushKernelArg};
use candle_core::{CudaDevice, Result};

use super::{CudaElement, CudaKernel, Module, each_row, function, module};
use crate::nn::kernel::Kernel;
use crate::nn::norm::rows::{RowsBackward, RowsForward};

const MODULE: Module = module!("norm");

impl CudaKernel<3, 1> for RowsForward {
    fn cuda<T: CudaElement, O: CudaElement>(
        &self,
        device: &CudaDevice,
        [xs, weight, bias]: [CudaView<'_, T>; 3],
        [ys]: [&mut CudaSlice<O>; 1],
    ) -> Result<()> {
        let function = function::<T>(device, MODULE, Self::NAME)?;
        let (width, center) = (self.0.width, u32::from(self.0.center));
        let mut launch = function.builder();
        launch.arg(&width).arg(&self.0.eps).arg(&center);
        launch.arg(&xs).arg(&weight).arg(&bias).arg(ys);
        let rows = xs.len() / width.max(1);
        // SAFETY: the arguments are those of the kernel in kernels/norm.cu; ys has as many rows as xs, the parameters one.
        unsafe { launch.launch(each_row(rows, width)?) }.w()?;
        Ok(())
    }
}

impl CudaKernel<3, 3> for RowsBackward {
    fn cuda<T: CudaElement, O: CudaElement>(
        &self,
        device: &CudaDevice,
        [xs, weight, dys]: [CudaView<'_, T>; 3],
        [dxs, dweight, dbias]: [&mut CudaSlice<O>; 3],
    ) -> Result<()> {
        let backward = function::<T>(device, MODULE, Self::NAME)?;
        let (width, center) = (self.rows.width, u32::from(self.rows.center));
        let rows = xs.len() / width.max(1);
        let rows_of_block = self.rows_of_block(rows);
        let blocks = rows.div_ceil(rows_of_block);
        let mut launch = backward.builder();
        launch.arg(&width).arg(&rows).arg(&rows_of_block);
        launch.arg(&self.rows.eps).arg(&center);
        launch.arg(&xs).arg(&weight).arg(&dys).arg(dxs);
        if !self.with_sums {
            launch.arg(&0u64);
            // SAFETY: the arguments are those of the kernel in kernels/norm.cu; the tensors have `rows` rows, the weight one. The
            // kernel does not write through the null pointer.
            unsafe { launch.launch(each_row(blocks, width)?) }.w()?;
            return Ok(());
        }
        // SAFETY: the kernel writes all of it before the next one reads it, on the same stream.
        let mut sums = unsafe { device.alloc::<T::Wide>(blocks * 2 * width)? };
        launch.arg(&mut sums);
        // SAFETY: as above; `sums` has two rows for each block.
        unsafe { launch.launch(each_row(blocks, width)?) }.w()?;

        let add = function::<T>(device, MODULE, "rows_sums")?;
        let mut launch = add.builder();
        launch
            .arg(&width)
            .arg(&blocks)
            .arg(&sums)
            .arg(dweight)
            .arg(dbias);
        let config = LaunchConfig {
            grid_dim: ((2 * width).div_ceil(32) as u32, 1, 1),
            block_dim: (256, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the arguments are those of the kernel in kernels/norm.cu; both outputs have one row.
        unsafe { launch.launch(config) }.w()?;
        Ok(())
    }
}

impl RowsBackward {
    /// More rows for each block make fewer parts of the sums. It does not depend on the device, so neither do the sums.
    fn rows_of_block(&self, rows: usize) -> usize {
        const LEAST_ROWS: usize = 8;
        const MOST_BLOCKS: usize = 512;
        match self.with_sums {
            true => rows.div_ceil(MOST_BLOCKS).max(LEAST_ROWS),
            false => 1,
        }
    }
}
