//! Event time of one source subtask: stamps records, refuses those of impossible times, and says when a watermark is due.
// HOT: per batch, but for the extractor's loop and the one that finds the latest time of a run.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use weir_state::store::Snapshot;

use crate::context::OperatorContext;
use crate::dead_letter::BadRecords;
use crate::element::{Data, Record};
use crate::error::{Result, TaskError};
use crate::runtime::batch_size::{BATCH, STAGE};
use crate::runtime::drift::{DriftGroup, DriftSeat};
use crate::runtime::frontier::Advance;
use crate::runtime::input::Turn;
use crate::runtime::reading_time::ReadingTime;
use crate::runtime::silence::{Look, Silence, SilenceSeat};
use crate::runtime::timestamps::Timestamps;
use crate::source::{SourceBatch, SourceStatus, SplitId, SplitNews};
use crate::time::{EventTime, SharedClock, Watermark};
use crate::watermarks::marks::Marks;
use crate::watermarks::splits::SplitClocks;
use crate::watermarks::{Guard, Quarantined, TimeFault, WatermarkGenerator, Watermarks};

/// The list in a checkpoint that holds where each split's event time stands.
const EVENT_TIMES: &str = "event_times";

/// A watermark leaves at most this often, unless the source is quiet.
const WATERMARK_EVERY: Duration = Duration::from_millis(50);
/// In polls: as many as make eight full batches.
const WATERMARK_POLLS: u32 = if cfg!(feature = "explore") { 1 } else { 8 * (BATCH / STAGE) as u32 };

/// What sources of one job share about event time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared {
    pub(crate) drift: Option<Arc<DriftGroup>>,
    pub(crate) silence: Arc<Silence>,
}

/// A source's own name for a split.
pub(crate) type Names<'a> = &'a dyn Fn(SplitId) -> Option<String>;

pub(crate) struct TimeKeeper<F, G> {
    timestamps: F,
    watermarks: Watermarks<G>,
    shared: Shared,
    guard: Guard,
    clocks: SplitClocks<G>,
    clock: Option<SharedClock>,
    drift: Option<DriftSeat>,
    silence: Option<SilenceSeat>,
    /// The last silence: which it was, where the watermark stood when it was noticed, and how much of it was added to that.
    silent: Option<(u64, Watermark, Duration)>,
    restored: Marks,
    /// A split has begun where the checkpoint had it.
    begun: bool,
    /// The watermark to send when it is due; not sent yet.
    advanced: Option<Watermark>,
    polls: u32,
    sent_at: Duration,
    idle_said: bool,
    /// Idleness has just ended: say so before the batch.
    woke: bool,
    pub(crate) reading: ReadingTime,
}

impl<F, G: Clone> TimeKeeper<F, G> {
    pub(crate) fn new(timestamps: F, watermarks: Watermarks<G>, shared: Shared) -> Self {
        TimeKeeper {
            timestamps,
            guard: Guard::default(),
            clocks: SplitClocks::new(watermarks.generator.clone(), watermarks.rules.idle_after),
            watermarks,
            shared,
            clock: None,
            drift: None,
            silence: None,
            silent: None,
            restored: Marks::default(),
            begun: false,
            advanced: None,
            polls: 0,
            sent_at: Duration::ZERO,
            idle_said: false,
            woke: false,
            reading: ReadingTime::default(),
        }
    }

    pub(crate) fn open<T>(&mut self, cx: &OperatorContext) -> Result<()>
    where
        F: Timestamps<T>,
    {
        let rules = &self.watermarks.rules;
        self.guard = rules.guard(F::MUST);
        self.clock = Some(cx.clock().clone());
        let aligned = rules.aligned.as_ref().zip(self.shared.drift.as_ref());
        self.drift = aligned.map(|((_, limit_ms), group)| group.join(cx.attempt(), *limit_ms));
        self.silence = rules.silence.map(|_| self.shared.silence.join(cx.attempt()));
        self.restored = Marks::read(cx.restored(EVENT_TIMES), cx.subtask(), cx.parallelism())?;
        Ok(())
    }

    fn now_ms(&self) -> i64 {
        self.clock.as_ref().map_or(0, |clock| clock.now_ms())
    }

    /// True when the source is too far ahead of its group to read at `now`.
    pub(crate) fn is_held(&mut self, now: Duration) -> bool {
        let own = (!self.idle_said).then(|| self.clocks.watermark());
        let held = self.drift.as_ref().is_some_and(|seat| seat.is_held(own));
        if held {
            self.reading.held(now);
        }
        held
    }

    /// Puts the watermark into `pending` when one is due.
    pub(crate) fn when_due<T>(&mut self, now: Duration, pending: &mut VecDeque<Turn>)
    where
        G: WatermarkGenerator<T>,
    {
        if self.polls >= WATERMARK_POLLS || now.saturating_sub(self.sent_at) >= WATERMARK_EVERY {
            self.sent_at = now;
            let by_clock = self.clocks.on_clock::<T>(self.now_ms());
            self.advanced = by_clock.or(self.advanced);
            self.send(pending);
        }
    }

    /// What has advanced leaves.
    pub(crate) fn send(&mut self, pending: &mut VecDeque<Turn>) {
        if let Some(w) = self.advanced.take() {
            pending.push_back(Turn::Watermark(w));
            // A watermark counts as a sign of life, which this one is not.
            pending.extend(self.idle_said.then_some(Turn::Idle));
        }
        self.polls = 0;
    }

    fn advance(&mut self, advance: Advance, pending: &mut VecDeque<Turn>) {
        self.advanced = advance.to.or(self.advanced);
        if advance.idle && !self.idle_said {
            self.send(pending);
            self.idle_said = true;
            pending.push_back(Turn::Idle);
        }
    }

    /// Nothing to read just now: what has advanced leaves at once.
    pub(crate) fn quiet(&mut self, now: Duration, pending: &mut VecDeque<Turn>) {
        if self.clocks.no_splits() && !self.idle_said {
            self.advance(Advance { to: None, idle: true }, pending);
        }
        self.flush(now, pending);
    }

    /// Like `quiet`, when more may come at once: nobody is idle for that.
    pub(crate) fn flush(&mut self, now: Duration, pending: &mut VecDeque<Turn>) {
        if self.advanced.is_some() {
            self.sent_at = now;
            self.send(pending);
        }
    }

    /// The end of the input: it holds nobody any more.
    pub(crate) fn end(&mut self) {
        self.drift = None;
        self.silence = None;
    }

    fn place<T>(&mut self, id: SplitId, names: Names<'_>) -> usize
    where
        G: WatermarkGenerator<T>,
    {
        match self.clocks.find(id) {
            Some(i) => i,
            None => self.begin::<T>(id, names),
        }
    }

    #[cold]
    fn begin<T>(&mut self, id: SplitId, names: Names<'_>) -> usize
    where
        G: WatermarkGenerator<T>,
    {
        let mark = self.restored.of(|| names(id));
        self.begun |= mark.is_some();
        self.clocks.start::<T>(id, mark)
    }

    /// Takes a polled batch in: new splits, times, what is refused (it is given back), what has advanced.
    pub(crate) fn take_in<T: Data>(
        &mut self,
        batch: &mut SourceBatch<T>,
        now: Duration,
        names: Names<'_>,
        pending: &mut VecDeque<Turn>,
    ) -> Vec<Refused<T>>
    where
        F: Timestamps<T>,
        G: WatermarkGenerator<T>,
    {
        self.restored.claimed();
        for (id, _) in batch.splits.iter().filter(|(_, news)| *news == SplitNews::Started) {
            let new = self.clocks.find(*id).is_none();
            self.place::<T>(*id, names);
            // Its records are still to come, and may be of any time: downstream is to wait for them.
            let wakes = new && std::mem::take(&mut self.idle_said);
            self.woke |= wakes;
            self.begun |= wakes;
        }
        if batch.records.is_empty() && std::mem::take(&mut self.woke) {
            pending.push_back(Turn::Active);
        }
        if std::mem::take(&mut self.begun) {
            self.advanced = self.clocks.settle().to.or(self.advanced);
        }
        let refused = if batch.records.is_empty() { Vec::new() } else { self.observe(batch, names) };
        for (id, news) in std::mem::take(&mut batch.splits) {
            let i = self.place::<T>(id, names);
            match news {
                SplitNews::Started => {}
                SplitNews::Drained(at) => {
                    let more = batch.runs.iter().any(|(of, end)| *of == id && *end > at);
                    if !more {
                        self.clocks.drained(i, self.reading.at(now));
                    }
                }
                SplitNews::Finished => {
                    let advance = self.clocks.finished(i);
                    self.advance(advance, pending);
                }
            }
        }
        refused
    }

    fn observe<T: Data>(&mut self, batch: &mut SourceBatch<T>, names: Names<'_>) -> Vec<Refused<T>>
    where
        F: Timestamps<T>,
        G: WatermarkGenerator<T>,
    {
        self.timestamps.stamp(&mut batch.records);
        let now_ms = if self.guard.asks_the_clock() { self.now_ms() } else { 0 };
        let mut refused = Vec::new();
        let (mut start, mut run) = (0, 0);
        while run < batch.runs.len() {
            let (split, mut end) = batch.runs[run];
            let i = self.place::<T>(split, names);
            let mut to = latest(&batch.records[start..end]);
            if !self.guard.passes(&batch.records[start..end], to, self.clocks.latest(i), now_ms) {
                let taken = self.sift(batch, run, start, i, now_ms, names);
                end -= taken.len();
                to = latest(&batch.records[start..end]);
                refused.extend(taken);
            }
            if start < end {
                let advance = self.clocks.observe(i, &batch.records[start..end], to, now_ms);
                self.advanced = advance.to.or(self.advanced);
            }
            start = end;
            run += 1;
        }
        // A batch of which nothing is left wakes nobody.
        if !batch.records.is_empty() {
            self.woke |= std::mem::take(&mut self.idle_said);
        }
        refused
    }

    /// Takes what may not pass out of one run of the batch, and closes the gaps in what is said by place.
    #[cold]
    fn sift<T: Data>(
        &mut self,
        batch: &mut SourceBatch<T>,
        run: usize,
        start: usize,
        i: usize,
        now_ms: i64,
        names: Names<'_>,
    ) -> Vec<Refused<T>> {
        let (split, end) = batch.runs[run];
        let taken = self.guard.sift(&mut batch.records, (start, end), self.clocks.latest(i), now_ms);
        let before = |at: usize| taken.iter().filter(|(place, ..)| *place < at).count();
        for (_, end) in &mut batch.runs[run..] {
            *end -= before(*end);
        }
        for (_, news) in &mut batch.splits {
            if let SplitNews::Drained(at) = news {
                *at -= before(*at);
            }
        }
        let name = names(split).unwrap_or_else(|| format!("split {}", split.0));
        let refused = |(_, record, fault): (usize, Record<T>, TimeFault)| {
            let Record { value, time } = record;
            Refused { split, letter: Quarantined { value, time, split: name.clone(), fault } }
        };
        taken.into_iter().map(refused).collect()
    }

    /// After a poll that ended in `status`: who is silent, and since when.
    pub(crate) fn looked(
        &mut self,
        status: SourceStatus,
        gave: bool,
        now: Duration,
        pending: &mut VecDeque<Turn>,
    ) {
        let reading = self.reading.at(now);
        match status {
            SourceStatus::Idle(_) => self.clocks.all_drained(reading),
            SourceStatus::More | SourceStatus::End => self.clocks.more_to_come(),
        }
        // Only after a look into the splits: one that was not looked into for long may hold something by now.
        let idled = self.clocks.tick(reading);
        if gave {
            // Not idle as a whole: there is a batch.
            self.advanced = idled.to.or(self.advanced);
            self.polls += 1;
        } else {
            self.advance(idled, pending);
        }
        if self.silence.is_some() {
            self.hear_silence(gave, now, pending);
        }
    }

    /// In total silence event time goes on with the clock.
    fn hear_silence(&mut self, gave: bool, now: Duration, pending: &mut VecDeque<Turn>) {
        let found = match self.clocks.dry_since() {
            _ if gave => Look::Talks,
            Some(since) => {
                let lasts = self.reading.at(now).saturating_sub(since);
                Look::Dry { since: now.saturating_sub(lasts), looked: now }
            }
            None if self.clocks.no_splits() => Look::Nothing,
            None => Look::Talks,
        };
        let silent = self.silence.as_mut().and_then(|seat| seat.look(found, now));
        let bound = self.watermarks.rules.silence.unwrap_or(Duration::MAX);
        let Some((which, lasts)) = silent.filter(|(_, lasts)| *lasts >= bound) else { return };
        let idled = self.clocks.all_idle();
        self.advance(idled, pending);
        let (_, base, added) = (self.silent.filter(|(known, ..)| *known == which)).unwrap_or((
            which,
            self.clocks.watermark(),
            Duration::ZERO,
        ));
        if added.is_zero() || lasts.saturating_sub(added) >= WATERMARK_EVERY {
            self.silent = Some((which, base, lasts));
            if base != Watermark::MIN {
                let lasts = i64::try_from(lasts.as_millis()).unwrap_or(i64::MAX);
                let passed = self.clocks.pass(Watermark(base.0.saturating_add(lasts)));
                self.advanced = passed.or(self.advanced);
            }
        }
    }

    /// True once when idleness has ended: it is to be said before the batch.
    pub(crate) fn woke(&mut self) -> bool {
        std::mem::take(&mut self.woke)
    }

    /// What becomes of a record that was refused for this.
    pub(crate) fn policy(&self, fault: TimeFault, bad_records: BadRecords) -> BadRecords {
        match fault {
            TimeFault::WentBack { .. } => self.watermarks.rules.in_order.unwrap_or(bad_records),
            _ => bad_records,
        }
    }

    /// Where the splits stand goes into the checkpoint, of those that have a name.
    pub(crate) fn freeze<T>(&self, names: Names<'_>, frozen: &mut Snapshot) -> Result<()>
    where
        G: WatermarkGenerator<T>,
    {
        let own = self.clocks.marks::<T>().filter_map(|(id, mark)| Some((names(id)?, mark)));
        for (name, mark) in own.chain(self.restored.unclaimed()) {
            let mark = serde_json::to_value(&mark)
                .map_err(|e| TaskError::internal("the event time of a split is no JSON").caused_by(e))?;
            frozen.item(EVENT_TIMES, name, mark);
        }
        Ok(())
    }
}

/// A record that was refused for its time.
#[derive(Debug)]
pub(crate) struct Refused<T> {
    pub(crate) split: SplitId,
    pub(crate) letter: Quarantined<T>,
}

#[inline]
fn latest<T>(records: &[Record<T>]) -> EventTime {
    records.iter().map(|r| r.time).max().unwrap_or(EventTime::NONE)
}
