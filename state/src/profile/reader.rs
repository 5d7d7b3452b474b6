//! Readers pin one published version of every shard and answer from it; they take no lock and stop no writer.
//! (over 400 lines: what a version is and what is asked of it)

use super::CHUNK_BITS;
use super::catalogue::Catalogue;
use super::chunk::{GroupVersion, TagChunk};
use super::error::QueryError;
use super::eval::Query;
use super::map;
use super::predicate::Predicate;
use super::scalar;
use super::space::{Cell, RangeVersion, Space};
use super::sql::SqlAnswer;
use super::update::{TagType, TagValue};
use super::user::UserId;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use xxhash_rust::xxh3::Xxh3;

/// Which published state an answer comes from. Over several writers: the newest sequence and attempt, the lowest
/// watermark, the oldest publication, and stale if any is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Version {
    /// Counts publications in the space; 0 if there was none.
    pub sequence: u64,
    /// The attempt of the job that published it.
    pub attempt: u32,
    /// The event time in ms since the epoch up to which it is complete; `i64::MIN` if some key group has none.
    pub watermark: i64,
    /// When it was published, in ms since the epoch by this machine's clock; 0 if never.
    pub published_at: i64,
    /// No live writer stands behind it, and it was not finished for good.
    pub stale: bool,
    /// The checkpoint that it is of, if it was asked for as that ([`Reader::at_checkpoint`]); 0 for the one that the process began from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<u64>,
}

impl Version {
    /// How long ago it was published, by this machine's clock.
    pub fn age(&self) -> Duration {
        let then = UNIX_EPOCH + Duration::from_millis(self.published_at.max(0) as u64);
        SystemTime::now().duration_since(then).unwrap_or_default()
    }
}

/// An answer and the version it is true of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer<T> {
    /// The answer.
    pub value: T,
    /// The version it was read from.
    pub version: Version,
}

/// Which part of a list of users to give, in ordinal order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// How many to skip.
    pub offset: u64,
    /// How many to give at most.
    pub limit: usize,
}

impl Page {
    /// The first `limit` users.
    pub const fn first(limit: usize) -> Self {
        Self { offset: 0, limit }
    }
}

/// A fingerprint of all (user id, tag, value) there are, whatever the order, the parallelism and the history.
///
/// Each triple is hashed and the hashes are summed, which is to the set what a hash of the sorted list would be, without
/// sorting. An empty set counts as a value of its own; a user without any value does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub u128);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Answers questions from the newest published version; each call pins one anew. See [`Snapshot`] for several
/// questions about the same version.
#[derive(Debug, Clone)]
pub struct Reader {
    space: Arc<Space>,
}

impl Reader {
    pub(crate) fn new(space: Arc<Space>) -> Self {
        Self { space }
    }

    /// Pins the newest published version of every shard. Memory of older versions is kept as long as it lives.
    ///
    /// *Blocking*: never. Each user is whole; users of different writers may be seen at different publications.
    pub fn snapshot(&self) -> Snapshot {
        let layout = self.space.layout();
        // Neighbours in one cell must come from one load, or one writer's groups would come from two publications.
        let loaded = layout.cells.chunk_by(Arc::ptr_eq).map(|run| {
            let cell: &Cell = &run[0];
            let stale = cell.is_stale();
            (cell.load(), run.len(), stale)
        });
        // The catalogue last: it then knows every tag the shards hold.
        Snapshot::of(loaded, || self.space.catalogue())
    }

    pub(crate) fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// [`Snapshot::count`] on the newest version.
    ///
    /// # Errors
    /// An unknown tag, or a condition that does not fit its tag's type.
    pub fn count(&self, predicate: &Predicate) -> Result<Answer<u64>, QueryError> {
        self.snapshot().count(predicate)
    }

    /// [`Snapshot::ids`] on the newest version.
    ///
    /// # Errors
    /// An unknown tag, or a condition that does not fit its tag's type.
    pub fn ids(&self, predicate: &Predicate, page: Page) -> Result<Answer<Vec<UserId>>, QueryError> {
        self.snapshot().ids(predicate, page)
    }

    /// [`Snapshot::sql`] on the newest version.
    ///
    /// # Errors
    /// What is no SQL or not supported, with its place; an unknown table or tag; a condition that does not fit its tag's type.
    pub fn sql(&self, text: &str) -> Result<SqlAnswer, QueryError> {
        self.snapshot().sql(text)
    }

    /// [`Snapshot::profile`] on the newest version.
    pub fn profile(&self, user: &UserId) -> Answer<Option<BTreeMap<String, TagValue>>> {
        self.snapshot().profile(user)
    }

    /// [`Snapshot::digest`] on the newest version.
    pub fn digest(&self) -> Answer<Digest> {
        self.snapshot().digest()
    }
}

/// One published version of every shard, pinned: the same questions get the same answers as long as it lives.
#[derive(Clone)]
pub struct Snapshot {
    pinned: Arc<Pinned>,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Snapshot");
        shown.field("users", &self.users()).field("version", &self.pinned.version).finish_non_exhaustive()
    }
}

struct Pinned {
    version: Version,
    groups: Vec<Arc<GroupVersion>>,
    catalogue: Arc<Catalogue>,
}

impl Snapshot {
    /// Of versions of ranges that follow on each other, each with how many of its key groups count and whether it is stale.
    pub(crate) fn of(
        ranges: impl Iterator<Item = (Arc<RangeVersion>, usize, bool)>,
        catalogue: impl FnOnce() -> Arc<Catalogue>,
    ) -> Self {
        let mut groups = Vec::new();
        let mut version: Option<Version> = None;
        for (range, length, stale) in ranges {
            let from = groups.len() - range.start as usize;
            groups.extend_from_slice(&range.groups[from..from + length]);
            let (sequence, attempt, checkpoint) = (range.sequence, range.attempt, None);
            let (watermark, published_at) = (range.watermark, range.published_at);
            version = Some(match version {
                None => Version { sequence, attempt, watermark, published_at, stale, checkpoint },
                Some(v) => Version {
                    sequence: v.sequence.max(sequence),
                    attempt: v.attempt.max(attempt),
                    watermark: v.watermark.min(watermark),
                    published_at: v.published_at.min(published_at),
                    stale: v.stale | stale,
                    checkpoint,
                },
            });
        }
        let none = Version {
            sequence: 0,
            attempt: 0,
            watermark: i64::MIN,
            published_at: 0,
            stale: true,
            checkpoint: None,
        };
        let pinned = Pinned { version: version.unwrap_or(none), groups, catalogue: catalogue() };
        Snapshot { pinned: Arc::new(pinned) }
    }

    /// The same as of a checkpoint.
    pub(crate) fn of_checkpoint(self, number: u64) -> Self {
        let Pinned { version, groups, catalogue } = &*self.pinned;
        let version = Version { checkpoint: Some(number), ..*version };
        let pinned = Pinned { version, groups: groups.clone(), catalogue: catalogue.clone() };
        Snapshot { pinned: Arc::new(pinned) }
    }

    /// The version it pinned.
    pub fn version(&self) -> Version {
        self.pinned.version
    }

    pub(crate) fn answer<T>(&self, value: T) -> Answer<T> {
        Answer { value, version: self.pinned.version }
    }

    /// How many users there are.
    pub fn users(&self) -> u64 {
        self.pinned.groups.iter().map(|g| u64::from(g.users)).sum()
    }

    /// Counts the users who match.
    ///
    /// # Errors
    /// An unknown tag, or a condition that does not fit its tag's type.
    pub fn count(&self, predicate: &Predicate) -> Result<Answer<u64>, QueryError> {
        let groups = &self.pinned.groups;
        let query = Query::new(predicate, &self.pinned.catalogue, groups.len())?;
        Ok(self.answer(groups.iter().enumerate().map(|(at, group)| query.count(at, group)).sum()))
    }

    /// Lists the users who match, in ordinal order: by key group, then by first appearance. The order holds across
    /// versions, so new users come in between only at the end of their key group.
    ///
    /// # Errors
    /// An unknown tag, or a condition that does not fit its tag's type.
    pub fn ids(&self, predicate: &Predicate, page: Page) -> Result<Answer<Vec<UserId>>, QueryError> {
        let mut ids = Vec::new();
        self.each_match(predicate, page, |_, _, user| ids.push(user.clone()))?;
        Ok(self.answer(ids))
    }

    /// Shows the users of a page who match, with their key group and local ordinal.
    pub(crate) fn each_match(
        &self,
        predicate: &Predicate,
        page: Page,
        mut each: impl FnMut(&GroupVersion, u32, &UserId),
    ) -> Result<(), QueryError> {
        let query = Query::new(predicate, &self.pinned.catalogue, self.pinned.groups.len())?;
        let (mut skip, mut room) = (page.offset, page.limit);
        for (at, group) in self.pinned.groups.iter().enumerate() {
            if room == 0 {
                break;
            }
            // Breaking off means that the page is full, which is seen here.
            let _ = query.chunks(at, group, |chunk, found| {
                if found.len <= skip {
                    skip -= found.len;
                    return ControlFlow::Continue(());
                }
                for local in found.locals().skip(std::mem::take(&mut skip) as usize).take(room) {
                    let local = (chunk as u32) << CHUNK_BITS | u32::from(local);
                    let Some(user) = group.dict.name(local) else { continue };
                    each(group, local, user);
                    room -= 1;
                }
                if room == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        }
        Ok(())
    }

    /// All values of one user by tag; none if the user is not in the space. Tags without a value are left out.
    pub fn profile(&self, user: &UserId) -> Answer<Option<BTreeMap<String, TagValue>>> {
        let group = &self.pinned.groups[user.key_hash().group(self.pinned.groups.len() as u16).0 as usize];
        // The dictionary may know users newer than this version.
        let local = group.dict.number(user).filter(|&l| l < group.users);
        self.answer(local.map(|local| {
            let mut profile = BTreeMap::new();
            self.visit(group, local, |tag, value| {
                profile.insert(tag.to_owned(), value);
            });
            profile
        }))
    }

    /// Visits the tags a user has a value of, in tag order.
    fn visit(&self, group: &GroupVersion, local: u32, mut each: impl FnMut(&str, TagValue)) {
        for (id, name, _) in self.pinned.catalogue.live() {
            if let Some(value) = self.value(group, local, id) {
                each(name, value);
            }
        }
    }

    /// What a user has of one tag.
    pub(crate) fn value(&self, group: &GroupVersion, local: u32, tag: u32) -> Option<TagValue> {
        let (_, kind) = *self.pinned.catalogue.tags().get(tag as usize)?;
        let chunk = group.chunks.get((local >> CHUNK_BITS) as usize)?.tag(tag)?;
        let low = local as u16;
        if !chunk.has().contains(low) {
            return None;
        }
        let text = |n: &u32| group.values[tag as usize].name(*n).map(|v| v.to_string());
        match chunk {
            TagChunk::Enum { .. } => chunk.enum_value(low).and_then(|n| text(&n)).map(TagValue::Text),
            TagChunk::Int { .. } => chunk.int_value(low).map(|key| match group.kind(tag) {
                // It was given a wider type meanwhile, which it is shown in if that has it.
                Some(is) if is != kind => match scalar::widened(is, kind, key) {
                    Some(key) => scalar::value(kind, key),
                    None => scalar::value(is, key),
                },
                _ => scalar::value(kind, key),
            }),
            TagChunk::Set { .. } if kind == TagType::IntSet => {
                let numbers = chunk.set_values(low).iter().filter_map(|n| text(n)?.parse().ok());
                Some(TagValue::IntSet(numbers.collect()))
            }
            TagChunk::Set { .. } if kind == TagType::Map => {
                let texts = chunk.set_values(low).iter().filter_map(text);
                let entries =
                    texts.filter_map(|t| map::entry(&t).map(|(key, value)| (key.to_owned(), value)));
                Some(TagValue::Map(entries.collect()))
            }
            TagChunk::Set { .. } => {
                Some(TagValue::Set(chunk.set_values(low).iter().filter_map(text).collect::<BTreeSet<_>>()))
            }
        }
    }

    pub(crate) fn groups(&self) -> &[Arc<GroupVersion>] {
        &self.pinned.groups
    }

    pub(crate) fn catalogue(&self) -> &Catalogue {
        &self.pinned.catalogue
    }

    /// Digests all there is: equal digests mean equal contents. Reads every user, so it is for tests and audits.
    pub fn digest(&self) -> Answer<Digest> {
        let mut sum = 0u128;
        for group in &self.pinned.groups {
            for local in 0..group.users {
                let Some(user) = group.dict.name(local) else { continue };
                self.visit(group, local, |tag, value| sum = sum.wrapping_add(fingerprint(user, tag, &value)));
            }
        }
        self.answer(Digest(sum))
    }

    /// The segments that are registered in this version, with their conditions, by name.
    pub fn segments(&self) -> Vec<(String, Predicate)> {
        let segments = self.pinned.catalogue.segments();
        segments.map(|(name, condition)| (name.to_string(), condition.clone())).collect()
    }

    /// The tags and their types as of this version, in the order they were defined.
    pub fn tags(&self) -> Vec<(String, TagType)> {
        self.pinned.catalogue.live().map(|(_, name, kind)| (name.to_string(), kind)).collect()
    }
}

/// The hash of one user's value of one tag, each part framed by its length.
fn fingerprint(user: &UserId, tag: &str, value: &TagValue) -> u128 {
    let mut hash = Xxh3::new();
    let mut part = |kind: u8, bytes: &[u8]| {
        hash.update(&[kind]);
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    match user {
        UserId::Number(n) => part(0, &n.to_le_bytes()),
        UserId::Text(t) => part(1, t.as_bytes()),
    }
    part(2, tag.as_bytes());
    match value {
        TagValue::Text(t) => part(3, t.as_bytes()),
        TagValue::Int(n) => part(4, &n.to_le_bytes()),
        TagValue::UInt(n) => part(5, &n.to_le_bytes()),
        TagValue::Set(s) => {
            part(6, &(s.len() as u64).to_le_bytes());
            s.iter().for_each(|v| part(7, v.as_bytes()));
        }
        TagValue::Float(n) => part(8, &n.key().to_le_bytes()),
        TagValue::Bool(b) => part(9, &[u8::from(*b)]),
        TagValue::Decimal(n) => part(10, n.to_string().as_bytes()),
        TagValue::Date(d) => part(11, &d.0.to_le_bytes()),
        TagValue::Timestamp(t) => part(12, &t.0.to_le_bytes()),
        TagValue::IntSet(s) => {
            part(13, &(s.len() as u64).to_le_bytes());
            s.iter().for_each(|n| part(14, &n.to_le_bytes()));
        }
        TagValue::Map(m) => {
            part(15, &(m.len() as u64).to_le_bytes());
            for (key, value) in m {
                part(16, key.as_bytes());
                part(17, format!("{value:?}").as_bytes());
            }
        }
    }
    hash.digest128()
}
