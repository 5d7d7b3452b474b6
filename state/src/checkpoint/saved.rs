//! A published checkpoint or savepoint, read back: its manifest, and its files brought to local folders, each verified.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::GetResultPayload;
use tokio::time::Instant;
use xxhash_rust::xxh3::Xxh3;

use super::document::hex;
use super::error::{CheckpointError, Result, transient};
use super::files::{blocking, hash, identity, local};
use super::manifest::{Manifest, Part, StoredFile};
use super::progress::millis;
use super::storage::Storage;
use super::store::Inner;

/// Bytes are gathered to this many before the disk sees them.
const PIECE: usize = 1 << 20;

/// A published checkpoint or savepoint; cheap to clone.
#[derive(Clone, Debug)]
pub struct Saved {
    manifest: Arc<Manifest>,
    /// Its root is what the manifest's paths are relative to.
    storage: Storage,
    store: Arc<Inner>,
}

/// What was done to bring a part back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DownloadReport {
    /// Each file, in the part's order.
    pub files: Vec<FileDownload>,
    /// The bytes that came from the storage.
    pub downloaded_bytes: u64,
    /// The bytes of local files that were taken instead.
    pub reused_bytes: u64,
    /// How long it took, in milliseconds.
    pub download_ms: u64,
}

/// What was done to bring a file back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDownload {
    /// Its local name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// A local file had the right content.
    pub reused: bool,
    /// How long it took, in milliseconds.
    pub download_ms: u64,
}

impl Saved {
    pub(crate) fn new(manifest: Manifest, storage: Storage, store: Arc<Inner>) -> Self {
        Self { manifest: Arc::new(manifest), storage, store }
    }

    /// What it consists of.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Where it lies, for messages: the storage's URL and the folder that the manifest's paths are relative to.
    pub fn place(&self) -> String {
        format!("{} ({})", self.storage.url(), self.storage.name(""))
    }

    /// Brings the files of a part into a local folder, which is made: several at once, each with its length and checksum
    /// verified. A file of the same name, length and checksum in one of the `reuse` folders (or itself named there) is taken
    /// instead: hard-linked if it is one that is never changed, copied otherwise.
    ///
    /// Nothing is told to the disk: local state needs not outlive a power cut.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`] names the object, what was expected and what was found; when the storage or the disk fails.
    pub async fn download_part(&self, part: &Part, into: &Path, reuse: &[PathBuf]) -> Result<DownloadReport> {
        let started = Instant::now();
        let folder = into.to_owned();
        blocking("make the folder", into, move || fs::create_dir_all(folder)).await?;
        let files = stream::iter(part.files.clone().into_iter().map(|file| self.one(file, into, reuse)));
        let files: Vec<FileDownload> =
            files.buffered(self.store.options.parallel.max(1)).try_collect().await?;
        let bytes =
            |reused: bool| files.iter().filter(|file| file.reused == reused).map(|file| file.bytes).sum();
        Ok(DownloadReport {
            downloaded_bytes: bytes(false),
            reused_bytes: bytes(true),
            download_ms: millis(started.elapsed()),
            files,
        })
    }

    async fn one(&self, file: StoredFile, into: &Path, reuse: &[PathBuf]) -> Result<FileDownload> {
        let started = Instant::now();
        if !is_plain(&file.name) {
            return Err(self.damaged(&file, "a plain file name", format!("'{}'", file.name)));
        }
        let to = into.join(&file.name);
        let slot = self.store.slots.acquire().await;
        let _slot = slot.expect("the slots are never closed");

        let (candidates, wanted, target) = (reuse.to_vec(), file.clone(), to.clone());
        let mut reused =
            blocking("reuse a file as", &to, move || take(&candidates, &wanted, &target)).await?;
        if !reused {
            self.fetch(&file, &to).await?;
        } else if fs::metadata(&to).is_err() {
            // Somebody deleted it in the same moment.
            self.fetch(&file, &to).await?;
            reused = false;
        }
        let id = fs::metadata(&to).ok().and_then(|meta| identity(&meta));
        self.store.books().remember(&file.path, id);
        Ok(FileDownload {
            name: file.name,
            bytes: file.bytes,
            reused,
            download_ms: millis(started.elapsed()),
        })
    }

    /// From the storage, tried again for reasons that may pass.
    async fn fetch(&self, file: &StoredFile, to: &Path) -> Result<()> {
        let retry = self.storage.retry;
        let mut tries = 1;
        loop {
            let error = match self.fetch_once(file, to).await? {
                Ok(found) => return self.verify(file, found, to),
                Err(error) => error,
            };
            if !transient(&error) || tries >= retry.tries {
                return Err(self.storage.error("download", &file.path, tries, error));
            }
            tracing::debug!(object = file.path, tries, %error, "a download failed, trying again");
            tokio::time::sleep(retry.wait(tries)).await;
            tries += 1;
        }
    }

    fn verify(&self, file: &StoredFile, found: Found, to: &Path) -> Result<()> {
        let refused = if found.bytes != file.bytes {
            self.damaged(file, &format!("{} bytes", file.bytes), format!("{} bytes", found.bytes))
        } else if found.checksum != file.checksum {
            self.damaged(file, &format!("checksum {}", file.checksum), format!("checksum {}", found.checksum))
        } else {
            return Ok(());
        };
        let _ = fs::remove_file(to);
        Err(refused)
    }

    fn damaged(&self, file: &StoredFile, expected: &str, found: String) -> CheckpointError {
        CheckpointError::Damaged {
            url: self.storage.url().to_owned(),
            object: self.storage.name(&file.path),
            expected: expected.to_owned(),
            found,
        }
    }

    /// One try; the storage's own error comes back inside.
    async fn fetch_once(&self, file: &StoredFile, to: &Path) -> Result<object_store::Result<Found>> {
        let got = match self.storage.get(&file.path).await {
            Ok(got) => got,
            Err(error) => return Ok(Err(error)),
        };
        let path = to.to_owned();
        let mut sink = match got.payload {
            // A local file is read in one go, not in a message per few kilobytes.
            GetResultPayload::File(mut from, _) => {
                let copied = blocking("copy to", to, move || {
                    let mut sink = Sink::create(&path)?;
                    let mut buffer = vec![0; PIECE];
                    loop {
                        match from.read(&mut buffer)? {
                            0 => return sink.finish(),
                            length => sink.write(&buffer[..length])?,
                        }
                    }
                });
                return copied.await.map(Ok);
            }
            GetResultPayload::Stream(mut stream) => {
                let mut sink = blocking("create", to, move || Sink::create(&path)).await?;
                let mut pieces: Vec<Bytes> = Vec::new();
                let mut gathered = 0;
                loop {
                    let next = match stream.try_next().await {
                        Ok(next) => next,
                        Err(error) => return Ok(Err(error)),
                    };
                    let last = next.is_none();
                    gathered += next.as_ref().map_or(0, Bytes::len);
                    pieces.extend(next);
                    if gathered >= PIECE || last {
                        let write = std::mem::take(&mut pieces);
                        gathered = 0;
                        sink = blocking("write", to, move || {
                            write.iter().try_for_each(|piece| sink.write(piece))?;
                            Ok(sink)
                        })
                        .await?;
                    }
                    if last {
                        break sink;
                    }
                }
            }
        };
        sink.finish().map(Ok).map_err(|e| local("write", to, e))
    }
}

/// What came out of the storage.
struct Found {
    bytes: u64,
    checksum: String,
}

/// A new local file that is hashed as it is written.
struct Sink {
    file: fs::File,
    hasher: Box<Xxh3>,
    bytes: u64,
}

impl Sink {
    fn create(path: &Path) -> io::Result<Self> {
        // Not over what is there: it may be a hard link that others share.
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let file = fs::File::create_new(path)?;
        Ok(Self { file, hasher: Box::new(Xxh3::new()), bytes: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn finish(&mut self) -> io::Result<Found> {
        Ok(Found { bytes: self.bytes, checksum: hex(self.hasher.digest128()) })
    }
}

/// A name that stays in the folder it is put into.
fn is_plain(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!(components.next(), Some(Component::Normal(only)) if only == name) && components.next().is_none()
}

/// Links or copies the first candidate that has the content; false if there is none.
fn take(candidates: &[PathBuf], wanted: &StoredFile, to: &Path) -> io::Result<bool> {
    for candidate in candidates {
        let path = match candidate.is_dir() {
            true => candidate.join(&wanted.name),
            false if candidate.file_name().is_some_and(|name| name == wanted.name.as_str()) => {
                candidate.clone()
            }
            false => continue,
        };
        // Whatever is wrong with a candidate, the storage has the file too.
        let same_length = fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() == wanted.bytes);
        if !same_length || !hash(&path, wanted.bytes).is_ok_and(|checksum| checksum == wanted.checksum) {
            continue;
        }
        if path == to {
            return Ok(true);
        }
        match fs::remove_file(to) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let linked = is_immutable(&wanted.name) && fs::hard_link(&path, to).is_ok();
        if linked || fs::copy(&path, to).is_ok_and(|copied| copied == wanted.bytes) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Files that whoever opens the folder never writes to again. Others could be appended to, and the link's other end with them.
fn is_immutable(name: &str) -> bool {
    let path = Path::new(name);
    path.extension().is_some_and(|extension| extension == "sst" || extension == "blob")
}
