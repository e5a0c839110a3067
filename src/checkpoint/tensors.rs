use std::collections::BTreeMap;

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

/// The tensors of one or more safetensors files, by name.
#[derive(Debug)]
pub(super) struct Tensors<'a>(BTreeMap<String, TensorView<'a>>);

impl<'a> Tensors<'a> {
    /// Reads the files' headers. The error names the file.
    pub(super) fn read(files: impl Iterator<Item = (&'a str, &'a [u8])>) -> Result<Self, String> {
        let mut all = BTreeMap::new();
        for (file, bytes) in files {
            let read =
                SafeTensors::deserialize(bytes).map_err(|error| format!("{file}: {error}"))?;
            for (name, view) in read.tensors() {
                if all.insert(name.clone(), view).is_some() {
                    return Err(format!("{file}: tensor `{name}` is in two files"));
                }
            }
        }
        Ok(Self(all))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &TensorView<'a>)> {
        self.0.iter().map(|(name, view)| (name.as_str(), view))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.0.values().map(|view| view.data().len() as u64).sum()
    }

    /// Gives each tensor the name that `rename` returns for it. The error is a name that two would have.
    pub(super) fn renamed(self, rename: impl Fn(&str) -> String) -> Result<Self, String> {
        let mut all = BTreeMap::new();
        for (name, view) in self.0 {
            let new = rename(&name);
            if all.insert(new.clone(), view).is_some() {
                return Err(new);
            }
        }
        Ok(Self(all))
    }

    pub(super) fn get(&self, name: &str) -> Option<&TensorView<'a>> {
        self.0.get(name)
    }
}
