//! A source that stays in a call while it is held, and what the tests ask of records.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_engine::testkit::ScriptSource;
use weir_engine::{Source, SourceBatch, SourceStatus, SplitId, prelude::*};
use weir_state::checkpoint::{AttemptRecord, TaskRecord};

pub(crate) const SOON: Duration = Duration::from_secs(60);

/// No checkpoints but those that are asked for.
pub(crate) fn asked_for(name: &str) -> Checkpoints {
    Checkpoints::to(format!("memory://attempts-{name}")).every(Duration::from_secs(3_600))
}

/// The record of an operator's first subtask.
pub(crate) fn of<'a>(record: &'a AttemptRecord, uid: &str) -> &'a TaskRecord {
    record.tasks.iter().find(|t| t.uid == uid).unwrap_or_else(|| panic!("no {uid} in {record:?}"))
}

/// Plays a script, and stays in the middle of a poll for as long as it is held.
#[derive(Clone)]
pub(crate) struct Held {
    script: ScriptSource<i64>,
    pub(crate) hold: Arc<AtomicBool>,
    pub(crate) holds: Arc<AtomicBool>,
    cx: Option<OperatorContext>,
}

impl Held {
    pub(crate) fn of(script: ScriptSource<i64>) -> Self {
        Held { script, hold: Arc::default(), holds: Arc::default(), cx: None }
    }
}

impl Source for Held {
    type Out = i64;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.cx = Some(cx.clone());
        self.script.open(cx)
    }
    fn poll(&mut self, out: &mut SourceBatch<i64>, budget: Duration) -> Result<SourceStatus> {
        while self.hold.load(Ordering::SeqCst) {
            self.holds.store(true, Ordering::SeqCst);
            if let Some(cx) = &self.cx {
                cx.wait(Duration::from_millis(1))?;
            }
        }
        self.script.poll(out, budget)
    }
    fn split_name(&self, split: SplitId) -> Option<String> {
        self.script.split_name(split)
    }
}
