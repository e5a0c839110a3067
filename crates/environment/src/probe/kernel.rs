//! The driver and the container as files show them: `/sys`, `/proc` and `/dev`. Nothing is loaded and no device is opened for work.
//!
//! A GPU is a display controller (PCI class 03) of vendor 10de. In WSL there is no such device, and `/dev/dxg` with Windows' libraries stands for
//! one. A container is known by a file, a variable or the name of its control group; which one it was is told.

use crate::Source;
use crate::facts::Version;

/// What the operating system shows of NVIDIA's driver, and of the system that this process runs in.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kernel {
    pub(crate) module_loaded: bool,
    /// The module's version, as the system writes it.
    pub(crate) module: Option<String>,
    /// NVIDIA GPUs on the PCI bus: addresses and drivers.
    pub(crate) bus: Vec<(String, Option<String>)>,
    /// Addresses of GPUs that `vfio-pci` holds for virtual machines, and this machine cannot use.
    pub(crate) set_aside: Vec<String>,
    /// Device nodes of NVIDIA's driver, and why they cannot be opened.
    pub(crate) nodes: Vec<(String, Option<String>)>,
    /// Whether `/dev/dxg` exists, which stands for a GPU in WSL.
    pub(crate) dxg: bool,
    /// Whether this is WSL with an NVIDIA GPU: `/dev/dxg` alone stands for a GPU of any vendor.
    pub(crate) passed_by_windows: bool,
    pub(crate) wsl: bool,
    /// The sign by which this is a container.
    pub(crate) container: Option<String>,
    /// Whether it is a container of Apptainer, formerly Singularity.
    pub(crate) apptainer: bool,
}

/// Variables that Apptainer sets in its containers.
const APPTAINER: [&str; 2] = ["APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"];

impl Kernel {
    pub(crate) fn look(source: &Source) -> Self {
        let version = source.line("/sys/module/nvidia/version");
        let proc = source.line("/proc/driver/nvidia/version");
        let release = source.line("/proc/sys/kernel/osrelease");
        let mut bus = bus(source);
        let set_aside = bus.extract_if(.., |(_, driver)| driver.as_deref() == Some("vfio-pci"));
        let set_aside = set_aside.map(|(address, _)| address).collect();
        let dxg = source.exists("/dev/dxg");
        let windows = ["libcuda.so.1", "libnvidia-ml.so.1"].into_iter();
        let mut by_windows = windows.map(|name| format!("/usr/lib/wsl/lib/{name}"));
        Self {
            module_loaded: version.is_some()
                || proc.is_some()
                || source.exists("/sys/module/nvidia"),
            module: version.or_else(|| proc.as_deref().and_then(version_in)),
            bus,
            set_aside,
            nodes: nodes(source),
            dxg,
            passed_by_windows: dxg && by_windows.any(|file| source.exists(file)),
            wsl: release.is_some_and(|release| release.to_lowercase().contains("microsoft")),
            container: container(source),
            apptainer: APPTAINER.iter().any(|name| source.variable(name).is_some())
                || source.exists("/.singularity.d"),
        }
    }

    pub(crate) fn has_node(&self, name: &str) -> bool {
        self.nodes.iter().any(|(node, _)| node == name)
    }

    /// Whether the operating system shows an NVIDIA GPU in any way.
    pub(crate) fn shows_gpu(&self) -> bool {
        self.module_loaded
            || !self.bus.is_empty()
            || !self.nodes.is_empty()
            || self.passed_by_windows
    }

    /// The number of nodes `/dev/nvidia0`, `/dev/nvidia1`, …
    pub(crate) fn gpu_nodes(&self) -> usize {
        let others = ["nvidiactl", "nvidia-uvm"].into_iter();
        let others = others.filter(|name| self.has_node(name));
        self.nodes.len() - others.count()
    }
}

/// The first word that looks like a version, in a line such as `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat …`.
fn version_in(text: &str) -> Option<String> {
    let mut words = text.lines().next()?.split_whitespace();
    let version = words.find(|word| word.contains('.') && Version::parse(word).is_some());
    version.map(str::to_owned)
}

/// Display controllers (class 03) of NVIDIA's vendor number, and their drivers.
fn bus(source: &Source) -> Vec<(String, Option<String>)> {
    let folder = "/sys/bus/pci/devices";
    let is_gpu = |address: &String| {
        let read = |file: &str| source.line(format!("{folder}/{address}/{file}"));
        read("vendor").is_some_and(|vendor| vendor.eq_ignore_ascii_case("0x10de"))
            && read("class").is_some_and(|class| class.starts_with("0x03"))
    };
    let gpus = source.names(folder).into_iter().filter(is_gpu);
    let driver = |address: &str| source.link_name(format!("{folder}/{address}/driver"));
    gpus.map(|gpu| (gpu.clone(), driver(&gpu))).collect()
}

fn nodes(source: &Source) -> Vec<(String, Option<String>)> {
    let is_node = |name: &String| match name.strip_prefix("nvidia") {
        Some("ctl" | "-uvm") => true,
        Some(number) => number.parse::<u32>().is_ok(),
        None => false,
    };
    let denied = |name: &str| source.opens(format!("/dev/{name}")).err();
    let denied = |name: &str| denied(name).map(|error| error.to_string());
    let nodes = source.names("/dev").into_iter().filter(is_node);
    nodes.map(|name| (name.clone(), denied(&name))).collect()
}

fn container(source: &Source) -> Option<String> {
    let files = ["/.dockerenv", "/run/.containerenv", "/.singularity.d"];
    if let Some(file) = files.into_iter().find(|file| source.exists(file)) {
        return Some(format!("{file} exists"));
    }
    if let Some(kind) = source.variable("container") {
        return Some(format!("the variable `container` is `{kind}`"));
    }
    let mut variables = APPTAINER.into_iter().chain(["KUBERNETES_SERVICE_HOST"]);
    if let Some(name) = variables.find(|name| source.variable(name).is_some()) {
        return Some(format!("{name} is set"));
    }
    let groups = source.line("/proc/1/cgroup")?;
    let kinds = ["docker", "kubepods", "containerd", "lxc", "podman"];
    let kind = kinds.into_iter().find(|kind| groups.contains(kind))?;
    Some(format!("/proc/1/cgroup names {kind}"))
}
