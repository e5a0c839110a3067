//! Names of folders. That of an incomplete checkpoint says which process of which running system writes it, so that only what nobody writes is
//! removed.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::Path;
use std::sync::LazyLock;
use std::{fmt, fs};

/// The name of a checkpoint's folder: `step-000000100`, and `step-000000100-2` for a second one of the same step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) step: u64,
    pub(super) copy: u32,
}

/// The running system whose processes share locks, and this process of it: hosts that share a folder may have processes of the same
/// number, so it is a random one.
pub(super) static WRITER: LazyLock<String> = LazyLock::new(|| {
    let boot = fs::read("/proc/sys/kernel/random/boot_id");
    let host = crc32fast::hash(&boot.unwrap_or_else(|_| crate::host::name().into()));
    let process = RandomState::new().hash_one(()) as u32;
    format!("{host:08x}-{process:08x}")
});

impl Name {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("step-")?;
        let (step, copy) = match rest.split_once('-') {
            Some((step, copy)) => (step, copy.parse().ok()?),
            None => (rest, 1),
        };
        let name = Self {
            step: step.parse().ok()?,
            copy,
        };
        // Other spellings of the numbers are not ours.
        (name.to_string() == text).then_some(name)
    }

    /// The name under which this process writes or removes a folder.
    pub(super) fn partial(text: &str) -> String {
        format!("{text}.partial-{}", *WRITER)
    }

    /// The [writer](WRITER) of the folder of this name, if it is that of a checkpoint which is being written or removed.
    pub(super) fn writer(text: &str) -> Option<&str> {
        let (name, writer) = text.split_once(".partial-")?;
        let is_hexadecimal = |part: &str| {
            part.len() == 8
                && part
                    .bytes()
                    .all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
        };
        let (host, process) = writer.split_once('-')?;
        let is_ours =
            Self::parse(name).is_some() && is_hexadecimal(host) && is_hexadecimal(process);
        is_ours.then_some(writer)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step-{:09}", self.step)?;
        match self.copy {
            1 => Ok(()),
            copy => write!(f, "-{copy}"),
        }
    }
}

/// The name of a checkpoint, whose path may be another on each rank.
pub(super) fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::{Name, WRITER};

    #[test]
    fn names_are_read_as_they_are_written() {
        for (text, step, copy) in [
            ("step-000000100", 100, 1),
            ("step-000000100-2", 100, 2),
            ("step-18446744073709551615", u64::MAX, 1),
        ] {
            assert_eq!(Name::parse(text), Some(Name { step, copy }));
        }
        for other in [
            "step-100",
            "step-000000100-1",
            "step-000000100-02",
            "step-000000100.partial-7",
            "step-+00000100",
            "step-",
            "model",
        ] {
            assert_eq!(Name::parse(other), None, "{other}");
        }
        for name in ["step-000000100", "step-12345678901-2"] {
            let partial = Name::partial(name);
            assert_eq!(Name::writer(&partial), Some(&**WRITER), "{partial}");
        }
        for other in [
            "notes.partial-0000000a-0000000b",
            "step-100.partial-0000000a-0000000b",
            "step-0000000100.partial-0000000a-0000000b",
            "step-000000100.other.partial-0000000a-0000000b",
            "step-000000100.partial-0000000a-0000000b\n",
            "step-000000100.partial-0000000A-0000000b",
            "step-000000100.partial-a-b",
            "step-000000100.partial-7",
            "step-000000100.partial-",
        ] {
            assert_eq!(Name::writer(other), None, "{other}");
        }
    }
}
