use std::collections::BTreeMap;
use std::path::Path;

use super::versions::{against_driver, mixed};
use crate::environment::code::{
    COMPAT_ON_PATH, JIT_MISSING, LIBRARIES_FOUND, LIBRARIES_MISSING, LIBRARIES_NOT_NEEDED,
    LIBRARY_TWICE, OPTIONAL_MISSING, PATH_NOWHERE, STUBS_ON_PATH,
};
use crate::environment::facts::Facts;
use crate::environment::finding::Finding;
use crate::environment::probe::libraries::{Libraries, Library, NEEDED, OPTIONAL};

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let Some(libraries) = &facts.libraries else {
        return Vec::new();
    };
    if !facts.shows_gpu() {
        let seen = format!(
            "{} of {} found",
            found(libraries, &NEEDED).len(),
            NEEDED.len()
        );
        return vec![Finding::new(&LIBRARIES_NOT_NEEDED, seen)];
    }
    let mut findings = wrong_folders(libraries);
    findings.extend(twice(libraries));
    findings.push(needed(facts, libraries));
    findings.extend(mixed(libraries));
    findings.extend(against_driver(facts, libraries));
    let absent = missing(libraries, &OPTIONAL);
    if !absent.is_empty() {
        findings.push(Finding::new(
            &OPTIONAL_MISSING,
            format!("no {}", absent.join(", no ")),
        ));
    }
    // WSL and containers have it in folders of their own.
    let has_driver = libraries.find("cuda").is_some();
    if has_driver && !facts.is_wsl() && libraries.find("nvidia-ptxjitcompiler").is_none() {
        findings.push(Finding::new(
            &JIT_MISSING,
            "libcuda is there, libnvidia-ptxjitcompiler.so.1 is not",
        ));
    }
    findings
}

fn found<'a>(libraries: &'a Libraries, names: &[&str]) -> Vec<&'a Library> {
    names
        .iter()
        .filter_map(|name| libraries.find(name))
        .collect()
}

fn missing(libraries: &Libraries, names: &[&str]) -> Vec<String> {
    let absent = names.iter().filter(|name| libraries.find(name).is_none());
    absent.map(|name| format!("lib{name}")).collect()
}

fn needed(facts: &Facts, libraries: &Libraries) -> Finding {
    let absent = missing(libraries, &NEEDED);
    if absent.is_empty() {
        return Finding::new(&LIBRARIES_FOUND, by_folder(&found(libraries, &NEEDED)));
    }
    let seen = format!("no {}", absent.join(", no "));
    // A program that is linked with them and runs has found them, on paths of its own.
    if cfg!(feature = "cuda") && facts.source.is_this_machine() {
        let seen =
            format!("{seen} on the library path, but this program is linked with them and runs");
        return Finding::new(&LIBRARIES_FOUND, seen);
    }
    let is_absent = |library: &&Library| {
        NEEDED.contains(&library.name) && libraries.find(library.name).is_none()
    };
    // One of each: pip puts every library into a folder of its own.
    let mut elsewhere: Vec<&Library> = Vec::new();
    for library in libraries.elsewhere.iter().filter(is_absent) {
        if elsewhere.iter().all(|other| other.name != library.name) {
            elsewhere.push(library);
        }
    }
    if elsewhere.is_empty() {
        return Finding::new(&LIBRARIES_MISSING, seen);
    }
    let mut folders: Vec<_> = elsewhere
        .iter()
        .map(|library| library.folder.as_str())
        .collect();
    folders.dedup();
    let seen = format!("{seen} on the library path; {}", by_folder(&elsewhere));
    Finding::new(&LIBRARIES_MISSING, seen)
        .next("put what lies there on the library path")
        .by(format!(
            "export LD_LIBRARY_PATH={}:$LD_LIBRARY_PATH",
            folders.join(":")
        ))
}

/// Each folder with what lies in it, and the versions.
fn by_folder(libraries: &[&Library]) -> String {
    let mut folders: Vec<(&str, Vec<String>)> = Vec::new();
    for library in libraries {
        let told = match library.version {
            Some(version) => format!("{} ({version})", library.soname),
            None => library.soname.clone(),
        };
        match folders
            .iter_mut()
            .find(|(folder, _)| *folder == library.folder)
        {
            Some((_, in_folder)) => in_folder.push(told),
            None => folders.push((&library.folder, vec![told])),
        }
    }
    let told = folders
        .iter()
        .map(|(folder, libraries)| format!("{folder}: {}", libraries.join(", ")));
    told.collect::<Vec<_>>().join("; ")
}

/// Two files for one name: the loader takes the first.
fn twice(libraries: &Libraries) -> Vec<Finding> {
    let mut pairs = BTreeMap::<&str, (&Library, Option<&Library>)>::new();
    for library in libraries
        .on_path
        .iter()
        .filter(|library| !is_compat(library))
    {
        let (first, later) = pairs.entry(&library.soname).or_insert((library, None));
        if first.version != library.version {
            later.get_or_insert(library);
        }
    }
    let version = |library: &Library| {
        library
            .version
            .map_or("?".to_owned(), |version| version.to_string())
    };
    let pairs = pairs.into_values();
    let told = pairs.filter_map(|(first, later)| {
        let later = later?;
        Some(format!(
            "{} is {} in {} and {} in {}; the first is used",
            first.soname,
            version(first),
            first.folder,
            version(later),
            later.folder
        ))
    });
    told.map(|seen| Finding::new(&LIBRARY_TWICE, seen))
        .collect()
}

/// Whether it belongs to cuda-compat, whose libraries are meant to stand before the driver's.
fn is_compat(library: &Library) -> bool {
    Path::new(&library.folder)
        .iter()
        .any(|part| part == "compat")
}

fn wrong_folders(libraries: &Libraries) -> Vec<Finding> {
    let ends_in =
        |folder: &str, name: &str| folder.trim_end_matches('/').rsplit('/').next() == Some(name);
    let stubs = libraries
        .variable
        .iter()
        .find(|folder| ends_in(folder, "stubs"));
    let compat = libraries
        .on_path
        .iter()
        .find(|library| library.name == "cuda" && is_compat(library));
    let mut findings = Vec::new();
    findings.extend(
        stubs.map(|folder| Finding::new(&STUBS_ON_PATH, format!("LD_LIBRARY_PATH has {folder}"))),
    );
    if !libraries.absent.is_empty() {
        findings.push(Finding::new(&PATH_NOWHERE, libraries.absent.join(", ")));
    }
    findings.extend(compat.map(|library| {
        Finding::new(
            &COMPAT_ON_PATH,
            format!("{}/{}", library.folder, library.soname),
        )
    }));
    findings
}
