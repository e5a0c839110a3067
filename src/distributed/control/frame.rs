//! Messages between ranks, as bytes: four for the length of a head of JSON, the head, and the bytes whose lengths it states.
//!
//! Any bytes may come from a stranger, or from a stream that broke: they are read as a frame or as an error, and never make this process ask for more
//! memory than what has come.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// What ranks send each other. On the wire, a head of JSON comes first, with the lengths of the bytes that follow it.
///
/// What all parts begin with is sent once: ranks that agree say the same, and all of them get what each has said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Frame {
    /// The ranks of a branch make a call, the `number`-th, and give their bytes, in the order of ranks.
    Call {
        number: u64,
        /// What they call, and how many ranks one after another call it.
        calls: Vec<(String, usize)>,
        #[serde(skip)]
        parts: Vec<Vec<u8>>,
    },
    /// What each rank gave, in the order of ranks.
    Answer {
        number: u64,
        #[serde(skip)]
        all: Vec<Vec<u8>>,
    },
    /// The sender works, or waits for others: whoever waits for it may wait on.
    Working,
    /// There is no answer, or will be none.
    Refusal(Refusal),
    /// The sender asks for a sign of life, which is a `Pong`.
    Ping,
    /// The sender has come to this many exchanges by an engine.
    Pong { exchanges: u64 },
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
/// The most bytes of a head.
const HEAD: u32 = 1 << 24;

impl Frame {
    pub(super) fn write(&self, into: &mut impl Write) -> io::Result<()> {
        into.write_all(&self.to_bytes()?)
    }

    /// For one write: with small packets on their way at once, a second one would wait for the first one's acknowledgement.
    pub(super) fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let parts: &[_] = match self {
            Self::Call { parts, .. } | Self::Answer { all: parts, .. } => parts,
            _ => &[],
        };
        let beginning = beginning(parts);
        let rests = || parts.iter().filter_map(|part| part.get(beginning.len()..));
        let lengths: Vec<_> = rests().map(<[u8]>::len).collect();
        let head = serde_json::to_vec(&(self, beginning.len(), lengths))?;
        let mut bytes = (head.len() as u32).to_le_bytes().to_vec();
        bytes.extend(head);
        bytes.extend(beginning);
        rests().for_each(|rest| bytes.extend(rest));
        Ok(bytes)
    }

    /// Reads a frame, in which a call or an answer has at most so many `parts`. A length that no frame of its kind has comes from a stranger or a broken
    /// stream.
    pub(super) fn read(from: &mut impl Read, parts: usize) -> io::Result<Self> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length);
        if length > HEAD {
            return Err(garbled());
        }
        let head = exactly(from, u64::from(length), Vec::new())?;
        let (mut frame, beginning, lengths): (Self, u64, Vec<u64>) = serde_json::from_slice(&head)?;
        let most = match frame {
            Self::Call { .. } | Self::Answer { .. } => parts,
            _ => 0,
        };
        if let Self::Call { calls, .. } = &frame {
            let ranks = calls
                .iter()
                .try_fold(0usize, |all, it| all.checked_add(it.1));
            if ranks != Some(lengths.len()) {
                return Err(garbled());
            }
        }
        let is_long = |length: &u64| beginning.saturating_add(*length) > MOST as u64;
        let is_unused = lengths.is_empty() && beginning > 0;
        if lengths.len() > most || is_unused || lengths.iter().any(is_long) {
            return Err(garbled());
        }
        let beginning = exactly(from, beginning, Vec::new())?;
        let parts = lengths.into_iter();
        let parts = parts.map(|length| exactly(from, length, beginning.clone()));
        let read = parts.collect::<io::Result<Vec<_>>>()?;
        if let Self::Call { parts, .. } | Self::Answer { all: parts, .. } = &mut frame {
            *parts = read;
        }
        Ok(frame)
    }
}

/// What all of several parts begin with.
fn beginning(parts: &[Vec<u8>]) -> &[u8] {
    let [first, others @ ..] = parts else {
        return &[];
    };
    if others.is_empty() {
        return &[];
    }
    others.iter().fold(first, |beginning, part| {
        // Bytes one after another only where this part ends it.
        if part.starts_with(beginning) {
            return beginning;
        }
        let pairs = beginning.iter().zip(part);
        let length = pairs.take_while(|(one, other)| one == other).count();
        beginning.get(..length).unwrap_or_default()
    })
}

/// Appends as much as comes: a wrong length must not make this process ask for memory.
fn exactly(from: &mut impl Read, length: u64, mut bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    match from.take(length).read_to_end(&mut bytes)? as u64 == length {
        true => Ok(bytes),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn garbled() -> io::Error {
    let problem = "the bytes are not those of a rank";
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    /// Heads of frames with numbers at their limits, and other text.
    fn head() -> impl Strategy<Value = String> {
        let numbers = "0 1 2 40 -1 1e3 1073741825 18446744073709551615";
        let number = || select(numbers.split(' ').collect::<Vec<_>>());
        let lengths = prop::collection::vec(number(), 0..4).prop_map(|all| all.join(","));
        let kinds = [
            r#"{"Call":{"number":1,"calls":[["step",N]]}}"#,
            r#"{"Call":{"number":N,"calls":[["step",1],["save",N]]}}"#,
            r#"{"Answer":{"number":N}}"#,
            r#"{"Refusal":{"Lost":{"ranks":[N],"reason":""}}}"#,
            r#"{"Refusal":{"DifferentCalls":["step","N"]}}"#,
            r#""Working""#,
            "[[[[[[[[",
        ];
        let frames = (select(kinds.to_vec()), number(), number(), lengths);
        let frames = frames.prop_map(|(kind, number, beginning, lengths)| {
            format!("[{},{beginning},[{lengths}]]", kind.replace('N', number))
        });
        prop_oneof![4 => frames, 1 => "[ -~]{0,40}"]
    }

    /// Of the heads above some are those of frames.
    #[test]
    fn some_heads_are_read() {
        for (head, parts) in [
            (r#"[{"Call":{"number":2,"calls":[["step",1]]}},0,[40]]"#, 1),
            (
                r#"[{"Call":{"number":2,"calls":[["step",2],["save",1]]}},2,[40,1,0]]"#,
                3,
            ),
            (r#"[{"Answer":{"number":1}},2,[1,40]]"#, 3),
            (r#"["Working",0,[]]"#, 0),
        ] {
            let length = (head.len() as u32).to_le_bytes();
            let bytes = [&length[..], head.as_bytes(), &[1; 90]].concat();
            Frame::read(&mut bytes.as_slice(), parts).unwrap();
        }
    }

    proptest! {
        /// What anybody sends behind a right length is a frame that can be passed on, or an error.
        #[test]
        fn any_head(
            head in head(),
            parts in prop::collection::vec(any::<u8>(), 0..90),
            size in 1usize..4,
        ) {
            let length = (head.len() as u32).to_le_bytes();
            let bytes = [&length[..], head.as_bytes(), &parts].concat();
            if let Ok(frame) = Frame::read(&mut bytes.as_slice(), size) {
                let mut again = Vec::new();
                frame.write(&mut again).unwrap();
                prop_assert_eq!(Frame::read(&mut again.as_slice(), size).unwrap(), frame);
            }
        }
    }

    #[test]
    fn frames_come_back_and_damaged_ones_are_refused() {
        let frames = [
            Frame::Call {
                number: 7,
                calls: vec![("step".to_owned(), 1), ("save".to_owned(), 1)],
                parts: vec![vec![1, 2, 3], vec![1, 2]],
            },
            Frame::Answer {
                number: 7,
                all: vec![vec![], vec![9; 300]],
            },
            Frame::Answer {
                number: 8,
                all: vec![vec![5, 6, 7], vec![5, 6]],
            },
            Frame::Working,
            Frame::Refusal(Refusal::DifferentCalls(vec!["step".to_owned()])),
            Frame::Leave,
            Frame::Ping,
            Frame::Pong { exchanges: 3 },
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

    #[test]
    fn what_parts_begin_with_is_sent_once() {
        let alike = vec![7; 1000];
        let all = (0..512u16).map(|rank| [alike.as_slice(), &rank.to_be_bytes()].concat());
        let all: Vec<_> = all.collect();
        for (parts, most) in [(vec![alike; 512], 2200), (all, 3300)] {
            let answer = Frame::Answer {
                number: 1,
                all: parts,
            };
            let bytes = answer.to_bytes().unwrap();
            assert!(bytes.len() < most, "{}", bytes.len());
            assert_eq!(Frame::read(&mut bytes.as_slice(), 512).unwrap(), answer);
        }
    }

    #[test]
    fn lengths_that_no_frame_has_are_refused() {
        let call = r#"{"Call":{"number":1,"calls":[["step",1]]}}"#;
        let most = MOST as u64;
        for (frame, beginning, lengths) in [
            (r#""Working""#, 1, "[]"),
            (r#""Working""#, 0, "[1]"),
            (call, 0, "[1,1]"),
            (call, 1, "[]"),
            (call, most, "[1]"),
            (call, u64::MAX, "[1]"),
        ] {
            let head = format!("[{frame},{beginning},{lengths}]");
            let length = (head.len() as u32).to_le_bytes();
            let bytes = [length.as_slice(), head.as_bytes(), &[0; 9]].concat();
            let error = Frame::read(&mut bytes.as_slice(), 1).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{head}: {error}");
        }
    }
}
