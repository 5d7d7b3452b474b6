//! A user is named by a number or a text, and the name routes, hashes and prints alike everywhere.

use super::heap::Heap;
use crate::key::{KeyHash, key_hash};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::sync::Arc;

/// Who a profile belongs to: a `u64`, or a text.
///
/// In JSON and other readable formats it is the bare number or text (a negative number is refused); in compact
/// formats it is a tagged variant, since those cannot tell the two apart. Its stable hash is that of the bare number or
/// text, so a stream keyed by `u64` or `String` lands in the key group the profile lives in. `7` and `"7"` are two users.
/// Numbers order before texts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum UserId {
    /// A numeric id.
    Number(u64),
    /// A text id, a UUID for instance. Cloning shares it.
    Text(Arc<str>),
}

impl UserId {
    /// The stable hash that routes this user: [`key_hash`] of the number or text.
    #[inline]
    pub fn key_hash(&self) -> KeyHash {
        match self {
            UserId::Number(n) => key_hash(n),
            UserId::Text(s) => key_hash(&**s),
        }
    }
}

impl Heap for UserId {
    fn heap(&self) -> usize {
        match self {
            UserId::Number(_) => 0,
            UserId::Text(text) => text.heap(),
        }
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UserId::Number(n) => n.fmt(f),
            UserId::Text(s) => s.fmt(f),
        }
    }
}

impl fmt::Debug for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UserId::Number(n) => n.fmt(f),
            UserId::Text(s) => fmt::Debug::fmt(s, f),
        }
    }
}

impl From<u64> for UserId {
    fn from(n: u64) -> Self {
        UserId::Number(n)
    }
}

impl From<u32> for UserId {
    fn from(n: u32) -> Self {
        UserId::Number(u64::from(n))
    }
}

impl From<&str> for UserId {
    fn from(s: &str) -> Self {
        UserId::Text(s.into())
    }
}

impl From<String> for UserId {
    fn from(s: String) -> Self {
        UserId::Text(s.into())
    }
}

/// The readable image: the format itself tells a number from a text.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a user id is a number from 0 to 2^64-1 or a text")]
enum Bare {
    Number(u64),
    Text(String),
}

/// The compact image: formats that are not self-describing need to be told which it is.
#[derive(Serialize, Deserialize)]
enum Told<S> {
    Number(u64),
    Text(S),
}

impl Serialize for UserId {
    #[inline]
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match (self, s.is_human_readable()) {
            (UserId::Number(n), true) => s.serialize_u64(*n),
            (UserId::Text(t), true) => s.serialize_str(t),
            (UserId::Number(n), false) => Told::<&str>::Number(*n).serialize(s),
            (UserId::Text(t), false) => Told::Text(&**t).serialize(s),
        }
    }
}

impl<'de> Deserialize<'de> for UserId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(if d.is_human_readable() {
            match Bare::deserialize(d)? {
                Bare::Number(n) => n.into(),
                Bare::Text(t) => t.into(),
            }
        } else {
            match Told::<String>::deserialize(d)? {
                Told::Number(n) => n.into(),
                Told::Text(t) => t.into(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_bare_json() {
        for id in [UserId::from(7u64), UserId::from(u64::MAX), UserId::from("7"), UserId::from("ä")] {
            let json = serde_json::to_string(&id).unwrap();
            assert_eq!(serde_json::from_str::<UserId>(&json).unwrap(), id);
        }
        assert_eq!(serde_json::to_string(&UserId::from(7u64)).unwrap(), "7");
        assert!(serde_json::from_str::<UserId>("-1").is_err(), "a negative id would become another user");
    }

    #[test]
    fn routes_like_the_bare_key() {
        assert_eq!(key_hash(&UserId::from(7u64)), key_hash(&7u64));
        assert_eq!(key_hash(&UserId::from("uid-7")), key_hash("uid-7"));
        assert_eq!(UserId::from("uid-7").key_hash(), key_hash("uid-7"));
    }
}
