use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The first bytes of a connection, with the version of what follows.
const GREETING: &[u8; 16] = b"headroom group 3";
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
