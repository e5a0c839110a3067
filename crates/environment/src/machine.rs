//! The machine as the probes saw it.
//!
//! [`gather`] runs all probes at once, each in a thread of its own, and waits until the deadline; NCCL is loaded last, and only where ranks
//! are intended. A probe that hangs, panics or crashes another process is a finding, and its part of [`Facts`] is unknown. NVML and CUDA count
//! GPUs in different orders, so that a [`Gpu`] is joined from both by its UUID.

use std::sync::Arc;
use std::time::Instant;

use crate::facts::Version;
use crate::nvml::Field;
use crate::patience::{LoadError, Task};
use crate::probe::cuda::{self, CudaDevice};
use crate::probe::kernel::Kernel;
use crate::probe::libraries::Libraries;
use crate::probe::nvml::{self, GpuReading, Readings};
use crate::probe::ranks::{self, Fabric, Mpi, Nccl};
use crate::source::Visible;
use crate::system::SystemMemory;
use crate::{Answer, Findings, Reply, Source, code, host, toolkit};

/// A GPU, as NVML or CUDA describes it; `None` for what neither reports.
///
/// ```
/// use candle_headroom_environment::Gpu;
///
/// // CUDA's ordinal of the visible GPU with the most free memory.
/// fn emptiest(gpus: &[Gpu]) -> Option<u32> {
///     let visible = gpus.iter().filter(|gpu| gpu.visible);
///     visible.max_by_key(|gpu| gpu.memory_free)?.ordinal
/// }
///
/// let (mut one, mut other) = (Gpu::default(), Gpu::default());
/// (one.visible, one.ordinal, one.memory_free) = (true, Some(0), Some(8 << 30));
/// (other.visible, other.ordinal, other.memory_free) = (true, Some(1), Some(1 << 30));
/// assert_eq!(emptiest(&[one, other]), Some(0));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Gpu {
    /// NVML's index, by PCI address; CUDA's ordinal without NVML.
    pub index: u32,
    /// CUDA's ordinal, if it is known which of CUDA's devices this is.
    pub ordinal: Option<u32>,
    /// Such as `NVIDIA H200`.
    pub name: Option<String>,
    /// `GPU-…`.
    pub uuid: Option<String>,
    /// The board's serial number.
    pub serial: Option<String>,
    /// The PCI address.
    pub pci: Option<String>,
    /// Major and minor.
    pub compute_capability: Option<(u32, u32)>,
    /// Bytes; the host's memory if the GPU shares it.
    pub memory_total: Option<u64>,
    /// Free bytes at the time of the check; `None` for a GPU that is divided (MIG), since each instance has its own part.
    pub memory_free: Option<u64>,
    /// Whether this process sees the GPU: by CUDA's own list, or by `CUDA_VISIBLE_DEVICES` without such a list. The variable counts in
    /// CUDA's order, which can differ from NVML's on machines with different GPUs.
    pub visible: bool,
}

/// What the probes saw. `None` belongs to a probe that did not finish, for which there is a finding.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) source: Arc<Source>,
    pub(crate) kernel: Option<Kernel>,
    /// The host's memory; unknown if its probe did not finish.
    pub(crate) memory: SystemMemory,
    /// The bytes that `/dev/shm` may hold.
    pub(crate) shm: Option<u64>,
    /// The bytes that are free in it.
    pub(crate) shm_free: Option<u64>,
    pub(crate) libraries: Option<Libraries>,
    /// The version of the CUDA toolkit that a build would use.
    pub(crate) toolkit: Option<Version>,
    pub(crate) nvml: Reply<Readings>,
    /// The driver's version, if NVML has started.
    pub(crate) driver_version: Option<Version>,
    pub(crate) cuda: Reply<Vec<CudaDevice>>,
    /// The newest CUDA that the driver supports, by libcuda.
    pub(crate) cuda_version: Option<Version>,
    pub(crate) fabric: Option<Fabric>,
    pub(crate) mpi: Option<Mpi>,
    /// Unknown where no ranks are intended.
    pub(crate) nccl: Reply<Nccl>,
}

impl Facts {
    /// Whether several ranks are intended: the user says so, a launcher started this process, or the machine is made for it.
    pub(crate) fn has_ranks(&self) -> bool {
        let fabric = self.fabric.as_ref();
        self.source.for_ranks
            || ranks::is_launched(&self.source)
            || fabric.is_some_and(Fabric::has_infiniband)
            || self.visible_gpus() > 1
    }

    /// The number of GPUs that this process sees.
    pub(crate) fn visible_gpus(&self) -> usize {
        self.all_gpus().iter().filter(|gpu| gpu.visible).count()
    }

    /// Whether this is known of the kernel.
    pub(crate) fn kernel_is(&self, condition: impl FnOnce(&Kernel) -> bool) -> bool {
        self.kernel.as_ref().is_some_and(condition)
    }

    pub(crate) fn is_container(&self) -> bool {
        self.kernel_is(|kernel| kernel.container.is_some())
    }

    /// Whether this is a container that shows the host's GPU in `/sys`, and nothing of it in `/dev`.
    pub(crate) fn lacks_container_runtime(&self) -> bool {
        let is_bare = |kernel: &Kernel| {
            let host_has_gpu = kernel.module_loaded || !kernel.bus.is_empty();
            kernel.container.is_some() && host_has_gpu && kernel.nodes.is_empty() && !kernel.dxg
        };
        self.kernel_is(is_bare) && self.gpus().is_empty()
    }

    pub(crate) fn is_wsl(&self) -> bool {
        self.kernel_is(|kernel| kernel.wsl)
    }

    /// Whether the system, NVML or CUDA shows an NVIDIA GPU.
    pub(crate) fn shows_gpu(&self) -> bool {
        self.cuda_finds_devices() || !self.gpus().is_empty() || self.kernel_is(Kernel::shows_gpu)
    }

    pub(crate) fn cuda_finds_devices(&self) -> bool {
        !self.cuda_devices().is_empty()
    }

    /// The driver's version, from NVML or the kernel module.
    pub(crate) fn driver(&self) -> Option<Version> {
        let by_module = || Version::parse(self.kernel.as_ref()?.module.as_deref()?);
        self.driver_version.or_else(by_module)
    }

    /// The newest CUDA that the driver supports; `None` without a GPU, since a stub of libcuda answers too.
    pub(crate) fn cuda_of_driver(&self) -> Option<Version> {
        let version = self.cuda_version.or_else(|| self.nvml.works()?.cuda);
        version.filter(|_| self.shows_gpu())
    }

    /// NVML's GPUs.
    pub(crate) fn gpus(&self) -> &[GpuReading] {
        self.nvml.works().map_or(&[], |readings| &readings.gpus)
    }

    /// CUDA's devices; empty if CUDA has not started.
    fn cuda_devices(&self) -> &[CudaDevice] {
        self.cuda.works().map_or(&[], Vec::as_slice)
    }

    /// CUDA's ordinal and device of this GPU, by the UUID, since NVML and CUDA count in different orders.
    fn cuda_device(&self, gpu: &GpuReading) -> Option<(u32, &CudaDevice)> {
        let uuid = gpu.uuid.as_ref().ok()?;
        let mut devices = (0..).zip(self.cuda_devices());
        devices.find(|(_, device)| device.uuid.as_ref() == Some(uuid))
    }

    /// From NVML, or else from CUDA.
    pub(crate) fn capability(&self, gpu: &GpuReading) -> Option<(u32, u32)> {
        let by_nvml = gpu.capability.ok();
        by_nvml.or_else(|| self.cuda_device(gpu)?.1.capability)
    }

    /// All GPUs: NVML's list, or CUDA's without NVML.
    pub(crate) fn all_gpus(&self) -> Vec<Gpu> {
        let by_nvml = self.gpus().iter();
        let by_nvml = by_nvml.map(|gpu| (Some(gpu), self.cuda_device(gpu)));
        let mut gpus: Vec<_> = by_nvml.collect();
        if gpus.is_empty() {
            let by_cuda = (0..).zip(self.cuda_devices());
            gpus.extend(by_cuda.map(|device| (None, Some(device))));
        }
        // CUDA's list decides over the variable. Instances of a divided GPU have other UUIDs.
        let has_listed = gpus.iter().any(|(_, device)| device.is_some());
        let visible = self.visible();
        let is_visible = |place| visible.names_instances || visible.gpus.contains(&place);
        let gpus = gpus.into_iter().enumerate();
        let gpus = gpus.map(|(place, (gpu, device))| Gpu {
            visible: device.is_some() || !has_listed && is_visible(place),
            ..self.gpu(gpu, device)
        });
        gpus.collect()
    }

    /// A GPU by what NVML and CUDA say of it.
    fn gpu(&self, gpu: Option<&GpuReading>, device: Option<(u32, &CudaDevice)>) -> Gpu {
        let (ordinal, device) = device.unzip();
        let by_cuda = device.cloned().unwrap_or_default();
        let memory = gpu.and_then(|gpu| gpu.memory.ok());
        let (memory_total, memory_free) = match memory.filter(|memory| memory.total > 0) {
            // Free memory of a divided GPU belongs to its instances, and which of them this process sees is unknown.
            Some(memory) => {
                let is_divided = gpu.is_some_and(|gpu| gpu.mig == Ok(true));
                (Some(memory.total), (!is_divided).then_some(memory.free))
            }
            None if by_cuda.integrated => (self.memory.capacity(), self.memory.free()),
            None => (None, None),
        };
        let text = |field: fn(&GpuReading) -> &Field<String>| field(gpu?).clone().ok();
        let capability = gpu.and_then(|gpu| gpu.capability.ok());
        Gpu {
            index: gpu.map(|gpu| gpu.index).or(ordinal).unwrap_or_default(),
            ordinal,
            name: text(|gpu| &gpu.name).or(by_cuda.name),
            uuid: text(|gpu| &gpu.uuid).or(by_cuda.uuid),
            serial: text(|gpu| &gpu.serial),
            pci: text(|gpu| &gpu.pci),
            compute_capability: capability.or(by_cuda.capability),
            memory_total,
            memory_free,
            visible: true,
        }
    }

    /// What CUDA_VISIBLE_DEVICES leaves of NVML's list. If it seems to leave no GPU and CUDA lists devices, CUDA is right.
    pub(crate) fn visible(&self) -> Visible {
        let gpus = self.gpus().iter();
        let uuids = gpus.map(|gpu| gpu.uuid.clone().unwrap_or_default());
        let uuids: Vec<_> = uuids.collect();
        let visible = Visible::parse(self.source.variable("CUDA_VISIBLE_DEVICES"), &uuids);
        match visible.hides_all() && self.cuda_finds_devices() {
            true => Visible::parse(None, &uuids),
            false => visible,
        }
    }
}

/// Runs all probes at once until the deadline. Adds findings about those that did not finish, the host, the toolkit and the kernel's log.
pub(super) fn gather(source: Arc<Source>, deadline: Instant, findings: &mut Findings) -> Facts {
    let kernel = Probe::start("the kernel's files and device nodes", &source, Kernel::look);
    let host = Probe::start("host memory", &source, host::look);
    let log = Probe::start("the kernel log", &source, host::kernel_log);
    let libraries = Probe::start("shared libraries", &source, Libraries::look);
    let toolkit = Probe::start("the CUDA toolkit", &source, toolkit::look);
    let fabric = Probe::start("the network between nodes", &source, Fabric::look);
    let mpi = Probe::start("MPI", &source, Mpi::look);
    // Another process and then this one load a library; each gets a part of the time.
    let limit = deadline.saturating_duration_since(Instant::now()) / 2;
    let nvml = Probe::start("NVML", &source, move |source| nvml::look(source, limit));
    let cuda = Probe::start("libcuda", &source, move |source| cuda::look(source, limit));
    let (driver_version, nvml) = nvml.reply(deadline, findings);
    let (cuda_version, cuda) = cuda.reply(deadline, findings);
    let (memory, shm, shm_free, by_host) = host.wait(deadline, findings).unwrap_or_default();
    let (toolkit, by_toolkit) = toolkit.wait(deadline, findings).unwrap_or_default();
    let by_log = log.wait(deadline, findings).unwrap_or_default();
    let found = [by_host, by_toolkit, by_log].into_iter();
    findings.0.extend(found.flat_map(|found| found.0));
    let mut facts = Facts {
        kernel: kernel.wait(deadline, findings),
        memory,
        shm,
        shm_free,
        libraries: libraries.wait(deadline, findings),
        toolkit,
        nvml,
        driver_version,
        cuda,
        cuda_version,
        fabric: fabric.wait(deadline, findings),
        mpi: mpi.wait(deadline, findings),
        nccl: Reply::Unknown,
        source: Arc::clone(&source),
    };
    // Loading it takes long, and most programs do not need it.
    if facts.has_ranks() && facts.shows_gpu() {
        let limit = deadline.saturating_duration_since(Instant::now()) / 2;
        let nccl = Probe::start("NCCL", &source, move |source| ranks::nccl(source, limit));
        (_, facts.nccl) = nccl.reply(deadline, findings);
    }
    facts
}

/// A probe in a thread of its own, and what it looks at.
struct Probe<T>(&'static str, Task<T>);

impl<T: Send + 'static> Probe<T> {
    fn start(
        what: &'static str,
        source: &Arc<Source>,
        look: impl FnOnce(&Source) -> T + Send + 'static,
    ) -> Self {
        let source = Arc::clone(source);
        let task = Task::start(&format!("probe: {what}"), move || look(&source));
        Self(what, task)
    }

    /// Waits for the result; a probe that does not finish is a finding.
    fn wait(self, deadline: Instant, findings: &mut Findings) -> Option<T> {
        let left = deadline.saturating_duration_since(Instant::now());
        let outcome = self.1.wait(left);
        let outcome = outcome.map_err(|reason| findings.add(code::unfinished(reason), self.0));
        outcome.ok()
    }
}

impl<T: Send + 'static> Probe<Answer<T>> {
    /// Waits for what a library tells; one that hangs or crashes another process is a finding too.
    fn reply(self, deadline: Instant, findings: &mut Findings) -> (Option<Version>, Reply<T>) {
        match self.wait(deadline, findings) {
            Some(Ok(reply)) => return reply,
            Some(Err(LoadError::Absent(reason))) => return (None, Reply::Missing(reason)),
            Some(Err(LoadError::Hangs(what))) => findings.add(code::PROBE_TIMED_OUT, what),
            Some(Err(LoadError::Crashes(what))) => findings.add(code::PROBE_STOPPED, what),
            None => {}
        }
        (None, Reply::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// One that hangs is a case of tests/environment/library.rs.
    #[test]
    fn a_probe_that_panics_is_a_finding() {
        let source = Arc::new(Source::of_this_process(Vec::new()));
        let panics = Probe::start("panics", &source, |_| -> u8 { panic!("on purpose") });
        let mut findings = Findings::default();
        // A panic that prints a stack trace takes long.
        let later = Instant::now() + Duration::from_secs(60);
        assert_eq!(panics.wait(later, &mut findings), None);
        let seen = findings.0.iter();
        let seen = seen.map(|finding| (finding.code.id, finding.seen.as_str()));
        assert!(seen.eq([("HR-002", "panics")]));
    }
}
