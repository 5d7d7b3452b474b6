//! The one writer of a range of key groups: applies whole updates and publishes them by one pointer swap.
//! (over 400 lines: all that one thread does with its key groups)

use super::catalogue::Catalogue;
use super::change::Image;
use super::durable::{FrozenGroups, Kept, Written, read_group};
use super::error::{ProfileError, RestoreError};
use super::group::{Group, Step};
use super::space::{CATALOGUE, Cell, ITEMS, RangeVersion, Space, WATERMARK, WRITES};
use super::update::ProfileUpdate;
use crate::backend::StateBackend;
use crate::key::KeyGroup;
use crate::store;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
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
    /// What was read of a checkpoint is not published yet.
    unready: bool,
    /// The number up to which it has taken writes from outside the stream.
    taken: u64,
    /// The number up to which what was restored has them, by key group.
    floors: Vec<u64>,
    /// Checkpoints that are not known to be complete, with the number up to which they have such writes.
    frozen_taken: VecDeque<(u64, u64)>,
}

/// Up to which number key groups have taken writes, the end excluded.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Taken {
    groups: (u16, u16),
    taken: u64,
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
            unready: false,
            taken: 0,
            floors: Vec::new(),
            frozen_taken: VecDeque::new(),
            space,
            range,
            attempt,
        }
    }

    /// Notes that it is counted among those who show not yet what they have, or are about to read.
    pub(crate) fn unshown(&mut self) {
        self.unready = true;
    }

    /// Says that readers see all that this read of a checkpoint.
    pub(crate) fn shown(&mut self) {
        if std::mem::take(&mut self.unready) {
            self.space.unready.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Goes on from what a store has.
    pub(crate) fn restore(
        &mut self,
        table: u16,
        backend: &dyn StateBackend,
        watermark: i64,
        images: &[Image],
    ) -> Result<(), RestoreError> {
        let mut stored = Vec::new();
        self.groups.clear();
        for group in self.range.clone() {
            // The changes that its pieces were written before.
            let covers = |image: &&Image| image.groups.0 <= group && group < image.groups.1;
            let since = images.iter().find(covers).map_or(0, |image| image.sequence);
            let (group, names) = read_group(&self.space, KeyGroup(group), table, backend, since)?;
            self.groups.push(group);
            stored.push(names);
        }
        self.catalogue = self.space.catalogue();
        self.watermark = watermark;
        let kept = Kept::of(table, self.range.start, &self.groups, &self.catalogue, stored);
        self.kept = Some(Arc::new(kept));
        // What was widened since is rewritten now.
        self.follow();
        if self.space.checkpoints.are_kept() {
            let version = self.version(0, watermark, now_ms());
            self.space.checkpoints.restored(version, self.catalogue.clone(), self.space.groups);
        }
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
        if self.space.revision() != self.catalogue.revision {
            self.follow();
        }
        // Names, numbers and what was changed are of one state of the catalogue.
        let frozen = FrozenGroups::new(self.kept()?, self.groups.clone(), self.catalogue.clone());
        if let Some(image) = self.catalogue.image(self.space.life, (self.range.start, self.range.end)) {
            let image = serde_json::to_value(image).unwrap_or_default();
            into.item(ITEMS, CATALOGUE, image);
        }
        if self.taken > 0 {
            let taken = Taken { groups: (self.range.start, self.range.end), taken: self.taken };
            into.item(ITEMS, WRITES, serde_json::to_value(taken).unwrap_or_default());
        }
        into.add(Box::new(frozen));
        into.item(ITEMS, WATERMARK, self.watermark.into());
        Ok(())
    }

    fn kept(&self) -> Result<Arc<Kept>, ProfileError> {
        let none = || ProfileError::NotKept { space: self.catalogue.space.to_string() };
        self.kept.clone().ok_or_else(none)
    }

    /// What a test breaks off.
    #[cfg(test)]
    pub(crate) fn frozen(&self) -> Result<FrozenGroups, ProfileError> {
        let kept = self.kept()?;
        let (mut groups, catalogue) = (self.groups.clone(), self.space.catalogue());
        if catalogue.revision != self.catalogue.revision {
            groups.iter_mut().for_each(|group| group.follow(&catalogue));
        }
        Ok(FrozenGroups::new(kept, groups, catalogue))
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
        // What is defined, changed or dropped before an update counts for it.
        if self.space.revision() != self.catalogue.revision {
            self.follow();
        }
        let owned = &mut self.groups[index as usize];
        let local = owned.version.dict.number(&update.user);
        if local.is_none() && owned.version.users >= self.space.users_per_group {
            let users = owned.version.users;
            return Err(ProfileError::Full { group, users, user: update.user });
        }
        owned.plan(&self.catalogue, &update, local, time, &mut self.steps)?;
        let effective = owned.commit(&self.catalogue, update.user, local, time, &update.deltas, &self.steps);
        self.unpublished += 1;
        Ok(Applied { effective, superseded: update.deltas.len() - effective })
    }

    /// Takes over what was changed of tags: drops what was dropped, rewrites what was widened.
    #[cold]
    fn follow(&mut self) {
        self.catalogue = self.space.catalogue();
        self.groups.iter_mut().for_each(|group| group.follow(&self.catalogue));
    }

    /// Makes everything applied so far visible at once; `watermark` is the event time in ms the contents are complete up
    /// to. Worth calling with nothing applied too: it moves the watermark and the age.
    ///
    /// The first publish of a writer replaces whatever an earlier one left in its key groups.
    pub fn publish(&mut self, watermark: i64) {
        let lags = self.groups.iter().any(|group| group.lagging);
        if lags || self.space.revision() != self.catalogue.revision {
            self.follow();
        }
        let now = now_ms();
        let published = self.version(self.space.next_sequence(), watermark, now);
        self.cell.store(Arc::new(published));
        if !self.installed {
            self.space.install(self.range.clone(), &self.cell);
            self.installed = true;
        }
        self.unpublished = 0;
        self.watermark = watermark;
        self.shown();
        if self.taken > 0 {
            self.space.writes.visible(self.range.clone(), self.taken);
        }
        self.space.waiting.moved();
    }

    fn version(&self, sequence: u64, watermark: i64, published_at: i64) -> RangeVersion {
        let groups = self.groups.iter().map(|g| g.version.clone()).collect();
        let (start, attempt) = (self.range.start, self.attempt);
        RangeVersion { start, groups, sequence, attempt, watermark, published_at }
    }

    /// As [`freeze`](Self::freeze), for a checkpoint of this number: when that is [complete](Self::completed), readers that ask
    /// [`at_checkpoint`](crate::profile::Reader::at_checkpoint) see what is frozen here, if [`Profiles`](crate::profile::Profiles::keep_checkpoints) keep it.
    ///
    /// # Errors
    /// As for `freeze`.
    pub fn freeze_for(&mut self, checkpoint: u64, into: &mut store::Snapshot) -> Result<(), ProfileError> {
        self.freeze(into)?;
        if self.taken > 0 {
            self.frozen_taken.push_back((checkpoint, self.taken));
        }
        if self.space.checkpoints.are_kept() {
            let version = self.version(self.space.published(), self.watermark, now_ms());
            self.space.checkpoints.frozen(checkpoint, version, self.catalogue.clone());
        }
        Ok(())
    }

    /// Tells that a checkpoint is complete: every subtask has frozen for it, and what they wrote is durable.
    ///
    /// *Blocking*: shortens the journal, if there are writes in it.
    pub fn completed(&mut self, checkpoint: u64) {
        self.space.checkpoints.completed(checkpoint, self.space.groups);
        let mut settled = None;
        while let Some((_, taken)) = self.frozen_taken.front().copied().filter(|(of, _)| *of <= checkpoint) {
            self.frozen_taken.pop_front();
            settled = Some(taken);
        }
        if let Some(taken) = settled {
            self.space.writes.settled(self.range.clone(), taken);
        }
    }

    /// Applies writes from outside the stream that came since the last time; how many of them were for this writer. Worth calling between batches: it
    /// is a look at a number while there are none. What it applied is visible once it is [published](Self::publish).
    #[inline]
    pub fn take_writes(&mut self) -> usize {
        if self.space.writes.last() == self.taken { 0 } else { self.take() }
    }

    #[cold]
    fn take(&mut self) -> usize {
        let (mut own, last) = (0, self.space.writes.last());
        for entry in self.space.writes.above(self.taken) {
            for update in &entry.updates {
                let group = update.user.key_hash().group(self.space.groups).0;
                let Some(index) = group.checked_sub(self.range.start).filter(|_| group < self.range.end)
                else {
                    continue;
                };
                if self.floors.get(index as usize).is_some_and(|floor| entry.sequence <= *floor) {
                    continue;
                }
                own += 1;
                let update = self.now_called(update.clone(), entry.catalogue);
                if let Err(error) = self.apply(update.clone()) {
                    self.space.writes.refuse(entry.sequence, &update.user, &error);
                }
            }
            self.taken = entry.sequence;
        }
        self.taken = self.taken.max(last);
        own
    }

    /// The same update by the names that its tags have now; what was dropped is left out.
    fn now_called(&self, mut update: ProfileUpdate, since: u64) -> ProfileUpdate {
        let catalogue = self.space.catalogue();
        if catalogue.sequence > since {
            update.deltas.retain_mut(|delta| match catalogue.now_called(&delta.tag, since) {
                Some(name) => {
                    delta.tag = name.into();
                    true
                }
                None => false,
            });
        }
        update
    }

    /// Takes the writes again that what was restored has not.
    pub(crate) fn take_again(&mut self, taken: &[Taken]) {
        let of = |group: u16| {
            let covers = |t: &&Taken| t.groups.0 <= group && group < t.groups.1;
            taken.iter().find(covers).map_or(0, |t| t.taken)
        };
        self.floors = self.range.clone().map(of).collect();
        self.space.writes.seen(taken.iter().map(|t| t.taken).max().unwrap_or(0));
        self.take_writes();
    }

    /// Says what to call, from any thread, when there are writes to take. The writer calls nothing more once it is dropped.
    pub fn on_writes(&self, bell: impl Fn() + Send + Sync + 'static) {
        self.space.writes.hang(self.range.start, Box::new(bell));
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

pub(crate) fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64)
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.cell.release();
        self.shown();
        self.space.writes.unhang(self.range.start);
        self.space.release(self.range.clone());
    }
}
