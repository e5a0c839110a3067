//! The simulated driver's libraries, which this program holds and unpacks into a cache folder.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::output::Result;

mod embedded {
    include!(concat!(env!("OUT_DIR"), "/libraries.rs"));
}

/// The folder of caches: as the XDG base directory specification has it.
pub fn cache() -> Result<PathBuf> {
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let folder = named("XDG_CACHE_HOME").map(PathBuf::from);
    let folder = folder.or_else(|| named("HOME").map(|home| Path::new(&home).join(".cache")));
    let folder = folder.ok_or("there is no folder for caches: set XDG_CACHE_HOME")?;
    Ok(folder.join("candle-headroom"))
}

/// The folder with the libraries, which is made whole or not at all.
pub fn unpack() -> Result<PathBuf> {
    if embedded::FILES.is_empty() {
        return Err(
            "the simulated driver is a library of Linux on x86-64: a dry run needs such a machine"
                .into(),
        );
    }
    let cache = cache()?;
    let folder = cache.join(format!("simulated-cuda-{}", embedded::HASH));
    if folder.is_dir() {
        return Ok(folder);
    }
    let part = cache.join(format!(
        "simulated-cuda-{}.{}",
        embedded::HASH,
        std::process::id()
    ));
    let unpacked = write(&part).and_then(|()| fs::rename(&part, &folder));
    if let Err(error) = unpacked {
        // Another process may have been faster.
        _ = fs::remove_dir_all(&part);
        if !folder.is_dir() {
            return Err(format!(
                "cannot unpack the simulated driver into {}: {error}",
                folder.display()
            )
            .into());
        }
    }
    Ok(folder)
}

fn write(folder: &Path) -> std::io::Result<()> {
    let place = |name: &str| {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap_or(folder)).map(|()| path)
    };
    for (name, bytes) in embedded::FILES {
        fs::write(place(name)?, bytes)?;
    }
    for (name, to) in embedded::LINKS {
        symlink(to, place(name)?)?;
    }
    Ok(())
}
