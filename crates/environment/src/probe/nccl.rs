use std::ffi::c_int;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use regex::bytes::Regex;

use super::cuda::call;
use super::libraries::{Libraries, locate};
use crate::facts::Version;
use crate::patience::{self, LoadError};
use crate::{Answer, Reply, Source, files};

/// NCCL as it is loaded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nccl {
    pub(crate) version: Option<Version>,
    /// The CUDA that it was built with.
    pub(crate) cuda: Option<Version>,
}

const NAME: &str = "libnccl.so.2";

/// Loads NCCL and asks for its version. Nothing is done on a GPU.
pub(crate) fn look(source: &Source, limit: Duration) -> Answer<Nccl> {
    let paths = locate(source, &[NAME]);
    let not_found = || LoadError::Absent(format!("{NAME}: not found"));
    // SAFETY: NCCL's initializers may run at any time; the caller of `Environment::root` vouches for other files.
    let library = unsafe { patience::load(paths.first().ok_or_else(not_found)?, limit) }?;
    let mut number = 0;
    // SAFETY: `ncclResult_t ncclGetVersion(int *)`.
    let asked = unsafe { call!(library, ncclGetVersion(&mut number => *mut c_int)) };
    let reply = asked.map(|()| {
        let libraries = Libraries::look(source);
        let file = libraries.find("nccl").map(|library| library.path());
        Nccl {
            version: version_of(number),
            cuda: file.and_then(|file| cuda_in(&source.below(file))),
        }
    });
    Ok((version_of(number), Reply::of(reply)))
}

/// From NCCL's number: 2708 for 2.7.8, and 22803 for 2.28.3; it has five digits from 2.9 on.
fn version_of(number: c_int) -> Option<Version> {
    let number = u32::try_from(number).ok().filter(|number| *number > 0)?;
    let unit = if number < 10_000 { 1000 } else { 10_000 };
    Some(Version([number / unit, number % unit / 100, number % 100]))
}

/// From the text that NCCL logs at its start, such as `NCCL version 2.28.3+cuda13.0`, which lies among the file's first constants, before
/// the kernels: at 3.5 MB in 2.32.3 from PyPI.
fn cuda_in(file: &Path) -> Option<Version> {
    const FIRST: u64 = 64 << 20;
    let mut bytes = Vec::new();
    files::open(file)
        .ok()?
        .take(FIRST)
        .read_to_end(&mut bytes)
        .ok()?;
    let text = Regex::new(r"NCCL version [0-9.]+\+cuda([0-9]+\.[0-9]+)").ok()?;
    let found = text.captures(&bytes)?.get(1)?;
    Version::parse(std::str::from_utf8(found.as_bytes()).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_both_kinds_of_numbers() {
        assert_eq!(version_of(2708), Some(Version([2, 7, 8])));
        assert_eq!(version_of(22_803), Some(Version([2, 28, 3])));
        assert_eq!(version_of(23_203).unwrap().release().to_string(), "2.32");
        assert_eq!(version_of(0).or(version_of(-5)), None);
    }
}
