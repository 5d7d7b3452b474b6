//! One process of a job on threads: the coordinator's on the one that calls, each task on its own.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use weir_state::backend::Resources;
use weir_state::key_groups_of;
use weir_state::store::{PartFormat, RestoredPart};

use super::outside::Manifest;
use super::shell::{After, Effect, Event, Mail, Shell, TICK, s};
use super::storage::{Inbox, Storage, Work, Writer};
use super::world::Setting;
use super::{ON_PURPOSE, once_in, pick, spawn};
use crate::checkpoint::{RestoreFrom, StateBackend, StateEnv};
use crate::coordinator::explored::{Outcome, forget_channels, make_tasks};
use crate::error::Cause;
use crate::graph::Graph;
use crate::ids::TaskId;
use crate::job::Job;
use crate::plan::Plan;
use crate::runtime::channel::{Bell, CancelHandle, cancellation};
use crate::runtime::latch::Latch;
use crate::runtime::mail::{MailSender, mailbox};
use crate::runtime::pump::{self, Pump};
use crate::runtime::sync::thread::JoinHandle;

/// A coordinator, and the lives of its job one after the other.
pub(super) struct Process<'a> {
    setting: &'a Setting,
    graph: Graph,
    plan: Plan,
    mail: &'a Arc<Inbox<Mail>>,
    bell: &'a Bell,
    storage: &'a Arc<Storage>,
    shell: Shell,
}

/// The tasks of one life.
struct Tasks {
    cancel: CancelHandle,
    mails: Vec<MailSender>,
    threads: Vec<JoinHandle<()>>,
}

pub(super) fn restored(manifest: &Manifest, groups: u16) -> RestoreFrom {
    let parts = manifest.parts.iter().map(|part| {
        let subtasks = manifest.parts.iter().filter(|p| p.uid == part.uid).count();
        let restored = RestoredPart {
            subtask: part.subtask,
            key_groups: key_groups_of(part.subtask, subtasks, groups),
            format: PartFormat::Portable,
            folder: PathBuf::new(),
            tables: Vec::new(),
            items: part.items.clone(),
        };
        (part.uid.clone(), restored)
    });
    RestoreFrom::Local(Arc::new(parts.collect()))
}

/// A task's panic is an exit like others to the coordinator, and the job goes on; here only those on purpose are.
///
/// # Panics
/// With what the task said.
fn is_no_broken_promise((_, event): &Mail) {
    if let Event::Exited(_, Err(e)) = event
        && e.cause() == Cause::Panicked
    {
        let said = e.chain();
        assert!(said.contains(ON_PURPOSE), "{said}");
    }
}

fn resources() -> Resources {
    static SHARED: OnceLock<Resources> = OnceLock::new();
    SHARED.get_or_init(|| Resources::new(1 << 20, 1 << 20)).clone()
}

fn sources(plan: &Plan) -> Vec<usize> {
    let (mut first, mut sources) = (0, Vec::new());
    for chain in &plan.chains {
        if chain.operators.first().is_some_and(|o| o.kind == "source") {
            sources.extend(first..first + chain.parallelism);
        }
        first += chain.parallelism;
    }
    sources
}

impl<'a> Process<'a> {
    pub(super) fn new(
        setting: &'a Setting,
        job: Job,
        (mail, bell): (&'a Arc<Inbox<Mail>>, &'a Bell),
        storage: &'a Arc<Storage>,
    ) -> Self {
        let (graph, plan) = job.into_graph();
        // With mistakes about, sometimes so short that only luck completes one.
        let timeout = if setting.faults.are_over() { s(1_000_000) } else { s(3 << pick(10)) };
        let newest = setting.outside.newest();
        let shell = Shell::new(newest.as_deref(), sources(&plan), timeout, setting.flaw);
        Process { setting, graph, plan, mail, bell, storage, shell }
    }

    /// Life after life, each from the newest checkpoint.
    pub(super) fn run(&mut self) -> After {
        loop {
            if once_in(4) {
                self.setting.outside.remove_savepoints();
            }
            let outcome = self.live(self.shell.begins_from(&self.setting.outside));
            // What is being published may get there although nobody hears of it.
            let settled = Arc::new(Latch::new());
            self.storage.work.put(Work::Settle(settled.clone()));
            settled.wait(None);
            match self.shell.after(outcome, self.setting.outside.newest().as_deref()) {
                After::Another => {}
                after => return after,
            }
        }
    }

    /// Makes the tasks and starts them, as the coordinator does.
    fn deploy(&mut self, from: Option<Arc<Manifest>>) -> Tasks {
        let (attempt, groups) = (self.shell.attempt, self.plan.key_groups);
        let writer = Writer { attempt, storage: self.storage.clone(), mail: self.mail.clone() };
        let env = Arc::new(StateEnv {
            attempt,
            key_groups: groups,
            backend: StateBackend::memory(),
            folders: vec![PathBuf::new()],
            resources: resources(),
            memory: crate::memory::MemoryBudget::unplanned(),
            cache_bytes: usize::MAX,
            clock: self.setting.clock.clone(),
            from: from.map_or(RestoreFrom::Nothing, |manifest| restored(&manifest, groups)),
            drop_state: Vec::new(),
            writer: Some(Arc::new(writer)),
            waits: Arc::default(),
        });
        self.storage.door().close(self.shell.newest());
        let (handle, cancel) = cancellation();
        let made = make_tasks(&self.graph, &self.plan, &self.setting.clock, &cancel, &env);
        let made = made.unwrap_or_else(|e| panic!("the tasks cannot be made: {e}"));
        let ids: Vec<TaskId> = made.iter().map(|(_, cx)| cx.task.clone()).collect();
        self.shell.begin(ids);
        let mut tasks = Tasks { cancel: handle, mails: Vec::new(), threads: Vec::new() };
        for (index, (body, cx)) in made.into_iter().enumerate() {
            let (sender, mail) = mailbox();
            tasks.mails.push(sender);
            let name = cx.task.to_string();
            let (to, ready) = (self.mail.clone(), self.mail.clone());
            tasks.threads.push(spawn(name, move || {
                let ready = move || ready.put((attempt, Event::Ready(index)));
                let done = move |exit| to.put((attempt, Event::Exited(index, exit)));
                pump::live(Pump { body, cx, mail }, ready, done);
            }));
        }
        tasks
    }

    /// One life.
    fn live(&mut self, from: Option<Arc<Manifest>>) -> Outcome {
        let (_alive, never) = cancellation();
        let mut tasks = self.deploy(from);
        loop {
            for effect in self.shell.effects() {
                match effect {
                    Effect::Run => forget_channels(&self.graph),
                    Effect::Cancel => tasks.cancel.cancel(),
                    Effect::Open(id) => self.storage.door().open(id),
                    Effect::GiveUp(id) => self.storage.door().give_up(id),
                    Effect::Work(work) => self.storage.work.put(work),
                    Effect::Over(outcome) => {
                        tasks.threads.drain(..).for_each(|t| t.join().expect("a task's panic is caught"));
                        return outcome;
                    }
                }
            }
            if self.setting.orders.strike(20) {
                self.shell.order(&self.setting.outside, &mut pick);
                continue;
            }
            if self.shell.has_more() && once_in(2) {
                let fails = || self.setting.faults.strike(10);
                if let Some((task, control)) = self.shell.goes_on(&mut pick, fails) {
                    tasks.mails[task].post(control);
                }
                continue;
            }
            match self.mail.take() {
                Some(mail) => {
                    is_no_broken_promise(&mail);
                    self.shell.hear(mail);
                }
                None if self.shell.has_more() => {}
                None => {
                    // Only checkpoints care for the time.
                    let time = self.shell.ticks().then_some(TICK / 250);
                    self.bell.wait(time, &never).expect("nobody cancels the coordinator");
                    self.shell.tick();
                }
            }
        }
    }
}
