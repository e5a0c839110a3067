use candle_headroom::ByteSize;
use candle_headroom::data::{Dataset, JsonLines, Lines};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{at, file, is_out_of_range, refused, shorten};

#[derive(Debug, Deserialize, PartialEq)]
struct Pair {
    text: String,
    label: u8,
}

proptest! {
    #[test]
    fn values_come_back_as_they_were_written(texts in prop::collection::vec(any::<String>(), 1..20)) {
        let lines: Vec<_> = texts.iter().map(|text| json!({"text": text, "label": text.len() % 256}).to_string()).collect();
        let file = file(lines.join("\r\n \n").as_bytes());
        let pairs = JsonLines::<Pair>::open(file.path()).unwrap();
        prop_assert_eq!(pairs.len(), texts.len());
        for (index, text) in texts.into_iter().enumerate() {
            let label = (text.len() % 256) as u8;
            prop_assert_eq!(pairs.get(index).unwrap(), Pair { text, label });
        }
        is_out_of_range(&pairs);
    }

    #[test]
    fn any_bytes_are_a_value_or_an_error_in_their_line(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'\n'), Just(b' ')], 1..300),
        index in 0_u64..400,
    ) {
        let file = file(&bytes);
        let lines = Lines::builder(file.path()).skip_blank().index_bytes(ByteSize(index));
        let values = JsonLines::<Value>::from(lines.open().unwrap());
        let all = JsonLines::<Value>::open(file.path()).unwrap();
        let text = |values: &JsonLines<Value>, index| values.get(index).map_err(|error| error.to_string());
        prop_assert_eq!(values.len(), all.len());
        prop_assert!((0..all.len()).all(|index| text(&values, index) == text(&all, index)));
        for index in 0..values.len() {
            if let Err(error) = values.get(index) {
                let (_, offset, problem) = at(&*error);
                let offset = offset.unwrap() as usize;
                prop_assert!(offset <= bytes.len());
                let number: usize = problem["line ".len()..].split(',').next().unwrap().parse().unwrap();
                let newlines = |end: usize| bytes[..end].iter().filter(|byte| **byte == b'\n').count();
                // The parser may place an error on the newline, or on the byte after it if the line is cut.
                prop_assert!((newlines(offset.saturating_sub(1))..=newlines(offset) + 1).contains(&number), "{error}");
            }
        }
    }
}

#[test]
fn errors_name_line_column_and_byte() {
    let text = "{\"text\": \"a\", \"label\": 1}\n\n{\"text\": \"b\", \"label\": 256}\n{\"text\": \"c\"\n[1]";
    let file = file(text.as_bytes());
    let pairs = JsonLines::<Pair>::open(file.path()).unwrap();
    assert_eq!(pairs.len(), 4);
    let place = |index: usize| {
        let error = refused(&pairs, index);
        let (path, offset, problem) = at(&*error);
        assert_eq!(path, file.path());
        (offset.unwrap() as usize, problem.to_owned())
    };
    let (offset, problem) = place(1);
    assert!(
        problem.starts_with("line 3, column 26: invalid value: integer `256`"),
        "{problem}"
    );
    assert_eq!(&text[offset..offset + 2], "6}", "the last digit");
    let (offset, problem) = place(2);
    assert!(problem.starts_with("line 4, column 12: EOF"), "{problem}");
    assert_eq!(&text[offset..=offset], "\"");
    let (_, problem) = place(3);
    assert!(problem.starts_with("line 5, column "), "{problem}");
    assert!(!problem.contains(" at line "), "{problem}");
}

#[test]
fn a_shortened_file_is_an_error_also_while_an_error_is_described() {
    let file = file("[1]\n".repeat(5_000).as_bytes());
    let pairs = JsonLines::<Pair>::open(file.path()).unwrap();
    shorten(&file, 100);
    let error = refused(&pairs, 4_000);
    assert_eq!(at(&*error).0, file.path());
}

/// The number of a line does not cost a look at all lines before it.
#[test]
fn an_error_at_the_end_of_a_long_file_is_described_as_fast_as_one_at_its_start() {
    let mut text = "[1]\n".repeat(100) + &format!("[{}]\n \n", "1,".repeat(1_000)).repeat(30_000);
    text.push_str(&"[1]\n".repeat(100));
    let file = file(text.as_bytes());
    let pairs = JsonLines::<Pair>::open(file.path()).unwrap();
    assert_eq!(pairs.len(), 30_200);
    let time = |first: usize| {
        let began = std::time::Instant::now();
        for index in first..first + 100 {
            let error = refused(&pairs, index);
            let number = index + 1 + index.saturating_sub(100).min(30_000);
            let problem = at(&*error).2;
            assert!(
                problem.starts_with(&format!("line {number}, ")),
                "{problem}"
            );
        }
        began.elapsed()
    };
    let (start, end) = (time(0), time(30_100));
    assert!(
        end < 20 * start + std::time::Duration::from_millis(50),
        "{start:?} {end:?}"
    );
}
