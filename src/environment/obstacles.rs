use bytesize::ByteSize;
use candle_core::DeviceLocation;

use super::{Finding, FindingCode, Gpu, Report, code};

/// What prevents work, for `Report::obstacles`.
impl Report {
    pub(super) fn has(&self, code: &FindingCode) -> bool {
        self.findings().iter().any(|finding| finding.code == code)
    }

    /// The GPU that a finding is about; `None` for the machine, and for a CUDA device that is not known to be one of the GPUs.
    fn gpu_of(&self, finding: &Finding) -> Option<u32> {
        let Some(DeviceLocation::Cuda { gpu_id }) = finding.device else {
            return finding.gpu;
        };
        let ordinal = u32::try_from(gpu_id).ok()?;
        let mut gpus = self.gpus().iter();
        Some(gpus.find(|gpu| gpu.ordinal == Some(ordinal))?.index)
    }

    /// The findings that prevent CUDA on one GPU or on all. Failed work on another kind of device is no such finding.
    fn against_cuda(&self) -> impl Iterator<Item = &Finding> {
        self.findings().iter().filter(|finding| {
            let is_cuda = |device| matches!(device, DeviceLocation::Cuda { .. });
            finding.code.prevents_cuda && finding.device.is_none_or(is_cuda)
        })
    }

    /// GPUs that are visible and without a problem.
    fn usable(&self) -> impl Iterator<Item = &Gpu> {
        self.gpus().iter().filter(|gpu| {
            let mut against = self.against_cuda();
            gpu.visible && !against.any(|finding| self.gpu_of(finding) == Some(gpu.index))
        })
    }

    pub(super) fn obstacles_to_cuda(&self) -> Vec<Finding> {
        let has_usable = self.usable().next().is_some();
        let counts = |finding: &&Finding| self.gpu_of(finding).is_none() || !has_usable;
        let mut obstacles: Vec<_> = self.against_cuda().filter(counts).cloned().collect();
        // A probe may not have finished, so the absence of obstacles is not enough.
        if obstacles.is_empty() && (!has_usable || !self.has(code::CUDA_STARTS)) {
            let seen = match self.gpus().len() {
                0 => "neither NVML nor CUDA lists a GPU".to_owned(),
                count => format!("GPUs: {count}; CUDA was not seen to start"),
            };
            obstacles.push(Finding::new(code::NO_USABLE_GPU, seen));
        }
        obstacles
    }

    /// Findings that keep a group from starting, and one if neither NCCL nor MPI can connect ranks.
    pub(super) fn obstacles_to_ranks(&self) -> Vec<Finding> {
        let against = [
            code::NCCL_INTERFACE,
            code::SHM_TOO_SMALL,
            code::LAUNCH,
            code::LOCAL_RANK,
            code::BUILDS_DIFFER,
            code::NCCL_DIFFERS,
            code::MPI_DIFFERS,
        ];
        let is_against = |finding: &&Finding| against.contains(&finding.code);
        let mut obstacles: Vec<_> = self.findings().iter().filter(is_against).cloned().collect();
        let no_cuda = self.obstacles_to_cuda().into_iter().next();
        let by_nccl = match (self.has(code::NCCL), no_cuda) {
            (_, Some(obstacle)) => Err(obstacle.code.title),
            (true, None) if self.has(code::NCCL_TOO_NEW) => Err(code::NCCL_TOO_NEW.title),
            (true, None) => Ok(()),
            (false, None) => Err("not found"),
        };
        let by_mpi = match self.has(code::MPI) {
            true if self.has(code::MPI_MIXED) => Err(code::MPI_MIXED.title),
            true => Ok(()),
            false => Err("not found"),
        };
        if let (Err(nccl), Err(mpi)) = (by_nccl, by_mpi) {
            let seen = format!("NCCL: {nccl}; MPI: {mpi}");
            obstacles.push(Finding::new(code::NO_ENGINE, seen));
        }
        obstacles
    }

    pub(super) fn lack_of_memory(&self, bytes: u64) -> Option<Finding> {
        let usable = self.usable();
        let free = usable.filter_map(|gpu| Some((gpu.memory_free?, gpu.index)));
        let seen = format!("required: {}", ByteSize(bytes));
        let Some((free, index)) = free.max() else {
            return Some(Finding::new(code::MEMORY_NOT_TOLD, seen));
        };
        let seen = format!("{seen}; most is free on GPU {index}: {}", ByteSize(free));
        (free < bytes).then(|| Finding::new(code::NOT_ENOUGH_MEMORY, seen))
    }
}
