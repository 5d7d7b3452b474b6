//! One chunk of up to 65,536 users of one key group: bitmaps per value and forward columns, copied only where shared.

use super::PAGE;
use super::column::{Column, EnumPage, IntPage, NONE, SetPage};
use super::dict::{UserDict, ValueDict};
use super::heap::Heap;
use super::locals::{Locals, Posting, each_bit};
use super::number::NumberIndex;
use super::posting::Postings;
use super::scalar;
use super::update::{Shape, TagType};
use std::sync::Arc;

/// One published state of a key group. Cloning it copies pointers.
#[derive(Debug, Clone, Default)]
pub(crate) struct GroupVersion {
    /// Users there are: local ordinals `0..users`.
    pub(crate) users: u32,
    pub(crate) dict: Arc<UserDict>,
    /// By tag number; int tags leave theirs empty.
    pub(crate) values: Vec<Arc<ValueDict>>,
    /// By tag number: of the types that values are kept in here; the newest catalogue may have a wider one already.
    pub(crate) kinds: Arc<[TagType]>,
    pub(crate) chunks: Vec<Arc<Chunk>>,
}

impl Heap for GroupVersion {
    fn heap(&self) -> usize {
        self.dict.heap() + self.values.heap() + self.chunks.heap() + size_of_val(&*self.kinds)
    }
}

impl Heap for Chunk {
    fn heap(&self) -> usize {
        self.tags.heap()
    }
}

impl Heap for TagChunk {
    fn heap(&self) -> usize {
        match self {
            TagChunk::Enum { has, by_value, forward } => has.heap() + by_value.heap() + forward.heap(),
            TagChunk::Set { has, by_value, forward } => has.heap() + by_value.heap() + forward.heap(),
            TagChunk::Int { has, by_number, forward } => has.heap() + by_number.heap() + forward.heap(),
        }
    }
}

impl GroupVersion {
    /// How many users of this chunk exist.
    pub(crate) fn users_in(&self, chunk: usize) -> u32 {
        self.users.saturating_sub((chunk as u32) << 16).min(1 << 16)
    }

    /// The type that a tag's values are kept in here, if anyone here could have had one.
    #[inline]
    pub(crate) fn kind(&self, tag: u32) -> Option<TagType> {
        self.kinds.get(tag as usize).copied()
    }

    /// The numbers of a tag's values in this group that a test holds for. Looks at all of them.
    pub(crate) fn values_where(&self, tag: u32, holds: impl Fn(&str) -> bool) -> Vec<u32> {
        let all = self.values.get(tag as usize).into_iter().flat_map(|dict| dict.each());
        all.filter(|(_, value)| holds(value)).map(|(number, _)| number).collect()
    }

    /// The number of a tag's value in this group, if anyone here ever had it.
    pub(crate) fn value(&self, tag: u32, value: &str) -> Option<u32> {
        self.values.get(tag as usize)?.number(value)
    }
}

/// The tags of one chunk by tag number; a tag nobody here ever had does not exist.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chunk {
    tags: Vec<Option<Arc<TagChunk>>>,
}

impl Chunk {
    pub(crate) fn of(tags: Vec<Option<Arc<TagChunk>>>) -> Self {
        Self { tags }
    }

    #[inline]
    pub(crate) fn tag(&self, tag: u32) -> Option<&TagChunk> {
        self.tags.get(tag as usize)?.as_deref()
    }

    /// Puts a tag in the place of what it was, or of nothing.
    pub(crate) fn put_tag(&mut self, tag: u32, with: Option<Arc<TagChunk>>) {
        let at = tag as usize;
        if at >= self.tags.len() {
            self.tags.resize(at + 1, None);
        }
        self.tags[at] = with;
    }

    #[inline]
    pub(crate) fn tag_mut(&mut self, tag: u32, kind: TagType) -> &mut TagChunk {
        let at = tag as usize;
        if at >= self.tags.len() {
            self.tags.resize(at + 1, None);
        }
        Arc::make_mut(self.tags[at].get_or_insert_with(|| Arc::new(TagChunk::new(kind))))
    }
}

/// One tag of one chunk. `has` holds the users that have a value. `Int` is any number, by its key.
#[derive(Debug, Clone)]
pub(crate) enum TagChunk {
    Enum { has: Locals, by_value: Postings, forward: Column<EnumPage> },
    Set { has: Locals, by_value: Postings, forward: Column<SetPage> },
    Int { has: Locals, by_number: NumberIndex, forward: Column<IntPage> },
}

impl TagChunk {
    fn new(kind: TagType) -> Self {
        let has = Locals::default();
        match kind.shape() {
            Shape::Text => TagChunk::Enum { has, by_value: Postings::default(), forward: Column::default() },
            Shape::Set => TagChunk::Set { has, by_value: Postings::default(), forward: Column::default() },
            Shape::Number => {
                TagChunk::Int { has, by_number: NumberIndex::default(), forward: Column::default() }
            }
        }
    }

    /// Builds the bitmaps that follow from a column of numbers below `values`; nothing if it has others.
    pub(crate) fn of_enum(forward: Column<EnumPage>, values: u32) -> Option<Self> {
        let mut pairs = Vec::new();
        for (first, page) in forward.pages() {
            let held = page.0.iter().enumerate().filter(|(_, v)| **v != NONE);
            pairs.extend(held.map(|(slot, value)| (*value, (first + slot) as u16)));
        }
        let has = Locals::of_sorted(pairs.iter().map(|p| p.1).collect());
        Some(TagChunk::Enum { has, by_value: Postings::of(pairs, values)?, forward })
    }

    /// Builds the bitmaps that follow from a column of numbers below `values`; nothing if it has others, or one twice.
    pub(crate) fn of_set(forward: Column<SetPage>, values: u32) -> Option<Self> {
        let (mut pairs, mut has) = (Vec::new(), Vec::new());
        for (first, page) in forward.pages() {
            has.extend(present(first, &page.has));
            for slot in 0..PAGE {
                pairs.extend(page.lists.get(slot).iter().map(|value| (*value, (first + slot) as u16)));
            }
        }
        Some(TagChunk::Set { has: Locals::of_sorted(has), by_value: Postings::of(pairs, values)?, forward })
    }

    /// Builds the index that follows from a column of integers.
    pub(crate) fn of_int(forward: Column<IntPage>) -> Option<Self> {
        let has = forward.pages().flat_map(|(first, page)| present(first, &page.has)).collect();
        Some(TagChunk::Int { has: Locals::of_sorted(has), by_number: NumberIndex::of(&forward), forward })
    }

    pub(crate) fn has(&self) -> &Locals {
        match self {
            TagChunk::Enum { has, .. } | TagChunk::Set { has, .. } | TagChunk::Int { has, .. } => has,
        }
    }

    /// The users of a value, for enum and set tags.
    #[inline]
    pub(crate) fn posting(&self, value: u32) -> Option<Posting<'_>> {
        match self {
            TagChunk::Enum { by_value, .. } | TagChunk::Set { by_value, .. } => by_value.get(value),
            TagChunk::Int { .. } => None,
        }
    }

    #[inline]
    pub(crate) fn enum_value(&self, local: u16) -> Option<u32> {
        match self {
            TagChunk::Enum { forward, .. } => forward.value(local),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn int_value(&self, local: u16) -> Option<i64> {
        match self {
            TagChunk::Int { forward, .. } => forward.value(local),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn set_values(&self, local: u16) -> &[u32] {
        match self {
            TagChunk::Set { forward, .. } => forward.values(local),
            _ => &[],
        }
    }

    /// Gives a user another enum value, or none.
    #[inline]
    pub(crate) fn put_enum(&mut self, local: u16, value: Option<u32>) {
        let TagChunk::Enum { has, by_value, forward } = self else { return };
        let slot = &mut forward.page_mut(local).0[local as usize % PAGE];
        let old = std::mem::replace(slot, value.unwrap_or(NONE));
        if old != NONE {
            by_value.remove(old, local);
        }
        if let Some(value) = value {
            by_value.insert(value, local);
        }
        mark(has, local, old != NONE, value.is_some());
    }

    /// Gives a user another integer, or none.
    #[inline]
    pub(crate) fn put_int(&mut self, local: u16, value: Option<i64>) {
        let TagChunk::Int { has, by_number, forward } = self else { return };
        let old = forward.value(local);
        forward.put(local, value);
        by_number.put(forward, local, old, value);
        mark(has, local, old.is_some(), value.is_some());
    }

    /// The same numbers by the keys of a wider type; nothing if that lacks one.
    pub(crate) fn widened(&self, from: TagType, to: TagType) -> Option<Self> {
        let mut wider = Column::default();
        for (local, key) in self.numbers() {
            wider.put(local, Some(scalar::widened(from, to, key)?));
        }
        Self::of_int(wider)
    }

    /// All numbers with who has them, in order of these.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = (u16, i64)> + '_ {
        let forward = match self {
            TagChunk::Int { forward, .. } => Some(forward),
            _ => None,
        };
        forward.into_iter().flat_map(|forward| {
            let locals = forward.pages().flat_map(|(first, page)| present(first, &page.has));
            locals.filter_map(move |local| Some((local, forward.value(local)?)))
        })
    }

    /// Adds or removes one element of a user's set.
    #[inline]
    pub(crate) fn put_element(&mut self, local: u16, value: u32, present: bool) {
        let TagChunk::Set { by_value, forward, .. } = self else { return };
        let had = by_value.get(value).is_some_and(|p| p.contains(local));
        match (had, present) {
            (false, true) => {
                by_value.insert(value, local);
                forward.push(local, value);
            }
            (true, false) => {
                by_value.remove(value, local);
                forward.take(local, value);
            }
            _ => {}
        }
    }

    /// Says whether a user has a set at all, be it empty.
    #[inline]
    pub(crate) fn put_presence(&mut self, local: u16, present: bool) {
        let TagChunk::Set { has, forward, .. } = self else { return };
        let had = has.contains(local);
        if had != present {
            forward.mark(local, present);
            mark(has, local, had, present);
        }
    }
}

/// The users of a page, `first` being its first, whose bit is set.
fn present(first: usize, words: &[u64; PAGE / 64]) -> impl Iterator<Item = u16> + '_ {
    each_bit(words).map(move |slot| first as u16 + slot)
}

/// Notes who has a value, touching (and so perhaps copying) only on a change.
#[inline]
fn mark(has: &mut Locals, local: u16, had: bool, now: bool) {
    match (had, now) {
        (false, true) => has.insert(local),
        (true, false) => has.remove(local),
        _ => {}
    }
}
