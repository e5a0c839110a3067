use crate::environment::code::{
    COMPAT_ON_PATH, CUDNN_TOO_NEW, DRIVER_TOO_OLD, JIT_MISSING, LIBRARIES_FOUND, LIBRARIES_MISSING,
    LIBRARIES_MIXED, LIBRARIES_NOT_NEEDED, LIBRARY_TWICE, OPTIONAL_MISSING, PATH_NOWHERE,
    STUBS_ON_PATH,
};
use crate::environment::facts::Facts;
use crate::environment::finding::Finding;
use crate::environment::probe::libraries::{Libraries, Library, NEEDED, OPTIONAL};
use crate::facts::{self, Version};

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let Some(libraries) = &facts.libraries else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    findings.extend(wrong_folders(libraries));
    findings.extend(twice(libraries));
    if !facts.shows_gpu() {
        let seen = format!(
            "{} of {} found",
            found(libraries, &NEEDED).len(),
            NEEDED.len()
        );
        findings.push(Finding::new(&LIBRARIES_NOT_NEEDED, seen));
        return findings;
    }
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
    match libraries.elsewhere.iter().find(is_absent) {
        Some(library) => {
            let folder = &library.folder;
            Finding::new(
                &LIBRARIES_MISSING,
                format!(
                    "{seen} on the library path; {folder} has {}",
                    library.soname
                ),
            )
            .next("put that folder on the library path")
            .by(format!("export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH"))
        }
        None => Finding::new(&LIBRARIES_MISSING, seen),
    }
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
    let mut findings = Vec::new();
    for (place, library) in libraries.on_path.iter().enumerate() {
        let same =
            |other: &&Library| other.soname == library.soname && other.version != library.version;
        let is_first = !libraries.on_path[..place]
            .iter()
            .any(|other| other.soname == library.soname);
        let later = libraries.on_path[place..].iter().find(same);
        let (true, Some(later)) = (is_first, later) else {
            continue;
        };
        let version = |library: &Library| {
            library
                .version
                .map_or("?".to_owned(), |version| version.to_string())
        };
        let seen = format!(
            "{} is {} in {} and {} in {}; the first is used",
            library.soname,
            version(library),
            library.folder,
            version(later),
            later.folder
        );
        findings.push(Finding::new(&LIBRARY_TWICE, seen));
    }
    findings
}

/// CUDA's major version by the names that follow it; cuRAND counts by itself.
fn majors(libraries: &Libraries) -> Vec<(&Library, u32)> {
    let of_cuda =
        |library: &&Library| matches!(library.name, "cudart" | "cublas" | "cublasLt" | "nvrtc");
    let numbered = libraries.on_path.iter().filter(of_cuda);
    numbered
        .filter_map(|library| Some((library, major(library)?)))
        .collect()
}

fn major(library: &Library) -> Option<u32> {
    let number = library.soname.rsplit_once(".so.")?.1;
    number.parse::<Version>().ok().map(Version::major)
}

/// No major version of which all libraries are there.
fn mixed(libraries: &Libraries) -> Option<Finding> {
    let majors = majors(libraries);
    let names = ["cudart", "cublas", "cublasLt", "nvrtc"];
    let has = |name: &str, number: u32| {
        majors
            .iter()
            .any(|(library, major)| library.name == name && *major == number)
    };
    let is_whole = |number: u32| names.iter().all(|name| has(name, number));
    let all_there = names
        .iter()
        .all(|name| majors.iter().any(|(library, _)| library.name == *name));
    if !all_there || majors.iter().any(|(_, number)| is_whole(*number)) {
        return None;
    }
    let told: Vec<_> = majors
        .iter()
        .map(|(library, _)| library.soname.as_str())
        .collect();
    Some(Finding::new(&LIBRARIES_MIXED, told.join(", ")))
}

fn against_driver(facts: &Facts, libraries: &Libraries) -> Vec<Finding> {
    let mut findings = Vec::new();
    let majors = majors(libraries);
    let supported = facts.cuda_of_driver().map(Version::major);
    // Where libraries of an older major version are there as well, a program may be linked with those.
    let oldest = majors.iter().min_by_key(|(_, number)| *number);
    if let (Some((library, major)), Some(supported)) = (oldest, supported)
        && *major > supported
    {
        let floor = facts::floor_of_major(*major);
        let floor = floor.map_or_else(String::new, |floor| {
            format!(", which driver {floor} brings")
        });
        let seen = format!(
            "{} needs CUDA {major}{floor}; the driver supports CUDA {supported}",
            library.soname
        );
        findings.push(Finding::new(&DRIVER_TOO_OLD, seen));
    }
    if let (Some(cudnn), Some(driver)) = (libraries.find("cudnn"), facts.driver()) {
        let cuda = majors.iter().map(|(_, number)| *number).max();
        let of_it =
            |floor: &&(u32, u32, Version)| Some(floor.0) == major(cudnn) && Some(floor.1) == cuda;
        let floors = facts::CUDNN_FLOORS.iter().filter(of_it);
        findings.extend(
            floors
                .filter(|(_, _, floor)| driver < *floor)
                .map(|(_, cuda, floor)| {
                    let seen = format!(
                        "{} for CUDA {cuda} needs driver {floor}, this is {driver}",
                        cudnn.soname
                    );
                    Finding::new(&CUDNN_TOO_NEW, seen)
                }),
        );
    }
    findings
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
        .find(|library| library.name == "cuda" && ends_in(&library.folder, "compat"));
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
