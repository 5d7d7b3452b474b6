//! Changes of a space's tags and segments at run time: each is applied whole or refused, and told again to what was written before it.

use super::catalogue::Catalogue;
use super::error::ProfileError;
use super::predicate::Predicate;
use super::segments::MOST_NAME;
use super::update::TagType;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One change, as it is kept in checkpoints and journals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Change {
    AddTag {
        tag: String,
        kind: TagType,
    },
    /// Another type that has all values of the one before.
    AlterTag {
        tag: String,
        kind: TagType,
    },
    DropTag {
        tag: String,
    },
    RenameTag {
        tag: String,
        to: String,
    },
    /// The condition as JSON.
    PutSegment {
        segment: String,
        condition: Value,
    },
    DropSegment {
        segment: String,
    },
}

/// What a checkpoint keeps of a catalogue beside the list of tags: what was changed at run time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Image {
    /// Of the process that changed it last: numbers of two processes do not compare.
    pub(crate) life: u64,
    /// The number of the last change.
    pub(crate) sequence: u64,
    /// The number of the last entry of the journal that is among the changes.
    #[serde(default)]
    pub(crate) journal: u64,
    /// The key groups that were written when this was so, the end excluded.
    pub(crate) groups: (u16, u16),
    /// Changes of tags with their numbers, rising.
    pub(crate) tags: Vec<(u64, Change)>,
    /// Segments that were registered at run time, with their conditions; nothing in place of one that the program registers and that
    /// was dropped.
    pub(crate) segments: BTreeMap<String, Option<Value>>,
}

impl TagType {
    /// Whether this type has every value of that one, or most and says which it has not.
    pub(crate) fn widens_to(self, to: TagType) -> bool {
        use TagType::{Date, Decimal, Float, Int, IntSet, Set, Timestamp, UInt};
        match (self, to) {
            (Int | UInt, Float | Decimal(_)) | (Date, Timestamp) | (IntSet, Set) => true,
            (Decimal(from), Decimal(to)) => from <= to,
            (is, to) => is == to,
        }
    }
}

impl Change {
    /// Whether it is of a tag: those are told again to what was written before them.
    pub(crate) fn is_of_tag(&self) -> bool {
        !matches!(self, Change::PutSegment { .. } | Change::DropSegment { .. })
    }
}

impl Catalogue {
    /// Applies a change and gives it a number; true if anything is other than before.
    pub(crate) fn change(&mut self, change: Change) -> Result<bool, ProfileError> {
        let changed = self.apply(&change)?;
        if changed {
            self.sequence += 1;
            if change.is_of_tag() {
                let number = self.sequence;
                self.changes = self.changes.iter().cloned().chain([(number, change)]).collect();
            }
        }
        Ok(changed)
    }

    /// Applies a change; true if anything is other than before.
    pub(crate) fn apply(&mut self, change: &Change) -> Result<bool, ProfileError> {
        match change {
            Change::AddTag { tag, kind } => self.add(tag, *kind),
            Change::AlterTag { tag, kind } => self.alter(tag, *kind),
            Change::DropTag { tag } => self.drop_tag(tag),
            Change::RenameTag { tag, to } => self.rename(tag, to),
            Change::PutSegment { segment, condition } => {
                let read = Predicate::from_json(condition);
                let bad = |problem| ProfileError::BadSegment {
                    segment: segment.clone(),
                    problem: Box::new(problem),
                };
                self.put_segment(segment, read.map_err(bad)?)
            }
            Change::DropSegment { segment } => self.drop_segment(segment),
        }
    }

    fn known(&self, tag: &str) -> Result<(u32, TagType), ProfileError> {
        self.find(tag).ok_or_else(|| self.unknown_to_update(tag))
    }

    fn alter(&mut self, tag: &str, to: TagType) -> Result<bool, ProfileError> {
        let (number, is) = self.known(tag)?;
        if is == to {
            return Ok(false);
        }
        if !is.widens_to(to) {
            return Err(ProfileError::Narrows { tag: tag.to_owned(), is, wanted: to });
        }
        super::catalogue::scale_fits(tag, to)?;
        self.tags[number as usize].1 = to;
        self.check_segments(tag)?;
        Ok(true)
    }

    fn drop_tag(&mut self, tag: &str) -> Result<bool, ProfileError> {
        let (number, _) = self.known(tag)?;
        self.unused(tag)?;
        self.by_name.remove(tag);
        // Its number is not given again.
        self.tags[number as usize].0 = "".into();
        Ok(true)
    }

    fn rename(&mut self, tag: &str, to: &str) -> Result<bool, ProfileError> {
        let (number, kind) = self.known(tag)?;
        if tag == to {
            return Ok(false);
        }
        if to.is_empty() || to.len() > MOST_NAME {
            return Err(ProfileError::BadName { name: to.to_owned(), most: MOST_NAME });
        }
        if let Some((_, is)) = self.find(to) {
            return Err(ProfileError::TypeClash { tag: to.to_owned(), is, wanted: kind });
        }
        self.unused(tag)?;
        let old: Arc<str> = tag.into();
        self.by_name.remove(&old);
        self.tags[number as usize].0 = "".into();
        if let Some(other) = self.double(to) {
            return Err(ProfileError::SameColumn { tag: to.to_owned(), other: other.to_owned() });
        }
        let name: Arc<str> = to.into();
        self.by_name.insert(name.clone(), number);
        self.tags[number as usize].0 = name;
        Ok(true)
    }

    /// Refuses to take a tag away from a segment.
    fn unused(&self, tag: &str) -> Result<(), ProfileError> {
        match self.segment_of_tag(tag) {
            Some(by) => Err(ProfileError::TagUsed { tag: tag.to_owned(), by: by.to_string() }),
            None => Ok(()),
        }
    }

    /// The name that a stored tag has now, by the changes since its number; nothing if it was dropped.
    pub(crate) fn now_called(&self, stored: &str, since: u64) -> Option<String> {
        let mut name = stored.to_owned();
        for (_, change) in self.changes.iter().filter(|(number, _)| *number > since) {
            match change {
                Change::DropTag { tag } if *tag == name => return None,
                Change::RenameTag { tag, to } if *tag == name => name.clone_from(to),
                _ => {}
            }
        }
        Some(name)
    }

    /// What a checkpoint is to keep; nothing if nothing was changed at run time.
    pub(crate) fn image(&self, life: u64, groups: (u16, u16)) -> Option<Image> {
        if self.sequence == 0 {
            return None;
        }
        let mut segments: BTreeMap<String, Option<Value>> = BTreeMap::new();
        for (name, segment) in &self.segments {
            if !segment.built {
                segments.insert(name.to_string(), Some(segment.predicate.to_json()));
            }
        }
        for name in self.dropped_segments.iter().filter(|name| !self.segments.contains_key(*name)) {
            segments.insert(name.to_string(), None);
        }
        Some(Image {
            life,
            sequence: self.sequence,
            journal: self.journal,
            groups,
            tags: self.changes.to_vec(),
            segments,
        })
    }

    /// Takes over what a checkpoint of another process kept, from a change on; what was changed here meanwhile comes behind it.
    pub(crate) fn adopt(&mut self, image: &Image, from: u64) -> Result<(), ProfileError> {
        let own: Vec<Change> =
            self.changes.iter().filter(|(n, _)| *n > from).map(|(_, c)| c.clone()).collect();
        // What was changed of segments made room for what was changed of tags; they come when all tags are known.
        let mut segments = std::mem::take(&mut self.segments);
        for (_, change) in image.tags.iter().filter(|(number, _)| *number > from) {
            let mut next = self.clone();
            match (next.apply(change), change) {
                // The program may have another list of tags than it had.
                (Err(_), Change::AlterTag { .. } | Change::DropTag { .. } | Change::RenameTag { .. }) => {}
                (done, _) => {
                    done?;
                    *self = next;
                }
            }
        }
        segments.retain(|name, _| !image.segments.contains_key(&**name));
        self.segments = segments;
        let first = image.sequence + 1;
        let own = own.into_iter().enumerate().map(|(i, change)| (first + i as u64, change));
        self.changes = image.tags.iter().cloned().chain(own).collect();
        self.journal = self.journal.max(image.journal);
        self.sequence = self.changes.last().map_or(0, |(number, _)| *number).max(image.sequence);
        Ok(())
    }

    /// Takes over the segments that a checkpoint kept, when all tags are known.
    pub(crate) fn adopt_segments(&mut self, image: &Image) -> Result<(), ProfileError> {
        // One may name another that comes behind it: round by round, until a round defines none.
        let mut left: Vec<(&String, &Value)> = Vec::new();
        for (name, condition) in &image.segments {
            match condition {
                Some(condition) => left.push((name, condition)),
                None => {
                    // Another that the program registers may name it by now: then it stays.
                    if self.drop_segment(name).is_ok() {
                        self.dropped_segments.insert(name.as_str().into());
                    }
                }
            }
        }
        loop {
            let before = left.len();
            let mut failed = None;
            left.retain(|(name, condition)| {
                let change = Change::PutSegment { segment: (*name).clone(), condition: (*condition).clone() };
                match self.apply(&change) {
                    Ok(_) => false,
                    Err(error) => {
                        failed = Some(error);
                        true
                    }
                }
            });
            match failed {
                None => return Ok(()),
                Some(error) if left.len() == before => return Err(error),
                Some(_) => {}
            }
        }
    }
}
