use crate::environment::code::{
    DRIVER_LOADED, MODULE_MISMATCH, MODULE_NOT_LOADED, NO_GPU, NODES_DENIED, NODES_MISSING,
    NOUVEAU, PASSED_THROUGH, UVM_MISSING, WSL, WSL_BROKEN,
};
use crate::environment::facts::Facts;
use crate::environment::finding::Finding;
use crate::environment::probe::driver::Cuda;
use crate::environment::probe::kernel::Kernel;
use crate::environment::probe::nvml::Readings;
use crate::facts::Version;

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let Some(kernel) = &facts.kernel else {
        return Vec::new();
    };
    if !facts.shows_gpu() && !kernel.set_aside.is_empty() {
        let seen = format!("vfio-pci drives {}", kernel.set_aside.join(", "));
        return vec![Finding::new(&PASSED_THROUGH, seen)];
    }
    if !facts.shows_gpu() {
        let by_system = match (kernel.wsl, kernel.dxg) {
            (false, _) => "none on the PCI bus, no kernel module, no /dev/nvidia*",
            (true, true) => {
                "WSL: Windows passes no NVIDIA GPU in (/dev/dxg, no driver in /usr/lib/wsl/lib)"
            }
            (true, false) => "WSL: Windows passes no GPU in (no /dev/dxg)",
        };
        let mut seen = vec![by_system.to_owned()];
        seen.extend(nvml_and_cuda(facts));
        return vec![Finding::new(&NO_GPU, seen.join(", "))];
    }
    if kernel.wsl {
        return wsl(facts, kernel);
    }
    let by_nouveau: Vec<_> = kernel
        .bus
        .iter()
        .filter(|gpu| gpu.driver.as_deref() == Some("nouveau"))
        .map(|gpu| gpu.address.as_str())
        .collect();
    // Beside a GPU that works nouveau may well drive another one.
    if !by_nouveau.is_empty() && !facts.cuda_finds_devices() {
        let seen = format!("nouveau drives {}", by_nouveau.join(", "));
        return vec![Finding::new(&NOUVEAU, seen)];
    }
    if is_absent(facts, kernel) {
        let addresses: Vec<_> = kernel.bus.iter().map(|gpu| gpu.address.as_str()).collect();
        let mut seen = vec!["no /sys/module/nvidia".to_owned()];
        if !addresses.is_empty() {
            seen.insert(0, format!("{} on the PCI bus", addresses.join(", ")));
        }
        seen.extend(nvml_and_cuda(facts));
        return vec![Finding::new(&MODULE_NOT_LOADED, seen.join(", "))];
    }
    let mut findings = Vec::new();
    findings.extend(mismatch(facts, kernel));
    // A container without NVIDIA's runtime has neither nodes nor libraries, which is a finding of its own; and where CUDA has found its
    // devices, on integrated GPUs for one, it needs no others.
    if !facts.lacks_container_runtime() && !facts.cuda_finds_devices() {
        findings.extend(nodes(facts, kernel));
    }
    if findings.is_empty() {
        let version = match facts.driver() {
            Some(version) => version.to_string(),
            None => "its version is not told".to_owned(),
        };
        findings.push(Finding::new(&DRIVER_LOADED, version));
    }
    findings
}

/// What NVML and libcuda say where there is no GPU or no driver, since that is a finding nowhere else.
fn nvml_and_cuda(facts: &Facts) -> Vec<String> {
    let mut told = Vec::new();
    match &facts.nvml {
        Some(Err(_)) => told.push("no NVML".to_owned()),
        Some(Ok(Readings {
            init: Err(code), ..
        })) => told.push(format!("NVML answers {code}")),
        Some(Ok(_)) => told.push("NVML counts 0".to_owned()),
        None => {}
    }
    match &facts.cuda {
        Some(Err(_)) => told.push("no libcuda".to_owned()),
        Some(Ok(Cuda {
            init: Err(code), ..
        })) => told.push(format!("cuInit answers {code}")),
        Some(Ok(_)) => told.push("CUDA counts 0".to_owned()),
        None => {}
    }
    told
}

/// Neither the system nor NVML nor CUDA knows of a driver. Where `/sys` is hidden NVML alone may know of it, and on integrated GPUs,
/// whose module has another name and which may come without NVML, CUDA does.
fn is_absent(facts: &Facts, kernel: &Kernel) -> bool {
    let answers = match &facts.nvml {
        Some(Ok(Readings { init, .. })) => *init != Err(9),
        _ => false,
    };
    !kernel.module_loaded && !answers && !facts.cuda_finds_devices()
}

fn wsl(facts: &Facts, kernel: &Kernel) -> Vec<Finding> {
    let inside = facts.libraries.as_ref().and_then(|libraries| {
        let mut drivers = libraries
            .on_path
            .iter()
            .filter(|library| library.name == "cuda");
        drivers.find(|library| library.version.is_some_and(|version| version.major() > 1))
    });
    match (kernel.dxg, inside) {
        (true, Some(library)) if !facts.cuda_finds_devices() => {
            let seen = format!(
                "a Linux driver inside WSL: {}/{}",
                library.folder, library.soname
            );
            vec![Finding::new(&WSL_BROKEN, seen)]
        }
        (true, _) => vec![Finding::new(&WSL, "/dev/dxg, and a kernel of Microsoft's")],
        (false, _) => vec![Finding::new(
            &WSL_BROKEN,
            "no /dev/dxg, which stands for the GPU",
        )],
    }
}

/// By what NVML and CUDA say themselves, or by the versions of module and library files where neither of them works: a library of
/// another version may lie about unused.
fn mismatch(facts: &Facts, kernel: &Kernel) -> Option<Finding> {
    let module = kernel.module.as_deref();
    let library = facts.libraries.as_ref().and_then(|libraries| {
        // Where cuda-compat is first on the path, its libcuda differs on purpose; NVML's library is always the driver's.
        let driver = libraries
            .find("nvidia-ml")
            .or_else(|| libraries.find("cuda"))?;
        Some((
            driver,
            driver.version.filter(|version| version.major() > 1)?,
        ))
    });
    let by_nvml = matches!(&facts.nvml, Some(Ok(Readings { init: Err(18), .. })));
    let by_cuda = matches!(&facts.cuda, Some(Ok(cuda)) if cuda.init == Err(803));
    let by_files = match (
        module.and_then(|text| text.parse::<Version>().ok()),
        &library,
    ) {
        (Some(module), Some((_, library))) => module != *library,
        _ => false,
    };
    let works = matches!(&facts.nvml, Some(Ok(Readings { init: Ok(()), .. })))
        || matches!(&facts.cuda, Some(Ok(Cuda { init: Ok(()), .. })));
    if !by_nvml && !by_cuda && (works || !by_files) {
        return None;
    }
    let mut seen = vec![format!(
        "kernel module {}",
        module.unwrap_or("of an unknown version")
    )];
    seen.extend(
        library
            .map(|(library, version)| format!("{}/{} {version}", library.folder, library.soname)),
    );
    seen.extend(by_nvml.then(|| "NVML answers 18".to_owned()));
    seen.extend(by_cuda.then(|| "cuInit answers 803".to_owned()));
    Some(Finding::new(&MODULE_MISMATCH, seen.join(", ")))
}

fn nodes(facts: &Facts, kernel: &Kernel) -> Vec<Finding> {
    let mut findings = Vec::new();
    let gpus = kernel.gpu_nodes();
    let mut missing = Vec::new();
    if !kernel.has_node("nvidiactl") {
        missing.push("no /dev/nvidiactl".to_owned());
    }
    // A container may be given fewer GPUs than the machine has.
    if gpus == 0 || gpus < kernel.bus.len() && !facts.is_container() {
        missing.push(format!(
            "{gpus} of {} /dev/nvidiaN",
            kernel.bus.len().max(1)
        ));
    }
    if !missing.is_empty() {
        findings.push(Finding::new(&NODES_MISSING, missing.join(", ")));
    }
    if !kernel.has_node("nvidia-uvm") {
        findings.push(Finding::new(
            &UVM_MISSING,
            "/dev holds the driver's other nodes alone",
        ));
    }
    let denied: Vec<_> = kernel
        .nodes
        .iter()
        .filter_map(|node| Some(format!("/dev/{}: {}", node.name, node.denied.as_ref()?)))
        .collect();
    if !denied.is_empty() {
        findings.push(Finding::new(&NODES_DENIED, denied.join("; ")));
    }
    findings
}
