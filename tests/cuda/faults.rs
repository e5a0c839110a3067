//! Promise 4 on CUDA: a device that is lost at any launch of a step is a typed error, never retried, and no panic.

use candle_core::cuda_backend::CudaError;
use candle_core::cuda_backend::cudarc::cublas::result::CublasError;
use candle_core::cuda_backend::cudarc::cublas::sys::cublasStatus_t;
use candle_core::cuda_backend::cudarc::curand::result::CurandError;
use candle_core::cuda_backend::cudarc::curand::sys::curandStatus_t;
use candle_core::cuda_backend::cudarc::driver::DriverError;
use candle_core::cuda_backend::cudarc::driver::sys::CUresult;
use candle_core::cuda_backend::cudarc::nvrtc::CompileError;
use candle_core::cuda_backend::cudarc::nvrtc::result::NvrtcError;
use candle_core::cuda_backend::cudarc::nvrtc::sys::nvrtcResult;
use candle_core::{DType, Device, Tensor};
use candle_headroom::{DeviceMemory, Error, ErrorExt, process_batches};

use crate::gpu::simulated;
use crate::jobs::{Job, SAMPLES};
use crate::points::Points;
use crate::simulator::Simulator;
use crate::support::Halves;

const ILLEGAL_ADDRESS: i32 = 700;
const ECC: i32 = 214;

#[test]
fn at_every_launch_of_a_step() {
    let Some(_alone) = simulated(1) else {
        return;
    };
    let points = std::thread::scope(|scope| {
        let jobs = [
            (1, Job::transformer as fn(&Device) -> Job),
            (7, Job::convolution),
            (6, Job::layers),
            (5, Job::recomputed),
        ];
        let threads = jobs.map(|(ordinal, job)| scope.spawn(move || every_launch(ordinal, job)));
        threads.map(|thread| thread.join().unwrap())
    });
    let sum = |which: fn(&(u64, u64)) -> u64| points.iter().map(which).sum();
    Points::chosen().figures("cuda/fault", sum(|points| points.0), sum(|points| points.1));
}

/// Loses the device at each chosen launch. Returns the number of launches, and of those chosen.
fn every_launch(ordinal: usize, job: fn(&Device) -> Job) -> (u64, u64) {
    let simulator = Simulator::of(ordinal).unwrap();
    let memory = DeviceMemory::cuda(ordinal).open().unwrap();
    let job = job(memory.device());
    // The outputs of a thread's first regions are compared, which launches kernels. A trainer's first step checks the closure.
    for _ in 0..4 {
        job.restart();
        let mut trainer = job.trainer(Some(&memory), Halves(SAMPLES / 2));
        simulator.reset_counters();
        job.step(&mut trainer).unwrap();
    }
    let counters = simulator.counters();
    let launches = counters.launches + counters.library_calls;
    assert!(launches > 200, "{launches}");
    let live = simulator.counters().live_bytes;
    for nth in Points::chosen().of(launches) {
        // Either the launch itself fails, or a later call, because the GPU runs behind the host.
        let at_once = nth % 2 == 0;
        let status = if nth % 3 == 0 { ECC } else { ILLEGAL_ADDRESS };
        job.restart();
        let mut trainer = job.trainer(Some(&memory), Halves(SAMPLES / 2));
        simulator.fault_at_launch(nth, status, at_once);
        let error = match job.step(&mut trainer) {
            Err(error) => error,
            // Nobody waits for the last launch of a step, so that the next step reports it.
            Ok(_) if nth == launches && !at_once => job.step(&mut trainer).unwrap_err(),
            Ok(_) => panic!("{} succeeds, lost at {nth} of {launches}", job.name),
        };
        let fault = error.device_fault();
        let fault = fault.unwrap_or_else(|| panic!("{} at {nth}: {error:?}", job.name));
        assert_eq!(fault.code, status as u32);
        assert!(fault.to_string().contains("save"), "{fault}");
        // Each further step fails alike, or with `UpdateInterrupted` where the optimizer was interrupted.
        let again = job.step(&mut trainer).unwrap_err();
        let is_interrupted = matches!(again, Error::UpdateInterrupted(_));
        assert!(again.device_fault().is_some() || is_interrupted, "{again}");
        simulator.disarm();
        drop(trainer);
        simulator.clear_fault();
        // Collects the errors that drops left while the device was lost.
        memory.trim().ok();
        let left = simulator.counters().live_bytes;
        assert_eq!(left, live, "{} at {nth}", job.name);
    }
    // The simulated device works again.
    job.restart();
    let mut trainer = job.trainer(Some(&memory), Halves(SAMPLES / 2));
    assert!(job.step(&mut trainer).is_ok());
    (launches, Points::chosen().of(launches).count() as u64)
}

/// Recovering from an exhaustion finds the device lost: the fault counts, not the exhaustion.
#[test]
fn a_fault_that_surfaces_while_cleaning_up_is_not_retried() {
    let Some((gpu, simulator)) = simulated(1) else {
        return;
    };
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    let x = Tensor::ones((8, 4), DType::F32, &device).unwrap();
    let mut calls = 0;
    let result = process_batches(&x, 8, |chunk| {
        calls += 1;
        simulator.fault_at_launch(0, ILLEGAL_ADDRESS, true);
        chunk.device().synchronize().ok();
        Err::<(), _>(candle_headroom::testing::out_of_memory())
    });
    simulator.clear_fault();
    let error = result.unwrap_err();
    assert!(error.device_fault().is_some(), "{error}");
    assert_eq!(calls, 1);
}

/// An error that a drop has stored is not returned by an unrelated later call.
#[test]
fn an_error_from_a_drop_is_drained() {
    let Some((gpu, _)) = simulated(1) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    let Device::Cuda(cuda) = memory.device() else {
        panic!("a CUDA device");
    };
    let context = cuda.cuda_stream().context().clone();
    let job = Job::transformer(memory.device());
    let mut trainer = job.trainer(Some(&memory), Halves(SAMPLES));
    let store = |code| context.record_err(Err::<(), _>(DriverError(code)));

    // It is taken out before a retry; otherwise candle returns it from an unrelated call.
    let mut is_first = true;
    let (x, y) = (&job.x, &job.y);
    let report = trainer
        .step(&(x, y), |(x, _), micro| {
            if std::mem::take(&mut is_first) {
                store(CUresult::CUDA_ERROR_INVALID_CONTEXT);
                return Err(candle_headroom::testing::out_of_memory());
            }
            job.loss_of(&x, &y.narrow(0, micro.samples.start, x.dims()[0])?)
        })
        .unwrap();
    assert_eq!(report.retries, 1);

    is_first = true;
    let result = trainer.step(&(x, y), |(x, _), _| {
        if std::mem::take(&mut is_first) {
            store(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
            return Err(candle_headroom::testing::out_of_memory());
        }
        job.loss_of(&x, y)
    });
    let error = result.unwrap_err();
    assert!(matches!(error, Error::DeviceFault(_)), "{error}");
}

/// candle's own synchronize keeps only the text; that is recognized too.
#[test]
fn candle_s_synchronize_reports_a_fault_as_text() {
    let Some((gpu, simulator)) = simulated(1) else {
        return;
    };
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    simulator.fault_at_launch(0, ILLEGAL_ADDRESS, true);
    let error = device.synchronize().unwrap_err();
    simulator.clear_fault();
    assert!(error.device_fault().is_some(), "{error}");
}

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
