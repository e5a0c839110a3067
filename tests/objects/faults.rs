use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use candle_headroom::checkpoint::Checkpoints;
use candle_headroom::data::{Dataset, Remote, TokenType, Tokens};
use candle_headroom::error::BoxedError;
use candle_headroom::fixed_file::FixedFile;
use proptest::prelude::*;

use crate::server::{Fault, replaced};
use crate::{PIECE, SERVER, bytes, of_file, open, quick, with};

/// Faults that a repeated request may not meet again.
fn passing() -> Vec<Fault> {
    vec![
        Fault::NoAnswer,
        Fault::CutAfter(0),
        Fault::CutAfter(1_000_000),
        Fault::Shorter(1),
        Fault::StatesMore(1),
        Fault::OtherRange,
        Fault::Status(500),
        Fault::Status(503),
        Fault::Redirect,
    ]
}

/// Faults that a server repeats.
fn lasting() -> Vec<Fault> {
    vec![
        Fault::Whole,
        Fault::OtherLength,
        Fault::Replaced,
        Fault::Status(403),
        Fault::Status(404),
        Fault::Status(401),
    ]
}

/// Reads all of an object as windows of tokens, which are its bytes.
fn read(url: &str, len: usize, settings: Remote) -> Result<Vec<u8>, BoxedError> {
    let tokens = Tokens::builder([url]).dtype(TokenType::U8).skip_header(0);
    let tokens = with(settings, || tokens.window(len / 5).open())?;
    let mut all = Vec::new();
    for index in 0..5 {
        let window = tokens.get(index)?.to_vec()?;
        all.extend(window.into_iter().map(|token| token as u8));
    }
    Ok(all)
}

/// The same of many bytes.
fn read_parts(url: &str) -> std::io::Result<Vec<u8>> {
    let file = open(url)?;
    let part = file.len() / 5;
    let parts = (0..5).map(|at| file.read(at * part..(at + 1) * part));
    Ok(parts.collect::<std::io::Result<Vec<_>>>()?.concat())
}

/// No fault at any request changes a byte: the read succeeds, or is an error with the URL, and the range of what was requested.
#[test]
fn each_fault_at_each_request() {
    let len = 2 * PIECE + PIECE / 2;
    let content = bytes(len);
    let (mut right, mut failed) = (0, 0);
    let cases = passing().into_iter().map(|fault| (fault, true));
    for (fault, passes) in cases.chain(lasting().into_iter().map(|fault| (fault, false))) {
        // The header, three pieces, and one request that does not come.
        for number in 0..5 {
            for is_once in [true, false] {
                // What the case before has requested ahead may still come.
                let path = &format!("faults/each-{}", right + failed);
                SERVER.put(path, content.clone());
                let last = if is_once { number } else { number + 100 };
                SERVER.fail(path, (number..=last).map(|at| (at, fault.clone())));
                let case = format!("{fault:?} from request {number}, once: {is_once}");
                match read_parts(&SERVER.url(path)) {
                    Ok(read) if read == content => right += 1,
                    Ok(read) => {
                        // It was replaced before it was opened.
                        assert_eq!(
                            (&fault, number, is_once),
                            (&Fault::Replaced, 0, true),
                            "{case}"
                        );
                        assert!(read == replaced(&content));
                        right += 1;
                    }
                    Err(error) => {
                        let text = format!("{error} {error:?}");
                        assert!(text.contains("bytes ") || number == 0, "{case}: {error}");
                        assert!(!(passes && is_once), "{case} was not repeated: {error}");
                        assert!(number < 4 && !text.contains("hunter"), "{case}: {text}");
                        failed += 1;
                    }
                }
                SERVER.put(path, Vec::new());
            }
        }
    }
    // Each lasting fault is an error at the first three requests at least, except a replacement before the object is opened.
    assert!(right > 50 && failed > 30, "{right} right, {failed} failed");
}

/// What the error says, and its kind, by which a program tells them apart.
#[test]
fn errors_name_what_happened() {
    let path = "faults/named";
    let url = SERVER.url(path);
    SERVER.put(path, bytes(1_000));
    for (fault, kind, text) in [
        (Fault::Status(404), ErrorKind::NotFound, "404"),
        (Fault::Status(403), ErrorKind::PermissionDenied, "403"),
        (Fault::Status(503), ErrorKind::Other, "503"),
        (
            Fault::Whole,
            ErrorKind::Unsupported,
            "does not answer requests for ranges",
        ),
        (
            Fault::Replaced,
            ErrorKind::Other,
            "changed while it was open",
        ),
        (
            Fault::Slow(Duration::from_secs(3)),
            ErrorKind::TimedOut,
            "no complete answer within 500ms",
        ),
    ] {
        SERVER.fail(path, (1..9).map(|at| (at, fault.clone())));
        let settings = quick().retries(1).timeout(Duration::from_millis(500));
        let error = read(&url, 1_000, settings).expect_err("a fault");
        let (_, problem, found) = of_file(&*error);
        assert_eq!(found, Some(kind), "{problem}");
        assert!(
            problem.contains(text) && problem.contains("bytes 0..1000"),
            "{problem}"
        );
        let is_final = matches!(
            fault,
            Fault::Status(403 | 404) | Fault::Whole | Fault::Replaced
        );
        assert_eq!(problem.contains("tried 2 times"), !is_final, "{problem}");
    }
    let nothing = SERVER.url("faults/nothing");
    let error = read(&nothing, 5, quick()).expect_err("nothing is there");
    assert_eq!(of_file(&*error).2, Some(ErrorKind::NotFound), "{error}");
    let nobody = read("http://127.0.0.1:1/x", 5, quick()).expect_err("no server");
    assert!(nobody.to_string().contains("tried 4 times"), "{nobody}");
}

/// A server that never ends an answer costs what the settings say.
#[test]
fn slowness_ends_in_time() {
    let path = "faults/slow";
    SERVER.put(path, bytes(1_000));
    SERVER.fail(
        path,
        (1..9).map(|at| (at, Fault::Slow(Duration::from_secs(60)))),
    );
    let settings = quick().retries(2).timeout(Duration::from_millis(300));
    let began = Instant::now();
    read(&SERVER.url(path), 1_000, settings).expect_err("it is slow");
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
}

/// Without a strong ETag a change could not be noticed.
#[test]
fn a_server_without_etags_is_refused() {
    for (path, etag) in [("faults/weak", "W/\"1\""), ("faults/none", "")] {
        SERVER.put(path, bytes(10));
        SERVER.set_etag(path, etag);
        let error = open(&SERVER.url(path)).expect_err("no ETag");
        assert!(error.to_string().contains("no strong ETag"), "{error}");
    }
}

#[test]
fn secrets_are_not_shown() {
    let (_, place) = SERVER
        .url("x")
        .split_once("://")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    for url in [
        format!("http://user:hunter2@{place}"),
        format!("http://{place}?X-Amz-Signature=hunter2"),
        format!("http://{place}#hunter2"),
        "s3://key:hunter2@bucket/x".to_owned(),
        "s3://bucket/x?X-Amz-Signature=hunter2".to_owned(),
        "s3://bucket?X-Amz-Signature=hunter2".to_owned(),
    ] {
        let error = read(&url, 5, quick()).expect_err("a secret");
        assert!(
            !format!("{error} {error:?}").contains("hunter2"),
            "{error:?}"
        );
        assert!(
            error.to_string().contains("a password or a query"),
            "{error}"
        );
    }
}

/// What was read, and the store's credentials, are no part of what is printed.
#[test]
fn open_objects_are_printed_in_short() {
    let path = "printed/object";
    SERVER.put(path, bytes(PIECE));
    let url = format!("s3://{path}");
    let file = open(&url).unwrap();
    file.read(0..9).unwrap();
    let shown = format!("{file:?}");
    assert!(shown.contains(&url) && shown.len() < 300, "{}", shown.len());
    let folder = tempfile::tempdir().unwrap();
    let builder = Checkpoints::builder(folder.path()).upload_to("s3://printed/run");
    let shown = format!("{:?}", with(quick(), || builder.open()).unwrap());
    assert!(
        shown.contains("s3://printed/run") && !shown.contains("hunter"),
        "{shown}"
    );
}

/// Times that cannot be added to are limits that never come.
#[test]
fn the_longest_and_the_shortest_times() {
    let path = "faults/times";
    SERVER.put(path, bytes(1_000));
    SERVER.fail(path, [(1, Fault::Status(503))]);
    let settings = quick().timeout(Duration::MAX).pause(Duration::ZERO);
    assert_eq!(
        read(&SERVER.url(path), 1_000, settings).unwrap(),
        bytes(1_000)
    );
    let settings = quick().timeout(Duration::MAX).pause(Duration::MAX);
    assert_eq!(
        read(&SERVER.url(path), 1_000, settings).unwrap(),
        bytes(1_000)
    );
}

/// Callers may be threads of an async runtime, where `block_on` panics.
#[test]
fn inside_of_another_runtime() {
    let path = "faults/inside";
    let content = bytes(100_000);
    SERVER.put(path, content.clone());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let read = runtime.block_on(async { read(&SERVER.url(path), 100_000, quick()) });
    assert_eq!(read.expect("the object"), content);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let task = runtime
        .spawn(async { open(&SERVER.url("faults/inside")).and_then(|file| file.read(5..9)) });
    assert_eq!(runtime.block_on(task).unwrap().unwrap(), content[5..9]);
}

/// The pieces after those that are read one after the other are requested ahead, once each, and a random order requests nothing ahead.
#[test]
fn reading_ahead_is_bounded() {
    let path = "faults/ahead";
    let content = bytes(12 * PIECE);
    SERVER.put(path, content.clone());
    let url = SERVER.url(path);
    let file = open(&url).unwrap();
    let piece = |index: usize| {
        let at = (index * PIECE) as u64;
        assert!(file.read(at..at + 10).unwrap() == content[index * PIECE..][..10]);
    };
    [7, 3, 11, 0].into_iter().for_each(piece);
    assert_eq!(SERVER.requests(path).len(), 5, "the header and four pieces");
    // The end of piece 0, which is there, and on from it.
    file.read(PIECE as u64 - 10..PIECE as u64).unwrap();
    piece(1);
    piece(1);
    // Pieces 2, 4 and 5; 3 is there.
    let began = Instant::now();
    while SERVER.requests(path).len() < 9 && began.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(SERVER.requests(path).len(), 9);
    assert!(file.read(0..content.len() as u64).unwrap() == content);
    let mut requests = SERVER.requests(path);
    requests.sort();
    requests.dedup();
    assert_eq!(
        requests.len(),
        13,
        "the header and each piece once: {requests:?}"
    );
}

fn fault() -> impl Strategy<Value = Fault> {
    let all: Vec<_> = passing().into_iter().chain(lasting()).collect();
    (any::<prop::sample::Index>(), 0..PIECE).prop_map(move |(which, bytes)| {
        match &all[which.index(all.len())] {
            Fault::CutAfter(_) => Fault::CutAfter(bytes),
            Fault::Shorter(_) => Fault::Shorter(bytes),
            Fault::StatesMore(_) => Fault::StatesMore(bytes),
            other => other.clone(),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each range that is read has the bytes of the version that was opened, whatever the server does at some requests.
    #[test]
    fn random_ranges(
        len in 1..3 * PIECE,
        ranges in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..8),
        faults in prop::collection::vec((0usize..12, fault()), 0..4),
    ) {
        let path = "faults/random";
        let old = bytes(len);
        let new = replaced(&old);
        SERVER.put(path, old.clone());
        SERVER.fail(path, faults.clone());
        let file = with(quick(), || FixedFile::open(Path::new(&SERVER.url(path))));
        let Ok(file) = file else { return Ok(()) };
        let is_new = faults.contains(&(0, Fault::Replaced));
        for (one, other) in ranges {
            let (one, other) = (one.index(len + 1), other.index(len + 1));
            let (start, end) = (one.min(other), one.max(other));
            if file.len() != len as u64 {
                continue; // The server has lied when it was asked, so that each piece is refused.
            }
            if let Ok(read) = file.read(start as u64..end as u64) {
                let expected = if is_new { &new } else { &old };
                let right = read == expected[start..end];
                prop_assert!(right, "{start}..{end} with {faults:?}");
            }
        }
    }
}
