use candle_headroom::ByteSize;
use candle_headroom::data::{Dataset, Lines, Loader};
use proptest::prelude::*;

use super::{at, file, is_out_of_range, refused, shorten};

fn all(lines: &Lines) -> Vec<String> {
    (0..lines.len())
        .map(|index| lines.get(index).unwrap())
        .collect()
}

/// Texts of few different characters, so that line endings meet in every way.
fn texts() -> impl Strategy<Value = String> {
    let characters = prop::sample::select(vec!["a", "é", "\n", "\r\n", "\r", " ", "\t"]);
    prop::collection::vec(characters, 1..40).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn lines_are_those_of_the_standard_library(text in texts(), index in 0_u64..400) {
        let file = file(text.as_bytes());
        // An index for all lines or a few of them.
        let builder = || Lines::builder(file.path()).index_bytes(ByteSize(index));
        let lines = builder().open().unwrap();
        prop_assert_eq!(all(&lines), text.lines().collect::<Vec<_>>());
        let costs: usize = (0..lines.len()).map(|index| lines.cost(index).unwrap()).sum();
        prop_assert_eq!(costs, text.len());
        is_out_of_range(&lines);

        let lines = builder().skip_blank().open().unwrap();
        let expected: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        prop_assert_eq!(all(&lines), expected);
    }

    #[test]
    fn any_bytes_give_their_lines_or_the_place_that_is_not_text(bytes in prop::collection::vec(any::<u8>(), 1..300)) {
        let file = file(&bytes);
        let lines = Lines::open(file.path()).unwrap();
        let mut start = 0;
        let expected: Vec<_> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
        prop_assert_eq!(lines.len(), expected.len());
        for (index, line) in expected.iter().enumerate() {
            let text = line.strip_suffix(b"\n").map_or(*line, |line| line.strip_suffix(b"\r").unwrap_or(line));
            match (lines.get(index), std::str::from_utf8(text)) {
                (Ok(found), Ok(expected)) => prop_assert_eq!(found, expected),
                (Err(found), Err(expected)) => {
                    let (path, offset, problem) = at(&*found);
                    prop_assert_eq!((path, problem), (file.path(), "is not UTF-8"));
                    prop_assert_eq!(offset, Some((start + expected.valid_up_to()) as u64));
                }
                (found, expected) => prop_assert!(false, "{found:?} for {expected:?}"),
            }
            start += line.len();
        }
    }
}

#[test]
fn the_last_line_needs_no_newline() {
    for (text, expected) in [
        ("one", vec!["one"]),
        ("one\n", vec!["one"]),
        ("one\ntwo", vec!["one", "two"]),
        ("\n", vec![""]),
        ("\n\n", vec!["", ""]),
        ("one\n\r\n\rtwo\r", vec!["one", "", "\rtwo\r"]),
    ] {
        let file = file(text.as_bytes());
        assert_eq!(
            all(&Lines::open(file.path()).unwrap()),
            expected,
            "{text:?}"
        );
    }
}

#[test]
fn blank_lines_alone_are_no_samples() {
    let file = file(b"\n  \n\t\r\n");
    let lines = Lines::builder(file.path()).skip_blank().open().unwrap();
    assert!(lines.is_empty());
    let empty = super::file(b"");
    assert_eq!(at(&Lines::open(empty.path()).unwrap_err()).2, "is empty");
}

#[test]
fn a_growing_or_shortened_file_is_noticed() {
    use std::io::Write;
    let mut file = file("line\n".repeat(10_000).as_bytes());
    let lines = Lines::open(file.path()).unwrap();
    assert_eq!(lines.get(9_999).unwrap(), "line");
    file.write_all(b"more\nlines").unwrap();
    assert!(
        at(&*refused(&lines, 0))
            .2
            .contains("has 50010 bytes, had 50000")
    );
    shorten(&file, 4_096);
    let error = refused(&lines, 9_999);
    assert_eq!(at(&*error).0, file.path());
}

/// Where an index was thinned, finding a line reads the file: a cost that cannot be known is an error of the batches.
#[test]
fn the_cost_of_lines_of_a_changed_file_is_an_error() {
    let file = file("line\n".repeat(1000).as_bytes());
    let builder = Lines::builder(file.path()).index_bytes(ByteSize(160));
    let lines = builder.open().unwrap();
    assert_eq!((lines.len(), lines.cost(999).unwrap()), (1000, 5));
    shorten(&file, 4_096);
    assert!(lines.cost(999).is_ok(), "found before");
    let error = lines.cost(500).unwrap_err();
    assert!(
        at(&*error).2.contains("has 4096 bytes, had 5000"),
        "{error}"
    );
    let collate = |lines: Vec<String>| {
        Ok(vec![candle_core::Tensor::new(
            lines.len() as u32,
            &candle_core::Device::Cpu,
        )?])
    };
    let mut loader = Loader::builder(lines, collate)
        .batch_cost(100)
        .shuffle(1)
        .build()
        .unwrap();
    let error = loader.next().unwrap().unwrap_err();
    assert!(error.is_data(), "{error}");
    assert!(
        format!("{error:?}").contains("has 4096 bytes, had 5000"),
        "{error:?}"
    );
}

#[test]
fn lines_are_found_across_the_pieces_that_are_read() {
    // Lines, blank ones among them, that begin and end at every place around the end of a piece.
    let mut text = String::new();
    for at in 0..40_000 {
        text.push_str(&"x".repeat(at % 53));
        text.push_str(if at % 3 == 0 { "\r\n" } else { "\n" });
        if at % 7 == 0 {
            text.push_str(&" ".repeat(at % 31));
            text.push('\n');
        }
    }
    text.push_str(&"y".repeat(1 << 20));
    let file = file(text.as_bytes());
    // Each line, and each 256th.
    for index in [1 << 20, 4_096] {
        let builder = || Lines::builder(file.path()).index_bytes(ByteSize(index));
        let lines = builder().open().unwrap();
        assert_eq!(all(&lines), text.lines().collect::<Vec<_>>());
        let lines = builder().skip_blank().open().unwrap();
        let expected: Vec<_> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        assert_eq!(all(&lines), expected);
    }
}
