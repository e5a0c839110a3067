//! The class of every candle error.

use std::io;

use candle_core::{Device, Var};
use candle_headroom::environment::facts;
use candle_headroom::{Foreign, GradientAccumulator};
use candle_nn::Optimizer;

use super::*;

#[derive(Debug, PartialEq)]
enum Expected {
    Exhausted(Resource),
    Fault(u32),
    Other,
}
use Expected::{Exhausted, Fault, Other};

const DEVICE: Expected = Exhausted(Resource::DeviceMemory);
const WORKSPACE: Expected = Exhausted(Resource::LibraryWorkspace);
const HOST: Expected = Exhausted(Resource::HostMemory);

/// Writes itself as cudarc's errors do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Rendered(&'static str);

/// What a trainer returns when candle's optimizer runs out of memory half-way.
fn interrupted() -> Error {
    struct Fails(Var);
    impl Optimizer for Fails {
        type Config = ();
        fn new(mut vars: Vec<Var>, (): ()) -> candle_core::Result<Self> {
            Ok(Self(vars.remove(0)))
        }
        fn step(&mut self, _: &candle_core::backprop::GradStore) -> candle_core::Result<()> {
            self.0.set(&self.0.ones_like()?)?;
            Err(oom())
        }
        fn learning_rate(&self) -> f64 {
            0.
        }
        fn set_learning_rate(&mut self, _: f64) {}
    }
    let var = Var::new(0f32, &Device::Cpu).unwrap();
    let fails = Fails::new(vec![var.clone()], ()).unwrap();
    let optimizer = Foreign::new(fails, vec![var.clone()]);
    let mut accumulator = GradientAccumulator::builder(optimizer).build().unwrap();
    accumulator.add(var.sqr().unwrap(), 1).unwrap();
    accumulator.update().unwrap_err()
}

fn io_error(kind: io::ErrorKind, text: &'static str) -> CandleError {
    CandleError::Io(io::Error::new(kind, text))
}

fn striding() -> candle_core::error::MatMulUnexpectedStriding {
    let layout = candle_core::Layout::contiguous(1);
    candle_core::error::MatMulUnexpectedStriding {
        lhs_l: layout.clone(),
        rhs_l: layout,
        bmnk: (1, 1, 1, 1),
        msg: "out of memory",
    }
}

/// A safetensors file with a type that candle does not have.
fn bool_tensor() -> Vec<u8> {
    let header = br#"{"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}}"#;
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header, &[1]].concat()
}

/// Every way in which memory can have run out or a device have been lost, and everything that only looks like it.
#[rustfmt::skip] // a row a line
fn table() -> Vec<(&'static str, CandleError, Expected)> {
    let reserve = Vec::<u8>::new().try_reserve(usize::MAX).unwrap_err();
    vec![
        // The driver's codes, as candle boxes them.
        ("driver", oom(), DEVICE),
        ("load", cuda("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\") when loading affine"), DEVICE),
        ("cublas", cuda("CublasError(CUBLAS_STATUS_ALLOC_FAILED)"), WORKSPACE),
        ("curand", cuda("CurandError(CURAND_STATUS_ALLOCATION_FAILED)"), WORKSPACE),
        ("nvrtc", cuda("CompileError(NvrtcError(NVRTC_ERROR_OUT_OF_MEMORY))"), HOST),
        ("illegal address", cuda("DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, \"…\")"), Fault(700)),
        ("launch failed", cuda("DriverError(CUDA_ERROR_LAUNCH_FAILED, \"…\")"), Fault(719)),
        ("ecc", cuda("DriverError(CUDA_ERROR_ECC_UNCORRECTABLE, \"…\")"), Fault(214)),
        ("launch resources", cuda("DriverError(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, \"too many resources requested\")"), Other),
        ("ptx", cuda("DriverError(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, \"…\")"), Other),
        ("busy", cuda("DriverError(CUDA_ERROR_DEVICE_UNAVAILABLE, \"…\")"), Other),
        ("missing kernel", cuda("missing kernel 'out of memory'"), Other),
        // Through every wrapper.
        ("backtrace", CandleError::WithBacktrace { inner: Box::new(oom()), backtrace: Box::new(std::backtrace::Backtrace::force_capture()) }, DEVICE),
        ("path", oom().with_path("weights.safetensors"), DEVICE),
        ("context", oom().context("in layer 3"), DEVICE),
        ("wrapped context", wrapped_context(oom()), DEVICE),
        ("all of them", wrapped_context(oom().context("a").with_path("b").bt()).context("c"), DEVICE),
        ("user error", wrapped_context(UserError::from(oom())), DEVICE),
        ("user error of ours", wrapped_context(UserError::from(Error::from(oom()))), DEVICE),
        ("fault in a user error", wrapped_context(UserError::from(cuda("DriverError(CUDA_ERROR_ASSERT, \"…\")"))), Fault(710)),
        ("our exhaustion", CandleError::from(Error::from(oom())), DEVICE),
        ("our fault", CandleError::from(Error::from(cuda("DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, \"…\")"))), Fault(700)),
        // Where candle keeps text alone.
        ("message", CandleError::Msg(oom().to_string()), DEVICE),
        ("wrap", CandleError::wrap("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")"), DEVICE),
        ("cudnn workspace", CandleError::wrap("CudnnError(CUDNN_STATUS_ALLOC_FAILED)"), WORKSPACE),
        ("cudnn", CandleError::wrap("CudnnError(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)"), WORKSPACE),
        ("cudnn host", CandleError::wrap("CudnnError(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED)"), HOST),
        ("runtime", CandleError::msg("cudaErrorMemoryAllocation: out of memory"), DEVICE),
        ("varmap", CandleError::msg("error setting w using data from \"a\": DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")"), DEVICE),
        ("text fault", CandleError::msg("DriverError(CUDA_ERROR_MISALIGNED_ADDRESS, \"…\")"), Fault(716)),
        // The host and Metal.
        ("io", io_error(io::ErrorKind::OutOfMemory, "mmap"), HOST),
        ("io in context", wrapped_context(io::Error::from(io::ErrorKind::OutOfMemory)), HOST),
        ("io around ours", CandleError::Io(io::Error::other(Error::from(oom()))), DEVICE),
        ("try_reserve", wrapped_context(reserve), HOST),
        ("metal", CandleError::Metal("FailedToCreateResource(\"Buffer\")".to_owned().into()), DEVICE),
        ("metal text", CandleError::Metal("Failed to create metal resource: Buffer".to_owned().into()), DEVICE),
        ("metal pipeline", CandleError::Metal("FailedToCreatePipeline".to_owned().into()), Other),
        // What only looks like it.
        ("a user's words", CandleError::msg("the story is about running out of memory"), Other),
        ("CUDA in words", CandleError::msg("CUDA error: out of memory"), Other),
        ("a path", io_error(io::ErrorKind::NotFound, "no").with_path("/logs/CUDA_ERROR_OUT_OF_MEMORY.txt"), Other),
        ("a path in text", CandleError::msg("cannot open /logs/CUDA_ERROR_OUT_OF_MEMORY"), Other),
        ("a file in text", CandleError::msg("cannot open CUDA_ERROR_OUT_OF_MEMORY.log"), Other),
        ("words in context", CandleError::msg("bad token").context("CUDA_ERROR_OUT_OF_MEMORY was the text's title"), Other),
        ("an unrelated user error", wrapped_context(UserError::Unrelated), Other),
        ("a tensor's name", CandleError::CannotFindTensor { path: "CUDA_ERROR_OUT_OF_MEMORY".into(), }, Other),
        ("io text", io_error(io::ErrorKind::Other, "out of memory"), Other),
        ("a path in context", wrapped_context(CandleError::CannotFindTensor { path: "CUDA_ERROR_OUT_OF_MEMORY".into() }), Other),
        ("nested contexts", wrapped_context(CandleError::msg("bad token").context("CUDA_ERROR_OUT_OF_MEMORY")), Other),
        ("a user's typed error", wrapped_context(UserError::Names), Other),
        // The types that a build without CUDA does not have write themselves like this.
        ("rendered", wrapped_context(Rendered("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")")), DEVICE),
        ("rendered fault", wrapped_context(Rendered("DriverError(CUDA_ERROR_ASSERT, \"…\")")), Fault(710)),
        ("fault behind exhaustion", CandleError::msg("DriverError(CUDA_ERROR_OUT_OF_MEMORY) and then DriverError(CUDA_ERROR_ASSERT)"), Fault(710)),
        // What must not be retried, though an exhaustion began it.
        ("interrupted update", CandleError::from(interrupted()), Other),
        ("interrupted update in context", wrapped_context(interrupted()), Other),
        // All other variants.
        ("matmul", CandleError::MatMulUnexpectedStriding(Box::new(striding())), Other),
        ("safetensors", candle_core::safetensors::load_buffer(b"nonsense", &Device::Cpu).unwrap_err(), Other),
        ("safetensors dtype", candle_core::safetensors::load_buffer(&bool_tensor(), &Device::Cpu).unwrap_err(), Other),
        ("zip", candle_core::npy::NpzTensors::new(file!()) .map(|_| ()) .unwrap_err(), Other),
        ("npy", CandleError::Npy("CUDA_ERROR_OUT_OF_MEMORY".into()), Other),
        ("empty", CandleError::EmptyTensor { op: "max" }, Other),
        ("no cuda", CandleError::NotCompiledWithCudaSupport, Other),
        ("no metal", CandleError::NotCompiledWithMetalSupport, Other),
        ("unwrap none", CandleError::UnwrapNone, Other),
        ("contiguous", CandleError::RequiresContiguous { op: "matmul" }, Other),
        ("set", CandleError::CannotSetVar { msg: "CUDA_ERROR_OUT_OF_MEMORY", }, Other),
        ("backward", CandleError::BackwardNotSupported { op: "x" }, Other),
        ("one tensor", CandleError::OpRequiresAtLeastOneTensor { op: "cat" }, Other),
        ("two tensors", CandleError::OpRequiresAtLeastTwoTensors { op: "cat" }, Other),
        ("index", CandleError::InvalidIndex { op: "get", index: 1, size: 1, }, Other),
        ("dtype", CandleError::UnsupportedDTypeForOp(candle_core::DType::U8, "exp"), Other),
        ("dtypes", CandleError::DTypeMismatchBinaryOp { lhs: candle_core::DType::U8, rhs: candle_core::DType::F32, op: "add", }, Other),
        ("a dtype", CandleError::UnexpectedDType { msg: "m", expected: candle_core::DType::U8, got: candle_core::DType::F32, }, Other),
        ("devices", CandleError::DeviceMismatchBinaryOp { lhs: candle_core::DeviceLocation::Cpu, rhs: candle_core::DeviceLocation::Cpu, op: "add", }, Other),
        ("rank", CandleError::UnexpectedNumberOfDims { expected: 1, got: 2, shape: (1, 2).into(), }, Other),
        ("shape", CandleError::UnexpectedShape { msg: "out of memory".into(), expected: 1.into(), got: 2.into(), }, Other),
        ("buffer", CandleError::ShapeMismatch { buffer_size: 1, shape: 2.into(), }, Other),
        ("shapes", CandleError::ShapeMismatchBinaryOp { lhs: 1.into(), rhs: 2.into(), op: "add", }, Other),
        ("cat", CandleError::ShapeMismatchCat { dim: 0, first_shape: 1.into(), n: 1, nth_shape: 2.into(), }, Other),
        ("split", CandleError::ShapeMismatchSplit { shape: 1.into(), dim: 0, n_parts: 2, }, Other),
        ("dim", CandleError::DimOutOfRange { shape: 1.into(), dim: 2, op: "x", }, Other),
        ("duplicate", CandleError::DuplicateDimIndex { shape: 1.into(), dims: vec![0, 0], op: "x", }, Other),
        ("single", CandleError::OnlySingleDimension { op: "x", dims: vec![], }, Other),
        ("narrow", CandleError::NarrowInvalidArgs { shape: 1.into(), dim: 0, start: 0, len: 2, msg: "m", }, Other),
        ("conv", CandleError::Conv1dInvalidArgs { inp_shape: 1.into(), k_shape: 1.into(), padding: 0, stride: 1, msg: "m", }, Other),
        ("broadcast", CandleError::BroadcastIncompatibleShapes { src_shape: 1.into(), dst_shape: 2.into(), }, Other),
        ("int", u8::try_from(300).map_err(CandleError::from).unwrap_err(), Other),
        ("parse", "x".parse::<u8>().map_err(CandleError::from).unwrap_err(), Other),
        ("utf8", String::from_utf8(vec![255]) .map_err(CandleError::from) .unwrap_err(), Other),
    ]
}

fn class(error: &CandleError) -> Expected {
    match (error.resource_exhausted(), error.device_fault()) {
        (Some(exhausted), None) => Exhausted(exhausted.resource),
        (None, Some(fault)) => Fault(fault.code),
        (None, None) => Other,
        (Some(_), Some(_)) => panic!("both: {error}"),
    }
}

#[test]
fn every_variant_is_classified() {
    for (name, error, expected) in table() {
        assert_eq!(class(&error), expected, "{name}: {error}");
    }
}

#[test]
fn names_of_codes_are_words_of_their_own() {
    for text in [
        "CUDA_ERROR_OUT_OF_MEMORY",
        "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")",
        "it failed with CUDA_ERROR_OUT_OF_MEMORY.",
        "CUDA_ERROR_OUT_OF_MEMORY: while loading",
    ] {
        assert_eq!(class(&CandleError::msg(text)), DEVICE, "{text}");
    }
    for text in [
        "out of memory",
        "/var/log/CUDA_ERROR_OUT_OF_MEMORY",
        "CUDA_ERROR_OUT_OF_MEMORY.txt",
        "CUDA_ERROR_OUT_OF_MEMORY-2",
        "MY_CUDA_ERROR_OUT_OF_MEMORY_COUNT",
        "CUDA_ERROR_OUT_OF_MEMORY_ISH",
    ] {
        assert_eq!(class(&CandleError::msg(text)), Other, "{text}");
    }
}

#[test]
fn conversion_agrees_and_changes_nothing_else() {
    for (name, error, expected) in table() {
        let (text, kind) = (error.to_string(), std::mem::discriminant(&error));
        match (Error::from(error), expected) {
            (Error::ResourceExhausted(exhausted), Exhausted(resource)) => {
                assert_eq!(exhausted.resource, resource, "{name}");
            }
            (Error::DeviceFault(fault), Fault(code)) => assert_eq!(fault.code, code, "{name}"),
            (Error::UpdateInterrupted(_), Other) if name == "interrupted update" => {}
            (Error::Candle(error), Other) => {
                let back = CandleError::from(Error::Candle(error));
                assert_eq!(std::mem::discriminant(&back), kind, "{name}");
                assert_eq!(back.to_string(), text, "{name}");
            }
            (error, expected) => panic!("{name}: {error} instead of {expected:?}"),
        }
    }
}

/// The text of each status of the driver, alone and after an exhaustion: a sticky one counts first.
#[test]
fn every_status_of_the_driver_is_found_and_a_sticky_one_first() {
    let mut sticky = 0;
    for status in facts::cuda_statuses() {
        let alone = CandleError::msg(status.name);
        let second = format!("CUDA_ERROR_OUT_OF_MEMORY, then {}.", status.name);
        let second = CandleError::msg(second);
        if alone.resource_exhausted().is_some() {
            assert_eq!(status.number, 2);
            continue;
        }
        assert_eq!(alone.remedy(), Some(status.remedy), "{}", status.name);
        match (alone.device_fault(), second.device_fault()) {
            (None, None) => assert!(second.resource_exhausted().is_some(), "{}", status.name),
            (Some(alone), Some(second)) => {
                for fault in [alone, second] {
                    assert_eq!((fault.name, fault.code), (status.name, status.number));
                }
                sticky += 1;
            }
            other => panic!("{}: {other:?}", status.name),
        }
    }
    assert_eq!(sticky, 14);
}

/// Behind these a lost device may hide, so they count before a status that only has a remedy.
#[test]
fn failures_of_nvidias_libraries_count_before_other_statuses() {
    let other = "CUDA_ERROR_NO_DEVICE";
    assert!(CandleError::msg(other).remedy().is_some());
    for name in [
        "CUBLAS_STATUS_MAPPING_ERROR",
        "CUBLAS_STATUS_EXECUTION_FAILED",
        "CUBLAS_STATUS_INTERNAL_ERROR",
        "CURAND_STATUS_LAUNCH_FAILURE",
        "CURAND_STATUS_PREEXISTING_FAILURE",
        "CURAND_STATUS_INTERNAL_ERROR",
        "CUDNN_STATUS_INTERNAL_ERROR",
        "CUDNN_STATUS_EXECUTION_FAILED",
    ] {
        let error = CandleError::msg(format!("{other}, then {name}"));
        assert_eq!(error.remedy(), None, "{name}");
        assert!(error.resource_exhausted().is_none(), "{name}");
        assert!(error.device_fault().is_none(), "{name}");
    }
}
