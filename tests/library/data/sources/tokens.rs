use candle_core::DType;
use candle_headroom::ByteSize;
use candle_headroom::data::{Dataset, TokenType, Tokens, TokensBuilder, glob, stack_tokens};
use proptest::prelude::*;
use tempfile::NamedTempFile;

use super::{at, file, is_out_of_range, shorten};

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
        Err(error) if error.is_data() => error.to_string(),
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
        let builder = Tokens::builder([file.path()]).dtype(kind).skip_header(header);
        let opened = builder.window(window).stride(stride).open();
        prop_assert_eq!(opened.is_ok(), window <= tokens.len());
        if let Ok(windows) = opened {
            let expected: Vec<&[u32]> = tokens.windows(window).step_by(stride).collect();
            prop_assert_eq!(windows.len(), expected.len());
            let mut all = Vec::new();
            for (index, expected) in expected.iter().enumerate() {
                let found = windows.get(index).unwrap();
                prop_assert_eq!(found.to_vec().unwrap(), *expected);
                prop_assert_eq!((found.len(), windows.cost(index).unwrap()), (window, window));
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
        more in prop::collection::vec(0..4u32, 1..100),
        kind in prop::sample::select(vec![TokenType::U8, TokenType::U16, TokenType::U32]),
        index in 0_u64..400,
    ) {
        let files = [&tokens, &more].map(|tokens| file(&bytes(tokens, kind)));
        let builder = Tokens::builder(files.each_ref().map(NamedTempFile::path)).dtype(kind);
        // An index for all documents or a few of them.
        let documents = builder.documents(3).index_bytes(ByteSize(index)).open().unwrap();
        let expected = [&tokens, &more].into_iter();
        let expected: Vec<&[u32]> = expected.flat_map(|tokens| tokens.split_inclusive(|token| *token == 3)).collect();
        prop_assert_eq!(documents.len(), expected.len());
        for (index, expected) in expected.iter().enumerate() {
            prop_assert_eq!(documents.get(index).unwrap().to_vec().unwrap(), *expected);
            prop_assert_eq!(documents.cost(index).unwrap(), expected.len());
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
    let documents = Tokens::builder([file.path()]).documents(0).open().unwrap();
    let found: Vec<usize> = (0..documents.len())
        .map(|index| documents.get(index).unwrap().len())
        .collect();
    assert_eq!(found, lengths);
}

#[test]
fn patterns_find_no_hidden_files_and_sort_by_bytes() {
    let folder = tempfile::Builder::new()
        .prefix(".hidden")
        .tempdir()
        .unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["a/1.bin", "a-b/1.bin", ".cache/1.bin", "a/.1.bin"] {
        std::fs::create_dir_all(at(name).parent().unwrap()).unwrap();
        std::fs::write(at(name), [1]).unwrap();
    }
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::ffi::OsStrExt;
        let no_text = std::ffi::OsStr::from_bytes(b"\xff");
        std::fs::write(folder.path().join(no_text), [1]).unwrap();
    }
    let found = |pattern: &str, names: &[&str]| {
        let expected: Vec<_> = names.iter().map(|name| at(name)).collect();
        assert_eq!(glob(at(pattern)).unwrap(), expected, "{pattern}");
    };
    found("*/*.bin", &["a-b/1.bin", "a/1.bin"]);
    found("**/*.bin", &["a-b/1.bin", "a/1.bin"]);
    found("a/.*.bin", &["a/.1.bin"]);
    found(".cache/*", &[".cache/1.bin"]);
    let error = glob("s3://corpus/*.bin").unwrap_err();
    assert!(error.to_string().ends_with("name each of them"), "{error}");
}

/// Files of a pattern come in the order of their names, each with the type of its header, and no window goes over the end of one.
#[test]
fn several_files_are_one_dataset() {
    let folder = tempfile::tempdir().unwrap();
    let save =
        |name: &str, content: &[u8]| std::fs::write(folder.path().join(name), content).unwrap();
    save("b.bin", &bytes(&[20, 21, 22, 23, 24], TokenType::U16));
    let mut wide = bytes(&[20_240_801, 7, 4], TokenType::U32);
    wide.resize(1024, 0);
    wide.extend(bytes(&[10, 11, 1 << 20, 13], TokenType::U32));
    save("a.bin", &wide);
    save("c.txt", b"no tokens");
    std::fs::create_dir(folder.path().join("d.bin")).unwrap();

    let files = glob(folder.path().join("*.bin")).unwrap();
    assert_eq!(
        files,
        ["a.bin", "b.bin"].map(|name| folder.path().join(name))
    );
    let windows = Tokens::builder(&files).window(2).open().unwrap();
    let all = (0..windows.len()).map(|index| windows.get(index).unwrap());
    let batch = stack_tokens(all.collect()).unwrap();
    assert_eq!(
        batch.to_vec2::<u32>().unwrap(),
        [[10, 11], [1 << 20, 13], [20, 21], [22, 23]]
    );
    assert_eq!(windows.blocks(), [2, 4]);
    assert!(
        windows.name().ends_with("a.bin and 1 more"),
        "{}",
        windows.name()
    );
    is_out_of_range(&windows);

    // A file that is too short is named, not left out.
    let error = Tokens::builder(&files).window(5).open().unwrap_err();
    assert_eq!(at(&error).0, files[0]);
    let error = Tokens::builder(&files)
        .dtype(TokenType::U16)
        .window(2)
        .open()
        .unwrap_err();
    assert!(
        at(&error)
            .2
            .contains("tokens of type U32: leave out `dtype`"),
        "{error}"
    );
    let error = glob(folder.path().join("*.tokens")).unwrap_err();
    assert_eq!(at(&error).0, folder.path().join("*.tokens"));
    assert!(
        error.to_string().ends_with("*.tokens: matches no file"),
        "{error}"
    );
    assert!(
        glob(folder.path().join("***"))
            .unwrap_err()
            .to_string()
            .contains("is no pattern")
    );
    let none: [&str; 0] = [];
    assert_eq!(
        setting(Tokens::builder(none).window(2)),
        "tokens need at least one file"
    );
}

#[test]
fn windows_are_not_overlapping_by_default() {
    let file = u16s(10);
    let windows = Tokens::builder([file.path()]).window(3).open().unwrap();
    let all: Vec<_> = (0..windows.len())
        .map(|index| windows.get(index).unwrap().to_vec().unwrap())
        .collect();
    assert_eq!(all, [[0, 1, 2], [3, 4, 5], [6, 7, 8]]);
}

#[test]
fn a_file_of_other_size_than_its_tokens_is_refused_with_the_place() {
    let open = |content: &[u8], kind, header| {
        let file = file(content);
        let builder = Tokens::builder([file.path()])
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
    let builder = || Tokens::builder([file.path()]);
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
        let error = Tokens::builder([path])
            .window(1)
            .open()
            .expect_err("no file");
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
        let error = Tokens::builder([file.path()])
            .window(1)
            .open()
            .expect_err("no permission");
        assert!(at(&error).2.contains("denied"), "{error}");
    }
}

#[test]
fn a_shortened_file_is_an_error_and_no_crash() {
    // Several pages, so that reading a map beyond the new end would raise SIGBUS.
    let file = u16s(20_000);
    let windows = Tokens::builder([file.path()]).window(100).open().unwrap();
    let [first, last] = [0, 199].map(|index| windows.get(index).unwrap());
    shorten(&file, 4_096);
    let error = last.to_vec().expect_err("the tokens are gone");
    let (path, _, problem) = at(&error);
    assert_eq!(path, file.path());
    assert!(
        problem.contains("has 4096 bytes, had 40000") && problem.contains("open it again"),
        "{problem}"
    );
    // What is left may have been written anew.
    assert!(first.to_vec().is_err());
    let error = stack_tokens(vec![first, last]).expect_err("the tokens are gone");
    assert_eq!(at(&*error).0, file.path());
}

#[test]
fn llm_c_headers_are_recognised() {
    let header = |magic: i32, version: i32, count: i32| {
        let mut header = [0i32; 256];
        header[..3].copy_from_slice(&[magic, version, count]);
        header.map(i32::to_le_bytes).concat()
    };
    for (magic, version, kind) in [
        (20_240_520, 1, TokenType::U16),
        (20_240_801, 7, TokenType::U32),
    ] {
        let tokens: Vec<u32> = (100..110).collect();
        let body = bytes(&tokens, kind);
        let whole = file(&[header(magic, version, 10), body.clone()].concat());
        let builder = || Tokens::builder([whole.path()]).window(10);
        // The type is that of the header, and may be given.
        for builder in [
            builder(),
            builder().dtype(kind),
            builder().skip_header(1024).dtype(kind),
        ] {
            let windows = builder.open().unwrap();
            assert_eq!(windows.len(), 1);
            assert_eq!(windows.get(0).unwrap().to_vec().unwrap(), tokens);
        }
        let documents = Tokens::builder([whole.path()])
            .documents(104)
            .open()
            .unwrap();
        assert_eq!(documents.get(1).unwrap().to_vec().unwrap(), tokens[5..]);
        // Who asks for it gets the header as tokens.
        let raw = builder()
            .dtype(TokenType::U32)
            .skip_header(0)
            .open()
            .unwrap();
        assert_eq!(
            raw.get(0).unwrap().to_vec().unwrap()[..2],
            [magic as u32, version as u32]
        );

        let problem =
            |builder: TokensBuilder| at(&builder.open().expect_err("refused")).2.to_owned();
        let other = problem(builder().dtype(TokenType::U8));
        assert!(
            other.contains("llm.c") && other.contains("`skip_header(0)`"),
            "{other}"
        );
        let short = file(&[header(magic, version, 11), body.clone()].concat());
        let short = problem(Tokens::builder([short.path()]).window(2));
        assert!(
            short.contains("11 tokens") && short.contains("10"),
            "{short}"
        );
        let later = file(&[header(magic, 99, 10), body].concat());
        let later = problem(Tokens::builder([later.path()]).window(2));
        assert!(later.contains("version 99"), "{later}");
    }
    // The end of a document must fit the type of the header.
    let small = file(&[header(20_240_520, 1, 1), vec![1, 0]].concat());
    assert!(setting(Tokens::builder([small.path()]).documents(70_000)).contains("at most 65535"));
    let file = u16s(600);
    assert_eq!(
        Tokens::builder([file.path()])
            .window(600)
            .open()
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn windows_outlive_the_dataset_and_a_removed_file() {
    let file = u16s(10);
    let windows = Tokens::builder([file.path()]).window(2).open().unwrap();
    let window = windows.get(4).unwrap();
    drop((windows, file));
    assert_eq!(window.to_vec().unwrap(), [8, 9]);
}

#[test]
fn windows_of_several_files_and_types_are_stacked_in_their_order() {
    // Windows of 20,000 to 80,000 bytes, so that those of one type are more than are copied at once.
    let files = [TokenType::U16, TokenType::U8, TokenType::U32].map(|kind| {
        let tokens: Vec<u32> = (0..120_000).map(|token| token % 251).collect();
        let file = file(&bytes(&tokens, kind));
        let builder = Tokens::builder([file.path()]).dtype(kind);
        builder.window(20_000).stride(500).open().unwrap()
    });
    let places: Vec<_> = (0..150).map(|at| (at / 40 % 3, at * 31 % 190)).collect();
    let windows = places.iter().map(|(file, index)| files[*file].get(*index));
    let stacked = stack_tokens(windows.map(Result::unwrap).collect()).unwrap();
    for (row, (_, index)) in stacked.to_vec2::<u32>().unwrap().iter().zip(places) {
        let expected = (0..20_000).map(|token| (500 * index as u32 + token) % 251);
        assert!(row.iter().copied().eq(expected), "window {index}");
    }
}

#[test]
fn documents_of_different_lengths_are_not_stacked() {
    let file = file(&[1, 0, 1, 1, 0]);
    let documents = Tokens::builder([file.path()])
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

#[test]
fn tokens_in_memory_are_cut_as_those_of_a_file() {
    let tokens: Vec<u32> = (0..1_000).map(|token| token % 7).collect();
    let file = file(&bytes(&tokens, TokenType::U32));
    let both = |set: fn(TokensBuilder) -> TokensBuilder| {
        let builder = Tokens::builder([file.path()]).dtype(TokenType::U32);
        let builders = [builder, Tokens::from_vec(tokens.clone())];
        builders.map(|builder| {
            let tokens = set(builder).open().unwrap();
            let samples = (0..tokens.len()).map(|index| tokens.get(index).unwrap());
            samples
                .map(|sample| sample.to_vec().unwrap())
                .collect::<Vec<_>>()
        })
    };
    let [read, kept] = both(|builder| builder.window(10).stride(9));
    assert_eq!(read, kept);
    let [read, kept] = both(|builder| builder.documents(6));
    assert_eq!(read, kept);

    let windows = Tokens::from_vec(vec![5; 8]).window(4).open().unwrap();
    let stacked = stack_tokens(vec![windows.get(1).unwrap(), windows.get(0).unwrap()]).unwrap();
    assert_eq!(stacked.to_vec2::<u32>().unwrap(), [[5; 4]; 2]);
    assert!(
        format!("{windows:?}").len() < 200,
        "the tokens are not printed"
    );
    for (builder, problem) in [
        (
            Tokens::from_vec(vec![1, 2]).window(3),
            "has 2 tokens, less than a window of 3",
        ),
        (
            Tokens::from_vec(vec![1]).window(1).dtype(TokenType::U8),
            "are settings of a file",
        ),
        (
            Tokens::from_vec(Vec::new()).documents(0),
            "tokens in memory",
        ),
    ] {
        let error = builder.open().unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
}
