use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::code;
use super::facts::Facts;
use super::finding::Finding;
use super::probe::host::Host;
use super::probe::kernel::Kernel;
use super::probe::libraries::Libraries;
use super::probe::log::Log;
use super::probe::toolkit::Toolkit;
use super::probe::{driver, nvml};
use super::source::Source;
use crate::patience::{LoadError, Task, Unfinished};

/// Starts all probes at once, each in a thread, and waits for them until the deadline.
pub(crate) fn gather(source: Arc<Source>, deadline: Instant, findings: &mut Vec<Finding>) -> Facts {
    let left = move || deadline.saturating_duration_since(Instant::now());
    // A child process and then this process load the libraries; each gets a part of the time.
    let limit = left() / 2;
    let libcuda = Arc::new(OnceLock::new());
    let same_libcuda = Arc::clone(&libcuda);
    let kernel = start("the kernel's files and device nodes", &source, Kernel::look);
    let host = start("host memory", &source, Host::look);
    let log = start("the kernel log", &source, Log::look);
    let libraries = start("shared libraries", &source, Libraries::look);
    let toolkit = start("the CUDA toolkit", &source, Toolkit::look);
    let nvml = start("NVML", &source, move |source| nvml::look(source, limit));
    let cuda_version = start("cuDriverGetVersion", &source, move |source| {
        driver::version(source, &same_libcuda, limit)
    });
    let cuda = start("cuInit", &source, move |source| {
        driver::look(source, &libcuda, limit)
    });
    let mut wait = Wait { deadline, findings };
    let nvml = wait.for_library(nvml, true);
    let cuda = wait.for_library(cuda, true);
    Facts {
        kernel: wait.for_probe(kernel),
        host: wait.for_probe(host),
        log: wait.for_probe(log),
        libraries: wait.for_probe(libraries),
        toolkit: wait.for_probe(toolkit),
        nvml,
        // A library that was not loaded is one finding.
        cuda_version: wait.for_library(cuda_version, false),
        cuda,
        source,
    }
}

/// A probe in a thread of its own, and what it looks at.
struct Probe<T>(&'static str, Task<T>);

fn start<T: Send + 'static>(
    what: &'static str,
    source: &Arc<Source>,
    look: impl FnOnce(&Source) -> T + Send + 'static,
) -> Probe<T> {
    let source = Arc::clone(source);
    let task = Task::start(&format!("probe: {what}"), move || look(&source));
    Probe(what, task)
}

/// Waits for probes; one that does not finish is a finding.
struct Wait<'a> {
    deadline: Instant,
    findings: &'a mut Vec<Finding>,
}

impl Wait<'_> {
    fn for_probe<T: Send + 'static>(&mut self, Probe(what, task): Probe<T>) -> Option<T> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let trouble = match task.wait(left) {
            Ok(seen) => return Some(seen),
            Err(trouble) => trouble,
        };
        self.findings.push(match trouble {
            Unfinished::TimedOut => Finding::new(code::PROBE_TIMED_OUT, what),
            Unfinished::Panicked => Finding::new(code::PROBE_STOPPED, what),
            Unfinished::NotStarted => {
                let seen = format!("{what}: no thread could be started for it");
                Finding::new(code::PROBE_STOPPED, seen)
            }
        });
        None
    }

    /// A library that hangs or crashes while a child process loads it is a finding, if `tells`.
    fn for_library<T: Send + 'static>(
        &mut self,
        probe: Probe<Result<T, LoadError>>,
        tells: bool,
    ) -> Option<Result<T, String>> {
        let (code, seen) = match self.for_probe(probe)? {
            Ok(seen) => return Some(Ok(seen)),
            Err(LoadError::Absent(reason)) => return Some(Err(reason)),
            Err(LoadError::Hangs(what)) => (code::PROBE_TIMED_OUT, what),
            Err(LoadError::Crashes(what)) => (code::PROBE_STOPPED, what),
        };
        if tells {
            self.findings.push(Finding::new(code, seen));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_probe_that_panics_or_hangs_is_a_finding() {
        let source = Arc::new(Source::of_this_process());
        let panics = start("panics", &source, |_| -> u8 { panic!("on purpose") });
        let hangs = start("hangs", &source, |_| -> u8 {
            loop {
                std::thread::park();
            }
        });
        let ends = start("ends", &source, |_| 7);
        let mut findings = Vec::new();
        let mut wait = Wait {
            // A panic that prints a stack trace takes long.
            deadline: Instant::now() + Duration::from_secs(60),
            findings: &mut findings,
        };
        assert_eq!(wait.for_probe(ends), Some(7));
        assert_eq!(wait.for_probe(panics), None);
        wait.deadline = Instant::now() + Duration::from_millis(20);
        assert_eq!(wait.for_probe(hangs), None);
        let seen = findings
            .iter()
            .map(|finding| (finding.code.id, finding.seen.as_str()));
        assert!(seen.eq([("HR-002", "panics"), ("HR-001", "hangs")]));
    }
}
