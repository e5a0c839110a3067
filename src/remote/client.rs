use std::collections::HashMap;
use std::error::Error as StdError;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, mpsc};
use std::time::Duration;

use bytes::Bytes;
use bytesize::ByteSize;
use object_store::aws::AmazonS3Builder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};

use super::cache::Folder;
use crate::data::cache::Cache;
use crate::error::{Result, invalid};

/// How objects are read from S3, from Google Cloud Storage and over HTTP; behind the feature `object-store`.
///
/// Wherever a dataset takes a path, it takes a URL too: `s3://bucket/key`, `gs://bucket/key`, `http://…` and `https://…`. Credentials, region and
/// endpoint come from the environment variables that the crate `object_store` reads: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`,
/// `AWS_ENDPOINT`, `GOOGLE_SERVICE_ACCOUNT`, … Google Cloud Storage is untested.
///
/// [`install`](Self::install) sets this for the whole process. Without it, the defaults hold.
///
/// # What is guaranteed
/// - **An object is fixed when it is opened**, by its length and its ETag. Each request is for a range of that version (`If-Match`). An object that
///   was replaced is an error, as a file that was written is. A server without strong ETags or without ranges is an error too.
/// - **Failures are retried**, a [number](Self::retries) of times with growing pauses: errors of the server, lost connections, answers that are
///   too short or of another range, and answers that take longer than the [timeout](Self::timeout). Then the read is a
///   [`DataError::File`](crate::error::DataError::File) with the URL and the range. Errors contain no credentials.
/// - **Memory is bounded.** Objects are read in pieces of 4 MiB. Pieces in memory take up to [`memory`](Self::memory). In flight are at most 4 more
///   for all objects together, and one for each thread that reads. Reading from one piece into the next requests the following 4 ahead of time.
///
/// ```no_run
/// use std::time::Duration;
///
/// use candle_headroom::ByteSize;
/// use candle_headroom::data::{Remote, Tokens};
///
/// Remote::new()
///     .cache("/scratch/headroom", ByteSize::gib(200))
///     .timeout(Duration::from_secs(10))
///     .install()?;
/// let tokens = Tokens::builder(["s3://corpus/train.bin"]).window(1025).open()?;
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Remote {
    pub(super) cache: Option<(PathBuf, ByteSize)>,
    memory: ByteSize,
    timeout: Duration,
    pub(super) retries: u32,
    pause: Duration,
}

/// The store adds random parts to its pauses, which cannot be 0.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
/// The pauses between attempts grow up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A year, to which times can be added.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
/// Pieces that are requested ahead of time, where they fit into half of the memory.
const AHEAD: u64 = 4;
/// Bytes that are requested at once.
pub(super) const PIECE: u64 = 4 << 20;

/// The object's number, and that of the piece in it.
pub(super) type Key = (u64, u64);

impl Default for Remote {
    fn default() -> Self {
        Self {
            cache: None,
            memory: ByteSize::mib(256),
            timeout: Duration::from_secs(30),
            retries: 6,
            pause: Duration::from_millis(100),
        }
    }
}

impl Remote {
    /// Settings with the defaults: no cache on disk, 256 MiB of memory, 6 retries, 30 s for an answer.
    ///
    /// ```
    /// # use candle_headroom::ByteSize;
    /// # use candle_headroom::data::Remote;
    /// Remote::new().install()?; // as if nothing was installed
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps pieces of datasets in this folder, up to this many bytes, for all processes of this machine that are given the same folder.
    ///
    /// A piece is written to a file of its own, which is renamed when it is complete, and found again by endpoint, URL, ETag, length and position. It
    /// carries a CRC-32: a damaged file is removed and the piece requested again. Those that were not used for the longest time are removed to
    /// make room; each process looks after writing 1/64 of the bytes, so more than 8 processes that write at once may exceed them. If the
    /// folder cannot be written, reading goes on without it, which is logged once, and it is tried again every 5 s.
    ///
    /// ```
    /// use candle_headroom::ByteSize;
    /// use candle_headroom::data::Remote;
    ///
    /// # let scratch = tempfile::tempdir()?;
    /// let folder = scratch.path().join("headroom");
    /// Remote::new().cache(&folder, ByteSize::gib(200)).install()?;
    /// assert!(folder.is_dir());
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn cache(mut self, folder: impl Into<PathBuf>, most: ByteSize) -> Self {
        self.cache = Some((folder.into(), most));
        self
    }

    /// Sets how many bytes of pieces stay in memory, those from the cache on disk too; 256 MiB by default.
    ///
    /// ```
    /// # use candle_headroom::ByteSize;
    /// # use candle_headroom::data::Remote;
    /// Remote::new().memory(ByteSize::gib(2)).install()?;
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn memory(mut self, most: ByteSize) -> Self {
        self.memory = most;
        self
    }

    /// Sets how long an answer may take, all of its bytes included; 30 s by default, a year at most.
    ///
    /// ```
    /// # use candle_headroom::ByteSize;
    /// # use candle_headroom::data::Remote;
    /// Remote::new().timeout(std::time::Duration::from_secs(10)).install()?;
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how often a request that failed is repeated; 6 times by default.
    ///
    /// ```
    /// # use candle_headroom::ByteSize;
    /// # use candle_headroom::data::Remote;
    /// Remote::new().retries(0).install()?; // the first failure is an error
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Sets the pause before a request is repeated for the first time; 100 ms by default, 1 ms at least. It doubles each time,
    /// up to 10 s, and a random part of up to half is taken off, so that the processes of a job do not ask all at once.
    ///
    /// ```
    /// # use candle_headroom::ByteSize;
    /// # use candle_headroom::data::Remote;
    /// Remote::new().pause(std::time::Duration::from_millis(20)).install()?;
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Uses these settings for all objects that this process opens from now on. Datasets that are open keep theirs.
    ///
    /// ```
    /// # use candle_headroom::ByteSize;
    /// # use candle_headroom::data::Remote;
    /// let error = Remote::new().memory(ByteSize::mib(1)).install().unwrap_err();
    /// assert!(error.is_data() && error.to_string().ends_with("got 1.0 MiB"), "{error}");
    /// ```
    ///
    /// # Errors
    /// An [error of data](crate::Error::is_data) if the timeout is 0, if less than one piece of 4 MiB fits into the memory or the cache, or if the
    /// cache's folder cannot be created.
    pub fn install(self) -> Result<()> {
        let client = Client::new(self)?;
        *CURRENT.lock() = Some(Arc::new(client));
        Ok(())
    }
}

static CURRENT: Mutex<Option<Arc<Client>>> = Mutex::new(None);

/// It is never dropped, which would wait for its threads.
static RUNTIME: LazyLock<io::Result<Runtime>> = LazyLock::new(|| {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).thread_name("headroom-objects");
    builder.enable_all().build()
});

pub(super) fn runtime() -> io::Result<&'static Runtime> {
    let copy = |error: &io::Error| io::Error::new(error.kind(), error.to_string());
    RUNTIME.as_ref().map_err(copy)
}

/// Runs on the crate's own threads, and waits: `block_on` panics in a thread of another runtime.
pub(super) fn wait<T: Send + 'static>(
    work: impl Future<Output = io::Result<T>> + Send + 'static,
) -> io::Result<T> {
    let (send, receive) = mpsc::channel();
    runtime()?.spawn(async move {
        // Nobody waits any more if the caller panicked.
        let _ = send.send(work.await);
    });
    let ended = receive.recv();
    ended.unwrap_or_else(|_| Err(io::Error::other("the request panicked")))
}

/// Connections, and what was read, of all objects with the same settings.
pub(super) struct Client {
    pub(super) settings: Remote,
    pub(super) cache: Option<Folder>,
    pub(super) pieces: Cache<Key, Bytes>,
    pub(super) ahead: u64,
    /// A clone for each piece that is loaded ahead.
    pub(super) loading: Arc<()>,
    /// By scheme and host or bucket.
    stores: Mutex<HashMap<String, Arc<dyn ObjectStore>>>,
}

impl Client {
    pub(super) fn new(mut settings: Remote) -> Result<Self> {
        settings.timeout = settings.timeout.min(LONGEST_TIMEOUT);
        settings.pause = settings.pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        let least = ByteSize(PIECE);
        let (cache, memory) = (settings.cache.as_ref(), settings.memory.as_u64());
        let bytes = [Some(settings.memory), cache.map(|(_, most)| *most)];
        if let Some(small) = bytes.iter().flatten().find(|bytes| **bytes < least) {
            return Err(invalid!(
                Data,
                "objects are read in pieces of {least}, which must fit into the memory and the cache, got {small}"
            ));
        }
        if settings.timeout.is_zero() {
            return Err(invalid!(Data, "the timeout must be above 0, got 0"));
        }
        let open = |(folder, most): &(PathBuf, ByteSize)| {
            let cache = Folder::open(folder, most.as_u64());
            cache.map_err(|error| invalid!(Data, "the cache {}: {error}", folder.display()))
        };
        Ok(Self {
            cache: cache.map(open).transpose()?,
            pieces: Cache::new(memory),
            ahead: AHEAD.min(memory / PIECE / 2),
            loading: Arc::default(),
            settings,
            stores: Mutex::default(),
        })
    }

    pub(super) fn current() -> io::Result<Arc<Self>> {
        let mut current = CURRENT.lock();
        if let Some(client) = &*current {
            return Ok(Arc::clone(client));
        }
        let client = Self::new(Remote::new()).map_err(io::Error::other)?;
        Ok(Arc::clone(current.insert(Arc::new(client))))
    }

    /// Finds the store of a URL, and the object's place in it.
    pub(super) fn find(&self, url: &str) -> io::Result<(Arc<dyn ObjectStore>, Path)> {
        let invalid = |problem: &str| io::Error::new(ErrorKind::InvalidInput, problem.to_owned());
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let (host, key) = rest.split_once('/').unwrap_or((rest, ""));
        let is_http = scheme.starts_with("http");
        if host.contains('@') || rest.contains(['?', '#']) {
            return Err(invalid(
                "has a password or a query, which would stand in logs: use a URL without, and S3 with credentials in the environment",
            ));
        }
        let path = match is_http {
            true => Path::from_url_path(key),
            false => Path::parse(key),
        };
        let path = path.map_err(|error| invalid(&error.to_string()))?;
        let base = format!("{scheme}://{host}");
        if let Some(store) = self.stores.lock().get(&base) {
            return Ok((Arc::clone(store), path));
        }
        let store = self.connect(scheme, &base, 0).map_err(failure)?;
        self.stores.lock().insert(base, Arc::clone(&store));
        Ok((store, path))
    }

    /// The store retries uploads by itself. Reads are retried here, with the whole answer.
    pub(super) fn connect(
        &self,
        scheme: &str,
        base: &str,
        retries: u32,
    ) -> object_store::Result<Arc<dyn ObjectStore>> {
        let own = &self.settings;
        let retry = RetryConfig {
            backoff: BackoffConfig {
                init_backoff: own.pause,
                max_backoff: LONGEST_PAUSE,
                base: 2.,
            },
            max_retries: retries as usize,
            retry_timeout: Duration::MAX,
        };
        // Reading has a limit of its own, which comes first.
        let timeout = own.timeout * if retries == 0 { 2 } else { 1 };
        let options = ClientOptions::new().with_allow_http(true);
        let options = options.with_timeout(timeout).with_connect_timeout(timeout);
        Ok(match scheme {
            "s3" => {
                let builder = AmazonS3Builder::from_env().with_url(base);
                Arc::new(
                    builder
                        .with_client_options(options)
                        .with_retry(retry)
                        .build()?,
                )
            }
            "gs" => {
                let builder = GoogleCloudStorageBuilder::from_env().with_url(base);
                Arc::new(
                    builder
                        .with_client_options(options)
                        .with_retry(retry)
                        .build()?,
                )
            }
            _ => {
                let builder = HttpBuilder::new().with_url(base);
                Arc::new(
                    builder
                        .with_client_options(options)
                        .with_retry(retry)
                        .build()?,
                )
            }
        })
    }

    /// Repeats an attempt while it fails in a way that may pass.
    pub(super) async fn retried<T, F: Future<Output = object_store::Result<T>>>(
        &self,
        attempt: impl Fn() -> F,
    ) -> io::Result<T> {
        let own = &self.settings;
        let mut pause = own.pause;
        for tries in 1.. {
            let (error, is_final) = match tokio::time::timeout(own.timeout, attempt()).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(error)) => {
                    let is_final = !matches!(error, object_store::Error::Generic { .. });
                    (failure(error), is_final)
                }
                Err(_) => {
                    let problem = format!("no complete answer within {:?}", own.timeout);
                    (io::Error::new(ErrorKind::TimedOut, problem), false)
                }
            };
            if is_final || tries > own.retries {
                let problem = match tries {
                    1 => error.to_string(),
                    _ => format!("{error} (tried {tries} times)"),
                };
                return Err(io::Error::new(error.kind(), problem));
            }
            let random = RandomState::new().hash_one(()) as f64 / u64::MAX as f64;
            tokio::time::sleep(pause.mul_f64(1. - random / 2.)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Err(io::Error::other("was not tried"))
    }
}

/// Without URLs, which a redirect may have given a signature, and without the server's text, which may repeat a request's headers.
pub(super) fn failure(error: object_store::Error) -> io::Error {
    use object_store::Error as Store;

    let kind = match &error {
        Store::NotFound { .. } => ErrorKind::NotFound,
        Store::PermissionDenied { .. } | Store::Unauthenticated { .. } => {
            ErrorKind::PermissionDenied
        }
        Store::NotSupported { .. } => ErrorKind::Unsupported,
        _ => ErrorKind::Other,
    };
    let mut deepest: &dyn StdError = &error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    let text = deepest.to_string();
    // After a status, and after `error response`, comes the server's own text.
    let shown = match text.strip_prefix("Server returned ") {
        Some(answer) => answer
            .trim_start_matches("non-2xx status code: ")
            .split(':')
            .next(),
        None => text.split(['<', '{', '\n']).next(),
    };
    let problem = match error {
        Store::Precondition { .. } => {
            "changed while it was open: write a new object under another name instead".to_owned()
        }
        Store::NotSupported { .. } => {
            "the server does not answer requests for ranges: copy the object to a disk or to a server that does".to_owned()
        }
        _ => shown.unwrap_or_default().trim_end_matches([' ', ':']).to_owned(),
    };
    io::Error::new(kind, problem)
}
