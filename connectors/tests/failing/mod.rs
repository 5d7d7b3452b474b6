//! An operator, a source and a sink that fail at given turns, around any of the steps they go through.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use weir_engine::prelude::*;
use weir_engine::{
    Barrier, Closing, Collector, Data, Notice, Operator, OperatorContext, Sink, Source, SourceBatch,
    SourceStatus,
};

/// Strikes at these turns, counted over all subtasks and lives.
#[derive(Clone)]
pub(crate) struct Trap {
    turn: Arc<AtomicU64>,
    at: Arc<Vec<u64>>,
}

impl Trap {
    pub(crate) fn at(turns: impl IntoIterator<Item = u64>) -> Self {
        Trap { turn: Arc::default(), at: Arc::new(turns.into_iter().collect()) }
    }

    fn step(&self) -> Result<()> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        if self.at.contains(&turn) {
            Err(TaskError::external(format!("struck at turn {turn}")))
        } else {
            Ok(())
        }
    }
}

/// Fails at some records.
#[derive(Clone)]
pub(crate) struct Failing(pub(crate) Trap);

impl<T: Data> Operator<T> for Failing {
    type Out = T;

    fn process(&mut self, record: Record<T>, out: &mut impl Collector<T>) -> Result<()> {
        self.0.step()?;
        out.emit(record)
    }
}

/// Fails at some polls.
#[derive(Clone)]
pub(crate) struct FailingSource<S>(pub(crate) S, pub(crate) Trap);

impl<S: Source> Source for FailingSource<S> {
    type Out = S::Out;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.0.open(cx)
    }
    fn poll(&mut self, out: &mut SourceBatch<S::Out>, budget: Duration) -> Result<SourceStatus> {
        let status = self.0.poll(out, budget)?;
        self.1.step()?;
        Ok(status)
    }
    fn positions(&mut self, barrier: Barrier) -> Result<Vec<(String, Value)>> {
        self.1.step()?;
        self.0.positions(barrier)
    }
    fn on_notice(&mut self, notice: Notice) -> Result<()> {
        self.1.step()?;
        self.0.on_notice(notice)
    }
    fn close(&mut self, outcome: Closing) {
        self.0.close(outcome);
    }
}

/// Fails before or after some steps of the protocol.
#[derive(Clone)]
pub(crate) struct FailingSink<S>(pub(crate) S, pub(crate) Trap);

impl<T: Data, S: Sink<T>> Sink<T> for FailingSink<S> {
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.0.open(cx)
    }
    fn write(&mut self, batch: &mut Vec<Record<T>>) -> Result<()> {
        self.0.write(batch)
    }
    fn flush(&mut self) -> Result<()> {
        self.1.step()?;
        self.0.flush()?;
        self.1.step()
    }
    fn prepare(&mut self, barrier: Barrier) -> Result<Option<Value>> {
        let prepared = self.0.prepare(barrier)?;
        self.1.step()?;
        Ok(prepared)
    }
    fn commit(&mut self, prepared: Value) -> Result<()> {
        self.1.step()?;
        self.0.commit(prepared)?;
        self.1.step()
    }
    fn recover(&mut self, prepared: Option<Vec<Value>>) -> Result<()> {
        let none = prepared.as_ref().is_none_or(Vec::is_empty);
        self.0.recover(prepared)?;
        if none { Ok(()) } else { self.1.step() }
    }
    fn close(&mut self, outcome: Closing) {
        self.0.close(outcome);
    }
}
