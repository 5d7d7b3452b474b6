//! Where in a file a source stands, how a checkpoint keeps that, and whether the file is still the one that was read.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use serde::{Deserialize, Serialize};
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
}

impl Place {
    /// Nothing was read.
    pub(super) const START: Place = Place { offset: 0, line: 1, mark: String::new(), done: false };

    /// Reading of `file` has come to `offset`, on `line`.
    pub(super) fn at(file: &mut File, offset: u64, line: u64) -> io::Result<Place> {
        Ok(Place { offset, line, mark: mark(file, offset)?, done: false })
    }

    /// The whole file was read.
    pub(super) fn end(offset: u64, line: u64) -> Place {
        Place { offset, line, mark: String::new(), done: true }
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
            "{name} is not the file any more that was read up to byte {} (line {}) before the checkpoint: {how}; put the \
             old one back, or begin anew",
            place.offset, place.line
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
    }
}
