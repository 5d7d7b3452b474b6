//! The stage that ends a chain in a sink: gathers records into batches for it.
// HOT: one push per record.

use std::collections::BTreeMap;

use weir_state::store::Snapshot;

use crate::context::{OperatorContext, TaskContext};
use crate::element::{Barrier, Data, EndKind, Notice, Record};
use crate::error::{Result, TaskError};
use crate::ids::{CheckpointId, OperatorUid};
use crate::operator::{Closing, Collector};
use crate::pipe::{Stage, blame, closing};
use crate::protocol::ProtocolCheck;
use crate::runtime::batch_size::STAGE;
use crate::runtime::stats::{Committed, TaskStats};
use crate::sink::{NoCommit, Sink};
use crate::time::Watermark;

/// The list in a checkpoint that holds what a sink prepared and has not committed yet.
const PREPARED: &str = "prepared";

pub(crate) struct SinkStage<T, S> {
    sink: S,
    uid: OperatorUid,
    buffer: Vec<Record<T>>,
    cx: TaskContext,
    /// By checkpoint, what waits for it to be complete.
    prepared: BTreeMap<CheckpointId, serde_json::Value>,
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
            prepared: BTreeMap::new(),
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

    /// Writes out what is held, and puts what has to be committed into the checkpoint.
    fn cut(&mut self, barrier: Barrier) -> Result<()> {
        self.write()?;
        blame(&self.uid, || {
            self.sink.flush()?;
            if let Some(prepared) = self.sink.prepare(barrier)? {
                self.prepared.insert(barrier.checkpoint, prepared);
            }
            Ok(())
        })?;
        self.freeze();
        // Without checkpoints nobody will ever say that one is complete: the end is.
        if barrier == Barrier::LAST && !self.cx.state.takes_checkpoints() {
            self.commit(Barrier::LAST.checkpoint)?;
        }
        Ok(())
    }

    /// What is prepared goes into the checkpoint.
    fn freeze(&self) {
        let mut frozen = Snapshot::default();
        for (checkpoint, prepared) in &self.prepared {
            frozen.item(PREPARED, checkpoint.to_string(), prepared.clone());
        }
        self.cx.state.froze(&self.uid, frozen);
    }

    /// What was prepared for this checkpoint or an earlier one is committed, oldest first.
    fn commit(&mut self, complete: CheckpointId) -> Result<()> {
        while let Some(first) = self.prepared.first_entry().filter(|first| *first.key() <= complete) {
            let prepared = first.remove();
            fail::fail_point!("sink::before_commit", |_| Err(TaskError::internal(
                "fail point sink::before_commit"
            )));
            blame(&self.uid, || self.sink.commit(prepared))?;
            fail::fail_point!("sink::after_commit", |_| Err(TaskError::internal(
                "fail point sink::after_commit"
            )));
        }
        // The last word of a task that has ended is part of the checkpoint that it heard of before.
        if complete != Barrier::LAST.checkpoint {
            self.out(Some(complete));
        }
        Ok(())
    }

    /// Shows how far it has got.
    fn out(&self, checkpoint: Option<CheckpointId>) {
        let (uid, subtask, attempt) = (self.uid.clone(), self.cx.task.subtask, self.cx.attempt);
        self.cx.stats.committed(Committed { uid, subtask, attempt, checkpoint });
    }

    /// What the subtasks before prepared: each is taken over by one subtask of today.
    fn recover(&mut self, own: &OperatorContext) -> Result<()> {
        let mine = |old: &usize| old % own.parallelism() == own.subtask();
        let prepared = own.is_restored().then(|| {
            let mut prepared = own.restored(PREPARED);
            prepared.retain(|item| mine(&item.subtask));
            // In the order of their checkpoints; the ids are numbers.
            prepared.sort_by_key(|item| item.key.parse::<u64>().unwrap_or(u64::MAX));
            prepared.into_iter().map(|item| item.value).collect()
        });
        let many = prepared.as_ref().map_or(0, Vec::len);
        match self.sink.recover(prepared) {
            Err(e) if NoCommit::is_why(&e) => self.let_go(many)?,
            recovered => recovered?,
        }
        self.out(self.cx.state.restored_from());
        Ok(())
    }
}

impl<T: Data, S: Sink<T>> SinkStage<T, S> {
    /// Another sink had the uid before: what that one prepared is lost with this one, if it may be.
    fn let_go(&self, many: usize) -> Result<()> {
        let uid = self.uid.as_str();
        if !self.cx.state.may_drop(&self.uid, PREPARED) {
            return Err(TaskError::user(format!(
                "the checkpoint holds what the sink that had this uid has written and not shown yet ({many} pieces), and the sink \
                 that has the uid now cannot commit it: give the uid back to the old one until that is shown, or say that it \
                 may be lost: drop_state({uid:?})"
            )));
        }
        tracing::warn!(operator = %uid, many, "restoring drops what a sink has written and not shown, as it was told to");
        Ok(())
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
        let own = cx.of(&self.uid);
        blame(&self.uid.clone(), || {
            self.sink.open(&own)?;
            self.opened = true;
            self.recover(&own)
        })
    }
    fn batch_end(&mut self) -> Result<()> {
        self.write()
    }
    fn quiet(&mut self) -> Result<()> {
        self.write()
    }
    fn watermark(&mut self, w: Watermark) -> Result<()> {
        self.check.watermark(w);
        self.write()?;
        self.cx.state.watermark(&self.uid, w);
        Ok(())
    }
    fn idle(&mut self) -> Result<()> {
        self.check.passes();
        self.write()
    }
    fn active(&mut self) -> Result<()> {
        self.check.passes();
        Ok(())
    }
    fn barrier(&mut self, b: Barrier) -> Result<()> {
        self.check.passes();
        self.cut(b)
    }
    fn notice(&mut self, notice: Notice) -> Result<()> {
        match notice {
            Notice::Completed(checkpoint) => self.commit(checkpoint),
            // What was prepared for it stays prepared, and is in the next one.
            Notice::Aborted(_) => Ok(()),
        }
    }
    fn end(&mut self, _: EndKind) -> Result<()> {
        self.check.end();
        self.cut(Barrier::LAST)
    }
    fn freeze_last(&mut self) -> Result<()> {
        self.freeze();
        Ok(())
    }
    fn close(&mut self, outcome: Closing) {
        if std::mem::take(&mut self.opened) {
            closing(&self.uid, || self.sink.close(outcome));
        }
    }
}
