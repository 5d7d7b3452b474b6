//! Async I/O behind a `key_by`: the same operator, whose records stay with the key group of their key.

use std::marker::PhantomData;

use weir_engine::{
    Barrier, Closing, Collector, EndKind, HeldSignal, Key, Keyed, Operator, OperatorContext, Record, Result,
    SignalPort,
};
use weir_state::store::Snapshot;

use super::operator::{AsyncCalls, Calling};
use crate::aggregate::Kept;

/// [`AsyncCalls`] of values that come with their keys. After a restore a call is made again by whoever owns the key then.
pub(crate) struct KeyedCalls<K, T: Kept, C: Calling<T>> {
    calls: AsyncCalls<T, C>,
    _key: PhantomData<fn(K)>,
}

impl<K, T: Kept, C: Calling<T>> KeyedCalls<K, T, C> {
    pub(super) fn new(calls: AsyncCalls<T, C>) -> Self {
        KeyedCalls { calls, _key: PhantomData }
    }
}

impl<K, T: Kept, C: Calling<T>> Clone for KeyedCalls<K, T, C> {
    fn clone(&self) -> Self {
        KeyedCalls::new(self.calls.clone())
    }
}

impl<K: Key, T: Kept, C: Calling<T>> Operator<Keyed<K, T>> for KeyedCalls<K, T, C> {
    type Out = C::Out;
    const HOLDS_SIGNALS: bool = true;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.calls.open(cx)
    }

    #[inline]
    fn process(&mut self, record: Record<Keyed<K, T>>, _: &mut impl Collector<C::Out>) -> Result<()> {
        let Record { value: Keyed { hash, value, .. }, time } = record;
        self.calls.push_keyed(hash, Record { value, time })
    }

    fn on_batch_end(&mut self, out: &mut impl Collector<C::Out>) -> Result<()> {
        self.calls.on_batch_end(out)
    }

    fn on_quiet(&mut self, out: &mut impl Collector<C::Out>) -> Result<()> {
        self.calls.on_quiet(out)
    }

    fn wakes_at(&self) -> Option<i64> {
        self.calls.wakes_at()
    }

    fn hold(&mut self, signal: HeldSignal) {
        self.calls.hold(signal);
    }

    fn release(&mut self, out: &mut impl Collector<C::Out>) -> Result<Option<HeldSignal>> {
        self.calls.release(out)
    }

    fn is_full(&self) -> bool {
        self.calls.is_full()
    }

    fn snapshot(&mut self, barrier: Barrier, into: &mut Snapshot) -> Result<()> {
        self.calls.snapshot(barrier, into)
    }

    fn on_end(&mut self, kind: EndKind, out: &mut impl Collector<C::Out>) -> Result<()> {
        self.calls.on_end(kind, out)
    }

    fn sides(&mut self) -> Option<&mut dyn SignalPort> {
        self.calls.sides()
    }

    fn close(&mut self, outcome: Closing) {
        self.calls.close(outcome);
    }
}
