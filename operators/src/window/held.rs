//! `Held`: results are given in parts, and the signals behind them wait until all before them are given; what timers fire too.

use std::collections::VecDeque;

use weir_engine::{HeldSignal, OperatorContext, Watermark};
use weir_state::store::Snapshot;

use crate::progress;
use crate::window::tumbling::AT_ONCE;

/// How many results are given between two looks at the input, at most: twice what a full batch of input has records. In tests of this
/// crate few, so that all of them see parts.
const PART: usize = if cfg!(test) { 3 } else { 2_048 };

/// Where a record brings about several results parts are so many times as large, at most.
const EACH: usize = if cfg!(test) { 2 } else { 16 };

/// Where a record may bring about more than that, input waits while more signals than that do.
const MANY: usize = 256;

/// And at least.
const SMALL_PART: usize = if cfg!(test) { 1 } else { 64 };

/// What an operator says to the task while it gives results in parts.
///
/// Nothing here is the cursor: what is not given yet lies where it lay, in the windows that the watermark has ended or among the timers that
/// it has reached, and so is in the state. That a signal waits is kept too, since the tasks downstream have not had it when a barrier overtakes it.
#[derive(Debug, Default)]
pub(crate) struct Held {
    signals: VecDeque<HeldSignal>,
    /// How many results a record may bring about beside the first.
    more_each: usize,
    /// How many results a turn may give.
    part: usize,
    /// How many this turn may still give.
    left: usize,
    /// This turn gives no more, though there is more.
    spent: bool,
    /// How many records the batch at hand has, where that is known.
    came: Option<usize>,
    /// Watermarks up to this one are behind one that waits, or waited, since the restore.
    floor: Option<Watermark>,
}

impl Held {
    /// As it was at the checkpoint, at which event time was at `watermark`.
    pub(crate) fn restored(cx: &OperatorContext, watermark: Watermark) -> Self {
        let mut held = Held::default();
        // One of them may not have seen a watermark at all; then there is none to give, and nothing is over.
        if progress::was_held(cx) && watermark > Watermark::MIN {
            held.signals.push_back(HeldSignal::Watermark(watermark));
            held.floor = Some(watermark);
        }
        held
    }

    /// A record may bring about so many results.
    pub(crate) fn of_each(self, results: usize) -> Self {
        Held { more_each: results.clamp(1, EACH) - 1, ..self }
    }

    /// More signals wait than there should: reading on would bring only more of them.
    pub(crate) fn has_many(&self) -> bool {
        self.signals.len() > MANY
    }

    /// A signal waits, if it is not behind one that does already.
    pub(crate) fn hold(&mut self, signal: HeldSignal) {
        if let (HeldSignal::Watermark(watermark), Some(floor)) = (signal, self.floor)
            && watermark <= floor
        {
            return;
        }
        if !self.waits() {
            self.quiet();
        }
        self.signals.push_back(signal);
    }

    /// A batch of so many records is at hand.
    pub(crate) fn comes(&mut self, records: usize) {
        self.came = Some(records);
    }

    /// The batch has ended, and a part may be given. It is twice the batch: so that a window is given sooner than as much again can have
    /// come for the next ones, and a barrier waits no longer behind what came before it than in proportion to that.
    pub(crate) fn batch_end(&mut self) {
        let part = self.came.take().map_or(PART, |records| (2 * records).clamp(SMALL_PART, PART));
        self.turn(part);
    }

    fn turn(&mut self, part: usize) {
        let part = part.saturating_mul(1 + self.more_each);
        (self.part, self.left, self.spent) = (part, part, false);
    }

    /// There is no input, and a part may be given.
    pub(crate) fn quiet(&mut self) {
        self.turn(PART);
    }

    /// Nothing waits, or this turn has given its part.
    #[inline]
    pub(crate) fn rests(&self) -> bool {
        self.signals.is_empty() || self.spent
    }

    /// Something waits.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        !self.signals.is_empty()
    }

    /// What this watermark ends comes before the first signal that waits.
    pub(crate) fn until(&self) -> Option<Watermark> {
        match self.signals.front() {
            Some(HeldSignal::Watermark(watermark)) => Some(*watermark),
            _ => None,
        }
    }

    /// The watermarks that wait, the first to go on first.
    pub(crate) fn watermarks(&self) -> impl Iterator<Item = Watermark> {
        self.signals.iter().filter_map(|signal| match signal {
            HeldSignal::Watermark(watermark) => Some(*watermark),
            _ => None,
        })
    }

    /// How many results this turn might give at its beginning.
    pub(crate) fn part(&self) -> usize {
        self.part
    }

    /// How many to take out at a time.
    pub(crate) fn at_once(&self) -> usize {
        self.left.clamp(1, AT_ONCE)
    }

    /// Results were given.
    pub(crate) fn gave(&mut self, results: usize) {
        self.left = self.left.saturating_sub(results);
    }

    /// True when there is more to give, but not in this turn.
    pub(crate) fn is_spent(&mut self) -> bool {
        self.spent = self.left == 0;
        self.spent
    }

    /// All before the first signal was given.
    pub(crate) fn next(&mut self) -> Option<HeldSignal> {
        self.signals.pop_front()
    }

    /// The input has ended: all is given now, or nothing more if that is for another life.
    pub(crate) fn end(&mut self, leaves: bool) {
        self.turn(usize::MAX);
        self.spent = leaves;
    }

    /// Adds to the checkpoint where event time is, and whether downstream knows.
    pub(crate) fn keep(&self, watermark: Watermark, into: &mut Snapshot) {
        progress::keep(watermark, into);
        if self.waits() {
            progress::keep_held(into);
        }
    }
}

/// What all operators that give results in parts answer to the task in the same words: those with a `held`, a `late` output, the context as
/// `cx`, and `give`, which gives a part.
macro_rules! gives_in_parts {
    () => {
        #[inline]
        fn release(&mut self, out: &mut impl Collector<Self::Out>) -> Result<Option<HeldSignal>> {
            if self.held.rests() { Ok(None) } else { self.give(out) }
        }

        fn has_more(&self) -> bool {
            self.held.waits()
        }

        fn on_end(&mut self, kind: EndKind, _: &mut impl Collector<Self::Out>) -> Result<()> {
            self.late.count();
            let cx = self.cx.0.as_ref().ok_or_else(not_open)?;
            self.held.end(kind == EndKind::Keep && cx.takes_checkpoints());
            Ok(())
        }

        fn sides(&mut self) -> Option<&mut dyn SignalPort> {
            self.late.signals()
        }
    };
}
pub(crate) use gives_in_parts;

#[cfg(test)]
#[path = "held_tests.rs"]
mod tests;
