//! Finding the end of a JPEG file. The decoder fills what a truncated file lacks with grey, without an error.

use memchr::memchr;

const START: [u8; 2] = [0xFF, 0xD8];
const END: u8 = 0xD9;

/// Returns whether bytes are the beginning of a JPEG file whose end is missing.
pub(super) fn is_truncated(bytes: &[u8]) -> bool {
    bytes.starts_with(&START) && !has_end(bytes.get(START.len()..).unwrap_or_default())
}

/// Walks over segments, which state their length, and the compressed data between them, in which a marker cannot occur.
fn has_end(mut rest: &[u8]) -> bool {
    while let Some(at) = memchr(0xFF, rest) {
        let Some((marker, after)) = rest.get(at + 1..).and_then(<[u8]>::split_first) else {
            return false;
        };
        rest = match *marker {
            END => return true,
            // Filling before a marker.
            0xFF => rest.get(at + 1..).unwrap_or_default(),
            // An escaped byte of the data, or a marker without a segment.
            0x00 | 0x01 | 0xD0..=0xD8 => after,
            _ => match after {
                [high, low, ..] => {
                    let len = usize::from(u16::from_be_bytes([*high, *low]));
                    after.get(len..).unwrap_or_default()
                }
                _ => return false,
            },
        };
    }
    false
}
