//! Opaque handles (streams, events, pools, …): numbers that look like pointers.
//!
//! A handle contains its kind, its device and a serial number. Any library can find the device, handles of the wrong kind and
//! destroyed ones are detected, and dereferencing one crashes at once, because the addresses are not canonical.

use crate::status::{Outcome, Status};

/// The kind of object that a handle refers to.
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
    Dnn,
    Descriptor,
}

/// The decoded form of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    pub kind: Kind,
    pub device: usize,
    pub serial: u64,
}

impl Handle {
    /// The number that programs receive.
    pub fn raw(self) -> u64 {
        (self.kind as u64) << 56 | (self.device as u64) << 48 | self.serial
    }

    /// Decodes a handle, which must be of this kind.
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
