//! How ranks find each other: rank 0 listens, and the others connect until it answers or the time is over.
//!
//! A rank is let in once it has said the job, the secret, this crate's version and the size that rank 0 has; the answer comes when all are there. A
//! rank that was started again may take its place again. Whatever else connects keeps nobody waiting and learns nothing of the job. Who joined is
//! told which ranks are missing.

use std::io;
use std::io::ErrorKind::{InvalidData, TimedOut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Control;
use super::frame::Frame;
use super::inbox::Deadline;
use super::link::{GUESTS, Guest, Link, is_pending, send};
use crate::error::{Error, GroupError, Result, invalid, missing};

/// The time between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(20);
/// The time between two looks at connections that have said nothing yet.
const LOOK: Duration = Duration::from_millis(2);

/// What rank 0 answers.
#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Welcome,
    Refused(String),
    Missing { ranks: Vec<usize>, waited: Duration },
}

/// A rank of a job that meets the others, and what it says of itself when it joins.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Meeting {
    rank: usize,
    size: usize,
    /// Tells the ranks of this job from those of another that meet at the same place.
    job: String,
    /// What only the ranks of this job know: whoever does not is no rank.
    secret: String,
    /// This crate's version: other versions may send other things.
    version: String,
}

impl Meeting {
    pub(crate) fn new(rank: usize, size: usize, job: &str, secret: &str) -> Self {
        Self {
            rank,
            size,
            job: job.to_owned(),
            secret: secret.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Meets at `host:port`, where rank 0 listens.
    pub(crate) fn at(&self, host: &str, port: u16, deadline: &mut Deadline) -> Result<Control> {
        if self.size == 1 {
            return Ok(Control::alone(deadline.timeout()));
        }
        match self.rank {
            0 => self.host(self.listen(host, port)?, deadline),
            _ => self.join(&[host.to_owned()], port, deadline),
        }
    }

    /// Listens on all interfaces, or on the loopback interface alone if that is where the others look.
    fn listen(&self, host: &str, port: u16) -> Result<TcpListener> {
        let listen = || {
            let addresses: Vec<_> = (host, port).to_socket_addrs()?.collect();
            let is_loopback = addresses.iter().all(|address| address.ip().is_loopback());
            let any = match addresses.first() {
                Some(first) if is_loopback => first.ip(),
                Some(first) if first.is_ipv6() => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
                _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            };
            TcpListener::bind(SocketAddr::new(any, port)).map_err(|e| {
                let hint = "another program, or another job's rank 0, may use the port: choose another MASTER_PORT";
                io::Error::other(format!("it cannot listen there: {e}; {hint}"))
            })
        };
        listen().map_err(|e| self.unreachable(format!("{host}:{port}"), &e))
    }

    /// As rank 0: waits for all others. Strangers, whatever they send or do not send, keep nobody waiting.
    pub(crate) fn host(&self, listener: TcpListener, deadline: &mut Deadline) -> Result<Control> {
        let unreachable = |e: io::Error| {
            let address = listener.local_addr().map(|address| address.to_string());
            self.unreachable(address.unwrap_or_default(), &e)
        };
        listener.set_nonblocking(true).map_err(unreachable)?;
        let mut joined: Vec<Option<TcpStream>> = Vec::new();
        joined.resize_with(self.size.saturating_sub(1), || None);
        let mut guests = Vec::new();
        while !are_here(&mut joined) {
            if deadline.left(Duration::ZERO).is_none() {
                return Err(self.give_up(&joined, deadline.timeout()));
            }
            // An error here is that of a connection that was reset before it was accepted.
            while guests.len() < GUESTS
                && let Ok((stream, _)) = listener.accept()
            {
                guests.extend(Guest::new(stream).ok());
            }
            guests = (guests.into_iter())
                .filter_map(|mut guest: Guest| match guest.message::<Self>() {
                    Ok(Some(hello)) => {
                        self.greet(hello, guest.stream, &mut joined);
                        None
                    }
                    Ok(None) if !guest.is_late() => Some(guest),
                    _ => None,
                })
                .collect();
            thread::sleep(LOOK);
        }
        let joined: Vec<_> = (1..).zip(joined.into_iter().flatten()).collect();
        for (rank, stream) in &joined {
            send(stream, &Reply::Welcome).map_err(|error| GroupError::PeerLost {
                ranks: vec![*rank],
                call: "open".to_owned(),
                reason: error.to_string(),
            })?;
        }
        self.connect(joined, deadline.timeout())
            .map_err(unreachable)
    }

    /// Begins to read what these ranks send, and to give them signs of life.
    fn connect(&self, streams: Vec<(usize, TcpStream)>, timeout: Duration) -> io::Result<Control> {
        let mut control = Control::new(self.rank, self.size, timeout);
        let (inbox, links) = (&control.inbox, &control.links);
        let started = streams
            .into_iter()
            .map(|(rank, stream)| Link::start((rank, self.size), stream, timeout, inbox, links));
        *links.write() = started.collect::<io::Result<_>>()?;
        // One that was lost meanwhile could not be passed on.
        if let Some(refusal) = inbox.ended() {
            control.tell(&Frame::Refusal(refusal));
        }
        control.life.start(&control.links, timeout)?;
        Ok(control)
    }

    /// Lets a rank in, or says why not. Whoever does not know the secret learns nothing of the job.
    fn greet(&self, hello: Self, stream: TcpStream, joined: &mut [Option<TcpStream>]) {
        let place = hello.rank.checked_sub(1).and_then(|at| joined.get_mut(at));
        let refused = match place {
            _ if (&hello.job, &hello.secret) != (&self.job, &self.secret) => {
                "another job meets at this address and port, or HEADROOM_SECRET differs".to_owned()
            }
            _ if hello.version != self.version => format!(
                "it runs candle-headroom {}, rank 0 runs {}: start the same program on all ranks",
                hello.version, self.version
            ),
            _ if hello.size != self.size => format!(
                "it was started as one of {} ranks, rank 0 as one of {}",
                hello.size, self.size
            ),
            Some(Some(other)) if !has_ended(other) => {
                format!("another process has joined as rank {} already", hello.rank)
            }
            // The first one, or one that was started again.
            Some(place) => {
                *place = Some(stream);
                return;
            }
            None => format!("a group of {} has no rank {}", self.size, hello.rank),
        };
        let _ = send(&stream, &Reply::Refused(refused));
    }

    /// Tells those who joined who is missing.
    fn give_up(&self, joined: &[Option<TcpStream>], waited: Duration) -> Error {
        let absent = (1..).zip(joined).filter(|(_, stream)| stream.is_none());
        let ranks: Vec<usize> = absent.map(|(rank, _)| rank).collect();
        for stream in joined.iter().flatten() {
            let ranks = ranks.clone();
            let _ = send(stream, &Reply::Missing { ranks, waited });
        }
        missing(&ranks, self.size, waited)
    }

    /// As another rank: connects to rank 0, which may start later or again, at the first of its addresses that answers.
    pub(crate) fn join(
        &self,
        hosts: &[String],
        port: u16,
        deadline: &mut Deadline,
    ) -> Result<Control> {
        let address = format!("{}:{port}", hosts.join(" or "));
        let failed = |e: &io::Error| self.unreachable(address.clone(), e);
        let timeout = deadline.timeout();
        let mut last = io::Error::other("it has no address");
        let stream = loop {
            let Some(left) = deadline.left(Duration::ZERO) else {
                let text = format!(
                    "no connection within {timeout:?} ({last}): check that rank 0 runs, and that no firewall is between"
                );
                return Err(failed(&io::Error::other(text)));
            };
            let mut found = hosts.iter().map(|host| connect(host, port, left));
            let found = found.find_map(|found| found.map_err(|error| last = error).ok());
            // A connection that ends without an answer was to a rank 0 that is started again, or does not listen any more.
            match found.map(|stream| self.ask(stream, deadline)) {
                Some(Ok((stream, Reply::Welcome))) => break stream,
                Some(Ok((_, Reply::Refused(reason)))) => {
                    return Err(failed(&io::Error::other(format!("refused: {reason}"))));
                }
                Some(Ok((_, Reply::Missing { ranks, waited }))) => {
                    return Err(missing(&ranks, self.size, waited));
                }
                Some(Err(error)) if matches!(error.kind(), TimedOut | InvalidData) => {
                    return Err(failed(&error));
                }
                Some(Err(error)) => last = error,
                None => {}
            }
            thread::sleep(PAUSE);
        };
        self.connect(vec![(0, stream)], timeout)
            .map_err(|e| failed(&e))
    }

    /// Says who this rank is, and waits for the answer, which comes when all have joined.
    fn ask(&self, stream: TcpStream, deadline: &mut Deadline) -> io::Result<(TcpStream, Reply)> {
        send(&stream, self)?;
        let mut guest = Guest::new(stream)?;
        // Rank 0, which knows who is missing, says so first.
        while deadline.left(super::GRACE).is_some() {
            if let Some(reply) = guest.message::<Reply>()? {
                return Ok((guest.stream, reply));
            }
            thread::sleep(LOOK);
        }
        let timeout = deadline.timeout();
        let text = format!("it was reached, and said nothing within {timeout:?}");
        Err(io::Error::new(TimedOut, text))
    }

    fn unreachable(&self, address: String, error: &io::Error) -> Error {
        let rank = self.rank;
        let join = match rank {
            0 => "let the other ranks join",
            _ => "join rank 0",
        };
        invalid!(Group, "rank {rank} cannot {join} at {address}: {error}")
    }
}

/// Whether all ranks are here. One whose process ended meanwhile has to join again.
fn are_here(joined: &mut [Option<TcpStream>]) -> bool {
    if joined.iter().any(Option::is_none) {
        return false;
    }
    for place in joined.iter_mut() {
        place.take_if(|stream| has_ended(stream));
    }
    joined.iter().all(Option::is_some)
}

/// Whether the other side of a connection that does not block has closed it.
fn has_ended(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => !is_pending(&error),
    }
}

fn connect(host: &str, port: u16, left: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no such host");
    for address in (host, port).to_socket_addrs()? {
        // A part of the time, because the next address may be the one that answers.
        let limit = left.min(Duration::from_secs(5)).max(PAUSE);
        match TcpStream::connect_timeout(&address, limit) {
            // To a port of this machine at which nobody listens, a connection may have that port itself.
            Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {
                last = io::Error::new(io::ErrorKind::ConnectionRefused, "nobody listens there");
            }
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;
    use proptest::sample::select;
    use serde_json::json;

    use super::*;

    /// What a stranger says of itself, mostly as a rank does.
    fn hello() -> impl Strategy<Value = serde_json::Value> {
        let one_of = |values: serde_json::Value| select(values.as_array().unwrap().clone());
        let number = || one_of(json!([0, 1, 2, 3, -1, u64::MAX, "1"]));
        let text = || one_of(json!(["mine", "mine", "", null]));
        let version = one_of(json!([env!("CARGO_PKG_VERSION"), "0.0.0", []]));
        let all = (number(), number(), text(), text(), version);
        all.prop_map(|(rank, size, job, secret, version)| {
            json!({"rank": rank, "size": size, "job": job, "secret": secret, "version": version})
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { max_shrink_iters: 200, ..ProptestConfig::default() })]

        /// Whatever a stranger sends, only who knows job and secret becomes a rank, and only one that is missing.
        #[test]
        fn any_stranger(hello in hello(), noise in prop::option::weighted(0.3, prop::collection::vec(any::<u8>(), 0..40))) {
            let meeting = Meeting::new(0, 3, "mine", "mine");
            let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let mut stranger = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            match &noise {
                Some(noise) => stranger.write_all(noise).unwrap(),
                None => send(&stranger, &hello).unwrap(),
            }
            stranger.shutdown(std::net::Shutdown::Write).unwrap();
            let mut guest = Guest::new(listener.accept().unwrap().0).unwrap();
            let message = loop {
                match guest.message::<Meeting>() {
                    Ok(None) => thread::yield_now(),
                    Ok(Some(message)) => break Some(message),
                    Err(_) => break None,
                }
            };
            let mut joined = vec![None, None];
            if let Some(message) = message {
                meeting.greet(message, guest.stream, &mut joined);
            }
            for (rank, place) in (1..).zip(joined) {
                let is_it = json!({"rank": rank, "size": 3, "job": "mine", "secret": "mine", "version": env!("CARGO_PKG_VERSION")});
                prop_assert_eq!(place.is_some(), noise.is_none() && hello == is_it);
            }
        }
    }

    /// Linux tries the ports that a connection can have one after another, so whoever connects to one of them often enough gets that port itself.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_connection_to_itself_is_not_one_to_rank_0() {
        let port = loop {
            let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            // Listeners get every second port first, and connections the others.
            let port = taken.local_addr().unwrap().port() ^ 1;
            if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                break port;
            }
        };
        let attempts = (0..500_000).map(|_| connect("127.0.0.1", port, Duration::from_secs(1)));
        let errors = attempts.map(|done| done.expect_err("nobody listens").to_string());
        let mut errors = errors.skip_while(|error| error != "nobody listens there");
        assert!(errors.next().is_some(), "no connection was to itself");
    }
}
