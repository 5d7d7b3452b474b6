//! A file of writes that were acknowledged and are in no completed checkpoint yet: on disk before anyone hears of them, read again after a crash.
//!
//! `magic: 8 bytes | base: u64 LE`, then records `length: u32 LE | checksum: u32 LE | contents`, contents being an [`Entry`] as JSON; the checksum is the
//! lower half of XXH3-64 of length and contents. Numbers rise, and are above the base. A record that is cut off at the end was never acknowledged.

use super::change::Change;
use super::update::ProfileUpdate;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"weirjnl1";
const HEADER: usize = 16;
const FRAME: usize = 8;
/// Bytes of records that are needed no more, from which on the file is written anew without them.
const MUCH: u64 = 1 << 20;

/// One write.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) sequence: u64,
    /// The number of the last change of the catalogue when it was accepted: names of tags are those of then.
    pub(crate) catalogue: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) updates: Vec<ProfileUpdate>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) changes: Vec<Change>,
}

#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    length: u64,
    /// Bytes of records that were cut.
    dead: u64,
    /// What a write that failed left is not known: nothing more is written.
    failed: Option<String>,
}

fn checksum(contents: &[u8]) -> u32 {
    let sum = xxh3_64(contents) ^ (contents.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    sum as u32
}

fn bad(path: &Path, reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {reason}", path.display()))
}

fn header(base: u64) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&base.to_le_bytes());
    bytes
}

fn record(entry: &Entry) -> io::Result<Vec<u8>> {
    let contents = serde_json::to_vec(entry)?;
    let length = u32::try_from(contents.len()).map_err(|_| io::Error::other("a write of over 4 GiB"))?;
    let mut bytes = Vec::with_capacity(FRAME + contents.len());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&checksum(&contents).to_le_bytes());
    bytes.extend_from_slice(&contents);
    Ok(bytes)
}

/// Puts a new file on disk, whole, and takes it for this process; [`keep_name`] is to follow.
fn create(path: &Path, contents: &[u8]) -> io::Result<File> {
    let new = path.with_extension("new");
    if let Err(e) = fs::remove_file(&new)
        && e.kind() != io::ErrorKind::NotFound
    {
        return Err(e);
    }
    let mut file = OpenOptions::new().create_new(true).append(true).read(true).open(&new)?;
    file.try_lock().map_err(|e| bad(path, &format!("another process uses it ({e})")))?;
    file.write_all(contents)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    Ok(file)
}

/// Sees to it that a new name outlives a power cut.
fn keep_name(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

impl Journal {
    /// Opens a journal, or begins one; with the entries that are in it and the number that was given last.
    pub(crate) fn open(path: &Path) -> io::Result<(Self, Vec<Entry>, u64)> {
        let mut file = match OpenOptions::new().read(true).append(true).open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                    fs::create_dir_all(folder)?;
                }
                let file = create(path, &header(0))?;
                keep_name(path)?;
                let length = HEADER as u64;
                return Ok((
                    Journal { path: path.to_owned(), file, length, dead: 0, failed: None },
                    Vec::new(),
                    0,
                ));
            }
            Err(e) => return Err(e),
        };
        file.try_lock().map_err(|e| bad(path, &format!("another process uses it ({e})")))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let (head, mut rest) =
            bytes.split_at_checked(HEADER).ok_or_else(|| bad(path, "it is too short for a journal"))?;
        let base = head.strip_prefix(MAGIC).and_then(|base| base.try_into().ok()).map(u64::from_le_bytes);
        let mut last = base.ok_or_else(|| bad(path, "it is no journal"))?;
        let (mut entries, mut length) = (Vec::new(), HEADER as u64);
        while let Some((frame, after)) = rest.split_at_checked(FRAME) {
            let number =
                |at: usize| u32::from_le_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
            // What is cut off, or was never written though the file has grown.
            let Some((contents, after)) = after.split_at_checked(number(0) as usize) else { break };
            if number(0) == 0 && after.iter().all(|byte| *byte == 0) {
                break;
            }
            if checksum(contents) != number(4) {
                if after.iter().all(|byte| *byte == 0) {
                    break;
                }
                return Err(bad(
                    path,
                    "a record in it is damaged; restore the file, or take it away to go on without what it has",
                ));
            }
            let entry: Entry = serde_json::from_slice(contents).map_err(|e| bad(path, &e.to_string()))?;
            if entry.sequence <= last {
                return Err(bad(path, "its records are not in order"));
            }
            last = entry.sequence;
            entries.push(entry);
            length += (FRAME + contents.len()) as u64;
            rest = after;
        }
        if length < bytes.len() as u64 {
            file.set_len(length)?;
            file.sync_all()?;
        }
        Ok((Journal { path: path.to_owned(), file, length, dead: 0, failed: None }, entries, last))
    }

    /// Appends an entry; it is on disk when this is done. *Blocking*: until then.
    pub(crate) fn append(&mut self, entry: &Entry) -> io::Result<()> {
        if let Some(why) = &self.failed {
            return Err(bad(&self.path, &format!("an earlier write failed ({why}); restart the process")));
        }
        let bytes = record(entry)?;
        let written = self.file.write_all(&bytes).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // A part of it may be there. Nobody was told of it, so it goes; if that fails too, nothing is written behind it.
            let undone = self.file.set_len(self.length).and_then(|()| self.file.sync_data());
            if undone.is_err() || error.kind() != io::ErrorKind::StorageFull {
                self.failed = Some(error.to_string());
            }
            return Err(error);
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Notes that entries are needed no more, `left` being the others, which are numbered above `base`; writes the file anew when that is worth it.
    pub(crate) fn cut<'e>(
        &mut self,
        cut: &[std::sync::Arc<Entry>],
        base: u64,
        left: impl ExactSizeIterator<Item = &'e Entry>,
    ) -> io::Result<()> {
        for entry in cut {
            self.dead += record(entry)?.len() as u64;
        }
        if cut.is_empty() || self.failed.is_some() || (left.len() > 0 && self.dead < MUCH) {
            return Ok(());
        }
        let mut bytes = header(base);
        for entry in left {
            bytes.extend_from_slice(&record(entry)?);
        }
        let length = bytes.len() as u64;
        // Written to before, and under its own name only now.
        let file = create(&self.path, &bytes)?;
        (self.file, self.length, self.dead) = (file, length, 0);
        // Else the old file may be back after a power cut, without what is appended to this one.
        keep_name(&self.path).inspect_err(|e| self.failed = Some(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn entry(sequence: u64) -> Entry {
        let updates = vec![ProfileUpdate::of(sequence).at(1).set("n", f64::INFINITY).add("s", "x")];
        Entry { sequence, catalogue: 3, updates, changes: vec![Change::DropTag { tag: "t".into() }] }
    }

    #[test]
    fn what_was_appended_is_read_again_and_numbers_are_never_given_twice() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/journal");
        let (mut journal, none, last) = Journal::open(&path).unwrap();
        assert!(none.is_empty() && last == 0);
        let entries: Vec<Arc<Entry>> = (1..=3).map(|n| Arc::new(entry(n))).collect();
        entries.iter().for_each(|e| journal.append(e).unwrap());
        assert!(Journal::open(&path).is_err(), "one process at a time");
        drop(journal);
        let (mut journal, read, last) = Journal::open(&path).unwrap();
        assert_eq!((read.len(), last), (3, 3));
        assert!(read.iter().zip(&entries).all(|(a, b)| a == &**b));
        journal.cut(&entries, 3, [].into_iter()).unwrap();
        drop(journal);
        let (mut journal, read, last) = Journal::open(&path).unwrap();
        assert_eq!((read.len(), last), (0, 3));
        journal.append(&entry(4)).unwrap();
        drop(journal);
        assert_eq!(Journal::open(&path).unwrap().1, [entry(4)]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

        /// A crash leaves any part of the last record, or zeros in its place.
        #[test]
        fn a_torn_end_is_cut_and_damage_before_it_is_an_error(keep in 0usize..120, zeros in 0usize..40, flip in 0usize..100) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("journal");
            let (mut journal, ..) = Journal::open(&path).unwrap();
            journal.append(&entry(1)).unwrap();
            let whole = journal.length as usize;
            journal.append(&entry(2)).unwrap();
            drop(journal);
            let bytes = fs::read(&path).unwrap();
            let mut torn = bytes[..(whole + keep).min(bytes.len() - 1)].to_vec();
            torn.resize(torn.len() + zeros, 0);
            fs::write(&path, &torn).unwrap();
            let (mut journal, read, last) = Journal::open(&path).unwrap();
            prop_assert_eq!((read.len(), last), (1, 1));
            journal.append(&entry(2)).unwrap();
            drop(journal);
            prop_assert_eq!(Journal::open(&path).unwrap().1.len(), 2);
            let mut damaged = bytes;
            damaged[HEADER + 4 + flip.min(whole - HEADER - 5)] ^= 0x10;
            fs::write(&path, &damaged).unwrap();
            prop_assert!(Journal::open(&path).is_err());
        }
    }
}
