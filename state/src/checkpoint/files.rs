//! Local files: looked at, read and hashed on threads where waiting for the disk holds up nothing else.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use super::document::hex;
use super::error::{CheckpointError, Result};
use super::incremental::{FileId, Present};
use crate::backend::LocalFile;

/// A local file that is hashed as it is read.
pub(crate) struct Reader {
    path: PathBuf,
    /// Taken while a piece is read on another thread.
    inside: Option<(fs::File, Box<Xxh3>)>,
    pub(crate) left: u64,
}

impl Reader {
    pub(crate) async fn open(path: &Path, bytes: u64) -> Result<Self> {
        let opened = path.to_owned();
        let file = blocking("open", path, move || fs::File::open(opened)).await?;
        Ok(Self { path: path.to_owned(), inside: Some((file, Box::new(Xxh3::new()))), left: bytes })
    }

    pub(crate) async fn read(&mut self, length: u64) -> Result<Bytes> {
        let (mut file, mut hasher) = self.inside.take().expect("a reader that failed is not used again");
        let length_here = usize::try_from(length).expect("pieces fit in memory");
        let (inside, data) = blocking("read", &self.path, move || {
            let mut data = vec![0; length_here];
            file.read_exact(&mut data)?;
            hasher.update(&data);
            Ok(((file, hasher), Bytes::from(data)))
        })
        .await?;
        self.inside = Some(inside);
        self.left -= length;
        Ok(data)
    }

    pub(crate) fn checksum(&self) -> String {
        hex(self.inside.as_ref().map_or(0, |(_, hasher)| hasher.digest128()))
    }
}

/// The checksum of a local file's first `bytes` bytes.
pub(crate) async fn checksum_of(path: &Path, bytes: u64) -> Result<String> {
    let opened = path.to_owned();
    blocking("read", path, move || hash(&opened, bytes)).await
}

/// The checksum of a local file's first `bytes` bytes; an error if there are fewer.
pub(crate) fn hash(path: &Path, bytes: u64) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let mut hasher = Xxh3::new();
    let mut buffer = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        file.read_exact(&mut buffer[..length])?;
        hasher.update(&buffer[..length]);
        left -= length as u64;
    }
    Ok(hex(hasher.digest128()))
}

/// Runs a call that waits for the local disk where it does not hold up other uploads.
pub(crate) async fn blocking<T: Send + 'static>(
    action: &'static str,
    path: &Path,
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(call).await;
    done.unwrap_or_else(|e| Err(io::Error::other(e))).map_err(|source| local(action, path, source))
}

/// The error of a local file.
pub(crate) fn local(action: &'static str, path: &Path, source: io::Error) -> CheckpointError {
    if super::error::full(source.kind()) {
        let place = path.parent().unwrap_or(path).display().to_string();
        let object = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return CheckpointError::NoSpace { place, action, object, source: Box::new(source) };
    }
    CheckpointError::Local { action, path: path.to_owned(), source }
}

/// The local files as they are now.
pub(crate) async fn look_at(files: Vec<LocalFile>) -> Result<Vec<(LocalFile, Present)>> {
    let Some(first) = files.first() else { return Ok(Vec::new()) };
    let folder = first.path.clone();
    let look = |file: LocalFile| {
        let meta = fs::metadata(&file.path)
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", file.path.display())))?;
        let present = Present { name: file.name.clone(), bytes: meta.len(), id: identity(&meta) };
        Ok((file, present))
    };
    blocking("look at the files beside", &folder, move || files.into_iter().map(look).collect()).await
}

/// What makes a file the same as another, where the system tells.
pub(crate) fn identity(meta: &fs::Metadata) -> Option<FileId> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let written_ns = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
        Some(FileId { device: meta.dev(), inode: meta.ino(), bytes: meta.len(), written_ns })
    }
    #[cfg(not(unix))]
    {
        let _ = meta;
        None
    }
}

/// Makes the entries of a folder outlive a power cut.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    #[cfg(unix)]
    fs::File::open(folder)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}
