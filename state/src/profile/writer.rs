//! The one writer of a range of key groups: applies whole updates and publishes them by one pointer swap.

use super::catalogue::Catalogue;
use super::durable::{FrozenGroups, Kept, Written, read_group};
use super::error::{ProfileError, RestoreError};
use super::group::{Group, Step};
use super::space::{Cell, ITEMS, RangeVersion, Space, WATERMARK};
use super::update::ProfileUpdate;
use crate::backend::StateBackend;
use crate::key::KeyGroup;
use crate::store;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// What an update did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Applied {
    /// Deltas that took effect (those that set what was there already count too).
    pub effective: usize,
    /// Deltas that lost to a newer one.
    pub superseded: usize,
}

/// Owns the profiles of a range of key groups; single-threaded, may be moved between threads.
///
/// *Order*: [`apply`](Self::apply) any number of updates, [`publish`](Self::publish), repeat. What is not published is
/// invisible. Dropping the writer releases its key groups: what it published stays readable, marked stale, and what it
/// did not publish is gone. *Blocking*: never on readers; the first publish takes a short lock shared with other writers'
/// first publish.
pub struct Writer {
    space: Arc<Space>,
    catalogue: Arc<Catalogue>,
    cell: Arc<Cell>,
    range: Range<u16>,
    attempt: u32,
    groups: Vec<Group>,
    steps: Vec<Step>,
    unpublished: usize,
    installed: bool,
    /// Of the last publication, or what was restored.
    watermark: i64,
    /// What the store holds, if there is one.
    kept: Option<Arc<Kept>>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Writer");
        shown.field("space", &self.space).field("key_groups", &self.range).field("attempt", &self.attempt);
        shown.field("users", &self.users()).field("unpublished", &self.unpublished).finish_non_exhaustive()
    }
}

impl Writer {
    pub(crate) fn new(space: Arc<Space>, range: Range<u16>, attempt: u32) -> Self {
        Self {
            catalogue: space.catalogue(),
            cell: Arc::new(Cell::live()),
            groups: range.clone().map(|_| Group::default()).collect(),
            steps: Vec::new(),
            unpublished: 0,
            installed: false,
            watermark: i64::MIN,
            kept: None,
            space,
            range,
            attempt,
        }
    }

    /// Goes on from what a store has.
    pub(crate) fn restore(
        &mut self,
        table: u16,
        backend: &dyn StateBackend,
        watermark: i64,
    ) -> Result<(), RestoreError> {
        let read = self.range.clone().map(|group| read_group(&self.space, KeyGroup(group), table, backend));
        self.groups = read.collect::<Result<_, _>>()?;
        self.catalogue = self.space.catalogue();
        self.watermark = watermark;
        self.kept = Some(Arc::new(Kept::of(table, self.range.start, &self.groups, &self.catalogue)));
        Ok(())
    }

    /// Adds all that was applied so far, published or not, to a snapshot.
    ///
    /// Takes microseconds: what is shared with readers anyway is shared with the snapshot, too. Whoever writes the snapshot
    /// out finds the pages that were touched since the last one that settled, and writes those. Meanwhile and until the next
    /// one settles, the pages as they were are held: a copy of what is touched between two checkpoints.
    ///
    /// # Errors
    /// [`ProfileError::NotKept`] if the writer was made without a store.
    pub fn freeze(&mut self, into: &mut store::Snapshot) -> Result<(), ProfileError> {
        into.add(Box::new(self.frozen()?));
        into.item(ITEMS, WATERMARK, self.watermark.into());
        Ok(())
    }

    pub(crate) fn frozen(&self) -> Result<FrozenGroups, ProfileError> {
        let catalogue = self.space.catalogue();
        let Some(kept) = self.kept.clone() else {
            return Err(ProfileError::NotKept { space: catalogue.space.to_string() });
        };
        Ok(FrozenGroups::new(kept, self.groups.clone(), catalogue))
    }

    /// Applies a whole update, or refuses it and changes nothing.
    ///
    /// # Errors
    /// An unknown tag, a delta or value that does not fit its tag's type, an increment that overflows, a missing event
    /// time, a user of another writer's key group, and a key group without ordinals left.
    pub fn apply(&mut self, update: ProfileUpdate) -> Result<Applied, ProfileError> {
        let group = update.user.key_hash().group(self.space.groups);
        let Some(index) = group.0.checked_sub(self.range.start).filter(|_| group.0 < self.range.end) else {
            let Range { start, end } = self.range;
            return Err(ProfileError::WrongKeyGroup { user: update.user, group, start, end });
        };
        let Some(time) = update.time else {
            return Err(ProfileError::NoTime { user: update.user });
        };
        let owned = &mut self.groups[index as usize];
        let local = owned.version.dict.number(&update.user);
        if local.is_none() && owned.version.users >= self.space.users_per_group {
            let users = owned.version.users;
            return Err(ProfileError::Full { group, users, user: update.user });
        }
        let mut planned = owned.plan(&self.catalogue, &update, local, time, &mut self.steps);
        if matches!(planned, Err(ProfileError::UnknownTag { .. })) {
            // It may have been defined since this writer last looked.
            self.catalogue = self.space.catalogue();
            planned = owned.plan(&self.catalogue, &update, local, time, &mut self.steps);
        }
        planned?;
        let effective = owned.commit(&self.catalogue, update.user, local, time, &update.deltas, &self.steps);
        self.unpublished += 1;
        Ok(Applied { effective, superseded: update.deltas.len() - effective })
    }

    /// Makes everything applied so far visible at once; `watermark` is the event time in ms the contents are complete up
    /// to. Worth calling with nothing applied too: it moves the watermark and the age.
    ///
    /// The first publish of a writer replaces whatever an earlier one left in its key groups.
    pub fn publish(&mut self, watermark: i64) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64);
        self.cell.store(RangeVersion {
            start: self.range.start,
            groups: self.groups.iter().map(|g| g.version.clone()).collect(),
            sequence: self.space.next_sequence(),
            attempt: self.attempt,
            watermark,
            published_at: now,
        });
        if !self.installed {
            self.space.install(self.range.clone(), &self.cell);
            self.installed = true;
        }
        self.unpublished = 0;
        self.watermark = watermark;
    }

    /// Publishes for good and releases the key groups: the contents stay and are not marked stale.
    pub fn finish(mut self, watermark: i64) {
        self.publish(watermark);
        self.cell.finish();
    }

    /// How many updates were applied since the last publish.
    pub fn unpublished(&self) -> usize {
        self.unpublished
    }

    /// The watermark it last published at, in ms; before that the one of the checkpoint it was restored from, the lowest of
    /// its writers'; else `i64::MIN`.
    pub fn watermark(&self) -> i64 {
        self.watermark
    }

    /// What the last snapshot that settled wrote; nothing before the first, and without a store. *Blocking*: never, not even
    /// on one that is being written.
    pub fn last_written(&self) -> Written {
        self.kept.as_ref().map_or_else(Written::default, |kept| kept.last_written())
    }

    /// Tells, from any thread and at any time, how many bytes of memory the writer's profiles take: users, values, bitmaps,
    /// times, counted by their own sizes when a snapshot is written (and when they were restored). Beside it come
    /// copies of what was touched since then. None without a store: nobody counts.
    ///
    /// *Blocking*: never.
    pub fn memory_meter(&self) -> Option<impl Fn() -> u64 + Send + Sync + 'static> {
        self.kept.clone().map(|kept| move || kept.bytes())
    }

    /// How many users the writer holds, published or not.
    pub fn users(&self) -> u64 {
        self.groups.iter().map(|g| u64::from(g.version.users)).sum()
    }

    /// The key groups it owns.
    pub fn key_groups(&self) -> Range<u16> {
        self.range.clone()
    }

    /// The attempt it was claimed by.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.cell.release();
        self.space.release(self.range.clone());
    }
}
