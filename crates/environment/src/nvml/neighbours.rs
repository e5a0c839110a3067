use std::fmt;
use std::fs;
use std::time::Duration;

use super::{Library, NAMES, Processes, knows_processes, within};

/// Another process that holds memory of the same GPU. `{}` is its name and number.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Neighbour {
    /// The process ID.
    pub process: u32,
    /// The name that `ps` shows, if this process may read it.
    pub name: Option<String>,
    /// The bytes it holds, if the driver reports them.
    pub bytes: Option<u64>,
}

impl Neighbour {
    /// A process that holds `bytes` bytes.
    pub fn new(process: u32, name: Option<String>, bytes: Option<u64>) -> Self {
        Self {
            process,
            name,
            bytes,
        }
    }
}

impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} ({})", self.process),
            None => write!(f, "process {}", self.process),
        }
    }
}

/// The other processes on a GPU and what they hold, the most first; empty if NVML does not tell within `patience`.
pub fn neighbours(uuid: &str, patience: Duration) -> Vec<Neighbour> {
    let uuid = uuid.to_owned();
    let asked = within(patience, move || ask(&uuid, patience / 2));
    asked.flatten().unwrap_or_default()
}

fn ask(uuid: &str, limit: Duration) -> Option<Vec<Neighbour>> {
    if !knows_processes() {
        return None;
    }
    // SAFETY: the names are those of NVIDIA's library, which may be loaded at any time.
    let nvml = unsafe { Library::load(&NAMES, limit) }.ok()?.begin().ok()?;
    let device = nvml.device_by_uuid(uuid).ok()?;
    let mut processes = Processes::default();
    device.list_processes(&mut processes).ok()?;
    let own = std::process::id();
    let others = processes.iter().filter(|(process, _)| *process != own);
    let mut neighbours: Vec<Neighbour> = others
        .map(|(process, bytes)| Neighbour::new(process, name(process), bytes))
        .collect();
    neighbours.sort_by_key(|neighbour| std::cmp::Reverse(neighbour.bytes));
    Some(neighbours)
}

/// As `ps` shows it; `None` for a hidden process, and on systems other than Linux.
fn name(process: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_the_name_that_ps_shows() {
        #[cfg(target_os = "linux")]
        assert!(name(std::process::id()).is_some_and(|name| !name.is_empty()));
        assert_eq!(name(u32::MAX), None);
    }
}
