use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::path::PathBuf;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::task::{JoinError, JoinSet};

use super::client::{Client, failure, wait};
use super::object::Object;
use crate::fixed_file::FixedFile;

/// What one request writes, at least; larger files are written in parts of equal size.
const PART: u64 = 8 << 20;
/// Parts that are written at the same time.
const TOGETHER: usize = 4;
/// S3 allows 10,000.
const MOST_PARTS: u64 = 9_999;

/// A folder of a bucket, which is written. The store repeats what fails.
#[derive(Clone)]
pub(crate) struct RemoteFolder {
    /// Reads without the cache, which is for what is read again.
    client: Arc<Client>,
    url: String,
    store: Arc<dyn ObjectStore>,
    place: Path,
}

impl RemoteFolder {
    pub(crate) fn open(url: &str) -> io::Result<Self> {
        let mut settings = Client::current()?.settings.clone();
        settings.cache = None;
        let client = Client::new(settings).map_err(io::Error::other)?;
        let url = url.trim_end_matches('/').to_owned();
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        if !matches!(scheme, "s3" | "gs") {
            let problem = "is not a folder of a bucket, such as s3://bucket/run-7";
            return Err(io::Error::new(ErrorKind::InvalidInput, problem));
        }
        let (_, place) = client.find(&url)?;
        let base = format!("{scheme}://{}", rest.split('/').next().unwrap_or_default());
        let store = client.connect(scheme, &base, client.settings.retries);
        Ok(Self {
            store: store.map_err(failure)?,
            client: Arc::new(client),
            url,
            place,
        })
    }

    /// The URL of what it holds.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        format!("{}/{name}", self.url).into()
    }

    /// Opens what it holds.
    pub(crate) fn get(&self, name: &str) -> io::Result<FixedFile> {
        let url = format!("{}/{name}", self.url);
        let object = Object::of(Arc::clone(&self.client), &url)?;
        Ok(FixedFile::of_object(url.into(), object))
    }

    fn place(&self, name: &str) -> Path {
        let parts = name.split('/').filter(|part| !part.is_empty());
        parts.fold(self.place.clone(), |place, part| place.join(part))
    }

    /// The names of the folders, and the names and lengths of the files, in a folder of it.
    pub(crate) fn list(&self, folder: &str) -> io::Result<(Vec<String>, BTreeMap<String, u64>)> {
        let (store, place) = (Arc::clone(&self.store), self.place(folder));
        let listed = wait(async move {
            let listed = store.list_with_delimiter(Some(&place)).await;
            listed.map_err(failure)
        })?;
        let name = |path: &Path| path.filename().unwrap_or_default().to_owned();
        let files = listed.objects.iter();
        let files = files.map(|object| (name(&object.location), object.size));
        Ok((
            listed.common_prefixes.iter().map(name).collect(),
            files.collect(),
        ))
    }

    /// Writes an object of a file's bytes.
    pub(crate) fn put(&self, name: &str, file: &std::path::Path) -> io::Result<()> {
        let mut file = std::fs::File::open(file)?;
        let len = file.metadata()?.len();
        let part = PART.max(len.div_ceil(MOST_PARTS));
        let mut next = move || {
            let mut bytes = Vec::new();
            (&mut file).take(part).read_to_end(&mut bytes)?;
            io::Result::Ok(bytes)
        };
        let (store, place) = (Arc::clone(&self.store), self.place(name));
        wait(async move {
            if len <= part {
                let put = store.put(&place, next()?.into()).await;
                return put.map(|_| ()).map_err(failure);
            }
            let mut upload = store.put_multipart(&place).await.map_err(failure)?;
            let mut parts = JoinSet::new();
            let all = async {
                for _ in 0..len.div_ceil(part) {
                    if parts.len() == TOGETHER {
                        written(parts.join_next().await)?;
                    }
                    parts.spawn(upload.put_part(next()?.into()));
                }
                while !parts.is_empty() {
                    written(parts.join_next().await)?;
                }
                upload.complete().await.map_err(failure)
            };
            if let Err(error) = all.await {
                parts.shutdown().await;
                // Parts that stay cost money until the bucket's rules remove them.
                let _ = upload.abort().await;
                return Err(error);
            }
            Ok(())
        })
    }

    /// Removes an object, if it is there.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        let (store, place) = (Arc::clone(&self.store), self.place(name));
        wait(async move {
            match store.delete(&place).await {
                Err(object_store::Error::NotFound { .. }) => Ok(()),
                removed => removed.map_err(failure),
            }
        })
    }
}

/// The end of a part that was written.
fn written(part: Option<Result<object_store::Result<()>, JoinError>>) -> io::Result<()> {
    part.map_or(Ok(()), |part| part?.map_err(failure))
}

/// Without the store, which prints tokens.
impl fmt::Debug for RemoteFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}
