use std::path::{Path, PathBuf};
use std::thread::{Builder, JoinHandle};

use super::rotate::Keep;
use super::snapshot::Snapshot;
use super::write::write;
use crate::error::{Error, Result, invalid};

/// Writes snapshots, at most one at a time in the background.
#[derive(Debug, Default)]
pub(super) struct Writer {
    running: Option<Running>,
    /// The last snapshot's, for the next one.
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Running {
    step: u64,
    thread: JoinHandle<(Vec<u8>, Result<PathBuf>)>,
}

/// How writing ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) step: u64,
    pub(super) path: Result<PathBuf>,
}

impl Writer {
    pub(super) fn is_busy(&self) -> bool {
        self.running.is_some()
    }

    /// Takes the buffer for the next snapshot, with room for so many bytes; `None` if the system does not give it.
    pub(super) fn take_buffer(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let more = bytes.saturating_sub(buffer.len());
        buffer.try_reserve_exact(more).is_ok().then_some(buffer)
    }

    pub(super) fn buffer_bytes(&self) -> u64 {
        self.buffer.capacity() as u64
    }

    pub(super) fn start(
        &mut self,
        mut snapshot: Snapshot,
        folder: &Path,
        keep: Keep,
    ) -> Result<()> {
        let (step, folder) = (snapshot.step, folder.to_owned());
        let work = move || {
            let path = write_and_rotate(&snapshot, &folder, &keep);
            (std::mem::take(&mut snapshot.buffer), path)
        };
        let thread = Builder::new().name("checkpoint".to_owned()).spawn(work);
        let thread = thread.map_err(|error| failed(&error.to_string()))?;
        self.running = Some(Running { step, thread });
        Ok(())
    }

    /// The end of what was written in the background, if it has come.
    pub(super) fn poll(&mut self) -> Option<Ended> {
        let has_ended = |running: &mut Running| running.thread.is_finished();
        self.running.take_if(has_ended).map(|it| self.end(it))
    }

    /// Waits for what is written in the background.
    pub(super) fn wait(&mut self) -> Option<Ended> {
        self.running.take().map(|it| self.end(it))
    }

    fn end(&mut self, running: Running) -> Ended {
        let step = running.step;
        let path = match running.thread.join() {
            Ok((buffer, path)) => {
                self.buffer = buffer;
                path
            }
            Err(_) => Err(failed("it panicked")),
        };
        Ended { step, path }
    }
}

fn failed(problem: &str) -> Error {
    invalid!(
        Checkpoint,
        "the thread that writes checkpoints failed: {problem}"
    )
}

/// Removes older checkpoints once the new one is on the disk. That they could not be removed is no reason to write it again.
pub(super) fn write_and_rotate(snapshot: &Snapshot, folder: &Path, keep: &Keep) -> Result<PathBuf> {
    let path = write(snapshot, folder)?;
    if let Err(error) = keep.rotate(folder, snapshot.step) {
        tracing::warn!(%error, "an older checkpoint stays");
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::Writer;

    #[test]
    fn memory_that_is_not_there_is_no_panic() {
        let mut writer = Writer::default();
        assert!(writer.take_buffer(usize::MAX).is_none());
        assert!(writer.take_buffer(100).unwrap().capacity() >= 100);
    }
}
