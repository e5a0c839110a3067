use std::time::Instant;

use super::finding::Finding;
use super::probe::driver::{Cuda, CudaDevice};
use super::probe::host::Host;
use super::probe::kernel::Kernel;
use super::probe::libraries::Libraries;
use super::probe::log::Log;
use super::probe::nvml::{GpuReading, Readings};
use super::probe::toolkit::Toolkit;
use super::probe::{driver, nvml};
use super::report::Gpu;
use super::source::Source;
use super::timed::Probe;
use super::visible::Visible;
use crate::facts::Version;

/// All that the probes saw. What is `None` belongs to a probe that did not end, which has a finding of its own.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) source: std::sync::Arc<Source>,
    pub(super) kernel: Option<Kernel>,
    pub(super) host: Option<Host>,
    pub(super) log: Option<Log>,
    pub(super) libraries: Option<Libraries>,
    pub(super) toolkit: Option<Toolkit>,
    /// Or why NVML cannot be loaded.
    pub(super) nvml: Option<Result<Readings, String>>,
    /// What `cuDriverGetVersion` answers, or why libcuda cannot be loaded.
    pub(super) cuda_version: Option<Result<Result<i32, u32>, String>>,
    pub(super) cuda: Option<Result<Cuda, String>>,
}

impl Facts {
    /// Sends all probes off at once and waits for each until the deadline.
    pub(super) fn gather(
        source: std::sync::Arc<Source>,
        deadline: Instant,
        findings: &mut Vec<Finding>,
    ) -> Self {
        let kernel = Probe::start("the kernel's files and device nodes", &source, Kernel::look);
        let host = Probe::start("host memory", &source, Host::look);
        let log = Probe::start("the kernel log", &source, Log::look);
        let libraries = Probe::start("shared libraries", &source, Libraries::look);
        let toolkit = Probe::start("the CUDA toolkit", &source, Toolkit::look);
        let nvml = Probe::start("NVML", &source, nvml::look);
        let cuda_version = Probe::start("cuDriverGetVersion", &source, driver::version);
        let cuda = Probe::start("cuInit", &source, driver::look);
        Self {
            kernel: kernel.finish(deadline, findings),
            host: host.finish(deadline, findings),
            log: log.finish(deadline, findings),
            libraries: libraries.finish(deadline, findings),
            toolkit: toolkit.finish(deadline, findings),
            nvml: nvml.finish(deadline, findings),
            cuda_version: cuda_version.finish(deadline, findings),
            cuda: cuda.finish(deadline, findings),
            source,
        }
    }

    pub(super) fn gpus(&self) -> &[GpuReading] {
        match &self.nvml {
            Some(Ok(Readings { gpus: Ok(gpus), .. })) => gpus,
            _ => &[],
        }
    }

    pub(super) fn is_container(&self) -> bool {
        self.kernel
            .as_ref()
            .is_some_and(|kernel| kernel.container.is_some())
    }

    /// A container that shows the host's GPU in `/sys`, and nothing of it in `/dev`.
    pub(super) fn lacks_container_runtime(&self) -> bool {
        let is_bare = |kernel: &Kernel| {
            let host_has_gpu = kernel.module_loaded || !kernel.bus.is_empty();
            kernel.container.is_some() && host_has_gpu && kernel.nodes.is_empty() && !kernel.dxg
        };
        self.kernel.as_ref().is_some_and(is_bare) && self.gpus().is_empty()
    }

    pub(super) fn is_wsl(&self) -> bool {
        self.kernel.as_ref().is_some_and(|kernel| kernel.wsl)
    }

    /// Whether anything shows a GPU of NVIDIA's: the system, NVML or CUDA.
    pub(super) fn shows_gpu(&self) -> bool {
        self.cuda_finds_devices()
            || !self.gpus().is_empty()
            || self.kernel.as_ref().is_some_and(Kernel::shows_gpu)
    }

    pub(super) fn cuda_finds_devices(&self) -> bool {
        !self.cuda_devices().is_empty()
    }

    /// The driver's version, from NVML or the kernel module.
    pub(super) fn driver(&self) -> Option<Version> {
        let told = match &self.nvml {
            Some(Ok(Readings {
                driver: Ok(driver), ..
            })) => driver.parse().ok(),
            _ => None,
        };
        told.or_else(|| self.kernel.as_ref()?.module.as_deref()?.parse().ok())
    }

    /// The newest CUDA that the driver supports; none where there is no GPU, since a stub of libcuda has an answer too.
    pub(super) fn cuda_of_driver(&self) -> Option<Version> {
        if !self.shows_gpu() {
            return None;
        }
        let told = match (&self.cuda_version, &self.nvml) {
            (Some(Ok(Ok(number))), _) => *number,
            (
                _,
                Some(Ok(Readings {
                    cuda: Ok(number), ..
                })),
            ) => *number,
            _ => return None,
        };
        Version::of_cuda(told)
    }

    /// CUDA's devices; none where it has not started.
    fn cuda_devices(&self) -> &[CudaDevice] {
        match &self.cuda {
            Some(Ok(Cuda {
                devices: Ok(devices),
                ..
            })) => devices,
            _ => &[],
        }
    }

    /// CUDA's device that is this GPU, and its number there, by the UUID, since the two count in different orders.
    fn cuda_device(&self, gpu: &GpuReading) -> Option<(u32, &CudaDevice)> {
        let uuid = gpu.uuid.as_ref().ok()?;
        let mut devices = (0..).zip(self.cuda_devices());
        devices.find(|(_, device)| device.uuid.as_ref() == Some(uuid))
    }

    /// Bytes in all and free, by NVML; of a GPU that shares the host's memory, the host's. What is free on a divided GPU belongs to
    /// its instances, and which of them is seen is not known.
    fn memory(
        &self,
        gpu: Option<&GpuReading>,
        device: Option<&CudaDevice>,
    ) -> (Option<u64>, Option<u64>) {
        let told = gpu
            .and_then(|gpu| gpu.memory.ok())
            .filter(|memory| memory.total > 0);
        match (told, &self.host) {
            (Some(memory), _) => {
                let is_divided = gpu.is_some_and(|gpu| gpu.mig == Ok(true));
                (Some(memory.total), (!is_divided).then_some(memory.free))
            }
            (None, Some(host)) if device.is_some_and(|device| device.integrated) => {
                (host.memory.capacity(), host.memory.free())
            }
            (None, _) => (None, None),
        }
    }

    /// From NVML, or from CUDA where NVML does not tell it.
    pub(super) fn capability(&self, gpu: &GpuReading) -> Option<(u32, u32)> {
        let told = gpu.capability.ok();
        told.or_else(|| self.cuda_device(gpu)?.1.capability)
    }

    /// All GPUs with what is known of them: NVML's list, and CUDA's where there is no NVML.
    pub(super) fn all_gpus(&self) -> Vec<Gpu> {
        let visible = self.visible();
        // What CUDA lists is what it sees, whatever the variable says; instances of a divided GPU have other UUIDs.
        let is_listed = self
            .gpus()
            .iter()
            .any(|gpu| self.cuda_device(gpu).is_some());
        let by_nvml = self.gpus().iter().enumerate().map(|(place, gpu)| {
            let device = self.cuda_device(gpu);
            let (memory_total, memory_free) =
                self.memory(Some(gpu), device.map(|(_, device)| device));
            Gpu {
                index: gpu.index,
                ordinal: device.map(|(ordinal, _)| ordinal),
                name: gpu.name.clone().ok(),
                uuid: gpu.uuid.clone().ok(),
                serial: gpu.serial.clone().ok(),
                pci: gpu.pci.clone().ok(),
                compute_capability: self.capability(gpu),
                memory_total,
                memory_free,
                visible: match is_listed {
                    true => device.is_some(),
                    false => visible.names_instances || visible.gpus.contains(&place),
                },
            }
        });
        let by_cuda = self.cuda_devices().iter().zip(0..).map(|(device, index)| {
            let (memory_total, memory_free) = self.memory(None, Some(device));
            Gpu {
                index,
                ordinal: Some(index),
                name: device.name.clone(),
                uuid: device.uuid.clone(),
                compute_capability: device.capability,
                memory_total,
                memory_free,
                visible: true,
                ..Gpu::default()
            }
        });
        match self.gpus().is_empty() {
            true => by_cuda.collect(),
            false => by_nvml.collect(),
        }
    }

    /// What CUDA_VISIBLE_DEVICES leaves of the GPUs that NVML lists. Where it seems to leave none and CUDA lists devices all the same,
    /// CUDA is right.
    pub(super) fn visible(&self) -> Visible {
        let uuids: Vec<_> = self
            .gpus()
            .iter()
            .map(|gpu| gpu.uuid.as_deref().unwrap_or_default())
            .collect();
        let visible = Visible::parse(self.source.variable("CUDA_VISIBLE_DEVICES"), &uuids);
        match visible.hides_all() && self.cuda_finds_devices() {
            true => Visible::parse(None, &uuids),
            false => visible,
        }
    }
}
