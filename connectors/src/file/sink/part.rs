//! One file of a sink, from its first byte under a hidden name to the moment when it is seen under its own.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use fail::fail_point;
use serde::{Deserialize, Serialize};
use weir_engine::{Result, TaskError};

use super::names::Names;

/// A file that is closed and durable under its hidden name. Its JSON is part of what checkpoints hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Prepared {
    /// The hidden name, in the sink's folder.
    pub(super) temp: String,
    /// The name it is to have, there too.
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) records: u64,
}

/// What is written to. In tests a disk can be small.
#[derive(Debug)]
pub(super) enum Medium {
    Disk(File),
    #[cfg(test)]
    Small(File, u64),
}

impl Medium {
    fn file(&self) -> &File {
        match self {
            Medium::Disk(file) => file,
            #[cfg(test)]
            Medium::Small(file, _) => file,
        }
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Medium::Disk(file) => file.write_all(bytes),
            #[cfg(test)]
            Medium::Small(file, room) => {
                let fits = bytes.len().min(*room as usize);
                *room -= fits as u64;
                file.write_all(&bytes[..fits])?;
                // ENOSPC
                if fits < bytes.len() { Err(io::Error::from_raw_os_error(28)) } else { Ok(()) }
            }
        }
    }
}

/// A file that is being written.
#[derive(Debug)]
pub(super) struct Part {
    /// With the folder.
    path: PathBuf,
    temp: String,
    name: String,
    medium: Medium,
    /// Something was written since the last sync.
    dirty: bool,
    pub(super) bytes: u64,
    pub(super) records: u64,
}

impl Part {
    /// Makes a new file, the first from `number` on that nobody has, and moves `number` behind it. In tests, `room` is what
    /// the disk has left.
    pub(super) fn create(folder: &Path, names: &Names, number: &mut u64, room: Option<u64>) -> Result<Part> {
        loop {
            let (temp, name) = (names.hidden(*number), names.visible(*number));
            *number += 1;
            let path = folder.join(&temp);
            let file = match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => file,
                Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(cannot("create", &path, e)),
            };
            // While the hidden name is taken nobody else makes the visible one.
            if folder.join(&name).exists() {
                drop(file);
                remove(&path)?;
                continue;
            }
            #[cfg(not(test))]
            let (medium, _) = (Medium::Disk(file), room);
            #[cfg(test)]
            let medium = match room {
                Some(room) => Medium::Small(file, room),
                None => Medium::Disk(file),
            };
            return Ok(Part { path, temp, name, medium, dirty: false, bytes: 0, records: 0 });
        }
    }

    /// Writes `bytes`.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.dirty = true;
        self.medium.append(bytes).map_err(|e| cannot("write", &self.path, e))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Waits until all of it is on the disk.
    pub(super) fn sync(&mut self) -> Result<()> {
        if std::mem::take(&mut self.dirty) {
            fail_point!("file_sink::before_sync", |_| Err(injected("file_sink::before_sync")));
            self.medium.file().sync_all().map_err(|e| cannot("write to the disk", &self.path, e))?;
        }
        Ok(())
    }

    /// Closes it; it has been synced.
    pub(super) fn close(self) -> Prepared {
        Prepared { temp: self.temp, name: self.name, bytes: self.bytes, records: self.records }
    }

    /// Drops it: no checkpoint knows of it.
    pub(super) fn discard(self) {
        let Part { path, medium, .. } = self;
        drop(medium);
        if let Err(e) = remove(&path) {
            // The next life removes it.
            tracing::warn!("an unfinished file is left behind: {}", e.chain());
        }
    }
}

/// Gives a prepared file its visible name; false when it has it already. The folder is to be synced afterwards.
///
/// # Errors
/// When it is not there, or not as it was prepared: it is named.
pub(super) fn publish(folder: &Path, prepared: &Prepared, taken_away: bool) -> Result<bool> {
    let (temp, name) = (folder.join(&prepared.temp), folder.join(&prepared.name));
    let (hidden, visible) = (length(&temp)?, length(&name)?);
    let wrong = |path: &Path, bytes: u64| {
        TaskError::external(format!(
            "{} has {bytes} bytes and not the {} that the sink wrote: somebody has changed it; put it back, or begin anew",
            path.display(),
            prepared.bytes
        ))
    };
    match (hidden, visible) {
        (Some(bytes), None) if bytes == prepared.bytes => {
            fail_point!("file_sink::before_rename", |_| Err(injected("file_sink::before_rename")));
            fs::rename(&temp, &name).map_err(|e| {
                TaskError::external(format!("cannot rename {} to {}", temp.display(), prepared.name))
                    .caused_by(e)
            })?;
            fail_point!("file_sink::after_rename", |_| Err(injected("file_sink::after_rename")));
            Ok(true)
        }
        (None, Some(bytes)) if bytes == prepared.bytes => Ok(false),
        (None, None) if taken_away => Ok(false),
        (Some(bytes), None) => Err(wrong(&temp, bytes)),
        (None, Some(bytes)) => Err(wrong(&name, bytes)),
        (Some(_), Some(_)) => Err(TaskError::external(format!(
            "{} is there already, and is not the file of this sink that is to have the name ({}): move it away, and give \
             each sink a folder or a prefix of its own",
            name.display(),
            prepared.temp
        ))),
        (None, None) => Err(TaskError::external(format!(
            "{} is gone, and so is {}, which was to become it: somebody removed it, with {} records that the checkpoint \
             counts as written; put it back, or begin anew; if whoever reads the files takes them away, say so with \
             FileSink::taken_away",
            name.display(),
            prepared.temp,
            prepared.records
        ))),
    }
}

/// Makes the names in `folder` durable.
pub(super) fn sync_folder(folder: &Path) -> Result<()> {
    fail_point!("file_sink::before_folder_sync", |_| Err(injected("file_sink::before_folder_sync")));
    // Elsewhere a folder cannot be opened, and renames are durable by themselves or not at all.
    if cfg!(unix) {
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|e| cannot("make sure of the names in", folder, e))?;
    }
    Ok(())
}

/// Removes a file, if it is still there.
pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(cannot("remove", path, e)),
        _ => Ok(()),
    }
}

/// A test wants this step to fail.
#[cfg_attr(not(feature = "failpoints"), allow(dead_code, reason = "fail points are nothing then"))]
fn injected(point: &str) -> TaskError {
    TaskError::external(format!("fail point {point}"))
}

fn length(path: &Path) -> Result<Option<u64>> {
    match fs::metadata(path) {
        Ok(about) => Ok(Some(about.len())),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(cannot("look at", path, e)),
    }
}

pub(super) fn cannot(what: &str, path: &Path, e: io::Error) -> TaskError {
    TaskError::external(format!("cannot {what} {}", path.display())).caused_by(e)
}
