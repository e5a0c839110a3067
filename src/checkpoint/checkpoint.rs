use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use candle_core::Device;
use serde::de::DeserializeOwned;

use super::document::{Document, Fingerprint, MANIFEST, Manifest, STATE, open, unread};
use super::folder::{Name, checkpoints};
use super::load::{
    Named, Replaced, Saved, Tensors, Tolerance, bytes, check_memory, fit, read_headers,
};
use super::snapshot::PART;
use crate::error::{CheckpointError, Error, Invalid, Result, Skipped, Subject};
use crate::fixed_file::FixedFile;
use crate::optim::{PIECES, STEP, StateDict, entry, read_pieces, take_pieces};
use crate::train::Resumable;

/// A saved checkpoint whose sizes and checksums are those of its manifest. Its files stay open, and a file that changes afterwards is an
/// error when tensors are read from it. A run may remove the checkpoint meanwhile.
///
/// [`Checkpoints::resume`](super::Checkpoints::resume) continues a run from one; this reads one, for example to evaluate it.
///
/// ```
/// use candle_core::{DType, Device, Var};
/// use candle_headroom::checkpoint::{Checkpoint, Checkpoints};
/// use candle_headroom::{AdamW, AdaptiveTrainer};
///
/// # let temporary = tempfile::tempdir().unwrap();
/// # let folder = temporary.path().join("run-7");
/// let optimizer = AdamW::builder(vec![("w", Var::zeros(4, DType::F32, &Device::Cpu)?)]).build()?;
/// let trainer = AdaptiveTrainer::builder(optimizer).build()?;
/// let mut checkpoints = Checkpoints::builder(&folder).open()?;
/// checkpoints.set("vocabulary", &["a", "b"])?;
/// checkpoints.save_now(&trainer)?;
///
/// let latest = Checkpoint::latest(&folder)?.expect("one was saved");
/// assert_eq!(latest.step(), 0);
/// assert_eq!(latest.get::<Vec<String>>("vocabulary")?.unwrap(), ["a", "b"]);
/// assert_eq!(latest.state()?.tensors["w.exp_avg"].dims(), [4]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    pub(super) document: Document,
    files: BTreeMap<String, FixedFile>,
    skipped: Vec<Skipped>,
}

impl Checkpoint {
    /// Opens and verifies the checkpoint in this folder, such as `run-7/step-000000100`.
    ///
    /// ```
    /// # use candle_headroom::checkpoint::{Checkpoint, Checkpoints};
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let temporary = tempfile::tempdir()?;
    /// # let folder = temporary.path().join("run-7");
    /// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
    /// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
    /// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let saved = Checkpoints::builder(&folder).open()?.save_now(&trainer)?;
    /// assert_eq!(Checkpoint::open(&saved)?.step(), 0);
    /// std::fs::write(saved.join("state.json"), "{}")?;
    /// let error = Checkpoint::open(&saved).unwrap_err();
    /// assert!(error.to_string().contains("is damaged: state.json has 2 bytes, not "), "{error}");
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// [`CheckpointError`]: `Damaged` if a file is missing or is not what the manifest says; `File` if it cannot be read, or another version of
    /// this crate wrote it.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        Ok(Self::verified(path.into())?)
    }

    /// Compares every file with the manifest.
    pub(super) fn verified(path: PathBuf) -> Result<Self, CheckpointError> {
        let damaged = |problem: String| CheckpointError::damaged(&path, problem);
        let manifest = Manifest::read(&path)?;
        let folder = path.file_name().and_then(|name| name.to_str());
        let name = folder.and_then(Name::parse);
        if let Some(name) = name.filter(|name| name.step != manifest.step) {
            return Err(damaged(format!(
                "{MANIFEST} is that of step {}, not {}",
                manifest.step, name.step
            )));
        }
        let mut files = BTreeMap::new();
        for (file, expected) in manifest.files {
            let read = open(&path.join(&file)).and_then(|it| Ok((Fingerprint::of(&it)?, it)));
            let (found, content) = read.map_err(unread(&path, &file))?;
            if found.bytes != expected.bytes {
                let (is, was) = (found.bytes, expected.bytes);
                return Err(damaged(format!("{file} has {is} bytes, not {was}")));
            }
            if found.crc32 != expected.crc32 {
                let (is, was) = (found.crc32, expected.crc32);
                return Err(damaged(format!("{file} has checksum {is}, not {was}")));
            }
            files.insert(file, content);
        }
        let state = files.get(STATE);
        let state = state.ok_or_else(|| damaged(format!("{STATE} is missing")))?;
        Ok(Self {
            document: Document::read(&path, state)?,
            path,
            files,
            skipped: Vec::new(),
        })
    }

    /// Opens the newest intact checkpoint of a run's folder; `None` if the folder holds none or does not exist. The run may go on
    /// meanwhile, in this process or another one.
    ///
    /// ```
    /// # use candle_headroom::checkpoint::{Checkpoint, Checkpoints};
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let temporary = tempfile::tempdir()?;
    /// # let folder = temporary.path().join("run-7");
    /// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
    /// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
    /// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// assert!(Checkpoint::latest(&folder)?.is_none()); // there is no folder yet
    /// Checkpoints::builder(&folder).open()?.save_now(&trainer)?;
    /// assert_eq!(Checkpoint::latest(&folder)?.expect("one was saved").step(), 0);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// [`CheckpointError`]: `NoneIntact` if all are damaged, with the reason for each; `File` if the newest one or the folder cannot be read, or
    /// another version of this crate wrote it. Neither is damage, so no older one is taken instead: to go on from that, move the newest away.
    pub fn latest(folder: impl AsRef<Path>) -> Result<Option<Self>> {
        let folder = folder.as_ref();
        loop {
            let names = checkpoints(folder)?;
            let mut skipped = Vec::new();
            for name in &names {
                let path = folder.join(name.to_string());
                match Self::verified(path.clone()) {
                    Ok(found) => return Ok(Some(Self { skipped, ..found })),
                    // Its run has replaced it by a newer one.
                    Err(_) if matches!(path.try_exists(), Ok(false)) => {}
                    Err(CheckpointError::Damaged { problem, .. }) => {
                        tracing::warn!(path = %path.display(), problem, "a damaged checkpoint is skipped");
                        skipped.push(Skipped::new(&path, problem));
                    }
                    Err(other) => return Err(other.into()),
                }
            }
            if checkpoints(folder)?.first() != names.first() {
                continue;
            }
            return match skipped.is_empty() {
                true => Ok(None),
                false => Err(CheckpointError::NoneIntact {
                    folder: folder.to_owned(),
                    skipped,
                }
                .into()),
            };
        }
    }

    /// Returns the checkpoint's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of updates when it was saved.
    pub fn step(&self) -> u64 {
        self.document.step
    }

    /// Returns the newer checkpoints that [`latest`](Self::latest) skipped because they are damaged, newest first.
    ///
    /// ```
    /// # use candle_headroom::checkpoint::{Checkpoint, Checkpoints};
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let temporary = tempfile::tempdir()?;
    /// # let folder = temporary.path().join("run-7");
    /// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
    /// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
    /// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let mut checkpoints = Checkpoints::builder(&folder).open()?;
    /// checkpoints.save_now(&trainer)?;
    /// trainer.step(&x, |x, _| x.broadcast_mul(&w)?.mean_all())?;
    /// let newest = checkpoints.save_now(&trainer)?;
    /// std::fs::remove_file(newest.join("model.safetensors"))?;
    ///
    /// let latest = Checkpoint::latest(&folder)?.expect("the older one");
    /// assert_eq!((latest.step(), &latest.skipped()[0].path), (0, &newest));
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// Returns the metrics that were saved with it: `loss`, if [`Checkpoints::after`](super::Checkpoints::after) saved it, and those of
    /// [`Checkpoints::metric`](super::Checkpoints::metric).
    ///
    /// ```
    /// # use candle_headroom::checkpoint::{Checkpoint, Checkpoints};
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let temporary = tempfile::tempdir()?;
    /// # let folder = temporary.path().join("run-7");
    /// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
    /// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
    /// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let mut checkpoints = Checkpoints::builder(&folder).open()?;
    /// checkpoints.metric("accuracy", 0.75);
    /// let saved = Checkpoint::open(checkpoints.save_now(&trainer)?)?;
    /// assert_eq!(saved.metrics().get("accuracy"), Some(&0.75));
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn metrics(&self) -> &BTreeMap<String, f64> {
        &self.document.metrics
    }

    /// Returns the value that [`Checkpoints::set`](super::Checkpoints::set) saved under this key; `None` if there was none.
    ///
    /// ```
    /// # use candle_headroom::checkpoint::{Checkpoint, Checkpoints};
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let temporary = tempfile::tempdir()?;
    /// # let folder = temporary.path().join("run-7");
    /// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
    /// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
    /// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let mut checkpoints = Checkpoints::builder(&folder).open()?;
    /// checkpoints.set("layers", &12)?;
    /// let saved = Checkpoint::open(checkpoints.save_now(&trainer)?)?;
    /// assert_eq!(saved.get::<u32>("layers")?, Some(12));
    /// assert_eq!(saved.get::<u32>("heads")?, None);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// An [error of checkpoints](Error::is_checkpoint) if it is not a `T`.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        get(&self.document.values, key)
    }

    /// Reads the trainer's state, that of the optimizer included, into host memory. Tensors have PyTorch's names, such as `w.exp_avg`.
    ///
    /// # Errors
    /// [`CheckpointError::File`] if a file cannot be read or has changed, or files of several ranks do not fit together; errors from candle.
    pub fn state(&self) -> Result<StateDict> {
        let mut state = StateDict {
            metadata: self.document.training.clone(),
            ..StateDict::default()
        };
        for tensors in self.state_in_pieces()? {
            state.tensors.extend(tensors?);
        }
        Ok(state)
    }

    /// Reads the tensors of the state some at a time: one, or those of one parameter, of which several ranks have written parts.
    pub(super) fn state_in_pieces(&self) -> Result<Box<dyn Iterator<Item = Result<Named>> + '_>> {
        let files: Vec<_> = self.files("optimizer").collect();
        if !files.iter().any(|(name, _)| name.starts_with(PART)) {
            let saved = read_headers(&self.path, files.into_iter())?.into_iter();
            let load = |(name, it): (_, Saved<'_>)| Ok([(name, it.load(&Device::Cpu)?)].into());
            return Ok(Box::new(saved.map(load)));
        }
        let damaged = |error: Error| CheckpointError::damaged(&self.path, error.to_string());
        let mut parts = Vec::new();
        for (name, file) in files {
            let saved = read_headers(&self.path, std::iter::once((name, file)))?;
            let text = file.text();
            let mut text = text.map_err(CheckpointError::file("read", file.path()))?;
            let pieces = take_pieces(&mut text).and_then(|pieces| read_pieces(&pieces));
            parts.push((saved, pieces.map_err(damaged)?));
        }
        let names: BTreeSet<_> = parts
            .iter()
            .flat_map(|(_, it)| it.keys().cloned())
            .collect();
        Ok(Box::new(names.into_iter().map(move |name| {
            let states = parts.iter().map(|(saved, pieces)| {
                let own = pieces.get(&name).map(|piece| (&name, piece));
                let own: BTreeMap<_, _> = own.into_iter().collect();
                let kept = own
                    .values()
                    .flat_map(|piece| &piece.kept)
                    .map(String::as_str);
                let entries = kept.chain([STEP]).map(|kept| entry(&name, kept));
                let found = entries.filter_map(|entry| saved.get_key_value(&entry));
                let tensors = found.map(|(name, it)| Ok((name.clone(), it.load(&Device::Cpu)?)));
                let pieces = serde_json::to_string(&own).map_err(candle_core::Error::wrap)?;
                Ok(StateDict {
                    tensors: tensors.collect::<Result<_>>()?,
                    metadata: [(PIECES.to_owned(), pieces)].into(),
                })
            });
            let merged = StateDict::merge(states.collect::<Result<_>>()?);
            Ok(merged.map_err(damaged)?.tensors)
        })))
    }

    /// Sets the parameters of a trainer's model in place, and the trainer's state. Nothing is locked or written. For a run that
    /// saves, also one of several ranks, call [`Checkpoints::resume`](super::Checkpoints::resume), which calls this.
    ///
    /// While it loads, the host holds a copy of the parameters as they were, to restore them if something fails. For a trainer that has made no
    /// update and loaded nothing no copy is made.
    ///
    /// ```
    /// # use candle_headroom::checkpoint::{Checkpoint, Checkpoints};
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let temporary = tempfile::tempdir()?;
    /// # let folder = temporary.path().join("run-7");
    /// # let w = Var::ones(2, DType::F32, &Device::Cpu)?;
    /// # let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// # let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1).build()?;
    /// # let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// let saved = Checkpoints::builder(&folder).open()?.save_now(&trainer)?;
    /// w.set(&w.zeros_like()?)?; // as in a new process
    /// Checkpoint::open(saved)?.resume(&mut trainer)?;
    /// assert_eq!(w.to_vec1::<f32>()?, [1., 1.]);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// [`CheckpointError`]: `Differs` with every difference of the model, `File` if a file has changed; an [error of
    /// checkpoints](Error::is_checkpoint) if two parameters have one name; [`ResourceExhausted`](crate::ResourceExhausted) if the host lacks the
    /// memory;
    /// [`StateError`](crate::error::StateError) with every difference of the optimizer's state; errors from candle. The trainer is as it
    /// was then; one that has made no update and loaded nothing refuses to train ([`UpdateInterrupted`](crate::error::UpdateInterrupted))
    /// until a checkpoint is loaded, if reading failed after the first parameter was set.
    pub fn resume<T: Resumable + ?Sized>(&self, trainer: &mut T) -> Result<()> {
        self.check(trainer, |bytes| bytes)?;
        let state = self.state()?;
        self.load(trainer, &state, |loaded| loaded)
    }

    /// Sets the parameters, and the trainer's state, which is this checkpoint's. The parameters are as they were if `then` fails, which is
    /// called with how loading ended.
    pub(super) fn load<T: Resumable + ?Sized>(
        &self,
        trainer: &mut T,
        state: &StateDict,
        then: impl FnOnce(Result<()>) -> Result<()>,
    ) -> Result<()> {
        let mut before = Replaced::default();
        let done = then(self.replace(trainer, state, &mut before));
        done.inspect_err(|_| before.restore())
    }

    fn replace<T: Resumable + ?Sized>(
        &self,
        trainer: &mut T,
        state: &StateDict,
        before: &mut Replaced,
    ) -> Result<()> {
        let (saved, model) = (self.tensors("model")?, trainer.model());
        let fitting = fit(&self.path, &saved, &model, &Tolerance::default())?;
        let is_new = trainer.is_new();
        if is_new {
            // What does not fit is refused before the first parameter changes. Parts of the state may start from the parameters, so it is
            // loaded again behind them.
            trainer.load_state(state)?;
            trainer.begin_load();
        }
        before.set(fitting, !is_new)?;
        trainer.load_state(state)
    }

    /// Compares it with a trainer's model, which it does not change, and with the memory that there is: for what `taken` makes of the state's
    /// bytes, and for the parameters that it replaces, unless the trainer is new. Returns the state's bytes.
    pub(super) fn check<T: Resumable + ?Sized>(
        &self,
        trainer: &T,
        taken: impl FnOnce(u64) -> u64,
    ) -> Result<u64> {
        let saved = self.tensors("model")?;
        // Files of several ranks have tensors of the same names.
        let states = self.files("optimizer").map(|file| {
            let tensors = read_headers(&self.path, std::iter::once(file))?;
            Ok(bytes(&tensors))
        });
        let states = states.sum::<Result<u64, CheckpointError>>()?;
        let before = if trainer.is_new() { 0 } else { bytes(&saved) };
        check_memory(&self.path, before.saturating_add(taken(states)))?;
        let model = trainer.model();
        fit(&self.path, &saved, &model, &Tolerance::default())?;
        Ok(states)
    }

    /// The tensors of `model` or `optimizer`.
    pub(super) fn tensors(&self, name: &str) -> Result<Tensors<'_>> {
        Ok(read_headers(&self.path, self.files(name))?)
    }

    /// The safetensors files of `model` or `optimizer`.
    fn files(&self, name: &str) -> impl Iterator<Item = (&str, &FixedFile)> {
        let files = self.files.iter();
        let files = files.map(|(file, content)| (file.as_str(), content));
        files.filter(move |(file, _)| {
            let rest = file.strip_prefix(name);
            rest.is_some_and(|rest| rest.ends_with(".safetensors"))
        })
    }
}

/// The value under a key as a `T`.
pub(super) fn get<T: DeserializeOwned>(
    values: &BTreeMap<String, serde_json::Value>,
    key: &str,
) -> Result<Option<T>> {
    let value = values.get(key).map(T::deserialize);
    value.transpose().map_err(unusable(key))
}

/// The error for a value that cannot be written as JSON, or that is saved as another type.
pub(super) fn unusable(key: &str) -> impl FnOnce(serde_json::Error) -> Error {
    move |reason| {
        let text = format!(
            "the value `{key}` cannot be converted: {reason}; save and read it as the same type, one that JSON can hold"
        );
        Invalid::new(Subject::Checkpoint, text)
            .showing(reason)
            .into()
    }
}
