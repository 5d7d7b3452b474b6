//! `Fronts`: how far each key group has come: which windows were given of it, and what is late for it.
//!
//! Mostly all have come equally far. Where a window is given in parts some are a window ahead; and after a restore that brings together what
//! several subtasks had, each group goes on from where it was.

use std::ops::Range;

use serde_json::{Value, json};
use weir_engine::{KeyHash, OperatorContext, Result, TaskError, Watermark};
use weir_state::store::Snapshot;

use crate::progress;
use crate::window::slices::Slicing;

/// The list of the checkpoint that says how far the groups have come, by their range.
const LIST: &str = "fronts";

/// How far a group has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Front {
    /// Where the last window ended that was given of it.
    pub(super) position: i128,
    /// What event time had reached for it before the restore.
    floor: Watermark,
}

impl Front {
    /// What event time has reached for it.
    pub(super) fn reached(&self, watermark: Watermark) -> Watermark {
        self.floor.max(watermark)
    }
}

/// Some groups that follow each other and have come equally far, and the next window of them that is to be given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) groups: Range<u16>,
    pub(super) position: i128,
    pub(super) end: i128,
}

#[derive(Debug)]
pub(super) struct Fronts {
    own: Range<u16>,
    groups: u16,
    /// By group.
    fronts: Vec<Front>,
    /// For a subtask without groups.
    none: Front,
}

impl Fronts {
    /// As they were at the checkpoint.
    ///
    /// # Errors
    /// It says something else in their place.
    pub(super) fn open(cx: &OperatorContext, slicing: &Slicing, watermark: Watermark) -> Result<Self> {
        let store = cx.store()?;
        let own = store.key_groups();
        let from = |watermark| Front { position: slicing.position(watermark), floor: watermark };
        let mut fronts = vec![from(watermark); own.len()];
        let is_held = progress::was_held(cx);
        for item in cx.restored_of_own_keys(LIST) {
            let (these, front) = read(&item.key, &item.value).ok_or_else(|| {
                TaskError::external(format!(
                    "the checkpoint says of the key groups {:?} that they had come to {}, which is no place: restore from another one",
                    item.key, item.value
                ))
            })?;
            // After the end of all input event time begins anew.
            let ended = front.floor == Watermark::MAX && !is_held;
            let front = if ended { from(Watermark::MIN) } else { front };
            let shared = these.start.max(own.start)..these.end.min(own.end);
            shared.for_each(|group| fronts[usize::from(group - own.start)] = front);
        }
        Ok(Fronts { own, groups: store.groups(), fronts, none: from(watermark) })
    }

    /// How many groups there are in the job.
    pub(super) fn groups(&self) -> u16 {
        self.groups
    }

    /// How many of them are this subtask's.
    pub(super) fn own(&self) -> usize {
        self.fronts.len()
    }

    pub(super) fn of(&self, hash: KeyHash) -> Front {
        let at = hash.group(self.groups).0.checked_sub(self.own.start).map(usize::from);
        at.and_then(|at| self.fronts.get(at)).copied().unwrap_or(self.none)
    }

    pub(super) fn each(&self) -> impl Iterator<Item = Front> {
        self.fronts.iter().copied()
    }

    /// Where the group stands that has not come further than any other.
    pub(super) fn least(&self) -> i128 {
        self.each().map(|front| front.position).min().unwrap_or(self.none.position)
    }

    /// Where all of them stand, if that is one place.
    pub(super) fn all_at(&self) -> Option<i128> {
        let least = self.least();
        self.each().all(|front| front.position == least).then_some(least)
    }

    /// The first groups, `most` of them, of which the window that ends first is to be given. `next`: the end of the next window from a place on;
    /// `is_over`: it is over for a group.
    pub(super) fn next_run(
        &self,
        most: usize,
        next: impl Fn(i128) -> Option<i128>,
        is_over: impl Fn(i128, &Front) -> bool,
    ) -> Option<Run> {
        let mut known: Option<(i128, Option<i128>)> = None;
        let mut first: Option<Run> = None;
        for (group, front) in self.own.clone().zip(&self.fronts) {
            let end = match known {
                Some((position, end)) if position == front.position => end,
                _ => next(front.position),
            };
            known = Some((front.position, end));
            let Some(end) = end.filter(|end| is_over(*end, front)) else { continue };
            match &mut first {
                Some(run) if run.end < end => {}
                Some(run) if run.position == front.position && run.end == end => {
                    if run.groups.end == group && run.groups.len() < most {
                        run.groups.end += 1;
                    }
                }
                Some(run) if run.end == end => {}
                _ => first = Some(Run { groups: group..group + 1, position: front.position, end }),
            }
        }
        first
    }

    /// The window that ends there was given of these groups.
    pub(super) fn moved(&mut self, groups: &Range<u16>, end: i128) {
        let Range { start, end: to } = *groups;
        for group in start.max(self.own.start)..to.min(self.own.end) {
            self.fronts[usize::from(group - self.own.start)].position = end;
        }
    }

    /// The groups of which that is true where they stand, those that follow each other together.
    pub(super) fn runs(&self, at: impl Fn(i128) -> bool) -> Vec<Range<u16>> {
        let mut runs: Vec<Range<u16>> = Vec::new();
        for (group, front) in self.own.clone().zip(&self.fronts) {
            match runs.last_mut() {
                _ if !at(front.position) => {}
                Some(run) if run.end == group => run.end += 1,
                _ => runs.push(group..group + 1),
            }
        }
        runs
    }

    /// Nothing is to be given of a group before the place that `to` says.
    pub(super) fn pass(&mut self, to: impl Fn(&Front) -> i128) {
        for front in self.fronts.iter_mut().chain([&mut self.none]) {
            front.position = front.position.max(to(front));
        }
    }

    /// Adds them to the checkpoint: event time is at `watermark`.
    pub(super) fn keep(&self, watermark: Watermark, into: &mut Snapshot) {
        let reached = |front: &Front| (front.position, front.reached(watermark));
        let mut start = self.own.start;
        for same in self.fronts.chunk_by(|a, b| reached(a) == reached(b)) {
            let end = start + same.len() as u16;
            let (position, watermark) = reached(&same[0]);
            let value = json!({ "position": position.to_string(), "watermark": watermark.0 });
            into.item(LIST, format!("{start}-{end}"), value);
            start = end;
        }
    }
}

fn read(groups: &str, value: &Value) -> Option<(Range<u16>, Front)> {
    let (start, end) = groups.split_once('-')?;
    let position = value.get("position")?.as_str()?.parse().ok()?;
    let floor = Watermark(value.get("watermark")?.as_i64()?);
    Some((start.parse().ok()?..end.parse().ok()?, Front { position, floor }))
}
