//! A GPU as NVML sees it. The library is loaded at run time; what it does not know, or no longer knows, is left out of the sample.

mod order;
mod session;

use std::ffi::OsString;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::source::{Look, Source};
use super::{Health, Sample};
use session::Session;

/// How long a GPU that was lost is left alone before it is looked for again: that loads the library anew.
const RETRY: Duration = Duration::from_secs(2);

/// How often it is asked for what changes slowly or takes long.
const CLOSE: Duration = Duration::from_secs(1);

/// The names under which the driver's library is installed; the second is there with development files only.
const NAMES: &[&str] = &["libnvidia-ml.so.1", "libnvidia-ml.so", "nvml.dll"];

/// Loads NVML, from a place of the caller's or where the loader finds it.
fn open(library: Option<&OsString>) -> Result<Nvml, NvmlError> {
    if let Some(library) = library {
        return Nvml::builder().lib_path(library).init();
    }
    let mut failure = NvmlError::LibraryNotFound;
    for name in NAMES {
        match Nvml::builder().lib_path(name.as_ref()).init() {
            Ok(nvml) => return Ok(nvml),
            // No such file; whatever else an existing library says is the answer.
            Err(NvmlError::LibloadingError(_)) => {}
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// All GPUs that NVML lists, in CUDA's order as far as that is known.
pub(super) fn list(library: Option<&OsString>) -> Result<Vec<Source>, String> {
    let describe = |error: NvmlError| error.to_string();
    let nvml = open(library).map_err(describe)?;
    let count = nvml.device_count().map_err(describe)?;
    let ordinals = order::uuids();
    let mut sources = Vec::new();
    for index in 0..count {
        // One that cannot be reached now has no identity to look for later.
        let Ok(device) = nvml.device_by_index(index) else {
            continue;
        };
        let Ok(uuid) = device.uuid() else { continue };
        let cuda = ordinals.iter().position(|known| *known == uuid);
        sources.push(Source {
            name: device.name().unwrap_or_else(|_| "GPU".to_owned()),
            uuid: Some(uuid),
            cuda,
        });
    }
    sources.sort_by_key(|source| source.cuda.unwrap_or(usize::MAX));
    match sources.is_empty() {
        true => Err("NVML lists no GPU".to_owned()),
        false => Ok(sources),
    }
}

/// One GPU, found by its identity, and found again after it was lost.
#[derive(Debug)]
pub(super) struct Gpu {
    library: Option<OsString>,
    uuid: String,
    session: Option<Session>,
    retry_at: Duration,
    /// When it is asked for that next: traffic takes the driver 40 ms, so not all GPUs do it in one round.
    close_at: Duration,
    /// By how much later than its neighbours this one does; added once.
    offset: Duration,
}

impl Gpu {
    /// The `index`-th of all.
    pub(super) fn new(library: Option<OsString>, uuid: String, index: usize) -> Self {
        Self {
            library,
            uuid,
            session: None,
            retry_at: Duration::ZERO,
            close_at: Duration::ZERO,
            offset: CLOSE / 8 * (index as u32 % 8),
        }
    }
}

impl Look for Gpu {
    fn look(&mut self, sample: &mut Sample) {
        if self.session.is_none() && sample.at >= self.retry_at {
            self.retry_at = sample.at.saturating_add(RETRY);
            let nvml = open(self.library.as_ref());
            self.session = nvml.ok().and_then(|nvml| Session::begin(nvml, &self.uuid));
        }
        sample.health = match &mut self.session {
            None => Health::Lost,
            Some(session) => {
                let looks_closely = sample.at >= self.close_at;
                if looks_closely {
                    let offset = std::mem::take(&mut self.offset);
                    self.close_at = sample.at.saturating_add(CLOSE + offset);
                }
                let looked = session.look(sample, looks_closely);
                looked.err().unwrap_or(Health::Good)
            }
        };
        if sample.health != Health::Good {
            // What was seen before the call that failed may be of a device that is gone.
            *sample = Sample {
                health: sample.health,
                ..Sample::blank(sample.source, sample.taken, sample.at)
            };
        }
        if sample.health == Health::Lost {
            self.session = None;
        }
    }
}
