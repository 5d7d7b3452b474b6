//! The stage that ends a chain in a sink: gathers records into batches for it.
// HOT: one push per record.

use crate::context::TaskContext;
use crate::element::{Barrier, Data, EndKind, Record};
use crate::error::Result;
use crate::ids::OperatorUid;
use crate::operator::{Closing, Collector};
use crate::pipe::{Stage, blame, closing};
use crate::protocol::ProtocolCheck;
use crate::runtime::batch_size::STAGE;
use crate::runtime::stats::TaskStats;
use crate::sink::Sink;
use crate::time::Watermark;

pub(crate) struct SinkStage<T, S> {
    sink: S,
    uid: OperatorUid,
    buffer: Vec<Record<T>>,
    cx: TaskContext,
    opened: bool,
    check: ProtocolCheck,
}

impl<T: Data, S: Sink<T>> SinkStage<T, S> {
    pub(crate) fn new(sink: S, uid: OperatorUid, cx: TaskContext) -> Self {
        SinkStage {
            sink,
            uid,
            buffer: Vec::with_capacity(STAGE),
            cx,
            opened: false,
            check: ProtocolCheck::default(),
        }
    }

    fn write(&mut self) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let n = self.buffer.len() as u64;
        blame(&self.uid, || self.sink.write(&mut self.buffer))?;
        self.buffer.clear();
        TaskStats::add(&self.cx.stats.records_out, n);
        TaskStats::add(&self.cx.stats.batches_out, 1);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.write()?;
        blame(&self.uid, || self.sink.flush())
    }
}

impl<T: Data, S: Sink<T>> Collector<T> for SinkStage<T, S> {
    #[inline]
    fn emit(&mut self, record: Record<T>) -> Result<()> {
        self.check.passes();
        self.buffer.push(record);
        if self.buffer.len() >= STAGE { self.write() } else { Ok(()) }
    }
}

impl<T: Data, S: Sink<T>> Stage<T> for SinkStage<T, S> {
    fn open(&mut self, cx: &TaskContext) -> Result<()> {
        blame(&self.uid, || self.sink.open(&cx.of(&self.uid)))?;
        self.opened = true;
        Ok(())
    }
    fn batch_end(&mut self) -> Result<()> {
        self.write()
    }
    fn quiet(&mut self) -> Result<()> {
        self.write()
    }
    fn watermark(&mut self, w: Watermark) -> Result<()> {
        self.check.watermark(w);
        self.write()
    }
    fn idle(&mut self) -> Result<()> {
        self.check.passes();
        self.write()
    }
    fn active(&mut self) -> Result<()> {
        self.check.passes();
        Ok(())
    }
    fn barrier(&mut self, _: Barrier) -> Result<()> {
        self.check.passes();
        self.flush()
    }
    fn end(&mut self, _: EndKind) -> Result<()> {
        self.check.end();
        self.flush()
    }
    fn close(&mut self, outcome: Closing) {
        if std::mem::take(&mut self.opened) {
            closing(&self.uid, || self.sink.close(outcome));
        }
    }
}
