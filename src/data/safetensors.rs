use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};

use super::open;
use crate::data::dataset::{Dataset, out_of_range};
use crate::elements;
use crate::error::{BoxedError, DataError, Result, invalid};
use crate::fixed_file::{FixedFile, StoredTensor};

/// Tensors of a safetensors file: a sample is one row of each.
///
/// The tensors have a common first dimension, the samples. A sample is a vector of tensors on the CPU, read from the file,
/// without that dimension and in the order of [`SafetensorsBuilder::tensors`].
///
/// The file must stay as it is: once its length or its modification time has changed, reading is an error.
///
/// ```
/// use std::collections::HashMap;
///
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::data::{Dataset, SafetensorsDataset};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("train.safetensors");
/// let x = Tensor::zeros((10, 3), DType::F32, &Device::Cpu)?;
/// let y = Tensor::arange(0u32, 10, &Device::Cpu)?;
/// candle_core::safetensors::save(&HashMap::from([("x", x), ("y", y)]), &path)?;
///
/// let pairs = SafetensorsDataset::builder(&path).tensors(["x", "y"]).open()?;
/// let sample = pairs.get(7)?;
/// assert_eq!((sample[0].dims(), sample[1].to_scalar::<u32>()?), (&[3][..], 7));
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug)]
pub struct SafetensorsDataset {
    file: FixedFile,
    tensors: Vec<Rows>,
    len: usize,
}

/// A tensor in the file.
#[derive(Debug)]
struct Rows {
    dtype: DType,
    /// Of one row.
    shape: Vec<usize>,
    row_bytes: u64,
    /// Where the first row is in the file.
    start: u64,
}

/// Settings of [`SafetensorsDataset`], from [`SafetensorsDataset::builder`].
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_headroom::data::{Dataset, SafetensorsDataset};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("train.safetensors");
/// # let x = Tensor::zeros((10, 3), DType::F32, &Device::Cpu)?;
/// # let y = Tensor::arange(0u32, 10, &Device::Cpu)?;
/// # candle_core::safetensors::save(&std::collections::HashMap::from([("x", x), ("y", y)]), &path)?;
/// let rows = SafetensorsDataset::builder(&path).tensors(["y"]).open()?;
/// assert_eq!(rows.get(9)?[0].to_scalar::<u32>()?, 9);
/// # Ok::<(), candle_headroom::error::BoxedError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct SafetensorsBuilder {
    path: PathBuf,
    names: Option<Vec<String>>,
}

impl SafetensorsDataset {
    /// Describes a file, with all its tensors in the order of their names.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom::data::{Dataset, SafetensorsDataset};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("train.safetensors");
    /// # let x = Tensor::zeros((10, 3), DType::F32, &Device::Cpu)?;
    /// # let y = Tensor::arange(0u32, 10, &Device::Cpu)?;
    /// # candle_core::safetensors::save(&std::collections::HashMap::from([("y", y), ("x", x)]), &path)?;
    /// let pairs = SafetensorsDataset::builder(&path).open()?; // `x`, then `y`
    /// assert_eq!((pairs.len(), pairs.get(0)?[0].dims()), (10, &[3][..]));
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn builder(path: impl Into<PathBuf>) -> SafetensorsBuilder {
        SafetensorsBuilder {
            path: path.into(),
            names: None,
        }
    }
}

impl SafetensorsBuilder {
    /// Selects tensors by name, which come in this order in each sample; by default all, in the order of their names.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom::data::{Dataset, SafetensorsDataset};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("train.safetensors");
    /// # let x = Tensor::zeros((10, 3), DType::F32, &Device::Cpu)?;
    /// # let y = Tensor::arange(0u32, 10, &Device::Cpu)?;
    /// # candle_core::safetensors::save(&std::collections::HashMap::from([("x", x), ("y", y)]), &path)?;
    /// let pairs = SafetensorsDataset::builder(&path).tensors(["y", "x"]).open()?;
    /// let sample = pairs.get(7)?;
    /// assert_eq!((sample[0].rank(), sample[1].rank()), (0, 1)); // a number and a row
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn tensors<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.names = Some(names.into_iter().map(S::into).collect());
        self
    }

    /// Opens the file and checks its header and the selected tensors.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom::data::SafetensorsDataset;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("train.safetensors");
    /// # let x = Tensor::zeros((10, 3), DType::F32, &Device::Cpu)?;
    /// # let y = Tensor::arange(0u32, 10, &Device::Cpu)?;
    /// # candle_core::safetensors::save(&std::collections::HashMap::from([("x", x), ("y", y)]), &path)?;
    /// let error = SafetensorsDataset::builder(&path).tensors(["labels"]).open().unwrap_err();
    /// assert!(error.to_string().ends_with("has no tensor `labels`; it has x, y"), "{error}");
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// [`DataError::File`] if the file cannot be read or is damaged, if a tensor is missing, has no dimension or a type that
    /// candle cannot hold, or if the first dimensions differ; an [error of data](crate::Error::is_data) if no tensor is
    /// selected.
    pub fn open(self) -> Result<SafetensorsDataset> {
        let path = self.path.as_path();
        let file = open(path)?;
        let stored = file.tensors();
        let stored = stored.map_err(|error| DataError::io(path, 0, error))?;
        let all = || -> Vec<_> { stored.iter().map(|(name, _)| name.clone()).collect() };
        let names = self.names.unwrap_or_else(&all);
        let (mut tensors, mut len) = (Vec::new(), None);
        for name in &names {
            let found = stored.iter().find(|(known, _)| known == name);
            let (_, tensor) = found.ok_or_else(|| {
                let problem = format!("has no tensor `{name}`; it has {}", all().join(", "));
                DataError::file(path, None, problem)
            })?;
            let wrong = |problem| DataError::file(path, None, format!("tensor `{name}` {problem}"));
            let (samples, rows) = Rows::new(tensor).map_err(wrong)?;
            let first = *len.get_or_insert(samples);
            if first != samples {
                let problem = format!("has {samples} rows, tensor `{}` has {first}", names[0]);
                return Err(wrong(problem).into());
            }
            tensors.push(rows);
        }
        let none = || invalid!(Data, "{}: select at least one tensor", path.display());
        let len = len.ok_or_else(none)?;
        Ok(SafetensorsDataset { file, tensors, len })
    }
}

impl Rows {
    /// The number of rows, and where they are.
    fn new(tensor: &StoredTensor) -> Result<(usize, Self), String> {
        let unsupported = || format!("has type {:?}, which candle cannot hold", tensor.dtype);
        let dtype = DType::try_from(tensor.dtype).map_err(|_| unsupported())?;
        if !tensor.dtype.bitsize().is_multiple_of(8) {
            return Err(unsupported());
        }
        let (samples, shape) = tensor.shape.split_first().ok_or("has no dimension")?;
        let bytes = tensor.range.end - tensor.range.start;
        let rows = Self {
            dtype,
            shape: shape.to_vec(),
            row_bytes: bytes.checked_div(*samples as u64).unwrap_or(0),
            start: tensor.range.start,
        };
        Ok((*samples, rows))
    }
}

impl Dataset for SafetensorsDataset {
    type Sample = Vec<Tensor>;

    fn len(&self) -> usize {
        self.len
    }

    /// Reads one row of each tensor.
    ///
    /// # Errors
    /// [`DataError::File`] if the file cannot be read or has changed since it was opened; and another one for an index out of
    /// range.
    fn get(&self, index: usize) -> Result<Vec<Tensor>, BoxedError> {
        if index >= self.len {
            return Err(out_of_range(self, index).into());
        }
        let failed = |reason| DataError::io(self.file.path(), None, reason);
        let row = |rows: &Rows| {
            let at = rows.start + index as u64 * rows.row_bytes;
            elements::from_bytes(rows.dtype, &rows.shape, &Device::Cpu, |bytes| {
                Ok::<_, BoxedError>(self.file.read_at(bytes, at).map_err(failed)?)
            })
        };
        let rows = self.tensors.iter().map(row).collect();
        self.file.check().map_err(failed)?;
        rows
    }

    fn name(&self) -> String {
        self.file.path().display().to_string()
    }
}
