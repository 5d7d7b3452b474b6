//! Reading a key group back: dictionaries, columns and stamps as they were, and from them the bitmaps. Damage is an error.

use super::super::chunk::{Chunk, GroupVersion, TagChunk};
use super::super::column::{Column, EnumPage, IntPage, SetPage};
use super::super::dict::{Dict, UserDict, ValueDict};
use super::super::error::RestoreError;
use super::super::group::{Group, Memory};
use super::super::space::Space;
use super::super::stamp::chunk_mut;
use super::super::update::{Shape, TagType};
use super::super::user::UserId;
use super::bytes::{Bad, Input};
use super::freeze::StoredNames;
use super::layout::{FORMAT, HEAD_FORMAT, Head, NAMES, Name, Part, Place, Unopened, open};
use super::page::Page;
use crate::backend::StateBackend;
use crate::key::KeyGroup;
use crate::keyspace::{after_prefix, prefix};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Reads one key group; an empty one where the store has nothing.
///
/// Tags that the space does not know yet are defined in it. `since` is the number of the last change of the catalogue that was told of when the group was
/// written: what was dropped or renamed later is so here.
pub(crate) fn read_group(
    space: &Space,
    group: KeyGroup,
    table: u16,
    backend: &dyn StateBackend,
    since: u64,
) -> Result<(Group, StoredNames), RestoreError> {
    let from = prefix(group, table);
    let (dict, names) = (UserDict::default(), StoredNames::default());
    let mut reading =
        Reading { space, group, since, users: 0, dict, tags: Vec::new(), numbers: HashMap::new(), names };
    let mut failed = None;
    backend.scan(&from, &after_prefix(&from), &mut |key, value| match reading.take(key, value) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    })?;
    match failed {
        Some(error) => Err(error),
        None => reading.finish(),
    }
}

/// A key group being read: the head comes first, then the dictionaries, then the pages.
struct Reading<'a> {
    space: &'a Space,
    group: KeyGroup,
    users: u32,
    dict: UserDict,
    /// By tag number in this process; none for those that are not in the store.
    tags: Vec<Option<ReadTag>>,
    since: u64,
    /// The numbers of stored tags by stored name; none for those that were dropped since.
    numbers: HashMap<String, Option<usize>>,
    names: StoredNames,
}

/// One tag being read.
struct ReadTag {
    name: String,
    /// The type that its values are kept in, of which that of the tag may be a wider one.
    kind: TagType,
    /// How many values its dictionary is to have.
    values: u32,
    dict: ValueDict,
    columns: Columns,
    memory: Memory,
}

/// The forward columns by chunk.
enum Columns {
    Enum(Vec<Arc<Column<EnumPage>>>),
    Set(Vec<Arc<Column<SetPage>>>),
    Int(Vec<Arc<Column<IntPage>>>),
}

impl ReadTag {
    fn new(name: &str, kind: TagType, values: u32) -> Self {
        ReadTag {
            name: name.to_owned(),
            kind,
            values,
            dict: ValueDict::default(),
            columns: match kind.shape() {
                Shape::Text => Columns::Enum(Vec::new()),
                Shape::Set => Columns::Set(Vec::new()),
                Shape::Number => Columns::Int(Vec::new()),
            },
            memory: Memory::new(kind),
        }
    }

    fn page(&mut self, place: Place<'_>, users: u32, input: &mut Input<'_>) -> Result<(), Bad> {
        let page = place.page;
        match (place.part, &mut self.columns, &mut self.memory) {
            (Part::Forward, Columns::Enum(chunks), _) => put(chunks, page, users, input),
            (Part::Forward, Columns::Set(chunks), _) => put(chunks, page, users, input),
            (Part::Forward, Columns::Int(chunks), _) => put(chunks, page, users, input),
            (Part::Stamps, _, Memory::Enum(stamps) | Memory::Int(stamps)) => {
                put(&mut stamps.0, page, users, input)
            }
            (Part::Touched, _, Memory::Set(memory)) => put(&mut memory.touched.0, page, users, input),
            (Part::Cleared, _, Memory::Set(memory)) => put(&mut memory.cleared.0, page, users, input),
            (Part::Elements, _, Memory::Set(memory)) => put(&mut memory.elements.0, page, users, input),
            _ => Err(Bad("a tag of this type has none")),
        }
    }

    /// The columns of one chunk with the bitmaps that follow from them; nothing if nobody there ever had a value.
    fn chunk(&mut self, chunk: usize, users: u32) -> Result<Option<Arc<TagChunk>>, Bad> {
        let values = self.values;
        let built = match &mut self.columns {
            Columns::Enum(chunks) => take(chunks, chunk).map(|c| TagChunk::of_enum(c, values)),
            Columns::Set(chunks) => take(chunks, chunk).map(|c| TagChunk::of_set(c, values)),
            Columns::Int(chunks) => take(chunks, chunk).map(TagChunk::of_int),
        };
        let Some(built) = built else { return Ok(None) };
        let built = built.ok_or(Bad("its values are none, or come twice"))?;
        match built.has().max() {
            Some(last) if u32::from(last) >= users => Err(Bad("someone beyond the last user has a value")),
            _ => Ok(Some(Arc::new(built))),
        }
    }
}

/// Reads a page into its place.
fn put<P: Page + Clone, const USERS: usize>(
    chunks: &mut Vec<Arc<Column<P, USERS>>>,
    page: u32,
    users: u32,
    input: &mut Input<'_>,
) -> Result<(), Bad> {
    let first = u64::from(page) * USERS as u64;
    match u32::try_from(first) {
        Ok(first) if first < users => {
            let read = P::decode(input)?;
            chunk_mut(chunks, first).put_page(first as u16, read);
            Ok(())
        }
        _ => Err(Bad("it is beyond the last user")),
    }
}

fn take<P: Page + Clone>(chunks: &mut [Arc<Column<P>>], chunk: usize) -> Option<Column<P>> {
    let column = std::mem::take(chunks.get_mut(chunk)?);
    column.pages().next()?;
    Some(Arc::unwrap_or_clone(column))
}

/// Reads a page of a dictionary that is to have `all` names; pages come in order.
fn names<N: Name>(
    page: u32,
    all: u32,
    dict: &Dict<N>,
    input: &mut Input<'_>,
    fits: impl Fn(&N) -> Result<(), Bad>,
) -> Result<(), Bad> {
    let first = dict.len();
    if u64::from(page) * NAMES as u64 != u64::from(first) || first >= all {
        return Err(Bad("it does not follow on the page before it"));
    }
    for _ in first..all.min(first.saturating_add(NAMES as u32)) {
        let name = N::decode(input)?;
        fits(&name)?;
        if dict.number(&name).is_some() {
            return Err(Bad("a name comes twice"));
        }
        dict.add(name);
    }
    Ok(())
}

impl Reading<'_> {
    fn damaged(&self, what: &impl ToString, Bad(reason): Bad) -> RestoreError {
        let (space, group) = (self.space.catalogue().space.to_string(), self.group);
        RestoreError::Damaged { space, group, what: what.to_string(), reason }
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), RestoreError> {
        let place = Place::of(key).map_err(|bad| self.damaged(&"a piece", bad))?;
        let mut input = match open(key, value) {
            Ok(input) => input,
            Err(Unopened::Bad(bad)) => return Err(self.damaged(&place, bad)),
            Err(Unopened::Format(found)) => {
                let (space, group) = (self.space.catalogue().space.to_string(), self.group);
                let what = place.to_string();
                let known = if place.part == Part::Head { HEAD_FORMAT } else { FORMAT };
                return Err(RestoreError::Format { space, group, what, found, known });
            }
        };
        if place.part == Part::Head {
            let head = Head::decode(&mut input).and_then(|head| input.end().map(|()| head));
            return self.head(&head.map_err(|bad| self.damaged(&place, bad))?);
        }
        let read = self.piece(place, &mut input).and_then(|()| input.end());
        read.map_err(|bad| self.damaged(&place, bad))
    }

    /// Makes the stored tags known to the space, or refuses one that is something else there.
    fn head(&mut self, head: &Head<'_>) -> Result<(), RestoreError> {
        if head.users > self.space.users_per_group {
            return Err(self.damaged(&Place::HEAD, Bad("it has more users than the key group can have")));
        }
        self.users = head.users;
        self.dict = UserDict::with_capacity(head.users as usize);
        for &(name, stored, values) in &head.tags {
            let Some(now) = self.space.catalogue().now_called(name, self.since) else {
                self.numbers.insert(name.to_owned(), None);
                self.names.stray.push(name.into());
                continue;
            };
            let defined = self.space.define_stored(&now, stored);
            let catalogue = self.space.catalogue();
            let Some((number, wanted)) = catalogue.find(&now) else {
                // It is not defined and cannot be: the reason is the error's.
                defined?;
                continue;
            };
            if defined.is_err() && !stored.widens_to(wanted) {
                let (space, tag) = (catalogue.space.to_string(), name.to_owned());
                return Err(RestoreError::TagType { space, tag, stored, wanted });
            }
            let number = number as usize;
            if self.tags.len() <= number {
                self.tags.resize_with(number + 1, || None);
                self.names.names.resize(number + 1, None);
            }
            self.tags[number] = Some(ReadTag::new(name, stored, values));
            self.names.names[number] = Some(name.into());
            self.numbers.insert(name.to_owned(), Some(number));
        }
        Ok(())
    }

    fn piece(&mut self, place: Place<'_>, input: &mut Input<'_>) -> Result<(), Bad> {
        if place.part == Part::Users {
            let (group, groups) = (self.group, self.space.groups);
            return names(place.page, self.users, &self.dict, input, |user: &UserId| {
                let fits = user.key_hash().group(groups) == group;
                if fits { Ok(()) } else { Err(Bad("a user is of another key group")) }
            });
        }
        let tag = match self.numbers.get(place.tag) {
            Some(None) => {
                // Nobody reads what was dropped.
                input.0 = &[];
                return Ok(());
            }
            Some(Some(number)) => self.tags.get_mut(*number).and_then(Option::as_mut),
            None => None,
        };
        let tag = tag.ok_or(Bad("its tag is not in the list of tags"))?;
        match place.part {
            Part::Values => names(place.page, tag.values, &tag.dict, input, |_| Ok(())),
            _ => tag.page(place, self.users, input),
        }
    }

    fn finish(mut self) -> Result<(Group, StoredNames), RestoreError> {
        let missing = Bad("it is missing");
        let page = self.dict.len() / NAMES as u32;
        if self.dict.len() != self.users {
            return Err(self.damaged(&Place { part: Part::Users, tag: "", page }, missing));
        }
        for tag in self.tags.iter().flatten() {
            let page = tag.dict.len() / NAMES as u32;
            if tag.dict.len() != tag.values {
                return Err(self.damaged(&Place { part: Part::Values, tag: &tag.name, page }, missing));
            }
        }
        let mut chunks = Vec::new();
        let mut tags = std::mem::take(&mut self.tags);
        let mut version = GroupVersion { users: self.users, ..GroupVersion::default() };
        for chunk in 0..self.users.div_ceil(1 << super::super::CHUNK_BITS) as usize {
            let users = version.users_in(chunk);
            let built = tags.iter_mut().map(|tag| {
                let Some(tag) = tag else { return Ok(None) };
                let built = tag.chunk(chunk, users);
                built.map_err(|bad| {
                    self.damaged(&format!("chunk {chunk} of the values of tag '{}'", tag.name), bad)
                })
            });
            chunks.push(Arc::new(Chunk::of(built.collect::<Result<_, _>>()?)));
        }
        let catalogue = self.space.catalogue();
        let known = tags.into_iter().zip(catalogue.tags());
        let (mut kinds, mut memory) = (Vec::new(), Vec::new());
        for (tag, (name, kind)) in known {
            let tag = tag.unwrap_or_else(|| ReadTag::new(name, *kind, 0));
            version.values.push(Arc::new(tag.dict));
            kinds.push(tag.kind);
            memory.push(tag.memory);
        }
        version.chunks = chunks;
        version.kinds = kinds.into();
        version.dict = Arc::new(self.dict);
        Ok((Group { version: Arc::new(version), memory: memory.into(), lagging: false }, self.names))
    }
}
