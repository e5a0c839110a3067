use crate::environment::source::Source;
use crate::memory::SystemMemory;

/// The machine's memory and processors.
#[derive(Debug, Clone, Default)]
pub(crate) struct Host {
    pub(crate) system: Option<String>,
    pub(crate) processors: usize,
    pub(crate) processor: Option<String>,
    pub(crate) memory: SystemMemory,
    pub(crate) swap_total: Option<u64>,
    pub(crate) swap_free: Option<u64>,
    /// The bytes that `/dev/shm` may hold, if it is mounted with a size.
    pub(crate) shm: Option<u64>,
}

impl Host {
    pub(crate) fn look(source: &Source) -> Self {
        let info = source.text("/proc/meminfo").unwrap_or_default();
        let processors = source.text("/proc/cpuinfo").unwrap_or_default();
        let mut lines = processors.lines();
        let model = lines.find(|line| line.starts_with("model name"));
        let is_processor = |line: &&str| line.starts_with("processor");
        let release = source.line("/proc/sys/kernel/osrelease");
        Self {
            system: release.map(|release| format!("Linux {release}")),
            processors: processors.lines().filter(is_processor).count(),
            processor: model.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned())),
            memory: SystemMemory::read_by(|path| source.text(path).ok()),
            swap_total: SystemMemory::meminfo(&info, "SwapTotal:"),
            swap_free: SystemMemory::meminfo(&info, "SwapFree:"),
            shm: shm(&source.text("/proc/mounts").unwrap_or_default()),
        }
    }
}

/// The size among the options of a mount, such as `shm /dev/shm tmpfs rw,nosuid,size=65536k 0 0`.
fn shm(mounts: &str) -> Option<u64> {
    let mut mounts = mounts.lines().map(|line| line.split_whitespace());
    let options = mounts.find_map(|mut fields| {
        let is_shm = fields.nth(1) == Some("/dev/shm");
        is_shm.then(|| fields.nth(1)).flatten()
    })?;
    let size = options
        .split(',')
        .find_map(|option| option.strip_prefix("size="))?;
    match size.strip_suffix('k') {
        Some(kib) => kib.parse::<u64>().ok()?.checked_mul(1024),
        None => size.parse().ok(),
    }
}
