use crate::environment::code;
use crate::environment::facts::Facts;
use crate::environment::finding::Findings;
use crate::environment::probe::kernel::Kernel;
use crate::environment::reply::Reply;
use crate::facts::Version;

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
    let nouveau: Vec<_> = nouveau.map(|(address, _)| address.as_str()).collect();
    // nouveau may drive a second GPU beside one that works.
    if !nouveau.is_empty() && !facts.cuda_finds_devices() {
        let seen = format!("nouveau drives {}", nouveau.join(", "));
        return findings.add(code::NOUVEAU, seen);
    }
    // With `/sys` hidden only NVML may show the driver. The module of integrated GPUs has another name and may come without NVML, so that
    // only CUDA shows it.
    let nvml_answers = match facts.nvml {
        Reply::Failed(_, status) => status != 9,
        _ => facts.nvml.works().is_some(),
    };
    if !kernel.module_loaded && !nvml_answers && !facts.cuda_finds_devices() {
        let addresses = kernel.bus.iter().map(|(address, _)| address.as_str());
        let addresses: Vec<_> = addresses.collect();
        let mut seen = vec!["no /sys/module/nvidia".to_owned()];
        if !addresses.is_empty() {
            seen.insert(0, format!("{} on the PCI bus", addresses.join(", ")));
        }
        seen.extend(libraries(facts));
        return findings.add(code::MODULE_NOT_LOADED, seen.join(", "));
    }
    let before = findings.0.len();
    mismatch(facts, kernel, findings);
    // A container without NVIDIA's runtime has no nodes, which is a finding of its own. If CUDA has found its devices, it needs no
    // further nodes, on integrated GPUs for one.
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
    nvml.into_iter()
        .chain(facts.cuda.described("libcuda", "cuInit"))
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
    let mut seen = vec![by_system.to_owned()];
    seen.extend(libraries(facts));
    findings.add(code::NO_GPU, seen.join(", "));
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

/// By the status of NVML or CUDA, or by the versions of module and library files if neither works: an unused library of another version
/// may exist.
fn mismatch(facts: &Facts, kernel: &Kernel, findings: &mut Findings) {
    let module = kernel.module.as_deref();
    let library = facts.libraries.as_ref().and_then(|libraries| {
        // cuda-compat brings another libcuda on purpose; NVML's library always belongs to the driver.
        let library = libraries
            .find("nvidia-ml")
            .or_else(|| libraries.find("cuda"))?;
        Some((library, library.version.filter(|_| library.is_driver())?))
    });
    let by_nvml = facts.nvml.failed_with(18);
    let by_cuda = facts.cuda.failed_with(803);
    let by_files = match (module.and_then(Version::parse), library) {
        (Some(module), Some((_, library))) => module != library,
        _ => false,
    };
    let works = facts.nvml.works().is_some() || facts.cuda.works().is_some();
    if !by_nvml && !by_cuda && (works || !by_files) {
        return;
    }
    let module = module.unwrap_or("of an unknown version");
    let mut seen = vec![format!("kernel module {module}")];
    seen.extend(library.map(|(library, version)| format!("{} {version}", library.path())));
    seen.extend(by_nvml.then(|| "NVML returns 18".to_owned()));
    seen.extend(by_cuda.then(|| "cuInit returns 803".to_owned()));
    findings.add(code::MODULE_MISMATCH, seen.join(", "));
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
    if !missing.is_empty() {
        findings.add(code::NODES_MISSING, missing.join(", "));
    }
    if !kernel.has_node("nvidia-uvm") {
        let seen = "/dev has only the driver's other nodes";
        findings.add(code::UVM_MISSING, seen);
    }
    let nodes = kernel.nodes.iter();
    let denied =
        nodes.filter_map(|(name, denied)| Some(format!("/dev/{name}: {}", denied.as_ref()?)));
    let denied: Vec<_> = denied.collect();
    if !denied.is_empty() {
        findings.add(code::NODES_DENIED, denied.join("; "));
    }
}
