//! The connection to another rank, and strangers before they are one.
//!
//! A frame is sent whole, or the connection ends. A thread reads each connection, so that the end of a process is noticed at once; keep-alive probes
//! end the one to a machine that has vanished after half a minute. Another thread gives signs of life while this rank works or waits.

use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard, RwLock};
use serde::{Deserialize, Serialize};
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
    /// Starts reading from a rank, whose messages have at most so many `parts`. A write to a rank that does not read fails after `timeout`. If a
    /// message ends the group, or the connection closes before the rank has left, the thread notifies the other `links`.
    pub(super) fn start(
        (rank, parts): (usize, usize),
        stream: TcpStream,
        timeout: Duration,
        inbox: &Arc<Inbox>,
        links: &Arc<RwLock<Vec<Self>>>,
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
        let links = Arc::clone(links);
        let ended = move |refusal: Refusal| {
            let links = links.read();
            let others = links.iter().filter(|link| link.rank != rank);
            tell(others, &Frame::Refusal(refusal));
        };
        let thread = thread::Builder::new().name(format!("headroom-rank-{rank}"));
        thread.spawn(move || {
            let error = loop {
                match Frame::read(&mut reader, parts) {
                    // If it cannot be sent, the connection has ended, which the next read tells.
                    Ok(Frame::Ping) => {
                        let exchanges = inbox.exchanges.load(Ordering::Relaxed);
                        drop(Frame::Pong { exchanges }.write(&mut *answers.lock()));
                    }
                    Ok(frame) => inbox.put(rank, frame).into_iter().for_each(&ended),
                    Err(error) => break error,
                }
            };
            let reason = match error.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                    "its connection ended, as it does when a process dies".to_owned()
                }
                _ => format!("its connection failed: {error}"),
            };
            inbox.closed(rank, reason).into_iter().for_each(&ended);
        })?;
        Ok(Self { rank, stream })
    }

    fn send(mut stream: MutexGuard<'_, TcpStream>, frame: &[u8]) {
        // After a part of a frame nothing else can be sent: the end of the connection is what both ranks notice.
        if stream.write_all(frame).is_err() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Sends a frame to these ranks. Where that fails, the thread that reads the connection reports it.
pub(super) fn tell<'a>(links: impl IntoIterator<Item = &'a Link>, frame: &Frame) {
    // An answer is long, and the same for all.
    let Ok(bytes) = frame.to_bytes() else { return };
    let links = links.into_iter();
    links.for_each(|link| Link::send(link.stream.lock(), &bytes));
}

/// Gives a sign of life to those ranks to which nothing is being sent: one that reads nothing does not keep it from the others.
fn tell_life(links: &[Link]) {
    let Ok(bytes) = Frame::Working.to_bytes() else {
        return;
    };
    let streams = links.iter().filter_map(|link| link.stream.try_lock());
    streams.for_each(|stream| Link::send(stream, &bytes));
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
                    tell_life(&links.read());
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

/// The first bytes of a connection, with the version of what follows.
const GREETING: &[u8; 16] = b"headroom group 5";
/// What comes before a message: the greeting and the message's length.
const HEAD: usize = GREETING.len() + 2;
/// The longest that a stranger may say nothing.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most strangers at a time.
pub(super) const GUESTS: usize = 1024;

/// The other side of a connection, of which nothing is known yet. Nothing here waits for it.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) stream: TcpStream,
    since: Instant,
    bytes: Vec<u8>,
}

impl Guest {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            since: Instant::now(),
            bytes: Vec::new(),
        })
    }

    /// Returns its message when all of it has come.
    pub(super) fn message<T: for<'a> Deserialize<'a>>(&mut self) -> io::Result<Option<T>> {
        loop {
            let length = self.bytes.get(GREETING.len()..HEAD);
            let length =
                length.and_then(|length| Some(u16::from_le_bytes(length.try_into().ok()?)));
            let end = HEAD + usize::from(length.unwrap_or(0));
            if let (Some(_), Some(body)) = (length, self.bytes.get(HEAD..end)) {
                return Ok(Some(serde_json::from_slice(body)?));
            }
            let mut more = [0; 512];
            let wanted = (end - self.bytes.len()).min(more.len());
            let read = match more.get_mut(..wanted).map(|more| self.stream.read(more)) {
                Some(Err(error)) if is_pending(&error) => return Ok(None),
                Some(read) => read?,
                None => 0,
            };
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.bytes.extend(more.iter().take(read));
            let begun = self.bytes.len().min(GREETING.len());
            if self.bytes.get(..begun) != GREETING.get(..begun) {
                let problem = "what answers there is no rank of this crate's version";
                return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
            }
        }
    }

    /// Whether it has had its time.
    pub(super) fn is_late(&self) -> bool {
        self.since.elapsed() > PATIENCE
    }
}

/// Whether an operation that does not block has only to be tried again.
pub(super) fn is_pending(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Sends a greeting and a short message.
pub(super) fn send(mut stream: &TcpStream, message: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u16::try_from(body.len()).map_err(io::Error::other)?;
    let bytes = [GREETING.as_slice(), &length.to_le_bytes(), &body].concat();
    stream.write_all(&bytes)
}
