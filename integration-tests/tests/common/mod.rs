//! What the whole-job tests share: one-line operators, scripts of numbers, and how long anything may take.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::time::Duration;

use weir_engine::testkit::{Line, Probe};
use weir_engine::*;

pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Calls a closure per record; a one-line operator for these tests.
#[derive(Clone)]
pub(crate) struct Each<F>(pub(crate) F);

impl<T: Data, U: Data, F: FnMut(T) -> Result<U> + Clone + Send + 'static> Operator<T> for Each<F> {
    type Out = U;
    fn process(&mut self, r: Record<T>, out: &mut impl Collector<U>) -> Result<()> {
        let Record { value, time } = r;
        let value = (self.0)(value)?;
        out.emit(Record { value, time })
    }
}

pub(crate) fn each<T: Data, U: Data, P: Pipe<Out = T>>(
    s: Stream<T, P>,
    name: &str,
    f: impl FnMut(T) -> Result<U> + Clone + Send + 'static,
) -> Stream<U, Then<P, T, impl Operator<T, Out = U>>> {
    s.transform(OperatorInfo::named("each", name), Each(f))
}

pub(crate) fn tap<T: Data, P: Pipe<Out = T>>(
    s: Stream<T, P>,
    name: &str,
    probe: &Probe<T>,
) -> Stream<T, Then<P, T, Probe<T>>> {
    s.transform(OperatorInfo::named("probe", name), probe.clone())
}

pub(crate) fn numbers(n: u64) -> Vec<Line<u64>> {
    (0..n).map(|i| Line::Record(i, i as i64)).collect()
}
