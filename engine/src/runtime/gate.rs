//! The reading side of a task: many channels in, one ordered story out.
// HOT: per batch. One batch per input and sweep, so that no input starves.

use std::collections::VecDeque;
use std::time::Duration;

use crate::context::TaskContext;
use crate::element::{Barrier, Element, EndKind, Notice, Record};
use crate::error::{Result, TaskError};
use crate::ids::TaskId;
use crate::operator::Closing;
use crate::runtime::align::{Aligner, Alignment};
use crate::runtime::channel::{Peeked, Rx, wait_any};
use crate::runtime::frontier::{Advance, Frontier};
use crate::runtime::input::{Control, Input, Turn};
use crate::runtime::mail::Mailbox;

/// Reads every input that may be read, aligns barriers, merges watermarks, and says when all have ended.
pub(crate) struct Gate<T> {
    inputs: Vec<Rx<T>>,
    aligner: Aligner,
    frontier: Frontier,
    /// Where the next sweep starts, so that the first input is not always first.
    cursor: usize,
    /// The input that the last batch came from.
    last: usize,
    /// What one element brought about beyond its first turn.
    pending: VecDeque<Turn>,
    /// Keep wins over flush: a half-kept job must not fire.
    ended: Option<EndKind>,
}

impl<T> Gate<T> {
    pub(crate) fn new(inputs: Vec<Rx<T>>) -> Self {
        let n = inputs.len();
        Gate {
            inputs,
            aligner: Aligner::new(n),
            frontier: Frontier::new(n),
            cursor: 0,
            last: 0,
            pending: VecDeque::with_capacity(4),
            ended: None,
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
                    let name = |i: usize| {
                        self.inputs[i].from.as_ref().map_or_else(|| i.to_string(), TaskId::to_string)
                    };
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
        if kind == EndKind::Flush {
            let advance = self.frontier.end(i);
            self.advance(advance);
        }
        if self.aligner.all_ended() {
            self.pending.push_back(Turn::End(self.ended.unwrap_or(EndKind::Keep)));
        }
    }
}

impl<T> Gate<T> {
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

impl<T: Send> Input<T> for Gate<T> {
    fn open(&mut self, cx: &TaskContext) -> Result<()> {
        let capacity = self.inputs.iter().map(Rx::capacity).sum();
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
            let n = self.inputs.len();
            let mut found = false;
            for step in 0..n {
                let i = (self.cursor + step) % n;
                if !self.aligner.readable(i) {
                    continue;
                }
                let element = match self.inputs[i].peek() {
                    Peeked::Got(element) => element,
                    Peeked::Empty => continue,
                    Peeked::Lost => return Err(TaskError::upstream_lost()),
                };
                self.cursor = (i + 1) % n;
                match element {
                    Element::Batch(records) => {
                        let woke = self.frontier.active(i);
                        let queued = self.inputs.iter().map(Rx::len).sum();
                        cx.stats.queued.store(queued, std::sync::atomic::Ordering::Relaxed);
                        let emptied = std::mem::replace(batch, records);
                        if emptied.capacity() > 0 {
                            self.inputs[self.last].give_back(emptied);
                        }
                        self.last = i;
                        if woke {
                            self.pending.push_back(Turn::Batch);
                            return Ok(Turn::Active);
                        }
                        return Ok(Turn::Batch);
                    }
                    Element::Watermark(w) => {
                        if self.frontier.active(i) {
                            self.pending.push_back(Turn::Active);
                        }
                        let advance = self.frontier.observe(i, w);
                        self.advance(advance);
                    }
                    Element::Idle => {
                        let advance = self.frontier.idle(i);
                        self.advance(advance);
                    }
                    Element::Active => {
                        if self.frontier.active(i) {
                            self.pending.push_back(Turn::Active);
                        }
                    }
                    Element::Barrier(b) => {
                        let outcome = self.aligner.barrier(i, b);
                        self.align(outcome, cx);
                    }
                    Element::End(kind) => self.on_end(i, kind, cx),
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
        wait_any(&self.inputs, |i| self.aligner.readable(i), &mail.bell, &cx.cancel, most)
    }

    fn close(&mut self, _: Closing) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Barrier;
    use crate::ids::CheckpointId;
    use crate::runtime::channel::edge;
    use crate::runtime::mail::mailbox;
    use crate::testkit::task_context;
    use crate::time::{EventTime, Watermark};

    fn batch(values: &[i64]) -> Element<i64> {
        Element::Batch(values.iter().map(|v| Record::new(*v, EventTime(*v))).collect())
    }

    fn drain(gate: &mut Gate<i64>) -> Result<Vec<String>> {
        let (_sender, mail) = mailbox();
        let mut story = Vec::new();
        loop {
            let mut records = Vec::new();
            match gate.next(&mut records, &task_context("t"), &mail)? {
                Turn::Batch => story.extend(records.iter().map(|r| r.value.to_string())),
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
