use crate::environment::code;
use crate::environment::facts::Facts;
use crate::environment::finding::Finding;
use crate::environment::probe::kernel::Kernel;
use crate::facts::Version;

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let Some(kernel) = &facts.kernel else {
        return Vec::new();
    };
    if !facts.shows_gpu() {
        return vec![no_gpu(facts, kernel)];
    }
    if kernel.wsl {
        return vec![wsl(facts, kernel)];
    }
    let by_nouveau = kernel.addresses(|gpu| gpu.driver.as_deref() == Some("nouveau"));
    // nouveau may drive a second GPU beside one that works.
    if !by_nouveau.is_empty() && !facts.cuda_finds_devices() {
        let seen = format!("nouveau drives {by_nouveau}");
        return vec![Finding::new(code::NOUVEAU, seen)];
    }
    if is_absent(facts, kernel) {
        let mut seen = vec!["no /sys/module/nvidia".to_owned()];
        if !kernel.bus.is_empty() {
            seen.insert(0, format!("{} on the PCI bus", kernel.addresses(|_| true)));
        }
        seen.extend(nvml_and_cuda(facts));
        return vec![Finding::new(code::MODULE_NOT_LOADED, seen.join(", "))];
    }
    let mut findings = Vec::new();
    findings.extend(mismatch(facts, kernel));
    // A container without NVIDIA's runtime has no nodes, which is a finding of its own. If CUDA has found its devices, it needs no
    // further nodes, on integrated GPUs for one.
    if !facts.lacks_container_runtime() && !facts.cuda_finds_devices() {
        findings.extend(nodes(facts, kernel));
    }
    if findings.is_empty() {
        let version = facts.driver().map(|version| version.to_string());
        let seen = version.unwrap_or("unknown version".to_owned());
        findings.push(Finding::new(code::DRIVER_LOADED, seen));
    }
    findings
}

fn no_gpu(facts: &Facts, kernel: &Kernel) -> Finding {
    if !kernel.set_aside.is_empty() {
        let seen = format!("vfio-pci drives {}", kernel.set_aside.join(", "));
        return Finding::new(code::PASSED_THROUGH, seen);
    }
    let by_system = match (kernel.wsl, kernel.dxg) {
        (false, _) => "none on the PCI bus, no kernel module, no /dev/nvidia*",
        (true, true) => {
            "WSL: Windows passes no NVIDIA GPU in (/dev/dxg, no driver in /usr/lib/wsl/lib)"
        }
        (true, false) => "WSL: Windows passes no GPU in (no /dev/dxg)",
    };
    let mut seen = vec![by_system.to_owned()];
    seen.extend(nvml_and_cuda(facts));
    Finding::new(code::NO_GPU, seen.join(", "))
}

/// What NVML and libcuda return without a GPU or a driver, which no other finding says.
fn nvml_and_cuda(facts: &Facts) -> Vec<String> {
    let mut seen = Vec::new();
    match (&facts.nvml, facts.nvml_init()) {
        (None, _) => {}
        (Some(_), None) => seen.push("no NVML".to_owned()),
        (_, Some(Err(status))) => seen.push(format!("NVML returns {status}")),
        (_, Some(Ok(()))) => seen.push("NVML counts 0".to_owned()),
    }
    match (&facts.cuda, facts.cuda_init()) {
        (None, _) => {}
        (Some(_), None) => seen.push("no libcuda".to_owned()),
        (_, Some(Err(status))) => seen.push(format!("cuInit returns {status}")),
        (_, Some(Ok(()))) => seen.push("CUDA counts 0".to_owned()),
    }
    seen
}

/// Whether neither the system nor NVML nor CUDA shows a driver. With `/sys` hidden only NVML may show it. The module of integrated GPUs
/// has another name and may come without NVML, so that only CUDA shows it.
fn is_absent(facts: &Facts, kernel: &Kernel) -> bool {
    let answers = facts.nvml_init().is_some_and(|init| init != Err(9));
    !kernel.module_loaded && !answers && !facts.cuda_finds_devices()
}

fn wsl(facts: &Facts, kernel: &Kernel) -> Finding {
    let libraries = facts.libraries.iter();
    let mut libraries = libraries.flat_map(|libraries| &libraries.on_path);
    let inside = libraries.find(|library| {
        let version = library.version.filter(|version| version.major() > 1);
        library.name == "cuda" && version.is_some()
    });
    match (kernel.dxg, inside) {
        (true, Some(library)) if !facts.cuda_finds_devices() => {
            let seen = format!("a Linux driver inside WSL: {}", library.path());
            Finding::new(code::WSL_BROKEN, seen)
        }
        (true, _) => Finding::new(code::WSL, "/dev/dxg, and Microsoft's kernel"),
        (false, _) => Finding::new(code::WSL_BROKEN, "no /dev/dxg, which stands for the GPU"),
    }
}

/// By the status of NVML or CUDA, or by the versions of module and library files if neither works: an unused library of another version
/// may exist.
fn mismatch(facts: &Facts, kernel: &Kernel) -> Option<Finding> {
    let module = kernel.module.as_deref();
    let library = facts.libraries.as_ref().and_then(|libraries| {
        // cuda-compat brings another libcuda on purpose; NVML's library always belongs to the driver.
        let nvml = libraries.find("nvidia-ml");
        let library = nvml.or_else(|| libraries.find("cuda"))?;
        let version = library.version.filter(|version| version.major() > 1)?;
        Some((library, version))
    });
    let module_version = module.and_then(|text| text.parse::<Version>().ok());
    let by_nvml = facts.nvml_init() == Some(Err(18));
    let by_cuda = facts.cuda_init() == Some(Err(803));
    let by_files = match (module_version, &library) {
        (Some(module), Some((_, library))) => module != *library,
        _ => false,
    };
    let works = facts.nvml_init() == Some(Ok(())) || facts.cuda_init() == Some(Ok(()));
    if !by_nvml && !by_cuda && (works || !by_files) {
        return None;
    }
    let module = module.unwrap_or("of an unknown version");
    let mut seen = vec![format!("kernel module {module}")];
    seen.extend(library.map(|(library, version)| format!("{} {version}", library.path())));
    seen.extend(by_nvml.then(|| "NVML returns 18".to_owned()));
    seen.extend(by_cuda.then(|| "cuInit returns 803".to_owned()));
    Some(Finding::new(code::MODULE_MISMATCH, seen.join(", ")))
}

fn nodes(facts: &Facts, kernel: &Kernel) -> Vec<Finding> {
    let mut findings = Vec::new();
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
        findings.push(Finding::new(code::NODES_MISSING, missing.join(", ")));
    }
    if !kernel.has_node("nvidia-uvm") {
        let seen = "/dev has only the driver's other nodes";
        findings.push(Finding::new(code::UVM_MISSING, seen));
    }
    let denied = kernel
        .nodes
        .iter()
        .filter_map(|node| Some(format!("/dev/{}: {}", node.name, node.denied.as_ref()?)));
    let denied: Vec<_> = denied.collect();
    if !denied.is_empty() {
        findings.push(Finding::new(code::NODES_DENIED, denied.join("; ")));
    }
    findings
}
