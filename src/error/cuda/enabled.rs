use std::error::Error as StdError;
use std::fmt::Debug;

use candle_core::cuda_backend::CudaError;
use candle_core::cuda_backend::cudarc::cublas::result::CublasError;
use candle_core::cuda_backend::cudarc::curand::result::CurandError;
use candle_core::cuda_backend::cudarc::driver::DriverError;
use candle_core::cuda_backend::cudarc::nvrtc::CompileError;
use candle_core::cuda_backend::cudarc::nvrtc::result::NvrtcError;

/// The name of the status code that an error of one of these types carries; empty where it carries none. `None` for any other
/// type.
pub(in crate::error) fn status(error: &(dyn StdError + 'static)) -> Option<String> {
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

/// The bindings derive `Debug`, which writes the enum's name and nothing else.
fn name(code: &impl Debug) -> String {
    format!("{code:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorExt;
    use candle_core::cuda_backend::cudarc::cublas::sys::cublasStatus_t;
    use candle_core::cuda_backend::cudarc::curand::sys::curandStatus_t;
    use candle_core::cuda_backend::cudarc::driver::sys::CUresult;
    use candle_core::cuda_backend::cudarc::nvrtc::sys::nvrtcResult;

    fn candle(error: impl Into<CudaError>) -> candle_core::Error {
        error.into().into()
    }

    #[test]
    fn each_library_s_exhaustion_is_found_by_type() {
        let out_of_memory = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let load = CudaError::Load {
            cuda: DriverError(out_of_memory),
            module_name: "reduce".to_owned(),
        };
        let nvrtc = NvrtcError(nvrtcResult::NVRTC_ERROR_OUT_OF_MEMORY);
        for error in [
            candle(DriverError(out_of_memory)),
            candle(CublasError(cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED)),
            candle(CurandError(curandStatus_t::CURAND_STATUS_ALLOCATION_FAILED)),
            candle(CompileError::GetPtxError(nvrtc)),
            candle(load),
            candle_core::Error::wrap(DriverError(out_of_memory)),
        ] {
            assert!(error.resource_exhausted().is_some(), "{error}");
            assert!(error.context("a user's").resource_exhausted().is_some());
        }
    }

    #[test]
    fn a_fault_is_found_by_type_and_another_status_is_nothing() {
        let fault = candle(DriverError(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
        assert_eq!(fault.device_fault().unwrap().code, 700);
        for other in [
            candle(DriverError(CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)),
            candle(CublasError(cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE)),
            candle(CudaError::MissingKernel {
                module_name: "CUDA_ERROR_OUT_OF_MEMORY".to_owned(),
            }),
        ] {
            assert!(other.resource_exhausted().is_none(), "{other}");
            assert!(other.device_fault().is_none(), "{other}");
        }
    }

    #[test]
    fn every_code_in_the_table_is_spelled_as_the_bindings_spell_it() {
        use crate::error::codes::{CODES, find};
        let driver = [
            CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE,
            CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
            CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
            CUresult::CUDA_ERROR_CONTAINED,
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
            CUresult::CUDA_ERROR_ASSERT,
            CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
            CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
            CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
            CUresult::CUDA_ERROR_INVALID_PC,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
            CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK,
            CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED,
        ];
        for code in driver {
            let found = find(&name(&code)).unwrap_or_else(|| panic!("{code:?} is not listed"));
            assert_eq!(found.number, code as u32, "{code:?}");
        }
        let listed = CODES.iter().filter(|code| code.name.starts_with("CUDA_"));
        assert_eq!(listed.count(), driver.len());
    }
}
