//! How the watermarks of many inputs become one: the lowest of those that are not idle, never going back. Pure.

use crate::time::Watermark;

/// What changed for whoever is downstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Advance {
    /// Event time has advanced to here.
    pub(crate) to: Option<Watermark>,
    /// Every input that is still open has become idle: do not wait for us.
    pub(crate) idle: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Active,
    Idle,
    Ended,
}

/// The combined watermark of a fixed set of inputs.
#[derive(Clone, Debug)]
pub(crate) struct Frontier {
    inputs: Vec<(Input, Watermark)>,
    /// The highest watermark given out.
    combined: Watermark,
    idle: bool,
}

impl Frontier {
    pub(crate) fn new(inputs: usize) -> Self {
        Frontier {
            inputs: vec![(Input::Active, Watermark::MIN); inputs],
            combined: Watermark::MIN,
            idle: false,
        }
    }

    /// One more input; gives its index.
    pub(crate) fn add(&mut self) -> usize {
        self.inputs.push((Input::Active, Watermark::MIN));
        self.inputs.len() - 1
    }

    /// Input `i` comes with a promise from before; `settle` says what that makes of all, once they are all there.
    pub(crate) fn begin(&mut self, i: usize, w: Watermark) {
        let own = &mut self.inputs[i].1;
        *own = (*own).max(w);
    }

    /// Input `i` says `w`. A regression is ignored: a promise cannot be taken back. It also ends idleness.
    pub(crate) fn observe(&mut self, i: usize, w: Watermark) -> Advance {
        let (state, own) = &mut self.inputs[i];
        if *state == Input::Ended {
            return Advance::default();
        }
        *state = Input::Active;
        *own = (*own).max(w);
        self.settle()
    }

    /// Input `i` says `w` without having anything to read: it stays idle if it is.
    pub(crate) fn raise(&mut self, i: usize, w: Watermark) -> Advance {
        let (state, own) = &mut self.inputs[i];
        if *state == Input::Ended || w <= *own {
            return Advance::default();
        }
        *own = w;
        self.settle()
    }

    /// Event time has come to `w` by other means than the inputs; true when that is news.
    pub(crate) fn pass(&mut self, w: Watermark) -> bool {
        let news = w > self.combined;
        self.combined = self.combined.max(w);
        news
    }

    /// The highest watermark given out.
    pub(crate) fn combined(&self) -> Watermark {
        self.combined
    }

    /// What input `i` has promised itself.
    pub(crate) fn own(&self, i: usize) -> Watermark {
        self.inputs[i].1
    }

    /// Input `i` has something to say again: it is not idle any more, and its old watermark counts. True when we were
    /// idle as a whole until now: whoever is downstream must hear of that before the next record.
    #[inline]
    pub(crate) fn active(&mut self, i: usize) -> bool {
        if self.inputs[i].0 != Input::Idle {
            return false;
        }
        self.inputs[i].0 = Input::Active;
        std::mem::take(&mut self.idle)
    }

    /// Everybody is idle, and that was said.
    pub(crate) fn is_idle(&self) -> bool {
        self.idle
    }

    /// Input `i` has nothing to say for a while.
    pub(crate) fn idle(&mut self, i: usize) -> Advance {
        if self.inputs[i].0 != Input::Active {
            return Advance::default();
        }
        self.inputs[i].0 = Input::Idle;
        self.settle()
    }

    /// Input `i` ended: it holds nobody back any more.
    pub(crate) fn end(&mut self, i: usize) -> Advance {
        self.inputs[i].0 = Input::Ended;
        self.settle()
    }

    pub(crate) fn settle(&mut self) -> Advance {
        // Who says the last watermark there is has nothing more to say than its end: that must not carry away those who are
        // idle, whose records would all be late.
        let of = |state: Input| {
            let open = self.inputs.iter().filter(move |(s, w)| *s == state && *w != Watermark::MAX);
            open.map(|(_, w)| *w)
        };
        let was_idle = self.idle;
        // With nobody active, what the idle ones promised last still holds: the furthest of it, as if that one had
        // fallen silent last. With everybody ended, the end itself follows and says whether to flush.
        let lowest = match (of(Input::Active).min(), of(Input::Idle).max()) {
            (Some(w), _) => {
                self.idle = false;
                w
            }
            (None, Some(w)) => {
                self.idle = true;
                w
            }
            (None, None) if self.inputs.iter().all(|(s, _)| *s == Input::Ended) => return Advance::default(),
            (None, None) => {
                self.idle = false;
                Watermark::MAX
            }
        };
        let to = (lowest > self.combined).then_some(lowest);
        self.combined = self.combined.max(lowest);
        Advance { to, idle: self.idle && !was_idle }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn to(ms: i64) -> Advance {
        Advance { to: Some(Watermark(ms)), idle: false }
    }
    const NOTHING: Advance = Advance { to: None, idle: false };

    #[test]
    fn the_slowest_active_input_decides() {
        let mut f = Frontier::new(2);
        assert_eq!(f.observe(0, Watermark(10)), NOTHING);
        assert_eq!(f.observe(1, Watermark(5)), to(5));
        assert_eq!(f.observe(1, Watermark(20)), to(10));
    }

    #[test]
    fn regressions_do_not_stall_it() {
        let mut f = Frontier::new(1);
        let seen: Vec<_> =
            [10, 9, 11, 10, 12].iter().filter_map(|w| f.observe(0, Watermark(*w)).to).collect();
        assert_eq!(seen, [Watermark(10), Watermark(11), Watermark(12)]);
    }

    #[test]
    fn an_idle_input_does_not_hold_back_and_comes_back() {
        let mut f = Frontier::new(2);
        f.observe(0, Watermark(100));
        assert_eq!(f.idle(1), to(100));
        assert!(!f.active(1), "the other one was active all the time");
        assert_eq!(f.observe(0, Watermark(200)), NOTHING);
        assert_eq!(f.observe(1, Watermark(150)), to(150));
    }

    #[test]
    fn total_silence_is_said_once_and_ends_with_a_watermark() {
        let mut f = Frontier::new(2);
        f.observe(0, Watermark(7));
        assert_eq!(f.idle(0), NOTHING);
        assert_eq!(f.idle(1), Advance { to: Some(Watermark(7)), idle: true });
        assert_eq!(f.idle(1), NOTHING);
        assert_eq!(f.observe(1, Watermark(8)), to(8));
        assert_eq!(f.idle(1), Advance { to: None, idle: true });
        assert!(f.active(0) && !f.active(0) && !f.active(1));
    }

    #[test]
    fn an_ended_input_holds_nobody_back() {
        let mut f = Frontier::new(2);
        f.observe(0, Watermark(7));
        assert_eq!(f.end(1), to(7));
        assert_eq!(f.end(0), NOTHING);
    }

    #[test]
    fn the_end_of_one_does_not_carry_an_idle_one_away() {
        let mut f = Frontier::new(2);
        f.observe(0, Watermark(7));
        assert_eq!(f.idle(0), NOTHING);
        assert_eq!(f.observe(1, Watermark(9)), to(9));
        assert_eq!(f.observe(1, Watermark::MAX), Advance { to: None, idle: true });
        assert_eq!(f.end(1), NOTHING);
        assert!(f.active(0));
        assert_eq!(f.observe(0, Watermark(12)), to(12));
        assert_eq!(f.observe(0, Watermark::MAX), to(Watermark::MAX.0));
    }

    #[test]
    fn what_an_idle_input_promises_does_not_wake_it() {
        let mut f = Frontier::new(2);
        f.observe(0, Watermark(7));
        f.observe(1, Watermark(9));
        f.idle(1);
        assert_eq!(f.raise(1, Watermark(8)), NOTHING, "it had promised more");
        assert_eq!(f.raise(1, Watermark(20)), NOTHING);
        assert_eq!(f.observe(0, Watermark(12)), to(12), "the idle one does not hold it back");
        assert_eq!(f.idle(0), Advance { to: Some(Watermark(20)), idle: true });
        assert_eq!(f.raise(1, Watermark(30)), to(30), "still idle");
        assert!(f.active(1));
    }

    #[test]
    fn time_that_has_passed_by_itself_is_not_gone_back_behind() {
        let mut f = Frontier::new(1);
        f.observe(0, Watermark(7));
        assert!(f.pass(Watermark(100)) && !f.pass(Watermark(100)) && !f.pass(Watermark(50)));
        assert_eq!((f.observe(0, Watermark(99)), f.combined()), (NOTHING, Watermark(100)));
        assert_eq!(f.observe(0, Watermark(101)), to(101));
    }

    proptest! {
        #[test]
        fn never_goes_back_and_never_passes_an_active_input(ops in proptest::collection::vec((0usize..3, 0u8..4, -50i64..50), 0..200)) {
            let mut f = Frontier::new(3);
            let mut last = Watermark::MIN;
            for (i, op, w) in ops {
                let advance = match op {
                    0 | 1 => f.observe(i, Watermark(w)),
                    2 => f.idle(i),
                    _ => { let _ = f.active(i); NOTHING }
                };
                if let Some(w) = advance.to {
                    prop_assert!(w > last);
                    last = w;
                    // Those active when it was given out had promised at least as much.
                    prop_assert!(f.inputs.iter().all(|(s, own)| *s != Input::Active || *own >= w));
                }
            }
        }
    }
}
