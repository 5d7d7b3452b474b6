//! A seeded generator: the same seed gives the same records at any parallelism, at the rate asked for.

use std::fmt;
use std::time::Duration;

use weir_engine::{
    Barrier, Data, EventTime, OperatorContext, RestoredItem, Result, SharedClock, Source, SourceBatch,
    SourceStatus, SplitId, TaskError,
};

use crate::random::Random;
use crate::rate::checked;
use crate::stripes::{POSITIONS, Stripes, same, share_name};

/// Makes record `i` from the seed and `i` alone. Record `i` belongs to subtask `i % 128 % p` of `p`, and each subtask makes
/// its records in order; so times that rise with `i` rise in every subtask. Above 128 subtasks the others make none.
///
/// *Checkpoints* hold where each of the 128 parts stands, and the seed: a life that begins from one makes the records that
/// were not made, each once, at whatever parallelism. Another seed is refused; `n` may be another.
///
/// # Examples
///
/// ```
/// use weir_connectors::generator::Generator;
/// use weir_engine::EventTime;
/// let dice = Generator::new(7, Some(1_000), |i, random| (1 + random.below(6), EventTime(i as i64 * 10)));
/// let paced = dice.rate(100.0);
/// ```
#[derive(Clone)]
pub struct Generator<F> {
    seed: u64,
    /// How many records there are in all; endless when none.
    n: Option<u64>,
    make: F,
    records_per_s: Option<f64>,
    share: Option<Share>,
}

/// What one subtask knows about its share.
#[derive(Clone)]
struct Share {
    stripes: Stripes,
    split: SplitId,
    name: String,
    announced: bool,
    clock: SharedClock,
    /// When the first poll was, by `clock`.
    start: Option<Duration>,
}

impl<T: Data, F> Generator<F>
where
    F: FnMut(u64, &mut Random) -> (T, EventTime) + Clone + Send + 'static,
{
    /// `n` records (endless when `None`) made by `make` from their index and random numbers of their own.
    pub fn new(seed: u64, n: Option<u64>, make: F) -> Self {
        Generator { seed, n, make, records_per_s: None, share: None }
    }
}

impl<F> Generator<F> {
    /// Keeps this rate, all subtasks together: record `i` comes `i / records_per_s` seconds after the first poll, and after
    /// a stall what is overdue comes at once. (A rate *cap*, which never catches up, belongs to the stream, not to this source.)
    /// A life that begins from a checkpoint counts from the first record that was not made before it. A rate that is not finite, or less than a millionth, fails the start of the job.
    #[must_use]
    pub fn rate(mut self, records_per_s: f64) -> Self {
        self.records_per_s = Some(records_per_s);
        self
    }
}

/// The name in a checkpoint of what the sequence is made from.
const SEED: &str = "seed";

impl<F> Generator<F> {
    /// Opens where `restored` says, what the checkpoint holds of all subtasks.
    fn begin(&mut self, cx: &OperatorContext, restored: &[RestoredItem]) -> Result<()> {
        if let Some(rate) = self.records_per_s {
            checked("the generator", rate)?;
        }
        same(restored, SEED, self.seed, SEED)?;
        self.share = Some(Share {
            stripes: Stripes::restored(cx, restored, &[SEED])?,
            split: SplitId(cx.subtask() as u32),
            name: share_name(cx),
            announced: false,
            clock: cx.clock().clone(),
            start: None,
        });
        Ok(())
    }
}

impl<T: Data, F> Source for Generator<F>
where
    F: FnMut(u64, &mut Random) -> (T, EventTime) + Clone + Send + 'static,
{
    type Out = T;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.begin(cx, &cx.restored(POSITIONS))
    }

    fn poll(&mut self, out: &mut SourceBatch<T>, _budget: Duration) -> Result<SourceStatus> {
        let Some(share) = &mut self.share else {
            return Err(TaskError::internal("a generator was polled before it was opened"));
        };
        if !share.announced {
            share.announced = true;
            out.split_started(share.split);
        }
        let end = self.n.unwrap_or(u64::MAX);
        // Records below `due` may go out now.
        let (mut due, first) = (end, share.stripes.first());
        if let Some(rate) = self.records_per_s {
            let start = *share.start.get_or_insert_with(|| share.clock.elapsed());
            let passed = share.clock.elapsed().saturating_sub(start);
            due = due.min(first.saturating_add((passed.as_secs_f64() * rate) as u64).saturating_add(1));
        }
        let mut next = share.stripes.peek().unwrap_or(u64::MAX);
        while out.room() > 0 && next < due {
            let (value, time) = (self.make)(next, &mut Random::of(self.seed, next));
            out.push(share.split, value, time);
            share.stripes.advance();
            next = share.stripes.peek().unwrap_or(u64::MAX);
        }
        if next >= end {
            out.split_finished(share.split);
            return Ok(SourceStatus::End);
        }
        if next < due {
            return Ok(SourceStatus::More);
        }
        let (Some(rate), Some(start)) = (self.records_per_s, share.start) else {
            return Ok(SourceStatus::More);
        };
        // At least a millisecond, so that a high rate is kept in small runs and not by spinning.
        let at = Duration::try_from_secs_f64((next - first) as f64 / rate).unwrap_or(Duration::MAX);
        let at = start.saturating_add(at);
        Ok(SourceStatus::Idle(at.saturating_sub(share.clock.elapsed()).max(Duration::from_millis(1))))
    }

    fn split_name(&self, _: SplitId) -> Option<String> {
        self.share.as_ref().map(|share| share.name.clone())
    }

    fn positions(&mut self, _: Barrier) -> Result<Vec<(String, serde_json::Value)>> {
        let Some(share) = &self.share else { return Ok(Vec::new()) };
        let mut positions = share.stripes.positions();
        positions.push((SEED.to_owned(), self.seed.into()));
        Ok(positions)
    }
}

impl<F> fmt::Debug for Generator<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generator")
            .field("seed", &self.seed)
            .field("n", &self.n)
            .field("records_per_s", &self.records_per_s)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use proptest::prelude::*;
    use weir_engine::testkit::context;

    use super::*;

    type Made = (u64, u64);

    fn make(i: u64, random: &mut Random) -> (Made, EventTime) {
        ((i, random.any()), EventTime(i as i64))
    }

    fn drain<F>(mut source: Generator<F>, subtask: usize, parallelism: usize) -> Vec<(Made, EventTime)>
    where
        F: FnMut(u64, &mut Random) -> (Made, EventTime) + Clone + Send + 'static,
    {
        source.open(&context("gen", subtask, parallelism)).unwrap();
        let mut got = Vec::new();
        loop {
            let mut out = SourceBatch::new(64);
            let status = source.poll(&mut out, Duration::from_millis(5)).unwrap();
            got.extend(out.records().iter().map(|r| (r.value, r.time)));
            if status == SourceStatus::End {
                return got;
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn same_seed_same_records_at_any_parallelism(seed: u64, n in 0u64..500, p in 1usize..9) {
            let source = Generator::new(seed, Some(n), make);
            let one = drain(source.clone(), 0, 1);
            prop_assert_eq!(one.len() as u64, n);
            let mut many = Vec::new();
            for s in 0..p {
                let share = drain(source.clone(), s, p);
                prop_assert!(share.is_sorted_by_key(|r| r.1), "event time falls within a split");
                many.extend(share);
            }
            many.sort_unstable();
            prop_assert_eq!(many, one);
        }
    }

    /// Opens subtask `s` of `p` where `held` says, and takes `n` records.
    fn life<F>(
        source: &Generator<F>,
        s: usize,
        p: usize,
        held: &[RestoredItem],
        n: usize,
    ) -> (Vec<Made>, Vec<RestoredItem>)
    where
        F: FnMut(u64, &mut Random) -> (Made, EventTime) + Clone + Send + 'static,
    {
        let mut source = source.clone();
        source.begin(&context("gen", s, p), held).unwrap();
        let mut out = SourceBatch::new(n);
        source.poll(&mut out, Duration::from_millis(5)).unwrap();
        let positions = source.positions(Barrier::LAST).unwrap();
        let item = |(key, value)| RestoredItem { subtask: s, key, value };
        (out.records().iter().map(|r| r.value).collect(), positions.into_iter().map(item).collect())
    }

    #[test]
    fn a_restored_generator_makes_the_rest() {
        let source = Generator::new(7, Some(10_000), make);
        let (mut held, mut all) = (Vec::new(), Vec::new());
        for (life_of, p) in [2, 3, 7, 1].into_iter().enumerate() {
            let n = |s| if life_of == 3 { 20_000 } else { 400 + 300 * s };
            let (made, positions): (Vec<_>, Vec<_>) =
                (0..p).map(|s| life(&source, s, p, &held, n(s))).unzip();
            all.extend(made.concat());
            held = positions.concat();
        }
        all.sort_unstable();
        let one: Vec<_> = drain(source.clone(), 0, 1).into_iter().map(|r| r.0).collect();
        assert!(all == one, "{} records of {}", all.len(), one.len());
        assert_eq!(life(&source, 0, 2, &held, 10).0, [], "all of it was made");

        let e = Generator::new(8, None, make).begin(&context("gen", 0, 1), &held).unwrap_err().to_string();
        assert!(e.contains("taken with seed 7 and the source has 8"), "{e}");
    }

    #[test]
    fn a_restored_generator_keeps_its_rate_from_where_it_is() {
        let source = Generator::new(7, None, make);
        let (made, held) = life(&source, 0, 1, &[], 5_000);
        assert_eq!(made.len(), 5_000);
        let mut paced = source.rate(10.0);
        paced.begin(&context("gen", 0, 1), &held).unwrap();
        let mut out = SourceBatch::new(100);
        let status = paced.poll(&mut out, Duration::from_millis(5)).unwrap();
        assert_eq!(out.records().iter().map(|r| r.value.0).collect::<Vec<_>>(), [5_000]);
        assert!(matches!(status, SourceStatus::Idle(wait) if wait > Duration::from_millis(50)), "{status:?}");
    }

    #[test]
    fn a_rate_that_cannot_be_kept_fails_the_start() {
        for bad in [f64::NAN, 0.0, -1.0, 1e-300, f64::INFINITY] {
            let e =
                Generator::new(1, None, make).rate(bad).open(&context("gen", 0, 1)).unwrap_err().to_string();
            assert!(e.contains(&format!("a rate of {bad:?} records per second")), "{e}");
        }
        for good in [1e-6, f64::MAX] {
            let mut source = Generator::new(1, None, make).rate(good);
            let cx = context("gen", 127, 128);
            source.open(&cx).unwrap();
            for _ in 0..2 {
                source.poll(&mut SourceBatch::new(4), Duration::from_millis(5)).unwrap();
                cx.wait(Duration::from_millis(2)).unwrap();
            }
        }
    }

    #[test]
    fn rate_is_kept_and_caught_up_after_a_stall() {
        let mut source = Generator::new(1, None, make).rate(2_000.0);
        let cx = context("gen", 0, 1);
        source.open(&cx).unwrap();
        let start = Instant::now();
        let mut n = 0;
        let mut poll = |source: &mut Generator<_>| {
            let mut out = SourceBatch::new(10_000);
            let status = source.poll(&mut out, Duration::from_millis(5)).unwrap();
            n += out.records().len();
            (n, status)
        };
        assert!(
            matches!(poll(&mut source), (1, SourceStatus::Idle(_))),
            "the first is due at once, the second is not"
        );
        cx.wait(Duration::from_millis(100)).unwrap();
        let (n, _) = poll(&mut source);
        let due = start.elapsed().as_secs_f64() * 2_000.0;
        assert!(n as f64 >= 200.0 && n as f64 <= due + 1.0, "{n} records where {due} were due");
    }
}
