//! CUDA's libraries on the loader's path, and the variables of the process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Facts, Findings, Reply, around, code, joined};
use crate::facts;
use crate::probe::libraries::{DRIVER, Libraries, Library, MPI, NEEDED, OPTIONAL};

/// The libraries that are numbered by CUDA's major version; cuRAND is not.
const NUMBERED: [&str; 4] = ["cudart", "cublas", "cublasLt", "nvrtc"];

pub(super) fn libraries(facts: &Facts, findings: &mut Findings) {
    let libraries = facts.libraries.as_ref();
    let Some(libraries) = libraries else { return };
    if !facts.shows_gpu() {
        let missing = libraries.missing(&NEEDED).count();
        let seen = format!("{} of {} found", NEEDED.len() - missing, NEEDED.len());
        return findings.add(code::LIBRARIES_NOT_NEEDED, seen);
    }
    folders(libraries, findings);
    twice(libraries, findings);
    needed(facts, libraries, findings);
    versions(facts, libraries, findings);
    let optional = libraries.missing(&OPTIONAL);
    let optional = optional.map(|name| format!("no lib{name}"));
    findings.list(code::OPTIONAL_MISSING, optional);
    // WSL and containers have it in folders of their own.
    let has_driver = libraries.find("cuda").is_some();
    if has_driver && !facts.is_wsl() && libraries.find("nvidia-ptxjitcompiler").is_none() {
        let seen = "libcuda exists, libnvidia-ptxjitcompiler.so.1 does not";
        findings.add(code::JIT_MISSING, seen);
    }
}

fn needed(facts: &Facts, libraries: &Libraries, findings: &mut Findings) {
    let missing: Vec<_> = libraries.missing(&NEEDED).collect();
    if missing.is_empty() {
        let mut found = NEEDED.iter().filter_map(|name| libraries.find(name));
        return findings.add(code::LIBRARIES_FOUND, described(&by_folder(&mut found)));
    }
    // One of each: pip puts every library into a folder of its own.
    let elsewhere = |name: &&str| {
        let mut libraries = libraries.elsewhere.iter();
        libraries.find(|library| library.name == *name)
    };
    let folders = by_folder(&mut missing.iter().filter_map(elsewhere));
    let missing = joined(missing.iter().map(|name| format!("no lib{name}")), ", ");
    // This program is linked with them and runs, so the loader found them.
    if cfg!(feature = "cuda") && facts.source.is_this_machine() {
        let seen = "on the library path, but this program is linked with them and runs";
        return findings.add(code::LIBRARIES_FOUND, format!("{missing} {seen}"));
    }
    if folders.is_empty() {
        return findings.add(code::LIBRARIES_MISSING, missing);
    }
    let seen = format!("{missing} on the library path; {}", described(&folders));
    let finding = findings.begin(code::LIBRARIES_MISSING, seen);
    finding.next_step = "add these folders to the library path".into();
    let folders = joined(folders.into_keys(), ":");
    finding.command = format!("export LD_LIBRARY_PATH={folders}:$LD_LIBRARY_PATH").into();
}

/// Each folder with its libraries and their versions.
type Folders<'a> = BTreeMap<&'a str, Vec<String>>;

fn by_folder<'a>(libraries: &mut dyn Iterator<Item = &'a Library>) -> Folders<'a> {
    let mut folders = Folders::new();
    for library in libraries {
        let version = around(" (", library.version, ")");
        let described = format!("{}{version}", library.soname);
        folders.entry(&library.folder).or_default().push(described);
    }
    folders
}

fn described(folders: &Folders<'_>) -> String {
    let folders = folders.iter();
    let folders = folders.map(|(folder, libraries)| format!("{folder}: {}", libraries.join(", ")));
    joined(folders, "; ")
}

/// Different files of one name: the loader takes the first. A file of CUDA whose name has no version, as in Python's packages, may be the same.
fn twice(libraries: &Libraries, findings: &mut Findings) {
    let is_known = |library: &&Library| {
        let is_known = library.version.is_some() || DRIVER.contains(&library.name);
        is_known && !library.is_compat() && !MPI.contains(&library.name)
    };
    let known: Vec<_> = libraries.on_path.iter().filter(is_known).collect();
    let differs = |one: &&Library| {
        let mut others = known.iter().filter(|other| other.soname == one.soname);
        others.any(|other| other.version != one.version)
    };
    let differing: Vec<_> = known.iter().copied().filter(differs).collect();
    if let Some(first) = differing.first() {
        let used = &first.folder;
        let folders = by_folder(&mut differing.iter().copied());
        let seen = format!("{}; that of {used} comes first", described(&folders));
        findings.add(code::LIBRARY_TWICE, seen);
    }
}

fn folders(libraries: &Libraries, findings: &mut Findings) {
    let mut variable = libraries.variable.iter();
    // A toolkit has `stubs`; the simulated driver has them for CUDA 12 too.
    let has_stubs = |folder: &Path| folder.ends_with("stubs") || folder.ends_with("stubs-12");
    if let Some(folder) = variable.find(|folder| has_stubs(Path::new(folder))) {
        findings.add(code::STUBS_ON_PATH, format!("LD_LIBRARY_PATH has {folder}"));
    }
    findings.list(code::PATH_NOWHERE, libraries.absent.iter().cloned());
    let mut on_path = libraries.on_path.iter();
    if let Some(library) = on_path.find(|library| library.name == "cuda" && library.is_compat()) {
        findings.add(code::COMPAT_ON_PATH, library.path());
    }
}

/// Whether the versions of CUDA's libraries go together, and with the driver.
fn versions(facts: &Facts, libraries: &Libraries, findings: &mut Findings) {
    let numbered = libraries.on_path.iter();
    let numbered = numbered.filter(|library| NUMBERED.contains(&library.name));
    let numbered: Vec<_> = numbered.collect();
    // All libraries exist, but not of one major version.
    let has = |name: &str, wanted: Option<u32>| {
        let mut known = numbered.iter().filter(|library| library.name == name);
        known.any(|library| wanted.is_none_or(|major| major == library.major))
    };
    let is_whole = |major| NUMBERED.iter().all(|name| has(name, major));
    if is_whole(None) && !numbered.iter().any(|library| is_whole(Some(library.major))) {
        let names = numbered.iter().map(|library| library.soname.as_str());
        findings.list(code::LIBRARIES_MIXED, names);
    }
    // A program may be linked with the oldest of several versions.
    let oldest = numbered.iter().min_by_key(|library| library.major);
    if let (Some(oldest), Some(supported)) = (oldest, facts.cuda_of_driver())
        && oldest.major > supported.major()
    {
        let (soname, major) = (&oldest.soname, oldest.major);
        let floor = around(" (driver ", facts::floor_of_major(major), " or later)");
        let needs = format!("{soname} needs CUDA {major}{floor}");
        let seen = format!("{needs}; the driver supports CUDA {}", supported.major());
        findings.add(code::DRIVER_TOO_OLD, seen);
    }
    let newest = numbered.iter().map(|library| library.major).max();
    if let (Some(cudnn), Some(cuda), Some(driver)) =
        (libraries.find("cudnn"), newest, facts.driver())
        && let Some(floor) = facts::floor_of_cudnn(cudnn.major, cuda)
        && driver < floor
    {
        let soname = &cudnn.soname;
        let seen = format!("{soname} for CUDA {cuda} needs driver {floor}, this is {driver}");
        findings.add(code::CUDNN_TOO_NEW, seen);
    }
}

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

pub(super) fn variables(facts: &Facts, findings: &mut Findings) {
    let before = findings.0.len();
    // Without a GPU no variable matters.
    if facts.shows_gpu() {
        visible(facts, findings);
        switches(facts, findings);
        cache(facts, findings);
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

/// Where the driver keeps the kernels that it has compiled, if it cannot write there.
fn cache(facts: &Facts, findings: &mut Findings) {
    let source = &facts.source;
    let chosen = source.variable("CUDA_CACHE_PATH").map(PathBuf::from);
    let home = || Some(Path::new(source.variable("HOME")?).join(".nv/ComputeCache"));
    let folder = chosen.or_else(home);
    if let Some(folder) = folder.filter(|folder| !source.takes_files(folder)) {
        let seen = format!("no file can be written in {}", folder.display());
        findings.add(code::CACHE_READ_ONLY, seen);
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
