use std::io::{self, BufReader, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use socket2::{SockRef, TcpKeepalive};

use super::frame::{Frame, Refusal};
use super::inbox::Inbox;

/// A connection to another rank. A thread reads it, so that its end is noticed at once.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) rank: usize,
    stream: Arc<Mutex<TcpStream>>,
}

impl Link {
    /// Of a group of `size` ranks. A write waits for a rank that does not read for at most `timeout`. `ended` is called where the group ends by
    /// what this connection brings, or by its end before the rank has left.
    pub(super) fn start(
        (rank, size): (usize, usize),
        stream: TcpStream,
        timeout: Duration,
        inbox: &Arc<Inbox>,
        ended: impl Fn(&Refusal) + Send + 'static,
    ) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        // Ends the connection to a machine that is gone without a word after half a minute, also while nothing is sent.
        let keep_alive = TcpKeepalive::new()
            .with_time(Duration::from_secs(15))
            .with_interval(Duration::from_secs(5))
            .with_retries(3);
        SockRef::from(&stream).set_tcp_keepalive(&keep_alive)?;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(Some(timeout))?;
        let inbox = Arc::clone(inbox);
        let mut reader = BufReader::new(Heard {
            rank,
            stream: stream.try_clone()?,
            inbox: Arc::clone(&inbox),
        });
        let stream = Arc::new(Mutex::new(stream));
        let answers = Arc::clone(&stream);
        let thread = thread::Builder::new().name(format!("headroom-rank-{rank}"));
        thread.spawn(move || {
            let error = loop {
                match Frame::read(&mut reader, size) {
                    // If it cannot be sent, the connection has ended, which the next read tells.
                    Ok(Frame::Ping) => drop(Frame::Pong.write(&mut *answers.lock())),
                    Ok(frame) => inbox.put(rank, frame).iter().for_each(&ended),
                    Err(error) => break error,
                }
            };
            let reason = match error.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                    "its connection ended, as it does when a process dies".to_owned()
                }
                _ => format!("its connection failed: {error}"),
            };
            inbox.closed(rank, reason).iter().for_each(&ended);
        })?;
        Ok(Self { rank, stream })
    }

    pub(super) fn send(&self, frame: &Frame) -> io::Result<()> {
        let mut stream = self.stream.lock();
        // After a part of a frame nothing else can be sent: the end of the connection is what the other rank notices.
        frame.write(&mut *stream).inspect_err(|_| {
            let _ = stream.shutdown(Shutdown::Both);
        })
    }
}

/// Notes that the rank has sent something.
struct Heard {
    rank: usize,
    stream: TcpStream,
    inbox: Arc<Inbox>,
}

impl Read for Heard {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(into)?;
        self.inbox.hear(self.rank);
        Ok(read)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Ends the thread that reads. A connection that is closed already is not shut down again.
        let _ = self.stream.lock().shutdown(Shutdown::Both);
    }
}

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
