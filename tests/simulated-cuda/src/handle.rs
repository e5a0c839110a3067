//! Opaque handles (streams, events, pools, …): numbers that only look like pointers.
//!
//! A handle names its kind, its device and a serial number, so any library finds the device, a handle of the wrong
//! kind or one that was destroyed is noticed, and dereferencing one crashes at once (the addresses are not canonical).

use crate::status::{Outcome, Status};

/// What a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Context = 0x21,
    Stream,
    Event,
    Module,
    Function,
    Pool,
    Blas,
    Random,
    Monitor,
}

/// The decoded form of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    pub kind: Kind,
    pub device: usize,
    pub serial: u64,
}

impl Handle {
    /// The number that programs hold.
    pub fn raw(self) -> u64 {
        (self.kind as u64) << 56 | (self.device as u64) << 48 | self.serial
    }

    /// Decodes a handle that has to be of this kind.
    pub fn decode(raw: u64, kind: Kind) -> Outcome<Handle> {
        if raw >> 56 != kind as u64 {
            return Err(Status::INVALID_HANDLE);
        }
        Ok(Handle {
            kind,
            device: (raw >> 48 & 0xff) as usize,
            serial: raw & 0xffff_ffff_ffff,
        })
    }
}
