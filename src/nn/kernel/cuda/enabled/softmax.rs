use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaView, PushKernelArg};
use candle_core::{CudaDevice, Result};

use super::{CudaElement, CudaKernel, Module, each_row, function, module};
use crate::nn::kernel::Kernel;
use crate::nn::ops::softmax::SoftmaxBackward;
use crate::nn::ops::softmax_dim::{LogSoftmaxBackward, Softmax};

const MODULE: Module = module!("softmax");

impl CudaKernel<2, 1> for SoftmaxBackward {
    fn cuda<T: CudaElement, O: CudaElement>(
        &self,
        device: &CudaDevice,
        [ys, dys]: [CudaView<'_, T>; 2],
        [dxs]: [&mut CudaSlice<O>; 1],
    ) -> Result<()> {
        let function = function::<T>(device, MODULE, Self::NAME)?;
        let mut launch = function.builder();
        launch.arg(&self.width).arg(&ys).arg(&dys).arg(dxs);
        let rows = ys.len() / self.width.max(1);
        // SAFETY: the arguments are those of the kernel in kernels/softmax.cu; all tensors have this many rows.
        unsafe { launch.launch(each_row(rows, self.width)?) }.w()?;
        Ok(())
    }
}

impl CudaKernel<1, 1> for Softmax {
    fn cuda<T: CudaElement, O: CudaElement>(
        &self,
        device: &CudaDevice,
        [xs]: [CudaView<'_, T>; 1],
        [ys]: [&mut CudaSlice<O>; 1],
    ) -> Result<()> {
        let function = function::<T>(device, MODULE, Self::NAME)?;
        let logarithm = u32::from(self.logarithm);
        let mut launch = function.builder();
        launch.arg(&self.width).arg(&logarithm).arg(&xs).arg(ys);
        let rows = xs.len() / self.width.max(1);
        // SAFETY: the arguments are those of the kernel in kernels/softmax.cu; both tensors have this many rows.
        unsafe { launch.launch(each_row(rows, self.width)?) }.w()?;
        Ok(())
    }
}

impl CudaKernel<2, 1> for LogSoftmaxBackward {
    fn cuda<T: CudaElement, O: CudaElement>(
        &self,
        device: &CudaDevice,
        [ys, dys]: [CudaView<'_, T>; 2],
        [dxs]: [&mut CudaSlice<O>; 1],
    ) -> Result<()> {
        let function = function::<T>(device, MODULE, Self::NAME)?;
        let mut launch = function.builder();
        launch.arg(&self.width).arg(&ys).arg(&dys).arg(dxs);
        let rows = ys.len() / self.width.max(1);
        // SAFETY: the arguments are those of the kernel in kernels/softmax.cu; all tensors have this many rows.
        unsafe { launch.launch(each_row(rows, self.width)?) }.w()?;
        Ok(())
    }
}
