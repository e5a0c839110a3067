use std::sync::Arc;

use super::probe::driver::CudaDevice;
use super::probe::fabric::Fabric;
use super::probe::kernel::Kernel;
use super::probe::launch;
use super::probe::libraries::Libraries;
use super::probe::mpi::Mpi;
use super::probe::nccl::Nccl;
use super::probe::nvml::{GpuReading, Readings};
use super::reply::Reply;
use super::visible::Visible;
use super::{Gpu, Source};
use crate::facts::Version;
use crate::memory::SystemMemory;
use crate::nvml::Field;

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
            || launch::is_launched(&self.source)
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
