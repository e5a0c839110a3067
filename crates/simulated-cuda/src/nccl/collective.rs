//! One rank's part of a collective.

use std::sync::Arc;

use super::communicator::Communicator;
use super::fault::Fault;
use super::{Code, NcclResult};
use crate::device::Device;
use crate::status::{Outcome, Status, not_modelled};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    ReduceScatter,
    AllGather,
    Broadcast { root: usize },
}

/// A collective that a rank has called.
#[derive(Debug)]
pub struct Call {
    pub communicator: Arc<Communicator>,
    pub kind: Kind,
    pub send: u64,
    pub receive: u64,
    /// Elements of a piece: what one rank gives to an all-gather or gets from a reduce-scatter.
    pub count: u64,
    pub data_type: u32,
    pub number: u64,
    is_given: bool,
    is_refused: bool,
}

/// Numbers of 64 bits in front of the data of a file.
const HEADER: usize = 4;

impl Call {
    pub fn new(
        communicator: &Arc<Communicator>,
        kind: Kind,
        (send, receive): (u64, u64),
        count: usize,
        data_type: u32,
    ) -> NcclResult<Call> {
        width(data_type).ok_or(Code::INVALID_ARGUMENT)?;
        Ok(Call {
            communicator: communicator.clone(),
            kind,
            send,
            receive,
            count: count as u64,
            data_type,
            number: 0,
            is_given: false,
            is_refused: false,
        })
    }

    /// Bytes of a piece.
    fn piece(&self) -> u64 {
        self.count * width(self.data_type).unwrap_or(0)
    }

    fn sent(&self) -> u64 {
        let (rank, size) = (self.communicator.rank, self.communicator.size as u64);
        match self.kind {
            Kind::ReduceScatter => self.piece() * size,
            Kind::AllGather => self.piece(),
            Kind::Broadcast { root } if root == rank => self.piece(),
            Kind::Broadcast { .. } => 0,
        }
    }

    fn received(&self) -> u64 {
        match self.kind {
            Kind::AllGather => self.piece() * self.communicator.size as u64,
            _ => self.piece(),
        }
    }

    fn header(&self) -> [u64; HEADER] {
        let kind = match self.kind {
            Kind::ReduceScatter => 0,
            Kind::AllGather => 1,
            Kind::Broadcast { root } => 2 + root as u64,
        };
        [self.number, kind, self.count, self.data_type.into()]
    }

    /// Says what becomes of the memory that receives, as soon as the work is queued.
    pub fn queue(&self, device: &mut Device) {
        let known = device.knows(self.send);
        device.note_written(self.receive, self.received(), known);
        if device.keeps(self.receive) {
            device.mark_written(self.receive);
        }
    }

    /// Does this rank's part as far as the others allow; `None` until all is done.
    pub fn advance(&mut self, device: &mut Device) -> Option<Outcome> {
        let communicator = self.communicator.clone();
        if communicator.is_aborted() {
            return Some(Ok(()));
        }
        match communicator.fault {
            Some(Fault::Hang(nth) | Fault::AbortHang(nth)) if nth <= self.number => return None,
            Some(Fault::Async(nth)) if nth <= self.number => {
                communicator.fail(
                    Code::REMOTE_ERROR,
                    "a connection to another rank was closed",
                );
                return None;
            }
            _ => {}
        }
        if self.is_refused {
            return None;
        }
        let name = format!("call-{}", self.number);
        if !self.is_given {
            for (address, bytes) in [(self.send, self.sent()), (self.receive, self.received())] {
                if bytes > 0 && !device.memory.covers(address, bytes) {
                    return Some(Err(Status::ILLEGAL_ADDRESS));
                }
            }
            let header: Vec<u8> = self.header().map(u64::to_ne_bytes).concat();
            // SAFETY: checked to be live memory, which stays live while the device is locked.
            let mut data = unsafe { bytes_at(self.send, self.sent()) };
            let may_differ_from_zeros =
                device.computes || device.keeps(self.send) && device.is_written(self.send);
            if !may_differ_from_zeros {
                data = &[];
            }
            let given = communicator.exchange.give(&name, &[&header, data]);
            given.expect("the folder of the communicator can be written");
            self.is_given = true;
        }
        if !communicator.exchange.is_complete(&name) {
            return None;
        }
        self.check_agreement(&name)?;
        if device.keeps(self.receive) {
            self.compute(&name);
        }
        // All ranks have given to this call, so they have read what was given to the one before.
        communicator
            .exchange
            .clear(&format!("call-{}", self.number - 1));
        Some(Ok(()))
    }

    /// `None` for ever if ranks have called different collectives, which hang on real devices too.
    fn check_agreement(&mut self, name: &str) -> Option<()> {
        let own = self.header();
        for rank in 0..self.communicator.size {
            let header = self.take(name, rank, 0, HEADER as u64 * 8);
            let theirs: Vec<u64> = header
                .as_chunks()
                .0
                .iter()
                .copied()
                .map(u64::from_ne_bytes)
                .collect();
            if theirs != own {
                eprintln!(
                    "simulated NCCL: rank {} called {own:?}, rank {rank} {theirs:?} (number, collective, elements, type)",
                    self.communicator.rank
                );
                self.is_refused = true;
                return None;
            }
        }
        Some(())
    }

    fn take(&self, name: &str, rank: usize, start: u64, bytes: u64) -> Vec<u8> {
        let mut read = vec![0; bytes as usize];
        let taken = self
            .communicator
            .exchange
            .take(name, rank, start, &mut read);
        taken.expect("what a rank has given can be read");
        read
    }

    fn compute(&self, name: &str) {
        let (rank, size) = (self.communicator.rank, self.communicator.size);
        let (start, piece) = (HEADER as u64 * 8, self.piece());
        let result = match self.kind {
            Kind::Broadcast { root } => self.take(name, root, start, piece),
            Kind::AllGather => {
                let pieces = (0..size).map(|rank| self.take(name, rank, start, piece));
                pieces.collect::<Vec<_>>().concat()
            }
            Kind::ReduceScatter => {
                let start = start + piece * rank as u64;
                let pieces = (0..size).map(|rank| self.take(name, rank, start, piece));
                sum(self.data_type, pieces)
            }
        };
        let (from, to) = (result.as_ptr(), self.receive as *mut u8);
        // SAFETY: the memory was live when the work began, and frees on a stream wait behind a collective.
        unsafe { std::ptr::copy_nonoverlapping(from, to, result.len()) };
    }
}

/// # Safety
/// The bytes are live.
unsafe fn bytes_at<'a>(address: u64, bytes: u64) -> &'a [u8] {
    match bytes {
        0 => &[],
        // SAFETY: by contract.
        _ => unsafe { std::slice::from_raw_parts(address as *const u8, bytes as usize) },
    }
}

/// Bytes of an element of a `ncclDataType_t`.
fn width(data_type: u32) -> Option<u64> {
    match data_type {
        0 | 1 => Some(1),
        6 | 9 => Some(2),
        2 | 3 | 7 => Some(4),
        4 | 5 | 8 => Some(8),
        _ => None,
    }
}

fn sum(data_type: u32, pieces: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    macro_rules! sum {
        ($type:ty) => {
            pieces
                .reduce(|mut sum, piece| {
                    let (sums, pieces) = (sum.as_chunks_mut().0, piece.as_chunks().0);
                    for (sum, value) in sums.iter_mut().zip(pieces) {
                        let both = [*sum, *value].map(<$type>::from_ne_bytes);
                        *sum = (both[0] + both[1]).to_ne_bytes();
                    }
                    sum
                })
                .unwrap_or_default()
        };
    }
    match data_type {
        7 => sum!(f32),
        8 => sum!(f64),
        // Rounded after each addition.
        9 => sum!(half::bf16),
        _ => not_modelled("ncclReduceScatter of this type"),
    }
}
