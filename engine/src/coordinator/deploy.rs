//! Makes the tasks of one attempt, in plan order: channels laid, operators copied, nothing started.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::checkpoint::StateEnv;
use crate::context::{TaskContext, TaskWaker};
use crate::graph::Graph;
use crate::ids::TaskId;
use crate::job::JobError;
use crate::plan::Plan;
use crate::runtime::channel::Cancel;
use crate::runtime::stats::TaskStats;
use crate::runtime::task::TaskBody;
use crate::task_state::TaskState;
use crate::time::SharedClock;

/// A task that has everything but a thread.
pub(crate) type Made = (Box<dyn TaskBody>, TaskContext);

/// The task of every subtask, chain by chain. Side outputs take their channels when they open; the rest is taken here.
pub(crate) fn make_tasks(
    graph: &Graph,
    plan: &Plan,
    clock: &SharedClock,
    cancel: &Cancel,
    env: &Arc<StateEnv>,
) -> Result<Vec<Made>, JobError> {
    for (edge, planned) in graph.edges.iter().zip(&plan.edges) {
        let (from, to) = (plan.chains[planned.from].parallelism, plan.chains[planned.to].parallelism);
        let (producer, consumer) = (plan.first_uid(planned.from).into(), plan.first_uid(planned.to).into());
        edge.ends.lay(from, to, plan.channel_depth, planned.partitioning, (&producer, &consumer));
    }
    let mut made = Vec::with_capacity(plan.tasks());
    for (c, (chain, written)) in plan.chains.iter().zip(graph.standing()).enumerate() {
        let uid = plan.first_uid(c);
        for subtask in 0..chain.parallelism {
            let task = TaskId { chain: uid.as_str().into(), subtask };
            let cx = TaskContext {
                stats: TaskStats::new(task.clone()),
                state: TaskState::new(task.clone(), made.len(), chain.parallelism, env.clone()),
                task,
                parallelism: chain.parallelism,
                attempt: env.attempt,
                key_groups: plan.key_groups,
                clock: clock.clone(),
                cancel: cancel.clone(),
                waker: TaskWaker::default(),
                async_threads: graph.async_threads,
            };
            // An operator's `clone` is user code too.
            let recipe = written.recipe.as_ref();
            match recipe.map(|recipe| catch_unwind(AssertUnwindSafe(|| recipe(&cx)))) {
                Some(Ok(body)) => made.push((body, cx)),
                _ => {
                    forget_channels(graph);
                    return Err(JobError::Deploy { job: plan.job.clone(), task: cx.task.to_string() });
                }
            }
        }
    }
    Ok(made)
}

/// Drops the ends of channels that nobody has taken.
pub(crate) fn forget_channels(graph: &Graph) {
    graph.edges.iter().for_each(|edge| edge.ends.clear());
}
