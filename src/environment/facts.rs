use std::sync::Arc;

use super::gpu::Gpu;
use super::probe::driver::{Cuda, CudaDevice};
use super::probe::host::Host;
use super::probe::kernel::Kernel;
use super::probe::libraries::Libraries;
use super::probe::log::Log;
use super::probe::nvml::{GpuReading, Readings};
use super::probe::toolkit::Toolkit;
use super::source::Source;
use super::visible::Visible;
use crate::facts::Version;

/// What the probes saw. `None` belongs to a probe that did not finish, for which there is a finding.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) source: Arc<Source>,
    pub(crate) kernel: Option<Kernel>,
    pub(crate) host: Option<Host>,
    /// Or why no log can be read.
    pub(crate) log: Option<Result<Log, String>>,
    pub(crate) libraries: Option<Libraries>,
    pub(crate) toolkit: Option<Toolkit>,
    /// Or why NVML cannot be loaded.
    pub(crate) nvml: Option<Result<Readings, String>>,
    /// The result of `cuDriverGetVersion`, or why libcuda cannot be loaded.
    pub(crate) cuda_version: Option<Result<Result<i32, u32>, String>>,
    pub(crate) cuda: Option<Result<Cuda, String>>,
}

impl Facts {
    pub(crate) fn gpus(&self) -> &[GpuReading] {
        match &self.nvml {
            Some(Ok(Readings { gpus: Ok(gpus), .. })) => gpus,
            _ => &[],
        }
    }

    /// The result of `nvmlInit`, if NVML was loaded.
    pub(crate) fn nvml_init(&self) -> Option<Result<(), u32>> {
        Some(self.nvml.as_ref()?.as_ref().ok()?.init)
    }

    /// The result of `cuInit`, if libcuda was loaded.
    pub(crate) fn cuda_init(&self) -> Option<Result<(), u32>> {
        Some(self.cuda.as_ref()?.as_ref().ok()?.init)
    }

    pub(crate) fn is_container(&self) -> bool {
        let kernel = self.kernel.as_ref();
        kernel.is_some_and(|kernel| kernel.container.is_some())
    }

    /// Whether this is a container that shows the host's GPU in `/sys`, and nothing of it in `/dev`.
    pub(crate) fn lacks_container_runtime(&self) -> bool {
        let is_bare = |kernel: &Kernel| {
            let host_has_gpu = kernel.module_loaded || !kernel.bus.is_empty();
            kernel.container.is_some() && host_has_gpu && kernel.nodes.is_empty() && !kernel.dxg
        };
        self.kernel.as_ref().is_some_and(is_bare) && self.gpus().is_empty()
    }

    pub(crate) fn is_wsl(&self) -> bool {
        self.kernel.as_ref().is_some_and(|kernel| kernel.wsl)
    }

    /// Whether the system, NVML or CUDA shows an NVIDIA GPU.
    pub(crate) fn shows_gpu(&self) -> bool {
        self.cuda_finds_devices()
            || !self.gpus().is_empty()
            || self.kernel.as_ref().is_some_and(Kernel::shows_gpu)
    }

    pub(crate) fn cuda_finds_devices(&self) -> bool {
        !self.cuda_devices().is_empty()
    }

    /// The driver's version, from NVML or the kernel module.
    pub(crate) fn driver(&self) -> Option<Version> {
        let by_nvml = match &self.nvml {
            Some(Ok(readings)) => readings.driver.as_ref().ok(),
            _ => None,
        };
        by_nvml
            .and_then(|text| text.parse().ok())
            .or_else(|| self.kernel.as_ref()?.module.as_deref()?.parse().ok())
    }

    /// The newest CUDA that the driver supports; `None` without a GPU, since a stub of libcuda answers too.
    pub(crate) fn cuda_of_driver(&self) -> Option<Version> {
        let number = match (&self.cuda_version, &self.nvml) {
            _ if !self.shows_gpu() => return None,
            (Some(Ok(Ok(number))), _) => *number,
            (_, Some(Ok(readings))) => readings.cuda.ok()?,
            _ => return None,
        };
        Version::of_cuda(number)
    }

    /// CUDA's devices; empty if CUDA has not started.
    fn cuda_devices(&self) -> &[CudaDevice] {
        match &self.cuda {
            Some(Ok(Cuda {
                devices: Ok(devices),
                ..
            })) => devices,
            _ => &[],
        }
    }

    /// CUDA's ordinal and device of this GPU, by the UUID, since NVML and CUDA count in different orders.
    fn cuda_device(&self, gpu: &GpuReading) -> Option<(u32, &CudaDevice)> {
        let uuid = gpu.uuid.as_ref().ok()?;
        let mut devices = (0..).zip(self.cuda_devices());
        devices.find(|(_, device)| device.uuid.as_ref() == Some(uuid))
    }

    /// Total and free bytes by NVML, or the host's if the GPU shares its memory. Free memory of a divided GPU belongs to its instances,
    /// and which of them this process sees is unknown.
    fn memory(
        &self,
        gpu: Option<&GpuReading>,
        device: Option<&CudaDevice>,
    ) -> (Option<u64>, Option<u64>) {
        let memory = gpu.and_then(|gpu| gpu.memory.ok());
        match (memory.filter(|memory| memory.total > 0), &self.host) {
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

    /// From NVML, or else from CUDA.
    pub(crate) fn capability(&self, gpu: &GpuReading) -> Option<(u32, u32)> {
        let by_nvml = gpu.capability.ok();
        by_nvml.or_else(|| self.cuda_device(gpu)?.1.capability)
    }

    /// All GPUs: NVML's list, or CUDA's without NVML.
    pub(crate) fn all_gpus(&self) -> Vec<Gpu> {
        match self.gpus().is_empty() {
            true => self.gpus_by_cuda(),
            false => self.gpus_by_nvml(),
        }
    }

    fn gpus_by_nvml(&self) -> Vec<Gpu> {
        let visible = self.visible();
        // CUDA's list decides over the variable. Instances of a divided GPU have other UUIDs.
        let is_listed = |gpu: &GpuReading| self.cuda_device(gpu).is_some();
        let has_listed = self.gpus().iter().any(is_listed);
        let gpus = self.gpus().iter().enumerate();
        gpus.map(|(place, gpu)| {
            let (ordinal, device) = self.cuda_device(gpu).unzip();
            let (memory_total, memory_free) = self.memory(Some(gpu), device);
            Gpu {
                index: gpu.index,
                ordinal,
                name: gpu.name.clone().ok(),
                uuid: gpu.uuid.clone().ok(),
                serial: gpu.serial.clone().ok(),
                pci: gpu.pci.clone().ok(),
                compute_capability: self.capability(gpu),
                memory_total,
                memory_free,
                visible: match has_listed {
                    true => device.is_some(),
                    false => visible.names_instances || visible.gpus.contains(&place),
                },
            }
        })
        .collect()
    }

    fn gpus_by_cuda(&self) -> Vec<Gpu> {
        let devices = self.cuda_devices().iter().zip(0..);
        devices
            .map(|(device, ordinal)| {
                let (memory_total, memory_free) = self.memory(None, Some(device));
                Gpu {
                    index: ordinal,
                    ordinal: Some(ordinal),
                    name: device.name.clone(),
                    uuid: device.uuid.clone(),
                    compute_capability: device.capability,
                    memory_total,
                    memory_free,
                    visible: true,
                    ..Gpu::default()
                }
            })
            .collect()
    }

    /// What CUDA_VISIBLE_DEVICES leaves of NVML's list. If it seems to leave no GPU and CUDA lists devices, CUDA is right.
    pub(crate) fn visible(&self) -> Visible {
        let uuid = |gpu: &'_ GpuReading| gpu.uuid.clone().unwrap_or_default();
        let uuids: Vec<_> = self.gpus().iter().map(uuid).collect();
        let visible = Visible::parse(self.source.variable("CUDA_VISIBLE_DEVICES"), &uuids);
        match visible.hides_all() && self.cuda_finds_devices() {
            true => Visible::parse(None, &uuids),
            false => visible,
        }
    }
}
