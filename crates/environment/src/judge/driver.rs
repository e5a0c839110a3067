//! The kernel module, what NVML and libcuda answer, whether this container may use the driver, and whether driver and GPUs run this
//! build's kernels.

use super::{Facts, Findings, Reply, answer, code, joined};
use crate::Gpu;
use crate::facts::{self, Version};
use crate::probe::cuda::CudaDevice;
use crate::probe::kernel::Kernel;
use crate::source::Kernels;

/// The first CUDA whose pools of device memory have a maximum size.
const POOLS_WITH_LIMITS: Version = Version([12, 2, 0]);
/// The status of an unknown error, of NVML and of CUDA.
const UNKNOWN: u32 = 999;

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    module(facts, findings);
    let kernel = facts.kernel.as_ref();
    if let Some(sign) = kernel.and_then(|kernel| kernel.container.as_deref()) {
        container(facts, sign, findings);
    }
    // A machine without a GPU may have the libraries without a driver, or a stub of libcuda.
    if facts.shows_gpu() {
        nvml(facts, findings);
        cuda(facts, findings);
    }
}

/// The kernel module and its device nodes, or why there are none.
fn module(facts: &Facts, findings: &mut Findings) {
    let Some(kernel) = &facts.kernel else { return };
    if !facts.shows_gpu() {
        return no_gpu(facts, kernel, findings);
    }
    if kernel.wsl {
        return wsl(facts, kernel, findings);
    }
    let nouveau = kernel.bus.iter();
    let nouveau = nouveau.filter(|(_, driver)| driver.as_deref() == Some("nouveau"));
    let nouveau = joined(nouveau.map(|(address, _)| address.as_str()), ", ");
    // nouveau may drive a second GPU beside one that works.
    if !nouveau.is_empty() && !facts.cuda_finds_devices() {
        return findings.add(code::NOUVEAU, format!("nouveau drives {nouveau}"));
    }
    // With `/sys` hidden only NVML may show the driver, and on integrated GPUs, whose module has another name, only CUDA.
    let nvml_answers = match facts.nvml {
        Reply::Failed(_, status) => status != 9,
        _ => facts.nvml.works().is_some(),
    };
    if !kernel.module_loaded && !nvml_answers && !facts.cuda_finds_devices() {
        let addresses = kernel.bus.iter().map(|(address, _)| address.as_str());
        let addresses = joined(addresses, ", ");
        let on_bus = (!addresses.is_empty()).then(|| format!("{addresses} on the PCI bus"));
        let no_module = Some("no /sys/module/nvidia".to_owned());
        let seen = on_bus.into_iter().chain(no_module);
        return findings.list(code::MODULE_NOT_LOADED, seen.chain(libraries(facts)));
    }
    let before = findings.0.len();
    mismatch(facts, kernel, findings);
    // The lack of a container runtime is a finding of its own. If CUDA has found its devices, it needs no further nodes.
    if !facts.lacks_container_runtime() && !facts.cuda_finds_devices() {
        nodes(facts, kernel, findings);
    }
    if findings.0.len() == before {
        let version = facts.driver().map(|version| version.to_string());
        let seen = version.unwrap_or("unknown version".to_owned());
        findings.add(code::DRIVER_LOADED, seen);
    }
}

/// What NVML and libcuda return without a GPU or a driver, which no other finding says.
fn libraries(facts: &Facts) -> impl Iterator<Item = String> {
    let nvml = facts.nvml.described("NVML", "NVML");
    let cuda = facts.cuda.described("libcuda", "cuInit");
    nvml.into_iter().chain(cuda)
}

fn no_gpu(facts: &Facts, kernel: &Kernel, findings: &mut Findings) {
    if !kernel.set_aside.is_empty() {
        let seen = format!("vfio-pci drives {}", kernel.set_aside.join(", "));
        return findings.add(code::PASSED_THROUGH, seen);
    }
    let by_system = match (kernel.wsl, kernel.dxg) {
        (false, _) => "none on the PCI bus, no kernel module, no /dev/nvidia*",
        (true, true) => {
            "WSL: Windows passes no NVIDIA GPU in (/dev/dxg, no driver in /usr/lib/wsl/lib)"
        }
        (true, false) => "WSL: Windows passes no GPU in (no /dev/dxg)",
    };
    let by_system = Some(by_system.to_owned()).into_iter();
    findings.list(code::NO_GPU, by_system.chain(libraries(facts)));
}

fn wsl(facts: &Facts, kernel: &Kernel, findings: &mut Findings) {
    let libraries = facts.libraries.iter();
    let mut libraries = libraries.flat_map(|libraries| &libraries.on_path);
    let inside = libraries.find(|library| library.name == "cuda" && library.is_driver());
    match inside.filter(|_| !facts.cuda_finds_devices()) {
        _ if !kernel.dxg => findings.add(code::WSL_BROKEN, "no /dev/dxg, which stands for the GPU"),
        Some(library) => {
            let seen = format!("a Linux driver inside WSL: {}", library.path());
            findings.add(code::WSL_BROKEN, seen);
        }
        None => findings.add(code::WSL, "/dev/dxg, and Microsoft's kernel"),
    }
}

/// By the status of NVML or CUDA, or by the files' versions if neither works: an unused library of another version may exist.
fn mismatch(facts: &Facts, kernel: &Kernel, findings: &mut Findings) {
    let module = kernel.module.as_deref();
    let library = facts.libraries.as_ref().and_then(|found| {
        // cuda-compat brings another libcuda on purpose; NVML's library always belongs to the driver.
        let library = found.find("nvidia-ml").or_else(|| found.find("cuda"))?;
        Some((library, library.version.filter(|_| library.is_driver())?))
    });
    let by_nvml = facts.nvml.failed_with(18);
    let by_cuda = facts.cuda.failed_with(803);
    let by_files = match (module.and_then(Version::parse), library) {
        (Some(module), Some((_, library))) => module != library,
        _ => false,
    };
    let nvml_works = facts.driver_version.is_some() || facts.nvml.works().is_some();
    let works = nvml_works || facts.cuda.works().is_some();
    if !by_nvml && !by_cuda && (works || !by_files) {
        return;
    }
    let module = module.unwrap_or("of an unknown version");
    let mut seen = vec![format!("kernel module {module}")];
    seen.extend(library.map(|(library, version)| format!("{} {version}", library.path())));
    seen.extend(by_nvml.then(|| "NVML returns 18".to_owned()));
    seen.extend(by_cuda.then(|| "cuInit returns 803".to_owned()));
    findings.list(code::MODULE_MISMATCH, seen);
}

fn nodes(facts: &Facts, kernel: &Kernel, findings: &mut Findings) {
    let (nodes, gpus) = (kernel.gpu_nodes(), kernel.bus.len());
    let mut missing = Vec::new();
    if !kernel.has_node("nvidiactl") {
        missing.push("no /dev/nvidiactl".to_owned());
    }
    // A container may have fewer GPUs than the machine.
    if nodes == 0 || nodes < gpus && !facts.is_container() {
        missing.push(format!("{nodes} of {} /dev/nvidiaN", gpus.max(1)));
    }
    findings.list(code::NODES_MISSING, missing);
    if !kernel.has_node("nvidia-uvm") {
        findings.add(code::UVM_MISSING, "/dev has only the driver's other nodes");
    }
    let denied = kernel.nodes.iter();
    let denied = denied.filter_map(|(name, why)| Some(format!("/dev/{name}: {}", why.as_ref()?)));
    let denied = joined(denied, "; ");
    if !denied.is_empty() {
        findings.add(code::NODES_DENIED, denied);
    }
}

fn container(facts: &Facts, sign: &str, findings: &mut Findings) {
    let before = findings.0.len();
    if facts.lacks_container_runtime() {
        let seen = "the host has a GPU, the container has no /dev/nvidia*";
        let libcuda = match &facts.cuda {
            Reply::Missing(_) => " and no libcuda",
            _ => "",
        };
        let seen = format!("{sign}; {seen}{libcuda}");
        findings.add(code::CONTAINER_WITHOUT_RUNTIME, seen);
    }
    let by_gpu = facts.gpus().iter().any(|gpu| gpu.handle == Err(UNKNOWN));
    let by_nvml = by_gpu || facts.nvml.failed_with(UNKNOWN);
    let who = match (by_nvml, facts.cuda.failed_with(UNKNOWN)) {
        (true, true) => Some("NVML and cuInit return"),
        (true, false) => Some("NVML returns"),
        (false, true) => Some("cuInit returns"),
        (false, false) => None,
    };
    if let Some(who) = who {
        let seen = format!("{sign}; {who} {UNKNOWN}");
        findings.add(code::CONTAINER_LOST_DEVICES, seen);
    }
    if findings.0.len() == before {
        findings.add(code::CONTAINER, sign);
    }
}

fn nvml(facts: &Facts, findings: &mut Findings) {
    // Without a driver there is no NVML either, and that is a finding of its own.
    let has_driver = facts.kernel_is(|kernel| !kernel.nodes.is_empty() || kernel.passed_by_windows);
    match &facts.nvml {
        Reply::Missing(reason) if has_driver => findings.add(code::NVML_MISSING, reason),
        // Findings of their own: no module, a mismatch, a container that lost its devices.
        Reply::Failed("nvmlInit", 9 | 18) => {}
        Reply::Failed(_, UNKNOWN) if facts.is_container() => {}
        Reply::Failed(call, 12) => {
            findings.add(code::NVML_MISSING, answer(call, 12, facts::nvml(12)))
        }
        Reply::Failed(call, number) => {
            findings.answer(code::NVML_FAILS, (call, *number), facts::nvml)
        }
        _ => {}
    }
}

fn cuda(facts: &Facts, findings: &mut Findings) {
    match &facts.cuda {
        Reply::Works(devices) if !devices.is_empty() => started(facts, devices, findings),
        Reply::Works(_) => findings.add(
            code::NO_DEVICE,
            "cuInit returns 0, and cuDeviceGetCount counts 0 devices",
        ),
        Reply::Failed(call, number) => failed(facts, call, *number, findings),
        // The lack of a container runtime is a finding of its own.
        Reply::Missing(reason) if !facts.lacks_container_runtime() => {
            let finding = findings.begin(code::LIBCUDA_MISSING, reason);
            if facts.kernel_is(|kernel| kernel.apptainer) {
                finding.next_step = "start the container with `--nv`".into();
                finding.command = "apptainer exec --nv …".into();
            }
        }
        _ => {}
    }
}

fn started(facts: &Facts, devices: &[CudaDevice], findings: &mut Findings) {
    let version = facts.cuda_of_driver();
    if let Some(old) = version.filter(|version| *version < POOLS_WITH_LIMITS) {
        findings.add(code::OLD_POOLS, format!("the driver supports CUDA {old}"));
    }
    let version = Version::or_unknown(version);
    let names = devices.iter().filter_map(|device| device.name.as_deref());
    let mut names: Vec<_> = names.collect();
    names.dedup();
    let (count, names) = (devices.len(), names.join(", "));
    let seen = format!("CUDA {version}, devices: {count} ({names})");
    findings.add(code::CUDA_STARTS, seen);
}

fn failed(facts: &Facts, call: &str, number: u32, findings: &mut Findings) {
    let code = match number {
        34 => code::STUB,
        100 | 101 => code::NO_DEVICE,
        802 | 919 => code::FABRIC,
        804 => code::COMPAT,
        805..=809 => code::MPS,
        // The reason is a finding of its own.
        803 => return,
        UNKNOWN if facts.is_container() => return,
        _ => return findings.answer(code::CUDA_FAILS, (call, number), facts::cuda),
    };
    findings.add(code, answer(call, number, facts::cuda(number)));
}

pub(super) fn kernels(facts: &Facts, findings: &mut Findings) {
    let build = match cfg!(feature = "cuda") {
        true => "with the feature `cuda`",
        false => "without the feature `cuda`, which runs on the CPU",
    };
    let version = env!("CARGO_PKG_VERSION");
    findings.add(code::BUILT, format!("candle-headroom {version} {build}"));
    let mut gpus = facts.all_gpus();
    if gpus.iter().any(|gpu| gpu.visible) {
        gpus.retain(|gpu| gpu.visible);
    }
    gpus.retain(|gpu| gpu.compute_capability.is_some());
    for kernels in &facts.source.kernels {
        let before = findings.0.len();
        against_driver(facts, kernels, findings);
        for gpu in &gpus {
            against_gpu(kernels, gpu, findings);
        }
        let is_comparable = facts.cuda_of_driver().is_some() && !gpus.is_empty();
        if findings.0.len() == before && is_comparable {
            findings.add(code::KERNELS_FIT, described(kernels));
        }
    }
}

fn described(kernels: &Kernels) -> String {
    let name = &kernels.name;
    match (kernels.version, kernels.target) {
        (Some(version), Some(target)) => format!("{name}: PTX {version} for {target}"),
        (Some(version), None) => format!("{name}: PTX {version}"),
        (None, Some(target)) => format!("{name}: {target}"),
        (None, None) => format!("{name}: no version and no target can be read"),
    }
}

fn against_driver(facts: &Facts, kernels: &Kernels, findings: &mut Findings) {
    let name = &kernels.name;
    let needed = kernels.version.and_then(facts::cuda_of_ptx);
    let (Some(version), Some(needed)) = (kernels.version, needed) else {
        // A version after the table's last one is probably too new for the driver as well, but that is not known.
        return findings.add(code::PTX_UNKNOWN, described(kernels));
    };
    if let Some(cuda) = facts.cuda_of_driver()
        && cuda < needed
    {
        let seen = format!("{name}: PTX {version} needs CUDA {needed}, the driver supports {cuda}");
        let finding = findings.begin(code::PTX_TOO_NEW, seen);
        if let Some(driver) = facts::driver_of_cuda(needed) {
            let step = "update the driver to";
            let step = format!("{step} {driver} or later, or build with CUDA {cuda} or older");
            finding.next_step = step.into();
        }
    }
}

fn against_gpu(kernels: &Kernels, gpu: &Gpu, findings: &mut Findings) {
    let (Some(target), Some(capability)) = (kernels.target, gpu.compute_capability) else {
        return;
    };
    let machine_code_runs = !kernels.with_machine_code || target.machine_code_runs_on(capability);
    let code = match target.runs_on(capability) {
        false => code::PTX_WRONG_TARGET,
        true if !machine_code_runs => code::MACHINE_CODE,
        true => return,
    };
    let (name, (major, minor)) = (&kernels.name, capability);
    let seen = format!("{name} are for {target}, the GPU is {major}.{minor}");
    let finding = findings.begin(code, seen);
    finding.command = format!("CUDA_COMPUTE_CAP={major}{minor} cargo build --features cuda").into();
    finding.set_gpu(gpu.index);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_runs_on_its_major_number_only() {
        let judged = |target: &str, with_machine_code, capability| {
            let ptx = format!(".version 8.0\n.target {target}\n");
            let kernels = Kernels::read("candle's kernels", &ptx, with_machine_code);
            let gpu = Gpu {
                compute_capability: Some(capability),
                ..Gpu::default()
            };
            let mut findings = Findings::default();
            against_gpu(&kernels, &gpu, &mut findings);
            findings.0.first().map(|finding| finding.code.id)
        };
        assert_eq!(judged("sm_80", true, (8, 6)), None);
        assert_eq!(judged("sm_80", true, (9, 0)), Some("HR-311"));
        assert_eq!(judged("sm_80", false, (9, 0)), None);
        assert_eq!(judged("sm_90a", true, (10, 0)), Some("HR-309"));
    }
}
