use crate::environment::code;
use crate::environment::facts::Facts;
use crate::environment::finding::Finding;
use crate::facts::DEBUGGING_VARIABLES;

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    // Without a GPU no variable matters.
    if facts.shows_gpu() {
        findings.extend(visible(facts));
        findings.extend(switches(facts));
        findings.extend(container(facts));
    }
    findings.extend(order(facts));
    if findings.is_empty() {
        let seen = match facts.source.variable("CUDA_VISIBLE_DEVICES") {
            Some(value) => format!("CUDA_VISIBLE_DEVICES={value}"),
            None => "CUDA_VISIBLE_DEVICES is not set, and no debugging variable is".to_owned(),
        };
        findings.push(Finding::new(code::VARIABLES_FINE, seen));
    }
    findings
}

fn visible(facts: &Facts) -> Option<Finding> {
    let value = facts.source.variable("CUDA_VISIBLE_DEVICES")?;
    // Without NVML's list it is not known which entries name a GPU, but some values name none on any machine.
    let hides_anywhere = matches!(value.trim(), "" | "-1" | "NoDevFiles" | "none" | "void");
    let gpus = facts.gpus().len();
    if gpus == 0 && !hides_anywhere {
        return None;
    }
    let visible = facts.visible();
    let seen = format!("CUDA_VISIBLE_DEVICES=`{value}`, GPUs: {gpus}");
    if let Some(entry) = &visible.twice {
        let seen = format!("{seen}; `{entry}` occurs twice");
        return Some(Finding::new(code::NAMED_TWICE, seen));
    }
    if facts.cuda_finds_devices() && hides_anywhere {
        return None;
    }
    if hides_anywhere || visible.hides_all() {
        return Some(Finding::new(code::HIDES_ALL, seen));
    }
    let seen = format!("{seen}; `{}` names no GPU", visible.invalid?);
    Some(Finding::new(code::HIDES_REST, seen))
}

fn switches(facts: &Facts) -> Vec<Finding> {
    let source = &facts.source;
    let mut findings = Vec::new();
    for (name, code) in [
        ("CUDA_LAUNCH_BLOCKING", code::LAUNCH_BLOCKING),
        ("CUDA_DISABLE_PTX_JIT", code::JIT_DISABLED),
        ("CUDA_DISABLE_JIT", code::JIT_DISABLED),
        ("CUDA_CACHE_DISABLE", code::CACHE_DISABLED),
    ] {
        if source.is_on(name) {
            findings.push(Finding::new(code, format!("{name} is on")));
        }
    }
    for (name, effect) in DEBUGGING_VARIABLES {
        if source.variable(name).is_some() {
            let finding = Finding::new(code::DEBUGGING, format!("{name} is set: {effect}"));
            findings.push(finding.by(format!("unset {name}")));
        }
    }
    for name in [
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    ] {
        if let Some(value) = source.variable(name) {
            findings.push(Finding::new(code::MPS_LIMITS, format!("{name}={value}")));
        }
    }
    findings
}

/// The container runtime's variables, if what they should let in is missing. Otherwise they say nothing: the container device interface
/// (CDI) passes GPUs in and sets NVIDIA_VISIBLE_DEVICES to `void`, to keep the older runtime away.
fn container(facts: &Facts) -> Vec<Finding> {
    let source = &facts.source;
    let mut findings = Vec::new();
    if !facts.is_container() {
        return findings;
    }
    let kernel = facts.kernel.as_ref();
    let lacks_nodes = kernel.is_some_and(|kernel| kernel.gpu_nodes() == 0);
    if let Some(value) = source.variable("NVIDIA_VISIBLE_DEVICES")
        && matches!(value.trim(), "" | "none" | "void")
        && lacks_nodes
        && !facts.cuda_finds_devices()
    {
        let seen = format!("NVIDIA_VISIBLE_DEVICES=`{value}`");
        findings.push(Finding::new(code::CONTAINER_HIDES, seen));
    }
    if let Some(value) = source.variable("NVIDIA_DRIVER_CAPABILITIES")
        && !value.is_empty()
        && !value
            .split(',')
            .any(|name| matches!(name.trim(), "all" | "compute"))
        && matches!(facts.cuda, Some(Err(_)))
    {
        let seen = format!("NVIDIA_DRIVER_CAPABILITIES={value}");
        findings.push(Finding::new(code::CONTAINER_CAPABILITIES, seen));
    }
    findings
}

/// CUDA numbers different GPUs by speed, NVML by address; both number equal GPUs by address.
fn order(facts: &Facts) -> Option<Finding> {
    let by_address = facts.source.variable("CUDA_DEVICE_ORDER") == Some("PCI_BUS_ID");
    let gpus = facts.gpus().iter();
    let mut names: Vec<_> = gpus.filter_map(|gpu| gpu.name.as_deref().ok()).collect();
    names.dedup();
    (names.len() > 1 && !by_address).then(|| Finding::new(code::DEVICE_ORDER, names.join(", ")))
}
