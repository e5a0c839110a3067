//! Samples of a GPU from NVML. Values that NVML does not know stay unknown in the sample.

use std::sync::Arc;
use std::time::Duration;

use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, PcieUtilCounter, TemperatureSensor as Sensor,
};
use nvml_wrapper::error::NvmlError;

use super::sample::{Health, HeldDown, Sample};
use super::source::{Looker, Source, is_due};
use crate::environment::facts;
use crate::environment::nvml::{self, Device, Field, Nvml, Processes, knows_processes};
use crate::environment::patience::Trusted;

/// The time between two attempts to find a lost GPU.
const RETRY: Duration = Duration::from_secs(2);

/// The time between two readings of the values that change slowly or take long to read.
const CLOSE: Duration = Duration::from_secs(1);

/// All GPUs that NVML lists, in CUDA's order where it is known; or why there are none.
pub(super) fn open(library: &Trusted, interval: Duration) -> Result<Vec<(Source, Looker)>, String> {
    let describe = |code| match facts::nvml(code) {
        Some(status) => format!("NVML: {} ({})", status.name, status.cause),
        None => format!("NVML: return code {code}"),
    };
    let nvml = Nvml::begin(library).map_err(describe)?;
    let count = nvml.ask(|nvml| nvml.device_count()).map_err(describe)?;
    let gpus = (0..count).filter_map(|index| {
        // The UUID of a GPU that cannot be reached now is not known, so it could not be found later.
        let device = nvml.device(index).ok()?;
        let uuid = device.ask(|gpu| gpu.uuid()).ok()?;
        let name = device.ask(|gpu| gpu.name());
        Some(Source {
            name: name.unwrap_or_else(|_| "GPU".to_owned()),
            uuid: Some(uuid),
            ..Source::default()
        })
    });
    let gpus: Vec<_> = gpus.collect();
    if gpus.is_empty() {
        return Err("NVML lists no GPU".to_owned());
    }
    let ordered = in_order(gpus, &cuda_uuids()).into_iter().enumerate();
    let opened = ordered.filter_map(|(index, source)| {
        let uuid = source.uuid.clone()?;
        let looker = looker(library.clone(), uuid, index, interval);
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
fn looker(library: Trusted, uuid: String, index: usize, interval: Duration) -> Looker {
    let mut session: Option<Session> = None;
    let (mut retry_at, mut close_at) = (Duration::ZERO, Duration::ZERO);
    // Reading PCIe traffic takes 40 ms, so the GPUs do it in different rounds.
    let mut offset = CLOSE / 8 * (index as u32 % 8);
    Box::new(move |sample| {
        if session.is_none() && is_due(&mut retry_at, sample.at, RETRY, interval) {
            let nvml = Nvml::begin(&library);
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

/// One GPU while NVML answers for it.
struct Session {
    device: Device,
    /// Bits of the readings that this GPU or driver does not support; they are not asked for again.
    unsupported: u32,
    processes: Processes,
    /// This process's number, or `None` in a container, where the driver's list has other numbers.
    own_process: Option<u32>,
    /// The last sample, whose slow values are repeated until they are read again.
    last: Option<Sample>,
}

/// Fills in one or more values.
type Reading = fn(&mut Session, &mut Sample) -> Field<()>;

/// The number of readings that are made for each sample. The others change slowly or take long: the driver counts PCIe traffic for
/// 20 ms in each direction.
const QUICK: usize = 8;

const READINGS: [Reading; 12] = [
    Session::read_memory,
    Session::read_processes,
    |gpu, to| {
        let rates = gpu.device.ask(|gpu| gpu.utilization_rates())?;
        to.utilisation = Some(rates.gpu.into());
        to.memory_utilisation = Some(rates.memory.into());
        Ok(())
    },
    |gpu, to| gpu.read(&mut to.temperature, |gpu| gpu.temperature(Sensor::Gpu)),
    |gpu, to| gpu.read(&mut to.power, |gpu| gpu.power_usage()),
    |gpu, to| gpu.read(&mut to.clock, |gpu| gpu.clock_info(Clock::SM)),
    |gpu, to| gpu.read(&mut to.memory_clock, |gpu| gpu.clock_info(Clock::Memory)),
    |gpu, to| {
        to.held_down = Some(HeldDown::from_bits(gpu.device.clock_reasons()?));
        Ok(())
    },
    |gpu, to| gpu.read_traffic(&mut to.pcie_received, PcieUtilCounter::Receive),
    |gpu, to| gpu.read_traffic(&mut to.pcie_sent, PcieUtilCounter::Send),
    |gpu, to| gpu.read(&mut to.power_limit, |gpu| gpu.enforced_power_limit()),
    |gpu, to| {
        to.ecc_errors = Some(gpu.device.uncorrected(EccCounter::Volatile)?);
        Ok(())
    },
];

impl Session {
    fn begin(nvml: &Arc<Nvml>, uuid: &str) -> Option<Self> {
        Some(Self {
            device: nvml.device_by_uuid(uuid).ok()?,
            unsupported: 0,
            processes: Processes::default(),
            own_process: knows_processes().then(std::process::id),
            last: None,
        })
    }

    /// Reads all values; the slow ones only if `looks_closely`.
    fn look(&mut self, sample: &mut Sample, looks_closely: bool) -> Health {
        let count = if looks_closely { READINGS.len() } else { QUICK };
        if let Some(last) = self.last.filter(|_| !looks_closely) {
            sample.pcie_received = last.pcie_received;
            sample.pcie_sent = last.pcie_sent;
            sample.power_limit = last.power_limit;
            sample.ecc_errors = last.ecc_errors;
        }
        let (mut answers, mut fails) = (false, false);
        for (index, reading) in READINGS.iter().enumerate().take(count) {
            if self.unsupported & (1 << index) != 0 {
                continue;
            }
            match reading(self, sample) {
                Ok(()) => answers = true,
                Err(nvml::GPU_IS_LOST | nvml::UNINITIALIZED | nvml::DRIVER_NOT_LOADED) => {
                    return Health::Lost;
                }
                Err(nvml::RESET_REQUIRED) => return Health::NeedsReset,
                Err(nvml::NOT_SUPPORTED | nvml::NO_PERMISSION | nvml::FUNCTION_NOT_FOUND) => {
                    self.unsupported |= 1 << index;
                }
                // The next call may succeed.
                Err(_) => fails = true,
            }
        }
        if fails && !answers {
            return Health::Lost;
        }
        self.last = Some(*sample);
        Health::Good
    }

    fn read(
        &self,
        value: &mut Option<u64>,
        question: impl FnOnce(&nvml_wrapper::Device<'_>) -> Result<u32, NvmlError>,
    ) -> Field<()> {
        *value = Some(self.device.ask(question)?.into());
        Ok(())
    }

    fn read_traffic(&self, value: &mut Option<u64>, direction: PcieUtilCounter) -> Field<()> {
        let kilobytes = self.device.ask(|gpu| gpu.pcie_throughput(direction))?;
        *value = Some(u64::from(kilobytes) * 1000);
        Ok(())
    }

    fn read_memory(&mut self, sample: &mut Sample) -> Field<()> {
        let memory = self.device.memory()?;
        // GPUs without memory of their own report a total of 0.
        if memory.total > 0 {
            sample.total = Some(memory.total);
            sample.used = Some(memory.used);
            sample.free = Some(memory.free);
        }
        Ok(())
    }

    /// Reads into a list that is kept, so that a sample allocates nothing.
    fn read_processes(&mut self, sample: &mut Sample) -> Field<()> {
        let own = self.own_process.ok_or(nvml::NOT_SUPPORTED)?;
        self.device.list_processes(&mut self.processes)?;
        let mut others = Some(0u64);
        for (process, bytes) in self.processes.iter() {
            if process == own {
                sample.process = bytes;
                continue;
            }
            let both = others.zip(bytes);
            others = both.map(|(sum, more)| sum.saturating_add(more));
        }
        sample.others = others;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_in_cudas_order_and_hidden_ones_come_last() {
        let listed = ["a", "b", "c", "d"].map(|uuid| Source {
            uuid: Some(uuid.to_owned()),
            ..Source::default()
        });
        let ordered = in_order(listed.to_vec(), &["c", "a"].map(str::to_owned));
        let seen = ordered.iter();
        let seen = seen.map(|source| (source.uuid.as_deref().unwrap(), source.cuda));
        let expected = [("c", Some(0)), ("a", Some(1)), ("b", None), ("d", None)];
        assert!(seen.eq(expected));
    }
}
