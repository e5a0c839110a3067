use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::facts::Facts;
use super::finding::Findings;
use super::host::Host;
use super::probe::kernel::Kernel;
use super::probe::libraries::Libraries;
use super::probe::{driver, nvml};
use super::reply::Reply;
use super::source::Source;
use super::toolkit::Toolkit;
use super::{code, log};
use crate::patience::{LoadError, Task};

/// Starts all probes at once, each in a thread, and waits for them until the deadline. Adds findings about probes that did not finish, the
/// host, the toolkit and the kernel's log.
pub(super) fn gather(source: Arc<Source>, deadline: Instant, findings: &mut Findings) -> Facts {
    // A child process and then this process load the libraries; each gets a part of the time.
    let limit = deadline.saturating_duration_since(Instant::now()) / 2;
    let cuda_version = Arc::new(OnceLock::new());
    let version = Arc::clone(&cuda_version);
    let kernel = Probe::start("the kernel's files and device nodes", &source, Kernel::look);
    let host = Probe::start("host memory", &source, Host::look);
    let log = Probe::start("the kernel log", &source, log::look);
    let libraries = Probe::start("shared libraries", &source, Libraries::look);
    let toolkit = Probe::start("the CUDA toolkit", &source, Toolkit::look);
    let nvml = Probe::start("NVML", &source, move |source| nvml::look(source, limit));
    let cuda = Probe::start("libcuda", &source, move |source| {
        driver::look(source, limit, &version)
    });
    let nvml = nvml.reply(deadline, findings);
    let cuda = cuda.reply(deadline, findings);
    let host = host.wait(deadline, findings);
    let facts = Facts {
        kernel: kernel.wait(deadline, findings),
        memory: host
            .as_ref()
            .map_or_else(Default::default, |host| host.memory),
        libraries: libraries.wait(deadline, findings),
        nvml,
        cuda,
        cuda_version: cuda_version.get().copied(),
        source,
    };
    let toolkit = toolkit.wait(deadline, findings);
    let host = host.map(|host| host.findings(&facts));
    let toolkit = toolkit.map(|toolkit| toolkit.findings(&facts));
    let log = log.wait(deadline, findings);
    findings
        .0
        .extend([host, toolkit, log].into_iter().flatten().flatten());
    facts
}

/// A probe in a thread of its own, and what it looks at.
struct Probe<T>(&'static str, Task<T>);

impl<T: Send + 'static> Probe<T> {
    fn start(
        what: &'static str,
        source: &Arc<Source>,
        look: impl FnOnce(&Source) -> T + Send + 'static,
    ) -> Self {
        let source = Arc::clone(source);
        let task = Task::start(&format!("probe: {what}"), move || look(&source));
        Self(what, task)
    }

    /// Waits for the result; a probe that does not finish is a finding.
    fn wait(self, deadline: Instant, findings: &mut Findings) -> Option<T> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.1.wait(left) {
            Ok(seen) => Some(seen),
            Err(reason) => {
                findings.add(code::unfinished(reason), self.0);
                None
            }
        }
    }
}

impl<T: Send + 'static> Probe<Result<Reply<T>, LoadError>> {
    /// The same for a library; one that hangs or crashes in a child process is a finding too.
    fn reply(self, deadline: Instant, findings: &mut Findings) -> Reply<T> {
        match self.wait(deadline, findings) {
            Some(Ok(reply)) => return reply,
            Some(Err(LoadError::Absent(reason))) => return Reply::Missing(reason),
            Some(Err(LoadError::Hangs(what))) => findings.add(code::PROBE_TIMED_OUT, what),
            Some(Err(LoadError::Crashes(what))) => findings.add(code::PROBE_STOPPED, what),
            None => return Reply::Unknown,
        };
        Reply::Unknown
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_probe_that_panics_or_hangs_is_a_finding() {
        let source = Arc::new(Source::of_this_process(Vec::new()));
        let panics = Probe::start("panics", &source, |_| -> u8 { panic!("on purpose") });
        let hangs = Probe::start("hangs", &source, |_| -> u8 {
            loop {
                std::thread::park();
            }
        });
        let ends = Probe::start("ends", &source, |_| 7);
        let mut findings = Findings::default();
        // A panic that prints a stack trace takes long.
        let later = Instant::now() + Duration::from_secs(60);
        assert_eq!(ends.wait(later, &mut findings), Some(7));
        assert_eq!(panics.wait(later, &mut findings), None);
        let soon = Instant::now() + Duration::from_millis(20);
        assert_eq!(hangs.wait(soon, &mut findings), None);
        let seen = findings.0.iter();
        let seen = seen.map(|finding| (finding.code.id, finding.seen.as_str()));
        assert!(seen.eq([("HR-002", "panics"), ("HR-001", "hangs")]));
    }
}
