use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{env, fmt};

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt};

use super::client::{Client, Key, PIECE, runtime, wait};

/// An object of which one version is read, by pieces.
pub(crate) struct Object {
    client: Arc<Client>,
    store: Arc<dyn ObjectStore>,
    place: Path,
    url: String,
    /// Of S3 and Google Cloud Storage, where the environment names it: two stores may have the same bucket.
    endpoint: String,
    etag: String,
    len: u64,
    /// Among those of this process.
    number: u64,
}

thread_local! {
    /// The object that this thread read last, and where that ended.
    static LAST: Cell<(u64, u64)> = const { Cell::new((u64::MAX, 0)) };
}
/// Reading goes on if it begins so near to where it ended. In a shuffled order few reads do, and pieces ahead of them would displace others.
const NEAR: u64 = 64 << 10;

/// By which the environment names another store than the usual one.
const ENDPOINTS: [&str; 5] = [
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT",
    "AWS_S3_ENDPOINT",
    "GOOGLE_BASE_URL",
];

impl Object {
    pub(crate) fn open(url: &str) -> io::Result<Arc<Self>> {
        Self::of(Client::current()?, url)
    }

    pub(super) fn of(client: Arc<Client>, url: &str) -> io::Result<Arc<Self>> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);

        let (store, place) = client.find(url)?;
        let (of, by, at) = (Arc::clone(&client), Arc::clone(&store), place.clone());
        let found = wait(async move { of.retried(|| by.head(&at)).await })?;
        let etag = found.e_tag.filter(|etag| !etag.starts_with("W/"));
        let etag = etag.ok_or_else(|| {
            io::Error::new(
                ErrorKind::Unsupported,
                "the server states no strong ETag, by which a change would be noticed: copy the object to a disk or to another server",
            )
        })?;
        Ok(Arc::new(Self {
            client,
            store,
            place,
            url: url.to_owned(),
            endpoint: ENDPOINTS
                .map(|name| env::var(name).unwrap_or_default())
                .join(" "),
            etag,
            len: found.size,
            number: NUMBER.fetch_add(1, Relaxed),
        }))
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Fills a buffer with the bytes from a position on.
    pub(crate) fn read_at(self: &Arc<Self>, mut buffer: &mut [u8], mut at: u64) -> io::Result<()> {
        let end = at.saturating_add(buffer.len() as u64);
        if end > self.len {
            let problem = format!("ends at byte {}, before byte {end}", self.len);
            return Err(io::Error::new(ErrorKind::UnexpectedEof, problem));
        }
        // The piece from which this thread goes on.
        let (number, before) = LAST.replace((self.number, end));
        let is_near = number == self.number && at.abs_diff(before) < NEAR;
        let goes_on = is_near.then(|| before.saturating_sub(1) / PIECE);
        let is_long = buffer.len() as u64 > PIECE;
        while !buffer.is_empty() {
            let index = at / PIECE;
            let range = self.range(index);
            let len = (range.end - at).min(buffer.len() as u64);
            let (now, rest) = buffer.split_at_mut(len as usize);
            let within = at - range.start;
            if is_long || goes_on.is_some_and(|before| before < index) {
                self.read_ahead(index)?;
            }
            let piece = self.piece(index)?;
            let bytes = piece
                .get(within as usize..)
                .and_then(|it| it.get(..now.len()));
            now.copy_from_slice(bytes.ok_or(ErrorKind::UnexpectedEof)?);
            (buffer, at) = (rest, at + len);
        }
        Ok(())
    }

    fn key(&self, index: u64) -> Key {
        (self.number, index)
    }

    fn range(&self, index: u64) -> Range<u64> {
        let start = index * PIECE;
        start..(start + PIECE).min(self.len)
    }

    /// Begins to load the pieces that follow.
    fn read_ahead(self: &Arc<Self>, index: u64) -> io::Result<()> {
        let pieces = &self.client.pieces;
        let end = self.len.div_ceil(PIECE).min(index + 1 + self.client.ahead);
        for next in (index + 1..end).filter(|next| !pieces.holds(self.key(*next))) {
            // These threads look up names of hosts too, so that they must not all wait for answers.
            let loading = Arc::clone(&self.client.loading);
            if Arc::strong_count(&loading) as u64 > self.client.ahead + 1 {
                break;
            }
            let own = Arc::clone(self);
            // Whoever needs it sees its failure, and tries again.
            runtime()?.spawn_blocking(move || {
                let _loading = loading;
                own.piece(next).is_ok()
            });
        }
        Ok(())
    }

    /// Waits for a piece.
    fn piece(self: &Arc<Self>, index: u64) -> io::Result<Arc<Bytes>> {
        self.client.pieces.get(self.key(index), || {
            let (cache, range) = (self.client.cache.as_ref(), self.range(index));
            let key = format!(
                "{}\n{}\n{}\n{}\n{index} of {PIECE}",
                self.endpoint, self.url, self.etag, self.len
            );
            let len = range.end - range.start;
            if let Some(bytes) = cache.and_then(|cache| cache.read(&key, len)) {
                return Ok((bytes, len));
            }
            let (own, of) = (Arc::clone(self), range.clone());
            let fetched = wait(async move { own.client.retried(|| own.fetch(&of)).await });
            let fetched = fetched.map_err(|error| {
                let problem = format!("bytes {}..{}: {error}", range.start, range.end);
                io::Error::new(error.kind(), problem)
            })?;
            if let Some(cache) = cache {
                cache.write(&key, &fetched);
            }
            Ok((fetched, len))
        })
    }

    /// Requests a range of the version that was opened. The store compares the range of the answer.
    async fn fetch(&self, range: &Range<u64>) -> object_store::Result<Bytes> {
        let options = GetOptions {
            if_match: Some(self.etag.clone()),
            range: Some(GetRange::Bounded(range.clone())),
            ..GetOptions::default()
        };
        let found = self.store.get_opts(&self.place, options).await?;
        if found.meta.e_tag.as_ref() != Some(&self.etag) || found.meta.size != self.len {
            return Err(Error::Precondition {
                path: String::new(),
                source: "another version".into(),
            });
        }
        let bytes = found.bytes().await?;
        match bytes.len() as u64 == range.end - range.start {
            true => Ok(bytes),
            false => Err(Error::Generic {
                store: "",
                source: format!("the answer has {} bytes", bytes.len()).into(),
            }),
        }
    }
}

/// Without pieces, and without the store, which prints tokens.
impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes, {})", self.url, self.len, self.etag)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.client
            .pieces
            .forget(|(number, _)| number == self.number);
    }
}
