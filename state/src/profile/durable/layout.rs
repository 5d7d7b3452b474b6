//! Where each piece of a profile lies in the store, and how it is sealed: keys, heads and dictionary pages, formats 1 and 2.
//!
//! Key: `group: u16 BE | table: u16 BE | part: u8 | tag name, its length as u16 BE before it | page: u32 BE`. Tags go by name: their
//! numbers differ between processes. A head and user ids have no tag, so the empty name; a head is page 0.
//!
//! Value: `format: u8 | contents | checksum: u32 LE`, the lower half of XXH3-64 of format and contents, seeded by the key
//! without its table: contents under another key are noticed, and a table may be renumbered.

use super::super::catalogue::Catalogue;
use super::super::heap::Heap;
use super::super::update::TagType;
use super::super::user::UserId;
use super::bytes::{Bad, Input, text, varint};
use crate::key::KeyGroup;
use crate::keyspace::{PREFIX, prefix};
use std::fmt;
use std::hash::Hash;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The format of all values, but for heads with types that there were not at first.
pub(crate) const FORMAT: u8 = 1;
/// The format of a head that has a tag of another type than enum, set and int: a build that knows only those refuses it by name,
/// rather than take it for damaged. Heads without are still of the first, so that such a build reads them.
pub(super) const HEAD_FORMAT: u8 = 2;
/// Names in a page of a dictionary: few, for the last page is written again whenever names were added to it.
pub(super) const NAMES: usize = 64;

/// What a piece is. In the order of the keys, so that a scan meets what is needed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// How many users there are, and the tags with their types.
    Head = 0,
    /// User ids by local ordinal.
    Users = 1,
    /// Values of a tag by number.
    Values = 2,
    /// What users have.
    Forward = 3,
    /// Enum and int tags: when it was set.
    Stamps = 4,
    /// Set tags: when a delta last gave a value.
    Touched = 5,
    /// Set tags: when it was last set or unset.
    Cleared = 6,
    /// Set tags: when each element was added or removed.
    Elements = 7,
}

/// The parts that are pages of users.
pub(super) const PAGED: [Part; 5] =
    [Part::Forward, Part::Stamps, Part::Touched, Part::Cleared, Part::Elements];

/// One piece of a key group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place<'a> {
    pub(super) part: Part,
    pub(super) tag: &'a str,
    pub(super) page: u32,
}

/// As an error names it.
impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.part {
            Part::Head => return f.write_str("the list of tags"),
            Part::Users => return write!(f, "page {} of the user ids", self.page),
            Part::Values => "the dictionary",
            Part::Forward => "the values",
            Part::Stamps => "the version stamps",
            Part::Touched => "the times of the last value",
            Part::Cleared => "the times of the last set or unset",
            Part::Elements => "the times of elements",
        };
        write!(f, "page {} of {what} of tag '{}'", self.page, self.tag)
    }
}

impl<'a> Place<'a> {
    pub(super) const HEAD: Place<'static> = Place { part: Part::Head, tag: "", page: 0 };

    /// Fills in a whole key.
    pub(super) fn key(&self, group: KeyGroup, table: u16, into: &mut Vec<u8>) {
        into.clear();
        into.extend_from_slice(&prefix(group, table));
        into.push(self.part as u8);
        into.extend_from_slice(&(self.tag.len() as u16).to_be_bytes());
        into.extend_from_slice(self.tag.as_bytes());
        into.extend_from_slice(&self.page.to_be_bytes());
    }

    /// The keys of all pieces of a part of a tag: from the first on, and before the second.
    pub(super) fn range(group: KeyGroup, table: u16, part: Part, tag: &str) -> (Vec<u8>, Vec<u8>) {
        let (mut from, mut to) = (Vec::new(), Vec::new());
        Place { part, tag, page: 0 }.key(group, table, &mut from);
        // No tag has the very last page: a user's number is below 2^32, and a page has more users than one.
        Place { part, tag, page: u32::MAX }.key(group, table, &mut to);
        (from, to)
    }

    /// Reads a whole key.
    pub(super) fn of(key: &'a [u8]) -> Result<Self, Bad> {
        const BAD: Bad = Bad("its key is none");
        let (head, rest) = key.get(PREFIX..).and_then(|k| k.split_first_chunk::<3>()).ok_or(BAD)?;
        let length = u16::from_be_bytes([head[1], head[2]]) as usize;
        let (tag, page) = rest.split_at_checked(length).ok_or(BAD)?;
        let part = match head[0] {
            0 => Part::Head,
            1 => Part::Users,
            2 => Part::Values,
            n => *PAGED.get(n.wrapping_sub(3) as usize).ok_or(BAD)?,
        };
        let tag = std::str::from_utf8(tag).map_err(|_| BAD)?;
        Ok(Place { part, tag, page: u32::from_be_bytes(page.try_into().map_err(|_| BAD)?) })
    }
}

fn sum(key: &[u8], value: &[u8]) -> u32 {
    let (group, rest) = (u16::from_be_bytes([key[0], key[1]]), &key[PREFIX..]);
    xxh3_64_with_seed(value, xxh3_64_with_seed(rest, u64::from(group))) as u32
}

/// Fills in a whole value; `contents` appends its middle. The key is a whole one.
pub(super) fn seal(format: u8, key: &[u8], into: &mut Vec<u8>, contents: impl FnOnce(&mut Vec<u8>)) {
    into.clear();
    into.push(format);
    contents(into);
    let sum = sum(key, into);
    into.extend_from_slice(&sum.to_le_bytes());
}

/// Why a value cannot be opened.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unopened {
    Bad(Bad),
    /// It has a format that is not known here.
    Format(u8),
}

/// The contents of a value under a whole key.
pub(super) fn open<'a>(key: &[u8], value: &'a [u8]) -> Result<Input<'a>, Unopened> {
    let (sealed, stored) = value.split_last_chunk::<4>().ok_or(Unopened::Bad(Bad("it is too short")))?;
    let (&format, contents) = sealed.split_first().ok_or(Unopened::Bad(Bad("it is too short")))?;
    if u32::from_le_bytes(*stored) != sum(key, sealed) {
        return Err(Unopened::Bad(Bad("its checksum is wrong")));
    }
    let known =
        if key.get(PREFIX) == Some(&(Part::Head as u8)) { FORMAT..=HEAD_FORMAT } else { FORMAT..=FORMAT };
    if !known.contains(&format) {
        return Err(Unopened::Format(format));
    }
    Ok(Input(contents))
}

/// What is needed to read the rest: `users | how many tags`, then of each `type: u8 | name | how many values its dictionary
/// has`; behind the type of a decimal comes its scale, a u8.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head<'a> {
    pub(super) users: u32,
    pub(super) tags: Vec<(&'a str, TagType, u32)>,
}

impl<'a> Head<'a> {
    pub(super) fn decode(input: &mut Input<'a>) -> Result<Self, Bad> {
        let users = input.count(u32::MAX as usize)? as u32;
        // Three bytes a tag at least.
        let tags = (0..input.count(input.0.len() / 3)?).map(|_| {
            let kind = match input.byte()? {
                0 => TagType::Enum,
                1 => TagType::Set,
                2 => TagType::Int,
                3 => TagType::UInt,
                4 => TagType::Float,
                5 => TagType::Bool,
                6 => TagType::Decimal(input.byte()?),
                7 => TagType::Date,
                8 => TagType::Timestamp,
                9 => TagType::IntSet,
                10 => TagType::Map,
                _ => return Err(Bad("a tag has a type that is none")),
            };
            Ok((input.text()?, kind, input.count(u32::MAX as usize)? as u32))
        });
        Ok(Head { users, tags: tags.collect::<Result<_, Bad>>()? })
    }
}

/// The format of a head with such tags.
pub(super) fn head_format(catalogue: &Catalogue) -> u8 {
    let first = |kind: TagType| matches!(kind, TagType::Enum | TagType::Set | TagType::Int);
    if catalogue.live().all(|(.., kind)| first(kind)) { FORMAT } else { HEAD_FORMAT }
}

/// Appends a [`Head`]; `values` tells the length of each tag's dictionary, and `kinds` in which types tags are kept, as far as they are.
pub(super) fn head(out: &mut Vec<u8>, users: u32, catalogue: &Catalogue, values: &[u32], kinds: &[TagType]) {
    varint(out, u64::from(users));
    varint(out, catalogue.live().count() as u64);
    for (number, name, kind) in catalogue.live() {
        let number = number as usize;
        match kinds.get(number).unwrap_or(&kind) {
            TagType::Enum => out.push(0),
            TagType::Set => out.push(1),
            TagType::Int => out.push(2),
            TagType::UInt => out.push(3),
            TagType::Float => out.push(4),
            TagType::Bool => out.push(5),
            TagType::Decimal(scale) => out.extend([6, *scale]),
            TagType::Date => out.push(7),
            TagType::Timestamp => out.push(8),
            TagType::IntSet => out.push(9),
            TagType::Map => out.push(10),
        }
        text(out, name);
        varint(out, u64::from(values.get(number).copied().unwrap_or(0)));
    }
}

/// A name of a dictionary.
pub(super) trait Name: Hash + Eq + Clone + Heap {
    fn encode(&self, out: &mut Vec<u8>);
    fn decode(input: &mut Input<'_>) -> Result<Self, Bad>;
}

/// `0 | number: varint` or `1 | text`.
impl Name for UserId {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            UserId::Number(n) => {
                out.push(0);
                varint(out, *n);
            }
            UserId::Text(t) => {
                out.push(1);
                text(out, t);
            }
        }
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, Bad> {
        match input.byte()? {
            0 => Ok(UserId::Number(input.varint()?)),
            1 => Ok(UserId::from(input.text()?)),
            _ => Err(Bad("a user id is of no known kind")),
        }
    }
}

/// A text.
impl Name for std::sync::Arc<str> {
    fn encode(&self, out: &mut Vec<u8>) {
        text(out, self);
    }

    fn decode(input: &mut Input<'_>) -> Result<Self, Bad> {
        Ok(input.text()?.into())
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
