//! The tags of a space, by name and by number; numbers are given in order and never reused.

use super::dict::Seeded;
use super::error::{ProfileError, QueryError};
use super::update::TagType;
use hashbrown::HashMap;
use std::sync::Arc;

/// One published state of the tag definitions; a change makes a new one.
#[derive(Debug, Clone)]
pub(crate) struct Catalogue {
    pub(crate) space: Arc<str>,
    tags: Vec<(Arc<str>, TagType)>,
    by_name: HashMap<Arc<str>, u32, Seeded>,
    /// The first clash among definitions made while building, where no error can be returned.
    pub(crate) defect: Option<ProfileError>,
}

impl Catalogue {
    pub(crate) fn new(space: Arc<str>) -> Self {
        Self { space, tags: Vec::new(), by_name: HashMap::default(), defect: None }
    }

    /// Finds a tag's number and type.
    #[inline]
    pub(crate) fn find(&self, name: &str) -> Option<(u32, TagType)> {
        self.by_name.get(name).map(|&id| (id, self.tags[id as usize].1))
    }

    /// All tags in the order of their numbers.
    pub(crate) fn tags(&self) -> &[(Arc<str>, TagType)] {
        &self.tags
    }

    /// Defines a tag; true if it was not there.
    pub(crate) fn add(&mut self, name: &str, kind: TagType) -> Result<bool, ProfileError> {
        match self.find(name) {
            Some((_, is)) if is == kind => Ok(false),
            Some((_, is)) => Err(ProfileError::TypeClash { tag: name.to_owned(), is, wanted: kind }),
            None => {
                let name: Arc<str> = name.into();
                self.by_name.insert(name.clone(), self.tags.len() as u32);
                self.tags.push((name, kind));
                Ok(true)
            }
        }
    }

    fn known(&self) -> String {
        let names: Vec<&str> = self.tags.iter().map(|(n, _)| &**n).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }

    pub(crate) fn unknown_to_update(&self, tag: &str) -> ProfileError {
        ProfileError::UnknownTag { tag: tag.to_owned(), space: self.space.to_string(), known: self.known() }
    }

    pub(crate) fn unknown_to_query(&self, tag: &str) -> QueryError {
        QueryError::UnknownTag { tag: tag.to_owned(), space: self.space.to_string(), known: self.known() }
    }
}
