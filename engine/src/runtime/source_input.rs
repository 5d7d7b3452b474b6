//! Drives a source: polls it, stamps event time, keeps the watermark, the pace and the dead letters, obeys control
//! (over 400 lines: one turn is one decision over all of these).
// HOT: per batch, but for the extractor's loop.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use weir_state::store::Snapshot;

use crate::context::TaskContext;
use crate::dead_letter::{BadRecords, DeadLetter};
use crate::element::{Barrier, Data, EndKind, Notice, Record};
use crate::error::{Result, TaskError};
use crate::ids::OperatorUid;
use crate::operator::{Closing, Collector};
use crate::pipe::{blame, closing};
use crate::runtime::batch_size::{BATCH, STAGE};
use crate::runtime::frontier::Advance;
use crate::runtime::input::{Control, Input, Turn};
use crate::runtime::mail::Mailbox;
use crate::runtime::pace::Pace;
use crate::runtime::stats::TaskStats;
use crate::runtime::timestamps::Timestamps;
use crate::side::{SideOutput, SideSlot};
use crate::source::{Source, SourceBatch, SourceStatus, SplitNews};
use crate::task_state::{POSITIONS, TaskState};
use crate::time::{EventTime, Watermark};
use crate::watermarks::{SplitClocks, Watermarks};

/// What the DSL says about a source besides its code.
#[derive(Clone)]
pub(crate) struct SourceSettings {
    pub(crate) uid: OperatorUid,
    pub(crate) watermarks: Watermarks,
    pub(crate) max_rate: Option<f64>,
    pub(crate) bad_records: BadRecords,
    pub(crate) dead_letters: SideSlot<DeadLetter>,
}

pub(crate) struct SourceInput<S: Source, F> {
    source: S,
    timestamps: F,
    settings: SourceSettings,
    batch: SourceBatch<S::Out>,
    clocks: SplitClocks,
    pace: Option<Pace>,
    dead: Option<SideOutput<DeadLetter>>,
    pending: VecDeque<Turn>,
    opened: bool,
    /// The watermark to send when it is due; not sent yet.
    advanced: Option<Watermark>,
    polls_since_watermark: u32,
    watermark_sent_at: Duration,
    idle_said: bool,
    /// Idleness has just ended: say so before the batch.
    woke: bool,
    /// A batch was polled and waits for its turn.
    held: bool,
    state: Option<Arc<TaskState>>,
    retry_after: Duration,
    ending: Option<EndKind>,
    warned_at: Option<Duration>,
    /// When the last turn was handed out.
    left_at: Option<Duration>,
    /// Time that turns took beyond the usual.
    away: Duration,
}

/// A poll may take this long: the bound on how late control is heard.
const POLL_BUDGET: Duration = Duration::from_millis(20);
/// A watermark leaves at most this often, unless the source is quiet.
const WATERMARK_EVERY: Duration = Duration::from_millis(50);
/// In polls: as many as make eight full batches.
const WATERMARK_POLLS: u32 = if cfg!(feature = "explore") { 1 } else { 8 * (BATCH / STAGE) as u32 };
/// The longest wait between two looks at idleness.
const LONGEST_WAIT: Duration = Duration::from_millis(50);
/// A turn of the chain that takes longer is a stall, not reading.
const USUAL_TURN: Duration = Duration::from_millis(20);
const WARN_EVERY: Duration = Duration::from_secs(1);

impl<S: Source, F: Timestamps<S::Out>> SourceInput<S, F> {
    pub(crate) fn new(source: S, timestamps: F, settings: SourceSettings) -> Self {
        SourceInput {
            source,
            timestamps,
            clocks: SplitClocks::new(settings.watermarks.clone()),
            settings,
            batch: SourceBatch::new(STAGE),
            pace: None,
            dead: None,
            pending: VecDeque::with_capacity(4),
            opened: false,
            advanced: None,
            polls_since_watermark: 0,
            watermark_sent_at: Duration::ZERO,
            idle_said: false,
            woke: false,
            held: false,
            state: None,
            retry_after: Duration::ZERO,
            ending: None,
            warned_at: None,
            left_at: None,
            away: Duration::ZERO,
        }
    }

    /// How long the source has been free to read. While the chain behind it is busy or waits for its consumers nobody
    /// looks at the splits, so none of them is silent; what a turn takes when all is well does count.
    fn reading_time(&self, now: Duration) -> Duration {
        now.saturating_sub(self.away)
    }

    /// The chain gave the thread back at `now`.
    fn back(&mut self, now: Duration) {
        if let Some(left) = self.left_at.take() {
            self.away += now.saturating_sub(left).saturating_sub(USUAL_TURN);
        }
    }

    fn advance(&mut self, advance: Advance) {
        self.advanced = advance.to.or(self.advanced);
        if advance.idle && !self.idle_said {
            self.idle_said = true;
            self.send_watermark();
            self.pending.push_back(Turn::Idle);
        }
    }

    fn send_watermark(&mut self) {
        self.pending.extend(self.advanced.take().map(Turn::Watermark));
        self.polls_since_watermark = 0;
    }

    fn finish(&mut self, kind: EndKind) {
        if self.ending.is_some() {
            return;
        }
        self.ending = Some(kind);
        match kind {
            EndKind::Flush => self.pending.push_back(Turn::Watermark(Watermark::MAX)),
            EndKind::Keep => self.send_watermark(),
        }
        self.pending.push_back(Turn::End(kind));
    }

    /// Takes everything out of a polled batch but its records.
    fn settle_batch(&mut self, cx: &TaskContext, now: Duration) -> Result<()> {
        let now = self.reading_time(now);
        for (split, _) in self.batch.splits.iter().filter(|(_, news)| *news == SplitNews::Started) {
            self.clocks.started(*split);
        }
        if !self.batch.rejected.is_empty() {
            self.reject(cx)?;
        }
        if !self.batch.records.is_empty() {
            self.observe_records();
        }
        self.hear_of_splits(now);
        Ok(())
    }

    /// What became of splits in this poll, after their records.
    fn hear_of_splits(&mut self, now: Duration) {
        for (split, news) in std::mem::take(&mut self.batch.splits) {
            match news {
                SplitNews::Started => {}
                SplitNews::Drained(at) => {
                    let more = self.batch.runs.iter().any(|(of, end)| *of == split && *end > at);
                    if !more {
                        self.clocks.drained(split, now);
                    }
                }
                SplitNews::Finished => {
                    let advance = self.clocks.finished(split);
                    self.advance(advance);
                }
            }
        }
    }

    fn observe_records(&mut self) {
        self.timestamps.stamp(&mut self.batch.records);
        let mut start = 0;
        for run in 0..self.batch.runs.len() {
            let (split, end) = self.batch.runs[run];
            let latest = self.batch.records[start..end].iter().map(|r| r.time).max();
            start = end;
            let advance = self.clocks.observe(split, latest.unwrap_or(EventTime::NONE));
            self.advanced = advance.to.or(self.advanced);
        }
        self.woke |= std::mem::take(&mut self.idle_said);
    }

    #[cold]
    fn reject(&mut self, cx: &TaskContext) -> Result<()> {
        let uid = self.settings.uid.clone();
        let letters = std::mem::take(&mut self.batch.rejected);
        TaskStats::add(&cx.stats.dead_letters, letters.len() as u64);
        if self.settings.bad_records == BadRecords::Fail
            && let Some(l) = letters.first()
        {
            return Err(TaskError::user(format!(
                "cannot decode {} partition {} offset {}: {}; let it go to the dead letters instead with BadRecords::DeadLetter",
                l.origin, l.partition, l.offset, l.reason
            ))
            .at(&uid));
        }
        let now = cx.clock.elapsed();
        if self.warned_at.is_none_or(|at| now.saturating_sub(at) >= WARN_EVERY)
            && let Some(l) = letters.first()
        {
            self.warned_at = Some(now);
            tracing::warn!(
                operator = %uid, origin = %l.origin, partition = l.partition, offset = l.offset, reason = %l.reason,
                count = letters.len(), routed = self.settings.dead_letters.is_read(),
                "records that do not decode went to the dead letters"
            );
        }
        if let Some(dead) = &mut self.dead {
            for letter in letters {
                dead.emit(Record { value: letter.refused_by(&uid), time: EventTime::NONE })?;
            }
        }
        Ok(())
    }

    /// The dead-letter output hears the same signals as the main one.
    fn pass(&mut self, turn: Turn) -> Result<Turn> {
        if let Some(dead) = &mut self.dead {
            let port = dead.signals();
            match turn {
                Turn::Batch => Ok(()),
                Turn::Quiet => port.quiet(),
                Turn::Watermark(w) => port.watermark(w),
                Turn::Idle => port.idle(),
                Turn::Active => port.active(),
                Turn::Barrier(b) => port.barrier(b),
                Turn::Notice(_) => Ok(()),
                Turn::End(kind) => port.end(kind),
            }?;
        }
        match turn {
            Turn::Barrier(barrier) => self.freeze(barrier)?,
            Turn::End(_) => self.freeze(Barrier::LAST)?,
            Turn::Notice(notice) => blame(&self.settings.uid, || self.source.on_notice(notice))?,
            _ => {}
        }
        Ok(turn)
    }

    /// The source's positions go into the checkpoint: everything that was polled has been processed.
    fn freeze(&mut self, barrier: Barrier) -> Result<()> {
        let positions = blame(&self.settings.uid, || self.source.positions(barrier))?;
        let mut frozen = Snapshot::default();
        for (split, position) in positions {
            frozen.item(POSITIONS, split, position);
        }
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
            Control::Released | Control::LastFailed(_) => {}
        }
    }

    fn barrier(&mut self, b: Barrier) {
        if self.ending.is_none() {
            self.pending.push_back(Turn::Barrier(b));
        }
    }
}

impl<S: Source, F: Timestamps<S::Out>> Input<S::Out> for SourceInput<S, F>
where
    S::Out: Data,
{
    fn open(&mut self, cx: &TaskContext) -> Result<()> {
        let own = cx.of(&self.settings.uid);
        if self.settings.dead_letters.is_read() {
            self.dead = Some(self.settings.dead_letters.open(&own));
        }
        self.state = Some(cx.state.clone());
        blame(&self.settings.uid, || self.source.open(&own))?;
        self.opened = true;
        // A cap is for the source as a whole; its subtasks share it evenly.
        let share = cx.parallelism as f64;
        self.pace = self.settings.max_rate.map(|rate| Pace::new(rate / share, cx.clock.elapsed()));
        Ok(())
    }

    fn next(&mut self, batch: &mut Vec<Record<S::Out>>, cx: &TaskContext, mail: &Mailbox) -> Result<Turn> {
        let now = cx.clock.elapsed();
        self.back(now);
        let turn = self.turn(batch, cx, mail, now)?;
        if turn != Turn::Quiet {
            self.left_at = Some(cx.clock.elapsed());
        }
        Ok(turn)
    }

    fn wait(&mut self, cx: &TaskContext, mail: &Mailbox, most: Option<Duration>) -> Result<()> {
        let _idle = cx.stats.idle();
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

    fn close(&mut self, outcome: Closing) {
        if std::mem::take(&mut self.opened) {
            closing(&self.settings.uid, || self.source.close(outcome));
        }
    }
}

impl<S: Source, F: Timestamps<S::Out>> SourceInput<S, F> {
    /// The next turn, as seen at `now`.
    fn turn(
        &mut self,
        batch: &mut Vec<Record<S::Out>>,
        cx: &TaskContext,
        mail: &Mailbox,
        now: Duration,
    ) -> Result<Turn> {
        if std::mem::take(&mut self.held) {
            return Ok(Turn::Batch);
        }
        loop {
            if cx.cancel.is_cancelled() {
                return Err(TaskError::cancelled());
            }
            while let Some(control) = mail.take() {
                self.on_mail(control);
            }
            if let Some(turn) = self.pending.pop_front() {
                return self.pass(turn);
            }
            if let Some(b) = self.source.external_barrier() {
                self.barrier(b);
                continue;
            }
            if self.polls_since_watermark >= WATERMARK_POLLS
                || now.saturating_sub(self.watermark_sent_at) >= WATERMARK_EVERY
            {
                self.watermark_sent_at = now;
                self.send_watermark();
                if !self.pending.is_empty() {
                    continue;
                }
            }
            let limit = self.pace.as_mut().map_or(STAGE, |pace| pace.allowed(STAGE, now));
            if limit == 0 {
                self.retry_after = self.pace.as_ref().map_or(LONGEST_WAIT, Pace::until_next);
                return self.quiet(now, Advance::default());
            }
            self.batch.clear(limit);
            std::mem::swap(&mut self.batch.records, batch);
            let uid = self.settings.uid.clone();
            let settled = blame(&uid, || {
                let status = self.source.poll(&mut self.batch, POLL_BUDGET)?;
                if let Some(pace) = &mut self.pace {
                    pace.take(self.batch.records.len() + self.batch.rejected.len());
                }
                self.settle_batch(cx, now)?;
                Ok(status)
            });
            std::mem::swap(&mut self.batch.records, batch);
            let status = settled?;
            match status {
                SourceStatus::Idle(_) => self.clocks.all_drained(self.reading_time(now)),
                SourceStatus::More | SourceStatus::End => self.clocks.more_to_come(),
            }
            // Only after a look into the splits: one that was not looked into for long may hold something by now.
            let idled = self.clocks.tick(self.reading_time(now));
            if status == SourceStatus::End {
                self.finish(EndKind::Flush);
            }
            if !batch.is_empty() {
                // Not idle as a whole: there is a batch.
                self.advanced = idled.to.or(self.advanced);
                self.polls_since_watermark += 1;
                if std::mem::take(&mut self.woke) {
                    self.held = true;
                    return self.pass(Turn::Active);
                }
                return Ok(Turn::Batch);
            }
            match status {
                SourceStatus::More | SourceStatus::End => self.advance(idled),
                SourceStatus::Idle(retry_after) => {
                    self.retry_after = retry_after;
                    return self.quiet(now, idled);
                }
            }
        }
    }

    /// Nothing to read just now: what has advanced leaves at once.
    fn quiet(&mut self, now: Duration, advance: Advance) -> Result<Turn> {
        self.advance(advance);
        if self.clocks.no_splits() && !self.idle_said {
            self.advance(Advance { to: None, idle: true });
        }
        if self.advanced.is_some() {
            self.watermark_sent_at = now;
            self.send_watermark();
        }
        let first = self.pending.pop_front();
        match first {
            Some(turn) => self.pass(turn),
            None => self.pass(Turn::Quiet),
        }
    }
}
