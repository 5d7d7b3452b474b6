//! `update_profile`: applies what a stream says of users to the profiles that readers question meanwhile.
// HOT: nothing per record but the writer's own work; the clock is read once per batch.

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_engine::memory::{Metered, Share};
use weir_engine::{
    Barrier, Closing, Collector, Counter, EndKind, EventTime, Keyed, Notice, Operator, OperatorContext,
    Record, Result, SharedClock, SideOutput, SideSlot, SignalPort, TaskError, Watermark,
};
use weir_state::profile::{ProfileError, ProfileUpdate, Profiles, UserId, Writer};
use weir_state::store::Snapshot;

use crate::opened::Opened;
use crate::progress;

/// How long what was applied may stay unseen while input keeps coming.
const PUBLISH_EVERY: Duration = Duration::from_millis(20);
/// Bad updates are logged at most this often; they are counted in any case.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// What to do about an update that the profiles refuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BadUpdates {
    /// Give it to the stream of rejected updates, count it, and go on.
    #[default]
    Reject,
    /// Fail the job.
    Fail,
}

/// The profiles that a stream updates, and how. A plain `&profiles` takes the defaults.
///
/// ```
/// # use weir_operators::prelude::*;
/// # use weir_state::profile::Profiles;
/// # let profiles = Profiles::named("user_profile");
/// let strict = ProfileTarget::new(&profiles).on_bad_update(BadUpdates::Fail).parallelism(4);
/// ```
#[derive(Clone, Debug)]
pub struct ProfileTarget {
    profiles: Profiles,
    bad_updates: BadUpdates,
    publish_every: Duration,
    pub(crate) subtasks: Option<usize>,
}

impl ProfileTarget {
    /// These profiles, with the defaults.
    pub fn new(profiles: &Profiles) -> Self {
        ProfileTarget {
            profiles: profiles.clone(),
            bad_updates: BadUpdates::default(),
            publish_every: PUBLISH_EVERY,
            subtasks: None,
        }
    }

    /// What to do about an update that the profiles refuse (default: reject it and go on).
    #[must_use]
    pub fn on_bad_update(mut self, what: BadUpdates) -> Self {
        self.bad_updates = what;
        self
    }

    /// How long what was applied may stay unseen while input keeps coming (default: 20 ms). Publishing copies what later
    /// updates touch again, so a shorter time costs throughput. Zero publishes after every batch.
    #[must_use]
    pub fn publish_every(mut self, time: Duration) -> Self {
        self.publish_every = time;
        self
    }

    /// How many subtasks own the users (default: that of the job).
    #[must_use]
    pub fn parallelism(mut self, n: usize) -> Self {
        self.subtasks = Some(n);
        self
    }
}

impl From<&Profiles> for ProfileTarget {
    fn from(profiles: &Profiles) -> Self {
        ProfileTarget::new(profiles)
    }
}

/// An update that the profiles refused. Nothing of it took effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedUpdate {
    /// The user it was about.
    pub user: UserId,
    /// Its event time in ms since the epoch, if it had one.
    pub time: Option<i64>,
    /// What is wrong with it: names the tag and the value.
    pub reason: String,
}

impl fmt::Display for RejectedUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "update of user {}", self.user)?;
        if let Some(ms) = self.time {
            write!(f, " at {ms}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

/// The operator behind [`update_profile`](crate::prelude::ProfileOps::update_profile).
///
/// *State*: the profiles of the users whose key groups this subtask owns. It forgets nothing. Checkpoints hold all of it: the
/// users' ordinals, the values, and the times that decide about late updates; each holds what changed since the one before.
/// Each life of the job claims the key groups anew, goes on from the checkpoint and publishes what it found there; until
/// then readers see what the life before left, marked stale.
///
/// *Publishing*: what was applied becomes visible, update by update whole, 20 ms after the last time (looked at when a
/// batch ends), at once when no input is ready, when event time advances, and in the end. A version names the watermark it
/// was published at. A stream that ends for good leaves its last version for good; one that was drained to be continued,
/// cancelled or failed leaves it marked stale.
///
/// *Time*: an update without a time takes that of its record. *Late updates* are no special case: event times decide what
/// wins, whatever the order (see [`weir_state::profile`]).
///
/// *Bad updates* (unknown tag, wrong type, overflow, no time) go to the stream of rejected updates if that is read; they
/// are counted as `bad_updates` and logged every ten seconds at most. Errors that are not an update's own, such as a full key
/// group, fail the job.
pub struct UpdateProfile {
    target: ProfileTarget,
    rejected_slot: SideSlot<RejectedUpdate>,
    open: Opened<Open>,
    rejected: Opened<SideOutput<RejectedUpdate>>,
    /// What there was in the end, for the checkpoints that come after it.
    last: Opened<Snapshot>,
}

struct Open {
    writer: Writer,
    watermark: Watermark,
    clock: SharedClock,
    published: Duration,
    bad_updates: Counter,
    bad: BadLog,
    /// What the profiles take of the memory planned for the index.
    _metered: Option<Metered>,
}

/// When bad updates were last logged, and how many came since.
#[derive(Default)]
struct BadLog {
    logged: Option<Duration>,
    since: u64,
}

impl BadLog {
    /// How many to speak of now, if it is time to speak.
    fn due(&mut self, now: Duration) -> Option<u64> {
        self.since += 1;
        if self.logged.is_some_and(|at| now.saturating_sub(at) < LOG_EVERY) {
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.since))
    }
}

impl Open {
    fn publish(&mut self) {
        self.writer.publish(self.watermark.0);
        self.published = self.clock.elapsed();
    }
}

impl UpdateProfile {
    pub(crate) fn new(target: ProfileTarget, rejected_slot: SideSlot<RejectedUpdate>) -> Self {
        UpdateProfile {
            target,
            rejected_slot,
            open: Opened(None),
            rejected: Opened(None),
            last: Opened(None),
        }
    }

    fn opened(&mut self) -> Result<&mut Open> {
        self.open.0.as_mut().ok_or_else(|| TaskError::internal("a profile was updated while it was not open"))
    }

    #[cold]
    #[inline(never)]
    fn refuse(&mut self, user: UserId, time: Option<i64>, error: ProfileError, at: EventTime) -> Result<()> {
        use ProfileError::{Mismatch, NoTime, Overflow, UnknownTag};
        let its_own = matches!(error, UnknownTag { .. } | Mismatch { .. } | Overflow { .. } | NoTime { .. });
        if !its_own || self.target.bad_updates == BadUpdates::Fail {
            return Err(error.into());
        }
        let name = self.target.profiles.name();
        let open = self.opened()?;
        open.bad_updates.add(1);
        if let Some(refused) = open.bad.due(open.clock.elapsed()) {
            tracing::warn!(profile = name, refused, "updates were refused, the last one because {error}");
        }
        match &mut self.rejected.0 {
            Some(side) => {
                let value = RejectedUpdate { user, time, reason: error.to_string() };
                side.emit(Record { value, time: at })
            }
            None => Ok(()),
        }
    }
}

impl Clone for UpdateProfile {
    fn clone(&self) -> Self {
        Self::new(self.target.clone(), self.rejected_slot.clone())
    }
}

impl fmt::Debug for UpdateProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UpdateProfile({})", self.target.profiles.name())
    }
}

impl Operator<Keyed<UserId, ProfileUpdate>> for UpdateProfile {
    type Out = Infallible;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        let profiles = &self.target.profiles;
        if profiles.key_groups() != cx.key_groups() {
            return Err(TaskError::user(format!(
                "profile '{}' has {} key groups and the job has {}: make it with Profiles::with_key_groups(name, {})",
                profiles.name(),
                profiles.key_groups(),
                cx.key_groups(),
                cx.key_groups()
            )));
        }
        let clock = cx.clock().clone();
        let store = cx.store()?;
        let writer = profiles.restore_writer(&store, cx.attempt().0)?;
        let waker = cx.waker();
        writer.on_writes(move || waker.wake());
        let metered = writer.memory_meter().map(|meter| cx.memory().meter(Share::Index, meter));
        let mut open = Open {
            watermark: progress::unless_over(Watermark(writer.watermark())),
            writer,
            published: clock.elapsed(),
            clock,
            bad_updates: cx.counter("bad_updates"),
            bad: BadLog::default(),
            _metered: metered,
        };
        if store.is_restored() {
            // Input may be long in coming, and what the life before left may be ahead of the checkpoint.
            open.publish();
        }
        self.open = Opened(Some(open));
        self.rejected = Opened(self.rejected_slot.is_read().then(|| self.rejected_slot.open(cx)));
        Ok(())
    }

    fn process(
        &mut self,
        record: Record<Keyed<UserId, ProfileUpdate>>,
        _: &mut impl Collector<Infallible>,
    ) -> Result<()> {
        let Record { value: Keyed { key: user, value: mut update, .. }, time } = record;
        if update.time.is_none() && time != EventTime::NONE {
            update.time = Some(time.millis());
        }
        let update_time = update.time;
        match self.opened()?.writer.apply(update) {
            Ok(_) => Ok(()),
            Err(error) => self.refuse(user, update_time, error, time),
        }
    }

    fn on_batch_end(&mut self, _: &mut impl Collector<Infallible>) -> Result<()> {
        let every = self.target.publish_every;
        let open = self.opened()?;
        if open.writer.take_writes() > 0 {
            // Somebody waits for them.
            open.publish();
        }
        if open.writer.unpublished() > 0 && open.clock.elapsed().saturating_sub(open.published) >= every {
            open.publish();
        }
        Ok(())
    }

    fn on_quiet(&mut self, _: &mut impl Collector<Infallible>) -> Result<()> {
        let open = self.opened()?;
        if open.writer.take_writes() > 0 || open.writer.unpublished() > 0 {
            open.publish();
        }
        Ok(())
    }

    fn on_watermark(&mut self, watermark: Watermark, _: &mut impl Collector<Infallible>) -> Result<()> {
        let open = self.opened()?;
        // After a restore event time first comes to where it was.
        open.watermark = open.watermark.max(watermark);
        open.publish();
        Ok(())
    }

    fn on_end(&mut self, kind: EndKind, _: &mut impl Collector<Infallible>) -> Result<()> {
        if kind == EndKind::Flush {
            // Final only once the task has ended well: its last checkpoint may fail yet.
            self.opened()?.publish();
            return Ok(());
        }
        let Some(mut open) = self.open.0.take() else { return Ok(()) };
        let mut last = Snapshot::default();
        open.writer.freeze(&mut last)?;
        self.last = Opened(Some(last));
        // Dropping the writer marks what is there as stale: the stream has more to say.
        open.publish();
        Ok(())
    }

    fn snapshot(&mut self, barrier: Barrier, into: &mut Snapshot) -> Result<()> {
        match (&mut self.open.0, self.last.0.take()) {
            (Some(open), _) => open.writer.freeze_for(barrier.checkpoint.0, into)?,
            (None, Some(last)) => into.append(last),
            (None, None) => {}
        }
        Ok(())
    }

    fn on_notice(&mut self, notice: Notice) -> Result<()> {
        if let (Notice::Completed(checkpoint), Some(open)) = (notice, &mut self.open.0) {
            open.writer.completed(checkpoint.0);
        }
        Ok(())
    }

    fn sides(&mut self) -> Option<&mut dyn SignalPort> {
        self.rejected.0.as_mut().map(SideOutput::signals)
    }

    fn close(&mut self, closing: Closing) {
        // Either releases the key groups, so that the next life can claim them.
        match self.open.0.take() {
            Some(open) if closing == Closing::Ended => open.writer.finish(open.watermark.0),
            open => drop(open),
        }
    }
}

#[cfg(test)]
#[path = "profile_tests.rs"]
mod tests;
