//! The tags of a space, by name and by number, and its segments; numbers are given in order and never reused.

use super::change::Change;
use super::dict::Seeded;
use super::error::{ProfileError, QueryError};
use super::predicate::Predicate;
use super::segments::MOST_NAME;
use super::update::TagType;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Digits that a decimal tag may have behind the point: with more, an `i64` holds no whole numbers to speak of.
const MOST_DIGITS: u8 = 18;

/// One published state of the tag definitions; a change makes a new one.
#[derive(Debug, Clone)]
pub(crate) struct Catalogue {
    pub(crate) space: Arc<str>,
    /// What SQL calls the user's id.
    pub(crate) key: Arc<str>,
    pub(super) tags: Vec<(Arc<str>, TagType)>,
    pub(super) by_name: HashMap<Arc<str>, u32, Seeded>,
    pub(super) segments: BTreeMap<Arc<str>, Arc<Segment>>,
    /// Those that the program registers and that were dropped at run time.
    pub(super) dropped_segments: BTreeSet<Arc<str>>,
    /// Changes of tags at run time with their numbers, rising: what was written before them is read by them.
    pub(super) changes: Arc<[(u64, Change)]>,
    /// The number of the last change at run time; 0 if there was none.
    pub(crate) sequence: u64,
    /// The number of the last entry of the journal that changed it.
    pub(crate) journal: u64,
    /// Counts states of the catalogue in this process.
    pub(crate) revision: u64,
    /// The first clash among definitions made while building, where no error can be returned.
    pub(crate) defect: Option<ProfileError>,
}

/// A registered condition, and what it comes to with the segments that it names.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub(crate) predicate: Predicate,
    /// The program registers it when it starts: a checkpoint need not keep it.
    pub(crate) built: bool,
    /// How deep it is nested.
    pub(crate) depth: usize,
    /// How many parts it has.
    pub(crate) parts: usize,
}

impl Catalogue {
    pub(crate) fn new(space: Arc<str>) -> Self {
        Self {
            space,
            key: "user_id".into(),
            tags: Vec::new(),
            by_name: HashMap::default(),
            segments: BTreeMap::new(),
            dropped_segments: BTreeSet::new(),
            changes: Arc::new([]),
            sequence: 0,
            journal: 0,
            revision: 0,
            defect: None,
        }
    }

    /// What a segment is defined as.
    pub(crate) fn segment(&self, name: &str) -> Option<&Predicate> {
        self.segments.get(name).map(|segment| &segment.predicate)
    }

    /// All segments by name.
    pub(crate) fn segments(&self) -> impl Iterator<Item = (&Arc<str>, &Predicate)> {
        self.segments.iter().map(|(name, segment)| (name, &segment.predicate))
    }

    /// The table of a tag and its name there: a tag `b.score` is `score` of table `b`; one without a table belongs to
    /// that of the space's name.
    pub(crate) fn split<'n>(&'n self, tag: &'n str) -> (&'n str, &'n str) {
        tag.split_once('.').unwrap_or((&*self.space, tag))
    }

    /// The whole name of a tag of a table.
    pub(crate) fn tag_of(&self, table: &str, name: &str) -> String {
        let whole = format!("{table}.{name}");
        let bare = *table == *self.space && !name.contains('.');
        // In a space `a.b`, `a.b.score` is of table `a`.
        let taken = self.split(&whole) == (table, name) && self.by_name.contains_key(&*whole);
        if bare && !taken { name.to_owned() } else { whole }
    }

    /// The tag that is the same column as this one: with and without the table of the space's name before it.
    pub(super) fn double(&self, tag: &str) -> Option<&str> {
        let (table, name) = self.split(tag);
        let of_space = *table == *self.space && !name.contains('.');
        let other = if name == tag { format!("{table}.{name}") } else { name.to_owned() };
        let (other, _) = self.by_name.get_key_value(&*other).filter(|_| of_space)?;
        (self.split(other) == (table, name)).then_some(&**other)
    }

    /// The tables there are, in the order of their first tag.
    pub(crate) fn tables(&self) -> Vec<&str> {
        let mut tables = Vec::new();
        for (_, tag, _) in self.live() {
            let table = self.split(tag).0;
            if !tables.contains(&table) {
                tables.push(table);
            }
        }
        tables
    }

    /// The tags of a table by their name there, with type and number. Of two that are one column, which old states may have, that with the
    /// table in its name.
    pub(crate) fn columns<'c>(
        &'c self,
        table: &'c str,
    ) -> impl Iterator<Item = (&'c str, TagType, u32)> + 'c {
        self.live().filter_map(move |(number, tag, kind)| {
            let (of, name) = self.split(tag);
            let hidden = name == &**tag && self.double(tag).is_some();
            (of == table && !hidden).then_some((name, kind, number))
        })
    }

    /// Finds a tag's number and type.
    #[inline]
    pub(crate) fn find(&self, name: &str) -> Option<(u32, TagType)> {
        self.by_name.get(name).map(|&id| (id, self.tags[id as usize].1))
    }

    /// The tags there are, with their numbers, in the order of these.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u32, &Arc<str>, TagType)> {
        let numbered = self.tags.iter().enumerate();
        numbered.filter(|(_, (name, _))| !name.is_empty()).map(|(n, (name, kind))| (n as u32, name, *kind))
    }

    /// All tags that there ever were in the order of their numbers; a dropped one has an empty name.
    pub(crate) fn tags(&self) -> &[(Arc<str>, TagType)] {
        &self.tags
    }

    /// Defines a tag; true if it was not there.
    pub(crate) fn add(&mut self, name: &str, kind: TagType) -> Result<bool, ProfileError> {
        match self.double(name) {
            Some(other) if self.find(name).is_none() => {
                Err(ProfileError::SameColumn { tag: name.to_owned(), other: other.to_owned() })
            }
            _ => self.add_stored(name, kind),
        }
    }

    /// Defines a tag that a state has, even one that is the same column as another: no name in the program could mend that.
    pub(crate) fn add_stored(&mut self, name: &str, kind: TagType) -> Result<bool, ProfileError> {
        match self.find(name) {
            Some((_, is)) if is == kind => Ok(false),
            Some((_, is)) => Err(ProfileError::TypeClash { tag: name.to_owned(), is, wanted: kind }),
            None => {
                scale_fits(name, kind)?;
                if name.is_empty() || name.len() > MOST_NAME {
                    return Err(ProfileError::BadName { name: name.to_owned(), most: MOST_NAME });
                }
                let name: Arc<str> = name.into();
                self.by_name.insert(name.clone(), self.tags.len() as u32);
                self.tags.push((name, kind));
                Ok(true)
            }
        }
    }

    fn known_tags(&self) -> String {
        let names: Vec<&str> = self.live().map(|(_, name, _)| &**name).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }

    pub(crate) fn unknown_to_update(&self, tag: &str) -> ProfileError {
        ProfileError::UnknownTag {
            tag: tag.to_owned(),
            space: self.space.to_string(),
            known: self.known_tags(),
        }
    }

    pub(crate) fn unknown_segment(&self, segment: &str) -> QueryError {
        let names: Vec<&str> = self.segments.keys().map(|name| &**name).collect();
        let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        QueryError::UnknownSegment { segment: segment.to_owned(), space: self.space.to_string(), known }
    }

    pub(crate) fn unknown_to_query(&self, tag: &str) -> QueryError {
        QueryError::UnknownTag {
            tag: tag.to_owned(),
            space: self.space.to_string(),
            known: self.known_tags(),
        }
    }
}

/// Refuses a decimal with too many digits behind the point.
pub(super) fn scale_fits(tag: &str, kind: TagType) -> Result<(), ProfileError> {
    match kind {
        TagType::Decimal(scale) if scale > MOST_DIGITS => {
            Err(ProfileError::Scale { tag: tag.to_owned(), scale, most: MOST_DIGITS })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_tags_are_one_column_in_either_order_or_in_none() {
        for (space, doubles) in [("crowd", &[["score", "crowd.score"]][..]), ("a.b", &[])] {
            let names =
                ["score", "crowd.score", "b.score", "crowd.b.score", "a.b.score", "a.score", "b.b.score"];
            for (first, second) in names.iter().flat_map(|a| names.iter().map(move |b| (*a, *b))) {
                let mut catalogue = Catalogue::new(space.into());
                assert!(catalogue.add(first, TagType::Int).unwrap());
                let added = catalogue.add(second, TagType::Int).is_ok();
                let double = doubles.iter().any(|d| d.contains(&first) && d.contains(&second));
                assert_eq!(added, first == second || !double, "{first}, then {second} in {space}");
                // What SQL finds is what is listed, each under one name.
                for tag in [first, second].into_iter().filter(|tag| catalogue.find(tag).is_some()) {
                    let (table, name) = catalogue.split(tag);
                    assert_eq!(catalogue.tag_of(table, name), tag, "{first} and {second} in {space}");
                }
            }
        }
    }
}
