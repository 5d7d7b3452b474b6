//! Barrier alignment as a pure decision: which inputs may be read, and when a barrier has arrived everywhere it still can.

use crate::element::Barrier;

/// What an arrival at the aligner means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alignment {
    /// Keep reading the inputs that are still readable.
    Wait,
    /// The barrier has arrived on every open input: snapshot now, then pass it on.
    Complete(Barrier),
    /// A barrier of a checkpoint that is over or was aborted: drop it.
    Obsolete,
    /// A newer barrier overtook one that was still being aligned: the older checkpoint cannot complete any more.
    Overtaken(Barrier),
}

/// Decides when a barrier has arrived everywhere it can still arrive from. An ended input holds nobody up and may be the
/// one that was awaited.
#[derive(Clone, Debug)]
pub(crate) struct Aligner {
    pending: Option<Barrier>,
    /// The newest barrier that was completed or aborted: nothing at or below it is of interest.
    settled: Option<Barrier>,
    seen: Vec<bool>,
    open: Vec<bool>,
}

impl Aligner {
    pub(crate) fn new(inputs: usize) -> Self {
        Aligner { pending: None, settled: None, seen: vec![false; inputs], open: vec![true; inputs] }
    }

    /// May input `i` be read now?
    #[inline]
    pub(crate) fn readable(&self, i: usize) -> bool {
        self.open[i] && !self.seen[i]
    }

    /// The barrier being aligned, if any.
    #[cfg(test)]
    pub(crate) fn pending(&self) -> Option<Barrier> {
        self.pending
    }

    /// The open inputs that the pending barrier has not reached.
    pub(crate) fn missing(&self) -> Vec<usize> {
        (0..self.open.len()).filter(|&i| self.pending.is_some() && self.readable(i)).collect()
    }

    /// Input `i` delivered `barrier`.
    pub(crate) fn barrier(&mut self, i: usize, barrier: Barrier) -> Alignment {
        if self.settled.is_some_and(|s| barrier <= s) {
            return Alignment::Obsolete;
        }
        match self.pending {
            Some(p) if barrier < p => return Alignment::Obsolete,
            Some(p) if barrier > p => {
                self.seen.fill(false);
                self.settled = Some(p);
                self.pending = Some(barrier);
                self.seen[i] = true;
                // With one input left open the newer barrier may be complete at once; the caller asks `settle` again.
                return Alignment::Overtaken(p);
            }
            _ => {}
        }
        self.pending = Some(barrier);
        self.seen[i] = true;
        self.settle()
    }

    /// Input `i` ended.
    pub(crate) fn end(&mut self, i: usize) -> Alignment {
        self.open[i] = false;
        self.seen[i] = false;
        self.settle()
    }

    /// Checkpoint `barrier` was given up: inputs that wait for it may be read again.
    pub(crate) fn abort(&mut self, barrier: Barrier) {
        self.settled = self.settled.max(Some(barrier));
        if self.pending.is_some_and(|p| p <= barrier) {
            self.pending = None;
            self.seen.fill(false);
        }
    }

    /// True when every input has ended.
    pub(crate) fn all_ended(&self) -> bool {
        !self.open.contains(&true)
    }

    /// Completes the pending barrier if nothing is missing any more.
    pub(crate) fn settle(&mut self) -> Alignment {
        let Some(barrier) = self.pending else { return Alignment::Wait };
        if self.open.iter().zip(&self.seen).any(|(open, seen)| *open && !seen) {
            return Alignment::Wait;
        }
        self.pending = None;
        self.settled = Some(barrier);
        self.seen.fill(false);
        Alignment::Complete(barrier)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::CheckpointId;

    fn b(id: u64) -> Barrier {
        Barrier { checkpoint: CheckpointId(id) }
    }

    #[test]
    fn completes_when_every_open_input_delivered() {
        let mut a = Aligner::new(3);
        assert_eq!(a.barrier(0, b(1)), Alignment::Wait);
        assert!(!a.readable(0) && a.readable(1) && a.readable(2));
        assert_eq!(a.missing(), [1, 2]);
        assert_eq!(a.barrier(2, b(1)), Alignment::Wait);
        assert_eq!(a.barrier(1, b(1)), Alignment::Complete(b(1)));
        assert!(a.readable(0) && a.readable(1) && a.readable(2));
    }

    #[test]
    fn an_end_may_be_what_was_awaited() {
        let mut a = Aligner::new(2);
        assert_eq!(a.barrier(0, b(1)), Alignment::Wait);
        assert_eq!(a.end(1), Alignment::Complete(b(1)));
        assert_eq!(a.barrier(0, b(2)), Alignment::Complete(b(2)));
        assert_eq!(a.end(0), Alignment::Wait);
        assert!(a.all_ended());
    }

    #[test]
    fn the_inputs_barrier_counts_although_it_ends_right_after() {
        let mut a = Aligner::new(2);
        assert_eq!(a.barrier(0, b(1)), Alignment::Wait);
        assert_eq!(a.end(0), Alignment::Wait);
        assert_eq!(a.barrier(1, b(1)), Alignment::Complete(b(1)));
    }

    #[test]
    fn an_abort_unblocks_and_makes_the_rest_obsolete() {
        let mut a = Aligner::new(2);
        a.barrier(0, b(4));
        a.abort(b(4));
        assert!(a.readable(0));
        assert_eq!(a.barrier(1, b(4)), Alignment::Obsolete);
        assert_eq!(a.barrier(1, b(5)), Alignment::Wait);
    }

    #[test]
    fn a_newer_barrier_overtakes() {
        let mut a = Aligner::new(2);
        a.barrier(0, b(1));
        assert_eq!(a.barrier(1, b(2)), Alignment::Overtaken(b(1)));
        assert_eq!(a.settle(), Alignment::Wait);
        assert!(a.readable(0) && !a.readable(1));
        assert_eq!(a.barrier(0, b(1)), Alignment::Obsolete);
        assert_eq!(a.barrier(0, b(2)), Alignment::Complete(b(2)));
        assert_eq!(a.pending(), None);
    }

    proptest! {
        /// Whatever the interleaving, each barrier completes exactly once, in order, after every input delivered it.
        #[test]
        fn every_interleaving_completes_each_barrier_once(picks in proptest::collection::vec(0usize..4, 0..400), inputs in 1usize..4, barriers in 1u64..8) {
            let mut a = Aligner::new(inputs);
            let mut next = vec![1u64; inputs];
            let mut done = Vec::new();
            let mut step = |i: usize, a: &mut Aligner| {
                if !a.readable(i) { return }
                let outcome = if next[i] <= barriers { next[i] += 1; a.barrier(i, b(next[i] - 1)) } else { a.end(i) };
                if let Alignment::Complete(c) = outcome {
                    assert!(next.iter().all(|n| *n > c.checkpoint.0));
                    done.push(c.checkpoint.0);
                } else {
                    assert_eq!(outcome, Alignment::Wait);
                }
            };
            for p in picks { step(p % inputs, &mut a) }
            while !a.all_ended() { for i in 0..inputs { step(i, &mut a) } }
            prop_assert_eq!(done, (1..=barriers).collect::<Vec<_>>());
        }
    }
}
