use serde::{Deserialize, Serialize};

/// The longest name of a dataset, because a saved position is to stay short.
const LONGEST: usize = 40;

/// What decides which samples are in which batch of a loader. Loaders with equal fingerprints have the same batches.
///
/// It is saved with a loader's position, and ranks compare it before each update.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Fingerprint {
    /// The dataset's name, without folders, because the same files may lie elsewhere; a long one is shortened.
    pub dataset: String,
    /// Number of samples in the dataset; `None` for a stream.
    pub len: Option<usize>,
    /// The order of the samples, with its seed.
    pub order: String,
    /// The size of the batches, and how they are cut.
    pub batches: String,
    /// Number of samples of which batches are formed at a time.
    pub window: usize,
}

impl Fingerprint {
    pub(crate) fn new(
        dataset: &str,
        len: Option<usize>,
        order: String,
        (batches, window): (String, usize),
    ) -> Self {
        let names = dataset.split(' ').map(|name| {
            let mut folders = name.rsplit(['/', '\\']);
            folders.find(|name| !name.is_empty()).unwrap_or(name)
        });
        let mut dataset = names.collect::<Vec<_>>().join(" ");
        if dataset.chars().count() > LONGEST {
            let hash = crc32fast::hash(dataset.as_bytes());
            let begin: String = dataset.chars().take(LONGEST - 10).collect();
            dataset = format!("{begin}…{hash:08x}");
        }
        Self {
            dataset,
            len,
            order,
            batches,
            window,
        }
    }

    /// What differs: its name, the value here, and the other's.
    pub(crate) fn differences(
        &self,
        other: &Self,
    ) -> impl Iterator<Item = (&'static str, String, String)> {
        let pairs = self.texts().into_iter().zip(other.texts());
        pairs
            .filter(|((_, here), (_, other))| here != other)
            .map(|((what, here), (_, other))| (what, here, other))
    }

    fn texts(&self) -> [(&'static str, String); 4] {
        let len = self.len.map_or("unknown".to_owned(), |len| len.to_string());
        [
            ("dataset", format!("`{}`", self.dataset)),
            ("samples in the dataset", len),
            ("order", self.order.clone()),
            ("batches", format!("{} in {}", self.batches, self.window)),
        ]
    }
}
