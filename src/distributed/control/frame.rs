use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// What ranks send each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    /// A rank makes this call, the `number`-th, and gives its bytes.
    Call {
        number: u64,
        what: String,
        bytes: Vec<u8>,
    },
    /// What each rank gave, in the order of ranks.
    Answer {
        number: u64,
        all: Vec<Vec<u8>>,
    },
    /// The sender works, or waits for others: whoever waits for it may wait on.
    Working,
    /// There is no answer, or will be none.
    Refusal(Refusal),
    /// The sender asks for a sign of life, which is a `Pong`.
    Ping,
    Pong,
    /// The sender leaves the group in good health.
    Leave,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Refusal {
    /// Ranks died, hang or left. The group has ended.
    Lost { ranks: Vec<usize>, reason: String },
    /// What each rank called.
    DifferentCalls(Vec<String>),
}

/// The most bytes that a rank gives in one call.
pub(super) const MOST: usize = 1 << 30;
/// What else a call holds: its number, its name and their lengths.
const HEAD: u64 = 1 << 16;
/// The most bytes of a reason.
const REASON: u64 = 1 << 24;

impl Frame {
    pub(super) fn write(&self, into: &mut impl Write) -> io::Result<()> {
        let (kind, body) = match self {
            Self::Call {
                number,
                what,
                bytes,
            } => {
                let mut body = number.to_le_bytes().to_vec();
                put(&mut body, what.as_bytes());
                body.extend(bytes);
                (0, body)
            }
            Self::Answer { number, all } => {
                let mut body = number.to_le_bytes().to_vec();
                all.iter().for_each(|bytes| put(&mut body, bytes));
                (1, body)
            }
            Self::Working => (2, Vec::new()),
            Self::Refusal(refusal) => (3, serde_json::to_vec(refusal)?),
            Self::Leave => (4, Vec::new()),
            Self::Ping => (5, Vec::new()),
            Self::Pong => (6, Vec::new()),
        };
        // One write: with small packets on their way at once, a second one would wait for the first one's acknowledgement.
        let mut all = vec![kind];
        put(&mut all, &body);
        into.write_all(&all)
    }

    /// Reads a frame of a group of `size` ranks. A length that no frame of its kind has comes from a stranger or a broken stream.
    pub(super) fn read(from: &mut impl Read, size: usize) -> io::Result<Self> {
        let mut head = [0; 9];
        from.read_exact(&mut head)?;
        let [kind, length @ ..] = head;
        let length = u64::from_le_bytes(length);
        let call = MOST as u64 + HEAD;
        let most = match kind {
            0 => call,
            1 => call.saturating_mul(size as u64),
            3 => REASON,
            _ => 0,
        };
        if length > most {
            return Err(garbled());
        }
        let mut body = Vec::new();
        // Reads as much as comes: a wrong length must not make this process ask for memory.
        if from.take(length).read_to_end(&mut body)? as u64 != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut rest = body.as_slice();
        Ok(match kind {
            0 => Self::Call {
                number: number(&mut rest)?,
                what: String::from_utf8(take(&mut rest)?).map_err(|_| garbled())?,
                bytes: rest.to_vec(),
            },
            1 => {
                let (number, mut all) = (number(&mut rest)?, Vec::new());
                while !rest.is_empty() {
                    all.push(take(&mut rest)?);
                }
                Self::Answer { number, all }
            }
            2 => Self::Working,
            3 => Self::Refusal(serde_json::from_slice(rest)?),
            4 => Self::Leave,
            5 => Self::Ping,
            6 => Self::Pong,
            _ => return Err(garbled()),
        })
    }
}

fn garbled() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the bytes are not those of a rank",
    )
}

/// Appends bytes after their length.
fn put(into: &mut Vec<u8>, bytes: &[u8]) {
    into.extend((bytes.len() as u64).to_le_bytes());
    into.extend(bytes);
}

fn number(rest: &mut &[u8]) -> io::Result<u64> {
    let (number, after) = rest.split_first_chunk().ok_or_else(garbled)?;
    *rest = after;
    Ok(u64::from_le_bytes(*number))
}

/// Splits off what [`put`] appended.
fn take(rest: &mut &[u8]) -> io::Result<Vec<u8>> {
    let length = number(rest)?;
    let length = usize::try_from(length).map_err(|_| garbled())?;
    let (bytes, after) = rest.split_at_checked(length).ok_or_else(garbled)?;
    *rest = after;
    Ok(bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_and_damaged_ones_are_refused() {
        let frames = [
            Frame::Call {
                number: 7,
                what: "step".to_owned(),
                bytes: vec![1, 2, 3],
            },
            Frame::Answer {
                number: 7,
                all: vec![vec![], vec![9; 300]],
            },
            Frame::Working,
            Frame::Refusal(Refusal::DifferentCalls(vec!["step".to_owned()])),
            Frame::Leave,
            Frame::Ping,
            Frame::Pong,
        ];
        for frame in frames {
            let mut bytes = Vec::new();
            frame.write(&mut bytes).unwrap();
            assert_eq!(Frame::read(&mut bytes.as_slice(), 2).unwrap(), frame);
            for length in 0..bytes.len() {
                assert!(Frame::read(&mut &bytes[..length], 2).is_err());
            }
            // Flipped bits make an error or another frame, never a panic or a large allocation.
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let _ = Frame::read(&mut flipped.as_slice(), 2);
            }
        }
    }
}
