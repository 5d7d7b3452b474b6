//! One key group as its writer holds it: decides what each delta does (last writer wins), then changes the chunks.
//! (over 400 lines: one delta on its way, beside what a change of the catalogue does to all)

use super::CHUNK_BITS;
use super::catalogue::Catalogue;
use super::chunk::{GroupVersion, TagChunk};
use super::element::Elements;
use super::error::ProfileError;
use super::heap::Heap;
use super::map;
use super::scalar::{self, NotGrown};
use super::stamp::{NEVER, Stamps};
use super::update::{Delta, ProfileUpdate, Shape, TagDelta, TagType, TagValue, is_int_element};
use super::user::UserId;
use std::sync::Arc;

/// What the writer knows of one tag beside what is published. A clone copies a few pointers per chunk.
#[derive(Debug, Clone)]
pub(crate) enum Memory {
    Enum(Stamps),
    Int(Stamps),
    Set(SetMemory),
}

/// The clocks of a set tag, per user and per element.
#[derive(Debug, Clone, Default)]
pub(crate) struct SetMemory {
    /// The newest delta that gave the tag a value, be it an empty one.
    pub(crate) touched: Stamps,
    /// The newest `Set` or `Unset`: elements older than it are gone.
    pub(crate) cleared: Stamps,
    /// The newest `Add` or `Remove` of each element.
    pub(crate) elements: Elements,
}

impl Memory {
    pub(crate) fn new(kind: TagType) -> Self {
        match kind.shape() {
            Shape::Text => Memory::Enum(Stamps::default()),
            Shape::Number => Memory::Int(Stamps::default()),
            Shape::Set => Memory::Set(SetMemory::default()),
        }
    }
}

impl Heap for Memory {
    fn heap(&self) -> usize {
        match self {
            Memory::Enum(stamps) | Memory::Int(stamps) => stamps.heap(),
            Memory::Set(set) => set.touched.heap() + set.cleared.heap() + set.elements.heap(),
        }
    }
}

/// A validated delta: the tag's number, and for number tags the outcome.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    tag: u32,
    kind: TagType,
    /// For number tags the key and the stamp after this delta, if it changes anything.
    int: Option<(Option<i64>, i64)>,
}

/// A key group's published state, the next one in the making, and the stamps. A clone copies two pointers: what is in it
/// does not change while the original goes on.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) version: Arc<GroupVersion>,
    /// By tag number.
    pub(crate) memory: Arc<[Memory]>,
    /// Some tag is kept in a narrower type than the catalogue gives it, for somebody has a value that only that has.
    pub(crate) lagging: bool,
}

impl Heap for Group {
    fn heap(&self) -> usize {
        let stamps = size_of_val(&*self.memory) + self.memory.iter().map(Heap::heap).sum::<usize>();
        self.version.heap() + stamps
    }
}

impl Default for Group {
    fn default() -> Self {
        Self { version: Arc::default(), memory: Arc::new([]), lagging: false }
    }
}

impl Group {
    /// Validates a whole update against this group, touching nothing. `steps` is emptied and filled.
    pub(crate) fn plan(
        &self,
        catalogue: &Catalogue,
        update: &ProfileUpdate,
        local: Option<u32>,
        time: i64,
        steps: &mut Vec<Step>,
    ) -> Result<(), ProfileError> {
        steps.clear();
        for TagDelta { tag, delta } in &update.deltas {
            let (id, mut kind) = catalogue.find(tag).ok_or_else(|| catalogue.unknown_to_update(tag))?;
            if self.lagging {
                kind = self.version.kind(id).unwrap_or(kind);
            }
            if !fits(kind, delta) {
                return Err(mismatch(tag, kind, delta, &update.user));
            }
            let mut int = None;
            if kind.shape() == Shape::Number {
                // An earlier delta of this very update may have changed what this one builds on.
                let before = steps.iter().rev().find(|s| s.tag == id && s.int.is_some());
                let (value, stamp) = match before.and_then(|s| s.int) {
                    Some(state) => state,
                    None => local.map_or((None, NEVER), |l| self.int_state(id, l)),
                };
                int = number(kind, delta, value, stamp, time).map_err(|refused| match (refused, delta) {
                    (NotGrown::Overflow, Delta::Increment(by)) => ProfileError::Overflow {
                        tag: tag.to_string(),
                        is: kind,
                        user: update.user.clone(),
                        from: Box::new(value.map_or(TagValue::Int(0), |key| scalar::value(kind, key))),
                        by: Box::new(by.clone()),
                    },
                    _ => mismatch(tag, kind, delta, &update.user),
                })?;
            }
            steps.push(Step { tag: id, kind, int });
        }
        Ok(())
    }

    fn int_state(&self, tag: u32, local: u32) -> (Option<i64>, i64) {
        let chunk = self.version.chunks.get((local >> CHUNK_BITS) as usize).and_then(|c| c.tag(tag));
        let stamp = match self.memory.get(tag as usize) {
            Some(Memory::Int(stamps)) => stamps.get(local),
            _ => NEVER,
        };
        (chunk.and_then(|c| c.int_value(local as u16)), stamp)
    }

    /// Carries out planned deltas and says how many took effect. `local` is none for a new user.
    pub(crate) fn commit(
        &mut self,
        catalogue: &Catalogue,
        user: UserId,
        local: Option<u32>,
        time: i64,
        deltas: &[TagDelta],
        steps: &[Step],
    ) -> usize {
        self.grow(catalogue);
        let (version, memory) = (Arc::make_mut(&mut self.version), Arc::make_mut(&mut self.memory));
        let local = local.unwrap_or_else(|| {
            version.users += 1;
            version.dict.add(user)
        });
        let at = (local >> CHUNK_BITS) as usize;
        if at >= version.chunks.len() {
            version.chunks.resize_with(at + 1, Arc::default);
        }
        let mut effective = 0;
        for (TagDelta { delta, .. }, step) in deltas.iter().zip(steps) {
            let dict = &version.values[step.tag as usize];
            let mut here = Here { chunk: &mut version.chunks[at], step, local };
            effective += usize::from(match &mut memory[step.tag as usize] {
                Memory::Enum(stamps) => {
                    let value = match delta {
                        Delta::Set(TagValue::Text(v)) => Some(v.as_str()),
                        _ => None,
                    };
                    let stamp = stamps.get(local);
                    let name = |n: u32| dict.name(n).map_or("", |v| v);
                    let wins = time > stamp || (time == stamp && value > here.enum_value().map(name));
                    if wins {
                        let value = value.map(|v| dict.intern(v));
                        if value != here.enum_value() {
                            here.tag().put_enum(local as u16, value);
                        }
                        stamps.set(local, time);
                    }
                    wins
                }
                Memory::Int(stamps) => {
                    if let Some((value, stamp)) = step.int {
                        if value != here.int_value() {
                            here.tag().put_int(local as u16, value);
                        }
                        if stamp != NEVER {
                            stamps.set(local, stamp);
                        }
                    }
                    step.int.is_some()
                }
                Memory::Set(memory) => match delta {
                    Delta::Add(v) => memory.element(&mut here, time, dict.intern(v), true),
                    Delta::Remove(key) if step.kind == TagType::Map => {
                        memory.put(&mut here, time, dict, key, None)
                    }
                    Delta::Remove(v) => memory.element(&mut here, time, dict.intern(v), false),
                    Delta::Set(TagValue::Set(all)) => {
                        let mut wins = memory.clear(&mut here, time, true);
                        for v in all {
                            wins |= memory.element(&mut here, time, dict.intern(v), true);
                        }
                        wins
                    }
                    Delta::Set(TagValue::IntSet(all)) => {
                        let mut wins = memory.clear(&mut here, time, true);
                        for n in all {
                            wins |= memory.element(&mut here, time, dict.intern(&n.to_string()), true);
                        }
                        wins
                    }
                    Delta::Put(key, value) => memory.put(&mut here, time, dict, key, Some(value)),
                    Delta::Set(TagValue::Map(all)) => {
                        let cleared = memory.clear(&mut here, time, true);
                        memory.put_all(&mut here, time, dict, all) | cleared
                    }
                    _ => memory.clear(&mut here, time, false),
                },
            });
        }
        effective
    }

    /// Makes room for tags defined since.
    fn grow(&mut self, catalogue: &Catalogue) {
        let tags = catalogue.tags();
        if self.memory.len() < tags.len() {
            let new = tags[self.memory.len()..].iter().map(|(_, kind)| Memory::new(*kind));
            self.memory = self.memory.iter().cloned().chain(new).collect();
            let version = Arc::make_mut(&mut self.version);
            version.values.resize_with(tags.len(), Arc::default);
            let new = tags[version.kinds.len()..].iter().map(|(_, kind)| *kind);
            version.kinds = version.kinds.iter().copied().chain(new).collect();
        }
    }

    /// Follows a catalogue that changed: forgets dropped tags, and keeps widened ones in their wider type.
    pub(crate) fn follow(&mut self, catalogue: &Catalogue) {
        self.lagging = false;
        for (tag, (name, kind)) in catalogue.tags().iter().enumerate().take(self.memory.len()) {
            let tag = tag as u32;
            let is = self.version.kind(tag).unwrap_or(*kind);
            if name.is_empty() {
                self.forget(tag, *kind);
            } else if is != *kind && !self.widen(tag, is, *kind) {
                self.lagging = true;
            }
        }
    }

    /// Forgets all of a tag.
    fn forget(&mut self, tag: u32, kind: TagType) {
        let at = tag as usize;
        let held = self.version.chunks.iter().any(|chunk| chunk.tag(tag).is_some());
        if !held && self.version.values[at].len() == 0 && self.memory[at].heap() == 0 {
            return;
        }
        let version = Arc::make_mut(&mut self.version);
        version.values[at] = Arc::default();
        for chunk in version.chunks.iter_mut().filter(|chunk| chunk.tag(tag).is_some()) {
            Arc::make_mut(chunk).put_tag(tag, None);
        }
        Arc::make_mut(&mut self.memory)[at] = Memory::new(kind);
    }

    /// Keeps a tag in a wider type from now on; false, and nothing is changed, if somebody has a value that the type lacks.
    fn widen(&mut self, tag: u32, from: TagType, to: TagType) -> bool {
        let mut wider = Vec::new();
        if to.shape() == Shape::Number {
            for (at, chunk) in self.version.chunks.iter().enumerate() {
                let Some(chunk) = chunk.tag(tag) else { continue };
                let Some(chunk) = chunk.widened(from, to) else { return false };
                wider.push((at, Arc::new(chunk)));
            }
        }
        let version = Arc::make_mut(&mut self.version);
        for (at, chunk) in wider {
            Arc::make_mut(&mut version.chunks[at]).put_tag(tag, Some(chunk));
        }
        let kinds = version.kinds.iter().enumerate();
        version.kinds = kinds.map(|(at, kind)| if at == tag as usize { to } else { *kind }).collect();
        true
    }
}

/// One user's place in one tag, made writable only when something changes.
pub(crate) struct Here<'a> {
    chunk: &'a mut Arc<super::chunk::Chunk>,
    step: &'a Step,
    pub(crate) local: u32,
}

impl Here<'_> {
    #[inline]
    pub(crate) fn tag(&mut self) -> &mut TagChunk {
        Arc::make_mut(self.chunk).tag_mut(self.step.tag, self.step.kind)
    }

    #[inline]
    pub(crate) fn seen(&self) -> Option<&TagChunk> {
        self.chunk.tag(self.step.tag)
    }

    #[inline]
    fn enum_value(&self) -> Option<u32> {
        self.seen()?.enum_value(self.local as u16)
    }

    #[inline]
    fn int_value(&self) -> Option<i64> {
        self.seen()?.int_value(self.local as u16)
    }
}

impl SetMemory {
    /// Adds or removes one element if nothing newer spoke of it. At equal times adding wins.
    fn element(&mut self, here: &mut Here<'_>, time: i64, value: u32, add: bool) -> bool {
        let local = here.local;
        self.touch(here, time);
        if time < self.cleared.get(local) {
            return false;
        }
        let wins = self.elements.note(local, value, time, add);
        if wins {
            let has = here.seen().and_then(|c| c.posting(value)).is_some_and(|p| p.contains(local as u16));
            if has != add {
                here.tag().put_element(local as u16, value, add);
            }
        }
        wins
    }

    /// Forgets all elements older than `time`; the user keeps a value if `valued` or if something newer gave one.
    fn clear(&mut self, here: &mut Here<'_>, time: i64, valued: bool) -> bool {
        let local = here.local;
        let wins = time > self.cleared.get(local);
        if wins {
            self.cleared.set(local, time);
            let values = here.seen().map_or(&[][..], |c| c.set_values(local as u16)).to_vec();
            for value in values {
                if !self.elements.holds_since(local, value, time) {
                    here.tag().put_element(local as u16, value, false);
                }
            }
            self.elements.forget(local, time);
        }
        if valued {
            self.touch(here, time);
        } else if wins && self.touched.get(local) < time && here.seen().is_some() {
            here.tag().put_presence(local as u16, false);
        }
        wins
    }

    /// Notes that a delta gave the tag a value at `time`.
    pub(crate) fn touch(&mut self, here: &mut Here<'_>, time: i64) {
        let local = here.local;
        if time > self.touched.get(local) {
            self.touched.set(local, time);
        }
        if time >= self.cleared.get(local) && !here.seen().is_some_and(|c| c.has().contains(local as u16)) {
            here.tag().put_presence(local as u16, true);
        }
    }
}

/// Refuses an update that no user could take, whatever it has.
pub(crate) fn check(catalogue: &Catalogue, update: &ProfileUpdate) -> Result<(), ProfileError> {
    for TagDelta { tag, delta } in &update.deltas {
        let (_, kind) = catalogue.find(tag).ok_or_else(|| catalogue.unknown_to_update(tag))?;
        let wrong = kind.shape() == Shape::Number
            && matches!(number(kind, delta, None, NEVER, 0), Err(NotGrown::Mismatch));
        if wrong || !fits(kind, delta) {
            return Err(mismatch(tag, kind, delta, &update.user));
        }
    }
    Ok(())
}

/// Whether a type takes such a delta. Whether a number takes its value is seen when the outcome is worked out.
fn fits(kind: TagType, delta: &Delta) -> bool {
    match (kind, delta) {
        (_, Delta::Unset) => true,
        (TagType::Enum, Delta::Set(TagValue::Text(_))) => true,
        (TagType::Set, Delta::Set(TagValue::Set(_)) | Delta::Add(_) | Delta::Remove(_)) => true,
        (TagType::IntSet, Delta::Set(TagValue::IntSet(_))) => true,
        (TagType::IntSet, Delta::Add(v) | Delta::Remove(v)) => is_int_element(v),
        (TagType::Map, Delta::Set(TagValue::Map(all))) => all.iter().all(|(k, v)| map::is_entry(k, v)),
        (TagType::Map, Delta::Put(key, value)) => map::is_entry(key, value),
        (TagType::Map, Delta::Remove(key)) => !key.contains('\0'),
        (_, Delta::Set(_) | Delta::Increment(_) | Delta::Max(_) | Delta::Min(_)) => {
            kind.shape() == Shape::Number
        }
        _ => false,
    }
}

/// What a delta makes of a number tag: the new key and stamp, nothing if it lost, or why it cannot be.
fn number(
    kind: TagType,
    delta: &Delta,
    value: Option<i64>,
    stamp: i64,
    time: i64,
) -> Result<Option<(Option<i64>, i64)>, NotGrown> {
    let register = |new: Option<i64>| (time > stamp || (time == stamp && new > value)).then_some((new, time));
    let fold = |new: i64| (time >= stamp).then_some((Some(new), stamp));
    let key = |value: &TagValue| scalar::key(kind, value).ok_or(NotGrown::Mismatch);
    Ok(match delta {
        Delta::Set(new) => register(Some(key(new)?)),
        Delta::Increment(by) => {
            let new = scalar::grown(kind, value, by);
            // One that lost need not fit into the range, but must be of the right type.
            if time < stamp && new != Err(NotGrown::Mismatch) { None } else { fold(new?) }
        }
        Delta::Max(n) => {
            let n = key(n)?;
            fold(value.map_or(n, |v| v.max(n)))
        }
        Delta::Min(n) => {
            let n = key(n)?;
            fold(value.map_or(n, |v| v.min(n)))
        }
        _ => register(None),
    })
}

#[cold]
fn mismatch(tag: &str, is: TagType, delta: &Delta, user: &UserId) -> ProfileError {
    let value = match delta {
        Delta::Set(v) | Delta::Increment(v) | Delta::Max(v) | Delta::Min(v) => v.to_string(),
        Delta::Unset => String::new(),
        Delta::Add(v) | Delta::Remove(v) => format!("'{v}'"),
        Delta::Put(key, value) => format!("'{key}' {value}"),
    };
    let takes = match is {
        TagType::Enum => "set with a text, and unset",
        TagType::Set => "set with texts, add, remove, and unset",
        TagType::IntSet => "set with whole numbers, add and remove with one in digits, and unset",
        TagType::Map => {
            "put, and set with a map, of texts, whole numbers, finite floats and truth values, keys without NUL; remove with a \
             key, and unset"
        }
        TagType::Int => "set with a number up to 2^63-1, increment, max, min, and unset",
        TagType::UInt => "set with a whole number from 0 to 2^64-1, increment, max, min, and unset",
        TagType::Float => {
            "set with a number (a whole one only if a float holds it exactly), increment, max, min, and unset"
        }
        TagType::Bool => "set, max and min with true or false, and unset",
        TagType::Decimal(_) => {
            "set with a whole or decimal number of no more digits behind the point, increment, max, min, and unset"
        }
        TagType::Date => "set, max and min with a date ('2026-11-30'), and unset",
        TagType::Timestamp => {
            "set with ms since the epoch or a moment ('2026-11-30 12:00:00', UTC), increment by ms, max, min, and unset"
        }
    };
    ProfileError::Mismatch { delta: delta.kind(), value, tag: tag.to_owned(), is, user: user.clone(), takes }
}
