//! The coordinator's decisions without threads: tasks and channels that are a few numbers each, one event at a time in any order
//! that real mailboxes allow, processes that die
//! (over 400 lines: the world and each thing that can happen in it).

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::dice::Dice;
use super::outside::{Manifest, Outside, Parts};
use super::quietly;
use super::seeds::{Seeds, say_failure};
use super::shell::{After, Effect, Event, Flaw, Mail, Shell, s};
use super::storage::{Door, Shelves, Work};
use super::tasks::{At, Crossing, Task};
use crate::coordinator::explored::Outcome;
use crate::element::{Barrier, Notice};
use crate::error::TaskError;
use crate::ids::{CheckpointId, TaskId};
use crate::runtime::align::Alignment;
use crate::runtime::input::Control;

/// In CI, and in the long run.
const SHORT: u64 = 20_000;
const LONG: u64 = 1_000_000;
/// A history that takes more events goes round in circles.
const MOST_EVENTS: u64 = 100_000;

/// How much there is of everything.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    sources: usize,
    sinks: usize,
    each: u64,
}

/// A whole history: processes, each with lives of the job, and what lies outside of them.
struct World {
    sizes: Sizes,
    outside: Outside,
    /// Mistakes, the user's orders, and deaths of the process that may still come.
    faults: u64,
    orders: u64,
    deaths: u64,
    events: u64,
    flaw: Flaw,
}

/// What may happen next.
#[derive(Clone, Copy, Debug)]
enum Next {
    Task(usize),
    /// The coordinator reads its mail.
    Hear,
    /// What is under way by itself in it goes on.
    GoOn,
    Store(usize),
    Tick,
}

/// One process.
struct Process<'w> {
    world: &'w mut World,
    dice: &'w mut Dice,
    shell: Shell,
    mail: VecDeque<Mail>,
    shelves: Shelves,
    door: Door,
    cancelled: bool,
    tasks: Vec<Task>,
    /// By consumer, then by producer.
    channels: Vec<Vec<VecDeque<Crossing>>>,
}

fn struck(left: &mut u64, dice: &mut Dice, one_in: u64) -> bool {
    let struck = *left > 0 && dice.once_in(one_in);
    *left -= u64::from(struck);
    struck
}

/// Lives a whole history; panics when it breaks a promise.
fn history(seed: u64, flaw: Flaw) {
    let mut dice = Dice::new(seed);
    let sizes =
        Sizes { sources: 1 + dice.below(3) as usize, sinks: 1 + dice.below(2) as usize, each: dice.below(7) };
    let [faults, orders, deaths] = [dice.below(5), dice.below(4), dice.below(3)];
    let mut world = World { sizes, outside: Outside::new(1), faults, orders, deaths, events: 0, flaw };
    loop {
        let timeout = if world.faults == 0 { s(1_000_000) } else { s(2 << dice.below(10)) };
        if Process::new(&mut world, &mut dice, timeout).run() == After::Finished {
            break;
        }
    }
    world.outside.is_complete(&(0..sizes.sources).map(|s| (s, sizes.each)).collect());
}

impl<'w> Process<'w> {
    fn new(world: &'w mut World, dice: &'w mut Dice, timeout: std::time::Duration) -> Self {
        let newest = world.outside.newest();
        let shell = Shell::new(newest.as_deref(), (0..world.sizes.sources).collect(), timeout, world.flaw);
        Process {
            world,
            dice,
            shell,
            mail: VecDeque::new(),
            shelves: Shelves::default(),
            door: Door::default(),
            cancelled: false,
            tasks: Vec::new(),
            channels: Vec::new(),
        }
    }

    /// Life after life, each from the newest checkpoint.
    fn run(&mut self) -> After {
        loop {
            if self.dice.once_in(4) {
                self.world.outside.remove_savepoints();
            }
            self.deploy(self.shell.begins_from(&self.world.outside).as_deref());
            let Some(outcome) = self.live() else { return After::Broken };
            // What is being published may get there although nobody hears of it.
            while let Some(i) = self.shelves.todo.iter().position(|w| matches!(w, Work::Publish(..))) {
                self.store(i);
            }
            match self.shell.after(outcome, self.world.outside.newest().as_deref()) {
                After::Another => {}
                after => return after,
            }
        }
    }

    fn deploy(&mut self, from: Option<&Manifest>) {
        let Sizes { sources, sinks, .. } = self.world.sizes;
        self.door.close(self.shell.newest());
        self.cancelled = false;
        self.channels = vec![vec![VecDeque::new(); sources]; sinks];
        self.tasks = (0..sources + sinks).map(|i| Task::new(i, sources, from)).collect();
        // What was prepared before the checkpoint is committed, whoever prepared it; the rest never was.
        self.world
            .outside
            .throw_away("", &from.map(|m| m.prepared().into_keys().collect()).unwrap_or_default());
        let prepared = from.into_iter().flat_map(|m| m.parts.iter()).filter_map(|p| p.items.get("prepared"));
        prepared.flat_map(BTreeMap::values).for_each(|prepared| self.world.outside.commit(prepared));
        let id = |i: usize| TaskId { chain: "task".into(), subtask: i };
        self.shell.begin((0..self.tasks.len()).map(id).collect());
    }

    /// One life; none when the process dies in it.
    fn live(&mut self) -> Option<Outcome> {
        loop {
            self.world.events += 1;
            assert!(self.world.events < MOST_EVENTS, "no end comes");
            if let Some(outcome) = self.effects() {
                return Some(outcome);
            }
            if struck(&mut self.world.deaths, self.dice, 200) {
                // What was on its way to the storage may still get there.
                let publishing = self.shelves.todo.iter().position(|w| matches!(w, Work::Publish(..)));
                publishing.filter(|_| self.dice.once_in(2)).into_iter().for_each(|i| self.store(i));
                return None;
            }
            if struck(&mut self.world.orders, self.dice, 40) {
                let dice = &mut *self.dice;
                self.shell.order(&self.world.outside, &mut |n| dice.below(n));
                continue;
            }
            match self.next() {
                Next::Task(i) => self.step(i),
                Next::Hear => self.mail.pop_front().into_iter().for_each(|mail| self.shell.hear(mail)),
                Next::GoOn => self.go_on(),
                Next::Store(i) => self.store(i),
                Next::Tick => self.shell.tick(),
            }
        }
    }

    /// Anything that can happen, with time the rarer the more else there is.
    fn next(&mut self) -> Next {
        let mut choices: Vec<Next> =
            (0..self.tasks.len()).filter(|&i| self.can_step(i)).map(Next::Task).collect();
        choices.extend((!self.mail.is_empty()).then_some(Next::Hear));
        choices.extend(self.shell.has_more().then_some(Next::GoOn));
        choices.extend(self.shelves.ready().into_iter().map(Next::Store));
        if choices.is_empty() || self.dice.once_in(8) {
            assert!(self.shell.ticks() || !choices.is_empty(), "nothing can happen any more");
            choices = if self.shell.ticks() { vec![Next::Tick] } else { choices };
        }
        choices[self.dice.below(choices.len() as u64) as usize]
    }

    fn effects(&mut self) -> Option<Outcome> {
        let mut over = None;
        for effect in self.shell.effects() {
            match effect {
                Effect::Run => {}
                Effect::Cancel => self.cancelled = true,
                Effect::Open(id) => self.door.open(id),
                Effect::GiveUp(id) => self.door.give_up(id),
                Effect::Work(work) => self.shelves.todo.push(work),
                Effect::Over(outcome) => over = Some(outcome),
            }
        }
        over
    }

    fn go_on(&mut self) {
        let Process { world, dice, shell, tasks, .. } = self;
        let fails = struck(&mut world.faults, dice, 20);
        if let Some((task, control)) = shell.goes_on(&mut |n| dice.below(n), || fails) {
            tasks[task].mail.post(control);
        }
    }

    fn store(&mut self, i: usize) {
        let Process { world, dice, shelves, door, mail, .. } = self;
        let World { outside, faults, .. } = &mut **world;
        let mut own = Dice::new(dice.next());
        let fails = |one_in| struck(faults, dice, one_in);
        mail.extend(shelves.work(i, door, outside, fails, &mut |n| own.below(n)));
    }

    fn tell(&mut self, event: Event) {
        self.mail.push_back((self.shell.attempt, event));
    }

    /// Has input `p` something that may be read?
    fn readable(&self, i: usize, p: usize) -> bool {
        let may = self.tasks[i].aligner.readable(p) || self.world.flaw == Flaw::ReadsOn;
        may && self.inputs_of(i).is_some_and(|inputs| !inputs[p].is_empty())
    }

    fn inputs_of(&self, i: usize) -> Option<&Vec<VecDeque<Crossing>>> {
        i.checked_sub(self.world.sizes.sources).map(|sink| &self.channels[sink])
    }

    fn can_step(&self, i: usize) -> bool {
        let task = &self.tasks[i];
        let input = || match self.inputs_of(i) {
            None => true,
            Some(inputs) => (0..inputs.len()).any(|p| self.readable(i, p)),
        };
        match task.at {
            At::Gone => false,
            At::Opening => true,
            _ if self.cancelled || task.mail.has_any() => true,
            At::Running => input(),
            At::Ready | At::Ended => false,
        }
    }

    fn exit(&mut self, i: usize, exit: crate::error::Result<()>) {
        self.tasks[i].at = At::Gone;
        self.tell(Event::Exited(i, exit));
    }

    /// One turn of a task.
    fn step(&mut self, i: usize) {
        if self.cancelled {
            return self.exit(i, Err(TaskError::cancelled()));
        }
        if struck(&mut self.world.faults, self.dice, 100) {
            return self.exit(i, Err(TaskError::external("it was to fail")));
        }
        match self.tasks[i].at {
            At::Opening => {
                self.tasks[i].at = At::Ready;
                self.tell(Event::Ready(i));
            }
            At::Ready => {
                if let Some(Control::Run) = self.tasks[i].mail.take() {
                    self.tasks[i].at = At::Running;
                }
            }
            At::Running | At::Ended => {
                let ended = self.tasks[i].at == At::Ended;
                match self.tasks[i].mail.take() {
                    Some(control) if ended => self.hear_ended(i, control),
                    Some(control) => self.hear(i, control),
                    None if ended => {}
                    None => self.work(i),
                }
            }
            At::Gone => {}
        }
    }

    fn hear(&mut self, i: usize, control: Control) {
        match control {
            Control::Barrier(b) if i < self.world.sizes.sources => self.cut(i, b),
            Control::Drain(_) if i < self.world.sizes.sources => self.end(i),
            Control::Notice(Notice::Completed(id)) => self.commit(i, id),
            Control::Notice(Notice::Aborted(id)) => {
                let task = &mut self.tasks[i];
                task.aligner.abort(Barrier { checkpoint: id });
                if self.world.flaw == Flaw::TakesBack {
                    task.prepared.remove(&id);
                }
            }
            _ => {}
        }
    }

    /// A task that has ended waits for its release.
    fn hear_ended(&mut self, i: usize, control: Control) {
        match control {
            Control::Notice(Notice::Completed(id)) => self.commit(i, id),
            Control::Released => {
                self.commit(i, Barrier::LAST.checkpoint);
                self.exit(i, Ok(()));
            }
            Control::FreezeLast => self.freeze(i, Barrier::LAST),
            Control::LastFailed(_) => self.exit(i, Err(TaskError::external("its last snapshot is lost"))),
            _ => {}
        }
    }

    fn commit(&mut self, i: usize, complete: CheckpointId) {
        let prepared = &mut self.tasks[i].prepared;
        while let Some(first) = prepared.first_entry().filter(|first| *first.key() <= complete) {
            self.world.outside.commit(&first.remove());
        }
    }

    /// A source reads a record; another task takes what comes next from one of its inputs.
    fn work(&mut self, i: usize) {
        let Sizes { sources, sinks, each } = self.world.sizes;
        if i < sources {
            let position = self.tasks[i].position;
            if position == each {
                return self.end(i);
            }
            let to = position as usize % sinks;
            self.channels[to][i].push_back(Crossing::Record((i, position, 0)));
            self.tasks[i].position += 1;
            return;
        }
        let readable: Vec<usize> = (0..sources).filter(|&p| self.readable(i, p)).collect();
        let Some(&from) = self.dice.of(&readable) else { return };
        match self.channels[i - sources][from].pop_front() {
            Some(Crossing::Record(value)) => {
                let task = &mut self.tasks[i];
                assert!(task.seen.insert(value), "{value:?} comes twice");
                task.held.push(value);
            }
            Some(Crossing::Barrier(b)) => {
                let outcome = self.tasks[i].aligner.barrier(from, b);
                self.align(i, outcome);
            }
            Some(Crossing::End) => {
                let outcome = self.tasks[i].aligner.end(from);
                self.align(i, outcome);
                if self.tasks[i].aligner.all_ended() {
                    self.end(i);
                }
            }
            None => {}
        }
    }

    fn align(&mut self, i: usize, outcome: Alignment) {
        match outcome {
            Alignment::Complete(b) => self.cut(i, b),
            Alignment::Overtaken(_) => {
                let outcome = self.tasks[i].aligner.settle();
                self.align(i, outcome);
            }
            Alignment::Wait | Alignment::Obsolete => {}
        }
    }

    /// Freezes for the barrier and passes it on.
    fn cut(&mut self, i: usize, barrier: Barrier) {
        let sources = self.world.sizes.sources;
        let crossing = if barrier == Barrier::LAST { Crossing::End } else { Crossing::Barrier(barrier) };
        if i < sources {
            self.channels.iter_mut().for_each(|inputs| inputs[i].push_back(crossing));
        }
        self.freeze(i, barrier);
    }

    fn freeze(&mut self, i: usize, barrier: Barrier) {
        let (attempt, sources) = (self.shell.attempt, self.world.sizes.sources);
        let parts: Parts =
            Arc::new(vec![self.tasks[i].freeze(i, sources, barrier, attempt, &self.world.outside)]);
        if self.world.flaw == Flaw::CommitsEarly {
            self.commit(i, barrier.checkpoint);
        }
        self.tell(Event::Froze(i, barrier));
        self.shelves.todo.push(Work::Write(attempt, i, barrier, parts));
    }

    fn end(&mut self, i: usize) {
        self.cut(i, Barrier::LAST);
        self.tasks[i].at = At::Ended;
    }
}

/// Whatever fails, dies or is asked for: ids rise, a manifest has one part of every task of one attempt and an exact cut, sinks
/// commit what a complete checkpoint holds and nothing else, each record is visible once in the end, and there is an end.
#[test]
fn every_history_keeps_the_promises() {
    let name = "coordinator::every_history_keeps_the_promises";
    let seeds = Seeds::wanted(SHORT, LONG);
    for seed in seeds.iter() {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| history(seed, Flaw::None))) {
            say_failure(name, seed);
            resume_unwind(panic);
        }
    }
    seeds.say(name, "histories", "");
}

/// What the history of this seed says when it fails.
fn fails(seed: u64, flaw: Flaw) -> Option<String> {
    let panic = quietly(|| catch_unwind(AssertUnwindSafe(|| history(seed, flaw)))).err()?;
    Some(crate::pipe::panic_message(panic.as_ref()))
}

#[test]
fn mistakes_put_in_on_purpose_are_found() {
    for (flaw, says) in [
        (Flaw::LeavesSavepointsOut, &["is in sinks", "has been thrown away"] as &[_]),
        (Flaw::OpensLate, &["before it is open"]),
        (Flaw::ForgetsToLook, &["has been thrown away", "comes twice", "is in sinks"]),
        (Flaw::CommitsEarly, &["no complete checkpoint holds it"]),
        (Flaw::TakesBack, &["is in sinks"]),
        (Flaw::ReadsOn, &["is not what came before"]),
        (Flaw::CommitsForSavepoints, &["no complete checkpoint holds it", "is in sinks", "what is visible"]),
    ] {
        let found = (1..=SHORT).find_map(|seed| Some((seed, fails(seed, flaw)?)));
        let Some((seed, said)) = found else { panic!("{flaw:?} is not found") };
        assert_eq!(fails(seed, flaw).as_ref(), Some(&said), "{flaw:?}: the same seed, the same history");
        let said = said.lines().next().unwrap_or_default();
        eprintln!("explore: {flaw:?} is found with seed {seed}: {said}");
        assert!(says.iter().any(|says| said.contains(says)), "{flaw:?}: {said}");
    }
}
