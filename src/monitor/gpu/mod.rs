//! Samples of a GPU from NVML. Values that NVML does not know stay unknown in the sample.

mod order;
mod session;

use std::sync::Arc;
use std::time::Duration;

use super::sample::{Health, Sample};
use super::source::{Look, Source, again};
use crate::facts;
use crate::nvml::Library;
use session::Session;

/// The time between two attempts to find a lost GPU.
const RETRY: Duration = Duration::from_secs(2);

/// The time between two readings of the values that change slowly or take long to read.
const CLOSE: Duration = Duration::from_secs(1);

/// All GPUs that NVML lists, in CUDA's order where it is known.
pub(super) fn list(library: &Arc<Library>) -> Result<Vec<Source>, String> {
    let nvml = library.begin().map_err(describe)?;
    let count = nvml.ask(|nvml| nvml.device_count());
    let count = count.map_err(describe)?;
    let mut sources = Vec::new();
    for index in 0..count {
        // The UUID of a GPU that cannot be reached now is not known, so it could not be found later.
        let Ok(device) = nvml.device(index) else {
            continue;
        };
        if let Ok(uuid) = device.ask(|gpu| gpu.uuid()) {
            let name = device.ask(|gpu| gpu.name());
            sources.push(Source {
                name: name.unwrap_or_else(|_| "GPU".to_owned()),
                uuid: Some(uuid),
                cuda: None,
            });
        }
    }
    match sources.is_empty() {
        true => Err("NVML lists no GPU".to_owned()),
        false => Ok(in_order(sources, &order::uuids())),
    }
}

/// The GPUs that CUDA sees in CUDA's order, then the others in NVML's.
fn in_order(mut sources: Vec<Source>, cuda: &[String]) -> Vec<Source> {
    for source in &mut sources {
        let mut uuids = cuda.iter();
        source.cuda = uuids.position(|uuid| source.uuid.as_ref() == Some(uuid));
    }
    sources.sort_by_key(|source| source.cuda.unwrap_or(usize::MAX));
    sources
}

fn describe(code: u32) -> String {
    match facts::nvml(code) {
        Some(status) => format!("NVML: {} ({})", status.name, status.cause),
        None => format!("NVML: return code {code}"),
    }
}

/// One GPU, found by its UUID, also after it was lost.
#[derive(Debug)]
pub(super) struct Gpu {
    library: Arc<Library>,
    uuid: String,
    session: Option<Session>,
    retry_at: Duration,
    /// When the slow values are read next.
    close_at: Duration,
    /// Added once to `close_at`: reading PCIe traffic takes 40 ms, so the GPUs do it in different rounds.
    offset: Duration,
    interval: Duration,
}

impl Gpu {
    pub(super) fn new(
        library: Arc<Library>,
        uuid: String,
        index: usize,
        interval: Duration,
    ) -> Self {
        Self {
            library,
            uuid,
            session: None,
            retry_at: Duration::ZERO,
            close_at: Duration::ZERO,
            offset: CLOSE / 8 * (index as u32 % 8),
            interval,
        }
    }
}

impl Look for Gpu {
    fn look(&mut self, sample: &mut Sample) {
        if self.session.is_none() && sample.at >= self.retry_at {
            self.retry_at = sample.at.saturating_add(RETRY);
            let nvml = self.library.begin();
            self.session = nvml.ok().and_then(|nvml| Session::begin(&nvml, &self.uuid));
        }
        sample.health = match &mut self.session {
            None => Health::Lost,
            Some(session) => {
                let looks_closely = sample.at >= self.close_at;
                if looks_closely {
                    let offset = std::mem::take(&mut self.offset);
                    self.close_at = again(sample.at, CLOSE + offset, self.interval);
                }
                let looked = session.look(sample, looks_closely);
                looked.err().unwrap_or(Health::Good)
            }
        };
        if sample.health != Health::Good {
            // Values read before the call that failed may belong to a device that is gone.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(uuid: &str) -> Source {
        Source {
            uuid: Some(uuid.to_owned()),
            ..Source::host()
        }
    }

    #[test]
    fn gpus_are_in_cudas_order_and_hidden_ones_come_last() {
        let listed = ["a", "b", "c", "d"].map(gpu).to_vec();
        let cuda = ["c", "a"].map(str::to_owned);
        let ordered = in_order(listed, &cuda);
        let seen = ordered.iter();
        let seen = seen.map(|source| (source.uuid.as_deref().unwrap(), source.cuda));
        let expected = [("c", Some(0)), ("a", Some(1)), ("b", None), ("d", None)];
        assert!(seen.eq(expected));
    }
}
