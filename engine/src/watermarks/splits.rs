//! The watermark of one source subtask, out of those of its splits. Pure: time is told to it.
// HOT: `observe` once per run of records of one split.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::generator::{RestoredSplit, WatermarkGenerator};
use super::guard::Latest;
use crate::element::Record;
use crate::runtime::frontier::{Advance, Frontier};
use crate::source::SplitId;
use crate::time::{EventTime, Watermark};

/// The splits of one subtask. `now` is always the time that the source has been free to read.
#[derive(Debug)]
pub(crate) struct SplitClocks<G> {
    generator: G,
    idle_after: Option<Duration>,
    frontier: Frontier,
    splits: Vec<Split<G>>,
    /// How far event time has come by the clock alone: a promise of every split there is.
    passed: Watermark,
}

#[derive(Debug)]
struct Split<G> {
    id: SplitId,
    generator: G,
    latest: Latest,
    /// Since when it has been known to hold nothing. A split that nobody has looked into is not silent.
    dry: Option<Duration>,
    /// The source says itself when this split is dry.
    told: bool,
    live: bool,
}

/// Where a split stands, as a checkpoint holds it under the split's name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Mark {
    latest: EventTime,
    /// What the clock said when it came.
    at_ms: i64,
    watermark: Watermark,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    saved: Value,
}

/// More than that only the end of the input may promise.
const FURTHEST: Watermark = Watermark(i64::MAX - 1);

impl<G: Clone> SplitClocks<G> {
    pub(crate) fn new(generator: G, idle_after: Option<Duration>) -> Self {
        let frontier = Frontier::new(0);
        SplitClocks { generator, idle_after, frontier, splits: Vec::new(), passed: Watermark::MIN }
    }

    /// The place of `id`, if it is known.
    #[inline]
    pub(crate) fn find(&self, id: SplitId) -> Option<usize> {
        self.splits.iter().position(|s| s.id == id)
    }

    /// A split that was not known; `mark` is what a checkpoint says of it. What was promised for it counts with what is next
    /// heard of any split, so that splits which come together hold each other.
    pub(crate) fn start<T>(&mut self, id: SplitId, mark: Option<Mark>) -> usize
    where
        G: WatermarkGenerator<T>,
    {
        let mut generator = self.generator.clone();
        let mut latest = Latest::NONE;
        let i = self.frontier.add();
        if let Some(Mark { latest: time, at_ms, watermark, saved }) = mark {
            latest = Latest { time, at_ms };
            let promised = generator.restore(&RestoredSplit { latest: time, watermark, saved });
            if let Some(w) = promised {
                self.frontier.begin(i, w.min(FURTHEST));
            }
        }
        self.splits.push(Split { id, generator, latest, dry: None, told: false, live: true });
        i
    }

    /// What the splits that have begun together come to.
    pub(crate) fn settle(&mut self) -> Advance {
        self.frontier.settle()
    }

    pub(crate) fn finished(&mut self, i: usize) -> Advance {
        self.splits[i].live = false;
        self.frontier.end(i)
    }

    /// The source says that the split holds nothing more. From the first such word on, nothing else counts for it.
    pub(crate) fn drained(&mut self, i: usize, now: Duration) {
        let split = &mut self.splits[i];
        if !std::mem::replace(&mut split.told, true) {
            split.dry = None;
        }
        split.dry.get_or_insert(now);
    }

    fn guessed(&mut self) -> impl Iterator<Item = &mut Split<G>> {
        self.splits.iter_mut().filter(|s| !s.told)
    }

    /// A poll found nothing more in any split.
    pub(crate) fn all_drained(&mut self, now: Duration) {
        for split in self.guessed() {
            split.dry.get_or_insert(now);
        }
    }

    /// A poll ended with more to come, from whichever split: for all anyone knows, from every one.
    pub(crate) fn more_to_come(&mut self) {
        self.guessed().for_each(|s| s.dry = None);
    }

    /// The latest record of the split.
    #[inline]
    pub(crate) fn latest(&self, i: usize) -> Latest {
        self.splits[i].latest
    }

    /// The split gave records, the latest at `to` when the clock said `now_ms`.
    #[inline]
    pub(crate) fn observe<T>(
        &mut self,
        i: usize,
        records: &[Record<T>],
        to: EventTime,
        now_ms: i64,
    ) -> Advance
    where
        G: WatermarkGenerator<T>,
    {
        let split = &mut self.splits[i];
        split.dry = None;
        split.latest.reach(to, now_ms);
        self.frontier.active(i);
        match split.generator.on_records(records, to) {
            Some(w) => self.frontier.observe(i, w.min(FURTHEST)),
            None => Advance::default(),
        }
    }

    /// Generators that go by the clock are asked.
    pub(crate) fn on_clock<T>(&mut self, now_ms: i64) -> Option<Watermark>
    where
        G: WatermarkGenerator<T>,
    {
        let mut to = None;
        for (i, split) in self.splits.iter_mut().enumerate().filter(|(_, s)| s.live) {
            if let Some(w) = split.generator.on_clock(now_ms) {
                to = self.frontier.raise(i, w.min(FURTHEST)).to.or(to);
            }
        }
        to
    }

    /// Splits that have been dry for too long become idle.
    pub(crate) fn tick(&mut self, now: Duration) -> Advance {
        let Some(limit) = self.idle_after else { return Advance::default() };
        self.idle_where(|dry| dry.is_some_and(|since| now.saturating_sub(since) >= limit))
    }

    /// Every split becomes idle.
    pub(crate) fn all_idle(&mut self) -> Advance {
        self.idle_where(|_| true)
    }

    fn idle_where(&mut self, which: impl Fn(Option<Duration>) -> bool) -> Advance {
        let mut all = Advance::default();
        for (i, split) in self.splits.iter().enumerate() {
            if split.live && which(split.dry) {
                let advance = self.frontier.idle(i);
                all = Advance { to: advance.to.or(all.to), idle: all.idle || advance.idle };
            }
        }
        all
    }

    /// Since when every split has been dry; none while one is not, or when there is no split.
    pub(crate) fn dry_since(&self) -> Option<Duration> {
        let live = || self.splits.iter().filter(|s| s.live);
        if live().any(|s| s.dry.is_none()) { None } else { live().filter_map(|s| s.dry).max() }
    }

    /// Event time has come to `w` by the clock; gives it if that is news.
    pub(crate) fn pass(&mut self, w: Watermark) -> Option<Watermark> {
        let w = w.min(FURTHEST);
        self.passed = self.passed.max(w);
        self.frontier.pass(w).then_some(w)
    }

    /// The watermark of the subtask.
    pub(crate) fn watermark(&self) -> Watermark {
        self.frontier.combined()
    }

    /// True when there is no split that could ever hold the watermark back.
    pub(crate) fn no_splits(&self) -> bool {
        self.splits.iter().all(|s| !s.live)
    }

    /// Where each live split stands that has had a record, or that event time has passed by the clock.
    pub(crate) fn marks<T>(&self) -> impl Iterator<Item = (SplitId, Mark)>
    where
        G: WatermarkGenerator<T>,
    {
        self.splits.iter().enumerate().filter(|(_, s)| s.live).filter_map(|(i, split)| {
            let mark = Mark {
                latest: split.latest.time,
                at_ms: split.latest.at_ms,
                // Nothing behind what has passed is promised any more, whichever subtask reads the split next.
                watermark: self.frontier.own(i).max(self.passed),
                saved: split.generator.save(),
            };
            let news = mark.latest != EventTime::NONE
                || mark.watermark != Watermark::MIN
                || mark.saved != Value::Null;
            news.then_some((split.id, mark))
        })
    }
}

impl Mark {
    /// Of two that lives before have left of one split, the one that knows more.
    pub(crate) fn further(self, other: Mark) -> Mark {
        if (other.watermark, other.latest) > (self.watermark, self.latest) { other } else { self }
    }
}

#[cfg(test)]
#[path = "splits_tests.rs"]
mod tests;
