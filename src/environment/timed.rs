use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Instant;

use super::code::{PROBE_STOPPED, PROBE_TIMED_OUT};
use super::finding::Finding;
use super::source::Source;

/// A probe at work in a thread of its own. One that does not end is left behind: a call into a driver cannot be taken back.
#[derive(Debug)]
pub(super) struct Probe<T> {
    /// What it looks at.
    what: &'static str,
    result: Option<Receiver<T>>,
}

impl<T: Send + 'static> Probe<T> {
    pub(super) fn start(
        what: &'static str,
        source: &Arc<Source>,
        look: impl FnOnce(&Source) -> T + Send + 'static,
    ) -> Self {
        let (sender, receiver) = mpsc::channel();
        let source = Arc::clone(source);
        let work = move || {
            // Nobody may be waiting any longer.
            let _ = sender.send(look(&source));
        };
        let thread = thread::Builder::new().name(format!("probe: {what}"));
        Self {
            what,
            result: thread.spawn(work).ok().map(|_| receiver),
        }
    }

    /// What it saw; else that it did not end goes to `findings`.
    pub(super) fn finish(self, deadline: Instant, findings: &mut Vec<Finding>) -> Option<T> {
        let what = self.what;
        let left = deadline.saturating_duration_since(Instant::now());
        let Some(receiver) = self.result else {
            let seen = format!("{what}: no thread could be started for it");
            findings.push(Finding::new(&PROBE_STOPPED, seen));
            return None;
        };
        match receiver.recv_timeout(left) {
            Ok(seen) => return Some(seen),
            Err(RecvTimeoutError::Timeout) => {
                findings.push(Finding::new(&PROBE_TIMED_OUT, what));
            }
            Err(RecvTimeoutError::Disconnected) => {
                findings.push(Finding::new(&PROBE_STOPPED, what));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_probe_that_stops_or_hangs_is_a_finding_and_others_go_on() {
        let source = Arc::new(Source::of_this_process());
        let stops = Probe::start("stops", &source, |_| -> u8 {
            panic!("a probe's fault, on purpose")
        });
        let hangs = Probe::start("hangs", &source, |_| -> u8 {
            loop {
                thread::park();
            }
        });
        let ends = Probe::start("ends", &source, |_| 7);
        let mut findings = Vec::new();
        let deadline = Instant::now() + Duration::from_millis(200);
        // A panic takes its time, with a trace of the stack.
        let later = deadline + Duration::from_secs(60);
        assert_eq!(ends.finish(later, &mut findings), Some(7));
        assert_eq!(stops.finish(later, &mut findings), None);
        assert_eq!(hangs.finish(deadline, &mut findings), None);
        let told: Vec<_> = findings
            .iter()
            .map(|finding| (finding.code.id, finding.seen.as_str()))
            .collect();
        assert_eq!(told, [("HR-002", "stops"), ("HR-001", "hangs")]);
    }
}
