//! Where a run continues: crash-safe checkpoints of model, optimizer and position.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_headroom::checkpoint::{Checkpoints, Signal};
//! use candle_headroom::{AdamW, AdaptiveTrainer};
//! use candle_nn::{Module, VarBuilder, VarMap, linear};
//!
//! # let temporary = tempfile::tempdir().unwrap();
//! # let folder = temporary.path().join("run-7");
//! # fn run(folder: &std::path::Path) -> candle_headroom::Result<u64> {
//! let varmap = VarMap::new();
//! let model = linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
//! let optimizer = AdamW::builder(&varmap).learning_rate(1e-3).build()?;
//! let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
//!
//! let mut checkpoints = Checkpoints::builder(folder) // "run-7"
//!     .every_updates(2)
//!     .keep_last(2)
//!     .lowest("loss")
//!     .on_signals([Signal::Terminate, Signal::User1])
//!     .open()?;
//! if let Some(resumed) = checkpoints.resume_trainer(&mut trainer)? {
//!     println!("{resumed}"); // resumed at step 4 from run-7/step-000000004
//! }
//! for _ in trainer.updates()..4 {
//!     let x = Tensor::ones((8, 4), DType::F32, &Device::Cpu)?; // [samples, features]
//!     let report = trainer.step(&x, |x, _| model.forward(&x)?.sqr()?.mean_all())?;
//!     if checkpoints.after(&report, &trainer)?.is_break() {
//!         break; // a signal came, and the run is saved
//!     }
//! }
//! checkpoints.finish()?;
//! # Ok(trainer.updates())
//! # }
//! # assert_eq!([run(&folder)?, run(&folder)?], [4, 4]);
//! # assert!(folder.join("step-000000004/model.safetensors").exists());
//! # Ok::<(), candle_headroom::Error>(())
//! ```
//!
//! A run that reads a [loader](crate::data::Loader) calls [`resume`](Checkpoints::resume), which also returns the loader at its next batch.
//!
//! # A checkpoint
//! A folder such as `step-000000100`:
//!
//! | file | content |
//! |---|---|
//! | `model.safetensors` | parameters and named buffers; above a size several files, with Hugging Face's `model.safetensors.index.json` |
//! | `optimizer.safetensors` | the optimizer's state under PyTorch's names |
//! | `optimizer-rank-00000-of-00004.safetensors` | in place of it, of a [sharded](crate::optim::FusedBuilder::sharded) optimizer: one rank's part of the state |
//! | `state.json` | counters, positions of loaders, seeds, what policies learned, metrics, and values of the caller's |
//! | `manifest.json` | the size and the CRC-32 of each file; written last |
//!
//! # What is promised
//! - A checkpoint is written into a partial folder, which is renamed when all of it is on the disk. Once one was written, a complete
//!   checkpoint exists at every instant, also when the process is killed or the machine stops. Older ones are removed afterwards.
//! - A checkpoint is verified before it is used, and a damaged one is skipped with the reason. A CRC-32 finds each single changed bit
//!   and all changes within 32 bits; of other damage it misses one in four billion. It does not protect against forgery.
//! - Loading changes all or nothing. A trainer that has made no update and loaded nothing keeps no copy to undo it with: where reading fails
//!   half-way, it refuses to train until a checkpoint is loaded. What does not fit is refused before anything changes.
//! - If the disk is full or the folder is lost, training goes on, and saving is tried again.
//! - The optimizer's state is copied while it is saved. Where the host then has room for a copy of the model as well, a thread writes
//!   both, and training goes on; the memory of the model's copy is kept for the next checkpoint, as long as the `Checkpoints` lives.
//!   Elsewhere the model is written in place, and training waits.
//!
//! A folder has one writer, which holds the lock on its file `.lock`; where the file system has no locks this is only logged.
//!
//! # Several ranks
//! With [`group`](CheckpointsBuilder::group) all ranks call [`after`](Checkpoints::after), [`save_now`](Checkpoints::save_now),
//! [`flush`](Checkpoints::flush), [`finish`](Checkpoints::finish) and [`resume_trainer`](Checkpoints::resume_trainer) at the same
//! points, and each call does the same on all of them:
//! - Rank 0 writes, by its own settings and with its own values and metrics. What the others set is not saved.
//! - Of a sharded optimizer each rank writes its part of the state, while training waits, and rank 0 the rest with the manifest. Where rank 0
//!   does not see a file of another rank, because that is on another disk, it gets all parts, in messages of 64 MiB, and writes the whole state.
//! - Rank 0 reads, and sends parameters and state to the others, which need no access to the folder. They change once it has loaded both, so they
//!   keep no copy of what they had. Of a sharded optimizer each rank keeps its part of a tensor as it comes, and no rank has the whole state.
//! - All return the same outcome. Where a rank cannot write, the others have an [error of checkpoints](crate::Error::is_checkpoint) with its reason;
//!   any other error of a rank is a [`PeerFailed`](crate::error::GroupError::PeerFailed) on the others. A rank that dies is a
//!   [`PeerLost`](crate::error::GroupError::PeerLost).
//! - A signal that reaches one rank stops all of them after the same update.
//! - A run can continue from a checkpoint on any number of ranks, also without a group.

mod builder;
#[allow(
    clippy::module_inception,
    reason = "the file is named for the type that it defines"
)]
mod checkpoint;
mod checkpoints;
mod document;
mod files;
mod folder;
mod load;
mod model;
mod outcome;
#[cfg(not(feature = "object-store"))]
#[path = "no_remote.rs"]
mod remote;
#[cfg(feature = "object-store")]
mod remote;
mod resume;
mod save;
mod schedule;
#[allow(unsafe_code, reason = "an action that a signal's handler runs")]
mod signals;
mod snapshot;
mod writer;

pub use builder::CheckpointsBuilder;
pub use checkpoint::Checkpoint;
pub use checkpoints::Checkpoints;
pub use model::{LoadModel, load_model};
pub use outcome::{Resumed, Saving, Stopped};
pub use signals::Signal;
