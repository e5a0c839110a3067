use super::{Facts, Findings, Reply, code, joined};
use crate::facts::Version;
use crate::probe::kernel::Kernel;

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
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
