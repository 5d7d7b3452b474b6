//! Where everything of a job lies in its storage: names that sort, escape what a user wrote, and parse back.

use std::fmt::{self, Write};

use xxhash_rust::xxh3::xxh3_64;

/// The folder of immutable data files that checkpoints share.
pub(crate) const SHARED: &str = "shared";
/// The folder of checkpoint manifests.
pub(crate) const CHECKPOINTS: &str = "checkpoints";
/// The folder of savepoints, each in a folder of its own.
pub(crate) const SAVEPOINTS: &str = "savepoints";
/// The folder of attempt records.
pub(crate) const ATTEMPTS: &str = "attempts";
/// The folder of lease files, one per epoch.
pub(crate) const LEASE: &str = "lease";
/// The ledger of restarts.
pub(crate) const RESTARTS: &str = "restarts.json";
/// A savepoint's manifest, within its folder.
pub(crate) const SAVEPOINT_MANIFEST: &str = "savepoint.json";
/// A savepoint's data files, within its folder.
pub(crate) const FILES: &str = "files";

/// A longer name is cut, and told apart by its hash.
const LONGEST: usize = 120;

/// Which checkpoint a manifest is: its id, and the lease epoch it was published under. The file's name says both, so that
/// two owners of a job can never write the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointKey {
    /// The checkpoint's number within the job; later checkpoints have greater ones.
    pub id: u64,
    /// The lease epoch of its owner.
    pub epoch: u64,
}

impl CheckpointKey {
    /// The manifest's place below the job's folder.
    pub(crate) fn path(self) -> String {
        format!("{CHECKPOINTS}/{}", self.file_name())
    }

    fn file_name(self) -> String {
        format!("{:010}-{:06}.json", self.id, self.epoch)
    }

    /// The key in a manifest's file name; `None` for any other file.
    pub(crate) fn parse(file_name: &str) -> Option<Self> {
        let (id, epoch) = file_name.strip_suffix(".json")?.split_once('-')?;
        let key = Self { id: digits(id)?, epoch: digits(epoch)? };
        (key.file_name() == file_name).then_some(key)
    }
}

impl fmt::Display for CheckpointKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (lease epoch {})", self.id, self.epoch)
    }
}

/// The file of a lease epoch, below the job's folder.
pub(crate) fn lease_path(epoch: u64) -> String {
    format!("{LEASE}/{epoch:06}.json")
}

/// The epoch in a lease file's name; `None` for any other file.
pub(crate) fn lease_epoch(file_name: &str) -> Option<u64> {
    let epoch = digits(file_name.strip_suffix(".json")?)?;
    (format!("{epoch:06}.json") == file_name).then_some(epoch)
}

/// The record of one attempt at a checkpoint, below the job's folder.
pub(crate) fn attempt_path(key: CheckpointKey) -> String {
    format!("{ATTEMPTS}/{}", key.file_name())
}

fn digits(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// A name a user wrote, as one part of a path: ASCII letters, digits, `-`, `_` and inner dots stay; other bytes become `=XX`.
/// Different names stay different; none is empty, hidden, a way up, or too long for a file system.
pub(crate) fn escape(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for (i, &byte) in name.as_bytes().iter().enumerate() {
        if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' || (byte == b'.' && i > 0) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "={byte:02X}");
        }
    }
    if escaped.is_empty() {
        escaped.push('=');
    }
    if escaped.len() > LONGEST {
        escaped.truncate(LONGEST);
        let _ = write!(escaped, "=={:016x}", xxh3_64(name.as_bytes()));
    }
    escaped
}

/// The name that was [escaped](escape), if it was short enough to come through whole.
pub(crate) fn unescape(escaped: &str) -> String {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.as_bytes();
    while let [first, others @ ..] = rest {
        let hex = others.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match (first, hex) {
            (b'=', Some(byte)) => {
                bytes.push(byte);
                rest = &others[2..];
            }
            _ => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether a name comes back from its escaped form.
pub(crate) fn is_reversible(name: &str) -> bool {
    !name.is_empty() && unescape(&escape(name)) == name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_by_name_and_parse_back() {
        let mut keys: Vec<CheckpointKey> = [(1, 2), (1, 1), (10, 1), (2, 7), (0, 0)]
            .into_iter()
            .map(|(id, epoch)| CheckpointKey { id, epoch })
            .collect();
        keys.sort();
        let names: Vec<String> = keys.iter().map(|key| key.file_name()).collect();
        let mut sorted = names.clone();
        sorted.sort();
        assert_eq!(names, sorted);
        assert_eq!(names[0], "0000000000-000000.json");
        let large = CheckpointKey { id: u64::MAX, epoch: 12_345_678 };
        for key in keys.into_iter().chain([large]) {
            assert_eq!(CheckpointKey::parse(&key.file_name()), Some(key));
        }
        for other in [
            "",
            "x.json",
            "1-1.json",
            "0000000001-000001.json#1",
            "0000000001-+00001.json",
            "0000000001.json",
        ] {
            assert_eq!(CheckpointKey::parse(other), None, "{other}");
        }
    }

    #[test]
    fn lease_files_parse_back() {
        assert_eq!(lease_path(7), "lease/000007.json");
        assert_eq!(lease_epoch("000007.json"), Some(7));
        assert_eq!(lease_epoch("7.json"), None);
        assert_eq!(lease_epoch("000007.json#1"), None);
    }

    #[test]
    fn names_are_escaped_safely() {
        for (name, escaped) in [
            ("user-profile_2", "user-profile_2"),
            ("a.b", "a.b"),
            ("..", "=2E."),
            (".hidden", "=2Ehidden"),
            ("a/b", "a=2Fb"),
            ("a=2Fb", "a=3D2Fb"),
            ("", "="),
            ("=", "=3D"),
            ("作业", "=E4=BD=9C=E4=B8=9A"),
            ("a b#1%", "a=20b=231=25"),
        ] {
            assert_eq!(escape(name), escaped);
            assert!(name.is_empty() || unescape(escaped) == name);
            // What the storage library makes of it is the same again.
            assert_eq!(object_store::path::PathPart::from(escaped).as_ref(), escaped);
        }
        let long = "x".repeat(500);
        let longer = "x".repeat(501);
        assert!(escape(&long).len() < 150);
        assert_ne!(escape(&long), escape(&longer));
        assert!(is_reversible("a/b") && !is_reversible(&long) && !is_reversible(""));
    }
}
