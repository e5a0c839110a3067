use std::io::{self, BufReader, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

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
        keep_alive(&stream)?;
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

/// Ends the connection to a machine that is gone without a word after half a minute, also while nothing is sent.
#[cfg(target_os = "linux")]
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 15),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 5),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
    ];
    for (level, option, value) in options {
        let value: libc::c_int = value;
        // SAFETY: the socket is open, and the place of the number outlives the call, which gets its size.
        let code = unsafe {
            let place = (&raw const value).cast();
            let size = size_of_val(&value) as libc::socklen_t;
            libc::setsockopt(stream.as_raw_fd(), level, option, place, size)
        };
        if code != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn keep_alive(_: &TcpStream) -> io::Result<()> {
    Ok(())
}

impl Drop for Link {
    fn drop(&mut self) {
        // Ends the thread that reads. A connection that is closed already is not shut down again.
        let _ = self.stream.lock().shutdown(Shutdown::Both);
    }
}
