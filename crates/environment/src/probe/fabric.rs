use crate::Source;
use crate::facts::Version;

/// The ways between nodes, as the operating system shows them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fabric {
    /// Ports of RDMA devices: InfiniBand, and Ethernet with RoCE.
    pub(crate) ports: Vec<Port>,
    /// Whether the network card may read a GPU's memory by a module of the kernel, or by DMA-BUF.
    pub(crate) reaches_gpus: bool,
    /// The bytes that this process may lock in memory; `None` if there is no limit, or it is unknown.
    pub(crate) lockable: Option<u64>,
    /// The names of network interfaces.
    pub(crate) interfaces: Vec<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct Port {
    /// Such as `mlx5_0 port 1`.
    pub(crate) name: String,
    /// Such as `ACTIVE`.
    pub(crate) state: String,
    /// Such as `400 Gb/sec (4X NDR)`.
    pub(crate) rate: String,
    pub(crate) is_infiniband: bool,
}

impl Port {
    pub(crate) fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

const DEVICES: &str = "/sys/class/infiniband";
/// The bit of the capability to lock memory beyond the limit, CAP_IPC_LOCK.
const MAY_LOCK: u64 = 1 << 14;
/// The first Linux that exports a GPU's memory by DMA-BUF to network cards, with NVIDIA's open kernel modules.
/// NVIDIA, GPU Operator, "GPUDirect RDMA and GPUDirect Storage", prerequisites; 2026-11.
const WITH_DMA_BUF: Version = Version([5, 12, 0]);

impl Fabric {
    pub(crate) fn look(source: &Source) -> Self {
        Self {
            ports: ports(source),
            reaches_gpus: reaches_gpus(source),
            lockable: lockable(source),
            interfaces: source.names("/sys/class/net"),
        }
    }

    pub(crate) fn has_infiniband(&self) -> bool {
        self.ports.iter().any(|port| port.is_infiniband)
    }
}

fn ports(source: &Source) -> Vec<Port> {
    let mut ports = Vec::new();
    for device in source.names(DEVICES).into_iter().take(64) {
        let folder = format!("{DEVICES}/{device}/ports");
        for number in source.names(&folder).into_iter().take(64) {
            let read = |file: &str| source.line(format!("{folder}/{number}/{file}"));
            let state = read("state").unwrap_or_default();
            // `4: ACTIVE`.
            let state = state.rsplit(':').next().unwrap_or_default().trim();
            ports.push(Port {
                name: format!("{device} port {number}"),
                state: state.to_owned(),
                rate: read("rate").unwrap_or("unknown rate".to_owned()),
                is_infiniband: read("link_layer").is_some_and(|layer| layer == "InfiniBand"),
            });
        }
    }
    ports
}

fn reaches_gpus(source: &Source) -> bool {
    // The older module of Mellanox does the same.
    let mut modules = ["nvidia_peermem", "nv_peer_mem"].into_iter();
    let has_module = modules.any(|name| source.exists(format!("/sys/module/{name}")));
    let driver = source.line("/proc/driver/nvidia/version");
    let is_open = driver.is_some_and(|driver| driver.contains("Open Kernel Module"));
    let release = source
        .line("/proc/sys/kernel/osrelease")
        .unwrap_or_default();
    let release = release.split('-').next().and_then(Version::parse);
    has_module || is_open && release.is_some_and(|release| release >= WITH_DMA_BUF)
}

/// The soft limit in `Max locked memory  8388608  8388608  bytes`, unless the process may exceed it.
fn lockable(source: &Source) -> Option<u64> {
    let status = source.text("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let capabilities = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    if capabilities.is_some_and(|bits| bits & MAY_LOCK != 0) {
        return None;
    }
    let limits = source.text("/proc/self/limits")?;
    let limit = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))?;
    limit.split_whitespace().next()?.parse().ok()
}
