//! Whether a source is silent as a whole: all splits of all its subtasks read dry, and for how long.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::ids::AttemptId;
use crate::runtime::sync::{Mutex, MutexGuard};

/// What the subtasks of one source know. Part of the job, so it outlives attempts.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    looks: Mutex<Looks>,
}

#[derive(Debug, Default)]
struct Looks {
    attempt: Option<AttemptId>,
    next: u64,
    seats: Vec<(u64, Look)>,
    /// How often a silence has been broken: tells one from the next.
    broken: u64,
}

/// What a subtask found when it last looked into its splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// It has no split: it has no say.
    Nothing,
    /// Records, or it has not looked yet.
    Talks,
    /// All dry, by the job's elapsed time.
    Dry { since: Duration, looked: Duration },
}

/// What was looked at longer ago says nothing: its subtask may be busy with something else while records wait.
const STALE: Duration = Duration::from_millis(500);

/// For how long nobody has had anything.
fn silent_for(looks: impl Iterator<Item = Look>, now: Duration) -> Option<Duration> {
    let mut last = None;
    for look in looks {
        match look {
            Look::Nothing => {}
            Look::Talks => return None,
            Look::Dry { looked, .. } if now.saturating_sub(looked) > STALE => return None,
            Look::Dry { since, .. } => last = last.max(Some(since)),
        }
    }
    last.map(|since| now.saturating_sub(since))
}

/// One subtask of the source; dropped, it has no say any more.
#[derive(Debug)]
pub(crate) struct SilenceSeat {
    silence: Arc<Silence>,
    attempt: AttemptId,
    number: u64,
    said: Look,
}

impl Silence {
    fn lock(&self) -> MutexGuard<'_, Looks> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn join(self: &Arc<Self>, attempt: AttemptId) -> SilenceSeat {
        let mut looks = self.lock();
        if looks.attempt != Some(attempt) {
            looks.attempt = Some(attempt);
            looks.seats.clear();
        }
        let number = looks.next;
        looks.next += 1;
        looks.seats.push((number, Look::Talks));
        SilenceSeat { silence: self.clone(), attempt, number, said: Look::Talks }
    }
}

impl SilenceSeat {
    /// Says what this subtask found at `now`; gives for how long the whole source has been silent, if it is, and which of its
    /// silences that is.
    pub(crate) fn look(&mut self, found: Look, now: Duration) -> Option<(u64, Duration)> {
        if found == Look::Talks && self.said == Look::Talks {
            return None;
        }
        self.said = found;
        let mut looks = self.silence.lock();
        if looks.attempt != Some(self.attempt) {
            return None;
        }
        looks.broken += u64::from(found == Look::Talks);
        for seat in &mut looks.seats {
            if seat.0 == self.number {
                seat.1 = found;
            }
        }
        let lasts = silent_for(looks.seats.iter().map(|(_, look)| *look), now)?;
        Some((looks.broken, lasts))
    }
}

impl Drop for SilenceSeat {
    fn drop(&mut self) {
        self.silence.lock().seats.retain(|(seat, _)| *seat != self.number);
    }
}

#[cfg(all(test, not(feature = "explore")))]
mod tests {
    use super::*;

    fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn dry(since: u64, looked: u64) -> Look {
        Look::Dry { since: s(since), looked: s(looked) }
    }

    #[test]
    fn silence_is_as_long_as_that_of_the_last_one_who_spoke() {
        let silence = Arc::new(Silence::default());
        let (mut a, mut b) = (silence.join(AttemptId::FIRST), silence.join(AttemptId::FIRST));
        assert_eq!(a.look(dry(1, 10), s(10)), None, "the other has not looked yet");
        assert_eq!(b.look(dry(4, 10), s(10)), Some((0, s(6))));
        assert_eq!(a.look(dry(1, 11), s(11)), None, "the other may be held up with records before it");
        assert_eq!(b.look(Look::Talks, s(11)), None);
        assert_eq!(a.look(dry(1, 11), s(11)), None);
        drop(b);
        assert_eq!(a.look(dry(1, 12), s(12)), Some((1, s(11))), "another silence");
    }

    #[test]
    fn who_has_no_split_has_no_say_and_nobody_alone_is_not_silent() {
        let silence = Arc::new(Silence::default());
        let (mut a, mut b) = (silence.join(AttemptId::FIRST), silence.join(AttemptId::FIRST));
        assert_eq!(a.look(Look::Nothing, s(9)), None);
        assert_eq!(b.look(Look::Nothing, s(9)), None);
        assert_eq!(b.look(dry(2, 9), s(9)), Some((0, s(7))));
        let mut next = silence.join(AttemptId(AttemptId::FIRST.0 + 1));
        assert_eq!(b.look(dry(2, 9), s(9)), None, "of an older attempt");
        assert_eq!(next.look(dry(3, 9), s(9)), Some((0, s(6))));
    }
}
