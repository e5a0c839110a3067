use crate::environment::code::{
    CACHE_DISABLED, CONTAINER_CAPABILITIES, CONTAINER_HIDES, DEBUGGING, DEVICE_ORDER, HIDES_ALL,
    HIDES_REST, JIT_DISABLED, LAUNCH_BLOCKING, MPS_LIMITS, NAMED_TWICE, VARIABLES_FINE,
};
use crate::environment::facts::Facts;
use crate::environment::finding::Finding;
use crate::facts::DEBUGGING_VARIABLES;

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    // Without a GPU no variable matters.
    let mut findings = Vec::new();
    if facts.shows_gpu() {
        findings.extend(visible(facts));
        findings.extend(switches(facts));
        findings.extend(container(facts));
    }
    findings.extend(order(facts));
    if findings.is_empty() {
        findings.push(Finding::new(&VARIABLES_FINE, looked_at(facts)));
    }
    findings
}

fn looked_at(facts: &Facts) -> String {
    match facts.source.variable("CUDA_VISIBLE_DEVICES") {
        Some(value) => format!("CUDA_VISIBLE_DEVICES={value}"),
        None => "CUDA_VISIBLE_DEVICES is not set, nothing is left over from debugging".to_owned(),
    }
}

fn visible(facts: &Facts) -> Vec<Finding> {
    let Some(value) = facts.source.variable("CUDA_VISIBLE_DEVICES") else {
        return Vec::new();
    };
    // Without NVML's list it is not known which entries name a GPU, but some values name none anywhere.
    let hides_anywhere = matches!(value.trim(), "" | "-1" | "NoDevFiles" | "none" | "void");
    let gpus = facts.gpus().len();
    if gpus == 0 && !hides_anywhere {
        return Vec::new();
    }
    let visible = facts.visible();
    let seen = format!("CUDA_VISIBLE_DEVICES=«{value}», GPUs: {gpus}");
    if let Some(entry) = &visible.twice {
        return vec![Finding::new(
            &NAMED_TWICE,
            format!("{seen}; «{entry}» is there twice"),
        )];
    }
    if facts.cuda_finds_devices() && hides_anywhere {
        return Vec::new();
    }
    if hides_anywhere || visible.hides_all() {
        return vec![Finding::new(&HIDES_ALL, seen)];
    }
    let invalid = visible.invalid.iter();
    invalid
        .map(|entry| Finding::new(&HIDES_REST, format!("{seen}; «{entry}» names none")))
        .collect()
}

fn switches(facts: &Facts) -> Vec<Finding> {
    let source = &facts.source;
    let mut findings = Vec::new();
    if source.is_on("CUDA_LAUNCH_BLOCKING") {
        findings.push(Finding::new(&LAUNCH_BLOCKING, "CUDA_LAUNCH_BLOCKING is on"));
    }
    let off = ["CUDA_DISABLE_PTX_JIT", "CUDA_DISABLE_JIT"];
    for name in off.into_iter().filter(|name| source.is_on(name)) {
        findings.push(Finding::new(&JIT_DISABLED, format!("{name} is on")));
    }
    if source.is_on("CUDA_CACHE_DISABLE") {
        findings.push(Finding::new(&CACHE_DISABLED, "CUDA_CACHE_DISABLE is on"));
    }
    for (name, effect) in DEBUGGING_VARIABLES {
        if source.variable(name).is_some() {
            let finding = Finding::new(&DEBUGGING, format!("{name} is set: {effect}"));
            findings.push(finding.by(format!("unset {name}")));
        }
    }
    let mps = [
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    ];
    for name in mps {
        if let Some(value) = source.variable(name) {
            findings.push(Finding::new(&MPS_LIMITS, format!("{name}={value}")));
        }
    }
    findings
}

/// What the container runtime was told, where what it passes in is not there. Where it is there the variables say nothing: GPUs that
/// come in by the container device interface (CDI) have NVIDIA_VISIBLE_DEVICES at `void`, to keep the older runtime off.
fn container(facts: &Facts) -> Vec<Finding> {
    let source = &facts.source;
    let mut findings = Vec::new();
    if !facts.is_container() {
        return findings;
    }
    let lacks_nodes = facts
        .kernel
        .as_ref()
        .is_some_and(|kernel| kernel.gpu_nodes() == 0);
    let devices = source.variable("NVIDIA_VISIBLE_DEVICES");
    let hides = |value: &&str| matches!(value.trim(), "" | "none" | "void");
    if let Some(value) = devices
        .filter(hides)
        .filter(|_| lacks_nodes && !facts.cuda_finds_devices())
    {
        findings.push(Finding::new(
            &CONTAINER_HIDES,
            format!("NVIDIA_VISIBLE_DEVICES=«{value}»"),
        ));
    }
    let capabilities = source.variable("NVIDIA_DRIVER_CAPABILITIES");
    let lacks = |value: &&str| {
        let mut names = value.split(',').map(str::trim);
        !value.is_empty() && !names.any(|name| matches!(name, "all" | "compute"))
    };
    if let Some(value) = capabilities
        .filter(lacks)
        .filter(|_| matches!(facts.cuda, Some(Err(_))))
    {
        let seen = format!("NVIDIA_DRIVER_CAPABILITIES={value}");
        findings.push(Finding::new(&CONTAINER_CAPABILITIES, seen));
    }
    findings
}

/// Different GPUs are numbered by speed in CUDA and by address in NVML; alike ones by address in both.
fn order(facts: &Facts) -> Option<Finding> {
    let by_address = facts.source.variable("CUDA_DEVICE_ORDER") == Some("PCI_BUS_ID");
    let mut names: Vec<_> = facts
        .gpus()
        .iter()
        .filter_map(|gpu| gpu.name.as_deref().ok())
        .collect();
    names.dedup();
    (names.len() > 1 && !by_address).then(|| Finding::new(&DEVICE_ORDER, names.join(", ")))
}
