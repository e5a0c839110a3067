use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use candle_headroom::ByteSize;
use candle_headroom::data::Remote;
use candle_headroom::fixed_file::FixedFile;

use crate::server::{Fault, Server};
use crate::{PIECE, SERVER, bytes, quick, with};

fn cached(folder: &Path) -> Remote {
    quick().cache(folder, ByteSize::mib(512))
}

fn read(url: &str, settings: Remote) -> std::io::Result<Vec<u8>> {
    let file = with(settings, || FixedFile::open(Path::new(url)))?;
    file.read(0..file.len())
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    files
}

/// Requests for ranges.
fn gets(path: &str) -> usize {
    let requests = SERVER.requests(path);
    requests
        .iter()
        .filter(|request| request.starts_with("GET"))
        .count()
}

#[test]
fn what_is_cached_is_not_requested_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = "cache/again";
    let content = bytes(2 * PIECE + 5);
    SERVER.put(path, content.clone());
    let url = SERVER.url(path);
    assert!(read(&url, cached(folder.path())).unwrap() == content);
    assert_eq!((gets(path), files(folder.path()).len()), (3, 3));
    // Every request for bytes would fail.
    SERVER.fail(path, (1..99).map(|at| (at, Fault::Status(404))));
    assert!(read(&url, cached(folder.path())).unwrap() == content);
    assert_eq!(gets(path), 0);
    // Another version has files of its own.
    let other = bytes(2 * PIECE + 6);
    SERVER.put(path, other.clone());
    SERVER.fail(path, []);
    assert!(read(&url, cached(folder.path())).unwrap() == other);
    assert_eq!((gets(path), files(folder.path()).len()), (3, 6));
}

/// Each kind of damage to each file is noticed, and its piece requested again.
#[test]
fn damaged_files_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = "cache/damaged";
    let content = bytes(PIECE + 100);
    SERVER.put(path, content.clone());
    let url = SERVER.url(path);
    assert!(read(&url, cached(folder.path())).unwrap() == content);
    let intact: Vec<_> = files(folder.path())
        .into_iter()
        .map(|file| (fs::read(&file).unwrap(), file))
        .collect();
    let flip = |at: usize| {
        move |bytes: &mut Vec<u8>| {
            let at = at.min(bytes.len() - 1);
            bytes[at] ^= 1;
        }
    };
    type Damage = Box<dyn Fn(&mut Vec<u8>)>;
    let damages: [Damage; 7] = [
        Box::new(flip(0)),
        Box::new(flip(50)),
        Box::new(flip(usize::MAX)),
        Box::new(|bytes| bytes.truncate(bytes.len() - 1)),
        Box::new(|bytes| bytes.truncate(10)),
        Box::new(Vec::clear),
        Box::new(|bytes| bytes.push(0)),
    ];
    for damage in damages {
        for (bytes, file) in &intact {
            let mut damaged = bytes.clone();
            damage(&mut damaged);
            fs::write(file, damaged).unwrap();
            SERVER.fail(path, []);
            assert!(read(&url, cached(folder.path())).unwrap() == content);
            assert_eq!(gets(path), 1);
            assert!(fs::read(file).unwrap() == *bytes, "it was written anew");
        }
    }
    // One piece under the name of another.
    fs::copy(&intact[0].1, &intact[1].1).unwrap();
    assert!(read(&url, cached(folder.path())).unwrap() == content);
}

#[test]
fn the_oldest_make_room() {
    let folder = tempfile::tempdir().unwrap();
    let others = folder.path().join("of-somebody-else");
    fs::write(&others, "stays").unwrap();
    let content = bytes(5 * PIECE);
    SERVER.put("cache/room", content.clone());
    let url = SERVER.url("cache/room");
    let left_behind = folder.path().join("0123456789abcdef.piece-77-1");
    fs::write(&left_behind, "of a killed process").unwrap();
    let old = fs::File::options().write(true).open(&left_behind).unwrap();
    old.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let being_written = folder.path().join("0123456789abcdef.piece-77-2");
    fs::write(&being_written, "of a living process").unwrap();
    let most = ByteSize(3 * PIECE as u64);
    for _ in 0..2 {
        assert!(read(&url, quick().cache(folder.path(), most)).unwrap() == content);
        let bytes: u64 = files(folder.path())
            .iter()
            .map(|file| file.metadata().unwrap().len())
            .sum();
        assert!(bytes <= most.as_u64() && bytes > PIECE as u64, "{bytes}");
    }
    assert!(others.exists() && !left_behind.exists());
    assert!(being_written.exists(), "it was written a moment ago");
}

/// Where the folder cannot be written, nothing is lost but the cache.
#[test]
fn reading_goes_on_without_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let path = "cache/without";
    let content = bytes(2 * PIECE);
    SERVER.put(path, content.clone());
    // Memory has one piece, so that the others are requested again.
    let settings = cached(folder.path()).memory(ByteSize(PIECE as u64));
    let file = with(settings, || FixedFile::open(Path::new(&SERVER.url(path)))).unwrap();
    fs::remove_dir(folder.path()).unwrap();
    assert!(file.read(0..file.len()).unwrap() == content);
    assert!(!folder.path().exists());
    // It is tried again after a while.
    fs::create_dir(folder.path()).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(6));
    assert!(file.read(0..file.len()).unwrap() == content);
    assert!(!files(folder.path()).is_empty());
    // A file is in the place of the folder.
    let error = quick()
        .cache(Path::new("/dev/null/x"), ByteSize::gib(1))
        .install()
        .unwrap_err();
    assert!(
        error.is_data() && error.to_string().contains("/dev/null/x"),
        "{error}"
    );
    let error = quick()
        .cache(folder.path(), ByteSize::mib(1))
        .install()
        .unwrap_err();
    assert!(error.to_string().contains("got 1.0 MiB"), "{error}");
}

/// The work of the processes below: reads an object through a cache again and again, and says so.
#[test]
fn child() {
    let Ok(url) = std::env::var("OBJECTS_CHILD") else {
        return;
    };
    let folder = std::env::var("OBJECTS_FOLDER").unwrap();
    let files = std::env::var("OBJECTS_TIMES").unwrap().parse().unwrap();
    for time in 0..files {
        println!("begins {time}");
        read(&url, cached(Path::new(&folder))).unwrap();
    }
}

fn spawn(url: &str, folder: &Path, times: usize, limit: &str) -> std::process::Child {
    command(url, folder, times, limit).spawn().unwrap()
}

fn command(url: &str, folder: &Path, times: usize, limit: &str) -> Command {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("sh");
    // The limit on the size of a file is a full disk's stand-in.
    let script = format!(
        "ulimit -f {limit}; exec {} --exact cache::child --nocapture",
        program.display()
    );
    command.args(["-c", &script]).stdout(Stdio::piped());
    command
        .env("OBJECTS_CHILD", url)
        .env("OBJECTS_FOLDER", folder);
    command.env("OBJECTS_TIMES", times.to_string());
    command
}

/// A process is killed at some time while it writes: what it leaves is never read as a piece.
#[test]
fn a_killed_writer_leaves_no_wrong_bytes() {
    let path = "cache/killed";
    let content = bytes(6 * PIECE);
    SERVER.put(path, content.clone());
    let url = SERVER.url(path);
    for delay in 0..8 {
        let folder = tempfile::tempdir().unwrap();
        let mut child = spawn(&url, folder.path(), 1, "unlimited");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("begins")));
        std::thread::sleep(std::time::Duration::from_millis(7 * delay));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(
            read(&url, cached(folder.path())).unwrap() == content,
            "after {delay}"
        );
    }
}

#[test]
fn processes_share_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = "cache/shared";
    let content = bytes(3 * PIECE);
    SERVER.put(path, content.clone());
    let url = SERVER.url(path);
    let children: Vec<_> = (0..2)
        .map(|_| spawn(&url, folder.path(), 2, "unlimited"))
        .collect();
    for child in children {
        assert!(child.wait_with_output().unwrap().status.success());
    }
    SERVER.fail(path, []);
    assert!(read(&url, cached(folder.path())).unwrap() == content);
    assert_eq!(gets(path), 0);
}

#[test]
fn a_full_disk_ends_the_cache_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = "cache/full";
    SERVER.put(path, bytes(2 * PIECE));
    let child = spawn(&SERVER.url(path), folder.path(), 2, "100");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(
        files(folder.path()),
        [] as [PathBuf; 0],
        "nothing is left half-written"
    );
    assert_eq!(gets(path), 4);
    // A damaged file goes, although none comes in its place.
    read(&SERVER.url(path), cached(folder.path())).unwrap();
    let [damaged, intact] = &files(folder.path())[..] else {
        panic!("two pieces")
    };
    fs::write(damaged, "damaged").unwrap();
    let child = spawn(&SERVER.url(path), folder.path(), 1, "100");
    assert!(child.wait_with_output().unwrap().status.success());
    assert_eq!(files(folder.path()), std::slice::from_ref(intact));
}

/// The same bucket's name, key, ETag and length in two stores.
#[test]
fn pieces_are_those_of_an_endpoint() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = ("cache/endpoint", Server::start());
    for (server, content) in [(&*SERVER, b"here"), (&other, b"over")] {
        server.put(path, content.to_vec());
        server.set_etag(path, "\"1\"");
    }
    let url = format!("s3://{path}");
    let mut child = command(&url, folder.path(), 1, "unlimited");
    child.env("AWS_ENDPOINT", other.url("").trim_end_matches('/'));
    assert!(child.status().unwrap().success());
    assert_eq!(files(folder.path()).len(), 1);
    assert_eq!(read(&url, cached(folder.path())).unwrap(), b"here");
}
