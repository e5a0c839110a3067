//! Classification of every candle error, and the ways into and out of it.

use std::backtrace::Backtrace;
use std::error::Error as StdError;
use std::io;
use std::process::Command;
use std::sync::Arc;

use candle_core::{Context, DType, Device, Error as CandleError, Tensor, Var};
use candle_headroom::error::{Cause, Phase, Resource, UpdateInterrupted, WindowLost};
use candle_headroom::{
    DeviceFault, Error, ErrorExt, Foreign, GradientAccumulator, ResourceExhausted, process_batches,
};
use candle_nn::Optimizer;

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

/// A user's own error around a candle error.
#[derive(Debug, thiserror::Error)]
enum UserError {
    #[error("training failed")]
    Candle(#[from] CandleError),
    #[error("training failed")]
    Headroom(#[from] Error),
    #[error("the file says CUDA-error: out of memory")]
    Unrelated,
    #[error("unknown token CUDA_ERROR_OUT_OF_MEMORY")]
    Names,
}

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

fn cuda(text: &str) -> CandleError {
    CandleError::Cuda(text.to_owned().into())
}

fn oom() -> CandleError {
    cuda("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")")
}

fn wrapped_context(error: impl std::error::Error + Send + Sync + 'static) -> CandleError {
    Err::<(), _>(error).context("while training").unwrap_err()
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
        ("our fault", CandleError::from(Error::from(cuda("CUDA_ERROR_ILLEGAL_ADDRESS"))), Fault(700)),
        // Where candle keeps text alone.
        ("message", CandleError::Msg(oom().to_string()), DEVICE),
        ("wrap", CandleError::wrap("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")"), DEVICE),
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

/// What a user's function returns, three calls deep, each with its own error type.
fn through_candle() -> candle_core::Result<()> {
    fn inner() -> Result<(), Error> {
        Err(oom())?
    }
    Ok(inner()?)
}

fn through_user() -> Result<(), UserError> {
    through_candle()?;
    Ok(())
}

fn round_trips() {
    // ours → candle → ours: the same value, not one around another.
    let Error::ResourceExhausted(exhausted) = Error::from(through_candle().unwrap_err()) else {
        panic!("the type was lost")
    };
    let source = std::error::Error::source(&*exhausted).expect("candle's error is kept");
    let source = source.downcast_ref::<CandleError>().expect("with its type");
    assert_eq!(
        source.resource_exhausted().unwrap().resource,
        exhausted.resource
    );

    // Into anyhow, directly and inside candle's error, and out again.
    let direct = anyhow::Error::from(Error::from(oom()));
    assert!(
        direct
            .downcast_ref::<Error>()
            .unwrap()
            .resource_exhausted()
            .is_some()
    );
    let carried = anyhow::Error::from(through_candle().unwrap_err()).context("outer");
    let candle = carried.downcast_ref::<CandleError>().unwrap();
    assert!(candle.resource_exhausted().is_some());
    let any: &(dyn std::error::Error + Send + Sync) = carried.as_ref();
    assert!(any.resource_exhausted().is_some());

    // Into a user's enum and back through candle.
    let UserError::Candle(candle) = through_user().unwrap_err() else {
        panic!("the variant was lost")
    };
    assert!(matches!(Error::from(candle), Error::ResourceExhausted(_)));
    let user = UserError::from(Error::from(oom()));
    let UserError::Headroom(ours) = &user else {
        panic!("the variant was lost")
    };
    assert!(ours.resource_exhausted().is_some());

    // A user's own error goes through ours and candle's with its type.
    let error = Error::from(wrapped_context(UserError::Unrelated));
    assert!(matches!(
        error.downcast::<UserError>(),
        Ok(UserError::Unrelated)
    ));

    // ResourceExhausted and DeviceFault on their own.
    let lone: ResourceExhausted = oom().resource_exhausted().unwrap();
    assert!(CandleError::from(lone).resource_exhausted().is_some());
    let lone: DeviceFault = cuda("DriverError(CUDA_ERROR_ASSERT, \"…\")")
        .device_fault()
        .unwrap();
    assert!(CandleError::from(lone).device_fault().is_some());

    look_through_every_wrapper();
    find_the_caller_s_type();
}

/// Whether errors carry backtraces is fixed when the first one is captured, so each setting has a process of its own.
#[test]
fn round_trips_with_and_without_backtraces() {
    const CHILD: &str = "HEADROOM_ROUND_TRIP_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let has_backtrace = matches!(CandleError::msg("x"), CandleError::WithBacktrace { .. });
        assert_eq!(
            has_backtrace,
            std::env::var("RUST_BACKTRACE").unwrap() == "1"
        );
        return round_trips();
    }
    for backtrace in ["0", "1"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "error::round_trips_with_and_without_backtraces"])
            .env(CHILD, "1")
            .env("RUST_BACKTRACE", backtrace)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "RUST_BACKTRACE={backtrace}: {text}"
        );
        assert!(text.contains("1 passed"), "{text}");
    }
}

/// An enum as users write them, which passes other errors through.
#[derive(Debug, thiserror::Error)]
enum Passing {
    #[error(transparent)]
    Headroom(#[from] Error),
    #[error(transparent)]
    Boxed(#[from] Box<Error>),
    #[error(transparent)]
    Shared(#[from] Arc<Error>),
    #[error(transparent)]
    Candle(#[from] CandleError),
    #[error(transparent)]
    BoxedCandle(#[from] Box<CandleError>),
    #[error(transparent)]
    SharedCandle(#[from] Arc<CandleError>),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Anyhow(#[from] anyhow::Error),
    #[error("a source")]
    Source(#[source] Box<CandleError>),
    #[error("nested")]
    Nested(#[source] Box<Passing>),
    #[error("only displayed: {0}")]
    Displayed(Error),
}

/// An exhaustion with details that no text has.
fn detailed() -> Error {
    let mut exhausted = ResourceExhausted::new(Resource::PinnedMemory, Cause::Fragmented);
    exhausted.phase = Some(Phase::Load);
    exhausted.bytes.free = Some(12345);
    exhausted.into()
}

fn candle() -> CandleError {
    detailed().into()
}

fn with_backtrace(inner: CandleError) -> CandleError {
    CandleError::WithBacktrace {
        inner: Box::new(inner),
        backtrace: Box::new(Backtrace::force_capture()),
    }
}

type Wrapping = (&'static str, fn() -> Passing);

/// Every way in which a user's enum can hide an exhaustion.
#[rustfmt::skip] // a row a line
const PASSING: &[Wrapping] = &[
    ("ours", || detailed().into()),
    ("boxed", || Box::new(detailed()).into()),
    ("shared", || Arc::new(detailed()).into()),
    ("candle", || candle().into()),
    ("boxed candle", || Box::new(candle()).into()),
    ("shared candle", || Arc::new(candle()).into()),
    ("backtrace", || with_backtrace(candle()).into()),
    ("boxed backtrace", || Box::new(with_backtrace(candle())).into()),
    ("context", || candle().context("in layer 3").into()),
    ("path", || candle().with_path("weights").bt().into()),
    ("wrapped context", || wrapped_context(detailed()).into()),
    ("wrapped candle", || wrapped_context(candle()).into()),
    ("wrapped enum", || wrapped_context(Passing::from(Box::new(detailed()))).into()),
    ("candle's wrap", || CandleError::wrap(detailed()).into()),
    ("wrapped twice", || CandleError::wrap(with_backtrace(wrapped_context(candle()))).into()),
    ("io", || io::Error::other(detailed()).into()),
    ("io around an enum", || io::Error::other(Passing::from(detailed())).into()),
    ("io in candle", || CandleError::Io(io::Error::other(Passing::from(Arc::new(detailed())))).into()),
    ("anyhow", || anyhow::Error::from(detailed()).into()),
    ("anyhow with context", || anyhow::Error::from(candle()).context("outer").into()),
    ("source", || Passing::Source(Box::new(with_backtrace(candle())))),
    ("nested", || Passing::Nested(Box::new(with_backtrace(candle().context("inner")).into()))),
    ("displayed", || Passing::Displayed(detailed())),
];

fn look_through_every_wrapper() {
    for (name, make) in PASSING {
        let check = |way: &str, found: Option<&ResourceExhausted>| {
            let found = found.unwrap_or_else(|| panic!("{name} {way}"));
            let details = (found.resource, found.cause, found.phase, found.bytes.free);
            let expected = (
                Resource::PinnedMemory,
                Cause::Fragmented,
                Some(Phase::Load),
                Some(12345),
            );
            assert_eq!(details, expected, "{name} {way}");
        };
        let error: Box<dyn StdError + Send + Sync> = Box::new(make());
        check("as it is", error.resource_exhausted().as_ref());
        let any = anyhow::Error::from(make());
        let any: &(dyn StdError + Send + Sync) = any.as_ref();
        check("in anyhow", any.resource_exhausted().as_ref());
        check(
            "in context",
            wrapped_context(make()).resource_exhausted().as_ref(),
        );
        // Candle keeps what the error displays, and nothing else.
        if make().to_string().contains("out of pinned host memory") {
            let wrapped = CandleError::wrap(make());
            check("in candle's wrap", wrapped.resource_exhausted().as_ref());
        }
        let external = Error::external(make());
        check("as an external error", external.resource_exhausted());
        let carried = Error::from(with_backtrace(external.into()));
        check("through candle", carried.resource_exhausted());
        assert!(carried.downcast_ref::<Passing>().is_some(), "{name}");
        assert!(carried.downcast::<Passing>().is_ok(), "{name}");

        // In a closure it is retried.
        let x = Tensor::arange(0f32, 8., &Device::Cpu).unwrap();
        let ways: [fn(Passing) -> Error; 2] = [
            |error| Error::external(error),
            |error| Error::from(wrapped_context(error)),
        ];
        for carry in ways {
            let mut is_first = true;
            let sums = process_batches(&x, 8, |chunk| match std::mem::take(&mut is_first) {
                true => Err(carry(make()))?,
                false => chunk.sum_all()?.to_scalar::<f32>(),
            });
            assert_eq!(sums.unwrap().iter().sum::<f32>(), 28., "{name}");
        }
    }
    // A driver's error that candle has turned into text.
    let text = "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")";
    for message in [
        CandleError::msg(text),
        CandleError::msg(text).context("in layer 3"),
        CandleError::wrap(text),
    ] {
        let error: Box<dyn StdError + Send + Sync> = Box::new(Passing::from(message));
        let exhausted = error.resource_exhausted().unwrap();
        assert_eq!(exhausted.resource, Resource::DeviceMemory);
    }
    // What must not be retried.
    let interrupted: [fn() -> Error; 2] = [
        || UpdateInterrupted::new(detailed()).into(),
        || WindowLost::new(3, detailed()).into(),
    ];
    for make in interrupted {
        for error in [
            Passing::from(make()),
            Passing::from(Box::new(make())),
            Passing::from(with_backtrace(make().into())),
            Passing::from(CandleError::wrap(make())),
            Passing::Displayed(make()),
        ] {
            let error: Box<dyn StdError + Send + Sync> = Box::new(error);
            assert!(error.resource_exhausted().is_none(), "{error}");
        }
    }
}

#[derive(Debug, PartialEq, thiserror::Error)]
#[error("sample {0} is corrupt")]
struct Corrupt(u32);

fn find_the_caller_s_type() {
    let carried = || CandleError::from(Error::external(Corrupt(7)));
    let errors: Vec<(&str, CandleError)> = vec![
        ("external", carried()),
        ("boxed", Error::external(Box::new(Corrupt(7))).into()),
        ("shared", Error::external(Arc::new(Corrupt(7))).into()),
        ("backtrace", with_backtrace(carried())),
        ("context", carried().context("in batch 17")),
        ("path", with_backtrace(carried().with_path("data"))),
        ("wrapped context", wrapped_context(Corrupt(7))),
        (
            "wrapped candle",
            wrapped_context(wrapped_context(carried())),
        ),
        ("io", CandleError::Io(io::Error::other(Corrupt(7)))),
        ("nested io", wrapped_context(io::Error::other(carried()))),
        (
            "backend",
            CandleError::Cuda(Box::new(Corrupt(7))).context("in layer 3"),
        ),
    ];
    for (name, error) in errors {
        let error = Error::from(error);
        let text = error.to_string();
        assert!(error.resource_exhausted().is_none(), "{name}");
        assert_eq!(error.downcast_ref(), Some(&Corrupt(7)), "{name}");
        let error = error.downcast::<UserError>().unwrap_err();
        assert_eq!(error.to_string(), text, "{name}: unchanged");
        assert_eq!(error.downcast::<Corrupt>().unwrap(), Corrupt(7), "{name}");
    }
    // Through a closure, and an error of another kind around it.
    let x = Tensor::zeros((8, 2), DType::F32, &Device::Cpu).unwrap();
    let mut calls = 0;
    let result = process_batches(&x, 4, |_| {
        calls += 1;
        Err::<(), _>(Error::external(Corrupt(7)))?;
        Ok(())
    });
    assert_eq!(calls, 1, "not retried");
    assert_eq!(
        result.unwrap_err().downcast::<Corrupt>().unwrap(),
        Corrupt(7)
    );
    let inside = Error::from(UpdateInterrupted::new(Error::external(Corrupt(7))));
    assert_eq!(inside.downcast_ref(), Some(&Corrupt(7)));
    let inside = inside.downcast::<Corrupt>().unwrap_err();
    assert!(matches!(inside, Error::UpdateInterrupted(_)));
    assert_eq!(
        Error::external(Corrupt(7)).to_string(),
        "sample 7 is corrupt"
    );
}

#[test]
fn the_source_is_the_content() {
    let error = detailed();
    let source = error.source().unwrap();
    assert!(source.is::<ResourceExhausted>());
    let error = Error::from(CandleError::UnwrapNone);
    assert!(error.source().unwrap().is::<CandleError>());
    let error = Error::external(Corrupt(7));
    assert!(error.source().unwrap().is::<Corrupt>());
    let error = Error::from(WindowLost::new(1, detailed()));
    let lost = error.source().unwrap();
    assert!(lost.is::<WindowLost>() && lost.source().unwrap().is::<Error>());
}

/// A `source()` that leads back to its own error does not hang the search.
#[test]
fn an_endless_chain_ends() {
    #[derive(Debug)]
    struct Endless;
    impl std::fmt::Display for Endless {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("endless")
        }
    }
    impl StdError for Endless {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(self)
        }
    }
    let error = Error::external(Endless);
    assert!(error.resource_exhausted().is_none());
    assert!(error.downcast_ref::<Corrupt>().is_none());
}

#[test]
fn context_that_somebody_added_is_kept() {
    let error = CandleError::from(Error::from(oom())).context("in batch 17");
    let error = Error::from(error);
    let source = std::error::Error::source(error.resource_exhausted().unwrap()).unwrap();
    assert!(source.to_string().contains("in batch 17"), "{source}");
}

#[test]
fn the_error_is_small_and_can_be_sent() {
    fn can_be_sent<T: Send + Sync + 'static>() {}
    can_be_sent::<Error>();
    assert_eq!(size_of::<Error>(), 2 * size_of::<usize>());
    assert_eq!(size_of::<Option<Error>>(), size_of::<Error>());
}

#[test]
fn texts_say_what_is_known_and_nothing_else() {
    let mut exhausted = oom().resource_exhausted().unwrap();
    assert_eq!(
        exhausted.to_string(),
        "out of device memory: the cause is not known"
    );
    exhausted.phase = Some(Phase::Backward);
    exhausted.micro_batch = Some(8);
    exhausted.samples = Some(16..24);
    exhausted.bytes.peak = Some(300 << 20);
    exhausted.bytes.limit = Some(256 << 20);
    exhausted.cause = Cause::Limit;
    assert_eq!(
        exhausted.to_string(),
        "out of device memory in backward of a micro-batch of 8 (samples 16..24): the limit is reached (300.0 MiB of 256.0 MiB used)"
    );
    let long = format!("{exhausted:#}");
    assert!(
        long.contains("\n  highest use                     300.0 MiB  117 %"),
        "{long}"
    );
    assert!(!long.contains("free"), "{long}");
    assert_eq!(format!("{exhausted:?}"), long);
}

#[test]
fn a_status_brings_its_remedy_through_every_wrapper() {
    let too_new = || cuda("DriverError(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, \"…\")");
    let expected = "update the driver, or build with a toolkit that is no newer";
    assert_eq!(too_new().remedy(), Some(expected));
    assert_eq!(too_new().context("a user's").remedy(), Some(expected));
    assert_eq!(Error::from(too_new()).remedy(), Some(expected));
    let any = anyhow::Error::from(too_new());
    let dynamic: &(dyn std::error::Error + Send + Sync + 'static) = any.as_ref();
    assert_eq!(dynamic.remedy(), Some(expected));
    // A program cannot act on it.
    assert!(too_new().resource_exhausted().is_none() && too_new().device_fault().is_none());
    let fault = cuda("DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, \"…\")");
    assert_eq!(
        fault.remedy(),
        fault.device_fault().map(|fault| fault.remedy)
    );
    assert_eq!(
        oom().remedy(),
        None,
        "an exhaustion has remedies of its own"
    );
    assert_eq!(CandleError::Msg("no code".to_owned()).remedy(), None);
    let busy = cuda("DriverError(CUDA_ERROR_DEVICE_UNAVAILABLE, \"…\")");
    let remedy = busy.remedy().unwrap();
    assert!(remedy.contains("compute mode"), "{remedy}");
}
