use super::{Facts, Findings, Reply, code};

/// Debugging and profiling variables, and their effects.
/// NVIDIA, DCGM, nvvs/src/Software.cpp (`checkForBadEnvVaribles`), and CUDA's own list of variables; 2026-11.
const DEBUGGING: [&str; 10] = [
    "NSIGHT_CUDA_DEBUGGER: a debugger is attached",
    "CUDA_INJECTION32_PATH: a library is injected",
    "CUDA_INJECTION64_PATH: a library is injected",
    "CUDA_AUTO_BOOST: clocks are held",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION: faults write core dumps",
    "CUDA_COREDUMP_FILE: faults write core dumps",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION: a fault waits for a debugger",
    "CUDA_PROFILE: the profiler is on",
    "COMPUTE_PROFILE: the profiler is on",
    "OPENCL_PROFILE: the profiler is on",
];

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    let before = findings.0.len();
    // Without a GPU no variable matters.
    if facts.shows_gpu() {
        visible(facts, findings);
        switches(facts, findings);
        if facts.is_container() {
            container(facts, findings);
        }
    }
    // CUDA numbers different GPUs by speed, NVML by address; both number equal GPUs by address.
    let by_address = facts.source.variable("CUDA_DEVICE_ORDER") == Some("PCI_BUS_ID");
    let gpus = facts.gpus().iter();
    let mut names: Vec<_> = gpus.filter_map(|gpu| gpu.name.as_deref().ok()).collect();
    names.dedup();
    if names.len() > 1 && !by_address {
        findings.add(code::DEVICE_ORDER, names.join(", "));
    }
    if findings.0.len() == before {
        let seen = match facts.source.variable("CUDA_VISIBLE_DEVICES") {
            Some(value) => format!("CUDA_VISIBLE_DEVICES={value}"),
            None => "CUDA_VISIBLE_DEVICES is not set, and no debugging variable is".to_owned(),
        };
        findings.add(code::VARIABLES_FINE, seen);
    }
}

fn visible(facts: &Facts, findings: &mut Findings) {
    let variable = facts.source.variable("CUDA_VISIBLE_DEVICES");
    let Some(value) = variable else { return };
    // Without NVML's list it is not known which entries name a GPU, but some values name none on any machine.
    let hides_anywhere = matches!(value.trim(), "" | "-1" | "NoDevFiles" | "none" | "void");
    let gpus = facts.gpus().len();
    if gpus == 0 && !hides_anywhere {
        return;
    }
    let visible = facts.visible();
    let seen = format!("CUDA_VISIBLE_DEVICES=`{value}`, GPUs: {gpus}");
    if let Some(entry) = &visible.twice {
        findings.add(code::NAMED_TWICE, format!("{seen}; `{entry}` occurs twice"));
    } else if hides_anywhere || visible.hides_all() {
        if !facts.cuda_finds_devices() {
            findings.add(code::HIDES_ALL, seen);
        }
    } else if let Some(entry) = &visible.invalid {
        findings.add(code::HIDES_REST, format!("{seen}; `{entry}` names no GPU"));
    }
}

fn switches(facts: &Facts, findings: &mut Findings) {
    for (name, code) in [
        ("CUDA_LAUNCH_BLOCKING", code::LAUNCH_BLOCKING),
        ("CUDA_DISABLE_PTX_JIT", code::JIT_DISABLED),
        ("CUDA_DISABLE_JIT", code::JIT_DISABLED),
        ("CUDA_CACHE_DISABLE", code::CACHE_DISABLED),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", code::MPS_LIMITS),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", code::MPS_LIMITS),
    ] {
        if let Some(value) = facts.source.switch(name) {
            findings.add(code, format!("{name}={value}"));
        }
    }
    for (name, effect) in DEBUGGING.iter().filter_map(|row| row.split_once(": ")) {
        if facts.source.variable(name).is_some() {
            let finding = findings.begin(code::DEBUGGING, format!("{name} is set: {effect}"));
            finding.command = format!("unset {name}").into();
        }
    }
}

/// The container runtime's variables, if what they should let in is missing: the container device interface passes GPUs in and sets `void`.
fn container(facts: &Facts, findings: &mut Findings) {
    let lacks_nodes = facts.kernel_is(|kernel| kernel.gpu_nodes() == 0);
    if let Some(value) = facts.source.variable("NVIDIA_VISIBLE_DEVICES")
        && matches!(value.trim(), "" | "none" | "void")
        && lacks_nodes
        && !facts.cuda_finds_devices()
    {
        let seen = format!("NVIDIA_VISIBLE_DEVICES=`{value}`");
        findings.add(code::CONTAINER_HIDES, seen);
    }
    let lets_compute = |name: &str| matches!(name.trim(), "all" | "compute");
    if let Some(value) = facts.source.variable("NVIDIA_DRIVER_CAPABILITIES")
        && !value.is_empty()
        && !value.split(',').any(lets_compute)
        && matches!(facts.cuda, Reply::Missing(_))
    {
        let seen = format!("NVIDIA_DRIVER_CAPABILITIES={value}");
        findings.add(code::CONTAINER_CAPABILITIES, seen);
    }
}
