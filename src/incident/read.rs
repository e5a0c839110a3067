use std::path::Path;
use std::{fs, io};

use super::record::Incident;
use super::summary::IncidentSummary;
use crate::error::{OutputError, Result};

/// The incidents of a file.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Incidents {
    /// The incidents in the order in which they were written.
    pub list: Vec<Incident>,
    /// The number of lines that are not incidents, such as an incomplete last line after a power failure.
    pub unreadable: usize,
}

impl Incidents {
    /// Reads a log: the file with `.1` appended to its name, if there is one, and then the file at `path`.
    ///
    /// # Errors
    /// [`OutputError`] with the path if a file cannot be read or neither exists.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut former = path.as_os_str().to_owned();
        former.push(".1");
        let bytes = match (read(former.as_ref())?, read(path)?) {
            (Some(former), latest) => [former, latest.unwrap_or_default()].join(&b'\n'),
            (None, Some(latest)) => latest,
            (None, None) => {
                let missing = io::ErrorKind::NotFound.into();
                return Err(OutputError::reading(path, &missing).into());
            }
        };
        // An incomplete line may end within a character.
        Ok(Self::parse(&String::from_utf8_lossy(&bytes)))
    }

    /// Reads the lines of a text.
    pub fn parse(text: &str) -> Self {
        let mut incidents = Self::default();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            match serde_json::from_str(line) {
                Ok(incident) => incidents.list.push(incident),
                Err(_) => incidents.unreadable += 1,
            }
        }
        incidents
    }

    /// A summary of all incidents.
    pub fn summary(&self) -> IncidentSummary {
        IncidentSummary::of(&self.list)
    }
}

/// The content of a file, or `None` if there is no such file.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let read = fs::metadata(path).and_then(|there| match there.is_file() {
        true => fs::read(path),
        // A device such as `/dev/zero` has no end.
        false => Err(io::Error::other("not a regular file")),
    });
    match read {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(OutputError::reading(path, &error).into()),
    }
}
