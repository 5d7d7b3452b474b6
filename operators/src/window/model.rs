//! For the tests of windows: random steps of a life with failures, and a plain computation over all records as the oracle.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use weir_engine::{Keyed, Operator, Record};

use crate::aggregate::{Aggregate, count, sum};
use crate::fleet::Fleet;
use crate::window::{Pane, WindowResult};

/// What happens to an operator.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Records: key, value, and how far from the watermark their time is.
    Batch(Vec<(u64, i64, i64)>),
    /// How far the watermark goes on.
    Watermark(i64),
    /// The same, but what is given in parts is not waited for.
    Begin(i64),
    /// The next part.
    Quiet,
    Save,
    /// A barrier whose snapshot is lost.
    Lose,
    /// Back to what was saved last, with that many subtasks.
    Restore(usize),
}

/// Some late records, some far ahead, ties and duplicates among them.
pub(crate) fn steps(keys: u64, late: i64, ahead: i64) -> impl Strategy<Value = Vec<Step>> {
    let records = prop::collection::vec((0..keys, -5..5i64, -late..ahead), 0..20);
    let step = prop_oneof![
        6 => records.prop_map(Step::Batch),
        2 => (1..25i64).prop_map(Step::Watermark),
        2 => (1..60i64).prop_map(Step::Begin),
        1 => Just(Step::Quiet),
        2 => Just(Step::Save),
        1 => Just(Step::Lose),
        1 => (1..5usize).prop_map(Step::Restore),
    ];
    prop::collection::vec(step, 0..50)
}

/// How many values, and their sum.
pub(crate) fn both() -> impl Aggregate<i64, Out = (u64, i64)> {
    (count(), sum(|n: &i64| *n))
}

/// End, start, key, what it came to, which result it is.
pub(crate) type Row = (i64, i64, u64, (u64, i64), Pane);

/// A computation that says, step by step, what an operator should give.
pub(crate) trait Model: Clone {
    fn watermark(&self) -> i64;
    fn take(&mut self, key: u64, value: i64, time: i64, rows: &mut Vec<Row>);
    fn advance(&mut self, to: i64, rows: &mut Vec<Row>);
}

pub(crate) fn rows(results: Vec<Record<WindowResult<u64, (u64, i64)>>>) -> Vec<Row> {
    let row = |Record { value: r, time }: Record<WindowResult<u64, (u64, i64)>>| {
        assert_eq!(time, r.window.last());
        (r.window.end.0, r.window.start.0, r.key, r.value, r.pane)
    };
    let mut rows: Vec<Row> = results.into_iter().map(row).collect();
    rows.sort_unstable();
    rows
}

/// Leads the operator and the model through the steps, and compares what they give: after each, unless there are parts to come.
pub(crate) fn agree<Op, M>(op: Op, mut model: M, steps: Vec<Step>) -> Result<(), TestCaseError>
where
    Op: Operator<Keyed<u64, i64>, Out = WindowResult<u64, (u64, i64)>>,
    M: Model,
{
    let mut fleet = Fleet::of(op, 2);
    let start = model.watermark();
    fleet.watermark(start);
    // What the model has given and the operator has not.
    let mut owed = Vec::new();
    let mut saved = (fleet.save(), model.clone(), owed.clone());
    let steps = steps.into_iter().chain([Step::Watermark(10_000)]);
    for step in steps {
        match step {
            Step::Batch(records) => {
                let at = model.watermark();
                let records: Vec<_> =
                    records.into_iter().map(|(key, value, time)| (key, value, at + time)).collect();
                records.iter().for_each(|(key, value, time)| model.take(*key, *value, *time, &mut owed));
                fleet.batch(records);
            }
            Step::Watermark(by) | Step::Begin(by) => {
                let to = model.watermark() + by;
                model.advance(to, &mut owed);
                match step {
                    Step::Begin(_) => fleet.begin_watermark(to),
                    _ => fleet.watermark(to),
                }
            }
            Step::Quiet => fleet.quiet(),
            Step::Save => saved = (fleet.save(), model.clone(), owed.clone()),
            Step::Lose => fleet.lose(),
            Step::Restore(parallelism) => {
                fleet.restore(&saved.0, parallelism);
                (model, owed) = (saved.1.clone(), saved.2.clone());
            }
        }
        for row in rows(fleet.take()) {
            let Some(at) = owed.iter().position(|owed| *owed == row) else {
                return Err(TestCaseError::fail(format!(
                    "{row:?} was given, and only these were owed: {owed:?}"
                )));
            };
            owed.swap_remove(at);
        }
        prop_assert!(fleet.has_more() || owed.is_empty(), "not given: {:?}", owed);
    }
    Ok(())
}

/// Windows that do not depend on the records, computed anew from all records whenever something is to be given.
#[derive(Clone)]
pub(crate) struct Batch {
    /// Start and end of each window that a time is in.
    pub(crate) windows: Rc<dyn Fn(i64) -> Vec<(i64, i64)>>,
    pub(crate) lateness: i64,
    /// Given: how much later the next window ends, for which keys that had something before are told that they have nothing.
    pub(crate) emptied: Option<i64>,
    pub(crate) watermark: i64,
    /// Key, value, time, and the watermark when it came.
    records: Vec<(u64, i64, i64, i64)>,
    given: BTreeMap<(i64, i64, u64), u32>,
}

impl Batch {
    pub(crate) fn of(windows: impl Fn(i64) -> Vec<(i64, i64)> + 'static) -> Self {
        Batch {
            windows: Rc::new(windows),
            lateness: 0,
            emptied: None,
            watermark: -100,
            records: Vec::new(),
            given: BTreeMap::new(),
        }
    }

    /// What the records that count in a window come to, by key.
    fn totals(&self, (start, end): (i64, i64)) -> BTreeMap<u64, (u64, i64)> {
        let mut totals = BTreeMap::<u64, (u64, i64)>::new();
        for (key, value, time, watermark) in &self.records {
            if start <= *time && *time < end && end - 1 + self.lateness > *watermark {
                let total = totals.entry(*key).or_default();
                *total = (total.0 + 1, total.1 + value);
            }
        }
        totals
    }

    /// Gives a window that is not over.
    pub(crate) fn give_early(&mut self, window: (i64, i64), key: u64, rows: &mut Vec<Row>) {
        let total = self.totals(window)[&key];
        self.give(window, key, total, Pane::early, rows);
    }

    fn give(
        &mut self,
        (start, end): (i64, i64),
        key: u64,
        value: (u64, i64),
        pane: fn(u32) -> Pane,
        rows: &mut Vec<Row>,
    ) {
        let number = self.given.entry((start, end, key)).or_default();
        rows.push((end, start, key, value, pane(*number)));
        *number += 1;
    }
}

impl Model for Batch {
    fn watermark(&self) -> i64 {
        self.watermark
    }

    fn take(&mut self, key: u64, value: i64, time: i64, rows: &mut Vec<Row>) {
        self.records.push((key, value, time, self.watermark));
        for window in (self.windows)(time) {
            let over = window.1 - 1 <= self.watermark;
            if over && window.1 - 1 + self.lateness > self.watermark {
                let total = self.totals(window)[&key];
                self.give(window, key, total, Pane::late, rows);
            }
        }
    }

    fn advance(&mut self, to: i64, rows: &mut Vec<Row>) {
        let all = self.records.iter().flat_map(|(_, _, time, _)| (self.windows)(*time));
        let mut windows: BTreeSet<_> = all.collect();
        if let Some(step) = self.emptied {
            let next: Vec<_> = windows.iter().map(|(start, end)| (start + step, end + step)).collect();
            windows.extend(next);
        }
        for window in windows {
            if window.1 - 1 <= self.watermark || window.1 - 1 > to {
                continue;
            }
            let totals = self.totals(window);
            for (key, total) in &totals {
                self.give(window, *key, *total, Pane::on_time, rows);
            }
            let Some(step) = self.emptied else { continue };
            for key in self.totals((window.0 - step, window.1 - step)).keys() {
                if !totals.contains_key(key) {
                    rows.push((window.1, window.0, *key, (0, 0), Pane::ONLY));
                }
            }
        }
        self.watermark = to;
    }
}
