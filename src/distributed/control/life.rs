use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::frame::Frame;
use super::link::Link;

/// How long work may go on without an end before this rank is silent: a disk that never answers must not hold the other ranks for ever.
const LONGEST: Duration = Duration::from_secs(60 * 60);

/// Sends signs of life to the other ranks while this one works for all of them, such as by writing a checkpoint, or waits.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// How many works go on, and since when at least one does.
    works: Arc<Mutex<(usize, Option<Instant>)>>,
    /// Ends the thread when it is dropped.
    thread: Option<Sender<()>>,
}

/// This rank works until this is dropped: the others wait for it beyond the timeout.
#[derive(Debug)]
#[must_use = "the others wait while this lives"]
pub(crate) struct Working(Arc<Mutex<(usize, Option<Instant>)>>);

impl Life {
    /// Starts the thread that sends them, several times within the timeout.
    pub(super) fn start(
        &mut self,
        links: &Arc<RwLock<Vec<Link>>>,
        timeout: Duration,
    ) -> io::Result<()> {
        let (sender, ended) = mpsc::channel();
        let (works, links) = (Arc::clone(&self.works), Arc::clone(links));
        let pause = (timeout / 8).min(Duration::from_secs(1));
        let thread = thread::Builder::new().name("headroom-life".to_owned());
        thread.spawn(move || {
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let since = works.lock().1;
                if since.is_some_and(|since| since.elapsed() < LONGEST) {
                    for link in links.read().iter() {
                        let _ = link.send(&Frame::Working);
                    }
                }
            }
        })?;
        self.thread = Some(sender);
        Ok(())
    }

    pub(super) fn working(&self) -> Working {
        let mut works = self.works.lock();
        works.0 += 1;
        works.1.get_or_insert_with(Instant::now);
        Working(Arc::clone(&self.works))
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut works = self.0.lock();
        works.0 -= 1;
        if works.0 == 0 {
            works.1 = None;
        }
    }
}
