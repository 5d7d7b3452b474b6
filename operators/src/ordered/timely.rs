//! `Timely`: a process function that gets no late records: those are counted, and go to a late output if that is read.
// HOT: one comparison per record.

use std::fmt;

use weir_engine::{
    Barrier, Closing, Collector, Data, EndKind, EventTime, HeldSignal, Key, Keyed, Notice, Operator,
    OperatorContext, Record, Result, SideSlot, SignalPort, Watermark,
};
use weir_state::store::Snapshot;

use crate::late::{Late, no_event_time};
use crate::process::{Process, ProcessFunction};
use crate::progress;

/// The operator behind the keyed steps that need the order of event time.
///
/// *Late records*, those at or before the watermark, change no result: they go to the late output if that is read, and are counted as
/// `late_records` in any case. After a restore, what was late stays late.
pub(crate) struct Timely<K: Key, T: Data, F: ProcessFunction<K, T>> {
    inner: Process<K, T, F>,
    watermark: Watermark,
    late: Late<T>,
}

impl<K: Key, T: Data, F: ProcessFunction<K, T>> Timely<K, T, F> {
    pub(crate) fn new(function: F, late: SideSlot<T>) -> Self {
        Self::of(Process::new(function), Late::new(late))
    }

    fn of(inner: Process<K, T, F>, late: Late<T>) -> Self {
        Timely { inner, watermark: Watermark::MIN, late }
    }

    /// A record that is not simply on time.
    #[cold]
    fn untimely(&mut self, value: T, time: EventTime) -> Result<()> {
        if time == EventTime::NONE {
            return Err(no_event_time());
        }
        self.late.take(Record { value, time })
    }
}

impl<K: Key, T: Data, F: ProcessFunction<K, T>> Clone for Timely<K, T, F> {
    fn clone(&self) -> Self {
        Self::of(self.inner.clone(), self.late.clone())
    }
}

impl<K: Key, T: Data, F: ProcessFunction<K, T>> fmt::Debug for Timely<K, T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timely({:?}, {:?})", self.inner, self.watermark)
    }
}

impl<K: Key, T: Data, F: ProcessFunction<K, T>> Operator<Keyed<K, T>> for Timely<K, T, F> {
    type Out = F::Out;
    const HOLDS_SIGNALS: bool = <Process<K, T, F> as Operator<Keyed<K, T>>>::HOLDS_SIGNALS;
    const RELEASES_BETWEEN_BATCHES: bool =
        <Process<K, T, F> as Operator<Keyed<K, T>>>::RELEASES_BETWEEN_BATCHES;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.inner.open(cx)?;
        self.watermark = progress::restored(cx)?;
        self.late.open(cx);
        Ok(())
    }

    fn prefetch(&mut self, batch: &[Record<Keyed<K, T>>]) -> Result<()> {
        self.inner.prefetch(batch)
    }

    #[inline]
    fn process(&mut self, record: Record<Keyed<K, T>>, out: &mut impl Collector<F::Out>) -> Result<()> {
        // No time is before the first watermark, so this also finds records without one.
        if record.time.0 <= self.watermark.0 {
            return self.untimely(record.value.value, record.time);
        }
        self.inner.process(record, out)
    }

    fn on_batch_end(&mut self, out: &mut impl Collector<F::Out>) -> Result<()> {
        self.late.count();
        self.inner.on_batch_end(out)
    }

    fn on_quiet(&mut self, out: &mut impl Collector<F::Out>) -> Result<()> {
        self.inner.on_quiet(out)
    }

    fn wakes_at(&self) -> Option<i64> {
        self.inner.wakes_at()
    }

    fn on_watermark(&mut self, watermark: Watermark, out: &mut impl Collector<F::Out>) -> Result<()> {
        // After a restore event time first comes to where it was.
        self.watermark = self.watermark.max(watermark);
        self.inner.on_watermark(watermark, out)
    }

    fn hold(&mut self, signal: HeldSignal) {
        self.inner.hold(signal);
    }

    #[inline]
    fn release(&mut self, out: &mut impl Collector<F::Out>) -> Result<Option<HeldSignal>> {
        self.inner.release(out)
    }

    fn has_more(&self) -> bool {
        self.inner.has_more()
    }

    fn snapshot(&mut self, barrier: Barrier, into: &mut Snapshot) -> Result<()> {
        self.inner.snapshot(barrier, into)
    }

    fn on_notice(&mut self, notice: Notice) -> Result<()> {
        self.inner.on_notice(notice)
    }

    fn on_end(&mut self, kind: EndKind, out: &mut impl Collector<F::Out>) -> Result<()> {
        self.late.count();
        self.inner.on_end(kind, out)
    }

    fn sides(&mut self) -> Option<&mut dyn SignalPort> {
        self.late.signals()
    }

    fn close(&mut self, outcome: Closing) {
        self.inner.close(outcome);
    }
}
