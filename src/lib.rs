//! Train and run candle models without dying from CUDA out-of-memory.
//!
//! A batch that does not fit is cut into smaller micro-batches while the step runs. The update is the same, each sample counts
//! once, and finished work is kept. If nothing helps, a typed error says what ran out, why, and what would help.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_headroom::{AdamW, AdaptiveTrainer};
//! use candle_nn::{Module, VarBuilder, VarMap, linear, loss};
//!
//! fn main() -> candle_headroom::Result<()> {
//!     let varmap = VarMap::new();
//!     let model = linear(16, 4, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
//!     let optimizer = AdamW::builder(&varmap).learning_rate(1e-3).build()?;
//!     let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
//!
//!     for _ in 0..3 {
//!         let x = Tensor::randn(0f32, 1., (64, 16), &Device::Cpu)?; // [samples, features]
//!         let y = Tensor::zeros(64, DType::U32, &Device::Cpu)?; // [samples]
//!         let report = trainer.step(&(x, y), |(x, y), _| loss::cross_entropy(&model.forward(&x)?, &y))?;
//!         println!("{report}"); // step 1: loss 1.6, 64 samples in 1 micro-batch of 64
//!     }
//!     Ok(())
//! }
//! ```
//!
//! A run of which a cache takes more than half of the memory for a while:
//!
#![doc = include_str!("documentation/picture.html")]
//!
//! The loop, the data and the model stay yours. The closure sees plain candle tensors and returns a plain candle result; its
//! loss is the mean over the samples it was given, or a [`Loss`] with a weight.
//!
//! # Modules
//!
//! | module | question | start with |
//! |---|---|---|
//! | [`data`] | Which samples come next? | [`data::Loader`], [`data::Dataset`] |
//! | [`distributed`] | Who else works on this batch? | [`distributed::Group`] |
//! | [`checkpoint`] | Where does a run continue? | [`checkpoint::Checkpoints`] |
//! | [`train`] | Who drives? | [`AdaptiveTrainer`], [`AccumulatingTrainer`], [`GradientAccumulator`] |
//! | [`batch`] | How is a batch cut? | [`Batch`], [`Predictive`], [`process_batches`], [`batch::BatchPolicy`] |
//! | [`nn`] | What does a layer keep for its backward pass, and do right gradients arrive? | [`nn::audit`](nn::audit()), [`nn::attention`](nn::attention()) |
//! | [`optim`] | How do parameters move? | [`AdamW`], [`Sgd`], [`Foreign`] for others, [`LearningRate`], [`optim::StateDict`] |
//! | [`memory`] | How much memory is there, and who may use it? | [`DeviceMemory`], [`TrackingAllocator`], [`recover`] |
//! | [`error`] | What failed, and what helps? | [`Error`], [`ErrorExt`] for any candle error, [`ResourceExhausted`], [`DeviceFault`] |
//! | [`environment`] | Is this machine fit? | [`Environment`], [`environment::Requirement`] |
//! | [`monitor`] | What are the GPU and the host doing? | [`Monitor`], [`monitor::Threshold`] |
//! | [`timeline`] | What did memory do over the run? | [`Timeline`] |
//! | [`incident`] | What went wrong? | [`incident::IncidentLog`], [`incident::Incidents`] |
//! | `testing` | Does my code survive out-of-memory? | `testing::Faults` (feature `testing`) |
//!
//! [`_documentation`] is a book: [your first run](_documentation::tutorial::first_run), how-to guides by what you see, such as
//! [`CUDA_ERROR_OUT_OF_MEMORY`](_documentation::how_to::cuda_out_of_memory), tables, and
//! [the promises](_documentation::reference::promises) with the tests that prove them.
//!
//! # What it is not
//!
//! - Not a training framework: the loop stays yours, and there are no metrics.
//! - Not an allocator: on a GPU the driver's stream-ordered pool serves candle. On the host a limit is soft, because candle's
//!   CPU backend cannot refuse an allocation.
//! - Not a repair of lost devices: after a sticky fault, only a new process helps.
//! - Not for a model that is larger than a GPU: each process trains the whole model on one device. [`distributed`] trains it with several.
//! - Not proven on real GPUs yet: the CUDA code was run on a simulated driver that executes candle's kernels.
//!
//! [All limits](_documentation::explanation::limits).
//!
//! # Features
//!
//! The default build runs on the CPU. `default-features = false` leaves errors, memory, batches, optimizers, trainers and the checker.
//!
//! | feature | adds |
//! |---|---|
//! | `avx512` (default) | matrix products on the CPU, candle's too and in the whole program, use AVX-512 where the processor has it; with `nn` |
//! | `checkpoint` (default) | [`checkpoint`]: a run saved at intervals and resumed |
//! | `data` (default) | [`data`]: datasets and loaders |
//! | `distributed` (default) | [`distributed`]: several GPUs and machines train one model |
//! | `nn` (default) | [`nn`]: layers with a backward pass, recomputation, audits of gradients |
//! | `parquet` | [`data`]: Parquet files as datasets |
//! | `object-store` | datasets and checkpoints in S3, Google Cloud Storage (untested) and behind HTTP |
//! | `image` | [`data`]: folders of images as datasets |
//! | `layers` | `layers`: which layers hold the memory |
//! | `cuda` | candle's CUDA backend, [`DeviceMemory::cuda`], fused kernels; needs NVIDIA's compiler to build |
//! | `mpi` | [`distributed`]: ranks started by `mpirun` or `srun --mpi`; needs an MPI library and libclang to build |
//! | `metrics` | `monitor::MetricsSink`, for the crate `metrics` |
//! | `nvtx` | `timeline::NvtxRanges`: batches and phases in NVIDIA's profilers |
//! | `testing` | `testing`: memory that runs out at a chosen point, for your own tests |

#![deny(missing_docs, unsafe_code, clippy::undocumented_unsafe_blocks)]
// It neither prints nor ends the process, and what cannot be is an error: promise 10.
#![deny(
    clippy::dbg_macro,
    clippy::exit,
    clippy::print_stderr,
    clippy::print_stdout
)]
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::panic,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]
#![warn(missing_debug_implementations)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// The build with everything on is checked for both.
#![cfg_attr(
    not(all(
        feature = "checkpoint",
        feature = "data",
        feature = "distributed",
        feature = "nn"
    )),
    allow(
        dead_code,
        unused_imports,
        reason = "some of it serves features that are off"
    )
)]

#[path = "documentation.rs"]
pub mod _documentation;
pub mod batch;
#[cfg(feature = "checkpoint")]
pub mod checkpoint;
#[cfg(feature = "data")]
pub mod data;
#[cfg(feature = "distributed")]
pub mod distributed;
#[cfg(not(feature = "distributed"))]
#[path = "distributed/alone.rs"]
mod distributed;
#[allow(unsafe_code, reason = "tensors' elements as bytes")]
mod elements;
pub mod environment {
    //! Is this machine fit for candle, and if not, what helps? See [`Environment::check`].
    //!
    //! The package `candle-headroom-environment`, which needs no candle.
    //!
    //! A check neither fails nor panics: what cannot be read is a [`Finding`] with a remedy. It ends in time. Each subject is read in a thread of
    //! its own, which is left behind after 30 seconds ([`Environment::time_limit`]), and libraries that may hang are first loaded in another
    //! process. It needs no permissions and allocates nothing on the GPU; only [`Environment::smoke_test`] does. Calls that work outweigh files
    //! that look wrong, so a machine that can train is not reported as broken.

    #[doc(inline)]
    pub use candle_headroom_environment::*;
}
pub mod error;
#[allow(unsafe_code, reason = "a thread's mask of signals")]
mod files;
#[cfg(any(feature = "checkpoint", feature = "data"))]
#[doc(hidden)]
pub mod fixed_file;
mod host;
pub mod incident;
#[cfg(feature = "layers")]
pub mod layers;
#[cfg(not(feature = "layers"))]
#[path = "layers/no_hooks.rs"]
mod layers;
#[cfg_attr(
    feature = "cuda",
    allow(unsafe_code, reason = "calls the simulated driver")
)]
mod marks;
pub mod memory;
mod mix;
pub mod monitor;
mod names;
#[cfg(feature = "nn")]
pub mod nn;
pub mod optim;
mod output;
#[cfg(feature = "nn")]
mod regions;
#[cfg(not(feature = "nn"))]
#[path = "regions/disabled.rs"]
mod regions;
#[cfg(feature = "object-store")]
mod remote;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(not(feature = "testing"))]
mod testing;
pub mod timeline;
pub mod train;

pub use bytesize::ByteSize;

pub use batch::{Batch, MicroBatch, Predictive, process_batches};
pub use environment::Environment;
pub use error::{DeviceFault, Error, ErrorExt, ResourceExhausted, Result};
pub use memory::{DeviceMemory, TrackingAllocator, recover};
pub use monitor::Monitor;
pub use optim::{AdamW, Foreign, LearningRate, Sgd};
pub use timeline::Timeline;
pub use train::{AccumulatingTrainer, AdaptiveTrainer, GradientAccumulator, Loss, StepReport};
