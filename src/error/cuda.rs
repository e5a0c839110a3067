//! The error types of NVIDIA's libraries, as cudarc has them.

use std::error::Error as StdError;
use std::fmt::Debug;

use candle_core::cuda_backend::CudaError;
use candle_core::cuda_backend::cudarc::cublas::result::CublasError;
use candle_core::cuda_backend::cudarc::curand::result::CurandError;
use candle_core::cuda_backend::cudarc::driver::DriverError;
use candle_core::cuda_backend::cudarc::nvrtc::CompileError;
use candle_core::cuda_backend::cudarc::nvrtc::result::NvrtcError;

/// The name of the status code in an error of one of these types, empty if it has none; `None` for any other type.
pub(super) fn status(error: &(dyn StdError + 'static)) -> Option<String> {
    Some(if let Some(error) = error.downcast_ref::<CudaError>() {
        of_candle(error)
    } else if let Some(DriverError(code)) = error.downcast_ref() {
        name(code)
    } else if let Some(CublasError(code)) = error.downcast_ref() {
        name(code)
    } else if let Some(CurandError(code)) = error.downcast_ref() {
        name(code)
    } else if let Some(NvrtcError(code)) = error.downcast_ref() {
        name(code)
    } else if let Some(error) = error.downcast_ref() {
        of_compiler(error)
    } else {
        return None;
    })
}

fn of_candle(error: &CudaError) -> String {
    match error {
        CudaError::Cuda(DriverError(code))
        | CudaError::Load {
            cuda: DriverError(code),
            ..
        } => name(code),
        CudaError::Compiler(error) => of_compiler(error),
        CudaError::Cublas(CublasError(code)) => name(code),
        CudaError::Curand(CurandError(code)) => name(code),
        CudaError::MissingKernel { .. }
        | CudaError::UnsupportedDtype { .. }
        | CudaError::InternalError(_)
        | CudaError::MatMulNonContiguous { .. }
        | CudaError::UnexpectedDType { .. } => String::new(),
    }
}

fn of_compiler(error: &CompileError) -> String {
    match error {
        CompileError::CreationError(NvrtcError(code))
        | CompileError::CompileError {
            nvrtc: NvrtcError(code),
            ..
        }
        | CompileError::GetLogError(NvrtcError(code))
        | CompileError::GetPtxError(NvrtcError(code))
        | CompileError::DestroyError(NvrtcError(code)) => name(code),
    }
}

/// The bindings derive `Debug`, which writes the variant's name.
fn name(code: &impl Debug) -> String {
    format!("{code:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::cuda_backend::cudarc::driver::sys::CUresult;

    #[test]
    fn every_code_in_the_table_is_spelled_as_the_bindings_spell_it() {
        use CUresult::*;
        #[rustfmt::skip]
        let driver = [
            CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_STUB_LIBRARY,
            CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, CUDA_ERROR_DEVICE_UNAVAILABLE, CUDA_ERROR_NO_DEVICE,
            CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_DEVICE_NOT_LICENSED, CUDA_ERROR_INVALID_IMAGE,
            CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_INVALID_PTX,
            CUDA_ERROR_NVLINK_UNCORRECTABLE, CUDA_ERROR_JIT_COMPILER_NOT_FOUND, CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
            CUDA_ERROR_JIT_COMPILATION_DISABLED, CUDA_ERROR_CONTAINED, CUDA_ERROR_INVALID_SOURCE,
            CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, CUDA_ERROR_SHARED_OBJECT_INIT_FAILED,
            CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
            CUDA_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_ASSERT, CUDA_ERROR_HARDWARE_STACK_ERROR,
            CUDA_ERROR_ILLEGAL_INSTRUCTION, CUDA_ERROR_MISALIGNED_ADDRESS, CUDA_ERROR_INVALID_ADDRESS_SPACE,
            CUDA_ERROR_INVALID_PC, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_TENSOR_MEMORY_LEAK, CUDA_ERROR_NOT_PERMITTED,
            CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_SYSTEM_NOT_READY, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
            CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, CUDA_ERROR_MPS_CONNECTION_FAILED, CUDA_ERROR_MPS_RPC_FAILURE,
            CUDA_ERROR_MPS_SERVER_NOT_READY, CUDA_ERROR_MPS_MAX_CLIENTS_REACHED,
            CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, CUDA_ERROR_MPS_CLIENT_TERMINATED, CUDA_ERROR_UNKNOWN,
        ];
        // Newer than CUDA 13.0, so not in the bindings of a build with its toolkit.
        const NEWER: u32 = 919;
        let listed = crate::facts::CUDA.iter();
        let listed: Vec<_> = listed.filter(|status| status.number != NEWER).collect();
        assert_eq!(driver.len(), listed.len());
        for (code, status) in driver.into_iter().zip(listed) {
            assert_eq!(
                (name(&code).as_str(), code as u32),
                (status.name, status.number)
            );
        }
    }
}
