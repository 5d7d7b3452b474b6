//! A gate and what feeds it: every cut is exact, nothing is lost, and a death, a cancel and an abort are noticed.

use std::sync::{Arc, Mutex, PoisonError};

use super::kernel::{aborted, barrier, send};
use super::{explore, once_in, pick, spawn};
use crate::element::{Element, EndKind, Notice, Record};
use crate::error::{Cause, Result, TaskError};
use crate::ids::CheckpointId;
use crate::runtime::channel::{Cancel, Rx, Tx, cancellation, edge};
use crate::runtime::gate::Gate;
use crate::runtime::input::{Control, Input, Turn};
use crate::runtime::mail::{Mailbox, mailbox};
use crate::testkit::task_context;
use crate::time::{EventTime, Watermark};

/// A value says which input it came by and the how manieth it was there.
pub(super) type Value = (usize, usize);

/// What one producer sends, and how it goes.
#[derive(Clone, Debug)]
struct Script {
    elements: Vec<Element<Value>>,
    /// Without an end: it dies.
    ends: Option<EndKind>,
}

impl Script {
    /// Records with barriers 1 to `barriers` between them, watermarks that keep their promise, now and then idleness, and
    /// an end.
    fn draw(input: usize, barriers: u64) -> Self {
        let (mut elements, mut values) = (Vec::new(), 0);
        let mut idle = false;
        for id in 1..=barriers + 1 {
            for _ in 0..pick(3) {
                let batch = (0..1 + pick(2)).map(|_| {
                    values += 1;
                    Record::new((input, values - 1), EventTime(values as i64))
                });
                elements.push(Element::Batch(batch.collect()));
                idle = false;
                match pick(4) {
                    0 => elements.push(Element::Watermark(Watermark(values as i64))),
                    1 => {
                        elements.push(Element::Idle);
                        idle = true;
                    }
                    _ => {}
                }
            }
            if idle && once_in(2) {
                elements.push(Element::Active);
                idle = false;
            }
            if id <= barriers {
                elements.push(Element::Barrier(barrier(id)));
            }
        }
        let kind = if once_in(4) { EndKind::Keep } else { EndKind::Flush };
        if kind == EndKind::Flush {
            elements.push(Element::Watermark(Watermark::MAX));
        }
        elements.push(Element::End(kind));
        Script { elements, ends: Some(kind) }
    }

    /// Dies before one of its elements.
    fn dying(mut self) -> Self {
        self.elements.truncate(pick(self.elements.len() as u64) as usize);
        self.ends = None;
        self
    }

    /// How many values come before the barrier; all of them if it has ended without one.
    fn before(&self, id: u64) -> Option<usize> {
        let mut values = 0;
        for element in &self.elements {
            match element {
                Element::Batch(batch) => values += batch.len(),
                Element::Barrier(b) if b.checkpoint.0 == id => return Some(values),
                _ => {}
            }
        }
        self.ends.map(|_| values)
    }

    fn send(self, tx: &Tx<Value>, cancel: &Cancel) -> Result<()> {
        self.elements.into_iter().try_for_each(|element| send(tx, element, cancel))
    }
}

/// What a gate told, in order, and what it broke off with.
struct Story {
    turns: Vec<(Turn, Vec<usize>)>,
    outcome: Result<()>,
}

/// Reads a gate to its end, as the loop of a task does. With each turn: how many values each input had given by then.
fn read_all(gate: &mut dyn Input<Value>, inputs: usize, mail: &Mailbox, cancel: Cancel) -> Story {
    let mut cx = task_context("reader");
    cx.cancel = cancel;
    let (mut turns, mut given, mut batch) = (Vec::new(), vec![0; inputs], Vec::new());
    let mut read = || -> Result<()> {
        loop {
            let turn = gate.next(&mut batch, &cx, mail)?;
            for record in batch.drain(..) {
                let (input, nth) = record.value;
                assert_eq!(given[input], nth, "input {input} is not in order");
                given[input] += 1;
            }
            turns.push((turn, given.clone()));
            match turn {
                Turn::Quiet => gate.wait(&cx, mail, None)?,
                Turn::End(_) => return Ok(()),
                _ => {}
            }
            if cx.cancel.is_cancelled() {
                return Err(TaskError::cancelled());
            }
        }
    };
    let outcome = read();
    Story { turns, outcome }
}

/// What happens besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Besides {
    Nothing,
    /// The first checkpoint is given up, at any moment.
    Abort,
    Cancel,
    /// One producer dies.
    Death,
}

/// Two producers, a gate, and what may happen to them.
pub(super) fn through_a_gate(make: fn(Vec<Rx<Value>>) -> Box<dyn Input<Value>>) {
    let besides = [Besides::Nothing, Besides::Abort, Besides::Cancel, Besides::Death][pick(4) as usize];
    let barriers = 1 + pick(3);
    let mut scripts = [0, 1].map(|input| Script::draw(input, barriers));
    if besides == Besides::Death {
        let dead = pick(2) as usize;
        scripts[dead] = scripts[dead].clone().dying();
    }
    let (handle, cancel) = cancellation();
    let (sender, mail) = mailbox();
    let mut rxs = Vec::new();
    let producers: Vec<_> = (scripts.clone().into_iter())
        .map(|script| {
            let (tx, rx) = edge(1 + pick(2) as usize);
            rxs.push(rx);
            let cancel = cancel.clone();
            spawn("producer", move || script.send(&tx, &cancel))
        })
        .collect();
    let other = spawn("coordinator", move || {
        match besides {
            Besides::Abort => sender.post(aborted(1)),
            Besides::Cancel => handle.cancel(),
            Besides::Nothing | Besides::Death => {}
        }
        // Neither the mailbox nor the attempt goes away before the end.
        (sender, handle)
    });
    let mut gate = make(rxs);
    let story = read_all(&mut *gate, 2, &mail, cancel);
    drop(gate);
    let sent: Vec<_> = producers.into_iter().map(|p| p.join().expect("no panic")).collect();
    other.join().expect("no panic");
    story.holds(&scripts, besides, barriers);
    if story.outcome.is_ok() {
        assert!(sent.iter().all(|sent| sent.is_ok()), "everything was read");
    }
}

impl Story {
    fn holds(&self, scripts: &[Script], besides: Besides, barriers: u64) {
        let (mut cuts, mut watermark, mut idle) = (Vec::new(), Watermark::MIN, false);
        for (turn, given) in &self.turns {
            match turn {
                Turn::Barrier(b) => {
                    let id = b.checkpoint.0;
                    let exact: Vec<_> = scripts.iter().map(|s| s.before(id)).collect();
                    let given: Vec<_> = given.iter().copied().map(Some).collect();
                    assert_eq!(given, exact, "the cut at barrier {id} of {scripts:?}");
                    assert!(cuts.last() < Some(&id), "barriers rise");
                    cuts.push(id);
                }
                Turn::Watermark(w) => {
                    assert!(watermark < *w, "watermarks rise");
                    watermark = *w;
                    idle = false;
                }
                Turn::Idle => {
                    assert!(!idle, "idleness is said once");
                    idle = true;
                }
                Turn::Active => idle = false,
                Turn::Batch => assert!(!idle, "a record of an input that is idle for all that is known"),
                _ => {}
            }
        }
        match (&self.outcome, besides) {
            (Ok(()), Besides::Death) => panic!("a dead producer was not seen"),
            (Ok(()), _) => {
                let kinds = scripts.iter().filter_map(|s| s.ends);
                let Some((Turn::End(kind), given)) = self.turns.last() else { panic!("no end") };
                assert_eq!(Some(*kind), kinds.min(), "keep wins");
                let all: Vec<_> = scripts.iter().filter_map(|s| s.before(u64::MAX)).collect();
                assert_eq!(*given, all, "nothing is lost");
                if *kind == EndKind::Flush {
                    assert_eq!(watermark, Watermark::MAX);
                }
                let wanted: Vec<u64> = (1..=barriers).collect();
                if besides == Besides::Abort {
                    assert!(cuts == wanted || cuts == wanted[1..], "{cuts:?}");
                } else {
                    assert_eq!(cuts, wanted);
                }
            }
            (Err(e), Besides::Death) => assert_eq!(e.cause(), Cause::UpstreamLost),
            (Err(e), Besides::Cancel) => {
                // A producer that hears the cancel first goes without an end.
                assert!(matches!(e.cause(), Cause::Cancelled | Cause::UpstreamLost), "{e}");
            }
            (Err(e), _) => panic!("nothing went wrong: {e}"),
        }
    }
}

#[test]
fn a_gate_cuts_exactly_and_loses_nothing() {
    explore("gate::a_gate_cuts_exactly_and_loses_nothing", || {
        through_a_gate(|rxs| Box::new(Gate::new(rxs)));
    });
}

/// One input has its barrier, the other's will never come: only the notice lets the first be read again.
#[test]
fn an_abort_unblocks_a_gate_that_is_aligning() {
    explore("gate::an_abort_unblocks_a_gate_that_is_aligning", || {
        let (handle, cancel) = cancellation();
        let (sender, mail) = mailbox();
        let ((a, ra), (b, rb)) = (edge(1), edge(1));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let own = cancel.clone();
        let producer = spawn("producer", move || {
            let batch = Element::Batch(vec![Record::new((0, 0), EventTime(0))]);
            for element in [Element::Barrier(barrier(1)), batch, Element::End(EndKind::Keep)] {
                send(&a, element, &own)?;
            }
            Ok::<_, TaskError>(())
        });
        let aborter = spawn("coordinator", move || {
            if once_in(2) {
                sender.post(Control::Barrier(barrier(1)));
            }
            sender.post(aborted(1));
            sender
        });
        let (own, told) = (cancel.clone(), seen.clone());
        let reader = spawn("reader", move || {
            let mut gate = Gate::new(vec![ra, rb]);
            let (mut cx, mut batch) = (task_context("reader"), Vec::new());
            cx.cancel = own;
            while batch.is_empty() {
                let turn = gate.next(&mut batch, &cx, &mail).expect("nobody dies");
                told.lock().unwrap_or_else(PoisonError::into_inner).push(turn);
                if turn == Turn::Quiet {
                    gate.wait(&cx, &mail, None).expect("nobody cancels");
                }
            }
            gate
        });
        let gate = reader.join().expect("the record behind the barrier is read");
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert!(seen.contains(&Turn::Notice(Notice::Aborted(CheckpointId(1)))), "{seen:?}");
        assert!(!seen.contains(&Turn::Barrier(barrier(1))), "{seen:?}");
        aborter.join().expect("no panic");
        handle.cancel();
        drop((gate, b));
        let _ = producer.join().expect("no panic");
    });
}

/// Exploration would be worth little if a seed did not give the same schedule again.
#[cfg(feature = "explore")]
#[test]
fn the_same_seed_gives_the_same_schedule() {
    let gate = || through_a_gate(|rxs| Box::new(Gate::new(rxs)));
    for seed in 1..50 {
        assert_eq!(super::schedules::trace_of(seed, gate), super::schedules::trace_of(seed, gate));
    }
}
