use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use candle_core::{DType, Device, Result as CandleResult, Shape, Tensor};
use candle_nn::Init;
use candle_nn::var_builder::SimpleBackend;
use safetensors::tensor::{Metadata, TensorInfo};

/// The longest header, as the crate `safetensors` has it.
const MOST_HEADER: u64 = 100_000_000;

/// The tensors of safetensors files, each of which is read when it is asked for. Nothing is mapped: a file that another program shortens
/// would be a signal that ends the process, and a header that it changes would be other bytes than those that were checked.
pub struct Weights {
    files: Vec<Opened>,
    /// By its name, the file of a tensor, and what it is.
    tensors: HashMap<String, (usize, TensorInfo)>,
}

/// An open file as it was when it was opened.
struct Opened {
    path: PathBuf,
    file: Mutex<File>,
    len: u64,
    modified: Option<SystemTime>,
    /// Where its tensors' bytes begin.
    data: u64,
}

impl Weights {
    /// Reads the headers of files, and checks that each file is whole.
    pub fn open(paths: &[PathBuf]) -> Result<Self> {
        let (mut files, mut tensors) = (Vec::new(), HashMap::new());
        for path in paths {
            let mut open = || {
                let (opened, metadata) = Opened::new(path)?;
                for (name, info) in metadata.tensors() {
                    if tensors
                        .insert(name.clone(), (files.len(), info.clone()))
                        .is_some()
                    {
                        bail!("`{name}` is in two files")
                    }
                }
                Ok(opened)
            };
            let opened = open().with_context(|| format!("cannot read {}", path.display()))?;
            files.push(opened);
        }
        Ok(Self { files, tensors })
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.tensors.keys()
    }

    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors
            .get(name)
            .map(|(_, info)| info.shape.as_slice())
    }

    pub fn load(&self, name: &str, device: &Device) -> Result<Tensor> {
        let found = self.tensors.get(name);
        let found = found.and_then(|(file, info)| Some((self.files.get(*file)?, info)));
        let Some((file, info)) = found else {
            bail!("there is no tensor `{name}`")
        };
        let read = || {
            let (from, to) = info.data_offsets;
            let bytes = file.read(file.data + from as u64, to - from)?;
            let dtype = DType::try_from(info.dtype)?;
            anyhow::Ok(Tensor::from_raw_buffer(&bytes, dtype, &info.shape, device)?)
        };
        read().with_context(|| format!("cannot read `{name}` of {}", file.path.display()))
    }
}

impl Opened {
    fn new(path: &Path) -> Result<(Self, Metadata)> {
        let file = File::open(path)?;
        let found = file.metadata()?;
        if !found.is_file() {
            bail!("it is not a regular file")
        }
        let mut opened = Self {
            path: path.to_owned(),
            file: Mutex::new(file),
            len: found.len(),
            modified: found.modified().ok(),
            data: 0,
        };
        let mut length = [0; 8];
        length.copy_from_slice(&opened.read(0, 8)?);
        let header = u64::from_le_bytes(length);
        opened.data = match header.checked_add(8) {
            Some(data) if header <= MOST_HEADER && data <= opened.len => data,
            _ => bail!("its header has {header} bytes, in a file of {}", opened.len),
        };
        let metadata: Metadata = serde_json::from_slice(&opened.read(8, header as usize)?)?;
        let end = opened.data.checked_add(metadata.data_len() as u64);
        if end != Some(opened.len) {
            bail!("it is not as long as its header says")
        }
        Ok((opened, metadata))
    }

    /// Reads at a position, of a file that has not changed.
    fn read(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        let Ok(mut file) = self.file.lock() else {
            bail!("a thread that read it panicked")
        };
        if at.checked_add(len as u64).is_none_or(|end| end > self.len) {
            bail!("it ends at byte {}", self.len)
        }
        let mut bytes = vec![0; len];
        file.seek(SeekFrom::Start(at))?;
        let read = file.read_exact(&mut bytes);
        let now = file.metadata()?;
        if now.len() != self.len || now.modified().ok() != self.modified {
            bail!("it was changed while it was open")
        }
        read?;
        Ok(bytes)
    }
}

impl SimpleBackend for Weights {
    fn get(
        &self,
        expected: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> CandleResult<Tensor> {
        let tensor = self.get_unchecked(name, dtype, device)?;
        match tensor.shape() == &expected {
            true => Ok(tensor),
            false => Err(candle_core::Error::UnexpectedShape {
                msg: format!("shape mismatch for {name}"),
                expected,
                got: tensor.shape().clone(),
            }),
        }
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> CandleResult<Tensor> {
        let tensor = self.load(name, device);
        let tensor = tensor.map_err(|error| candle_core::Error::Msg(format!("{error:#}")))?;
        tensor.to_dtype(dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }
}
