//! Freezing at a barrier: the writer hands over what it shares anyway; the snapshot thread writes what changed since.

use super::super::catalogue::Catalogue;
use super::super::chunk::TagChunk;
use super::super::column::Column;
use super::super::dict::Dict;
use super::super::group::{Group, Memory};
use super::super::{CHUNK_BITS, dict::UserDict};
use super::layout::{NAMES, Name, PAGED, Part, Place, head, seal};
use super::page::Page;
use crate::backend::WriteBatch;
use crate::error::StateError;
use crate::key::KeyGroup;
use crate::store::Frozen;
use std::fmt;
use std::hash::Hash;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of pages handed on at once.
const BATCH: usize = 256 << 10;

/// What a store holds of a writer's key groups: the pages themselves, to tell by their address which were touched since.
///
/// A page that is held here is shared, so the writer copies it rather than change it: the same address means the same
/// contents. What a held page costs is a copy of every page touched since the last settled checkpoint. Locked by whoever
/// writes a snapshot, never by the writer.
#[derive(Debug)]
pub(crate) struct Kept {
    table: u16,
    start: u16,
    groups: Mutex<Vec<KeptGroup>>,
}

#[derive(Debug, Default)]
struct KeptGroup {
    /// Its head says the rest of this.
    head: bool,
    users: u32,
    /// How many values each tag's dictionary has, by tag number.
    values: Vec<u32>,
    /// By tag number and paged part, then by page.
    pages: Vec<Vec<Option<Arc<dyn Page>>>>,
}

impl KeptGroup {
    fn has<P: Page>(&self, tag: usize, part: Part, at: usize, page: &Arc<P>) -> bool {
        let held = self.pages.get(slot(tag, part)).and_then(|pages| pages.get(at)?.as_ref());
        held.is_some_and(|held| ptr::addr_eq(Arc::as_ptr(held), Arc::as_ptr(page)))
    }

    fn hold<P: Page>(&mut self, tag: usize, part: Part, at: usize, page: &Arc<P>) {
        let slot = slot(tag, part);
        if self.pages.len() <= slot {
            self.pages.resize_with(slot + 1, Vec::new);
        }
        let pages = &mut self.pages[slot];
        if pages.len() <= at {
            pages.resize(at + 1, None);
        }
        pages[at] = Some(page.clone());
    }
}

fn slot(tag: usize, part: Part) -> usize {
    tag * PAGED.len() + part as usize - Part::Forward as usize
}

impl Kept {
    /// What a store holds that these groups were read from.
    pub(crate) fn of(table: u16, start: u16, groups: &[Group], catalogue: &Catalogue) -> Self {
        let held = groups.iter().map(|group| {
            let mut held = KeptGroup::default();
            settle(&mut held, group, catalogue, lengths(group, catalogue));
            // The tags may be others than those that are stored: whatever the store has, the list is written again.
            held.head = false;
            held
        });
        Kept { table, start, groups: Mutex::new(held.collect()) }
    }

    // What a panic leaves here is a base that lacks pages: they are written again.
    fn locked(&self) -> MutexGuard<'_, Vec<KeptGroup>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many values each tag's dictionary has. Those given since the barrier may be among them: they do no harm.
fn lengths(group: &Group, catalogue: &Catalogue) -> Vec<u32> {
    (0..catalogue.tags().len()).map(|tag| group.version.values.get(tag).map_or(0, |d| d.len())).collect()
}

fn settle(kept: &mut KeptGroup, group: &Group, catalogue: &Catalogue, values: Vec<u32>) {
    let mut holding = Holding(kept);
    let Ok(()) = walk(group, catalogue, &mut holding);
    *kept =
        KeptGroup { head: true, users: group.version.users, values, pages: std::mem::take(&mut kept.pages) };
}

/// Is shown every page of a group.
trait Visit {
    type Error;
    fn page<P: Page>(&mut self, tag: usize, part: Part, at: usize, page: &Arc<P>) -> Result<(), Self::Error>;
}

struct Holding<'a>(&'a mut KeptGroup);

impl Visit for Holding<'_> {
    type Error = std::convert::Infallible;

    fn page<P: Page>(&mut self, tag: usize, part: Part, at: usize, page: &Arc<P>) -> Result<(), Self::Error> {
        if !self.0.has(tag, part, at, page) {
            self.0.hold(tag, part, at, page);
        }
        Ok(())
    }
}

/// Shows all pages, in the order of their keys but for the tags, which go by number.
fn walk<V: Visit>(group: &Group, catalogue: &Catalogue, visit: &mut V) -> Result<(), V::Error> {
    let tags = catalogue.tags().len();
    for tag in 0..tags {
        for (i, chunk) in group.version.chunks.iter().enumerate() {
            match chunk.tag(tag as u32) {
                Some(TagChunk::Enum { forward, .. }) => column(visit, tag, Part::Forward, i, forward)?,
                Some(TagChunk::Set { forward, .. }) => column(visit, tag, Part::Forward, i, forward)?,
                Some(TagChunk::Int { forward, .. }) => column(visit, tag, Part::Forward, i, forward)?,
                None => {}
            }
        }
    }
    for part in [Part::Stamps, Part::Touched, Part::Cleared] {
        for (tag, memory) in group.memory.iter().enumerate().take(tags) {
            let stamps = match (part, memory) {
                (Part::Stamps, Memory::Enum(stamps) | Memory::Int(stamps)) => stamps,
                (Part::Touched, Memory::Set(memory)) => &memory.touched,
                (Part::Cleared, Memory::Set(memory)) => &memory.cleared,
                _ => continue,
            };
            for (i, chunk) in stamps.0.iter().enumerate() {
                column(visit, tag, part, i, chunk)?;
            }
        }
    }
    for (tag, memory) in group.memory.iter().enumerate().take(tags) {
        let Memory::Set(memory) = memory else { continue };
        for (i, chunk) in memory.elements.0.iter().enumerate() {
            column(visit, tag, Part::Elements, i, chunk)?;
        }
    }
    Ok(())
}

fn column<P: Page + Clone, const USERS: usize, V: Visit>(
    visit: &mut V,
    tag: usize,
    part: Part,
    chunk: usize,
    column: &Column<P, USERS>,
) -> Result<(), V::Error> {
    for (first, page) in column.pages() {
        visit.page(tag, part, ((chunk << CHUNK_BITS) + first) / USERS, page)?;
    }
    Ok(())
}

/// All key groups of a writer as they were at a barrier.
pub(crate) struct FrozenGroups {
    pub(crate) kept: Arc<Kept>,
    pub(crate) groups: Vec<Group>,
    pub(crate) catalogue: Arc<Catalogue>,
    /// The lengths of the dictionaries as written, by group.
    pub(crate) values: Vec<Vec<u32>>,
}

impl fmt::Debug for FrozenGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrozenGroups").field("space", &self.catalogue.space).finish_non_exhaustive()
    }
}

impl Frozen for FrozenGroups {
    fn write(
        &mut self,
        out: &mut dyn FnMut(&WriteBatch) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let kept = self.kept.locked();
        self.values = self.groups.iter().map(|group| lengths(group, &self.catalogue)).collect();
        let mut writing = Writing {
            batch: WriteBatch::default(),
            out,
            table: self.kept.table,
            group: KeyGroup(self.kept.start),
            kept: &KeptGroup::default(),
            catalogue: &self.catalogue,
            key: Vec::new(),
            value: Vec::new(),
        };
        for ((group, kept), values) in self.groups.iter().zip(kept.iter()).zip(&self.values) {
            writing.kept = kept;
            writing.group(group, values)?;
            writing.group.0 += 1;
        }
        writing.flush()
    }

    fn settled(self: Box<Self>, written: bool) {
        if !written {
            // What was written of it will be written over: pages, users, values and tags are never taken back.
            return;
        }
        let mut kept = self.kept.locked();
        for ((kept, group), values) in kept.iter_mut().zip(&self.groups).zip(self.values) {
            settle(kept, group, &self.catalogue, values);
        }
    }
}

/// Writes what the store does not hold.
struct Writing<'a> {
    batch: WriteBatch,
    out: &'a mut dyn FnMut(&WriteBatch) -> Result<(), StateError>,
    table: u16,
    group: KeyGroup,
    kept: &'a KeptGroup,
    catalogue: &'a Catalogue,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Writing<'_> {
    fn group(&mut self, group: &Group, values: &[u32]) -> Result<(), StateError> {
        let users = group.version.users;
        let (old, kept) = (self.kept.users, self.kept);
        if !kept.head || old != users || kept.values != values {
            let catalogue = self.catalogue;
            self.put(Place::HEAD, |out| head(out, users, catalogue, values))?;
        }
        let dict: &UserDict = &group.version.dict;
        self.names(Part::Users, "", dict, old, users)?;
        for (tag, new) in values.iter().enumerate() {
            let old = kept.values.get(tag).copied().unwrap_or(0);
            if let Some(dict) = group.version.values.get(tag).filter(|_| *new > old) {
                self.names(Part::Values, &self.catalogue.tags()[tag].0, dict, old, *new)?;
            }
        }
        walk(group, self.catalogue, self)
    }

    /// Writes the pages of a dictionary that have names from `old` to `new`.
    fn names<N: Name + Hash + Eq + Clone>(
        &mut self,
        part: Part,
        tag: &str,
        dict: &Dict<N>,
        old: u32,
        new: u32,
    ) -> Result<(), StateError> {
        let names = NAMES as u32;
        if old == new {
            return Ok(());
        }
        for page in old / names..new.div_ceil(names) {
            let numbers = page * names..new.min((page + 1).saturating_mul(names));
            self.put(Place { part, tag, page }, |out| {
                numbers.filter_map(|number| dict.name(number)).for_each(|name| name.encode(out));
            })?;
        }
        Ok(())
    }

    fn put(&mut self, place: Place<'_>, contents: impl FnOnce(&mut Vec<u8>)) -> Result<(), StateError> {
        place.key(self.group, self.table, &mut self.key);
        seal(&self.key, &mut self.value, contents);
        self.batch.put(&self.key, &self.value);
        if self.batch.bytes() >= BATCH { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), StateError> {
        if !self.batch.is_empty() {
            (self.out)(&self.batch)?;
            self.batch.clear();
        }
        Ok(())
    }
}

impl Visit for Writing<'_> {
    type Error = StateError;

    fn page<P: Page>(&mut self, tag: usize, part: Part, at: usize, page: &Arc<P>) -> Result<(), StateError> {
        if self.kept.has(tag, part, at, page) {
            return Ok(());
        }
        let catalogue = self.catalogue;
        let place = Place { part, tag: &catalogue.tags()[tag].0, page: at as u32 };
        self.put(place, |out| page.encode(out))
    }
}
