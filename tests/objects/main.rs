//! Datasets and checkpoints in object stores, on a real server in this process that misbehaves on command.

mod cache;
mod checkpoints;
mod datasets;
mod faults;
mod s3;
mod server;

use std::error::Error as StdError;
use std::path::Path;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use candle_headroom::data::Remote;
use candle_headroom::error::DataError;
use candle_headroom::fixed_file::FixedFile;
use server::Server;

/// One piece of an object, as the library reads it.
const PIECE: usize = 4 << 20;

/// The server of all tests, each of which has objects of its own. S3's address is that of this process.
static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let server = Server::start();
    let values = [
        (
            "AWS_ENDPOINT",
            server.url("").trim_end_matches('/').to_owned(),
        ),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_ACCESS_KEY_ID", "hunter1".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "hunter2".to_owned()),
    ];
    for (name, value) in values {
        // SAFETY: each test begins here, so all others wait, and no thread but Rust's own reads the environment.
        unsafe { std::env::set_var(name, value) };
    }
    server
});

/// Settings by which a test of failures ends soon.
fn quick() -> Remote {
    let pause = Duration::from_millis(2);
    Remote::new()
        .retries(3)
        .pause(pause)
        .timeout(Duration::from_secs(5))
}

/// Opens something with these settings, which hold for all objects of the process that are opened after them.
fn with<T>(settings: Remote, open: impl FnOnce() -> T) -> T {
    static ONE: Mutex<()> = Mutex::new(());

    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    settings.install().expect("settings");
    open()
}

fn open(url: &str) -> std::io::Result<FixedFile> {
    with(quick(), || FixedFile::open(Path::new(url)))
}

/// Bytes of which no two pieces are alike.
fn bytes(len: usize) -> Vec<u8> {
    static ALL: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut state = 1u64;
        let words = (0..12 * PIECE / 8).flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        words.collect()
    });
    ALL[..len].to_vec()
}

/// The path, the problem and the kind of an error of a file.
#[track_caller]
fn of_file<'e>(
    error: &'e (dyn StdError + 'static),
) -> (&'e Path, &'e str, Option<std::io::ErrorKind>) {
    let inner = match error.downcast_ref() {
        Some(candle_headroom::Error::Data(data)) => &**data,
        _ => error.downcast_ref().expect("an error of data"),
    };
    match inner {
        DataError::File {
            path,
            problem,
            reason,
            ..
        } => (path, problem, reason.as_ref().map(std::io::Error::kind)),
        other => panic!("not of a file: {other}"),
    }
}
