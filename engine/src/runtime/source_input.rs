//! Drives a source: polls it, keeps its event time, its pace and what it refuses, obeys control
//! (over 400 lines: a good tenth of it are its tests, which need its inside).
// HOT: per batch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use weir_state::store::Snapshot;

use crate::context::TaskContext;
use crate::dead_letter::{BadRecords, DeadLetter};
use crate::element::{Barrier, Data, EndKind, Notice, Record};
use crate::error::{Result, TaskError};
use crate::ids::OperatorUid;
use crate::operator::Closing;
use crate::pipe::{blame, closing};
use crate::runtime::batch_size::STAGE;
use crate::runtime::input::{Control, Input, Turn};
use crate::runtime::mail::Mailbox;
use crate::runtime::pace::Pace;
use crate::runtime::refusals::Refusals;
use crate::runtime::time_keeper::{Shared, TimeKeeper};
use crate::runtime::timestamps::Timestamps;
use crate::side::SideSlot;
use crate::source::{Source, SourceBatch, SourceStatus};
use crate::task_state::{POSITIONS, TaskState};
use crate::time::Watermark;
use crate::watermarks::{Quarantined, WatermarkGenerator, Watermarks};

/// What the DSL says about a source besides its code.
#[derive(Clone)]
pub(crate) struct SourceSettings<T> {
    pub(crate) uid: OperatorUid,
    pub(crate) max_rate: Option<f64>,
    pub(crate) bad_records: BadRecords,
    pub(crate) dead_letters: SideSlot<DeadLetter>,
    pub(crate) quarantine: SideSlot<Quarantined<T>>,
}

// Aligned as tasks are.
#[repr(align(128))]
pub(crate) struct SourceInput<S: Source, F, G> {
    source: S,
    settings: SourceSettings<S::Out>,
    batch: SourceBatch<S::Out>,
    time: TimeKeeper<F, G>,
    pace: Option<Pace>,
    refusals: Option<Refusals<S::Out>>,
    pending: VecDeque<Turn>,
    opened: bool,
    /// A batch was polled and waits for its turn.
    waiting: bool,
    /// It does not read just now, to let others of its group catch up.
    held: bool,
    state: Option<Arc<TaskState>>,
    retry_after: Duration,
    ending: Option<EndKind>,
    /// What the end consists of.
    last: VecDeque<Turn>,
    /// Some of it was handed on.
    last_begun: bool,
}

/// A poll may take this long: the bound on how late control is heard.
const POLL_BUDGET: Duration = Duration::from_millis(20);
/// The longest wait between two looks at idleness.
const LONGEST_WAIT: Duration = Duration::from_millis(50);
/// Between two looks at whether the others have caught up.
const HELD_FOR: Duration = Duration::from_millis(5);

impl<S: Source, F: Timestamps<S::Out>, G: WatermarkGenerator<S::Out>> SourceInput<S, F, G> {
    pub(crate) fn new(
        source: S,
        timestamps: F,
        watermarks: Watermarks<G>,
        settings: SourceSettings<S::Out>,
        shared: Shared,
    ) -> Self {
        SourceInput {
            source,
            settings,
            batch: SourceBatch::new(STAGE),
            time: TimeKeeper::new(timestamps, watermarks, shared),
            pace: None,
            refusals: None,
            pending: VecDeque::with_capacity(4),
            opened: false,
            waiting: false,
            held: false,
            state: None,
            retry_after: Duration::ZERO,
            ending: None,
            last: VecDeque::with_capacity(3),
            last_begun: false,
        }
    }

    fn finish(&mut self, kind: EndKind) {
        if self.ending.is_some() {
            return;
        }
        self.ending = Some(kind);
        self.time.end();
        match kind {
            EndKind::Flush => self.last.push_back(Turn::Watermark(Watermark::MAX)),
            EndKind::Keep => self.time.send(&mut self.last),
        }
        self.last.push_back(Turn::End(kind));
    }

    /// Takes everything out of a polled batch but the records that may go on.
    fn settle_batch(&mut self, now: Duration) -> Result<()> {
        let Some(refusals) = &mut self.refusals else { return Ok(()) };
        if !self.batch.rejected.is_empty() {
            let letters = std::mem::take(&mut self.batch.rejected);
            refusals.undecoded(letters, self.settings.bad_records)?;
        }
        let source = &self.source;
        let names = |split| source.split_name(split);
        let refused = self.time.take_in(&mut self.batch, now, &names, &mut self.pending);
        if refused.is_empty() {
            return Ok(());
        }
        let (time, bad_records) = (&self.time, self.settings.bad_records);
        refusals.untimely(refused, |fault| time.policy(fault, bad_records))
    }

    /// The outputs of what is refused hear the same signals as the main one.
    fn pass(&mut self, turn: Turn) -> Result<Turn> {
        self.refusals.as_mut().map_or(Ok(()), |refusals| refusals.pass(turn))?;
        match turn {
            Turn::Barrier(barrier) => self.freeze(barrier)?,
            Turn::End(_) => self.freeze(Barrier::LAST)?,
            Turn::Notice(notice) => blame(&self.settings.uid, || self.source.on_notice(notice))?,
            _ => {}
        }
        Ok(turn)
    }

    /// The source's positions go into the checkpoint, and where event time stands: everything that was polled has been
    /// processed.
    fn freeze(&mut self, barrier: Barrier) -> Result<()> {
        if let Some(state) = self.state.as_ref().filter(|_| barrier != Barrier::LAST) {
            state.stands_still(barrier);
        }
        let positions = blame(&self.settings.uid, || self.source.positions(barrier))?;
        let mut frozen = Snapshot::default();
        for (split, position) in positions {
            frozen.item(POSITIONS, split, position);
        }
        let source = &self.source;
        self.time.freeze::<S::Out>(&|split| source.split_name(split), &mut frozen)?;
        if let Some(state) = &self.state {
            state.froze(&self.settings.uid, frozen);
        }
        Ok(())
    }

    fn on_mail(&mut self, control: Control) {
        match control {
            Control::Run => {}
            Control::Barrier(b) => self.barrier(b),
            Control::Drain(kind) => self.finish(kind),
            Control::Notice(notice) => self.pending.push_back(Turn::Notice(notice)),
            // That is for a task that has ended.
            Control::Released | Control::LastFailed(_) | Control::FreezeLast => {}
        }
    }

    /// The end counts as a barrier, once it is under way.
    fn barrier(&mut self, b: Barrier) {
        if !self.last_begun {
            self.pending.push_back(Turn::Barrier(b));
        }
    }

    /// What is to be handed on: the end comes after all else.
    fn next_pending(&mut self) -> Option<Turn> {
        self.pending.pop_front().or_else(|| {
            let turn = self.last.pop_front();
            self.last_begun |= turn.is_some();
            turn
        })
    }

    /// The next turn, as seen at `now`.
    fn turn(
        &mut self,
        batch: &mut Vec<Record<S::Out>>,
        cx: &TaskContext,
        mail: &Mailbox,
        now: Duration,
    ) -> Result<Turn> {
        if std::mem::take(&mut self.waiting) {
            return Ok(Turn::Batch);
        }
        loop {
            if cx.cancel.is_cancelled() {
                return Err(TaskError::cancelled());
            }
            while let Some(control) = mail.take() {
                self.on_mail(control);
            }
            if let Some(turn) = self.next_pending() {
                return self.pass(turn);
            }
            if let Some(b) = self.source.external_barrier() {
                self.barrier(b);
                continue;
            }
            self.time.when_due::<S::Out>(now, &mut self.pending);
            if !self.pending.is_empty() {
                continue;
            }
            self.held = self.time.is_held(now);
            if self.held {
                self.retry_after = HELD_FOR;
                return self.quiet(now);
            }
            let limit = self.pace.as_mut().map_or(STAGE, |pace| pace.allowed(STAGE, now));
            if limit == 0 {
                self.retry_after = self.pace.as_ref().map_or(LONGEST_WAIT, Pace::until_next);
                return self.quiet(now);
            }
            self.batch.clear(limit);
            std::mem::swap(&mut self.batch.records, batch);
            let polled = self.poll(now);
            std::mem::swap(&mut self.batch.records, batch);
            let status = polled?;
            self.time.looked(status, !batch.is_empty(), now, &mut self.pending);
            if status == SourceStatus::End {
                self.finish(EndKind::Flush);
            }
            if !batch.is_empty() {
                if self.time.woke() {
                    self.waiting = true;
                    return self.pass(Turn::Active);
                }
                return Ok(Turn::Batch);
            }
            match status {
                SourceStatus::End => {}
                SourceStatus::More => {
                    // No input is ready, for all that more may come at once: without a pause the chain goes on with what it
                    // holds back, and with what is due by the clock.
                    self.retry_after = Duration::ZERO;
                    self.time.flush(now, &mut self.pending);
                    return self.next_pending_or_quiet();
                }
                SourceStatus::Idle(retry_after) => {
                    self.retry_after = retry_after;
                    return self.quiet(now);
                }
            }
        }
    }

    fn poll(&mut self, now: Duration) -> Result<SourceStatus> {
        let uid = self.settings.uid.clone();
        blame(&uid, || {
            let status = self.source.poll(&mut self.batch, POLL_BUDGET)?;
            if let Some(pace) = &mut self.pace {
                pace.take(self.batch.records.len() + self.batch.rejected.len());
            }
            self.settle_batch(now)?;
            Ok(status)
        })
    }

    /// Nothing to read just now: what has advanced leaves at once.
    fn quiet(&mut self, now: Duration) -> Result<Turn> {
        self.time.quiet(now, &mut self.pending);
        self.next_pending_or_quiet()
    }

    fn next_pending_or_quiet(&mut self) -> Result<Turn> {
        let turn = self.pending.pop_front().unwrap_or(Turn::Quiet);
        self.pass(turn)
    }
}

impl<S: Source, F: Timestamps<S::Out>, G: WatermarkGenerator<S::Out>> Input<S::Out> for SourceInput<S, F, G>
where
    S::Out: Data,
{
    fn open(&mut self, cx: &TaskContext) -> Result<()> {
        let own = cx.of(&self.settings.uid);
        self.refusals = Some(Refusals::open(&self.settings, &own));
        self.state = Some(cx.state.clone());
        self.time.open::<S::Out>(&own)?;
        blame(&self.settings.uid, || self.source.open(&own))?;
        self.opened = true;
        // A cap is for the source as a whole; its subtasks share it evenly.
        let share = cx.parallelism as f64;
        self.pace = self.settings.max_rate.map(|rate| Pace::new(rate / share, cx.clock.elapsed()));
        Ok(())
    }

    fn next(&mut self, batch: &mut Vec<Record<S::Out>>, cx: &TaskContext, mail: &Mailbox) -> Result<Turn> {
        let now = cx.clock.elapsed();
        self.time.reading.back(now);
        let turn = self.turn(batch, cx, mail, now)?;
        if turn != Turn::Quiet {
            self.time.reading.left(cx.clock.elapsed());
        }
        Ok(turn)
    }

    fn next_order(&mut self, _: &mut Vec<Record<S::Out>>, cx: &TaskContext, mail: &Mailbox) -> Result<Turn> {
        // It could not read: that is no silence of its splits.
        let now = cx.clock.elapsed();
        self.time.reading.back(now);
        self.time.reading.held(now);
        if std::mem::take(&mut self.waiting) {
            return Ok(Turn::Batch);
        }
        while let Some(control) = mail.take() {
            self.on_mail(control);
        }
        if self.pending.is_empty()
            && let Some(b) = self.source.external_barrier()
        {
            self.barrier(b);
        }
        // A flush waits for what the chain holds. While that has no room it waits for itself, and a barrier would wait for both; so the
        // end stays here until there is room. To end for another life is to hand on what has no room: that is done at once.
        let held = self.ending == Some(EndKind::Flush) && !self.last_begun;
        let turn = if held { self.pending.pop_front() } else { self.next_pending() };
        turn.map_or(Ok(Turn::Quiet), |turn| self.pass(turn))
    }

    fn wait(&mut self, cx: &TaskContext, mail: &Mailbox, most: Option<Duration>) -> Result<()> {
        // Held back by those that are slower: that is pressure, not want of input.
        let _waiting = if self.held { cx.stats.blocked(&self.settings.uid) } else { cx.stats.idle() };
        if mail.has_mail() {
            Ok(())
        } else {
            // Idleness is looked at again before long, whatever else there is to wait for.
            let most = most.unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT);
            mail.bell.wait(Some(self.retry_after.min(most)), &cx.cancel)
        }
    }

    fn notice(&mut self, notice: Notice) -> Result<()> {
        blame(&self.settings.uid, || self.source.on_notice(notice))
    }

    fn freeze_last(&mut self) -> Result<()> {
        self.freeze(Barrier::LAST)
    }

    fn close(&mut self, outcome: Closing) {
        if std::mem::take(&mut self.opened) {
            closing(&self.settings.uid, || self.source.close(outcome));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::CheckpointId;
    use crate::runtime::mail::mailbox;
    use crate::runtime::timestamps::SourceTime;
    use crate::testkit::{ManualClock, ScriptSource, task_context};
    use crate::watermarks::ByLatest;

    fn input(source: ScriptSource<i64>) -> SourceInput<ScriptSource<i64>, SourceTime, ByLatest> {
        let settings = SourceSettings {
            uid: "in".into(),
            max_rate: None,
            bad_records: BadRecords::default(),
            dead_letters: SideSlot::default(),
            quarantine: SideSlot::default(),
        };
        let watermarks = Watermarks::monotonic().idle_after(Duration::from_millis(100));
        SourceInput::new(source, SourceTime, watermarks, settings, Shared::default())
    }

    #[test]
    fn while_the_chain_wants_no_input_a_flush_waits_and_a_barrier_does_not() {
        let (mut input, (sender, mail)) = (input(ScriptSource::of([(1, 0)])), mailbox());
        let (cx, mut batch) = (task_context("in"), Vec::new());
        input.open(&cx).unwrap();
        assert_eq!(input.next(&mut batch, &cx, &mail).unwrap(), Turn::Batch);
        batch.clear();
        sender.post(Control::Drain(EndKind::Flush));
        let ends = |turn: &Turn| matches!(turn, Turn::End(_) | Turn::Watermark(Watermark::MAX));
        let order = |input: &mut SourceInput<_, _, _>| input.next_order(&mut Vec::new(), &cx, &mail).unwrap();
        while Some(order(&mut input))
            .filter(|turn| *turn != Turn::Quiet)
            .inspect(|t| assert!(!ends(t)))
            .is_some()
        {}
        let barrier = Barrier { checkpoint: CheckpointId(7) };
        sender.post(Control::Barrier(barrier));
        assert_eq!(order(&mut input), Turn::Barrier(barrier));
        assert_eq!(order(&mut input), Turn::Quiet);
        // There is room: the end is not parted by anything.
        assert_eq!(input.next(&mut batch, &cx, &mail).unwrap(), Turn::Watermark(Watermark::MAX));
        sender.post(Control::Barrier(Barrier { checkpoint: CheckpointId(8) }));
        assert_eq!(order(&mut input), Turn::End(EndKind::Flush));
    }

    #[test]
    fn while_the_chain_wants_no_input_no_split_falls_silent() {
        let mut input = input(ScriptSource::of([(1, 0)]).endless());
        let (clock, (_sender, mail)) = (ManualClock::at(0), mailbox());
        let cx = TaskContext { clock: Arc::new(clock.clone()), ..task_context("in") };
        let mut batch = Vec::new();
        input.open(&cx).unwrap();
        assert_eq!(input.next(&mut batch, &cx, &mail).unwrap(), Turn::Batch);
        // Each look comes sooner than a turn of the chain that would count as a stall.
        for _ in 0..100 {
            clock.advance(Duration::from_millis(15));
            assert_eq!(input.next_order(&mut batch, &cx, &mail).unwrap(), Turn::Quiet);
        }
        let mut says_idle = || {
            let mut turns = std::iter::from_fn(|| {
                batch.clear();
                Some(input.next(&mut batch, &cx, &mail).unwrap()).filter(|turn| *turn != Turn::Quiet)
            });
            turns.any(|turn| turn == Turn::Idle)
        };
        assert!(!says_idle());
        clock.advance(Duration::from_millis(100));
        assert!(says_idle(), "now it could be read, and gave nothing");
    }
}
