//! Promise 10, no panic: what strangers have written is read or refused by a typed error, with little memory. Valid files are changed at
//! random. Compiled into `host`, which counts allocations. Each file has the same cases in each run; `HEADROOM_CASES=N` tries N times as many,
//! and others.

mod data;
mod runs;

use std::cell::Cell;
use std::fmt::Display;
use std::ops::Range;

use candle_headroom::DeviceMemory;
use candle_headroom::data::Dataset;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{RngSeed, TestRunner};

/// What a change puts in the place of a number.
const EXTREMES: [&str; 18] = [
    "0",
    "1",
    "-1",
    "-0.0",
    "255",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e-400",
    "1e308",
    "1e999",
    "NaN",
    "null",
    "\"\"",
];

/// A change of a file.
#[derive(Debug, Clone)]
enum Change {
    /// Flips a bit.
    Flip(Index, u8),
    /// Leaves out the end.
    Cut(Index),
    /// Puts bytes between.
    Grow(Index, Vec<u8>),
    /// Repeats what is between two places.
    Repeat(Index, Index),
    /// Replaces a number in digits.
    Number(Index, String),
    /// Replaces some bytes by those of a number.
    Integer(Index, u64, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    let nested = ["[", "{\"a\":"].map(|open| open.repeat(300));
    let number = prop_oneof![
        9 => select(EXTREMES.to_vec()).prop_map(str::to_owned),
        1 => select(nested.to_vec()),
    ];
    let integer = select(vec![
        0,
        1,
        0x7F,
        0xFF,
        0x7FFF_FFFF,
        0xFFFF_FFFF,
        1 << 40,
        u64::MAX >> 1,
        u64::MAX,
    ]);
    prop_oneof![
        3 => (at(), 0u8..8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        1 => at().prop_map(Change::Cut),
        1 => (at(), prop::collection::vec(any::<u8>(), 1..20))
            .prop_map(|(at, more)| Change::Grow(at, more)),
        1 => (at(), at()).prop_map(|(from, to)| Change::Repeat(from, to)),
        4 => (at(), number).prop_map(|(at, text)| Change::Number(at, text)),
        2 => (at(), integer, select(vec![1, 2, 4, 8]))
            .prop_map(|(at, value, width)| Change::Integer(at, value, width)),
    ]
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        let len = content.len();
        match self {
            Self::Grow(at, more) => insert(content, at.index(len + 1), more),
            _ if len == 0 => {}
            Self::Flip(at, bit) => content[at.index(len)] ^= 1 << bit,
            Self::Cut(at) => content.truncate(at.index(len)),
            Self::Repeat(from, to) => {
                let (from, to) = (from.index(len), to.index(len));
                let part = content[from.min(to)..from.max(to)].to_vec();
                insert(content, to, &part);
            }
            Self::Number(at, text) => {
                let numbers = numbers(content);
                if !numbers.is_empty() {
                    let number = at.get(&numbers).clone();
                    let start = number.start;
                    drop(content.drain(number));
                    insert(content, start, text.as_bytes());
                }
            }
            Self::Integer(at, value, width) => {
                let bytes = &value.to_le_bytes()[..*width];
                let places = content.iter_mut().skip(at.index(len));
                places.zip(bytes).for_each(|(place, byte)| *place = *byte);
            }
        }
    }
}

fn insert(content: &mut Vec<u8>, at: usize, more: &[u8]) {
    let rest = content.split_off(at);
    content.extend_from_slice(more);
    content.extend(rest);
}

/// Where a text has digits.
fn numbers(content: &[u8]) -> Vec<Range<usize>> {
    let mut numbers: Vec<Range<usize>> = Vec::new();
    let digits = content.iter().enumerate();
    for (at, _) in digits.filter(|(_, byte)| byte.is_ascii_digit()) {
        match numbers.last_mut() {
            Some(last) if last.end == at => last.end += 1,
            _ => numbers.push(at..at + 1),
        }
    }
    numbers
}

/// Cases of each kind of file, and the seed that they come from.
fn runner(cases: u32) -> TestRunner {
    let more = std::env::var("HEADROOM_CASES").ok();
    let more: Option<u32> = more.map(|more| more.parse().expect("HEADROOM_CASES is a number"));
    let rng_seed = more.map_or(RngSeed::Fixed(28), |_| RngSeed::Random);
    TestRunner::new(ProptestConfig {
        cases: cases.saturating_mul(more.unwrap_or(1)),
        failure_persistence: None,
        max_shrink_iters: 2_000,
        rng_seed,
        ..ProptestConfig::default()
    })
}

/// Bytes that reading any of these small files may take, besides a multiple of the file's own.
const MOST: u64 = 4 << 20;

/// Reads a valid content, which `read` has to take, and `cases` changed or random ones, which it may take. It returns whether it did, and checks
/// what it can of an error; a panic fails the test. Returns how many it took.
fn attack(name: &str, cases: u32, valid: &[u8], read: impl Fn(&[u8]) -> bool) -> usize {
    attack_within(MOST, name, cases, valid, read)
}

/// The same with another bound in place of [`MOST`].
fn attack_within(
    most: u64,
    name: &str,
    cases: u32,
    valid: &[u8],
    read: impl Fn(&[u8]) -> bool,
) -> usize {
    assert!(read(valid), "{name}: as it was written");
    let memory = DeviceMemory::host().open().expect("the allocator counts");
    let taken = Cell::new(0);
    let changed = prop::collection::vec(change(), 1..4).prop_map(|changes| {
        let mut content = valid.to_vec();
        changes.iter().for_each(|change| change.apply(&mut content));
        content
    });
    let contents = prop_oneof![
        15 => changed,
        1 => prop::collection::vec(any::<u8>(), 0..400),
    ];
    let done = runner(cases).run(&contents, |content| {
        let scope = memory.peak_scope();
        let is_taken = read(&content);
        let used = scope.peak().zip(scope.start());
        let used = used.map_or(0, |(peak, start)| peak.saturating_sub(start));
        let most = most + 64 * content.len() as u64;
        prop_assert!(used <= most, "{used} bytes for a file of {}", content.len());
        taken.set(taken.get() + usize::from(is_taken));
        Ok(())
    });
    if let Err(error) = done {
        panic!("{name}: {error}");
    }
    println!(
        "{name}: {} of {cases} changed files were taken",
        taken.get()
    );
    taken.get()
}

/// Checks the text of an error: it says something, and nothing of a panic.
fn is_told(error: impl Display) {
    let text = error.to_string();
    assert!(!text.is_empty() && !text.contains("panicked"), "{text}");
}

/// Reads samples at both ends of a dataset, and where it has none. Returns whether it was opened.
fn read_all<D: Dataset>(opened: candle_headroom::Result<D>) -> bool {
    let dataset = match opened {
        Ok(dataset) => dataset,
        Err(error) => {
            is_told(error);
            return false;
        }
    };
    let len = dataset.len();
    let ends = (0..len.min(20)).chain(len.saturating_sub(20)..len);
    for index in ends.chain([len, usize::MAX]) {
        match dataset.get(index) {
            Ok(_) => assert!(index < len && dataset.cost(index).unwrap() > 0),
            Err(error) => is_told(error),
        }
    }
    true
}
