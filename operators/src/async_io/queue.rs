//! In which order answers, and the signals between records, leave: as the records came, or as answers come between two signals. Pure.

use std::collections::VecDeque;

use weir_engine::HeldSignal;

/// Whether answers keep the order of their records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Ordered,
    Unordered,
}

/// A place of the line.
#[derive(Debug)]
enum Place {
    /// One record, when order is kept.
    Record {
        id: u64,
        done: bool,
    },
    /// All records between two signals, when it is not.
    Segment {
        left: usize,
        done: VecDeque<u64>,
    },
    Signal(HeldSignal),
}

/// What leaves next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Record(u64),
    Signal(HeldSignal),
}

/// Records, by their ids, and signals. None of either leaves before a signal that came before it, and no signal before a record
/// that did.
#[derive(Debug)]
pub(super) struct Queue {
    order: Order,
    line: VecDeque<Place>,
    /// The number of the place that is first in line.
    first: u64,
}

impl Queue {
    pub(super) fn new(order: Order) -> Self {
        Queue { order, line: VecDeque::new(), first: 0 }
    }

    /// A record comes; gives the number of its place.
    pub(super) fn push(&mut self, id: u64) -> u64 {
        match (self.order, self.line.back_mut()) {
            (Order::Ordered, _) => self.line.push_back(Place::Record { id, done: false }),
            (Order::Unordered, Some(Place::Segment { left, .. })) => *left += 1,
            (Order::Unordered, _) => self.line.push_back(Place::Segment { left: 1, done: VecDeque::new() }),
        }
        self.first + self.line.len() as u64 - 1
    }

    /// A signal comes. Of signals with no record between them only what they come to is kept, so that the line is no longer than a few
    /// times its records, however long the first of them takes.
    pub(super) fn signal(&mut self, signal: HeldSignal) {
        if matches!(signal, HeldSignal::Watermark(_)) && self.is_idle_behind_a_watermark() {
            // In total silence event time goes on, and idleness is said again behind each watermark, which has ended it.
            self.line.pop_back();
        }
        match (self.line.back_mut(), signal) {
            (Some(Place::Signal(HeldSignal::Watermark(last))), HeldSignal::Watermark(w)) => *last = w,
            (Some(Place::Signal(HeldSignal::Idle)), HeldSignal::Active)
            | (Some(Place::Signal(HeldSignal::Active)), HeldSignal::Idle) => drop(self.line.pop_back()),
            (Some(Place::Signal(HeldSignal::Idle)), HeldSignal::Idle) => {}
            _ => self.line.push_back(Place::Signal(signal)),
        }
    }

    /// The last in line are a watermark and idleness.
    fn is_idle_behind_a_watermark(&self) -> bool {
        let mut last = self.line.iter().rev();
        matches!(last.next(), Some(Place::Signal(HeldSignal::Idle)))
            && matches!(last.next(), Some(Place::Signal(HeldSignal::Watermark(_))))
    }

    /// The record of this id, in this place, may leave.
    pub(super) fn done(&mut self, place: u64, id: u64) {
        match self.line.get_mut((place - self.first) as usize) {
            Some(Place::Record { done, .. }) => *done = true,
            Some(Place::Segment { done, .. }) => done.push_back(id),
            Some(Place::Signal(_)) | None => debug_assert!(false, "record {id} has no place {place}"),
        }
    }

    /// Takes what may leave now.
    pub(super) fn pop(&mut self) -> Option<Next> {
        loop {
            let next = match self.line.front_mut()? {
                Place::Record { done: false, .. } => return None,
                Place::Record { id, done: true } => Some(Next::Record(*id)),
                Place::Signal(signal) => Some(Next::Signal(*signal)),
                Place::Segment { left, done } => match done.pop_front() {
                    Some(id) => {
                        *left -= 1;
                        return Some(Next::Record(id));
                    }
                    None if *left > 0 || self.line.len() == 1 => return None,
                    None => None,
                },
            };
            self.line.pop_front();
            self.first += 1;
            if next.is_some() {
                return next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_engine::Watermark;

    fn watermark(ms: i64) -> HeldSignal {
        HeldSignal::Watermark(Watermark(ms))
    }

    #[test]
    fn signals_with_no_record_between_come_to_one() {
        let mut queue = Queue::new(Order::Ordered);
        let place = queue.push(7);
        for signal in [watermark(1), watermark(2), HeldSignal::Idle, HeldSignal::Active, watermark(3)] {
            queue.signal(signal);
        }
        assert_eq!(queue.pop(), None);
        queue.done(place, 7);
        let left: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(left, [Next::Record(7), Next::Signal(watermark(3))]);
    }

    #[test]
    fn a_long_silence_makes_no_long_line() {
        for before in [vec![], vec![watermark(0)]] {
            let mut queue = Queue::new(Order::Ordered);
            let place = queue.push(7);
            before.iter().for_each(|signal| queue.signal(*signal));
            for ms in 1..=1_000 {
                queue.signal(HeldSignal::Idle);
                queue.signal(watermark(ms));
                assert!(queue.line.len() <= 4, "{queue:?}");
            }
            queue.signal(HeldSignal::Idle);
            queue.signal(HeldSignal::Idle);
            queue.done(place, 7);
            let left: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
            let mut expected = vec![Next::Record(7)];
            // The first of them came before any watermark.
            expected.extend(before.is_empty().then_some(Next::Signal(HeldSignal::Idle)));
            expected.extend([Next::Signal(watermark(1_000)), Next::Signal(HeldSignal::Idle)]);
            assert_eq!(left, expected);
        }
    }

    proptest! {
        /// Records are done in any order; whatever has left by then, no record and no signal has passed a signal.
        #[test]
        fn nothing_passes_a_signal(
            ordered in any::<bool>(),
            line in prop::collection::vec(prop_oneof![4 => Just(true), 1 => Just(false)], 0..60),
            picks in prop::collection::vec(any::<prop::sample::Index>(), 60),
        ) {
            let mut queue = Queue::new(if ordered { Order::Ordered } else { Order::Unordered });
            let (mut open, mut came, mut left) = (Vec::new(), Vec::new(), Vec::new());
            for (at, is_record) in line.iter().enumerate() {
                if *is_record {
                    open.push((queue.push(at as u64), at as u64));
                    came.push(Next::Record(at as u64));
                } else {
                    // Distinct and rising; those that are next to each other come to the last.
                    queue.signal(watermark(at as i64));
                    if let Some(Next::Signal(_)) = came.last() {
                        came.pop();
                    }
                    came.push(Next::Signal(watermark(at as i64)));
                }
            }
            for pick in picks {
                if open.is_empty() {
                    break;
                }
                let (place, id) = open.remove(pick.index(open.len()));
                queue.done(place, id);
                left.extend(std::iter::from_fn(|| queue.pop()));
            }
            left.extend(std::iter::from_fn(|| queue.pop()));
            if ordered {
                prop_assert_eq!(left, came);
            } else {
                // The same between any two signals, in some order.
                let segments = |all: &[Next]| {
                    let mut segments = vec![Vec::new()];
                    for next in all {
                        match next {
                            Next::Record(id) => segments.last_mut().unwrap().push(*id),
                            Next::Signal(_) => segments.push(Vec::new()),
                        }
                    }
                    segments.iter_mut().for_each(|s| s.sort_unstable());
                    segments
                };
                prop_assert_eq!(segments(&left), segments(&came));
            }
        }
    }
}
