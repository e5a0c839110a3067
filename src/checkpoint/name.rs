use std::fmt;
use std::path::Path;

/// The name of a checkpoint's folder: `step-000000100`, and `step-000000100-2` for a second one of the same step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) step: u64,
    pub(super) copy: u32,
}

/// After a checkpoint's name, while the folder is being written or removed; then the writer's process.
const PARTIAL: &str = ".partial-";

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
        format!("{text}{PARTIAL}{}", std::process::id())
    }

    /// The process that was writing the folder of this name, if it is partial.
    pub(super) fn writer(text: &str) -> Option<u32> {
        let (name, process) = text.split_once(PARTIAL)?;
        name.strip_prefix("step-")?;
        process.parse().ok()
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
    use super::Name;

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
            "step-000000100.rescue",
            "step-+00000100",
            "step-",
            "model",
        ] {
            assert_eq!(Name::parse(other), None, "{other}");
        }
        assert_eq!(Name::writer("step-000000100.partial-7"), Some(7));
        assert_eq!(Name::writer("notes.partial-7"), None);
    }
}
