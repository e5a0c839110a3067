//! Whether the versions of CUDA's libraries go together, and with the driver.

use crate::environment::code;
use crate::environment::facts::Facts;
use crate::environment::finding::Finding;
use crate::environment::probe::libraries::{Libraries, Library};
use crate::facts::{self, Version};

/// The libraries that are numbered by CUDA's major version; cuRAND is not.
const NUMBERED: [&str; 4] = ["cudart", "cublas", "cublasLt", "nvrtc"];

fn majors(libraries: &Libraries) -> Vec<(&Library, u32)> {
    let numbered = libraries.on_path.iter();
    numbered
        .filter(|library| NUMBERED.contains(&library.name))
        .filter_map(|library| Some((library, major(library)?)))
        .collect()
}

fn major(library: &Library) -> Option<u32> {
    let number = library.soname.rsplit_once(".so.")?.1;
    number.parse::<Version>().ok().map(Version::major)
}

/// All libraries exist, but not of one major version.
pub(super) fn mixed(libraries: &Libraries) -> Option<Finding> {
    let majors = majors(libraries);
    let has_all = |is_wanted: &dyn Fn(u32) -> bool| {
        let has = |name: &str| {
            let mut majors = majors.iter();
            majors.any(|(library, major)| library.name == name && is_wanted(*major))
        };
        NUMBERED.iter().all(|name| has(name))
    };
    let is_whole = |number: u32| has_all(&|major| major == number);
    if !has_all(&|_| true) || majors.iter().any(|(_, number)| is_whole(*number)) {
        return None;
    }
    let names = majors.iter().map(|(library, _)| library.soname.as_str());
    let seen = names.collect::<Vec<_>>().join(", ");
    Some(Finding::new(code::LIBRARIES_MIXED, seen))
}

pub(super) fn against_driver(facts: &Facts, libraries: &Libraries) -> Vec<Finding> {
    let mut findings = Vec::new();
    let majors = majors(libraries);
    let supported = facts.cuda_of_driver().map(Version::major);
    // A program may be linked with the oldest of several versions.
    let oldest = majors.iter().min_by_key(|(_, number)| *number);
    if let (Some((library, major)), Some(supported)) = (oldest, supported)
        && *major > supported
    {
        let floor = facts::floor_of_major(*major);
        let floor = floor.map(|floor| format!(" (driver {floor} or later)"));
        let (soname, floor) = (&library.soname, floor.unwrap_or_default());
        let seen =
            format!("{soname} needs CUDA {major}{floor}; the driver supports CUDA {supported}");
        findings.push(Finding::new(code::DRIVER_TOO_OLD, seen));
    }
    if let (Some(cudnn), Some(driver)) = (libraries.find("cudnn"), facts.driver()) {
        let soname = &cudnn.soname;
        let newest = majors.iter().map(|(_, number)| *number).max();
        for (cudnn_major, cuda, floor) in facts::CUDNN_FLOORS {
            let applies = Some(*cudnn_major) == major(cudnn) && Some(*cuda) == newest;
            if applies && driver < *floor {
                let seen =
                    format!("{soname} for CUDA {cuda} needs driver {floor}, this is {driver}");
                findings.push(Finding::new(code::CUDNN_TOO_NEW, seen));
            }
        }
    }
    findings
}
