//! The reading side of a task: many channels in, one ordered story out.
// HOT: per batch. One batch per input and sweep, so that no input starves.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::time::Duration;

use crate::context::TaskContext;
use crate::element::{Barrier, EndKind, Notice, Record};
use crate::error::{Result, TaskError};
use crate::ids::TaskId;
use crate::operator::Closing;
use crate::runtime::align::{Aligner, Alignment};
use crate::runtime::channel::Rx;
use crate::runtime::frontier::{Advance, Frontier};
use crate::runtime::input::{Control, Input, Turn};
use crate::runtime::inputs::{Alike, Found, Inputs};
use crate::runtime::mail::Mailbox;

/// Reads every input that may be read, aligns barriers, merges watermarks, and says when all have ended.
// Aligned as tasks are.
#[repr(align(128))]
pub(crate) struct Gate<T, I = Alike<T>> {
    inputs: I,
    aligner: Aligner,
    /// Of the inputs that say where event time is: the first ones.
    frontier: Frontier,
    timed: usize,
    /// Where the next sweep starts, so that the first input is not always first.
    cursor: usize,
    /// What one element brought about beyond its first turn.
    pending: VecDeque<Turn>,
    /// Keep wins over flush: a half-kept job must not fire.
    ended: Option<EndKind>,
    _of: PhantomData<fn() -> T>,
}

impl<T: Send> Gate<T> {
    pub(crate) fn new(inputs: Vec<Rx<T>>) -> Self {
        Gate::over(Alike::new(inputs))
    }
}

impl<T, I: Inputs<T>> Gate<T, I> {
    pub(crate) fn over(inputs: I) -> Self {
        let (n, timed) = (inputs.count(), inputs.timed());
        Gate {
            inputs,
            aligner: Aligner::new(n),
            frontier: Frontier::new(timed),
            timed,
            cursor: 0,
            pending: VecDeque::with_capacity(4),
            ended: None,
            _of: PhantomData,
        }
    }

    fn advance(&mut self, advance: Advance) {
        self.pending.extend(advance.to.map(Turn::Watermark));
        if advance.idle {
            self.pending.push_back(Turn::Idle);
        }
    }

    fn align(&mut self, mut outcome: Alignment, cx: &TaskContext) {
        loop {
            match outcome {
                Alignment::Wait => {
                    let name =
                        |i: usize| self.inputs.from(i).map_or_else(|| i.to_string(), TaskId::to_string);
                    return cx.stats.aligning(self.aligner.missing().into_iter().map(name).collect());
                }
                Alignment::Obsolete => return,
                Alignment::Complete(barrier) => {
                    cx.stats.aligning(Vec::new());
                    return self.pending.push_back(Turn::Barrier(barrier));
                }
                Alignment::Overtaken(_) => outcome = self.aligner.settle(),
            }
        }
    }

    fn on_end(&mut self, i: usize, kind: EndKind, cx: &TaskContext) {
        self.ended = Some(self.ended.map_or(kind, |k| k.min(kind)));
        let outcome = self.aligner.end(i);
        self.align(outcome, cx);
        // An input that will go on in another life still holds event time back, or its siblings' last watermarks would
        // fire what is to be kept.
        if kind == EndKind::Flush && i < self.timed {
            let advance = self.frontier.end(i);
            self.advance(advance);
        }
        if self.aligner.all_ended() {
            self.pending.push_back(Turn::End(self.ended.unwrap_or(EndKind::Keep)));
        }
    }

    /// Records came from input `i`.
    fn on_batch(&mut self, i: usize, cx: &TaskContext) -> Turn {
        cx.stats.queued.store(self.inputs.queued(), std::sync::atomic::Ordering::Relaxed);
        if i < self.timed {
            if self.frontier.active(i) {
                self.pending.push_back(Turn::Batch);
                return Turn::Active;
            }
        } else if self.frontier.is_idle() {
            // What these records bring about must not make anybody downstream wait for our watermark.
            self.pending.extend([Turn::Batch, Turn::Idle]);
            return Turn::Active;
        }
        Turn::Batch
    }

    /// Input `i`, which says where event time is, gave a sign of life.
    fn wake(&mut self, i: usize) {
        if self.frontier.active(i) {
            self.pending.push_back(Turn::Active);
        }
    }
}

impl<T, I: Inputs<T>> Gate<T, I> {
    /// A gate takes no orders: barriers and the end arrive in the stream. It only hears what became of checkpoints.
    fn hear(&mut self, cx: &TaskContext, mail: &Mailbox) -> Option<Turn> {
        while let Some(control) = mail.take() {
            if let Control::Notice(notice) = control {
                if let Notice::Aborted(checkpoint) = notice {
                    self.aligner.abort(Barrier { checkpoint });
                    cx.stats.aligning(Vec::new());
                }
                return Some(Turn::Notice(notice));
            }
        }
        None
    }
}

impl<T: Send, I: Inputs<T>> Input<T> for Gate<T, I> {
    fn open(&mut self, cx: &TaskContext) -> Result<()> {
        let capacity = self.inputs.capacity();
        cx.stats.queue_capacity.store(capacity, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    fn next(&mut self, batch: &mut Vec<Record<T>>, cx: &TaskContext, mail: &Mailbox) -> Result<Turn> {
        if let Some(turn) = self.hear(cx, mail) {
            return Ok(turn);
        }
        loop {
            if let Some(turn) = self.pending.pop_front() {
                return Ok(turn);
            }
            let n = self.inputs.count();
            let mut found = false;
            for step in 0..n {
                let i = (self.cursor + step) % n;
                if !self.aligner.readable(i) {
                    continue;
                }
                let element = match self.inputs.take(i, batch) {
                    Found::Empty => continue,
                    Found::Lost => return Err(TaskError::upstream_lost()),
                    element => element,
                };
                self.cursor = (i + 1) % n;
                match element {
                    Found::Batch => return Ok(self.on_batch(i, cx)),
                    Found::Barrier(b) => {
                        let outcome = self.aligner.barrier(i, b);
                        if outcome != Alignment::Obsolete {
                            cx.stats.barrier_came(b);
                        }
                        self.align(outcome, cx);
                    }
                    Found::End(kind) => self.on_end(i, kind, cx),
                    Found::Watermark(w) if i < self.timed => {
                        self.wake(i);
                        let advance = self.frontier.observe(i, w);
                        self.advance(advance);
                    }
                    Found::Idle if i < self.timed => {
                        let advance = self.frontier.idle(i);
                        self.advance(advance);
                    }
                    Found::Active if i < self.timed => self.wake(i),
                    _ => {}
                }
                found = true;
                break;
            }
            if !found {
                cx.stats.queued.store(0, std::sync::atomic::Ordering::Relaxed);
                return Ok(Turn::Quiet);
            }
        }
    }

    fn next_order(&mut self, _: &mut Vec<Record<T>>, cx: &TaskContext, mail: &Mailbox) -> Result<Turn> {
        let turn = self.hear(cx, mail).or_else(|| self.pending.pop_front());
        Ok(turn.unwrap_or(Turn::Quiet))
    }

    fn wait(&mut self, cx: &TaskContext, mail: &Mailbox, most: Option<Duration>) -> Result<()> {
        let _idle = cx.stats.idle();
        self.inputs.wait(|i| self.aligner.readable(i), &mail.bell, &cx.cancel, most)
    }

    fn close(&mut self, _: Closing) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::{Barrier, Element};
    use crate::ids::CheckpointId;
    use crate::runtime::channel::edge;
    use crate::runtime::mail::mailbox;
    use crate::testkit::task_context;
    use crate::time::{EventTime, Watermark};

    fn batch(values: &[i64]) -> Element<i64> {
        Element::Batch(values.iter().map(|v| Record::new(*v, EventTime(*v))).collect())
    }

    fn drain(gate: &mut impl Input<i64>) -> Result<Vec<String>> {
        let (_sender, mail) = mailbox();
        let mut story = Vec::new();
        // What comes in with the end of idleness is there at the next turn.
        let mut records = Vec::new();
        loop {
            match gate.next(&mut records, &task_context("t"), &mail)? {
                Turn::Batch => story.extend(records.drain(..).map(|r| r.value.to_string())),
                Turn::Quiet => return Ok(story),
                turn => {
                    let done = matches!(turn, Turn::End(_));
                    story.push(format!("{turn:?}"));
                    if done {
                        return Ok(story);
                    }
                }
            }
        }
    }

    #[test]
    fn a_barrier_holds_its_input_until_the_others_caught_up() {
        let (a, ra) = edge(8);
        let (b, rb) = edge(8);
        let mut gate = Gate::new(vec![ra, rb]);
        let one = Barrier { checkpoint: CheckpointId(1) };
        for e in [batch(&[1]), Element::Barrier(one), batch(&[9])] {
            a.try_send(e).unwrap();
        }
        b.try_send(batch(&[2])).unwrap();
        assert_eq!(drain(&mut gate).unwrap(), ["1", "2"]);
        for e in [batch(&[3]), Element::Barrier(one), batch(&[10])] {
            b.try_send(e).unwrap();
        }
        assert_eq!(
            drain(&mut gate).unwrap(),
            ["3", "Barrier(Barrier { checkpoint: CheckpointId(1) })", "9", "10"]
        );
    }

    #[test]
    fn two_types_become_one_and_event_time_waits_for_the_left_alone() {
        use crate::runtime::inputs::Two;
        let (data, left) = edge::<i64>(8);
        let (rules, right) = edge::<String>(8);
        let two = Two {
            left: vec![left],
            right: vec![right],
            wrap_left: |n| n,
            wrap_right: |s: String| -(s.len() as i64),
            right_is_timed: false,
        };
        let mut gate = Gate::over(two);
        let rule = || Element::Batch(vec![Record::new("abc".to_owned(), EventTime(1))]);
        data.try_send(batch(&[1])).unwrap();
        data.try_send(Element::Watermark(Watermark(5))).unwrap();
        rules.try_send(rule()).unwrap();
        rules.try_send(Element::Watermark(Watermark(90))).unwrap();
        assert_eq!(drain(&mut gate).unwrap(), ["1", "-3", "Watermark(5)"]);
        data.try_send(Element::Idle).unwrap();
        assert_eq!(drain(&mut gate).unwrap(), ["Idle"]);
        // Who is downstream must not begin to wait for us.
        rules.try_send(rule()).unwrap();
        assert_eq!(drain(&mut gate).unwrap(), ["Active", "-3", "Idle"]);
        let barrier = Barrier { checkpoint: CheckpointId(1) };
        rules.try_send(Element::Barrier(barrier)).unwrap();
        rules.try_send(rule()).unwrap();
        assert_eq!(drain(&mut gate).unwrap(), Vec::<String>::new());
        data.try_send(Element::Barrier(barrier)).unwrap();
        let cut = format!("{:?}", Turn::Barrier(barrier));
        assert_eq!(drain(&mut gate).unwrap(), [cut.as_str(), "Active", "-3", "Idle"]);
        rules.try_send(Element::End(EndKind::Flush)).unwrap();
        data.try_send(batch(&[2])).unwrap();
        data.try_send(Element::Watermark(Watermark::MAX)).unwrap();
        data.try_send(Element::End(EndKind::Flush)).unwrap();
        let max = format!("{:?}", Turn::Watermark(Watermark::MAX));
        assert_eq!(drain(&mut gate).unwrap(), ["Active", "2", max.as_str(), "End(Flush)"]);
    }

    #[test]
    fn a_disconnect_without_end_is_a_failure() {
        let (a, ra) = edge::<i64>(8);
        let (b, rb) = edge::<i64>(8);
        let mut gate = Gate::new(vec![ra, rb]);
        a.try_send(Element::End(EndKind::Flush)).unwrap();
        drop(a);
        drop(b);
        let error = loop {
            match drain(&mut gate) {
                Err(e) => break e,
                Ok(story) => assert!(story.is_empty()),
            }
        };
        assert_eq!(error.cause(), crate::error::Cause::UpstreamLost);
    }

    #[test]
    fn ends_when_all_ended_and_keep_wins() {
        let (a, ra) = edge::<i64>(8);
        let (b, rb) = edge::<i64>(8);
        let mut gate = Gate::new(vec![ra, rb]);
        a.try_send(Element::Watermark(Watermark::MAX)).unwrap();
        a.try_send(Element::End(EndKind::Flush)).unwrap();
        b.try_send(Element::End(EndKind::Keep)).unwrap();
        assert_eq!(drain(&mut gate).unwrap(), ["End(Keep)"]);
    }
}
