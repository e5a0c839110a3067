use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;

use super::checkpoints::{Checkpoints, Settings};
use super::folder::{Best, Keep};
use super::signals::Signal;
use crate::distributed::Group;
use crate::error::{Result, invalid};

/// Options of [`Checkpoints`]; made by [`Checkpoints::builder`].
///
/// ```
/// # use candle_headroom::checkpoint::Checkpoints;
/// # use candle_core::{DType, Device, Tensor, Var};
/// # use candle_headroom::{AdaptiveTrainer, Sgd};
/// # let temporary = tempfile::tempdir()?;
/// # let folder = temporary.path().join("run-7");
/// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
/// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
/// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
/// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
/// let builder = Checkpoints::builder(&folder).every_updates(100).keep_last(2).highest("accuracy");
/// let mut checkpoints = builder.open()?;
/// assert_eq!(checkpoints.save_now(&trainer)?, folder.join("step-000000000"));
/// # Ok::<(), candle_headroom::error::BoxedError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "call `open()`"]
pub struct CheckpointsBuilder {
    folder: PathBuf,
    settings: Settings,
    group: Option<Group>,
    #[cfg(feature = "object-store")]
    upload_to: Option<String>,
}

impl Checkpoints {
    /// Describes the checkpoints of a run in this folder, which one `Checkpoints` at a time writes to. By default a checkpoint is saved every 30
    /// minutes, in the background, and the newest 3 are kept.
    ///
    /// ```
    /// # use candle_headroom::checkpoint::Checkpoints;
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let temporary = tempfile::tempdir()?;
    /// # let folder = temporary.path().join("run-7");
    /// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
    /// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
    /// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let mut checkpoints = Checkpoints::builder(&folder).open()?; // every 30 minutes, the last 3
    /// assert!(folder.is_dir() && checkpoints.last().is_none());
    /// let saved = checkpoints.save_now(&trainer)?;
    /// assert!(saved.join("model.safetensors").exists());
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn builder(folder: impl Into<PathBuf>) -> CheckpointsBuilder {
        CheckpointsBuilder {
            folder: folder.into(),
            settings: Settings {
                every_updates: None,
                every_duration: None,
                keep: Keep {
                    last: 3,
                    ..Keep::default()
                },
                shard_bytes: 5_000_000_000,
                in_background: true,
                signals: Vec::new(),
                upload: None,
            },
            group: None,
            #[cfg(feature = "object-store")]
            upload_to: None,
        }
    }
}

impl CheckpointsBuilder {
    /// Saves after each multiple of this number of updates, in place of the default of every 30 minutes. Together with
    /// [`every_duration`](Self::every_duration), whichever comes first. With `u64::MAX` it saves only in [`save_now`](Checkpoints::save_now) and on
    /// signals.
    ///
    /// ```
    /// # use candle_headroom::checkpoint::Checkpoints;
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let temporary = tempfile::tempdir()?;
    /// # let folder = temporary.path().join("run-7");
    /// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
    /// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
    /// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let mut checkpoints = Checkpoints::builder(&folder).every_updates(2).in_foreground().open()?;
    /// for _ in 0..3 {
    ///     let report = trainer.step(&x, |x, _| x.broadcast_mul(&w)?.mean_all())?;
    ///     if checkpoints.after(&report, &trainer)?.is_break() {
    ///         break;
    ///     }
    /// }
    /// assert_eq!(checkpoints.last(), Some(&*folder.join("step-000000002")));
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn every_updates(mut self, updates: u64) -> Self {
        self.settings.every_updates = Some(updates);
        self
    }

    /// Saves after the first update that ends this long or longer after the last checkpoint was begun; 30 minutes by default. In a
    /// [group](Self::group) rank 0's clock decides, and the ranks exchange a message after each update.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use std::time::Duration;
    /// # use candle_headroom::checkpoint::{Checkpoints, Saving};
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let temporary = tempfile::tempdir()?;
    /// # let folder = temporary.path().join("run-7");
    /// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
    /// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
    /// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let every = Duration::from_secs(600);
    /// let mut checkpoints = Checkpoints::builder(&folder).every_duration(every).open()?;
    /// let report = trainer.step(&x, |x, _| x.broadcast_mul(&w)?.mean_all())?;
    /// let after = checkpoints.after(&report, &trainer)?;
    /// assert!(matches!(after, ControlFlow::Continue(Saving::NotDue)));
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn every_duration(mut self, time: Duration) -> Self {
        self.settings.every_duration = Some(time);
        self
    }

    /// Keeps this many of the newest checkpoints; 3 by default. Older ones are removed once a new one is on the disk.
    ///
    /// ```
    /// # use candle_headroom::checkpoint::Checkpoints;
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let temporary = tempfile::tempdir()?;
    /// # let folder = temporary.path().join("run-7");
    /// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
    /// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
    /// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let mut checkpoints = Checkpoints::builder(&folder).keep_last(1).open()?;
    /// let first = checkpoints.save_now(&trainer)?;
    /// trainer.step(&x, |x, _| x.broadcast_mul(&w)?.mean_all())?;
    /// let second = checkpoints.save_now(&trainer)?;
    /// assert!(!first.exists() && second.exists());
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn keep_last(mut self, count: usize) -> Self {
        self.settings.keep.last = count;
        self
    }

    /// Also keeps the checkpoint with the lowest value of a metric; of equal values, that of the oldest. `loss` comes from the report that
    /// [`after`](Checkpoints::after) is given, other metrics from [`metric`](Checkpoints::metric). A checkpoint without a finite value of the
    /// metric is not compared.
    ///
    /// ```
    /// # use candle_headroom::checkpoint::Checkpoints;
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let temporary = tempfile::tempdir()?;
    /// # let folder = temporary.path().join("run-7");
    /// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
    /// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
    /// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let mut checkpoints = Checkpoints::builder(&folder).keep_last(1).lowest("perplexity").open()?;
    /// checkpoints.metric("perplexity", 12.5);
    /// let best = checkpoints.save_now(&trainer)?;
    /// trainer.step(&x, |x, _| x.broadcast_mul(&w)?.mean_all())?;
    /// checkpoints.metric("perplexity", 13.);
    /// checkpoints.save_now(&trainer)?;
    /// assert!(best.exists());
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn lowest(self, metric: impl Into<String>) -> Self {
        self.best(metric, false)
    }

    /// Also keeps the checkpoint with the highest value of a metric, such as an accuracy, instead of one with a [lowest](Self::lowest) value.
    ///
    /// ```
    /// # use candle_headroom::checkpoint::Checkpoints;
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let temporary = tempfile::tempdir()?;
    /// # let folder = temporary.path().join("run-7");
    /// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
    /// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
    /// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let mut checkpoints = Checkpoints::builder(&folder).keep_last(1).highest("accuracy").open()?;
    /// for accuracy in [0.75, 0.5] {
    ///     checkpoints.metric("accuracy", accuracy);
    ///     checkpoints.save_now(&trainer)?;
    ///     trainer.step(&x, |x, _| x.broadcast_mul(&w)?.mean_all())?;
    /// }
    /// assert_eq!(checkpoints.best()?, Some(folder.join("step-000000000")));
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn highest(self, metric: impl Into<String>) -> Self {
        self.best(metric, true)
    }

    fn best(mut self, metric: impl Into<String>, is_highest: bool) -> Self {
        self.settings.keep.best = Some(Best {
            metric: metric.into(),
            is_highest,
        });
        self
    }

    /// Splits a model of more than this size into several files with Hugging Face's index; 5 GB by default. A tensor is never split, so a file
    /// may be as large as the largest tensor.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Var};
    /// # use candle_headroom::checkpoint::Checkpoints;
    /// # use candle_headroom::{AdaptiveTrainer, ByteSize, Sgd};
    /// # let temporary = tempfile::tempdir()?;
    /// # let folder = temporary.path().join("run-7");
    /// # let var = || Var::ones(2, DType::F32, &Device::Cpu);
    /// # let optimizer = Sgd::builder(vec![("w", var()?), ("b", var()?)]).build()?;
    /// # let trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// // Two parameters of 8 bytes each.
    /// let mut checkpoints = Checkpoints::builder(&folder).shard_size(ByteSize(8)).open()?;
    /// let saved = checkpoints.save_now(&trainer)?;
    /// assert!(saved.join("model-00002-of-00002.safetensors").exists());
    /// assert!(saved.join("model.safetensors.index.json").exists());
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn shard_size(mut self, size: ByteSize) -> Self {
        self.settings.shard_bytes = size.as_u64();
        self
    }

    /// Writes while training waits, without a copy of the model. By default the model is copied to host memory, and a thread writes the copy
    /// while training goes on.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use candle_headroom::checkpoint::{Checkpoints, Saving};
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let temporary = tempfile::tempdir()?;
    /// # let folder = temporary.path().join("run-7");
    /// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
    /// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
    /// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let mut checkpoints = Checkpoints::builder(&folder).every_updates(1).in_foreground().open()?;
    /// let report = trainer.step(&x, |x, _| x.broadcast_mul(&w)?.mean_all())?;
    /// let after = checkpoints.after(&report, &trainer)?; // it is on the disk when this returns
    /// assert!(matches!(after, ControlFlow::Continue(Saving::Saved(_))));
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn in_foreground(mut self) -> Self {
        self.settings.in_background = false;
        self
    }

    /// Saves after the current update when one of these signals arrives; [`after`](Checkpoints::after) then returns `Break`, so that the loop
    /// can stop. Unix only.
    ///
    /// A second SIGINT ends the process at once, as by default, if it comes 2 s after the first or later. One that comes sooner does not, because
    /// launchers signal a process and its process group at once. In a [group](Self::group) one rank's signal stops all ranks after the same update:
    /// they exchange a message by way of rank 0 after each update. Dropping the `Checkpoints` restores the default actions, unless another
    /// `Checkpoints` of the process waits for the same signal.
    ///
    /// ```
    /// # use candle_headroom::checkpoint::{Checkpoints, Signal};
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let temporary = tempfile::tempdir()?;
    /// # let folder = temporary.path().join("run-7");
    /// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
    /// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
    /// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let mut checkpoints = Checkpoints::builder(&folder).on_signals([Signal::Terminate, Signal::User1]).open()?;
    /// let report = trainer.step(&x, |x, _| x.broadcast_mul(&w)?.mean_all())?;
    /// // Meanwhile: `kill -USR1 …`
    /// # // SAFETY: the call takes a number. It returns when the signal has been handled.
    /// # unsafe { libc::raise(Signal::User1.number()) };
    /// assert!(checkpoints.after(&report, &trainer)?.is_break());
    /// assert!(folder.join("step-000000001").exists());
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn on_signals(mut self, signals: impl IntoIterator<Item = Signal>) -> Self {
        self.settings.signals.extend(signals);
        self
    }

    /// Makes this the checkpoints of a run on several ranks: rank 0 writes, and all make the same calls. See the [module](super#several-ranks).
    ///
    /// ```
    /// # use candle_headroom::checkpoint::Checkpoints;
    /// # use candle_headroom::distributed::Group;
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let temporary = tempfile::tempdir()?;
    /// # let folder = temporary.path().join("run-7");
    /// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
    /// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
    /// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let group = Group::from_environment()?; // one rank, where no launcher started the program
    /// let mut checkpoints = Checkpoints::builder(&folder).group(&group).open()?;
    /// let saved = checkpoints.save_now(&trainer)?; // all ranks call it, rank 0 writes
    /// assert!(saved.join("manifest.json").exists());
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    #[cfg(feature = "distributed")]
    pub fn group(mut self, group: &Group) -> Self {
        self.group = Some(group.clone());
        self
    }

    /// Copies each checkpoint to this folder of a bucket, such as `s3://bucket/run-7`; behind the feature `object-store`.
    ///
    /// A checkpoint is complete on the disk before it is copied, and its manifest is the last object that is written. A copy that fails is a save
    /// that [failed](super::Saving::Failed): it is tried again. Of the copies the newest stay, as many as [`keep_last`](Self::keep_last) says, and those that
    /// the run's folder has, such as the best.
    ///
    /// [`open`](Self::open) copies the newest checkpoint back if the run's folder has no intact one that is as new, as on another machine. Copies
    /// are compared with the checksums of their manifest; one that is damaged is skipped for the one before. Credentials, timeouts and retries are
    /// those of [`Remote`](crate::data::Remote).
    ///
    /// ```no_run
    /// use candle_headroom::checkpoint::Checkpoints;
    ///
    /// let builder = Checkpoints::builder("/scratch/run-7").upload_to("s3://bucket/run-7");
    /// let mut checkpoints = builder.every_updates(1000).open()?; // `resume` continues from the bucket
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    #[cfg(feature = "object-store")]
    pub fn upload_to(mut self, url: impl Into<String>) -> Self {
        self.upload_to = Some(url.into());
        self
    }

    /// Creates the folder if it is missing, locks it, and removes what a killed writer left incomplete.
    ///
    /// ```
    /// # use candle_headroom::checkpoint::Checkpoints;
    /// # let temporary = tempfile::tempdir()?;
    /// # let folder = temporary.path().join("run-7");
    /// let _first = Checkpoints::builder(&folder).open()?;
    /// let error = Checkpoints::builder(&folder).open().unwrap_err(); // in this process or another one
    /// assert!(error.to_string().contains("is in use by another `Checkpoints`"), "{error}");
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// - An [error of checkpoints](crate::Error::is_checkpoint) if a number of updates or of checkpoints, a duration or a size is 0, or if a
    ///   signal cannot be waited for on this system.
    /// - [`CheckpointError`](crate::error::CheckpointError): `InUse` if the folder has a writer, and `File` if it cannot be created or written, or
    ///   its `.lock` is a link.
    /// - Where checkpoints are copied to a bucket, `File` if the bucket or the newest checkpoint of the folder cannot be read, and
    ///   `NoneIntact` if all copies are damaged and the folder has no intact checkpoint.
    /// - In a group, [`PeerFailed`](crate::error::GroupError::PeerFailed) with another rank's error.
    #[cfg_attr(
        not(feature = "object-store"),
        expect(unused_mut, reason = "there is no URL to open")
    )]
    pub fn open(mut self) -> Result<Checkpoints> {
        let checked = self.check();
        #[cfg(feature = "object-store")]
        let checked = checked.and_then(|()| {
            let upload = self.upload_to.as_deref().map(super::remote::Upload::new);
            self.settings.upload = upload.transpose()?;
            Ok(())
        });
        Checkpoints::open(&self.folder, self.settings, self.group, checked)
    }

    fn check(&self) -> Result<()> {
        let own = &self.settings;
        let zeros = [
            ("every_updates", own.every_updates == Some(0)),
            ("every_duration", own.every_duration == Some(Duration::ZERO)),
            ("keep_last", own.keep.last == 0),
            ("shard_size", own.shard_bytes == 0),
        ];
        match zeros.iter().find(|(_, is_zero)| *is_zero) {
            Some((name, _)) => Err(invalid!(Checkpoint, "`{name}` must be above 0, got 0")),
            None => Ok(()),
        }
    }
}
