//! Side outputs by tag: each of its own type, before the watermark, from records and timers, of every kind of function.

use super::*;
use crate::prelude::*;
use weir_engine::testkit::{NullSink, Probe, ScriptSource, run_within};
use weir_engine::{EventTime, Job, OperatorInfo, Watermarks};

/// Gives even numbers; odd ones, and the times of timers, go by the side.
#[derive(Clone)]
struct Sorts {
    odd: Tag<String>,
    times: Tag<i64>,
    gives: bool,
}

impl Sorts {
    fn new() -> Self {
        Sorts { odd: Tag::named("odd"), times: Tag::named("times"), gives: true }
    }
}

impl ProcessFunction<u64, u64> for Sorts {
    type Out = u64;
    type State = ();
    fn tags(&mut self) -> Vec<&mut dyn Tagged> {
        if self.gives { vec![&mut self.odd, &mut self.times] } else { Vec::new() }
    }
    fn process(
        &mut self,
        record: Record<u64>,
        cx: &mut KeyedContext<'_, u64, ()>,
        out: &mut impl Collector<u64>,
    ) -> Result<()> {
        cx.set_timer(record.time);
        if record.value.is_multiple_of(2) {
            out.emit(record)
        } else {
            self.odd.emit(record.with(record.value.to_string()))
        }
    }
    fn on_timer(
        &mut self,
        time: EventTime,
        _: &mut KeyedContext<'_, u64, ()>,
        _: &mut impl Collector<u64>,
    ) -> Result<()> {
        self.times.emit(Record::new(time.0, time))
    }
}

fn probed<T: Data, P: Pipe<Out = T>>(stream: Stream<T, P>, name: &str) -> Probe<T> {
    let probe = Probe::new();
    let looked = stream.transform(OperatorInfo::named("probe", name), probe.clone());
    looked.sink(&format!("{name}-end"), NullSink);
    probe
}

fn numbers(job: &Job) -> weir_engine::KeyedStream<u64, u64> {
    let numbers = ScriptSource::of((0..100u64).map(|n| (n, n as i64)));
    let source = job.source("in", numbers).parallelism(1);
    source.source_time(Watermarks::monotonic()).key_by("by-number", |n| *n)
}

#[test]
fn what_is_tagged_comes_out_by_its_tag() {
    let job = Job::named("sorts").parallelism(2);
    let sorts = Sorts::new();
    let even = numbers(&job).process("sorts", sorts.clone());
    let odd = probed(even.tagged(&sorts.odd), "look-odd");
    // Each has as many readers as there are.
    let times = [probed(even.tagged(&sorts.times), "times-1"), probed(even.tagged(&sorts.times), "times-2")];
    let even = probed(even, "look-even");
    run_within(job, seconds(30)).unwrap();
    let sorted = |mut values: Vec<u64>| {
        values.sort_unstable();
        values
    };
    let odd = odd.values().iter().map(|n| n.parse().unwrap()).collect();
    assert_eq!(sorted(odd), (0..100).filter(|n| n % 2 == 1).collect::<Vec<_>>());
    assert_eq!(sorted(even.values()), (0..100).filter(|n| n % 2 == 0).collect::<Vec<_>>());
    for times in times {
        let times = times.values().into_iter().map(|time| time as u64).collect();
        assert_eq!(sorted(times), (0..100).collect::<Vec<_>>());
    }
}

#[test]
fn a_tag_that_nobody_reads_goes_nowhere_and_one_that_is_not_given_is_named() {
    let job = Job::named("unread").parallelism(1);
    let even = probed(numbers(&job).process("sorts", Sorts::new()), "even");
    run_within(job, seconds(30)).unwrap();
    assert_eq!(even.values().len(), 50);

    let job = Job::named("not-given").parallelism(1);
    numbers(&job).process("sorts", Sorts { gives: false, ..Sorts::new() }).sink("out", NullSink);
    let error = run_within(job, seconds(30)).unwrap_err().to_string();
    for part in ["sorts", "\"odd\"", "tags()"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// The left side by its tag.
#[derive(Clone)]
struct Lefts(Tag<u64>);

impl CoProcessFunction<u64, u64, u64> for Lefts {
    type Out = u64;
    type State = ();
    fn tags(&mut self) -> Vec<&mut dyn Tagged> {
        vec![&mut self.0]
    }
    fn left(
        &mut self,
        record: Record<u64>,
        _: &mut KeyedContext<'_, u64, ()>,
        _: &mut impl Collector<u64>,
    ) -> Result<()> {
        self.0.emit(record)
    }
    fn right(
        &mut self,
        record: Record<u64>,
        _: &mut KeyedContext<'_, u64, ()>,
        out: &mut impl Collector<u64>,
    ) -> Result<()> {
        out.emit(record)
    }
}

impl KeyedBroadcastFunction<u64, u64, u64> for Lefts {
    type Out = u64;
    type State = ();
    type Rules = u64;
    fn tags(&mut self) -> Vec<&mut dyn Tagged> {
        vec![&mut self.0]
    }
    fn process(
        &mut self,
        record: Record<u64>,
        _: &u64,
        _: &mut KeyedContext<'_, u64, ()>,
        _: &mut impl Collector<u64>,
    ) -> Result<()> {
        self.0.emit(record)
    }
    fn rule(&mut self, rule: Record<u64>, _: &mut u64, out: &mut impl Collector<u64>) -> Result<()> {
        out.emit(rule)
    }
}

#[test]
fn functions_of_two_inputs_have_tags_too() {
    let job = Job::named("two").parallelism(1);
    let right = || ScriptSource::of([(7u64, 0), (8, 5)]);
    let other = job.source("right", right()).source_time(Watermarks::monotonic()).key_by("by-right", |n| *n);
    let tag = Tag::named("left");
    let rights = numbers(&job).connect(other).co_process("lefts", Lefts(tag.clone()));
    let (lefts, rights) = (probed(rights.tagged(&tag), "lefts-out"), probed(rights, "rights-out"));
    run_within(job, seconds(30)).unwrap();
    assert_eq!((lefts.values().len(), rights.values().len()), (100, 2));

    let job = Job::named("ruled").parallelism(1);
    let rules = job.source("rules", right()).without_event_time();
    let tag = Tag::named("left");
    let ruled = numbers(&job).connect_broadcast(rules).process_keyed("ruled", Lefts(tag.clone()));
    let (lefts, rules) = (probed(ruled.tagged(&tag), "lefts-out"), probed(ruled, "rules-out"));
    run_within(job, seconds(30)).unwrap();
    assert_eq!((lefts.values().len(), rules.values().len()), (100, 2));
}
