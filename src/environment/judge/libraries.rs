use std::collections::BTreeMap;
use std::path::Path;

use super::versions::{against_driver, mixed};
use crate::environment::code;
use crate::environment::facts::Facts;
use crate::environment::finding::Finding;
use crate::environment::probe::libraries::{Libraries, Library, NEEDED, OPTIONAL};

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let Some(libraries) = &facts.libraries else {
        return Vec::new();
    };
    if !facts.shows_gpu() {
        let count = found(libraries, &NEEDED).len();
        let seen = format!("{count} of {} found", NEEDED.len());
        return vec![Finding::new(code::LIBRARIES_NOT_NEEDED, seen)];
    }
    let mut findings = wrong_folders(libraries);
    findings.extend(twice(libraries));
    findings.push(needed(facts, libraries));
    findings.extend(mixed(libraries));
    findings.extend(against_driver(facts, libraries));
    if let Some(seen) = missing(libraries, &OPTIONAL) {
        findings.push(Finding::new(code::OPTIONAL_MISSING, seen));
    }
    // WSL and containers have it in folders of their own.
    let has_driver = libraries.find("cuda").is_some();
    if has_driver && !facts.is_wsl() && libraries.find("nvidia-ptxjitcompiler").is_none() {
        let seen = "libcuda exists, libnvidia-ptxjitcompiler.so.1 does not";
        findings.push(Finding::new(code::JIT_MISSING, seen));
    }
    findings
}

fn found<'a>(libraries: &'a Libraries, names: &[&str]) -> Vec<&'a Library> {
    let names = names.iter();
    names.filter_map(|name| libraries.find(name)).collect()
}

fn missing(libraries: &Libraries, names: &[&str]) -> Option<String> {
    let absent = names.iter().filter(|name| libraries.find(name).is_none());
    let absent: Vec<_> = absent.map(|name| format!("no lib{name}")).collect();
    (!absent.is_empty()).then(|| absent.join(", "))
}

fn needed(facts: &Facts, libraries: &Libraries) -> Finding {
    let Some(seen) = missing(libraries, &NEEDED) else {
        let seen = by_folder(&found(libraries, &NEEDED));
        return Finding::new(code::LIBRARIES_FOUND, seen);
    };
    // This program is linked with them and runs, so the loader found them.
    if cfg!(feature = "cuda") && facts.source.is_this_machine() {
        let seen =
            format!("{seen} on the library path, but this program is linked with them and runs");
        return Finding::new(code::LIBRARIES_FOUND, seen);
    }
    // One of each: pip puts every library into a folder of its own.
    let mut elsewhere: Vec<&Library> = Vec::new();
    for library in &libraries.elsewhere {
        let is_absent = NEEDED.contains(&library.name) && libraries.find(library.name).is_none();
        if is_absent && elsewhere.iter().all(|other| other.name != library.name) {
            elsewhere.push(library);
        }
    }
    if elsewhere.is_empty() {
        return Finding::new(code::LIBRARIES_MISSING, seen);
    }
    let folders = elsewhere.iter().map(|library| library.folder.as_str());
    let mut folders: Vec<_> = folders.collect();
    folders.dedup();
    let command = format!(
        "export LD_LIBRARY_PATH={}:$LD_LIBRARY_PATH",
        folders.join(":")
    );
    let seen = format!("{seen} on the library path; {}", by_folder(&elsewhere));
    Finding::new(code::LIBRARIES_MISSING, seen)
        .next("add these folders to the library path")
        .by(command)
}

/// Each folder with its libraries and their versions.
fn by_folder(libraries: &[&Library]) -> String {
    let mut folders: Vec<(&str, Vec<String>)> = Vec::new();
    for library in libraries {
        let described = match library.version {
            Some(version) => format!("{} ({version})", library.soname),
            None => library.soname.clone(),
        };
        let mut known = folders.iter_mut();
        match known.find(|(folder, _)| *folder == library.folder) {
            Some((_, in_folder)) => in_folder.push(described),
            None => folders.push((&library.folder, vec![described])),
        }
    }
    let folders = folders
        .iter()
        .map(|(folder, libraries)| format!("{folder}: {}", libraries.join(", ")));
    folders.collect::<Vec<_>>().join("; ")
}

/// Different files of one name: the loader takes the first.
fn twice(libraries: &Libraries) -> Vec<Finding> {
    let mut firsts = BTreeMap::<&str, &Library>::new();
    let mut pairs = BTreeMap::<&str, (&Library, &Library)>::new();
    for library in libraries
        .on_path
        .iter()
        .filter(|library| !is_compat(library))
    {
        let first = *firsts.entry(&library.soname).or_insert(library);
        if first.version != library.version {
            pairs.entry(&library.soname).or_insert((first, library));
        }
    }
    let version = |library: &Library| {
        let version = library.version.map(|version| version.to_string());
        version.unwrap_or("?".to_owned())
    };
    let describe = |(soname, (first, later)): (&str, (&Library, &Library))| {
        format!(
            "{soname} is {} in {} and {} in {}; the first is used",
            version(first),
            first.folder,
            version(later),
            later.folder
        )
    };
    let pairs = pairs.into_iter().map(describe);
    pairs
        .map(|seen| Finding::new(code::LIBRARY_TWICE, seen))
        .collect()
}

/// Whether it belongs to cuda-compat, whose libraries precede the driver's on purpose.
fn is_compat(library: &Library) -> bool {
    let mut parts = Path::new(&library.folder).iter();
    parts.any(|part| part == "compat")
}

fn wrong_folders(libraries: &Libraries) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_stubs = |folder: &&String| Path::new(folder).ends_with("stubs");
    if let Some(folder) = libraries.variable.iter().find(is_stubs) {
        let seen = format!("LD_LIBRARY_PATH has {folder}");
        findings.push(Finding::new(code::STUBS_ON_PATH, seen));
    }
    if !libraries.absent.is_empty() {
        let seen = libraries.absent.join(", ");
        findings.push(Finding::new(code::PATH_NOWHERE, seen));
    }
    let is_driver = |library: &&Library| library.name == "cuda" && is_compat(library);
    if let Some(library) = libraries.on_path.iter().find(is_driver) {
        findings.push(Finding::new(code::COMPAT_ON_PATH, library.path()));
    }
    findings
}
