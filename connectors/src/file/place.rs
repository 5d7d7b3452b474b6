//! Where in a file a source stands, how a checkpoint keeps that, and whether the file is still the one that was read.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tracing::warn;
use weir_engine::{Result, TaskError};

/// How much of a file's start and of what was read last tells it from another.
const KNOWN: u64 = 1024;

/// How far one file has been read. Its JSON is part of what checkpoints hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    /// The byte that the next record, or an empty line before it, begins at.
    pub(super) offset: u64,
    /// The 1-based line of that byte.
    pub(super) line: u64,
    /// What the file looks like before it; empty while nothing was read.
    pub(super) mark: String,
    /// Nothing of it is to be read any more.
    pub(super) done: bool,
    /// The whole path, wherever the process that read it stood. Earlier versions did not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) path: Option<String>,
}

impl Place {
    /// Nothing was read.
    pub(super) const START: Place =
        Place { offset: 0, line: 1, mark: String::new(), done: false, path: None };

    /// Reading of `file` has come to `offset`, on `line`.
    pub(super) fn at(file: &mut File, offset: u64, line: u64) -> io::Result<Place> {
        Ok(Place { offset, line, mark: mark(file, offset)?, ..Place::START })
    }

    /// The whole of `file` was read, up to `offset`.
    ///
    /// # Errors
    /// It cannot be read again, or is shorter now: what was cut off was never read.
    pub(super) fn end(file: &mut File, offset: u64, line: u64) -> io::Result<Place> {
        let bytes = file.metadata()?.len();
        if bytes < offset {
            let what = format!("it has shrunk to {bytes} bytes while it was read, up to byte {offset}");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        Ok(Place { done: true, ..Place::at(file, offset, line)? })
    }
}

/// A path as it is wherever the process stands. Links are not followed: what they lead to is looked at, not what it is called.
pub(super) fn whole(path: &Path) -> String {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    // `a/./b` is one folder less than it seems.
    let whole: std::path::PathBuf = whole.components().collect();
    whole.to_str().map_or_else(|| format!("{whole:?}"), str::to_owned)
}

/// Whether a file that was read to its end is still that, if it is there at all.
///
/// # Errors
/// Another file has its name: nothing of that would be read.
pub(super) fn still_done(path: &Path, place: &Place) -> Result<()> {
    // Earlier versions kept no mark. A file that is gone, or may not be read any more, is none that could be missed.
    let Ok(mut file) = open(path) else { return Ok(()) };
    let Ok(bytes) = file.metadata().map(|of| of.len()) else { return Ok(()) };
    if place.mark.is_empty() {
        return Ok(());
    }
    let same = bytes >= place.offset && mark(&mut file, place.offset).is_ok_and(|mark| mark == place.mark);
    if !same {
        return Err(TaskError::external(format!(
            "{} is not the file any more that was read to its end (byte {}) before the checkpoint{}, and nothing of it would be \
             read: give what is new a name of its own, put the old one back, or begin anew",
            path.display(),
            place.offset,
            elsewhere(path, place)
        )));
    }
    if bytes > place.offset {
        let (path, more) = (path.display().to_string(), bytes - place.offset);
        warn!(path, more, "bytes were appended to a file that was read to its end: they are not read");
    }
    Ok(())
}

/// Where the file was that was read, if its path means another one now.
fn elsewhere(path: &Path, place: &Place) -> String {
    let now = whole(path);
    match &place.path {
        Some(then) if *then != now => format!(" (that was {then}, this is {now})"),
        _ => String::new(),
    }
}

/// Opens `path` for reading; a folder is refused, since reading one only fails later.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder: name the files in it"));
    }
    Ok(file)
}

/// Opens `path` at `place`.
///
/// # Errors
/// When it cannot be read, or is not the file any more that was read up to there; it is named.
pub(super) fn open_at(path: &Path, place: &Place) -> Result<File> {
    let name = path.display();
    let unreadable = |e: io::Error| TaskError::external(format!("cannot read {name}")).caused_by(e);
    let mut file = open(path).map_err(unreadable)?;
    if place.offset == 0 {
        return Ok(file);
    }
    let another = |how: String| {
        TaskError::external(format!(
            "{name} is not the file any more that was read up to byte {} (line {}) before the checkpoint{}: {how}; put the \
             old one back, or begin anew",
            place.offset,
            place.line,
            elsewhere(path, place)
        ))
    };
    let bytes = file.metadata().map_err(unreadable)?.len();
    if bytes < place.offset {
        return Err(another(format!("it has shrunk to {bytes} bytes")));
    }
    if mark(&mut file, place.offset).map_err(unreadable)? != place.mark {
        return Err(another("what was read has changed".to_owned()));
    }
    file.seek(SeekFrom::Start(place.offset)).map_err(unreadable)?;
    Ok(file)
}

/// What a file looks like at its start and just before `offset`. Leaves the file anywhere.
fn mark(file: &mut File, offset: u64) -> io::Result<String> {
    let known = offset.min(KNOWN);
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut bytes = vec![0; known as usize];
    for from in [0, offset - known] {
        file.seek(SeekFrom::Start(from))?;
        file.read_exact(&mut bytes)?;
        // FNV-1a: it is to find a slip, not to stop anybody.
        hash = bytes.iter().fold(hash, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3));
    }
    Ok(if offset == 0 { String::new() } else { format!("{hash:016x}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_is_kept() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "1,a\n2,b\n").unwrap();
        let place = Place::at(&mut File::open(file.path()).unwrap(), 4, 2).unwrap();
        let json = serde_json::to_string(&place).unwrap();
        assert_eq!(json, r#"{"offset":4,"line":2,"mark":"03e7485c6fe00d5d","done":false}"#);
        assert_eq!(serde_json::from_str::<Place>(&json).unwrap(), place);
        let place = Place { path: Some("/data/a.csv".to_owned()), ..place };
        let json = serde_json::to_string(&place).unwrap();
        assert_eq!(
            json,
            r#"{"offset":4,"line":2,"mark":"03e7485c6fe00d5d","done":false,"path":"/data/a.csv"}"#
        );
        assert_eq!(serde_json::from_str::<Place>(&json).unwrap(), place);
    }
}
