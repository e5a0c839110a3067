use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::probe::fabric::Fabric;
use super::probe::kernel::Kernel;
use super::probe::libraries::Libraries;
use super::probe::mpi::Mpi;
use super::probe::{driver, nccl, nvml};
use super::{Answer, Facts, Findings, Reply, Source, code, host, log, toolkit};
use crate::facts::Version;
use crate::patience::{LoadError, Task};

/// Runs all probes at once until the deadline. Adds findings about those that did not finish, the host, the toolkit and the kernel's log.
pub(super) fn gather(source: Arc<Source>, deadline: Instant, findings: &mut Findings) -> Facts {
    let kernel = Probe::start("the kernel's files and device nodes", &source, Kernel::look);
    let host = Probe::start("host memory", &source, host::look);
    let log = Probe::start("the kernel log", &source, log::look);
    let libraries = Probe::start("shared libraries", &source, Libraries::look);
    let toolkit = Probe::start("the CUDA toolkit", &source, toolkit::look);
    let fabric = Probe::start("the network between nodes", &source, Fabric::look);
    let mpi = Probe::start("MPI", &source, Mpi::look);
    let (nvml, driver_version) = Probe::ask("NVML", &source, deadline, nvml::look);
    let (cuda, cuda_version) = Probe::ask("libcuda", &source, deadline, driver::look);
    let nvml = nvml.reply(deadline, findings);
    let cuda = cuda.reply(deadline, findings);
    let (memory, shm, shm_free, by_host) = host.wait(deadline, findings).unwrap_or_default();
    let (toolkit, by_toolkit) = toolkit.wait(deadline, findings).unwrap_or_default();
    let by_log = log.wait(deadline, findings).unwrap_or_default();
    let found = [by_host, by_toolkit, by_log].into_iter();
    findings.0.extend(found.flat_map(|found| found.0));
    let mut facts = Facts {
        kernel: kernel.wait(deadline, findings),
        memory,
        shm,
        shm_free,
        libraries: libraries.wait(deadline, findings),
        toolkit,
        nvml,
        driver_version: driver_version.get().copied(),
        cuda,
        cuda_version: cuda_version.get().copied(),
        fabric: fabric.wait(deadline, findings),
        mpi: mpi.wait(deadline, findings),
        nccl: Reply::Unknown,
        source: Arc::clone(&source),
    };
    // Loading it takes long, and most programs do not need it.
    if facts.has_ranks() && facts.shows_gpu() {
        let (nccl, _) = Probe::ask("NCCL", &source, deadline, nccl::look);
        facts.nccl = nccl.reply(deadline, findings);
    }
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
        let outcome = self.1.wait(left);
        let outcome = outcome.map_err(|reason| findings.add(code::unfinished(reason), self.0));
        outcome.ok()
    }
}

impl<T: Send + 'static> Probe<Answer<T>> {
    /// Starts the probe of a library, which also sets a version as soon as it is known.
    fn ask(
        what: &'static str,
        source: &Arc<Source>,
        deadline: Instant,
        look: fn(&Source, Duration, &OnceLock<Version>) -> Answer<T>,
    ) -> (Self, Arc<OnceLock<Version>>) {
        let version = Arc::default();
        let known = Arc::clone(&version);
        // A child process and then this process load the library; each gets a part of the time.
        let limit = deadline.saturating_duration_since(Instant::now()) / 2;
        let probe = Self::start(what, source, move |source| look(source, limit, &version));
        (probe, known)
    }

    /// Waits for what a library tells; one that hangs or crashes in a child process is a finding too.
    fn reply(self, deadline: Instant, findings: &mut Findings) -> Reply<T> {
        match self.wait(deadline, findings) {
            Some(Ok(reply)) => return reply,
            Some(Err(LoadError::Absent(reason))) => return Reply::Missing(reason),
            Some(Err(LoadError::Hangs(what))) => findings.add(code::PROBE_TIMED_OUT, what),
            Some(Err(LoadError::Crashes(what))) => findings.add(code::PROBE_STOPPED, what),
            None => {}
        }
        Reply::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that hangs is a case of tests/environment/library.rs.
    #[test]
    fn a_probe_that_panics_is_a_finding() {
        let source = Arc::new(Source::of_this_process(Vec::new()));
        let panics = Probe::start("panics", &source, |_| -> u8 { panic!("on purpose") });
        let mut findings = Findings::default();
        // A panic that prints a stack trace takes long.
        let later = Instant::now() + Duration::from_secs(60);
        assert_eq!(panics.wait(later, &mut findings), None);
        let seen = findings.0.iter();
        let seen = seen.map(|finding| (finding.code.id, finding.seen.as_str()));
        assert!(seen.eq([("HR-002", "panics")]));
    }
}
