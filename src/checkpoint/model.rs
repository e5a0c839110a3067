use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::checkpoint::Checkpoint;
use super::document::{MANIFEST, open, read_all};
use super::load::{Replaced, Tensors, Tolerance, bytes, check_memory, fit, read_headers};
use crate::error::{CheckpointError, Result, invalid};
use crate::files::is_plain;
use crate::optim::{Group, Parameter};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Loads a model's parameters without a trainer, for inference and fine-tuning; see [`LoadModel`].
///
/// ```
/// # use std::collections::HashMap;
/// # use candle_core::{DType, Device, Tensor, Var};
/// # use candle_headroom::checkpoint::load_model;
/// # let temporary = tempfile::tempdir()?;
/// # let path = temporary.path().join("model.safetensors");
/// # let saved = HashMap::from([("encoder.weight", Tensor::new(&[1f32, 2.], &Device::Cpu)?)]);
/// # candle_core::safetensors::save(&saved, &path)?;
/// // A file with one tensor, `encoder.weight`.
/// let weight = Var::zeros(2, DType::F32, &Device::Cpu)?;
/// load_model(&path).into_parameters(vec![("encoder.weight", weight.clone())])?;
/// assert_eq!(weight.to_vec1::<f32>()?, [1., 2.]);
/// # Ok::<(), candle_headroom::error::BoxedError>(())
/// ```
pub fn load_model(path: impl Into<PathBuf>) -> LoadModel {
    LoadModel {
        path: path.into(),
        tolerance: Tolerance::default(),
        renames: Vec::new(),
    }
}

/// Loading a model's parameters from files; made by [`load_model`].
///
/// The path may be a run's folder, of which the newest intact checkpoint is taken, one checkpoint, a folder with a
/// `model.safetensors` or with several files and Hugging Face's index, or one safetensors file. Checkpoints are verified; other files
/// have no checksums. A file that changes while it is loaded is an error.
///
/// All names, shapes and types must agree, unless an option allows a difference. Everything is compared before the first parameter
/// is set.
///
/// ```
/// use candle_core::{DType, Device, Var};
/// use candle_headroom::checkpoint::{Checkpoints, load_model};
/// use candle_headroom::{AdamW, AdaptiveTrainer};
///
/// # let temporary = tempfile::tempdir().unwrap();
/// # let folder = temporary.path().join("run-7");
/// let trained = Var::new(&[1f32, 2.], &Device::Cpu)?;
/// let optimizer = AdamW::builder(vec![("encoder.weight", trained)]).build()?;
/// let trainer = AdaptiveTrainer::builder(optimizer).build()?;
/// Checkpoints::builder(&folder).open()?.save_now(&trainer)?;
///
/// let weight = Var::zeros(2, DType::F32, &Device::Cpu)?;
/// let head = Var::zeros(3, DType::F32, &Device::Cpu)?;
/// load_model(&folder)
///     .rename("encoder.*", "model.encoder.*")
///     .allow_missing(["head.*"])
///     .into_parameters(vec![("model.encoder.weight", weight.clone()), ("head.weight", head)])?;
/// assert_eq!(weight.to_vec1::<f32>()?, [1., 2.]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "call `into_parameters()`"]
pub struct LoadModel {
    path: PathBuf,
    tolerance: Tolerance,
    renames: Vec<(String, String)>,
}

impl LoadModel {
    /// Allows these parameters to be missing in the file; they keep their values. `*` stands for any text, dots included.
    ///
    /// ```
    /// # use std::collections::HashMap;
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::checkpoint::load_model;
    /// # let temporary = tempfile::tempdir()?;
    /// # let path = temporary.path().join("model.safetensors");
    /// # let saved = HashMap::from([("encoder.weight", Tensor::new(&[1f32, 2.], &Device::Cpu)?)]);
    /// # candle_core::safetensors::save(&saved, &path)?;
    /// // A file with one tensor, `encoder.weight`.
    /// let weight = Var::zeros(2, DType::F32, &Device::Cpu)?;
    /// let head = Var::ones(3, DType::F32, &Device::Cpu)?;
    /// let parameters = vec![("encoder.weight", weight), ("head.weight", head.clone())];
    /// load_model(&path).allow_missing(["head.*"]).into_parameters(parameters)?;
    /// assert_eq!(head.to_vec1::<f32>()?, [1., 1., 1.]); // as it was
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn allow_missing(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.tolerance.missing.add(names);
        self
    }

    /// Allows the file to hold these tensors, by their names after renaming; they are ignored. `*` stands for any text, dots
    /// included.
    ///
    /// ```
    /// # use std::collections::HashMap;
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::checkpoint::load_model;
    /// # let temporary = tempfile::tempdir()?;
    /// # let path = temporary.path().join("model.safetensors");
    /// # let tensor = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// # candle_core::safetensors::save(&HashMap::from([("encoder.weight", tensor.clone()), ("pooler.weight", tensor)]), &path)?;
    /// // A file with two tensors, `encoder.weight` and `pooler.weight`.
    /// let weight = Var::zeros(2, DType::F32, &Device::Cpu)?;
    /// let encoder = vec![("encoder.weight", weight.clone())];
    /// load_model(&path).allow_unexpected(["pooler.*"]).into_parameters(encoder)?;
    /// assert_eq!(weight.to_vec1::<f32>()?, [1., 2.]);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn allow_unexpected(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.tolerance.unexpected.add(names);
        self
    }

    /// Loads the tensor `from` of the file into the parameter `to`. One `*` in both stands for the same text, dots included. The first rule that
    /// matches a name applies; names that no rule matches stay.
    ///
    /// ```
    /// # use std::collections::HashMap;
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::checkpoint::load_model;
    /// # let temporary = tempfile::tempdir()?;
    /// # let path = temporary.path().join("model.safetensors");
    /// # let saved = HashMap::from([("encoder.weight", Tensor::new(&[1f32, 2.], &Device::Cpu)?)]);
    /// # candle_core::safetensors::save(&saved, &path)?;
    /// // A file with one tensor, `encoder.weight`.
    /// let weight = Var::zeros(2, DType::F32, &Device::Cpu)?;
    /// let renamed = load_model(&path).rename("encoder.*", "model.layers.0.*");
    /// renamed.into_parameters(vec![("model.layers.0.weight", weight.clone())])?;
    /// assert_eq!(weight.to_vec1::<f32>()?, [1., 2.]);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn rename(mut self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.renames.push((from.into(), to.into()));
        self
    }

    /// Sets these parameters in place, by their names.
    ///
    /// ```
    /// # use std::collections::HashMap;
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::checkpoint::load_model;
    /// # let temporary = tempfile::tempdir()?;
    /// # let path = temporary.path().join("model.safetensors");
    /// # let saved = HashMap::from([("encoder.weight", Tensor::new(&[1f32, 2.], &Device::Cpu)?)]);
    /// # candle_core::safetensors::save(&saved, &path)?;
    /// // A file with one tensor, `encoder.weight`.
    /// let weight = Var::zeros(2, DType::F32, &Device::Cpu)?;
    /// let error = load_model(&path).into_parameters(vec![("decoder.weight", weight)]).unwrap_err();
    /// let text = error.to_string();
    /// assert!(text.contains("missing there: decoder.weight; unexpected: encoder.weight"), "{text}");
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// [`CheckpointError`]: `Differs` with every difference, `Damaged`, `NoneIntact`, `File` if there is nothing to load or it cannot be read;
    /// an [error of checkpoints](crate::Error::is_checkpoint) if two tensors get one name; [`ResourceExhausted`](crate::ResourceExhausted) if the
    /// host lacks the memory. No parameter has changed then.
    pub fn into_parameters(self, parameters: impl Into<Group>) -> Result<()> {
        let parameters: Vec<_> = parameters.into().named(0).collect();
        let path = &self.path;
        let holds = |file: &str| path.join(file).is_file();
        if path.is_file() || holds(SINGLE) && !holds(MANIFEST) {
            let file = match path.is_file() {
                true => path.clone(),
                false => path.join(SINGLE),
            };
            return self.load_files(&[file], &BTreeMap::new(), &parameters);
        }
        if holds(INDEX) && !holds(MANIFEST) {
            let index = read_index(path)?;
            let files: BTreeSet<_> = index.values().map(|file| path.join(file)).collect();
            return self.load_files(&Vec::from_iter(files), &index, &parameters);
        }
        let checkpoint = match holds(MANIFEST) {
            true => Some(Checkpoint::open(path)?),
            false => Checkpoint::latest(path)?,
        };
        let checkpoint = checkpoint.ok_or_else(|| {
            let problem = format!("it has no checkpoint, no {SINGLE} and no {INDEX}");
            CheckpointError::file("load", path)(std::io::Error::other(problem))
        })?;
        self.load(checkpoint.path(), checkpoint.tensors("model")?, &parameters)
    }

    fn load_files(
        &self,
        files: &[PathBuf],
        index: &BTreeMap<String, String>,
        parameters: &[Parameter],
    ) -> Result<()> {
        let open = |path: &PathBuf| Ok((path.display().to_string(), open(path)?));
        let files: Vec<_> = files.iter().map(open).collect::<Result<_>>()?;
        let files = files.iter().map(|(name, file)| (name.as_str(), file));
        let tensors = read_headers(&self.path, files)?;
        if let Some((name, file)) = index.iter().find(|(name, _)| !tensors.contains_key(*name)) {
            let problem = format!("{file} does not hold `{name}`, which {INDEX} expects");
            return Err(CheckpointError::damaged(&self.path, problem).into());
        }
        self.load(&self.path, tensors, parameters)
    }

    fn load(&self, path: &Path, tensors: Tensors<'_>, parameters: &[Parameter]) -> Result<()> {
        let mut renamed = BTreeMap::new();
        for (name, saved) in tensors {
            let name = self.new_name(&name);
            if renamed.insert(name.clone(), saved).is_some() {
                return Err(invalid!(
                    Checkpoint,
                    "`rename` gives two tensors the name `{name}`"
                ));
            }
        }
        let fitting = fit(path, &renamed, parameters, &self.tolerance)?;
        check_memory(path, bytes(&renamed))?;
        let mut before = Replaced::default();
        let set = before.set(fitting, true);
        set.inspect_err(|_| before.restore())
    }

    fn new_name(&self, name: &str) -> String {
        let mut renames = self.renames.iter();
        let new = renames.find_map(|(from, to)| match from.split_once('*') {
            Some((start, end)) => {
                let star = name.strip_prefix(start)?.strip_suffix(end)?;
                Some(to.replacen('*', star, 1))
            }
            None => (from == name).then(|| to.clone()),
        });
        new.unwrap_or_else(|| name.to_owned())
    }
}

/// The file of each tensor.
fn read_index(folder: &Path) -> Result<BTreeMap<String, String>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let bytes = read_all(&open(&folder.join(INDEX))?)?;
    let index: Index = serde_json::from_slice(&bytes)
        .map_err(|error| CheckpointError::damaged(folder, format!("{INDEX}: {error}")))?;
    match index.weight_map.values().find(|file| !is_plain(file)) {
        Some(file) => {
            let problem = format!("{INDEX}: `{file}` is not a file of this folder");
            Err(CheckpointError::damaged(folder, problem).into())
        }
        None => Ok(index.weight_map),
    }
}
