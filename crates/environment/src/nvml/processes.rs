//! The processes on a GPU, and what each holds of its memory.
//!
//! Lists come from the newest call that the library has, and from the one before it on drivers whose newest call writes longer elements than
//! its header says. There is room for the longest element that any driver writes, and a list of more processes than a GPU can have is an
//! error. In a container the driver's numbers are the host's, so that no neighbour is named there.

use std::ffi::c_uint;
use std::time::Duration;
use std::{fmt, fs};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlProcessInfo_v2_t};

use super::{Device, FUNCTION_NOT_FOUND, Field, INSUFFICIENT_SIZE, NAMES, Nvml, installed, within};
use crate::facts::reports_processes_wrongly;
use crate::patience::load_first;

/// NVML's mark for an unknown size.
const NOT_AVAILABLE: u64 = u64::MAX;
/// More processes than a GPU can have, whatever a broken library says.
const MOST: usize = 4096;
/// Room for this many processes at first, and for this many new ones in a longer list.
const ROOM: usize = 64;
/// The longest element that any driver writes, in words of 8 bytes, whatever the header of its call says.
const LONGEST_ELEMENT: usize = 4;

/// A function that fills a list of elements, given the room for them, and writes how many there are.
type Fill<T> = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut T) -> u32;
type List = Fill<nvmlProcessInfo_v2_t>;

/// The processes on a GPU. A list that is filled again allocates only when it grows.
#[derive(Debug, Default)]
pub struct Processes {
    words: Vec<u64>,
    /// Words of an element: the first begins with the process's number, and the second is its bytes.
    element: usize,
    count: usize,
}

impl Processes {
    /// Numbers, and bytes where they are known.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Option<u64>)> {
        let elements = self.words.chunks_exact(self.element.max(2));
        elements.take(self.count).map(|element| {
            let bytes = element[1];
            // CUDA's machines are little-endian.
            let process = element[0] as u32;
            (process, (bytes != NOT_AVAILABLE).then_some(bytes))
        })
    }
}

impl Device {
    /// Lists the processes that compute, by the newest call that the library has.
    pub fn list_processes(&self, to: &mut Processes) -> Field<()> {
        let functions = self.functions();
        let newest = [
            &functions.nvmlDeviceGetComputeRunningProcesses_v3,
            &functions.nvmlDeviceGetComputeRunningProcesses_v2,
        ];
        let oldest = &functions.nvmlDeviceGetComputeRunningProcesses;
        self.list(to, newest).or_else(|code| match code {
            FUNCTION_NOT_FOUND => self.fill(to, oldest, 2),
            code => Err(code),
        })
    }

    /// The number of processes that draw. The oldest call is left out, since it has another layout and the number is only a note.
    pub fn graphics(&self) -> Field<usize> {
        let mut processes = Processes::default();
        let functions = self.functions();
        let newest = [
            &functions.nvmlDeviceGetGraphicsRunningProcesses_v3,
            &functions.nvmlDeviceGetGraphicsRunningProcesses_v2,
        ];
        self.list(&mut processes, newest)?;
        Ok(processes.count)
    }

    /// By the newest call, or by the one before it if that is missing or writes more than its header says.
    fn list(&self, to: &mut Processes, newest: [&Result<List, libloading::Error>; 2]) -> Field<()> {
        let avoids_newest = self.nvml.driver.is_some_and(reports_processes_wrongly);
        let mut listed = Err(FUNCTION_NOT_FOUND);
        for function in newest.into_iter().skip(avoids_newest.into()) {
            if listed == Err(FUNCTION_NOT_FOUND) {
                listed = self.fill(to, function, 3);
            }
        }
        listed
    }

    /// Calls a function that fills a list, a second time with more room if there was too little.
    fn fill<T>(
        &self,
        to: &mut Processes,
        function: &Result<Fill<T>, libloading::Error>,
        element: usize,
    ) -> Field<()> {
        (to.element, to.count) = (element, 0);
        let mut wanted = ROOM;
        for _ in 0..2 {
            let words = to.words.len().max(wanted * LONGEST_ELEMENT);
            to.words.resize(words, 0);
            let room = words / LONGEST_ELEMENT;
            let mut count = room as c_uint;
            let place = to.words.as_mut_ptr().cast();
            // SAFETY: the handle belongs to this session. There is room for `count` of the longest elements that any driver writes, of words
            // that may have any bits.
            let outcome = self.call(function, |fill, device| unsafe {
                fill(device, &mut count, place)
            });
            if outcome != Err(INSUFFICIENT_SIZE) {
                to.count = outcome.map_or(0, |()| (count as usize).min(room));
                return outcome;
            }
            wanted = (count as usize).min(MOST) + ROOM;
        }
        Err(INSUFFICIENT_SIZE)
    }
}

/// Whether this process's number is the one that the driver lists. In a container the driver lists the host's numbers.
pub fn knows_processes() -> bool {
    // Linux's number for the first namespace; other systems have none.
    match std::fs::read_link("/proc/self/ns/pid") {
        Ok(namespace) => namespace.as_os_str() == "pid:[4026531836]",
        Err(_) => true,
    }
}

/// Another process that holds memory of the same GPU. `{}` is its name and number.
///
/// ```
/// use candle_headroom_environment::Neighbour;
///
/// let neighbour = Neighbour::new(4711, Some("python".to_owned()), Some(6 << 30));
/// assert_eq!(neighbour.to_string(), "python (4711)");
/// ```
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
    /// A process that holds `bytes` bytes; `None` for what the driver or the system does not tell.
    ///
    /// ```
    /// use candle_headroom_environment::Neighbour;
    ///
    /// assert_eq!(Neighbour::new(4711, None, None).to_string(), "process 4711");
    /// ```
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
    let (library, _) = load_first(&installed(), NAMES[0], limit).ok()?;
    let device = Nvml::begin(&library).ok()?.device_by_uuid(uuid).ok()?;
    let mut processes = Processes::default();
    device.list_processes(&mut processes).ok()?;
    let own = std::process::id();
    let others = processes.iter().filter(|(process, _)| *process != own);
    let others = others.map(|(process, bytes)| Neighbour::new(process, name(process), bytes));
    let mut neighbours: Vec<_> = others.collect();
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
