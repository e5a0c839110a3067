//! Who else works on this batch? Several GPUs and machines train one model.
//!
//! A launcher starts the program once for each GPU. The processes, called ranks, form a [`Group`], and a trainer with a group applies one update
//! with the samples of all ranks:
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_headroom::distributed::Group;
//! use candle_headroom::{AdamW, AdaptiveTrainer};
//! use candle_nn::{Module, VarBuilder, VarMap, linear};
//!
//! let group = Group::from_environment()?; // `mpirun -n 2 …`, torchrun, `srun`, or alone
//! let varmap = VarMap::new();
//! let model = linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
//! let optimizer = AdamW::builder(&varmap).learning_rate(1e-3).build()?;
//! let mut trainer = AdaptiveTrainer::builder(optimizer).group(&group).build()?; // takes rank 0's parameters
//!
//! let batch = Tensor::randn(0f32, 1., (64, 4), &Device::Cpu)?; // [samples, features]
//! let share = group.share(64);
//! let part = batch.narrow(0, share.start, share.len())?; // a loader with `.group(&group)` does this
//! let report = trainer.step(&part, |x, _| model.forward(&x)?.sqr()?.mean_all())?;
//! println!("{report}");
//! assert_eq!(report.samples, share.len()); // those of this rank
//! # Ok::<(), candle_headroom::Error>(())
//! ```
//!
//! # How ranks work together
//! Ranks meet once for each update, after each has accumulated the gradients of its own samples. Small messages go over TCP to
//! rank 0 and back through a tree of ranks, in which the end of a process is noticed at once. What all ranks say alike crosses each connection once.
//! Gradients go through an engine, the first of these
//! that all ranks have: NCCL between GPUs, MPI between CPUs and between GPUs without NCCL. A message comes first and says whether each rank can
//! update; only then are gradients exchanged. So a rank that runs out of memory retries by itself while the others wait, one that cannot go on
//! tells all before any has updated, and weights are known before gradients are added, so each is scaled by its part and sums cannot overflow.
//!
//! After an update all ranks have the same parameters, bit for bit: NCCL computes each piece of a sum on one rank and copies it to the others, and
//! MPI's standard requires that all ranks receive identical sums. They compare checksums now and then.

mod builder;
mod collectives;
mod control;
mod engines;
mod group;
mod launch;
#[cfg(feature = "mpi")]
#[allow(unsafe_code, reason = "calls MPI")]
mod mpi;
#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "calls NCCL")]
mod nccl;

pub use builder::GroupBuilder;
pub use collectives::{Collectives, Operation, Watch};
pub(crate) use control::Working;
pub use group::Group;
pub(crate) use group::InStep;
