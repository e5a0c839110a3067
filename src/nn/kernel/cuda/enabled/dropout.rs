use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaView, PushKernelArg};
use candle_core::{CudaDevice, Result};

use super::{CudaElement, CudaKernel, Module, each_element, function, module};
use crate::nn::kernel::Kernel;
use crate::nn::ops::dropout::Mask;

const MODULE: Module = module!("dropout");

impl CudaKernel<1, 1> for Mask {
    fn cuda<T: CudaElement, O: CudaElement>(
        &self,
        device: &CudaDevice,
        [xs]: [CudaView<'_, T>; 1],
        [ys]: [&mut CudaSlice<O>; 1],
    ) -> Result<()> {
        let function = function::<T>(device, MODULE, Self::NAME)?;
        let len = xs.len();
        let mut launch = function.builder();
        launch.arg(&len).arg(&self.draw.seed).arg(&self.draw.call);
        launch.arg(&self.threshold).arg(&self.scale);
        launch.arg(&xs).arg(ys);
        // SAFETY: the arguments are those of the kernel in kernels/dropout.cu; both tensors have `len` elements.
        unsafe { launch.launch(each_element(len.div_ceil(4))) }.w()?;
        Ok(())
    }
}
