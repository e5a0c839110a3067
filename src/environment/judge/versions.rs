//! Whether the versions of CUDA's libraries go together, and with the driver.

use crate::environment::code::{CUDNN_TOO_NEW, DRIVER_TOO_OLD, LIBRARIES_MIXED};
use crate::environment::facts::Facts;
use crate::environment::finding::Finding;
use crate::environment::probe::libraries::{Libraries, Library};
use crate::facts::{self, Version};

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
pub(super) fn mixed(libraries: &Libraries) -> Option<Finding> {
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

pub(super) fn against_driver(facts: &Facts, libraries: &Libraries) -> Vec<Finding> {
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
