//! Freezing at a barrier: the writer hands over what it shares anyway; the snapshot thread writes what changed since.
//! (over 400 lines: what is held, what is written, and how the two are told apart)

use super::super::catalogue::Catalogue;
use super::super::chunk::TagChunk;
use super::super::column::Column;
use super::super::dict::Dict;
use super::super::group::{Group, Memory};
use super::super::heap::Heap;
use super::super::update::TagType;
use super::super::{CHUNK_BITS, dict::UserDict};
use super::layout::{FORMAT, NAMES, Name, PAGED, Part, Place, head, head_format, seal};
use super::page::Page;
use crate::backend::WriteBatch;
use crate::error::StateError;
use crate::key::KeyGroup;
use crate::store::Frozen;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of pages handed on at once.
const BATCH: usize = 256 << 10;

/// What a store holds of a writer's key groups: the pages themselves, to tell by their address which were touched since.
///
/// A page that is held here is shared, so the writer copies it rather than change it: the same address means the same
/// contents. What that costs is a copy of every page touched since the last barrier. Locked by whoever writes a
/// snapshot, never by the writer.
#[derive(Debug)]
pub(crate) struct Kept {
    table: u16,
    start: u16,
    state: Mutex<State>,
    /// Of its own, so that asking never waits for a snapshot to be written.
    last: Mutex<Written>,
    /// What the groups take in memory, as of the last barrier.
    bytes: AtomicU64,
}

#[derive(Debug)]
struct State {
    groups: Vec<KeptGroup>,
    /// The snapshot that is being written, or was last; by number.
    snapshot: u64,
}

/// What a snapshot wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// Pages of columns, stamps and dictionaries, and lists of tags: those that had changed.
    pub pieces: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct KeptGroup {
    held: Held,
    /// The name that each tag's pieces are kept under, by tag number; none if there are none.
    names: Vec<Option<Arc<str>>>,
    /// Names that pieces are kept under and that no tag here has.
    stray: Vec<Arc<str>>,
    /// By tag number and paged part, then by page.
    pages: Vec<Vec<Option<Arc<dyn Page>>>>,
    /// What the snapshot being written adds. An old page goes as soon as the new one is written, so that three versions are
    /// never in memory; if the snapshot fails, its pages count as not held: they would have to be written again anyway.
    unsettled: Option<Held>,
    unsettled_pages: Vec<(usize, usize)>,
    unsettled_names: Vec<Option<Arc<str>>>,
}

/// What the store has of a group beside pages.
#[derive(Debug, Default, PartialEq, Eq)]
struct Held {
    /// The list of tags is that of this state of the catalogue; 0 where it is not known.
    tags: u64,
    /// The types that values are kept in, by tag number.
    kinds: Arc<[TagType]>,
    users: u32,
    /// How many values each tag's dictionary has, by tag number.
    values: Vec<u32>,
}

impl Held {
    /// All that a group has. Values that were given since the barrier may be among them: they do no harm.
    fn all(group: &Group, catalogue: &Catalogue) -> Self {
        let values = &group.version.values;
        let values = (0..catalogue.tags().len()).map(|tag| values.get(tag).map_or(0, |dict| dict.len()));
        let (users, kinds) = (group.version.users, group.version.kinds.clone());
        Held { tags: catalogue.revision, kinds, users, values: values.collect() }
    }
}

impl KeptGroup {
    fn has<P: Page>(&self, tag: usize, part: Part, at: usize, page: &Arc<P>) -> bool {
        let held = self.pages.get(slot(tag, part)).and_then(|pages| pages.get(at)?.as_ref());
        held.is_some_and(|held| ptr::addr_eq(Arc::as_ptr(held), Arc::as_ptr(page)))
    }

    fn hold<P: Page>(&mut self, tag: usize, part: Part, at: usize, page: &Arc<P>) -> (usize, usize) {
        let slot = slot(tag, part);
        if self.pages.len() <= slot {
            self.pages.resize_with(slot + 1, Vec::new);
        }
        let pages = &mut self.pages[slot];
        if pages.len() <= at {
            pages.resize(at + 1, None);
        }
        pages[at] = Some(page.clone());
        (slot, at)
    }

    /// Ends the snapshot that was being written, if there is one.
    fn settle(&mut self, written: bool) {
        let names = std::mem::take(&mut self.unsettled_names);
        match self.unsettled.take() {
            Some(held) if written => {
                self.held = held;
                self.names = names;
                self.stray.clear();
            }
            _ => {}
        }
        for (slot, at) in std::mem::take(&mut self.unsettled_pages) {
            if !written {
                self.pages[slot][at] = None;
            }
        }
    }
}

/// What was read is held.
impl Visit for KeptGroup {
    type Error = std::convert::Infallible;

    fn page<P: Page>(&mut self, tag: usize, part: Part, at: usize, page: &Arc<P>) -> Result<(), Self::Error> {
        self.hold(tag, part, at, page);
        Ok(())
    }
}

fn slot(tag: usize, part: Part) -> usize {
    tag * PAGED.len() + part as usize - Part::Forward as usize
}

impl Kept {
    /// What a store holds that these groups were read from.
    ///
    /// `stored` says under which names, of each group.
    pub(crate) fn of(
        table: u16,
        start: u16,
        groups: &[Group],
        catalogue: &Catalogue,
        stored: Vec<StoredNames>,
    ) -> Self {
        let bytes = AtomicU64::new(groups.iter().map(|group| group.heap() as u64).sum());
        let groups = groups.iter().zip(stored).map(|(group, stored)| {
            // Its list of tags may be another: whatever the store has, it is written again.
            let held = Held { tags: 0, ..Held::all(group, catalogue) };
            let StoredNames { names, stray } = stored;
            let mut kept = KeptGroup { held, names, stray, ..KeptGroup::default() };
            let Ok(()) = walk(group, catalogue, &mut kept);
            kept
        });
        let state = Mutex::new(State { groups: groups.collect(), snapshot: 0 });
        Kept { table, start, state, last: Mutex::default(), bytes }
    }

    /// What the last snapshot that settled wrote.
    pub(crate) fn last_written(&self) -> Written {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the groups take in memory, as of the last barrier.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    // After a panic it holds too little, or has pages that are unsettled: they are written again.
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Under which names a group's tags are kept in the store.
#[derive(Debug, Default)]
pub(crate) struct StoredNames {
    /// By tag number.
    pub(crate) names: Vec<Option<Arc<str>>>,
    /// Of tags that were dropped since.
    pub(crate) stray: Vec<Arc<str>>,
}

/// Is shown every page of a group.
trait Visit {
    type Error;
    fn page<P: Page>(&mut self, tag: usize, part: Part, at: usize, page: &Arc<P>) -> Result<(), Self::Error>;
}

/// Shows all pages, in the order of their keys but for the tags, which go by number.
fn walk<V: Visit>(group: &Group, catalogue: &Catalogue, visit: &mut V) -> Result<(), V::Error> {
    let all = catalogue.tags();
    // The pieces of a dropped tag go, whatever is in memory of it yet.
    let live = |tag: &usize| all.get(*tag).is_some_and(|(name, _)| !name.is_empty());
    for tag in (0..all.len()).filter(live) {
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
        for (tag, memory) in group.memory.iter().enumerate().filter(|(tag, _)| live(tag)) {
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
    for (tag, memory) in group.memory.iter().enumerate().filter(|(tag, _)| live(tag)) {
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
    kept: Arc<Kept>,
    groups: Vec<Group>,
    catalogue: Arc<Catalogue>,
    /// Its number, when it has begun to be written.
    number: Option<u64>,
    written: Written,
}

impl FrozenGroups {
    pub(crate) fn new(kept: Arc<Kept>, groups: Vec<Group>, catalogue: Arc<Catalogue>) -> Self {
        FrozenGroups { kept, groups, catalogue, number: None, written: Written::default() }
    }
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
        let mut state = self.kept.locked();
        // One that was never settled has failed.
        state.groups.iter_mut().for_each(|kept| kept.settle(false));
        state.snapshot += 1;
        self.number = Some(state.snapshot);
        let mut writing = Writing {
            batch: WriteBatch::default(),
            out,
            table: self.kept.table,
            group: KeyGroup(self.kept.start),
            kept: KeptGroup::default(),
            catalogue: &self.catalogue,
            key: Vec::new(),
            value: Vec::new(),
            written: Written::default(),
        };
        let mut bytes = 0;
        // Each group is let go when it is written: what the writer has changed meanwhile is then in memory no more.
        for (group, kept) in std::mem::take(&mut self.groups).into_iter().zip(&mut state.groups) {
            bytes += group.heap() as u64;
            writing.kept = std::mem::take(kept);
            let written = writing.group(&group);
            *kept = std::mem::take(&mut writing.kept);
            written?;
            writing.group.0 += 1;
        }
        self.kept.bytes.store(bytes, Ordering::Relaxed);
        writing.flush()?;
        self.written = writing.written;
        Ok(())
    }

    fn settled(self: Box<Self>, written: bool) {
        let mut state = self.kept.locked();
        if self.number == Some(state.snapshot) {
            // What a failed one has left in the store is written over by the next: pages, users, values and tags are
            // never taken back.
            state.groups.iter_mut().for_each(|kept| kept.settle(written));
            if written {
                *self.kept.last.lock().unwrap_or_else(PoisonError::into_inner) = self.written;
            }
        }
    }
}

/// Writes what the store does not hold.
struct Writing<'a> {
    batch: WriteBatch,
    out: &'a mut dyn FnMut(&WriteBatch) -> Result<(), StateError>,
    table: u16,
    group: KeyGroup,
    kept: KeptGroup,
    catalogue: &'a Catalogue,
    key: Vec<u8>,
    value: Vec<u8>,
    written: Written,
}

impl Writing<'_> {
    fn group(&mut self, group: &Group) -> Result<(), StateError> {
        let catalogue = self.catalogue;
        self.gone(catalogue);
        let new = Held::all(group, catalogue);
        let old = std::mem::take(&mut self.kept.held);
        let written = self.beside_pages(group, &old, &new).and_then(|()| walk(group, catalogue, self));
        self.kept.held = old;
        self.kept.unsettled = Some(new);
        let name = |(name, _): &(Arc<str>, TagType)| (!name.is_empty()).then(|| name.clone());
        self.kept.unsettled_names = catalogue.tags().iter().map(name).collect();
        written
    }

    /// Deletes what is kept under names that tags have no more, and forgets that it is held: first of all, since another tag may have the name now.
    fn gone(&mut self, catalogue: &Catalogue) {
        let mut gone = self.kept.stray.clone();
        for (tag, name) in self.kept.names.iter().enumerate() {
            let Some(name) = name else { continue };
            if catalogue.tags().get(tag).is_some_and(|(now, _)| now == name) {
                continue;
            }
            gone.push(name.clone());
            let slots = slot(tag, Part::Forward)..slot(tag + 1, Part::Forward);
            let pages = self.kept.pages.iter_mut().take(slots.end).skip(slots.start);
            pages.for_each(Vec::clear);
            if let Some(values) = self.kept.held.values.get_mut(tag) {
                *values = 0;
            }
        }
        for name in gone {
            for part in PAGED.into_iter().chain([Part::Values]) {
                let (from, to) = Place::range(self.group, self.table, part, &name);
                self.batch.delete_range(&from, &to);
            }
        }
    }

    fn beside_pages(&mut self, group: &Group, old: &Held, new: &Held) -> Result<(), StateError> {
        let catalogue = self.catalogue;
        if old != new {
            self.put_as(head_format(catalogue), Place::HEAD, |out| {
                head(out, new.users, catalogue, &new.values, &new.kinds)
            })?;
        }
        let dict: &UserDict = &group.version.dict;
        self.names(Part::Users, "", dict, old.users, new.users)?;
        for (tag, new) in new.values.iter().enumerate() {
            let old = old.values.get(tag).copied().unwrap_or(0);
            if catalogue.tags()[tag].0.is_empty() {
                continue;
            }
            if let Some(dict) = group.version.values.get(tag) {
                self.names(Part::Values, &catalogue.tags()[tag].0, dict, old, *new)?;
            }
        }
        Ok(())
    }

    /// Writes the pages of a dictionary that have names from `old` to `new`.
    fn names<N: Name>(
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
        self.put_as(FORMAT, place, contents)
    }

    fn put_as(
        &mut self,
        format: u8,
        place: Place<'_>,
        contents: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), StateError> {
        place.key(self.group, self.table, &mut self.key);
        seal(format, &self.key, &mut self.value, contents);
        self.batch.put(&self.key, &self.value);
        self.written.pieces += 1;
        self.written.bytes += (self.key.len() + self.value.len()) as u64;
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
        self.put(Place { part, tag: &catalogue.tags()[tag].0, page: at as u32 }, |out| page.encode(out))?;
        let held = self.kept.hold(tag, part, at, page);
        self.kept.unsettled_pages.push(held);
        Ok(())
    }
}
