//! What each life of a job is given to remember with: where it begins, where its local files lie, who writes its snapshots.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};
use weir_state::backend::Resources;

use super::messages::SnapshotMail;
use super::{Coordinator, Failure};
use crate::checkpoint::{
    AttemptWriter, LocalFolders, NotFound, RestoreFrom, SnapshotWriter, StateEnv, life_folder,
    without_other_kinds,
};
use crate::error::{Cause, Domain};
use crate::ids::{AttemptId, TaskId};
use crate::job::JobError;
use crate::memory::{MemoryBudget, Metered, Share};

/// What all databases of the job share, as planned, and measured as long as the answer is kept.
pub(super) fn resources(memory: &MemoryBudget) -> (Resources, [Metered; 2]) {
    let plan = memory.plan();
    crate::memory::raise_files();
    let resources = Resources::new(plan.block_cache_bytes(), plan.write_buffer_bytes())
        .open_files(plan.open_files_per_database());
    let (of_blocks, of_buffers) = (resources.clone(), resources.clone());
    let metered = [
        memory.meter(Share::BlockCache, move || of_blocks.used().0),
        memory.meter(Share::WriteBuffers, move || of_buffers.used().1),
    ];
    (resources, metered)
}

impl Coordinator {
    /// The next life: from the newest complete checkpoint, whichever that is by now.
    pub(super) fn begin_again(&mut self, cx: &mut Context<Self>) {
        self.attempt_id = AttemptId(self.attempt_id.0 + 1);
        let Some(keeper) = self.keeper.as_ref() else { return self.deploy(cx) };
        let Some(storage) = keeper.storage.clone() else { return self.deploy(cx) };
        // Storage is asked again: a manifest may have got there although nobody heard of it.
        cx.spawn(async move { storage.newest().await }.into_actor(self).map(|newest, me, cx| match newest {
            // Somebody has ended the job while storage answered.
            _ if me.finishing => {}
            Ok(manifest) => {
                if let Some(keeper) = &mut me.keeper {
                    keeper.begin_from(manifest);
                }
                me.deploy(cx);
            }
            Err(NotFound::Fenced(reason) | NotFound::Gone(reason)) => {
                let job = me.plan.job.clone();
                me.finish(cx, Err(JobError::Checkpoints { job, reason }));
            }
            // A storage that is away for a while is a failure like any other, and the restart policy's to judge.
            Err(NotFound::Failed(reason)) => {
                let failure = me.storage_failed(format!("cannot find where to begin again: {reason}"));
                me.attempt_failed(cx, failure);
            }
        }));
    }

    /// A failure of no task's own: it goes under the name of the first.
    pub(super) fn storage_failed(&self, message: String) -> Failure {
        Failure {
            attempt: self.attempt_id,
            at_start: false,
            task: TaskId { chain: self.plan.first_uid(0).into(), subtask: 0 },
            uid: "checkpoints".into(),
            cause: Cause::Failed,
            domain: Domain::External,
            message,
            also: Vec::new(),
            echoes: self.tasks.len(),
        }
    }

    /// Without checkpoints nobody begins from the local files of an attempt that is over.
    pub(super) fn forget_local_files(&self) {
        if self.keeper.is_some() {
            return;
        }
        for folder in self.local.iter().flat_map(|local| local.paths()) {
            let _ = fs::remove_dir_all(folder.join(life_folder(0, self.attempt_id)));
        }
    }

    /// The job's local folders, its own from the first life on. Nothing is claimed where nothing will lie.
    fn local(&mut self) -> Arc<LocalFolders> {
        if !self.life.state.is_rocksdb() && self.keeper.is_none() {
            return Arc::default();
        }
        let local = self.local.get_or_insert_with(|| Arc::new(LocalFolders::claim(&self.folders)));
        local.clone()
    }

    pub(super) fn state_env(&mut self, cx: &mut Context<Self>) -> Arc<StateEnv> {
        let attempt = self.attempt_id;
        let memory = self.board.memory().clone();
        let local = self.local();
        let storage = self.keeper.as_ref().and_then(|k| k.storage.clone());
        let newest = self.keeper.as_ref().and_then(|k| k.newest.clone());
        let from = match (newest, &storage) {
            (Some(manifest), Some(storage)) => {
                RestoreFrom::Checkpoint(without_other_kinds(manifest, &self.plan), storage.clone())
            }
            _ => RestoreFrom::Nothing,
        };
        // A life of a process that died before its first checkpoint had the same number: the lease's epoch tells them apart.
        let life = life_folder(storage.as_ref().map_or(0, |s| s.epoch()), attempt);
        let writer: Option<Arc<dyn SnapshotWriter>> = storage.map(|storage| {
            storage.begin_attempt(life.clone(), local.clone());
            let coordinator = cx.address();
            let tell = Arc::new(move |news| coordinator.do_send(SnapshotMail { attempt, news }));
            AttemptWriter::new(storage, tell) as Arc<dyn SnapshotWriter>
        });
        if let Some(keeper) = &mut self.keeper {
            keeper.writer = writer.clone();
        }
        if self.keeper.is_none() {
            // What a process left that died is of no use.
            local.other_lives(&life).into_iter().for_each(|folder| drop(fs::remove_dir_all(folder)));
        }
        let claimed = Some(local.paths()).filter(|paths| !paths.is_empty());
        let folders = claimed.unwrap_or_else(|| self.folders.clone());
        let folders: Vec<PathBuf> = folders.iter().map(|f| f.join(&life)).collect();
        folders.iter().for_each(|folder| drop(fs::remove_dir_all(folder)));
        let unbounded = !self.life.state.is_rocksdb();
        Arc::new(StateEnv {
            attempt,
            key_groups: self.plan.key_groups,
            backend: self.life.state.clone(),
            folders,
            resources: self.resources.clone(),
            cache_bytes: if unbounded { usize::MAX } else { memory.plan().cache_bytes_per_store() },
            memory,
            clock: self.life.clock.clone(),
            from,
            drop_state: self.keeper.as_ref().map(|k| k.config.drop_state.clone()).unwrap_or_default(),
            writer,
            waits: Arc::default(),
        })
    }
}
