//! Keeps the sources of a group together in event time: who is too far ahead of the slowest does not read.
// HOT: per batch of an aligned source, one lock that is held for a few instructions.

use std::sync::{Arc, PoisonError};

use crate::ids::AttemptId;
use crate::runtime::sync::{Mutex, MutexGuard};
use crate::time::Watermark;

/// Where each subtask of a group stands. Part of the job, so it outlives attempts; whoever is of an older one is nobody.
#[derive(Debug, Default)]
pub(crate) struct DriftGroup {
    seats: Mutex<Seats>,
}

#[derive(Debug, Default)]
struct Seats {
    attempt: Option<AttemptId>,
    next: u64,
    /// Those that can hold others.
    standing: Vec<(u64, Watermark)>,
}

/// The slowest but `own`, of those that hold others.
fn slowest_but(own: u64, standing: &[(u64, Watermark)]) -> Option<Watermark> {
    standing.iter().filter(|(seat, _)| *seat != own).map(|(_, w)| *w).min()
}

/// Is `own` too far ahead? One that has promised nothing yet is nowhere.
fn is_ahead(own: Watermark, slowest: Watermark, limit_ms: i64) -> bool {
    own != Watermark::MIN && own.0.saturating_sub(slowest.0) > limit_ms
}

/// One subtask in its group; dropped, it holds nobody.
#[derive(Debug)]
pub(crate) struct DriftSeat {
    group: Arc<DriftGroup>,
    attempt: AttemptId,
    number: u64,
    limit_ms: i64,
}

impl DriftGroup {
    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a seat. From here on it holds the others, since it has not promised anything.
    pub(crate) fn join(self: &Arc<Self>, attempt: AttemptId, limit_ms: i64) -> DriftSeat {
        let mut seats = self.lock();
        if seats.attempt != Some(attempt) {
            seats.attempt = Some(attempt);
            seats.standing.clear();
        }
        let number = seats.next;
        seats.next += 1;
        seats.standing.push((number, Watermark::MIN));
        DriftSeat { group: self.clone(), attempt, number, limit_ms }
    }
}

impl DriftSeat {
    /// Says where this subtask stands, or with none that it is idle; true when it must not read just now.
    pub(crate) fn is_held(&self, own: Option<Watermark>) -> bool {
        let mut seats = self.group.lock();
        if seats.attempt != Some(self.attempt) {
            return false;
        }
        let place = seats.standing.iter().position(|(seat, _)| *seat == self.number);
        match (place, own) {
            (Some(i), Some(w)) => seats.standing[i].1 = w,
            (Some(_), None) => seats.standing.retain(|(seat, _)| *seat != self.number),
            (None, Some(w)) => seats.standing.push((self.number, w)),
            (None, None) => {}
        }
        let slowest = slowest_but(self.number, &seats.standing);
        own.zip(slowest).is_some_and(|(own, slowest)| is_ahead(own, slowest, self.limit_ms))
    }
}

impl Drop for DriftSeat {
    fn drop(&mut self) {
        self.group.lock().standing.retain(|(seat, _)| *seat != self.number);
    }
}

#[cfg(all(test, not(feature = "explore")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seats(n: usize, limit_ms: i64) -> (Arc<DriftGroup>, Vec<DriftSeat>) {
        let group = Arc::new(DriftGroup::default());
        let seats = (0..n).map(|_| group.join(AttemptId::FIRST, limit_ms)).collect();
        (group, seats)
    }

    fn at(w: i64) -> Option<Watermark> {
        Some(Watermark(w))
    }

    #[test]
    fn who_is_too_far_ahead_of_the_slowest_is_held_until_that_has_caught_up() {
        let (_, seats) = seats(3, 10);
        assert!(seats[0].is_held(at(0)), "the others have not promised anything");
        assert!(!seats[1].is_held(Some(Watermark::MIN)));
        seats[1].is_held(at(0));
        seats[2].is_held(at(5));
        assert!(!seats[0].is_held(at(10)), "exactly the limit");
        assert!(seats[0].is_held(at(11)));
        assert!(!seats[1].is_held(at(1)), "the slowest is never held");
        assert!(!seats[0].is_held(at(11)));
    }

    #[test]
    fn the_idle_the_ended_and_those_of_another_attempt_hold_nobody() {
        let (group, mut seats) = seats(2, 10);
        assert!(seats[0].is_held(at(50)));
        assert!(!seats[1].is_held(None));
        assert!(!seats[0].is_held(at(50)));
        assert!(!seats[1].is_held(at(0)), "it is back");
        assert!(seats[0].is_held(at(50)));
        drop(seats.pop());
        assert!(!seats[0].is_held(at(50)));
        let next = group.join(AttemptId(AttemptId::FIRST.0 + 1), 10);
        assert!(!seats[0].is_held(at(0)), "of an older attempt");
        assert!(!next.is_held(at(1_000)));
    }

    proptest! {
        #[test]
        fn somebody_can_always_read(places in proptest::collection::vec(proptest::option::of(any::<i64>()), 1..6), limit in 0i64..100) {
            let (_, seats) = seats(places.len(), limit);
            let own = |i: usize| places[i].map(Watermark);
            for (i, seat) in seats.iter().enumerate() {
                let _ = seat.is_held(own(i));
            }
            let held: Vec<_> = (0..seats.len()).map(|i| seats[i].is_held(own(i))).collect();
            prop_assert!(held.contains(&false));
            let slowest = places.iter().flatten().min();
            for (i, place) in places.iter().enumerate() {
                let ahead = place.filter(|w| *w != i64::MIN).zip(slowest).is_some_and(|(w, s)| w.saturating_sub(*s) > limit);
                prop_assert_eq!(held[i], ahead);
            }
        }
    }
}
