//! How ranks find each other: rank 0 listens, and the others connect until it answers or the time is over.
//!
//! A rank is let in once it has said the job, the secret, this crate's version and the size that rank 0 has; the answer comes when all are there. A
//! rank that was started again may take its place again. Whatever else connects keeps nobody waiting and learns nothing of the job. Who joined is
//! told which ranks are missing.
//!
//! The connections to rank 0's children stay. Rank 0 tells every other rank where its parent in the tree listens, and there it joins in the same way.

use std::io;
use std::io::ErrorKind::{InvalidData, TimedOut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Control;
use super::frame::{Frame, Refusal};
use super::inbox::Deadline;
use super::link::{GUESTS, Guest, Link, is_pending, send};
use super::tree::Place;
use crate::error::{Error, GroupError, Result, invalid, missing};

/// The time between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(20);
/// The time between two looks at connections that have said nothing yet.
const LOOK: Duration = Duration::from_millis(2);

/// Where a rank listens for its children. Without an IP it is on rank 0's machine.
type Address = (Option<IpAddr>, u16);
/// The connection to a rank that has joined, and its port.
type Joined = (TcpStream, Option<u16>);

/// What rank 0, or a parent, answers.
#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    /// All are there. The parent's address, if it is another rank.
    Welcome(Option<Address>),
    Refused(String),
    Missing {
        ranks: Vec<usize>,
        waited: Duration,
    },
}

/// A rank of a job that meets the others, and what it says of itself when it joins.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Meeting {
    rank: usize,
    size: usize,
    /// The most branches of a rank in the tree.
    fan_out: usize,
    /// Where this rank listens for its children, if it has some.
    port: Option<u16>,
    #[serde(skip)]
    listener: Option<TcpListener>,
    /// Tells the ranks of this job from those of another that meet at the same place.
    job: String,
    /// What only the ranks of this job know: whoever does not is no rank.
    secret: String,
    /// This crate's version: other versions may send other things.
    version: String,
}

impl Meeting {
    pub(crate) fn new(
        (rank, size): (usize, usize),
        fan_out: usize,
        job: &str,
        secret: &str,
    ) -> Self {
        Self {
            rank,
            size,
            fan_out,
            port: None,
            listener: None,
            job: job.to_owned(),
            secret: secret.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Meets at `host:port`, where rank 0 listens.
    pub(crate) fn at(self, host: &str, port: u16, deadline: &mut Deadline) -> Result<Control> {
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
        listen().map_err(|e| self.unreachable(0, &format!("{host}:{port}"), &e))
    }

    /// As rank 0: waits for all others, and tells each who its parent is.
    pub(crate) fn host(&self, listener: TcpListener, deadline: &mut Deadline) -> Result<Control> {
        let guests = self.meet(
            &listener,
            &(1..self.size).collect::<Vec<_>>(),
            None,
            deadline,
        )?;
        // By rank, this one's too.
        let at = |(stream, port): &Joined| {
            let ip = stream.peer_addr().ok().map(|at| at.ip().to_canonical());
            (ip.filter(|ip| !ip.is_loopback()), port.unwrap_or(0))
        };
        let places = guests.iter().map(at);
        let places: Vec<_> = [(None, 0)].into_iter().chain(places).collect();
        let mut children = Vec::new();
        for (rank, (stream, _)) in (1..).zip(guests) {
            let parent = Place::of(rank, self.size, self.fan_out).parent;
            let parent = parent.filter(|parent| *parent > 0);
            let place = parent.and_then(|parent| places.get(parent));
            welcome(rank, &stream, place.copied())?;
            if parent.is_none() {
                children.push((rank, stream));
            }
        }
        self.connect(children, deadline.timeout())
            .map_err(|e| self.unreachable(0, &address(&listener), &e))
    }

    /// Waits for these ranks. Strangers, whatever they send or do not send, keep nobody waiting. If some are missing, those who joined learn which, and
    /// so does the `parent`, which would find this rank missing.
    fn meet(
        &self,
        listener: &TcpListener,
        ranks: &[usize],
        parent: Option<&mut TcpStream>,
        deadline: &mut Deadline,
    ) -> Result<Vec<Joined>> {
        let unreachable = |e: io::Error| self.unreachable(self.rank, &address(listener), &e);
        listener.set_nonblocking(true).map_err(unreachable)?;
        let mut joined: Vec<Option<Joined>> = Vec::new();
        joined.resize_with(ranks.len(), || None);
        let mut guests = Vec::new();
        while !are_here(&mut joined) {
            if deadline.left(Duration::ZERO).is_none() {
                let absent = ranks.iter().zip(&joined).filter(|(_, it)| it.is_none());
                let absent: Vec<_> = absent.map(|(rank, _)| *rank).collect();
                let waited = deadline.timeout();
                for (stream, _) in joined.iter().flatten() {
                    let ranks = absent.clone();
                    let _ = send(stream, &Reply::Missing { ranks, waited });
                }
                let error = missing(&absent, self.size, waited);
                if let Some(parent) = parent {
                    let (ranks, reason) = (absent, error.to_string());
                    let _ = Frame::Refusal(Refusal::Lost { ranks, reason }).write(parent);
                }
                return Err(error);
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
                        self.greet(hello, guest.stream, ranks, &mut joined);
                        None
                    }
                    Ok(None) if !guest.is_late() => Some(guest),
                    _ => None,
                })
                .collect();
            thread::sleep(LOOK);
        }
        Ok(joined.into_iter().flatten().collect())
    }

    /// Begins to read what these ranks send, and to give them signs of life.
    fn connect(&self, streams: Vec<(usize, TcpStream)>, timeout: Duration) -> io::Result<Control> {
        let place = Place::of(self.rank, self.size, self.fan_out);
        let parts = |rank: usize| {
            let branch = place.branches.iter().find(|branch| branch.start == rank);
            branch.map_or(self.size, ExactSizeIterator::len)
        };
        let streams: Vec<_> = streams
            .into_iter()
            .map(|(rank, stream)| ((rank, parts(rank)), stream))
            .collect();
        let mut control = Control::new(self.rank, self.size, place, timeout);
        let (inbox, links) = (&control.inbox, &control.links);
        let started = streams
            .into_iter()
            .map(|(from, stream)| Link::start(from, stream, timeout, inbox, links));
        *links.write() = started.collect::<io::Result<_>>()?;
        // One that was lost meanwhile could not be passed on.
        if let Some(refusal) = inbox.ended() {
            control.tell(&Frame::Refusal(refusal));
        }
        control.life.start(&control.links, timeout)?;
        Ok(control)
    }

    /// Lets a rank in, or says why not. Whoever does not know the secret learns nothing of the job.
    fn greet(
        &self,
        hello: Self,
        stream: TcpStream,
        ranks: &[usize],
        joined: &mut [Option<Joined>],
    ) {
        let place = ranks.binary_search(&hello.rank).ok();
        let place = place.and_then(|at| joined.get_mut(at));
        let refused = match place {
            _ if (&hello.job, &hello.secret) != (&self.job, &self.secret) => {
                "another job meets at this address and port, or HEADROOM_SECRET differs".to_owned()
            }
            _ if hello.version != self.version => format!(
                "it runs candle-headroom {}, rank 0 runs {}: start the same program on all ranks",
                hello.version, self.version
            ),
            _ if (hello.size, hello.fan_out) != (self.size, self.fan_out) => format!(
                "it was started as one of {} ranks, rank 0 as one of {}",
                hello.size, self.size
            ),
            Some(Some((other, _))) if !has_ended(other) => {
                format!("another process has joined as rank {} already", hello.rank)
            }
            // The first one, or one that was started again.
            Some(place) => {
                *place = Some((stream, hello.port));
                return;
            }
            None => format!(
                "rank {} of {} does not meet rank {}",
                self.rank, self.size, hello.rank
            ),
        };
        let _ = send(&stream, &Reply::Refused(refused));
    }

    /// As another rank: joins rank 0, which may start later or again, at the first of its addresses that answers; then its parent; and then its
    /// children join.
    pub(crate) fn join(
        mut self,
        hosts: &[String],
        port: u16,
        deadline: &mut Deadline,
    ) -> Result<Control> {
        let place = Place::of(self.rank, self.size, self.fan_out);
        let (mut stream, address) = self.reach(0, hosts, port, deadline)?;
        let parent = place.parent.unwrap_or(0);
        if let Some((ip, port)) = address {
            // On rank 0's machine, it is reached as rank 0 is.
            let ip = ip.map_or_else(|| stream.peer_addr().map(|at| at.ip()), Ok);
            let ip = ip.map_err(|e| self.unreachable(parent, "its address", &e))?;
            (stream, _) = self.reach(parent, &[ip.to_string()], port, deadline)?;
        }
        let mut links = Vec::new();
        if let Some(listener) = self.listener.take() {
            let children: Vec<_> = place.children().collect();
            let joined = self.meet(&listener, &children, Some(&mut stream), deadline)?;
            for (rank, (stream, _)) in children.into_iter().zip(joined) {
                welcome(rank, &stream, None)?;
                links.push((rank, stream));
            }
        }
        links.insert(0, (parent, stream));
        self.connect(links, deadline.timeout())
            .map_err(|e| self.unreachable(parent, "its address", &e))
    }

    /// Connects to a rank until it lets this one in. Returns also where this rank's parent is, if that is yet another one.
    fn reach(
        &mut self,
        to: usize,
        hosts: &[String],
        port: u16,
        deadline: &mut Deadline,
    ) -> Result<(TcpStream, Option<Address>)> {
        let address = format!("{}:{port}", hosts.join(" or "));
        let timeout = deadline.timeout();
        let mut last = io::Error::other("it has no address");
        let error = loop {
            let Some(left) = deadline.left(Duration::ZERO) else {
                let text = format!(
                    "no connection within {timeout:?} ({last}): check that rank {to} runs, and that no firewall is between"
                );
                break io::Error::other(text);
            };
            let mut found = hosts.iter().map(|host| connect(host, port, left));
            let found = found.find_map(|found| found.map_err(|error| last = error).ok());
            // A connection that ends without an answer was to a rank that is started again, or does not listen any more.
            match found.map(|stream| self.ask(stream, hosts.len() == 1, deadline)) {
                Some(Ok((stream, Reply::Welcome(parent)))) => return Ok((stream, parent)),
                Some(Ok((_, Reply::Refused(reason)))) => {
                    break io::Error::other(format!("refused: {reason}"));
                }
                Some(Ok((_, Reply::Missing { ranks, waited }))) => {
                    return Err(missing(&ranks, self.size, waited));
                }
                Some(Err(error)) if matches!(error.kind(), TimedOut | InvalidData) => break error,
                Some(Err(error)) => last = error,
                None => {}
            }
            thread::sleep(PAUSE);
        };
        Err(self.unreachable(to, &address, &error))
    }

    /// Says who this rank is, and waits for the answer, which comes when all have joined.
    fn ask(
        &mut self,
        stream: TcpStream,
        is_one_place: bool,
        deadline: &mut Deadline,
    ) -> io::Result<(TcpStream, Reply)> {
        let place = Place::of(self.rank, self.size, self.fan_out);
        if !place.branches.is_empty() && self.listener.is_none() {
            let listener = TcpListener::bind((interfaces(&stream, is_one_place)?, 0))?;
            self.port = Some(listener.local_addr()?.port());
            self.listener = Some(listener);
        }
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

    fn unreachable(&self, to: usize, address: &str, error: &io::Error) -> Error {
        let rank = self.rank;
        let join = match to == rank {
            true => "let the other ranks join".to_owned(),
            false => format!("join rank {to}"),
        };
        invalid!(Group, "rank {rank} cannot {join} at {address}: {error}")
    }
}

/// Tells a rank that all are there, and where its parent is if that is another rank.
fn welcome(rank: usize, stream: &TcpStream, parent: Option<Address>) -> Result<()> {
    send(stream, &Reply::Welcome(parent)).map_err(|error| {
        let lost = GroupError::PeerLost {
            ranks: vec![rank],
            call: "open".to_owned(),
            reason: error.to_string(),
        };
        lost.into()
    })
}

/// Where a rank listens for its children: on all interfaces, or on the loopback interface alone if that is the one place where ranks meet.
fn interfaces(stream: &TcpStream, is_one_place: bool) -> io::Result<IpAddr> {
    Ok(match stream.local_addr()?.ip() {
        ip if ip.is_loopback() && is_one_place => ip,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    })
}

fn address(listener: &TcpListener) -> String {
    let address = listener.local_addr().map(|address| address.to_string());
    address.unwrap_or_default()
}

/// Whether all ranks are here. One whose process ended meanwhile has to join again.
fn are_here(joined: &mut [Option<Joined>]) -> bool {
    if joined.iter().any(Option::is_none) {
        return false;
    }
    for place in joined.iter_mut() {
        place.take_if(|(stream, _)| has_ended(stream));
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

    use parking_lot::Mutex;
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
            json!({"rank": rank, "size": size, "fan_out": 16, "port": null, "job": job, "secret": secret, "version": version})
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { max_shrink_iters: 200, ..ProptestConfig::default() })]

        /// Whatever a stranger sends, only who knows job and secret becomes a rank, and only one that is missing.
        #[test]
        fn any_stranger(hello in hello(), noise in prop::option::weighted(0.3, prop::collection::vec(any::<u8>(), 0..40))) {
            let meeting = Meeting::new((0, 3), 16, "mine", "mine");
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
                meeting.greet(message, guest.stream, &[1, 2], &mut joined);
            }
            for (rank, place) in (1..).zip(joined) {
                let is_it = json!({"rank": rank, "size": 3, "fan_out": 16, "port": null, "job": "mine", "secret": "mine", "version": env!("CARGO_PKG_VERSION")});
                prop_assert_eq!(place.is_some(), noise.is_none() && hello == is_it);
            }
        }
    }

    /// Rank 2 of seven, with two branches each, has joined rank 0 and ends before it joins its parent, which is rank 1.
    #[test]
    fn one_that_ends_on_its_way_into_the_tree_is_named_by_all() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let hosts = ["127.0.0.1".to_owned()];
        let first = Mutex::new(Some(listener));
        let errors: Vec<_> = thread::scope(|scope| {
            let (hosts, first) = (&hosts, &first);
            let threads = (0..7).map(|rank| {
                scope.spawn(move || {
                    let mut deadline = Deadline::new(Duration::from_secs(1));
                    let mut meeting = Meeting::new((rank, 7), 2, "mine", "mine");
                    let control = match rank {
                        0 => meeting.host(first.lock().take().unwrap(), &mut deadline),
                        2 => {
                            let (stream, parent) =
                                meeting.reach(0, hosts, port, &mut deadline).unwrap();
                            assert!(
                                parent.is_some()
                                    && !stream.peer_addr().unwrap().ip().is_unspecified()
                            );
                            return None;
                        }
                        _ => meeting.join(hosts, port, &mut deadline),
                    };
                    Some(
                        control
                            .and_then(|control| control.gather("open", &[]))
                            .unwrap_err(),
                    )
                })
            });
            let threads: Vec<_> = threads.collect();
            let errors = threads.into_iter().map(|thread| thread.join().unwrap());
            errors.collect()
        });
        assert_eq!(errors.iter().flatten().count(), 6);
        for error in errors.into_iter().flatten() {
            let text = error.to_string();
            assert!(text.contains("rank 2 did not join within 1s"), "{text}");
        }
    }

    /// Of any length, also in a tree.
    #[test]
    fn rank_0_alone_gets_what_the_others_need_not_have() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let first = Mutex::new(Some(listener));
        let given = |rank: usize| vec![rank as u8; rank % 3 * 1000];
        thread::scope(|scope| {
            let first = &first;
            for rank in 0..9 {
                scope.spawn(move || {
                    let mut deadline = Deadline::new(Duration::from_secs(60));
                    let meeting = Meeting::new((rank, 9), 2, "mine", "mine");
                    let control = match rank {
                        0 => meeting.host(first.lock().take().unwrap(), &mut deadline),
                        _ => meeting.join(&["127.0.0.1".to_owned()], port, &mut deadline),
                    };
                    let control = control.unwrap();
                    let all = control.gather_at_first("state", &given(rank)).unwrap();
                    let expected = (0..9).map(given).collect();
                    assert_eq!(all, if rank == 0 { expected } else { Vec::new() });
                    assert_eq!(control.gather("barrier", &[]).unwrap().len(), 9);
                });
            }
        });
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
