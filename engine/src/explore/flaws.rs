//! Mistakes put into the kernel on purpose: an exploration that does not find these finds nothing.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::gate::{Value, through_a_gate};
use super::jobs::with_trouble;
use super::kernel::post_and_read;
use super::schedules::finds;
use super::shell::Flaw;
use crate::context::TaskContext;
use crate::element::{Element, EndKind, Record};
use crate::error::{Result, TaskError};
use crate::operator::Closing;
use crate::runtime::align::{Aligner, Alignment};
use crate::runtime::channel::{Peeked, Rx, bell, cancellation, wait_any};
use crate::runtime::gate::Gate;
use crate::runtime::input::{Control, Input, Turn};
use crate::runtime::mail::{Mailbox, Slots};
use crate::runtime::sync::atomic::{AtomicBool, Ordering::SeqCst};
use crate::runtime::sync::{Condvar, Mutex};

/// Within so many schedules each mistake has to be found: CI explores as many of each scenario.
const WITHIN: u64 = 1_000;

#[derive(Default)]
struct Letterbox {
    any: AtomicBool,
    slots: Mutex<Slots>,
    ring: Condvar,
}

impl Letterbox {
    fn post(&self, letter: Control) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).post(letter);
        self.any.store(true, SeqCst);
    }

    fn take(&self) -> Option<Control> {
        let letter = self.slots.lock().unwrap_or_else(PoisonError::into_inner).take();
        if letter.is_none() {
            self.any.store(false, SeqCst);
        }
        letter
    }
}

/// Looks for letters, finds none, and only then begins to listen.
fn a_bell_that_is_checked_before_it_is_heard() {
    let letters = Arc::new(Letterbox::default());
    let own = letters.clone();
    let post = move |letter| {
        own.post(letter);
        own.ring.notify_all();
    };
    post_and_read(post, || {
        if !letters.any.load(SeqCst) {
            let slots = letters.slots.lock().unwrap_or_else(PoisonError::into_inner);
            drop(letters.ring.wait(slots).unwrap_or_else(PoisonError::into_inner));
        }
        let mut slots = letters.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let letter = slots.take();
        // Cleared with the lock held, as it has to be: there is one mistake in here, not two.
        letters.any.store(letter.is_some(), SeqCst);
        letter
    });
}

/// Says that the box is empty after it has let go of it: what came in between is not looked for any more.
fn a_flag_that_is_cleared_too_late() {
    let (letters, (ringer, bell), (_alive, cancel)) =
        (Arc::new(Letterbox::default()), bell(), cancellation());
    let own = letters.clone();
    let post = move |letter| {
        own.post(letter);
        ringer.ring();
    };
    post_and_read(post, || {
        if letters.any.load(SeqCst) {
            return letters.take();
        }
        bell.wait(None, &cancel).expect("nobody cancels");
        None
    });
}

/// A gate that goes on reading an input whose barrier has come.
struct Eager {
    inputs: Vec<Rx<Value>>,
    open: Vec<bool>,
    aligner: Aligner,
    ended: Option<EndKind>,
}

impl Eager {
    fn turn(&mut self, i: usize, element: Element<Value>, batch: &mut Vec<Record<Value>>) -> Option<Turn> {
        match element {
            Element::Batch(records) => {
                *batch = records;
                Some(Turn::Batch)
            }
            Element::Barrier(b) => match self.aligner.barrier(i, b) {
                Alignment::Complete(b) => Some(Turn::Barrier(b)),
                _ => None,
            },
            Element::End(kind) => {
                self.open[i] = false;
                self.ended = self.ended.max(Some(kind));
                None
            }
            _ => None,
        }
    }
}

impl Input<Value> for Eager {
    fn open(&mut self, _: &TaskContext) -> Result<()> {
        Ok(())
    }

    fn next(&mut self, batch: &mut Vec<Record<Value>>, _: &TaskContext, _: &Mailbox) -> Result<Turn> {
        for i in 0..self.inputs.len() {
            if !self.open[i] {
                continue;
            }
            let turn = match self.inputs[i].peek() {
                Peeked::Got(element) => self.turn(i, element, batch),
                Peeked::Empty => None,
                Peeked::Lost => return Err(TaskError::upstream_lost()),
            };
            if let Some(turn) = turn {
                return Ok(turn);
            }
        }
        let ended = self.ended.filter(|_| !self.open.contains(&true));
        Ok(ended.map_or(Turn::Quiet, Turn::End))
    }

    fn next_order(&mut self, _: &mut Vec<Record<Value>>, _: &TaskContext, _: &Mailbox) -> Result<Turn> {
        Ok(Turn::Quiet)
    }

    fn wait(&mut self, cx: &TaskContext, mail: &Mailbox, most: Option<Duration>) -> Result<()> {
        wait_any(&self.inputs, |i| self.open[i], &mail.bell, &cx.cancel, most)
    }

    fn close(&mut self, _: Closing) {}
}

/// A gate that never waits for its second input.
struct Deaf(Gate<Value>, Vec<Rx<Value>>);

impl Input<Value> for Deaf {
    fn open(&mut self, cx: &TaskContext) -> Result<()> {
        self.0.open(cx)
    }

    fn next(&mut self, batch: &mut Vec<Record<Value>>, cx: &TaskContext, mail: &Mailbox) -> Result<Turn> {
        self.0.next(batch, cx, mail)
    }

    fn next_order(
        &mut self,
        batch: &mut Vec<Record<Value>>,
        cx: &TaskContext,
        mail: &Mailbox,
    ) -> Result<Turn> {
        self.0.next_order(batch, cx, mail)
    }

    fn wait(&mut self, cx: &TaskContext, mail: &Mailbox, most: Option<Duration>) -> Result<()> {
        wait_any(&self.1, |_| false, &mail.bell, &cx.cancel, most)
    }

    fn close(&mut self, _: Closing) {}
}

#[test]
fn a_lost_wake_up_is_found() {
    let said =
        finds("a bell that is checked before it is heard", WITHIN, a_bell_that_is_checked_before_it_is_heard);
    assert!(said.contains("deadlock"), "{said}");
    let said = finds("a flag that is cleared too late", WITHIN, a_flag_that_is_cleared_too_late);
    assert!(said.contains("deadlock"), "{said}");
}

#[test]
fn a_wait_that_leaves_an_input_out_is_found() {
    let deaf = || through_a_gate(|inputs| Box::new(Deaf(Gate::new(inputs), Vec::new())));
    let said = finds("a wait that leaves its inputs out", WITHIN, deaf);
    assert!(said.contains("deadlock"), "{said}");
}

#[test]
fn a_cut_that_is_not_exact_is_found() {
    let eager = || {
        through_a_gate(|inputs| {
            let open = vec![true; inputs.len()];
            Box::new(Eager { aligner: Aligner::new(inputs.len()), inputs, open, ended: None })
        });
    };
    let said = finds("a gate that reads an input after its barrier", WITHIN, eager);
    assert!(said.contains("the cut at barrier"), "{said}");
}

/// On threads as without: the decisions' own explorations have the rest of these.
#[test]
fn a_restart_that_does_not_begin_where_it_must_is_found() {
    for (flaw, says) in [
        (Flaw::LeavesSavepointsOut, &["is in sinks", "thrown away", "what is visible"] as &[_]),
        (Flaw::ForgetsToLook, &["is in sinks", "thrown away", "what is visible"]),
        (Flaw::CommitsEarly, &["no complete checkpoint holds it"]),
    ] {
        let said = finds(&format!("{flaw:?}"), WITHIN, move || with_trouble(flaw));
        assert!(says.iter().any(|says| said.contains(says)), "{flaw:?}: {said}");
    }
}
