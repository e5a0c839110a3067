//! Who else holds memory of a GPU.

use std::fs;
use std::time::Duration;

use super::{Library, NAMES, Processes, knows_processes, within};
use crate::error::Neighbour;

/// The other processes on a GPU, by what they hold, the most first; none where NVML is not there, does not tell, or takes longer than
/// `patience`.
pub(crate) fn neighbours(uuid: &str, patience: Duration) -> Vec<Neighbour> {
    let uuid = uuid.to_owned();
    let asked = within(patience, move || ask(&uuid));
    asked.flatten().unwrap_or_default()
}

fn ask(uuid: &str) -> Option<Vec<Neighbour>> {
    if !knows_processes() {
        return None;
    }
    let nvml = Library::load(&NAMES).ok()?.begin().ok()?;
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

/// As `ps` shows it; `None` for a process of somebody whose processes are hidden, and on other systems.
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
