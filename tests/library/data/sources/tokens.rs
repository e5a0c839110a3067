use candle_core::DType;
use candle_headroom::data::{Dataset, TokenType, Tokens, TokensBuilder, stack_tokens};
use candle_headroom::error::DataError;
use proptest::prelude::*;
use tempfile::NamedTempFile;

use super::{at, file, is_out_of_range, refused, shorten};

fn bytes(tokens: &[u32], token: TokenType) -> Vec<u8> {
    let bytes = tokens.iter().map(|token| token.to_le_bytes());
    bytes
        .flat_map(|bytes| bytes[..token.size_in_bytes()].to_vec())
        .collect()
}

fn u16s(count: u32) -> NamedTempFile {
    file(&bytes(&(0..count).collect::<Vec<_>>(), TokenType::U16))
}

#[track_caller]
fn setting(builder: TokensBuilder) -> String {
    match builder.open() {
        Err(candle_headroom::Error::Data(error)) => match *error {
            DataError::Setting(problem) => problem,
            other => panic!("{other}"),
        },
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn windows_hold_the_tokens_that_were_written(
        tokens in prop::collection::vec(any::<u32>(), 1..200),
        kind in prop::sample::select(vec![TokenType::U8, TokenType::U16, TokenType::U32]),
        header in 0..9usize,
        window in 1..50usize,
        stride in 1..60usize,
    ) {
        let largest = u32::MAX >> (32 - 8 * kind.size_in_bytes());
        let tokens: Vec<u32> = tokens.into_iter().map(|token| token & largest).collect();
        let mut content = vec![0xEE; header];
        content.extend(bytes(&tokens, kind));
        let file = file(&content);
        let builder = Tokens::builder(file.path()).dtype(kind).skip_header(header);
        let opened = builder.window(window).stride(stride).open();
        prop_assert_eq!(opened.is_ok(), window <= tokens.len());
        if let Ok(windows) = opened {
            let expected: Vec<&[u32]> = tokens.windows(window).step_by(stride).collect();
            prop_assert_eq!(windows.len(), expected.len());
            let mut all = Vec::new();
            for (index, expected) in expected.iter().enumerate() {
                let found = windows.get(index).unwrap();
                prop_assert_eq!(found.to_vec(), *expected);
                prop_assert_eq!((found.len(), windows.cost(index)), (window, window));
                all.push(found);
            }
            let stacked = stack_tokens(all).unwrap();
            prop_assert_eq!(stacked.dtype(), DType::U32);
            prop_assert_eq!(stacked.to_vec2::<u32>().unwrap(), expected);
            is_out_of_range(&windows);
        }
    }

    #[test]
    fn documents_end_with_their_token_and_lose_none(
        tokens in prop::collection::vec(0..4u32, 1..100),
        kind in prop::sample::select(vec![TokenType::U8, TokenType::U16, TokenType::U32]),
    ) {
        let file = file(&bytes(&tokens, kind));
        let documents = Tokens::builder(file.path()).dtype(kind).documents(3).open().unwrap();
        let expected: Vec<&[u32]> = tokens.split_inclusive(|token| *token == 3).collect();
        prop_assert_eq!(documents.len(), expected.len());
        for (index, expected) in expected.iter().enumerate() {
            prop_assert_eq!(documents.get(index).unwrap().to_vec(), *expected);
            prop_assert_eq!(documents.cost(index), expected.len());
        }
        is_out_of_range(&documents);
    }
}

#[test]
fn documents_are_found_across_the_blocks_of_the_scan() {
    // 100,000 tokens are several blocks; document i has i + 1 tokens.
    let lengths: Vec<usize> = (1..450).collect();
    let tokens: Vec<u32> = lengths
        .iter()
        .flat_map(|len| (1..=*len).rev().map(|at| at as u32 - 1))
        .collect();
    assert!(tokens.len() > 100_000, "{}", tokens.len());
    let file = file(&bytes(&tokens, TokenType::U16));
    let documents = Tokens::builder(file.path()).documents(0).open().unwrap();
    let found: Vec<usize> = (0..documents.len())
        .map(|index| documents.get(index).unwrap().len())
        .collect();
    assert_eq!(found, lengths);
}

#[test]
fn windows_are_not_overlapping_by_default() {
    let file = u16s(10);
    let windows = Tokens::builder(file.path()).window(3).open().unwrap();
    let all: Vec<_> = (0..windows.len())
        .map(|index| windows.get(index).unwrap().to_vec())
        .collect();
    assert_eq!(all, [[0, 1, 2], [3, 4, 5], [6, 7, 8]]);
}

#[test]
fn a_file_of_other_size_than_its_tokens_is_refused_with_the_place() {
    let open = |content: &[u8], kind, header| {
        let file = file(content);
        let builder = Tokens::builder(file.path())
            .dtype(kind)
            .skip_header(header)
            .window(2);
        let error = builder.open().expect_err("no tokens");
        let (path, offset, problem) = at(&error);
        assert_eq!(path, file.path());
        (offset, problem.to_owned())
    };
    let (offset, problem) = open(&[0; 7], TokenType::U16, 0);
    assert_eq!(
        (offset, problem.as_str()),
        (Some(6), "the last token has 1 of 2 bytes")
    );
    let (offset, problem) = open(&[0; 16], TokenType::U32, 5);
    assert_eq!(
        (offset, problem.as_str()),
        (Some(13), "the last token has 3 of 4 bytes")
    );
    let (offset, _) = open(&[0; 16], TokenType::U32, 16);
    assert_eq!(offset, Some(16));
    let (offset, problem) = open(&[0; 16], TokenType::U32, usize::MAX);
    assert_eq!(offset, Some(16), "{problem}");
    let (_, problem) = open(&[0; 2], TokenType::U16, 0);
    assert_eq!(problem, "has 1 tokens, less than a window of 2");
    assert_eq!(open(&[], TokenType::U8, 0).1, "is empty");
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let file = u16s(10);
    let builder = || Tokens::builder(file.path());
    assert!(setting(builder()).contains("`window`"));
    assert!(setting(builder().window(0)).contains("`window`"));
    assert!(setting(builder().window(2).stride(0)).contains("stride"));
    assert!(setting(builder().window(2).documents(0)).contains("combined"));
    assert!(setting(builder().documents(65_536)).contains("at most 65535, got 65536"));
    assert!(setting(builder().dtype(TokenType::U8).documents(256)).contains("at most 255"));
    assert!(
        builder()
            .dtype(TokenType::U32)
            .documents(u32::MAX)
            .open()
            .is_ok()
    );
}

#[test]
fn what_is_no_regular_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &std::path::Path| {
        let error = Tokens::builder(path).window(1).open().expect_err("no file");
        let (found, _, problem) = at(&error);
        assert_eq!(found, path);
        problem.to_owned()
    };
    assert_eq!(open(folder.path()), "is not a regular file");
    assert!(open(&folder.path().join("missing")).contains("No such file"));
    assert!(open(&folder.path().join("missing/file")).contains("No such file"));
    assert_eq!(
        open(std::path::Path::new("/dev/zero")),
        "is not a regular file"
    );
}

#[test]
fn a_file_without_permission_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let file = u16s(10);
    let none = std::fs::Permissions::from_mode(0o000);
    std::fs::set_permissions(file.path(), none).unwrap();
    // Root may read any file.
    if std::fs::File::open(file.path()).is_err() {
        let error = Tokens::builder(file.path())
            .window(1)
            .open()
            .expect_err("no permission");
        assert!(at(&error).2.contains("denied"), "{error}");
    }
}

#[test]
fn a_growing_file_keeps_the_samples_that_it_had() {
    use std::io::Write;
    let mut file = u16s(10);
    let windows = Tokens::builder(file.path()).window(5).open().unwrap();
    file.write_all(&[7; 101]).unwrap();
    assert_eq!(windows.len(), 2);
    assert_eq!(windows.get(1).unwrap().to_vec(), [5, 6, 7, 8, 9]);
}

#[test]
fn a_shortened_file_is_an_error_and_no_crash() {
    // Several pages, so that reading beyond the new end would raise SIGBUS.
    let file = u16s(20_000);
    let windows = Tokens::builder(file.path()).window(100).open().unwrap();
    let last = windows.get(199).unwrap();
    shorten(&file, 4_096);
    let error = refused(&windows, 199);
    let (path, offset, problem) = at(&*error);
    assert_eq!((path, offset), (file.path(), Some(4_096)));
    assert!(problem.contains("shortened from 40000 bytes"), "{problem}");
    let error = stack_tokens(vec![last]).expect_err("the tokens are gone");
    assert_eq!(at(&*error).1, Some(4_096));
    let _ = refused(&windows, 0); // what is left may have been written anew
}

#[test]
fn windows_outlive_the_dataset_and_a_removed_file() {
    let file = u16s(10);
    let windows = Tokens::builder(file.path()).window(2).open().unwrap();
    let window = windows.get(4).unwrap();
    drop((windows, file));
    assert_eq!(window.to_vec(), [8, 9]);
}

#[test]
fn documents_of_different_lengths_are_not_stacked() {
    let file = file(&[1, 0, 1, 1, 0]);
    let documents = Tokens::builder(file.path())
        .dtype(TokenType::U8)
        .documents(0)
        .open()
        .unwrap();
    let error = stack_tokens(vec![documents.get(0).unwrap(), documents.get(1).unwrap()]);
    let error = error.expect_err("2 and 3 tokens").to_string();
    assert!(
        error.contains("window 0 has 2 tokens, window 1 has 3"),
        "{error}"
    );
    assert!(stack_tokens(vec![]).is_err());
}
