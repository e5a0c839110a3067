use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt};

use super::pieces::{Key, Piece};
use super::{Client, runtime, wait};

/// Bytes that are requested at once.
pub(super) const PIECE: u64 = 4 << 20;
/// Pieces that are requested ahead of time, where they fit into half of the memory.
const AHEAD: u64 = 4;

/// An object of which one version is read, by pieces.
#[derive(Debug)]
pub(crate) struct Object {
    client: Arc<Client>,
    store: Arc<dyn ObjectStore>,
    place: Path,
    url: String,
    etag: String,
    len: u64,
    /// Among those of this process.
    number: u64,
    /// The piece that was read last.
    last: AtomicU64,
}

impl Object {
    pub(crate) fn open(url: &str) -> io::Result<Arc<Self>> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);

        let client = Client::current()?;
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
            etag,
            len: found.size,
            number: NUMBER.fetch_add(1, Relaxed),
            last: AtomicU64::new(u64::MAX),
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
        while !buffer.is_empty() {
            let index = at / PIECE;
            let range = self.range(index);
            let len = (range.end - at).min(buffer.len() as u64);
            let (now, rest) = buffer.split_at_mut(len as usize);
            let within = at - range.start;
            let read = self.piece(index)?.read_at(now, within);
            if read.is_err() {
                // Somebody has cut the cache's file, which is checked anew.
                let key = self.key(index);
                self.client.pieces.forget(|other| other == key);
                self.piece(index)?.read_at(now, within)?;
            }
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

    /// Waits for a piece. Where reading goes on from the piece before, those that follow are requested too.
    fn piece(self: &Arc<Self>, index: u64) -> io::Result<Piece> {
        let pieces = &self.client.pieces;
        if self.last.swap(index, Relaxed) != index {
            self.load(index, false)?;
            let before = index.checked_sub(1).map(|before| self.key(before));
            if before.is_some_and(|before| pieces.holds(before)) {
                let end = self
                    .len
                    .div_ceil(PIECE)
                    .min(index + 1 + AHEAD.min(pieces.memory() / PIECE / 2));
                (index + 1..end).try_for_each(|next| self.load(next, true))?;
            }
        }
        loop {
            if let Some(piece) = pieces.wait(self.key(index)) {
                return piece;
            }
            self.load(index, false)?;
        }
    }

    /// Begins to load a piece, unless it is there. Of a piece that nobody waits for, a failure is forgotten: whoever needs it tries again.
    fn load(self: &Arc<Self>, index: u64, is_ahead: bool) -> io::Result<()> {
        let (runtime, key) = (runtime()?, self.key(index));
        if self.client.pieces.begin(key) {
            let own = Arc::clone(self);
            runtime.spawn(async move {
                // In a task of its own, so that a panic is an error of those that wait.
                let loaded = tokio::spawn(Arc::clone(&own).loaded(index)).await;
                let loaded = loaded.unwrap_or_else(|error| Err(io::Error::other(error)));
                let is_kept = loaded.is_ok() || !is_ahead;
                own.client.pieces.end(key, is_kept.then_some(loaded));
            });
        }
        Ok(())
    }

    async fn loaded(self: Arc<Self>, index: u64) -> io::Result<Piece> {
        let (client, range) = (&self.client, self.range(index));
        let key = format!(
            "{}\n{}\n{}\n{index} of {PIECE}",
            self.url, self.etag, self.len
        );
        let file = client.cache.as_ref();
        let file = file.and_then(|cache| cache.read(&key, range.end - range.start));
        if let Some(file) = file {
            return Ok(Piece::File(Arc::new(file)));
        }
        let _permit = client.requests.acquire().await.map_err(io::Error::other)?;
        let fetched = client.retried(|| self.fetch(&range)).await;
        let fetched = fetched.map_err(|error| {
            let problem = format!("bytes {}..{}: {error}", range.start, range.end);
            io::Error::new(error.kind(), problem)
        })?;
        if let Some(cache) = &client.cache {
            cache.write(&key, &fetched);
        }
        Ok(Piece::Memory(fetched))
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

impl Drop for Object {
    fn drop(&mut self) {
        self.client
            .pieces
            .forget(|(number, _)| number == self.number);
    }
}
