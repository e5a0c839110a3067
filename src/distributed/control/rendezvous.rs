use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Control;
use super::frame::Frame;
use super::link::Link;
use crate::error::{GroupError, Result};

/// The first bytes of a connection, with the version of what follows.
const GREETING: &[u8; 16] = b"headroom group 1";
/// The time between two attempts to connect, or to accept.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest that a stranger may keep rank 0 from greeting others.
const HANDSHAKE: Duration = Duration::from_secs(3);

/// What a rank says of itself when it joins.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    rank: usize,
    size: usize,
    /// The same for all ranks of a job.
    job: String,
    /// This crate's version: other versions may send other things.
    version: String,
}

/// What rank 0 answers.
#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Welcome,
    Refused(String),
    Missing { ranks: Vec<usize>, waited: Duration },
}

/// Where the ranks of a job meet.
#[derive(Debug, Clone)]
pub(crate) struct Meeting {
    /// Of this rank and the whole group.
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// Tells the ranks of this job from those of another that meet at the same place.
    pub(crate) job: String,
    /// For the meeting and for each call.
    pub(crate) timeout: Duration,
}

impl Meeting {
    /// Meets at `host:port`, where rank 0 listens.
    pub(crate) fn at(&self, host: &str, port: u16) -> Result<Control> {
        if self.size == 1 {
            return Ok(Control::alone(self.timeout));
        }
        match self.rank {
            0 => self.host(self.listen(host, port)?),
            _ => self.join(&[host.to_owned()], port),
        }
    }

    /// Listens on all interfaces, or on the loopback interface alone if that is where the others look.
    fn listen(&self, host: &str, port: u16) -> Result<TcpListener> {
        let unreachable = |e: io::Error| self.unreachable(format!("{host}:{port}"), &e);
        let found = (host, port).to_socket_addrs().map_err(unreachable)?;
        let addresses: Vec<_> = found.collect();
        let is_loopback = addresses.iter().all(|address| address.ip().is_loopback());
        let any = match addresses.first() {
            Some(first) if is_loopback => first.ip(),
            Some(first) if first.is_ipv6() => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        TcpListener::bind(SocketAddr::new(any, port)).map_err(|e| {
            let hint = "another program, or another job's rank 0, may use the port: choose another MASTER_PORT";
            let e = io::Error::new(e.kind(), format!("it cannot listen there: {e}; {hint}"));
            self.unreachable(format!("{host}:{port}"), &e)
        })
    }

    /// As rank 0: waits for all others.
    pub(crate) fn host(&self, listener: TcpListener) -> Result<Control> {
        let until = Instant::now() + self.timeout;
        let unreachable = |e: io::Error| {
            let address = listener.local_addr().map(|address| address.to_string());
            self.unreachable(address.unwrap_or_default(), &e)
        };
        listener.set_nonblocking(true).map_err(unreachable)?;
        let mut joined: Vec<Option<TcpStream>> = Vec::new();
        joined.resize_with(self.size.saturating_sub(1), || None);
        while joined.iter().any(Option::is_none) {
            match listener.accept() {
                Ok((stream, _)) => self.greet(stream, &mut joined),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                    thread::sleep(PAUSE / 10);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return Err(self.missing(joined));
                }
                // Such as a connection that was reset before it was accepted.
                Err(_) if Instant::now() < until => thread::sleep(PAUSE),
                Err(e) => return Err(unreachable(e)),
            }
        }
        let control = Control::new(0, self.size, self.timeout);
        let mut links = Vec::new();
        for (rank, stream) in (1..).zip(joined.into_iter().flatten()) {
            send(&stream, &Reply::Welcome).map_err(|error| GroupError::PeerLost {
                ranks: vec![rank],
                call: "open".to_owned(),
                reason: error.to_string(),
            })?;
            let others = Arc::clone(&control.links);
            let link = Link::start(rank, stream, self.timeout, &control.inbox, move |refusal| {
                for link in others.read().iter().filter(|link| link.rank != rank) {
                    let _ = link.send(&Frame::Refusal(refusal.clone()));
                }
            });
            links.push(link.map_err(unreachable)?);
        }
        *control.links.write() = links;
        // One that was lost meanwhile could not be passed on.
        if let Some(refusal) = control.inbox.ended() {
            control.tell(&Frame::Refusal(refusal));
        }
        Ok(control)
    }

    /// Lets a rank in, or says why not. A stranger gets no answer.
    fn greet(&self, stream: TcpStream, joined: &mut [Option<TcpStream>]) {
        let prepared = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_read_timeout(Some(HANDSHAKE)))
            .and_then(|()| stream.set_write_timeout(Some(HANDSHAKE)));
        let hello = prepared.and_then(|()| receive::<Hello>(&stream));
        let Ok(hello) = hello else { return };
        let version = env!("CARGO_PKG_VERSION");
        let place = hello.rank.checked_sub(1).and_then(|at| joined.get_mut(at));
        let refused = match place {
            _ if hello.job != self.job => Some(format!(
                "it belongs to another job (`{}`, this one is `{}`)",
                hello.job, self.job
            )),
            _ if hello.version != version => Some(format!(
                "it runs candle-headroom {}, rank 0 runs {version}: start the same program on all ranks",
                hello.version
            )),
            _ if hello.size != self.size => Some(format!(
                "it was started as one of {} ranks, rank 0 as one of {}",
                hello.size, self.size
            )),
            Some(None) => None,
            Some(Some(_)) => Some(format!(
                "another process has joined as rank {} already",
                hello.rank
            )),
            None => Some(format!(
                "a group of {} has no rank {}",
                self.size, hello.rank
            )),
        };
        match (
            refused,
            hello.rank.checked_sub(1).and_then(|at| joined.get_mut(at)),
        ) {
            (None, Some(place)) => *place = Some(stream),
            (refused, _) => {
                let _ = send(&stream, &Reply::Refused(refused.unwrap_or_default()));
            }
        }
    }

    /// Tells those who joined who is missing.
    fn missing(&self, joined: Vec<Option<TcpStream>>) -> crate::error::Error {
        let waited = self.timeout;
        let absent = (1..).zip(&joined).filter(|(_, stream)| stream.is_none());
        let ranks: Vec<usize> = absent.map(|(rank, _)| rank).collect();
        for stream in joined.iter().flatten() {
            let ranks = ranks.clone();
            let _ = send(stream, &Reply::Missing { ranks, waited });
        }
        let size = self.size;
        GroupError::Missing {
            ranks,
            size,
            waited,
        }
        .into()
    }

    /// As another rank: connects to rank 0, which may start later, at the first of its addresses that answers.
    pub(crate) fn join(&self, hosts: &[String], port: u16) -> Result<Control> {
        let until = Instant::now() + self.timeout;
        let address = format!("{}:{port}", hosts.join(" or "));
        let failed = |e: &io::Error| self.unreachable(address.clone(), e);
        let stream = loop {
            let mut last = io::Error::other("it has no address");
            let found = hosts.iter().find_map(|host| {
                connect(host, port, until)
                    .map_err(|error| last = error)
                    .ok()
            });
            match found {
                Some(stream) => break stream,
                None if Instant::now() < until => thread::sleep(PAUSE),
                None => {
                    let waited = self.timeout;
                    let text = format!(
                        "no connection within {waited:?} ({last}): check that rank 0 runs, and that no firewall is between"
                    );
                    return Err(failed(&io::Error::new(last.kind(), text)));
                }
            }
        };
        let hello = Hello {
            rank: self.rank,
            size: self.size,
            job: self.job.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        send(&stream, &hello).map_err(|e| failed(&e))?;
        // Rank 0 answers when all have joined.
        let left = until.saturating_duration_since(Instant::now()) + super::GRACE;
        stream
            .set_read_timeout(Some(left))
            .map_err(|e| failed(&e))?;
        match receive::<Reply>(&stream).map_err(|e| failed(&e))? {
            Reply::Welcome => {}
            Reply::Refused(reason) => {
                return Err(failed(&io::Error::other(format!("refused: {reason}"))));
            }
            Reply::Missing { ranks, waited } => {
                let size = self.size;
                return Err(GroupError::Missing {
                    ranks,
                    size,
                    waited,
                }
                .into());
            }
        }
        let control = Control::new(self.rank, self.size, self.timeout);
        let link =
            Link::start(0, stream, self.timeout, &control.inbox, |_| {}).map_err(|e| failed(&e))?;
        control.links.write().push(link);
        Ok(control)
    }

    fn unreachable(&self, address: String, error: &io::Error) -> crate::error::Error {
        GroupError::Rendezvous {
            rank: self.rank,
            address,
            reason: error.to_string(),
        }
        .into()
    }
}

fn connect(host: &str, port: u16, until: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no such host");
    for address in (host, port).to_socket_addrs()? {
        let left = until.saturating_duration_since(Instant::now());
        // A part of the time, because the next address may be the one that answers.
        let limit = left.min(Duration::from_secs(5)).max(PAUSE);
        match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Sends a greeting and a short message.
fn send(mut stream: &TcpStream, message: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u16::try_from(body.len()).map_err(io::Error::other)?;
    let bytes = [GREETING.as_slice(), &length.to_le_bytes(), &body].concat();
    stream.write_all(&bytes)
}

fn receive<T: for<'a> Deserialize<'a>>(mut stream: &TcpStream) -> io::Result<T> {
    let mut head = [0; GREETING.len() + 2];
    stream.read_exact(&mut head)?;
    let (greeting, length) = head.split_at(GREETING.len());
    if greeting != GREETING {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "what answers there is no rank of this crate's version",
        ));
    }
    let length = length
        .first_chunk()
        .map_or(0, |length| u16::from_le_bytes(*length));
    let mut body = vec![0; length.into()];
    stream.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}
