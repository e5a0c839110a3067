//! Train and infer with candle at the edge of a device's memory without falling over it.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_headroom::{AdamW, AdaptiveTrainer};
//! use candle_nn::{linear, loss, Module, VarBuilder, VarMap};
//!
//! let varmap = VarMap::new();
//! let model = linear(16, 4, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
//! let optimizer = AdamW::new_lr(&varmap, 1e-3)?;
//! let mut trainer = AdaptiveTrainer::builder(varmap.all_vars(), optimizer).build()?;
//!
//! for _ in 0..3 {
//!     let x = Tensor::randn(0f32, 1., (64, 16), &Device::Cpu)?;
//!     let y = Tensor::zeros(64, DType::U32, &Device::Cpu)?;
//!     let report = trainer.step(&(x, y), |(x, y), _| loss::cross_entropy(&model.forward(&x)?, &y))?;
//!     println!("{report}");
//! }
//! # Ok::<(), candle_headroom::Error>(())
//! ```
//!
//! The loop, the data and the model stay yours; the closure sees plain candle tensors and returns a plain candle result.
//!
//! | question | answer |
//! |---|---|
//! | what went wrong? | [`Error`], [`ResourceExhausted`], [`DeviceFault`], and [`ErrorExt`] for any candle error |
//! | how much memory is there, who may use it? | [`DeviceMemory`], [`TrackingAllocator`] |
//! | how is the work cut? | [`Batch`], [`BatchPolicy`], [`Predictive`], [`MemoryModel`], [`process_batches`], [`find_batch_size`] |
//! | how do parameters move? | [`AdamW`], [`Adam`], [`Sgd`], [`Lion`], [`Adafactor`], [`LearningRate`], [`Commit`] for any other |
//! | is this machine fit, and if not, what to do? | [`Environment`], [`Report`], [`Finding`] |
//! | who drives? | [`GradientAccumulator`], [`AccumulatingTrainer`], [`AdaptiveTrainer`] |
//! | what happened, and what is the GPU doing? | [`Timeline`], [`IncidentLog`], [`Monitor`], [`Observer`] for your own |
//!
//! # What it is not
//! No training framework: no data loaders, no metrics, no checkpoints of your model. No memory manager: on a GPU the driver's own pool
//! serves candle, and on the host a limit is soft, because candle's CPU backend cannot have an allocation refused. No repair of a lost device: after a sticky
//! fault a process can only end in order.
//!
//! # Features
//! None is on by default, and the default build runs on the CPU. `cuda` turns on candle's CUDA backend and
//! [`DeviceMemory::cuda`]. `serde` makes [`Report`], [`MemoryModel`], [`Plan`] and [`Explanation`] serializable. `metrics` adds a sink for the
//! crate of that name. `nvtx` adds `NvtxRanges`, which shows phases in NVIDIA's profilers. `testing` adds a module of that name,
//! which makes memory run out on purpose.

#![deny(missing_docs, clippy::undocumented_unsafe_blocks)]
#![warn(missing_debug_implementations)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod batch;
pub mod environment;
pub mod error;
mod facts;
mod files;
pub mod incident;
pub mod memory;
pub mod monitor;
mod nvml;
pub mod optim;
mod output;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(not(feature = "testing"))]
mod testing;
pub mod timeline;
pub mod train;

pub use bytesize::ByteSize;

pub use batch::{
    Batch, BatchPolicy, BatchProcessor, Completed, Decay, Event, Extent, Failed, Fixed, Halving,
    MemoryModel, MicroBatch, Moment, Observer, Plan, Prediction, Predictive, Processed, Reason,
    Task, find_batch_size, find_batch_size_within, process_batches,
};
pub use environment::{
    Coloured, Environment, Finding, FindingCode, Gpu, Report, Requirement, Severity,
    UnknownRequirement,
};
pub use error::{
    BatchError, Cause, DeviceFault, Error, ErrorExt, Holding, LossError, MemoryError,
    MemoryReading, MonitorError, Neighbour, OptimizerError, OutputError, ParameterError, Phase,
    PolicyError, Remedy, Resource, ResourceExhausted, Result, StateError, UpdateInterrupted,
    WindowLost,
};
pub use incident::{Incident, IncidentLog, IncidentSummary, Incidents};
pub use memory::{
    AUTO_FRACTION, CudaMemoryBuilder, DEVICE_AUTO_FRACTION, DeviceMemory, Enforcement, Growth,
    HostMemoryBuilder, Limit, MemoryStats, OverLimit, PEAK_ERROR, PeakScope, TrackingAllocator,
};
#[cfg(feature = "metrics")]
pub use monitor::MetricsSink;
pub use monitor::{
    Crossing, FileSink, Health, HeldDown, Monitor, MonitorBuilder, Sample, Sink, Source,
    Subscription, Threshold,
};
pub use optim::{
    Adafactor, Adam, AdamW, Algorithm, Commit, Foreign, Fused, FusedBuilder, Group, GroupOptions,
    LearningRate, Lion, LossScale, ParamsAdafactor, ParamsAdam, ParamsAdamW, ParamsLion, ParamsSgd,
    Progress, Sgd, StateDict,
};
#[cfg(feature = "nvtx")]
pub use timeline::NvtxRanges;
pub use timeline::Timeline;
pub use train::{
    AccumulatingTrainer, AdaptiveTrainer, AdaptiveTrainerBuilder, Explanation, GradientAccumulator,
    Loss, StepLoss, StepReport, Window,
};

/// The snippets of the documents, compiled and run as tests.
#[cfg(all(doctest, feature = "testing"))]
mod documents {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/guide.md")]
    mod guide {}
    #[doc = include_str!("../docs/from-tensorflow.md")]
    mod from_tensorflow {}
    #[doc = include_str!("../docs/cuda.md")]
    mod cuda {}
    #[doc = include_str!("../docs/optimizers.md")]
    mod optimizers {}
    #[doc = include_str!("../docs/environment.md")]
    mod environment {}
    #[doc = include_str!("../docs/watching.md")]
    mod watching {}
}
