//! Samples of a GPU from NVML. Values that NVML does not know stay unknown in the sample.

mod session;

use std::sync::Arc;
use std::time::Duration;

use super::sample::{Health, Sample};
use super::source::{Looker, Source, is_due};
use crate::environment::facts;
use crate::environment::nvml::Library;
use session::Session;

/// The time between two attempts to find a lost GPU.
const RETRY: Duration = Duration::from_secs(2);

/// The time between two readings of the values that change slowly or take long to read.
const CLOSE: Duration = Duration::from_secs(1);

/// All GPUs that NVML lists, in CUDA's order where it is known; or why there are none.
pub(super) fn open(
    library: &Arc<Library>,
    interval: Duration,
) -> Result<Vec<(Source, Looker)>, String> {
    let describe = |code| match facts::nvml(code) {
        Some(status) => format!("NVML: {} ({})", status.name, status.cause),
        None => format!("NVML: return code {code}"),
    };
    let nvml = library.begin().map_err(describe)?;
    let count = nvml.ask(|nvml| nvml.device_count()).map_err(describe)?;
    let gpus = (0..count).filter_map(|index| {
        // The UUID of a GPU that cannot be reached now is not known, so it could not be found later.
        let device = nvml.device(index).ok()?;
        let uuid = device.ask(|gpu| gpu.uuid()).ok()?;
        let name = device.ask(|gpu| gpu.name());
        Some(Source {
            name: name.unwrap_or_else(|_| "GPU".to_owned()),
            uuid: Some(uuid),
            cuda: None,
            rank: None,
        })
    });
    let gpus: Vec<_> = gpus.collect();
    if gpus.is_empty() {
        return Err("NVML lists no GPU".to_owned());
    }
    let ordered = in_order(gpus, &cuda_uuids()).into_iter().enumerate();
    let opened = ordered.filter_map(|(index, source)| {
        let uuid = source.uuid.clone()?;
        let looker = looker(Arc::clone(library), uuid, index, interval);
        Some((source, looker))
    });
    Ok(opened.collect())
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

/// The UUIDs of CUDA's devices as NVML writes them, in CUDA's order: the fastest first, without those that `CUDA_VISIBLE_DEVICES`
/// leaves out. Empty if CUDA cannot be initialized, and without the feature `cuda`.
#[cfg(feature = "cuda")]
fn cuda_uuids() -> Vec<String> {
    use candle_core::cuda_backend::cudarc::driver::result;

    if result::init().is_err() {
        return Vec::new();
    }
    let count = result::device::get_count().unwrap_or(0);
    let uuids = (0..count).map(|ordinal| {
        let uuid = result::device::get(ordinal).and_then(result::device::get_uuid);
        // A device without a UUID keeps its place.
        uuid.map_or(String::new(), |uuid| {
            crate::environment::nvml::uuid_text(uuid.bytes.map(|byte| byte as u8))
        })
    });
    uuids.collect()
}

#[cfg(not(feature = "cuda"))]
fn cuda_uuids() -> Vec<String> {
    Vec::new()
}

/// Samples one GPU, which it finds by its UUID, also after it was lost.
fn looker(library: Arc<Library>, uuid: String, index: usize, interval: Duration) -> Looker {
    let mut session: Option<Session> = None;
    let (mut retry_at, mut close_at) = (Duration::ZERO, Duration::ZERO);
    // Reading PCIe traffic takes 40 ms, so the GPUs do it in different rounds.
    let mut offset = CLOSE / 8 * (index as u32 % 8);
    Box::new(move |sample| {
        if session.is_none() && is_due(&mut retry_at, sample.at, RETRY, interval) {
            let nvml = library.begin();
            session = nvml.ok().and_then(|nvml| Session::begin(&nvml, &uuid));
        }
        let health = match &mut session {
            None => Health::Lost,
            Some(session) => {
                let looks_closely = is_due(&mut close_at, sample.at, CLOSE, interval);
                if looks_closely {
                    close_at = close_at.saturating_add(std::mem::take(&mut offset));
                }
                session.look(sample, looks_closely)
            }
        };
        if health != Health::Good {
            // Values read before the call that failed may belong to a device that is gone.
            *sample = Sample::blank(sample.source, sample.taken, sample.at);
            sample.health = health;
        }
        if health == Health::Lost {
            session = None;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_in_cudas_order_and_hidden_ones_come_last() {
        let listed = ["a", "b", "c", "d"].map(|uuid| Source {
            name: String::new(),
            uuid: Some(uuid.to_owned()),
            cuda: None,
            rank: None,
        });
        let ordered = in_order(listed.to_vec(), &["c", "a"].map(str::to_owned));
        let seen = ordered.iter();
        let seen = seen.map(|source| (source.uuid.as_deref().unwrap(), source.cuda));
        let expected = [("c", Some(0)), ("a", Some(1)), ("b", None), ("d", None)];
        assert!(seen.eq(expected));
    }
}
