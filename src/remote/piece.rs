use std::fs::File;
use std::io::{self, ErrorKind};

use bytes::Bytes;

use crate::files::read_exact_at;

/// Bytes that are requested at once.
pub(super) const PIECE: u64 = 4 << 20;

#[derive(Debug)]
pub(super) enum Piece {
    Memory(Bytes),
    /// Of the cache; its bytes were compared with their checksum.
    File(File),
}

impl Piece {
    pub(super) fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        match self {
            Self::Memory(bytes) => {
                let bytes = bytes
                    .get(at as usize..)
                    .and_then(|it| it.get(..buffer.len()));
                buffer.copy_from_slice(bytes.ok_or(ErrorKind::UnexpectedEof)?);
                Ok(())
            }
            Self::File(file) => read_exact_at(file, buffer, at),
        }
    }
}

/// The object's number, and that of the piece in it.
pub(super) type Key = (u64, u64);
