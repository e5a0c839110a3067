use std::collections::BTreeMap;
use std::path::Path;

use crate::environment::code;
use crate::environment::facts::Facts;
use crate::environment::finding::Findings;
use crate::environment::probe::libraries::{Libraries, Library, NEEDED, OPTIONAL};
use crate::facts::{self, Version};

/// The libraries that are numbered by CUDA's major version; cuRAND is not.
const NUMBERED: [&str; 4] = ["cudart", "cublas", "cublasLt", "nvrtc"];

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    let Some(libraries) = &facts.libraries else {
        return;
    };
    if !facts.shows_gpu() {
        let found = NEEDED.iter().filter(|name| libraries.find(name).is_some());
        let seen = format!("{} of {} found", found.count(), NEEDED.len());
        return findings.add(code::LIBRARIES_NOT_NEEDED, seen);
    }
    folders(libraries, findings);
    twice(libraries, findings);
    needed(facts, libraries, findings);
    versions(facts, libraries, findings);
    if let Some(seen) = missing(libraries, &OPTIONAL) {
        findings.add(code::OPTIONAL_MISSING, seen);
    }
    // WSL and containers have it in folders of their own.
    let has_driver = libraries.find("cuda").is_some();
    if has_driver && !facts.is_wsl() && libraries.find("nvidia-ptxjitcompiler").is_none() {
        let seen = "libcuda exists, libnvidia-ptxjitcompiler.so.1 does not";
        findings.add(code::JIT_MISSING, seen);
    }
}

fn missing(libraries: &Libraries, names: &[&str]) -> Option<String> {
    let absent = names.iter().filter(|name| libraries.find(name).is_none());
    let absent: Vec<_> = absent.map(|name| format!("no lib{name}")).collect();
    (!absent.is_empty()).then(|| absent.join(", "))
}

fn needed(facts: &Facts, libraries: &Libraries, findings: &mut Findings) {
    let found = |name: &&str| libraries.find(name);
    let Some(missing) = missing(libraries, &NEEDED) else {
        let found: Vec<_> = NEEDED.iter().filter_map(found).collect();
        return findings.add(code::LIBRARIES_FOUND, by_folder(&found));
    };
    // This program is linked with them and runs, so the loader found them.
    if cfg!(feature = "cuda") && facts.source.is_this_machine() {
        let seen =
            format!("{missing} on the library path, but this program is linked with them and runs");
        return findings.add(code::LIBRARIES_FOUND, seen);
    }
    // One of each: pip puts every library into a folder of its own.
    let absent = NEEDED.iter().filter(|name| found(name).is_none());
    let elsewhere = |name| {
        libraries
            .elsewhere
            .iter()
            .find(|library| library.name == name)
    };
    let elsewhere: Vec<_> = absent.filter_map(|name| elsewhere(*name)).collect();
    if elsewhere.is_empty() {
        return findings.add(code::LIBRARIES_MISSING, missing);
    }
    let mut folders: Vec<_> = elsewhere.iter().map(|library| &*library.folder).collect();
    folders.sort();
    folders.dedup();
    let seen = format!("{missing} on the library path; {}", by_folder(&elsewhere));
    let finding = findings.begin(code::LIBRARIES_MISSING, seen);
    finding.next_step = "add these folders to the library path".into();
    let folders = folders.join(":");
    finding.command = format!("export LD_LIBRARY_PATH={folders}:$LD_LIBRARY_PATH").into();
}

/// Each folder with its libraries and their versions.
fn by_folder(libraries: &[&Library]) -> String {
    let mut folders = BTreeMap::<&str, Vec<String>>::new();
    for library in libraries {
        let version = library.version.map(|version| format!(" ({version})"));
        let described = format!("{}{}", library.soname, version.unwrap_or_default());
        folders.entry(&library.folder).or_default().push(described);
    }
    let folders = folders.into_iter();
    let folders = folders.map(|(folder, libraries)| format!("{folder}: {}", libraries.join(", ")));
    folders.collect::<Vec<_>>().join("; ")
}

/// Different files of one name: the loader takes the first.
fn twice(libraries: &Libraries, findings: &mut Findings) {
    let mut names = BTreeMap::<&str, Vec<&Library>>::new();
    for library in libraries
        .on_path
        .iter()
        .filter(|library| !library.is_compat())
    {
        names.entry(&library.soname).or_default().push(library);
    }
    let described = |library: &Library| {
        let version = library.version.map(|version| version.to_string());
        format!(
            "{} in {}",
            version.as_deref().unwrap_or("?"),
            library.folder
        )
    };
    for (soname, files) in names {
        let later = files.iter().find(|later| later.version != files[0].version);
        if let Some(later) = later {
            let (first, later) = (described(files[0]), described(later));
            let seen = format!("{soname} is {first} and {later}; the first is used");
            findings.add(code::LIBRARY_TWICE, seen);
        }
    }
}

fn folders(libraries: &Libraries, findings: &mut Findings) {
    let mut variable = libraries.variable.iter();
    if let Some(folder) = variable.find(|folder| Path::new(folder).ends_with("stubs")) {
        let seen = format!("LD_LIBRARY_PATH has {folder}");
        findings.add(code::STUBS_ON_PATH, seen);
    }
    if !libraries.absent.is_empty() {
        findings.add(code::PATH_NOWHERE, libraries.absent.join(", "));
    }
    let mut on_path = libraries.on_path.iter();
    if let Some(library) = on_path.find(|library| library.name == "cuda" && library.is_compat()) {
        findings.add(code::COMPAT_ON_PATH, library.path());
    }
}

fn major(library: &Library) -> Option<u32> {
    let number = library.soname.rsplit_once(".so.")?.1;
    Version::parse(number).map(Version::major)
}

/// Whether the versions of CUDA's libraries go together, and with the driver.
fn versions(facts: &Facts, libraries: &Libraries, findings: &mut Findings) {
    let numbered = libraries.on_path.iter();
    let numbered = numbered.filter(|library| NUMBERED.contains(&library.name));
    let numbered = numbered.filter_map(|library| Some((library, major(library)?)));
    let numbered: Vec<_> = numbered.collect();
    // All libraries exist, but not of one major version.
    let has = |name: &str, wanted: Option<u32>| {
        let mut known = numbered.iter();
        known.any(|(library, major)| library.name == name && wanted.is_none_or(|w| w == *major))
    };
    let is_whole = |major| NUMBERED.iter().all(|name| has(name, major));
    if is_whole(None) && !numbered.iter().any(|(_, major)| is_whole(Some(*major))) {
        let names = numbered.iter().map(|(library, _)| library.soname.as_str());
        let seen = names.collect::<Vec<_>>().join(", ");
        findings.add(code::LIBRARIES_MIXED, seen);
    }
    // A program may be linked with the oldest of several versions.
    let oldest = numbered.iter().min_by_key(|(_, major)| *major);
    if let (Some((library, major)), Some(supported)) = (oldest, facts.cuda_of_driver())
        && *major > supported.major()
    {
        let floor = facts::floor_of_major(*major);
        let floor = floor.map(|floor| format!(" (driver {floor} or later)"));
        let (soname, floor) = (&library.soname, floor.unwrap_or_default());
        let supported = supported.major();
        let seen =
            format!("{soname} needs CUDA {major}{floor}; the driver supports CUDA {supported}");
        findings.add(code::DRIVER_TOO_OLD, seen);
    }
    let newest = numbered.iter().map(|(_, major)| *major).max();
    if let (Some(cudnn), Some(cuda), Some(driver)) =
        (libraries.find("cudnn"), newest, facts.driver())
        && let Some(cudnn_major) = major(cudnn)
        && let Some(floor) = facts::floor_of_cudnn(cudnn_major, cuda)
        && driver < floor
    {
        let soname = &cudnn.soname;
        let seen = format!("{soname} for CUDA {cuda} needs driver {floor}, this is {driver}");
        findings.add(code::CUDNN_TOO_NEW, seen);
    }
}
