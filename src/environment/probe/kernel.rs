use crate::environment::source::Source;
use crate::facts::Version;

/// What the operating system shows of NVIDIA's driver, and of the system that this process runs in.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kernel {
    pub(crate) module_loaded: bool,
    /// The module's version, as the system writes it.
    pub(crate) module: Option<String>,
    pub(crate) bus: Vec<OnBus>,
    /// Addresses of GPUs that `vfio-pci` holds for virtual machines, and this machine cannot use.
    pub(crate) set_aside: Vec<String>,
    pub(crate) nodes: Vec<Node>,
    /// Whether `/dev/dxg` exists, which stands for a GPU in WSL.
    pub(crate) dxg: bool,
    /// Whether Windows provides NVIDIA's driver; `/dev/dxg` alone stands for a GPU of any vendor.
    pub(crate) wsl_driver: bool,
    pub(crate) wsl: bool,
    /// The sign by which this is a container.
    pub(crate) container: Option<String>,
    /// Whether it is a container of Apptainer, formerly Singularity.
    pub(crate) apptainer: bool,
}

/// An NVIDIA GPU on the PCI bus.
#[derive(Debug, Clone)]
pub(crate) struct OnBus {
    pub(crate) address: String,
    pub(crate) driver: Option<String>,
}

/// A device node of NVIDIA's driver.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// Why it cannot be opened.
    pub(crate) denied: Option<String>,
}

impl Kernel {
    pub(crate) fn look(source: &Source) -> Self {
        let version = source.line("/sys/module/nvidia/version");
        let proc = source.line("/proc/driver/nvidia/version");
        let mut wsl_libraries = ["libcuda.so.1", "libnvidia-ml.so.1"].into_iter();
        let release = source.line("/proc/sys/kernel/osrelease");
        let (set_aside, bus): (Vec<_>, Vec<_>) = bus(source)
            .into_iter()
            .partition(|gpu| gpu.driver.as_deref() == Some("vfio-pci"));
        Self {
            module_loaded: version.is_some()
                || proc.is_some()
                || source.exists("/sys/module/nvidia"),
            module: version.or_else(|| proc.as_deref().and_then(version_in)),
            bus,
            set_aside: set_aside.into_iter().map(|gpu| gpu.address).collect(),
            nodes: nodes(source),
            dxg: source.exists("/dev/dxg"),
            wsl_driver: wsl_libraries.any(|name| source.exists(format!("/usr/lib/wsl/lib/{name}"))),
            wsl: release.is_some_and(|release| release.to_lowercase().contains("microsoft")),
            container: container(source),
            apptainer: APPTAINER.iter().any(|name| source.variable(name).is_some())
                || source.exists("/.singularity.d"),
        }
    }

    /// The addresses of some GPUs on the bus, separated by commas.
    pub(crate) fn addresses(&self, is_wanted: impl Fn(&OnBus) -> bool) -> String {
        let gpus = self.bus.iter().filter(|gpu| is_wanted(gpu));
        let addresses: Vec<_> = gpus.map(|gpu| gpu.address.as_str()).collect();
        addresses.join(", ")
    }

    pub(crate) fn has_node(&self, name: &str) -> bool {
        self.nodes.iter().any(|node| node.name == name)
    }

    /// Whether the operating system shows an NVIDIA GPU in any way.
    pub(crate) fn shows_gpu(&self) -> bool {
        self.module_loaded
            || !self.bus.is_empty()
            || !self.nodes.is_empty()
            || self.is_passed_by_windows()
    }

    /// Whether this is WSL with an NVIDIA GPU.
    pub(crate) fn is_passed_by_windows(&self) -> bool {
        self.dxg && self.wsl_driver
    }

    /// The number of nodes `/dev/nvidia0`, `/dev/nvidia1`, …
    pub(crate) fn gpu_nodes(&self) -> usize {
        let is_gpu = |node: &&Node| {
            let number = node.name.strip_prefix("nvidia");
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        };
        self.nodes.iter().filter(is_gpu).count()
    }
}

/// The first word that looks like a version, in a line such as `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat …`.
fn version_in(text: &str) -> Option<String> {
    let first = text.lines().next()?;
    let words = first.split_whitespace();
    words
        .filter(|word| word.contains('.'))
        .find(|word| word.parse::<Version>().is_ok())
        .map(str::to_owned)
}

/// Display controllers (class 03) of NVIDIA's vendor number, and their drivers.
fn bus(source: &Source) -> Vec<OnBus> {
    let folder = "/sys/bus/pci/devices";
    let is_gpu = |address: &String| {
        let read = |file: &str| source.line(format!("{folder}/{address}/{file}"));
        read("vendor").is_some_and(|vendor| vendor.eq_ignore_ascii_case("0x10de"))
            && read("class").is_some_and(|class| class.starts_with("0x03"))
    };
    let addresses = source.names(folder).into_iter().filter(is_gpu);
    addresses
        .map(|address| OnBus {
            driver: source.link_name(format!("{folder}/{address}/driver")),
            address,
        })
        .collect()
}

fn nodes(source: &Source) -> Vec<Node> {
    let is_node = |name: &String| {
        let rest = name.strip_prefix("nvidia");
        rest.is_some_and(|rest| {
            matches!(rest, "ctl" | "-uvm")
                || !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    let names = source.names("/dev").into_iter().filter(is_node);
    names
        .map(|name| Node {
            denied: source
                .opens(format!("/dev/{name}"))
                .err()
                .map(|error| error.to_string()),
            name,
        })
        .collect()
}

/// Variables that Apptainer sets in its containers.
const APPTAINER: [&str; 2] = ["APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"];

fn container(source: &Source) -> Option<String> {
    for file in ["/.dockerenv", "/run/.containerenv", "/.singularity.d"] {
        if source.exists(file) {
            return Some(format!("{file} exists"));
        }
    }
    if let Some(kind) = source.variable("container") {
        return Some(format!("the variable `container` is `{kind}`"));
    }
    if let Some(name) = APPTAINER
        .into_iter()
        .find(|name| source.variable(name).is_some())
    {
        return Some(format!("{name} is set"));
    }
    if source.variable("KUBERNETES_SERVICE_HOST").is_some() {
        return Some("KUBERNETES_SERVICE_HOST is set".to_owned());
    }
    let groups = source.line("/proc/1/cgroup")?;
    let kinds = ["docker", "kubepods", "containerd", "lxc", "podman"];
    let kind = kinds.into_iter().find(|kind| groups.contains(kind))?;
    Some(format!("/proc/1/cgroup names {kind}"))
}
