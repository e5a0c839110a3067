//! The work that a stream or the host knows to be finished. It decides whether a freed block may be used again.
//!
//! Each free is a numbered mark on its stream. Streams learn of each other's marks by waiting on events, and the host by
//! synchronizing.

use std::collections::HashMap;

/// A stream, for the order of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamKey {
    /// The legacy default stream of the device.
    Legacy,
    /// The default stream of one host thread.
    PerThread(u64),
    /// A created stream, by its handle.
    Created(u64),
}

/// A point in a stream's order of work.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    pub stream: StreamKey,
    pub number: u64,
}

/// The latest mark of each stream before a point; an event holds one.
pub type Snapshot = HashMap<StreamKey, u64>;

#[derive(Debug, Default)]
struct Progress {
    /// Number of the last mark on this stream.
    issued: u64,
    /// Last mark that the host has waited for.
    finished: u64,
    /// Last marks of other streams that this one has waited for.
    seen: Snapshot,
}

/// The progress of all streams of a device.
#[derive(Debug, Default)]
pub struct Clocks {
    streams: HashMap<StreamKey, Progress>,
}

fn raise(to: &mut Snapshot, stream: StreamKey, number: u64) {
    let known = to.entry(stream).or_default();
    *known = (*known).max(number);
}

impl Clocks {
    /// Puts a new mark on a stream.
    pub fn mark(&mut self, stream: StreamKey) -> Mark {
        let progress = self.streams.entry(stream).or_default();
        progress.issued += 1;
        Mark {
            stream,
            number: progress.issued,
        }
    }

    /// All marks before the end of a stream's work so far.
    pub fn record(&mut self, stream: StreamKey) -> Snapshot {
        let progress = self.streams.entry(stream).or_default();
        let mut snapshot = progress.seen.clone();
        raise(&mut snapshot, stream, progress.issued);
        snapshot
    }

    /// Orders later work on the stream after the snapshot.
    pub fn wait(&mut self, stream: StreamKey, snapshot: &Snapshot) {
        let progress = self.streams.entry(stream).or_default();
        for (&other, &number) in snapshot {
            raise(&mut progress.seen, other, number);
        }
    }

    /// Notes that the host has waited for the snapshot.
    pub fn finish(&mut self, snapshot: &Snapshot) {
        for (&stream, &number) in snapshot {
            let progress = self.streams.entry(stream).or_default();
            progress.finished = progress.finished.max(number);
        }
    }

    /// Notes that the host has waited for one stream.
    pub fn finish_stream(&mut self, stream: StreamKey) {
        let snapshot = self.record(stream);
        self.finish(&snapshot);
    }

    /// Notes that the host has waited for the whole device.
    pub fn finish_all(&mut self) {
        for progress in self.streams.values_mut() {
            progress.finished = progress.issued;
        }
    }

    /// Whether the host knows that the work before the mark is finished.
    pub fn passed(&self, mark: Mark) -> bool {
        self.streams
            .get(&mark.stream)
            .is_some_and(|progress| progress.finished >= mark.number)
    }

    /// Whether later work on this stream is ordered after the mark. `events`: whether waits on events count.
    pub fn precedes(&self, mark: Mark, stream: StreamKey, events: bool) -> bool {
        let seen = || {
            self.streams
                .get(&stream)
                .and_then(|progress| progress.seen.get(&mark.stream))
        };
        mark.stream == stream
            || self.passed(mark)
            || (events && seen().is_some_and(|&number| number >= mark.number))
    }
}
