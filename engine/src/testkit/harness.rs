//! `OpHarness`: one operator driven by hand, element by element, with everything it gives collected.
//! (over 400 lines: all that can happen to an operator, each with its example)

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weir_state::store::{LocalPart, RestoredPart, Snapshot};

use crate::checkpoint::RestoreFrom;

use crate::context::OperatorContext;
use crate::element::{Barrier, Data, Element, EndKind, Notice, Record};
use crate::error::Result;
use crate::ids::CheckpointId;
use crate::operator::{Closing, Collector, HeldSignal, Operator};
use crate::protocol::ProtocolCheck;
use crate::runtime::channel::{Peeked, Rx};
use crate::runtime::edge::{Edge, LayEdge, Partitioning};
use crate::side::SideSlot;
use crate::testkit::ManualClock;
use crate::time::{Clock, EventTime, Watermark};

/// Drives one subtask of one operator on the calling thread.
///
/// Signals reach the operator and its side outputs in the order that a task would give them. The operator is closed by
/// [`OpHarness::end`], not by a drop.
///
/// # Panics
/// Its methods do, in debug builds, when the protocol is broken: watermarks rise, nothing follows the end.
///
/// ```
/// use weir_engine::{EndKind, testkit::{OpHarness, Probe, Seen}};
/// let mut harness = OpHarness::new(Probe::new())?;
/// harness.batch([("a", 1), ("b", 2)])?;
/// harness.watermark(2)?;
/// harness.end(EndKind::Keep)?;
/// assert_eq!(harness.take_values(), ["a", "b"]);
/// assert_eq!(harness.op().seen_by(0)[2..4], [Seen::Watermark(2), Seen::End(EndKind::Keep)]);
/// # Ok::<(), weir_engine::TaskError>(())
/// ```
#[derive(Debug)]
pub struct OpHarness<In: Data, Op: Operator<In>> {
    op: Op,
    out: Collected<Op::Out>,
    check: ProtocolCheck,
    cx: OperatorContext,
    frozen: Snapshot,
    _in: std::marker::PhantomData<fn(In)>,
}

/// What one operator had to remember at a checkpoint, in a folder of its own that goes with it.
#[derive(Debug)]
pub struct Saved {
    part: RestoredPart,
}

impl Saved {
    fn write(cx: &OperatorContext, frozen: Snapshot) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("weir-saved-{}-{number}", std::process::id()));
        let store = cx.store()?;
        let local = store.write_out(frozen, &folder)?;
        let LocalPart { subtask, key_groups, format, tables, items, .. } = local;
        Ok(Saved { part: RestoredPart { subtask, key_groups, format, folder, tables, items } })
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        // It lies under the system's temporary folder: what cannot be removed now goes with that.
        let _ = std::fs::remove_dir_all(&self.part.folder);
    }
}

/// Something that an operator gave, or let pass; [`OpHarness::take_given`] tells them in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given<T> {
    /// A record.
    Record(Record<T>),
    /// A signal that went downstream.
    Signal(HeldSignal),
}

/// What came out, collected in memory.
#[derive(Debug)]
struct Collected<T>(Vec<Given<T>>);

impl<T> Collector<T> for Collected<T> {
    fn emit(&mut self, record: Record<T>) -> Result<()> {
        self.0.push(Given::Record(record));
        Ok(())
    }
}

/// What a side output gave: attach to the slot, give the operator that has it to an [`OpHarness`], then take.
#[derive(Debug)]
pub struct SideProbe<T> {
    channel: Rx<T>,
    records: Arc<Mutex<Vec<Record<T>>>>,
}

impl<T: Data> SideProbe<T> {
    /// Attaches to a side output; to be called before the harness opens the operator, whose slot it then is read in.
    pub fn attach(slot: &SideSlot<T>) -> Self {
        let edge = Edge::new();
        // Deep enough for any test that looks now and then; a full channel would wait for ever on one thread.
        edge.lay(1, 1, 1 << 16, Partitioning::Forward, (&"under-test".into(), &"side".into()));
        let channel = edge.take_rx(0).remove(0);
        slot.legs.lock().unwrap_or_else(PoisonError::into_inner).push(edge);
        SideProbe { channel, records: Arc::default() }
    }

    /// Takes what has arrived. A side output passes records on when its operator is quiet or gets a signal, or a batch
    /// of them is full.
    pub fn take(&self) -> Vec<Record<T>> {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        while let Peeked::Got(element) = self.channel.peek() {
            if let Element::Batch(batch) = element {
                records.extend(batch);
            }
        }
        std::mem::take(&mut *records)
    }
}

impl<In: Data, Op: Operator<In>> OpHarness<In, Op> {
    /// Opens `op` as the only subtask of the operator `under-test`.
    ///
    /// # Errors
    /// What `open` says.
    pub fn new(op: Op) -> Result<Self> {
        Self::with(op, &super::context("under-test", 0, 1))
    }

    /// Opens `op` with a context of the test's own.
    ///
    /// # Errors
    /// What `open` says.
    pub fn with(mut op: Op, cx: &OperatorContext) -> Result<Self> {
        op.open(cx)?;
        Ok(OpHarness {
            op,
            out: Collected(Vec::new()),
            check: ProtocolCheck::default(),
            cx: cx.clone(),
            frozen: Snapshot::default(),
            _in: std::marker::PhantomData,
        })
    }

    /// The operator itself.
    pub fn op(&mut self) -> &mut Op {
        &mut self.op
    }

    /// A record of `value` at `ms` (milliseconds since the epoch), as a batch of one.
    ///
    /// # Errors
    /// What the operator says; so for every method here.
    pub fn send(&mut self, value: In, ms: i64) -> Result<()> {
        self.batch([(value, ms)])
    }

    /// A batch.
    ///
    /// # Errors
    /// As for `send`.
    pub fn batch(&mut self, records: impl IntoIterator<Item = (In, i64)>) -> Result<()> {
        self.check.passes();
        for (value, ms) in records {
            self.op.process(Record { value, time: EventTime(ms) }, &mut self.out)?;
            if !Op::RELEASES_BETWEEN_BATCHES {
                self.release()?;
            }
        }
        self.op.on_batch_end(&mut self.out)?;
        self.release()
    }

    /// Lets an operator that holds signals back give what it may, as a task does after each call.
    fn release(&mut self) -> Result<()> {
        if Op::HOLDS_SIGNALS {
            while let Some(signal) = self.op.release(&mut self.out)? {
                self.pass(signal)?;
            }
        }
        Ok(())
    }

    /// A signal goes on, to the side outputs too.
    fn pass(&mut self, signal: HeldSignal) -> Result<()> {
        if let HeldSignal::Watermark(watermark) = signal {
            // What fired found what was there before it.
            self.cx.task_context().state.watermark(self.cx.uid(), watermark);
        }
        self.out.0.push(Given::Signal(signal));
        self.op.sides().map_or(Ok(()), |s| match signal {
            HeldSignal::Watermark(w) => s.watermark(w),
            HeldSignal::Idle => s.idle(),
            HeldSignal::Active => s.active(),
        })
    }

    /// A signal comes.
    fn signal(&mut self, signal: HeldSignal) -> Result<()> {
        if !Op::HOLDS_SIGNALS {
            return self.pass(signal);
        }
        self.op.hold(signal);
        self.release()
    }

    /// Nothing will come for a while; `false` ends that.
    ///
    /// # Errors
    /// As for `send`.
    pub fn idle(&mut self, idle: bool) -> Result<()> {
        self.check.passes();
        self.signal(if idle { HeldSignal::Idle } else { HeldSignal::Active })
    }

    /// True while the operator wants no more input.
    pub fn is_full(&self) -> bool {
        self.op.is_full()
    }

    /// True while the operator has more to give at once.
    pub fn has_more(&self) -> bool {
        self.op.has_more()
    }

    /// Nothing comes, for as long as it takes until `done`, which is asked every millisecond after [`OpHarness::quiet`]: for
    /// operators that other threads give something to do.
    ///
    /// # Errors
    /// As for `send`.
    ///
    /// # Panics
    /// When that is not so within `most`; the message says `what` was waited for.
    pub fn quiet_until(
        &mut self,
        most: Duration,
        what: &str,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> Result<()> {
        let began = std::time::Instant::now();
        loop {
            self.quiet()?;
            if done(self) {
                return Ok(());
            }
            assert!(began.elapsed() < most, "not within {most:?}: {what}");
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    /// How many records it gave that were not taken yet.
    pub fn given(&self) -> usize {
        self.out.0.iter().filter(|given| matches!(given, Given::Record(_))).count()
    }

    /// No input is ready.
    ///
    /// # Errors
    /// As for `send`.
    pub fn quiet(&mut self) -> Result<()> {
        self.op.on_quiet(&mut self.out)?;
        self.release()?;
        self.op.sides().map_or(Ok(()), |s| s.quiet())
    }

    /// When the operator wants to be woken though nothing comes.
    pub fn wakes_at(&self) -> Option<i64> {
        self.op.wakes_at()
    }

    /// Nothing comes while `clock`, which must be the operator's own ([`context_by`](super::context_by)), moves on by
    /// `time`: the operator is woken at each time it asks for, as a task would.
    ///
    /// # Errors
    /// As for `send`.
    ///
    /// # Panics
    /// When it asks a thousand times for a time that is past.
    ///
    /// ```
    /// # use {std::{sync::Arc, time::Duration}, weir_engine::testkit::{ManualClock, OpHarness, Probe, context_by}};
    /// let clock = ManualClock::at(0);
    /// let cx = context_by(Arc::new(clock.clone()), "look", 0, 1);
    /// let mut harness = OpHarness::with(Probe::<i64>::new(), &cx)?;
    /// harness.pause(&clock, Duration::from_secs(3_600))?;
    /// # Ok::<(), weir_engine::TaskError>(())
    /// ```
    pub fn pause(&mut self, clock: &ManualClock, time: Duration) -> Result<()> {
        let end = clock.now_ms().saturating_add(time.as_millis() as i64);
        let mut in_vain = 0;
        self.quiet()?;
        while let Some(at) = self.wakes_at().filter(|at| *at <= end) {
            let left = at.saturating_sub(clock.now_ms()).max(0);
            in_vain = if left > 0 { 0 } else { in_vain + 1 };
            assert!(in_vain < 1_000, "it is called at {at} again and again, and nothing comes of it");
            clock.advance(Duration::from_millis(left as u64));
            self.quiet()?;
        }
        clock.advance(Duration::from_millis(end.saturating_sub(clock.now_ms()).max(0) as u64));
        self.quiet()
    }

    /// A look at a batch before it comes.
    ///
    /// # Errors
    /// As for `send`.
    pub fn prefetch(&mut self, records: impl IntoIterator<Item = (In, i64)>) -> Result<()> {
        let batch: Vec<_> =
            records.into_iter().map(|(v, ms)| Record { value: v, time: EventTime(ms) }).collect();
        self.op.prefetch(&batch)
    }

    /// Event time advances to `ms` (milliseconds since the epoch). An operator that gives its results in parts gives all of them.
    ///
    /// # Errors
    /// As for `send`.
    pub fn watermark(&mut self, ms: i64) -> Result<()> {
        self.begin_watermark(ms)?;
        while self.op.has_more() {
            self.quiet()?;
        }
        Ok(())
    }

    /// Event time advances to `ms`. An operator that gives its results in parts gives the first of them, and the watermark waits:
    /// each [`OpHarness::quiet`] or batch gives more, with whatever the test does between.
    ///
    /// # Errors
    /// As for `send`.
    ///
    /// ```
    /// # use weir_engine::testkit::{OpHarness, Probe};
    /// let mut harness = OpHarness::new(Probe::<i64>::new())?;
    /// harness.begin_watermark(7)?;
    /// assert!(!harness.has_more());
    /// # Ok::<(), weir_engine::TaskError>(())
    /// ```
    pub fn begin_watermark(&mut self, ms: i64) -> Result<()> {
        self.check.watermark(Watermark(ms));
        self.op.on_watermark(Watermark(ms), &mut self.out)?;
        self.signal(HeldSignal::Watermark(Watermark(ms)))
    }

    /// Checkpoint `id` cuts here.
    ///
    /// # Errors
    /// As for `send`.
    pub fn barrier(&mut self, id: u64) -> Result<()> {
        self.check.passes();
        let barrier = Barrier { checkpoint: CheckpointId(id) };
        self.frozen = Snapshot::default();
        self.op.snapshot(barrier, &mut self.frozen)?;
        self.op.sides().map_or(Ok(()), |s| s.barrier(barrier))
    }

    /// Checkpoint `id` cuts here, is written out and completed; what it holds can be given to
    /// [`OpHarness::restored`]. The operator goes on.
    ///
    /// # Errors
    /// As for `send`, and when it cannot be written.
    ///
    /// ```
    /// # use weir_engine::testkit::{OpHarness, Probe};
    /// let mut before = OpHarness::new(Probe::<i64>::new())?;
    /// let saved = before.save(1)?;
    /// let after = OpHarness::restored(Probe::<i64>::new(), &[&saved], 0, 2)?;
    /// # drop(after);
    /// # Ok::<(), weir_engine::TaskError>(())
    /// ```
    pub fn save(&mut self, id: u64) -> Result<Saved> {
        self.barrier(id)?;
        let frozen = std::mem::take(&mut self.frozen);
        let saved = Saved::write(&self.cx, frozen)?;
        self.op.on_notice(Notice::Completed(CheckpointId(id)))?;
        Ok(saved)
    }

    /// Opens `op` as subtask `subtask` of `parallelism`, with what was saved by all subtasks there were.
    ///
    /// # Errors
    /// What `open` says; what was saved and is not asked for.
    pub fn restored(op: Op, saved: &[&Saved], subtask: usize, parallelism: usize) -> Result<Self> {
        let parts = saved.iter().map(|s| ("under-test".into(), s.part.clone())).collect();
        let from = RestoreFrom::Local(Arc::new(parts));
        let harness = Self::with(op, &super::context_with("under-test", subtask, parallelism, from))?;
        harness.cx.task_context().state.opened(harness.cx.uid())?;
        Ok(harness)
    }

    /// The input ends; a flush is preceded by the last watermark, as in a job.
    ///
    /// # Errors
    /// As for `send`.
    pub fn end(&mut self, kind: EndKind) -> Result<()> {
        self.end_then(kind, Closing::Ended)
    }

    /// As [`OpHarness::end`], and then the attempt fails: the checkpoint with what the operator remembers last did not complete.
    ///
    /// # Errors
    /// The operator's.
    pub fn end_in_vain(&mut self, kind: EndKind) -> Result<()> {
        self.end_then(kind, Closing::Stopped)
    }

    fn end_then(&mut self, kind: EndKind, closing: Closing) -> Result<()> {
        if kind == EndKind::Flush {
            self.watermark(Watermark::MAX.0)?;
        }
        self.check.end();
        self.op.on_end(kind, &mut self.out)?;
        self.release()?;
        self.frozen = Snapshot::default();
        self.op.snapshot(Barrier::LAST, &mut self.frozen)?;
        self.op.sides().map_or(Ok(()), |s| s.end(kind))?;
        self.op.close(closing);
        Ok(())
    }

    /// What the operator had to remember after [`OpHarness::end`], as a checkpoint that comes later holds it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn saved_at_end(&mut self) -> Result<Saved> {
        let frozen = std::mem::take(&mut self.frozen);
        Saved::write(&self.cx, frozen)
    }

    /// Takes what the operator gave since the last call, without the signals.
    pub fn take(&mut self) -> Vec<Record<Op::Out>> {
        let record = |given| if let Given::Record(record) = given { Some(record) } else { None };
        self.take_given().into_iter().filter_map(record).collect()
    }

    /// Takes what the operator gave since the last call, and the signals that went downstream between.
    ///
    /// ```
    /// # use weir_engine::{EventTime, HeldSignal, Record, Watermark, testkit::{Given, OpHarness, Probe}};
    /// let mut harness = OpHarness::new(Probe::new())?;
    /// harness.send("a", 1)?;
    /// harness.watermark(2)?;
    /// let watermark = Given::Signal(HeldSignal::Watermark(Watermark(2)));
    /// assert_eq!(harness.take_given(), [Given::Record(Record::new("a", EventTime(1))), watermark]);
    /// # Ok::<(), weir_engine::TaskError>(())
    /// ```
    pub fn take_given(&mut self) -> Vec<Given<Op::Out>> {
        std::mem::take(&mut self.out.0)
    }

    /// Like `take`, without the times.
    pub fn take_values(&mut self) -> Vec<Op::Out> {
        self.take().into_iter().map(|r| r.value).collect()
    }
}
