//! A numbered sequence cut into a fixed number of splits, so that however many subtasks share it, and share it anew, each
//! index is given once.

use serde_json::Value;
use weir_engine::{OperatorContext, RestoredItem, Result, TaskError};

/// How many splits there are: index `i` belongs to split `i % SPLITS`, and split `k` of `p` subtasks to subtask `k % p`.
/// Part of what checkpoints hold: it never changes.
pub(crate) const SPLITS: u64 = 128;

/// The list of a checkpoint that holds a source's positions.
pub(crate) const POSITIONS: &str = "positions";

/// What the share of one subtask is called: it is the same share again only where there are as many.
pub(crate) fn share_name(cx: &OperatorContext) -> String {
    format!("share {} of {}", cx.subtask(), cx.parallelism())
}

/// One subtask's splits, walked in the order of the indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stripes {
    /// The own splits, in order.
    own: Vec<u64>,
    /// Of each, the first index that an earlier life has not given.
    next: Vec<u64>,
    /// The cursor: the index looked at is `base + own[at]`.
    base: u64,
    at: usize,
    /// From this base on no split is ahead of the cursor any more.
    level: u64,
    /// The first index that no life has given, of all splits.
    first: u64,
}

impl Stripes {
    /// The share of one subtask, from the beginning.
    pub(crate) fn fresh(subtask: usize, parallelism: usize) -> Self {
        let next: Vec<u64> = (0..SPLITS).collect();
        Self::from(subtask, parallelism, &next)
    }

    /// The share of one subtask, when the splits stand at `next`.
    fn from(subtask: usize, parallelism: usize, next: &[u64]) -> Self {
        let own: Vec<u64> = (subtask as u64..SPLITS).step_by(parallelism.max(1)).collect();
        let first = next.iter().copied().min().unwrap_or(0);
        let next: Vec<u64> = own.iter().map(|k| next[*k as usize]).collect();
        let floor = |i: u64| i - i % SPLITS;
        let base = next.iter().copied().min().map_or(0, floor);
        let level = next.iter().copied().max().map_or(0, floor) + SPLITS;
        let mut stripes = Stripes { own, next, base, at: 0, level, first };
        stripes.pass_given();
        stripes
    }

    /// The share of one subtask of the source `what`, with what a checkpoint says of it; from the beginning when that is
    /// nothing. `told` are the keys in the list that are no splits.
    ///
    /// # Errors
    /// When the checkpoint's positions are not those of such a source.
    pub(crate) fn restored(cx: &OperatorContext, items: &[RestoredItem], told: &[&str]) -> Result<Self> {
        if items.is_empty() {
            return Ok(Self::fresh(cx.subtask(), cx.parallelism()));
        }
        let mut next = vec![None; SPLITS as usize];
        for item in items.iter().filter(|item| !told.contains(&item.key.as_str())) {
            let split = item.key.parse::<u64>().ok().filter(|k| *k < SPLITS);
            let position = item.value.as_u64();
            let (Some(k), Some(at)) = (split, position.filter(|at| Some(at % SPLITS) == split)) else {
                let message = format!(
                    "the checkpoint holds {}: {} as a position of this source, which is not one of its {SPLITS} splits: was \
                     there another source under this uid? Give this one a uid of its own",
                    item.key, item.value
                );
                return Err(TaskError::user(message));
            };
            next[k as usize] = Some(at);
        }
        let Some(next) = next.iter().copied().collect::<Option<Vec<u64>>>() else {
            return Err(TaskError::external(format!(
                "the checkpoint holds the positions of {} of the {SPLITS} splits of this source only: it is damaged, begin \
                 from another",
                next.iter().flatten().count()
            )));
        };
        Ok(Self::from(cx.subtask(), cx.parallelism(), &next))
    }

    /// The smallest index of this share that was not given; none for a subtask without a split.
    #[inline]
    pub(crate) fn peek(&self) -> Option<u64> {
        self.own.get(self.at).map(|k| self.base + k)
    }

    /// The index that `peek` told is given.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.step();
        if self.base < self.level {
            self.pass_given();
        }
    }

    /// The first index that had not been given when this life began, by any subtask.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Of each own split: its name, and the first index that was not given.
    pub(crate) fn positions(&self) -> Vec<(String, Value)> {
        let turn = |j: usize| self.base + if j < self.at { SPLITS } else { 0 };
        let at = |j: usize| (turn(j) + self.own[j]).max(self.next[j]);
        (0..self.own.len()).map(|j| (self.own[j].to_string(), at(j).into())).collect()
    }

    fn step(&mut self) {
        self.at += 1;
        if self.at >= self.own.len() {
            self.at = 0;
            self.base += SPLITS;
        }
    }

    /// Steps over what earlier lives have given: splits that came from different subtasks stand at different places.
    fn pass_given(&mut self) {
        while self.own.get(self.at).is_some_and(|k| self.base + k < self.next[self.at]) {
            self.step();
        }
    }
}

/// Compares something that makes the sequence what it is with what the checkpoint says of it.
///
/// # Errors
/// When they differ, naming both.
pub(crate) fn same(items: &[RestoredItem], key: &str, now: u64, what: &str) -> Result<()> {
    match items.iter().find(|item| item.key == key && item.value.as_u64() != Some(now)) {
        None => Ok(()),
        Some(item) => Err(TaskError::user(format!(
            "the checkpoint was taken with {what} {} and the source has {now}: what follows would not belong to what came \
             before; give it the old one, or begin anew",
            item.value
        ))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_engine::testkit::context;

    use super::*;

    /// The positions of all subtasks as a checkpoint gives them back.
    fn items(shares: &[Stripes]) -> Vec<RestoredItem> {
        (shares.iter().enumerate())
            .flat_map(|(subtask, s)| {
                s.positions().into_iter().map(move |(key, value)| RestoredItem { subtask, key, value })
            })
            .collect()
    }

    fn deal(parallelism: usize, items: &[RestoredItem]) -> Vec<Stripes> {
        (0..parallelism)
            .map(|s| Stripes::restored(&context("gen", s, parallelism), items, &[]).unwrap())
            .collect()
    }

    /// Takes `n` indices below `end` from a share.
    fn take(share: &mut Stripes, n: usize, end: u64) -> Vec<u64> {
        let mut got = Vec::new();
        while got.len() < n
            && let Some(i) = share.peek().filter(|i| *i < end)
        {
            got.push(i);
            share.advance();
        }
        got
    }

    proptest! {
        /// However often the job is stopped, wherever each subtask stands then, and however many there are next.
        #[test]
        fn every_index_once_over_any_lives(
            end in 0u64..3_000,
            lives in proptest::collection::vec((1usize..10, proptest::collection::vec(0usize..500, 10)), 0..6),
            last in 1usize..140,
        ) {
            let (mut held, mut all) = (Vec::new(), Vec::new());
            for (parallelism, counts) in &lives {
                let mut shares = deal(*parallelism, &held);
                for (share, n) in shares.iter_mut().zip(counts) {
                    let got = take(share, *n, end);
                    prop_assert!(got.is_sorted(), "{got:?}");
                    all.extend(got);
                }
                let again = items(&shares);
                prop_assert_eq!(again.len() as u64, SPLITS);
                held = again;
            }
            let mut shares = deal(last, &held);
            let rest: Vec<u64> = shares.iter_mut().flat_map(|s| take(s, usize::MAX, end)).collect();
            prop_assert!(rest.iter().all(|i| *i >= shares[0].first()));
            all.extend(rest);
            all.sort_unstable();
            prop_assert!(all.iter().copied().eq(0..end), "{} of {}", all.len(), end);
        }
    }

    #[test]
    fn the_job_may_grow_and_shrink() {
        let (mut held, mut all) = (Vec::new(), Vec::new());
        for (life, parallelism) in [2, 3, 7, 1].into_iter().enumerate() {
            let mut shares = deal(parallelism, &held);
            for (s, share) in shares.iter_mut().enumerate() {
                let n = if life == 3 { usize::MAX } else { 1_000 + 700 * s };
                all.extend(take(share, n, 20_000));
            }
            held = items(&shares);
        }
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..20_000));
        assert_eq!(deal(5, &held).iter_mut().map(|s| take(s, 9, 20_000).len()).sum::<usize>(), 0);
    }

    #[test]
    fn positions_of_something_else_are_refused() {
        let cx = context("gen", 0, 1);
        let item = |key: &str, value: u64| RestoredItem { subtask: 0, key: key.into(), value: value.into() };
        for bad in [item("orders/3", 7), item("128", 128), item("5", 6)] {
            let e = Stripes::restored(&cx, std::slice::from_ref(&bad), &[]).unwrap_err().to_string();
            assert!(e.contains(&format!("{}: {}", bad.key, bad.value)), "{e}");
        }
        let e = Stripes::restored(&cx, &[item("5", 5)], &[]).unwrap_err().to_string();
        assert!(e.contains("the positions of 1 of the 128 splits"), "{e}");
        assert!(same(&[item("seed", 7)], "seed", 7, "seed").is_ok());
        let e = same(&[item("seed", 7)], "seed", 8, "seed").unwrap_err().to_string();
        assert!(e.starts_with("the checkpoint was taken with seed 7 and the source has 8"), "{e}");
    }
}
