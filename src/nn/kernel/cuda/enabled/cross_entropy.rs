use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaView, PushKernelArg};
use candle_core::{CudaDevice, Result};

use super::{CudaElement, CudaKernel, Module, each_row, function, module, view};
use crate::nn::kernel::Kernel;
use crate::nn::loss::cross_entropy::{CrossEntropy, CrossEntropyBackward};

const MODULE: Module = module!("cross_entropy");

impl CudaKernel<1, 2> for CrossEntropy {
    fn cuda<T: CudaElement, O: CudaElement>(
        &self,
        device: &CudaDevice,
        [xs]: [CudaView<'_, T>; 1],
        [losses, logs]: [&mut CudaSlice<O>; 2],
    ) -> Result<()> {
        let function = function::<T>(device, MODULE, Self::NAME)?;
        let (targets, none) = self.targets.numbers()?;
        let (storage, layout) = targets.storage_and_layout();
        let targets = view::<i64>(&storage, layout, Self::NAME)?;
        let mut launch = function.builder();
        launch.arg(&self.width).arg(&none).arg(&targets).arg(&xs);
        launch.arg(losses).arg(logs);
        let rows = targets.len();
        // SAFETY: the arguments are those of the kernel in kernels/cross_entropy.cu; xs have so many rows of this width.
        unsafe { launch.launch(each_row(rows, self.width)?) }.w()?;
        Ok(())
    }
}

impl CudaKernel<2, 1> for CrossEntropyBackward {
    fn cuda<T: CudaElement, O: CudaElement>(
        &self,
        device: &CudaDevice,
        [xs, gradient]: [CudaView<'_, T>; 2],
        [dxs]: [&mut CudaSlice<O>; 1],
    ) -> Result<()> {
        let function = function::<T>(device, MODULE, Self::NAME)?;
        let (targets, none) = self.targets.numbers()?;
        let (storage, layout) = targets.storage_and_layout();
        let targets = view::<i64>(&storage, layout, Self::NAME)?;
        let (storage, layout) = self.logs.storage_and_layout();
        let logs = view::<T::Wide>(&storage, layout, Self::NAME)?;
        let mut launch = function.builder();
        launch.arg(&self.width).arg(&none).arg(&targets).arg(&logs);
        launch.arg(&xs).arg(&gradient).arg(dxs);
        let rows = targets.len();
        // SAFETY: the arguments are those of the kernel in kernels/cross_entropy.cu; xs and dxs have so many rows of this width.
        unsafe { launch.launch(each_row(rows, self.width)?) }.w()?;
        Ok(())
    }
}
