//! Pieces of objects that are there, and those that are being loaded.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use crate::fixed_file::read_exact_at;

/// The object's number, and that of the piece in it.
pub(super) type Key = (u64, u64);

/// Open files count as much as what fills the memory.
const FILES: u64 = 256;

#[derive(Debug, Clone)]
pub(super) enum Piece {
    Memory(Bytes),
    /// Of the cache; its bytes were compared with their checksum.
    File(Arc<File>),
}

impl Piece {
    pub(super) fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        match self {
            Self::Memory(bytes) => {
                let start = usize::try_from(at).map_err(io::Error::other)?;
                let bytes = bytes.get(start..).unwrap_or_default();
                let bytes = bytes.get(..buffer.len());
                buffer.copy_from_slice(bytes.ok_or(ErrorKind::UnexpectedEof)?);
                Ok(())
            }
            Self::File(file) => read_exact_at(file, buffer, at),
        }
    }
}

#[derive(Debug)]
enum Slot {
    Loading,
    /// With the time when it was used last.
    Ready(Piece, u64),
    /// Until one reader has the error.
    Failed(io::Error),
}

#[derive(Debug)]
pub(super) struct Pieces {
    memory: u64,
    slots: Mutex<Slots>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Slots {
    all: HashMap<Key, Slot>,
    /// Counts uses.
    clock: u64,
}

impl Pieces {
    pub(super) fn new(memory: u64) -> Self {
        Self {
            memory,
            slots: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    /// Bytes that pieces may take.
    pub(super) fn memory(&self) -> u64 {
        self.memory
    }

    pub(super) fn holds(&self, key: Key) -> bool {
        self.slots.lock().all.contains_key(&key)
    }

    /// Whether the caller has to load it, and to call [`end`](Self::end).
    pub(super) fn begin(&self, key: Key) -> bool {
        let mut slots = self.slots.lock();
        let is_new = !slots.all.contains_key(&key);
        if is_new {
            slots.all.insert(key, Slot::Loading);
        }
        is_new
    }

    /// Takes what was loaded, if it is kept. Pieces that were not used for the longest time make room for it.
    pub(super) fn end(&self, key: Key, loaded: Option<io::Result<Piece>>) {
        let mut slots = self.slots.lock();
        slots.clock += 1;
        let now = slots.clock;
        match loaded {
            Some(Ok(piece)) => slots.all.insert(key, Slot::Ready(piece, now)),
            Some(Err(error)) => slots.all.insert(key, Slot::Failed(error)),
            None => slots.all.remove(&key),
        };
        let ready = slots.all.iter().filter_map(|(key, slot)| match slot {
            Slot::Ready(Piece::Memory(bytes), used) => Some((*used, *key, bytes.len() as u64)),
            Slot::Ready(Piece::File(_), used) => Some((*used, *key, self.memory / FILES)),
            _ => None,
        });
        let mut ready: Vec<_> = ready.collect();
        ready.sort_unstable();
        let mut total: u64 = ready.iter().map(|(_, _, bytes)| bytes).sum();
        for (_, oldest, bytes) in ready {
            if total <= self.memory {
                break;
            }
            slots.all.remove(&oldest);
            total -= bytes;
        }
        self.ended.notify_all();
    }

    /// Waits until it is loaded; `None` if nobody loads it.
    pub(super) fn wait(&self, key: Key) -> Option<io::Result<Piece>> {
        let mut slots = self.slots.lock();
        loop {
            slots.clock += 1;
            let now = slots.clock;
            match slots.all.get_mut(&key)? {
                Slot::Loading => self.ended.wait(&mut slots),
                Slot::Ready(piece, used) => {
                    *used = now;
                    return Some(Ok(piece.clone()));
                }
                Slot::Failed(_) => break,
            }
        }
        match slots.all.remove(&key) {
            Some(Slot::Failed(error)) => Some(Err(error)),
            _ => None,
        }
    }

    pub(super) fn forget(&self, is_gone: impl Fn(Key) -> bool) {
        self.slots.lock().all.retain(|key, _| !is_gone(*key));
    }
}
