//! A space of users: its tags, who may write which key groups, and where the newest published version is.
//! (over 400 lines: one lock and what is under it)

use super::catalogue::Catalogue;
use super::change::{Change, Image};
use super::chunk::GroupVersion;
use super::durable::FORMAT;
use super::error::{ProfileError, RestoreError};
use super::fresh::{Checkpoints, Waiting};
use super::reader::Reader;
use super::update::TagType;
use super::writer::{Taken, Writer};
use super::writes::Writes;
use crate::key::{KEY_GROUPS, KeyGroup};
use crate::store::{Store, TableMeta};
use arc_swap::ArcSwap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// A space of user profiles; a cheap handle, all clones mean the same space.
///
/// ```
/// use weir_state::key::KEY_GROUPS;
/// use weir_state::profile::{ProfileUpdate, Profiles, tag};
///
/// let profiles = Profiles::named("user_profile").enum_tag("last_behaviour").int_tag("buys_total");
/// let mut writer = profiles.writer(0..KEY_GROUPS, 1)?;
/// writer.apply(ProfileUpdate::of(42u64).at(1_000).set("last_behaviour", "buy").increment("buys_total", 1))?;
/// writer.publish(1_000);
/// let buyers = tag("last_behaviour").eq("buy").and(tag("buys_total").ge(1));
/// assert_eq!(profiles.reader().count(&buyers)?.value, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Profiles {
    pub(super) space: Arc<Space>,
}

impl fmt::Debug for Profiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.space.fmt(f)
    }
}

impl Profiles {
    /// Makes an empty space of [`KEY_GROUPS`] key groups.
    pub fn named(name: &str) -> Self {
        Self::with_key_groups(name, KEY_GROUPS)
    }

    /// Makes an empty space with another number of key groups, which must be that of the job. 0 counts as 1.
    pub fn with_key_groups(name: &str, groups: u16) -> Self {
        let groups = groups.max(1);
        let bits = u32::from(groups - 1).checked_ilog2().map_or(0, |b| b + 1);
        let empty = Arc::new(Cell::empty(groups));
        Self {
            space: Arc::new(Space {
                groups,
                users_per_group: u32::MAX >> bits,
                catalogue: ArcSwap::from_pointee(Catalogue::new(name.into())),
                layout: ArcSwap::from_pointee(Layout { cells: vec![empty; groups as usize] }),
                sequence: AtomicU64::new(0),
                revision: AtomicU64::new(0),
                life: RandomState::new().hash_one(SystemTime::now()),
                unready: AtomicUsize::new(0),
                waiting: Waiting::default(),
                checkpoints: Checkpoints::default(),
                writes: Writes::of(groups),
                control: Mutex::new(Control { owners: vec![None; groups as usize], adopted: None }),
            }),
        }
    }

    /// Says what SQL calls the user's id (`user_id` by default), a column of every table.
    #[must_use]
    pub fn key_column(self, name: &str) -> Self {
        {
            let _control = self.space.control();
            let mut next = (*self.space.catalogue()).clone();
            next.key = name.into();
            self.space.put_catalogue(next);
        }
        self
    }

    /// Defines a tag. A clash with a type given before is reported by [`writer`](Self::writer).
    ///
    /// A point in the name sets a table apart: `user_profile_b.score` is what SQL calls `score` of table `user_profile_b`. Tags
    /// without one belong to the table of the space's name.
    ///
    /// ```
    /// use weir_state::profile::{Profiles, TagType};
    /// let profiles = Profiles::named("crowd")
    ///     .key_column("uuid")
    ///     .tag("user_profile_b.score", TagType::Float)
    ///     .tag("user_profile_b.price", TagType::Decimal(2));
    /// ```
    #[must_use]
    pub fn tag(self, name: &str, kind: TagType) -> Self {
        self.built(name, kind)
    }

    /// Defines an enum tag. A clash with a type given before is reported by [`writer`](Self::writer).
    #[must_use]
    pub fn enum_tag(self, name: &str) -> Self {
        self.built(name, TagType::Enum)
    }

    /// Defines a set tag. A clash with a type given before is reported by [`writer`](Self::writer).
    #[must_use]
    pub fn set_tag(self, name: &str) -> Self {
        self.built(name, TagType::Set)
    }

    /// Defines an int tag. A clash with a type given before is reported by [`writer`](Self::writer).
    #[must_use]
    pub fn int_tag(self, name: &str) -> Self {
        self.built(name, TagType::Int)
    }

    fn built(self, name: &str, kind: TagType) -> Self {
        if let Err(e) = self.space.define(name, kind) {
            self.space.put_defect(e);
        }
        self
    }

    /// The tags and their types, in the order they were defined.
    pub fn tags(&self) -> Vec<(String, TagType)> {
        self.space.catalogue().live().map(|(_, name, kind)| (name.to_string(), kind)).collect()
    }

    /// The name the space was made with.
    pub fn name(&self) -> String {
        self.space.catalogue().space.to_string()
    }

    /// How many key groups the space has.
    pub fn key_groups(&self) -> u16 {
        self.space.groups
    }

    /// A reader; make as many as there are threads, or clone one.
    pub fn reader(&self) -> Reader {
        Reader::new(self.space.clone())
    }

    /// Claims key groups for writing; see [`key_groups_of`](crate::key::key_groups_of). An empty range is fine.
    ///
    /// The writer begins empty. Readers keep seeing what was published before, marked stale, until it first publishes.
    ///
    /// # Errors
    /// [`ProfileError::Claimed`] if a live writer owns one of them, [`ProfileError::NoSuchGroups`] if they do not exist,
    /// and a clash among the tags this space was built with.
    pub fn writer(&self, groups: Range<u16>, attempt: u32) -> Result<Writer, ProfileError> {
        if let Some(defect) = &self.space.catalogue().defect {
            return Err(defect.clone());
        }
        self.space.claim(groups.clone(), attempt)?;
        Ok(Writer::new(self.space.clone(), groups, attempt))
    }

    /// Claims the key groups of a store for writing and goes on from what the store was restored with: the same users under
    /// the same ordinals, the same values, the same stamps. Empty where the store is. Such a writer can be
    /// [frozen](Writer::freeze).
    ///
    /// Tags that are stored and not defined here are defined. What is restored is invisible until it is
    /// [published](Writer::publish), at [`Writer::watermark`] for instance; readers keep what they have, marked stale.
    ///
    /// *Blocking*: reads all of its key groups, about a second per million users and a few tags.
    ///
    /// # Errors
    /// As [`writer`](Self::writer); a tag that is stored with another type; damaged state, named by key group, tag and page; a
    /// store of another number of key groups.
    pub fn restore_writer(&self, store: &Store, attempt: u32) -> Result<Writer, RestoreError> {
        let (groups, stored) = (self.space.groups, store.groups());
        if groups != stored {
            return Err(RestoreError::KeyGroups { space: self.name(), groups, stored });
        }
        let table = store.register(TableMeta::raw(TABLE, FORMAT.into()))?;
        let items = store.restored_items(ITEMS);
        let of =
            |name: &'static str| items.iter().filter(move |(_, key, _)| key == name).map(|(.., value)| value);
        let watermark = of(WATERMARK).filter_map(|value| value.as_i64()).min().unwrap_or(i64::MIN);
        let images = of(CATALOGUE).map(|value| serde_json::from_value::<Image>(value.clone()));
        let images = images
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| RestoreError::Catalogue { space: self.name(), reason: e.to_string() })?;
        let taken = of(WRITES).filter_map(|value| serde_json::from_value::<Taken>(value.clone()).ok());
        let taken: Vec<Taken> = taken.collect();
        // Before it owns anything: whoever sees the owner sees that it is not ready.
        self.space.unready.fetch_add(1, Ordering::AcqRel);
        let claimed = self.writer(store.key_groups(), attempt);
        if claimed.is_err() {
            self.space.unready.fetch_sub(1, Ordering::AcqRel);
        }
        let mut writer = claimed?;
        writer.unshown();
        // Tags first: what is stored is called by their names. Segments last: they ask for tags that may be defined only there.
        let newest = images.iter().max_by_key(|image| image.sequence);
        self.space.adopt(newest, Catalogue::adopt)?;
        writer.restore(table, &**store.backend(), watermark, &images)?;
        self.space.adopt_segments(newest)?;
        self.space.replay();
        writer.take_again(&taken);
        if writer.users() == 0 {
            // There is nothing that is not shown.
            writer.shown();
        }
        Ok(writer)
    }
}

/// The table of a store that profiles lie in; its version is that of all pieces.
const TABLE: &str = "profile";
/// The list of items that profiles keep beside it.
pub(crate) const ITEMS: &str = "profile";
/// The item that holds the watermark of the last publication before the barrier.
pub(crate) const WATERMARK: &str = "watermark";

/// The item that holds up to which number writes from outside the stream were taken.
pub(crate) const WRITES: &str = "writes";
/// The item that holds what was changed of the catalogue at run time.
pub(crate) const CATALOGUE: &str = "catalogue";

/// What all handles of a space share. Readers touch only what can be loaded without a lock.
pub(crate) struct Space {
    pub(crate) groups: u16,
    pub(crate) users_per_group: u32,
    catalogue: ArcSwap<Catalogue>,
    layout: ArcSwap<Layout>,
    sequence: AtomicU64,
    /// That of the catalogue: a writer looks at it before each update.
    revision: AtomicU64,
    /// Tells this space from that of another process, or of another space in this one.
    pub(crate) life: u64,
    /// Also serialises changes of catalogue and layout.
    control: Mutex<Control>,
    /// Writers that have read a checkpoint, or are about to, and have not published it.
    pub(crate) unready: AtomicUsize,
    pub(crate) waiting: Waiting,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) writes: Writes,
}

struct Control {
    /// The attempt that owns each key group.
    owners: Vec<Option<u32>>,
    /// The life whose changes of the catalogue were taken over from a checkpoint, up to which number, and whether with its segments.
    adopted: Option<(u64, u64, bool)>,
}

/// Names it, rather than printing every user.
impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profiles").field("name", &self.catalogue().space).finish_non_exhaustive()
    }
}

impl Space {
    pub(crate) fn catalogue(&self) -> Arc<Catalogue> {
        self.catalogue.load_full()
    }

    pub(crate) fn layout(&self) -> Arc<Layout> {
        self.layout.load_full()
    }

    pub(crate) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The number of the last publication.
    pub(crate) fn published(&self) -> u64 {
        self.sequence.load(Ordering::Relaxed)
    }

    /// Nothing under the lock can panic half-way, so a poisoned one is as good as any.
    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn define(&self, name: &str, kind: TagType) -> Result<(), ProfileError> {
        self.add(|catalogue| catalogue.add(name, kind))
    }

    /// Defines a tag that a state has.
    pub(crate) fn define_stored(&self, name: &str, kind: TagType) -> Result<(), ProfileError> {
        self.add(|catalogue| catalogue.add_stored(name, kind))
    }

    fn add(&self, tag: impl Fn(&mut Catalogue) -> Result<bool, ProfileError>) -> Result<(), ProfileError> {
        self.edit(tag).map(drop)
    }

    /// Changes the catalogue, whole or not at all; whether it is other than before.
    pub(crate) fn edit(
        &self,
        change: impl FnOnce(&mut Catalogue) -> Result<bool, ProfileError>,
    ) -> Result<bool, ProfileError> {
        let _control = self.control();
        let mut next = (*self.catalogue()).clone();
        let changed = change(&mut next)?;
        if changed {
            self.put_catalogue(next);
        }
        Ok(changed)
    }

    /// Makes changes at run time, all or none; on disk first, if there is a journal. Whether anything is other than before.
    pub(crate) fn change(&self, changes: &[Change]) -> Result<bool, ProfileError> {
        let _control = self.control();
        let mut next = (*self.catalogue()).clone();
        let (mut changed, before) = (false, next.sequence);
        for change in changes {
            changed |= next.change(change.clone())?;
        }
        if changed {
            self.writes.record(changes, before, |sequence| {
                next.journal = next.journal.max(sequence);
                self.put_catalogue(next);
            })?;
        }
        Ok(changed)
    }

    /// Whether writers own all key groups and show what they have read of a checkpoint.
    pub(crate) fn are_ready(&self) -> bool {
        let control = self.control();
        self.unready.load(Ordering::Acquire) == 0 && control.owners.iter().all(Option::is_some)
    }

    /// Whether writers own all of these key groups.
    pub(crate) fn are_owned(&self, groups: &[u16]) -> bool {
        let control = self.control();
        groups.iter().all(|group| control.owners[*group as usize].is_some())
    }

    /// Notes what is wrong with a definition, where no error can be returned.
    pub(crate) fn put_defect(&self, error: ProfileError) {
        let _control = self.control();
        let mut next = (*self.catalogue()).clone();
        next.defect.get_or_insert(error);
        self.put_catalogue(next);
    }

    /// Only under the lock.
    fn put_catalogue(&self, mut next: Catalogue) {
        next.revision = self.revision.load(Ordering::Relaxed) + 1;
        let revision = next.revision;
        self.catalogue.store(Arc::new(next));
        // Whoever sees this number sees that catalogue.
        self.revision.store(revision, Ordering::Release);
    }

    /// The number of the newest catalogue.
    #[inline]
    pub(crate) fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// Takes over what a checkpoint of another process kept; what this one wrote itself, it has.
    fn adopt(
        &self,
        image: Option<&Image>,
        take: impl FnOnce(&mut Catalogue, &Image, u64) -> Result<(), ProfileError>,
    ) -> Result<(), ProfileError> {
        let mut control = self.control();
        let Some(image) = image.filter(|image| image.life != self.life) else { return Ok(()) };
        let from = match control.adopted {
            Some((life, sequence, _)) if life == image.life => sequence,
            _ => 0,
        };
        if image.sequence > from {
            let mut next = (*self.catalogue()).clone();
            take(&mut next, image, from)?;
            self.put_catalogue(next);
            control.adopted = Some((image.life, image.sequence, false));
        }
        Ok(())
    }

    fn adopt_segments(&self, image: Option<&Image>) -> Result<(), ProfileError> {
        let mut control = self.control();
        let Some(image) = image.filter(|image| image.life != self.life) else { return Ok(()) };
        if control.adopted == Some((image.life, image.sequence, false)) {
            let mut next = (*self.catalogue()).clone();
            next.adopt_segments(image)?;
            self.put_catalogue(next);
            control.adopted = Some((image.life, image.sequence, true));
        }
        Ok(())
    }

    fn claim(&self, range: Range<u16>, attempt: u32) -> Result<(), ProfileError> {
        let owners = &mut self.control().owners;
        let Range { start, end } = range;
        let (groups, space) = (self.groups, || self.catalogue().space.to_string());
        let Some(wanted) = owners.get_mut(start as usize..end as usize) else {
            return Err(ProfileError::NoSuchGroups { start, end, groups, space: space() });
        };
        if let Some((i, attempt)) = wanted.iter().enumerate().find_map(|(i, o)| Some((i, (*o)?))) {
            let group = KeyGroup(start + i as u16);
            return Err(ProfileError::Claimed { group, space: space(), attempt });
        }
        wanted.fill(Some(attempt));
        Ok(())
    }

    pub(crate) fn release(&self, range: Range<u16>) {
        self.control().owners[range.start as usize..range.end as usize].fill(None);
    }

    /// Points the range's key groups to a cell that has a version.
    pub(crate) fn install(&self, range: Range<u16>, cell: &Arc<Cell>) {
        let _control = self.control();
        let mut next = (*self.layout()).clone();
        next.cells[range.start as usize..range.end as usize].fill(cell.clone());
        self.layout.store(Arc::new(next));
    }
}

/// Which cell each key group's newest version is in; neighbours share one.
#[derive(Clone)]
pub(crate) struct Layout {
    pub(crate) cells: Vec<Arc<Cell>>,
}

/// Where one writer publishes: one pointer for all its key groups.
pub(crate) struct Cell {
    newest: ArcSwap<RangeVersion>,
    state: AtomicU8,
}

const LIVE: u8 = 0;
const RELEASED: u8 = 1;
const FINISHED: u8 = 2;

impl Cell {
    pub(crate) fn live() -> Self {
        Self { newest: ArcSwap::from_pointee(RangeVersion::default()), state: AtomicU8::new(LIVE) }
    }

    fn empty(groups: u16) -> Self {
        let groups = (0..groups).map(|_| Arc::default()).collect();
        let newest = ArcSwap::from_pointee(RangeVersion { groups, ..RangeVersion::default() });
        Self { newest, state: AtomicU8::new(RELEASED) }
    }

    pub(crate) fn store(&self, version: Arc<RangeVersion>) {
        self.newest.store(version);
    }

    pub(crate) fn load(&self) -> Arc<RangeVersion> {
        self.newest.load_full()
    }

    pub(crate) fn finish(&self) {
        self.state.store(FINISHED, Ordering::Relaxed);
    }

    /// Marks what is here as left behind, unless it was finished.
    pub(crate) fn release(&self) {
        // Losing means it is finished already, which is to stay so.
        let _ = self.state.compare_exchange(LIVE, RELEASED, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.state.load(Ordering::Relaxed) == RELEASED
    }
}

/// One published state of one writer's key groups.
pub(crate) struct RangeVersion {
    pub(crate) start: u16,
    pub(crate) groups: Vec<Arc<GroupVersion>>,
    pub(crate) sequence: u64,
    pub(crate) attempt: u32,
    pub(crate) watermark: i64,
    pub(crate) published_at: i64,
}

impl Default for RangeVersion {
    fn default() -> Self {
        Self { start: 0, groups: Vec::new(), sequence: 0, attempt: 0, watermark: i64::MIN, published_at: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::ProfileUpdate;

    #[test]
    fn a_full_key_group_takes_no_new_user_but_updates_old_ones() {
        let mut profiles = Profiles::with_key_groups("p", 1).enum_tag("city");
        Arc::get_mut(&mut profiles.space).unwrap().users_per_group = 3;
        let mut writer = profiles.writer(0..1, 1).unwrap();
        let of = |user: u64| ProfileUpdate::of(user).at(1).set("city", "a");
        (0..3).for_each(|user| assert!(writer.apply(of(user)).is_ok()));
        let error = writer.apply(of(3)).unwrap_err();
        assert_eq!(error, ProfileError::Full { group: KeyGroup(0), users: 3, user: 3u64.into() });
        assert!(writer.apply(of(2)).is_ok());
        assert_eq!(writer.users(), 3);
    }

    #[test]
    fn ordinals_leave_room_for_the_key_group() {
        let users = |groups| Profiles::with_key_groups("p", groups).space.users_per_group;
        assert_eq!(users(128), (1 << 25) - 1);
        assert_eq!(users(129), (1 << 24) - 1);
        assert_eq!(users(2), (1 << 31) - 1);
        assert_eq!(users(1), u32::MAX);
        assert_eq!(Profiles::with_key_groups("p", 0).key_groups(), 1);
    }
}
