//! The states with names: each kind over restores with any parallelism, their TTLs turned on and off, and what is misused.

use super::*;
use crate::fleet::Fleet;
use std::collections::BTreeMap;
use std::time::Duration;
use weir_engine::testkit::OpHarness;
use weir_engine::{Collector, EndKind, EventTime, Keyed, Record};
use weir_state::key_hash;

use crate::aggregate::{Count, count};
use crate::process::{AggregatingState, Process, ProcessFunction, ReducingState};

/// All kinds at once: what came last, all that came, how often each came, the greatest, how many.
#[derive(Clone)]
struct Everything<F: Fn(&mut i64, i64) + Clone> {
    last: ValueState<u64, i64>,
    all: ListState<u64, i64>,
    often: MapState<u64, i64, u32>,
    greatest: ReducingState<u64, i64, F>,
    number: AggregatingState<u64, i64, Count>,
}

fn everything() -> Everything<impl Fn(&mut i64, i64) + Clone + Send + 'static> {
    Everything {
        last: ValueState::named("last"),
        all: ListState::named("all"),
        often: MapState::named("often"),
        greatest: ReducingState::named("greatest", |a: &mut i64, b: i64| *a = b.max(*a)),
        number: AggregatingState::named("number", count()),
    }
}

type Told = (Option<i64>, Vec<i64>, BTreeMap<i64, u32>, Option<i64>, Option<u64>);

impl<F: Fn(&mut i64, i64) + Clone + Send + 'static> ProcessFunction<u64, i64> for Everything<F> {
    type Out = (u64, Told);
    type State = ();
    fn states(&mut self) -> Vec<&mut dyn NamedState<u64>> {
        vec![&mut self.last, &mut self.all, &mut self.often, &mut self.greatest, &mut self.number]
    }
    fn process(
        &mut self,
        record: Record<i64>,
        cx: &mut KeyedContext<'_, u64, ()>,
        _: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        match record.value {
            0 => {
                self.last.clear(cx)?;
                self.all.clear(cx)?;
                self.often.clear(cx)?;
                self.greatest.clear(cx)?;
                self.number.clear(cx)?;
            }
            value => {
                self.last.set(cx, value)?;
                self.all.push(cx, value)?;
                let before = self.often.get(cx, &value)?.copied().unwrap_or(0);
                self.often.put(cx, value, before + 1)?;
                self.greatest.add(cx, value)?;
                self.number.add(cx, &value)?;
            }
        }
        cx.set_timer(EventTime(i64::MAX));
        Ok(())
    }
    fn on_timer(
        &mut self,
        time: EventTime,
        cx: &mut KeyedContext<'_, u64, ()>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        let told = (
            self.last.get(cx)?.copied(),
            self.all.get(cx)?.to_vec(),
            self.often.entries(cx)?.map(|(value, n)| (*value, *n)).collect(),
            self.greatest.get(cx)?.copied(),
            self.number.get(cx)?,
        );
        out.emit(Record::new((*cx.key(), told), time))
    }
}

#[test]
fn e25_every_kind_of_state_comes_back_whatever_the_parallelism() {
    const KEYS: u64 = 1_000;
    let value =
        |key: u64, round: i64| if (key as i64 + round) % 11 == 0 { 0 } else { 1 + (key as i64 * round) % 5 };
    let mut fleet = Fleet::of(Process::new(everything()), 2);
    let mut expected: BTreeMap<u64, Told> = BTreeMap::new();
    for (round, parallelism) in (1..).zip([3, 7, 1, 2]) {
        fleet.batch((0..KEYS).map(|key| (key, value(key, round), 0)));
        for key in 0..KEYS {
            let told = expected.entry(key).or_default();
            match value(key, round) {
                0 => *told = Told::default(),
                value => {
                    told.0 = Some(value);
                    told.1.push(value);
                    *told.2.entry(value).or_default() += 1;
                    told.3 = told.3.max(Some(value));
                    told.4 = Some(told.4.unwrap_or(0) + 1);
                }
            }
        }
        let saved = fleet.save();
        // Did not happen.
        fleet.batch((0..KEYS).map(|key| (key, 99, 0)));
        fleet.lose();
        fleet.restore(&saved, parallelism);
    }
    fleet.end(EndKind::Flush);
    let told: BTreeMap<u64, Told> = fleet.take().into_iter().map(|r| r.value).collect();
    assert_eq!(told, expected);
}

/// Keeps the first value of a key, and tells it with each record.
#[derive(Clone)]
struct First {
    first: ValueState<u64, i64>,
}

impl First {
    fn with(ttl: Option<Ttl>) -> Process<u64, i64, First> {
        Process::new(First { first: ValueState::named("first").ttl(ttl) })
    }
}

impl ProcessFunction<u64, i64> for First {
    type Out = i64;
    type State = ();
    fn states(&mut self) -> Vec<&mut dyn NamedState<u64>> {
        vec![&mut self.first]
    }
    fn process(
        &mut self,
        record: Record<i64>,
        cx: &mut KeyedContext<'_, u64, ()>,
        out: &mut impl Collector<i64>,
    ) -> Result<()> {
        if self.first.get(cx)?.is_none() {
            self.first.set(cx, record.value)?;
        }
        let first = self.first.get(cx)?.copied().unwrap_or(i64::MIN);
        out.emit(record.with(first))
    }
}

fn ask(h: &mut OpHarness<Keyed<u64, i64>, Process<u64, i64, First>>, value: i64) -> i64 {
    h.send(Keyed { hash: key_hash(&1u64), key: 1, value }, 0).unwrap();
    h.take_values()[0]
}

const HOUR: i64 = 3_600_000;

fn hour() -> Option<Ttl> {
    Some(Ttl::event_time(Duration::from_millis(HOUR as u64)))
}

#[test]
fn e33_a_ttl_that_is_turned_on_counts_from_the_restore_and_can_be_turned_off_again() {
    let mut without = OpHarness::new(First::with(None)).unwrap();
    without.watermark(10 * HOUR).unwrap();
    assert_eq!(ask(&mut without, 1), 1);
    without.watermark(20 * HOUR).unwrap();
    let saved = without.save(1).unwrap();

    // It is twenty hours old, and lives another one.
    let restored = |ttl, saved| OpHarness::restored(First::with(ttl), &[saved], 0, 1).unwrap();
    let mut with = restored(hour(), &saved);
    with.watermark(20 * HOUR + 1).unwrap();
    assert_eq!(ask(&mut with, 2), 1);
    with.watermark(21 * HOUR).unwrap();
    assert_eq!(ask(&mut with, 2), 1);
    let still = with.save(2).unwrap();
    with.watermark(21 * HOUR + 1).unwrap();
    assert_eq!(ask(&mut with, 3), 3, "it expired an hour after event time went on");

    // Off again: it stays.
    let mut off = restored(None, &still);
    off.watermark(90 * HOUR).unwrap();
    assert_eq!(ask(&mut off, 4), 1);
}

#[test]
fn event_time_that_passes_takes_what_expires_by_it() {
    let mut h = OpHarness::new(First::with(hour())).unwrap();
    h.watermark(0).unwrap();
    assert_eq!(ask(&mut h, 1), 1);
    h.watermark(HOUR - 1).unwrap();
    assert_eq!(ask(&mut h, 2), 1);
    let saved = h.save(1).unwrap();
    h.watermark(HOUR).unwrap();
    assert_eq!(ask(&mut h, 3), 3);
    let mut restored = OpHarness::restored(First::with(hour()), &[&saved], 0, 1).unwrap();
    assert_eq!(ask(&mut restored, 2), 1, "event time is where it was");
    restored.watermark(HOUR).unwrap();
    assert_eq!(ask(&mut restored, 4), 4);
}

/// Declares states that it does not give, or one twice.
#[derive(Clone)]
struct Careless {
    given: ValueState<u64, u64>,
    forgotten: ValueState<u64, u64>,
    twice: bool,
}

impl ProcessFunction<u64, i64> for Careless {
    type Out = ();
    type State = ();
    fn states(&mut self) -> Vec<&mut dyn NamedState<u64>> {
        if self.twice { vec![&mut self.given, &mut self.forgotten] } else { vec![&mut self.given] }
    }
    fn process(
        &mut self,
        _: Record<i64>,
        cx: &mut KeyedContext<'_, u64, ()>,
        _: &mut impl Collector<()>,
    ) -> Result<()> {
        self.given.set(cx, 1)?;
        self.forgotten.set(cx, 1)
    }
}

#[test]
fn what_is_misused_says_what_to_do() {
    let op = |name: &str, twice| {
        let (given, forgotten) = (ValueState::named("given"), ValueState::named(name));
        OpHarness::<Keyed<u64, i64>, _>::new(Process::new(Careless { given, forgotten, twice }))
    };
    let mut forgetful = op("forgotten", false).unwrap();
    let error = forgetful.send(Keyed { hash: key_hash(&1u64), key: 1, value: 0 }, 0).unwrap_err();
    assert!(
        error.chain().contains("'forgotten' is not open: give it in `ProcessFunction::states`"),
        "{error:?}"
    );
    for taken in ["given", "state", "timers"] {
        let error = op(taken, true).unwrap_err().chain();
        assert!(error.contains(&format!("'{taken}'")) && error.contains("declared twice"), "{error}");
    }
}

/// Remembers the last value for a minute of event time; timers of ten seconds and an hour after a record tell what is remembered.
#[derive(Clone)]
struct Remembers {
    last: ValueState<u64, i64>,
}

impl Remembers {
    fn a_minute() -> Process<u64, i64, Remembers> {
        let minute = Ttl::event_time(Duration::from_secs(60));
        Process::new(Remembers { last: ValueState::named("last").ttl(minute) })
    }
}

impl ProcessFunction<u64, i64> for Remembers {
    type Out = Option<i64>;
    type State = ();
    fn states(&mut self) -> Vec<&mut dyn NamedState<u64>> {
        vec![&mut self.last]
    }
    fn process(
        &mut self,
        record: Record<i64>,
        cx: &mut KeyedContext<'_, u64, ()>,
        _: &mut impl Collector<Option<i64>>,
    ) -> Result<()> {
        cx.set_timer(EventTime(10_000));
        cx.set_timer(EventTime(HOUR));
        self.last.set(cx, record.value)
    }
    fn on_timer(
        &mut self,
        time: EventTime,
        cx: &mut KeyedContext<'_, u64, ()>,
        out: &mut impl Collector<Option<i64>>,
    ) -> Result<()> {
        out.emit(Record::new(self.last.get(cx)?.copied(), time))
    }
}

#[test]
fn what_a_timer_finds_depends_on_its_own_time_and_not_on_how_far_the_watermark_jumps() {
    // The last one ends the stream for good.
    for watermarks in [&[10_000, HOUR, i64::MAX][..], &[HOUR, i64::MAX], &[i64::MAX]] {
        let mut h = OpHarness::new(Remembers::a_minute()).unwrap();
        h.watermark(0).unwrap();
        h.send(Keyed { hash: key_hash(&1u64), key: 1, value: 7 }, 0).unwrap();
        for watermark in &watermarks[..watermarks.len() - 1] {
            h.watermark(*watermark).unwrap();
        }
        h.end(EndKind::Flush).unwrap();
        assert_eq!(h.take_values(), [Some(7), None], "with the watermarks {watermarks:?}");
    }
}

#[test]
fn what_is_over_by_a_watermark_is_there_no_more_for_the_records_after_it() {
    let mut h = OpHarness::new(Remembers::a_minute()).unwrap();
    h.watermark(0).unwrap();
    h.send(Keyed { hash: key_hash(&1u64), key: 1, value: 7 }, 0).unwrap();
    h.watermark(60_000).unwrap();
    let saved = h.save(1).unwrap();
    assert_eq!(h.take_values(), [Some(7)]);
    let mut restored = OpHarness::restored(Remembers::a_minute(), &[&saved], 0, 1).unwrap();
    restored.watermark(HOUR).unwrap();
    assert_eq!(restored.take_values(), [None]);
}
