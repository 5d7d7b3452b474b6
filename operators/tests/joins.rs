//! Whole jobs of two streams: parallelism changes no row, a silent side holds nobody back, mistakes fail the plan.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use weir_engine::testkit::{Line, NullSink, Probe, ScriptSource, Seen, run_within};
use weir_engine::{
    Collector, Data, Either, Job, KeyedStream, OperatorInfo, Pipe, Record, Result, Stream, Watermarks,
};
use weir_operators::prelude::*;

const LIMIT: Duration = Duration::from_secs(60);
const AT: [usize; 3] = [1, 2, 7];

/// A number, its key, its time.
type Event = (i64, u64, i64);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Ends `stream` in a probe.
fn probed<T: Data, P: Pipe<Out = T>>(stream: Stream<T, P>, name: &str) -> Probe<T> {
    let probe = Probe::new();
    stream
        .transform(OperatorInfo::named("probe", name), probe.clone())
        .sink(&format!("{name}-end"), NullSink);
    probe
}

/// With disorder of up to 40 ms, ties and repetitions.
fn events(n: i64, step: i64, keys: i64) -> Vec<Event> {
    (0..n).map(|i| (i, (i * 7_919 % keys) as u64, i * step - 2_000 - (i * 31 % 5) * 10)).collect()
}

fn lefts() -> Vec<Event> {
    events(1_500, 7, 31)
}

fn rights() -> Vec<Event> {
    events(900, 12, 37)
}

/// Two subtasks read it.
fn keyed(job: &Job, uid: &str, events: &[Event]) -> KeyedStream<u64, Event> {
    let script =
        |of: usize| events.iter().skip(of).step_by(2).map(|event| Line::Record(*event, event.2)).collect();
    let source = job.source(uid, ScriptSource::new(vec![script(0), script(1)])).parallelism(2);
    source.source_time(Watermarks::bounded(ms(50))).key_by(&format!("by-{uid}"), |event| event.1)
}

fn both(job: &Job) -> KeyedStream<u64, Either<Event, Event>> {
    keyed(job, "left", &lefts()).connect(keyed(job, "right", &rights()))
}

/// What a job gives at each parallelism: always `expected`.
fn always<T: Data + Ord + Debug, P: Pipe<Out = T>>(mut expected: Vec<T>, of: impl Fn(&Job) -> Stream<T, P>) {
    expected.sort();
    assert!(expected.len() > 20, "{}", expected.len());
    for parallelism in AT {
        let job = Job::named("joined").parallelism(parallelism);
        let rows = probed(of(&job), "rows");
        run_within(job, LIMIT).expect("the job runs");
        let mut rows = rows.values();
        rows.sort();
        assert_eq!(rows.len(), expected.len(), "at parallelism {parallelism}");
        assert_eq!(rows, expected, "at parallelism {parallelism}");
    }
}

fn matching(meet: impl Fn(&Event, &Event) -> bool) -> Vec<(Option<Event>, Option<Event>)> {
    let (lefts, rights) = (lefts(), rights());
    let meet = |l: &Event, r: &Event| l.1 == r.1 && meet(l, r);
    let pairs =
        lefts.iter().flat_map(|l| rights.iter().filter(move |r| meet(l, r)).map(|r| (Some(*l), Some(*r))));
    let alone = lefts.iter().filter(|l| !rights.iter().any(|r| meet(l, r))).map(|l| (Some(*l), None));
    let other = rights.iter().filter(|r| !lefts.iter().any(|l| meet(l, r))).map(|r| (None, Some(*r)));
    pairs.chain(alone).chain(other).collect()
}

#[test]
fn parallelism_changes_no_row_of_an_interval_join() {
    let all = matching(|l, r| (-150..=40).contains(&(r.2 - l.2)));
    always(all, |job| both(job).interval_join("joined", Interval::between_ms(-150, 40), FullOuter));
}

#[test]
fn parallelism_changes_no_row_of_a_window_join() {
    let all = matching(|l, r| l.2.div_euclid(200) == r.2.div_euclid(200));
    always(all, |job| both(job).window(Tumbling::of(ms(200))).join("joined", FullOuter).map(|w| w.value));
    let semi = matching(|l, r| l.2.div_euclid(200) == r.2.div_euclid(200));
    let met: BTreeSet<Event> = semi.into_iter().filter_map(|(l, r)| l.filter(|_| r.is_some())).collect();
    always(met.into_iter().collect(), |job| {
        both(job).window(Tumbling::of(ms(200))).join("joined", Semi).map(|w| w.value)
    });
}

#[test]
fn parallelism_changes_no_co_group() {
    let mut sizes = std::collections::BTreeMap::<(u64, i64), (usize, usize)>::new();
    let windows = |time: i64| (0..4).map(move |n| (time.div_euclid(100) - n) * 100);
    lefts().iter().for_each(|e| windows(e.2).for_each(|at| sizes.entry((e.1, at)).or_default().0 += 1));
    rights().iter().for_each(|e| windows(e.2).for_each(|at| sizes.entry((e.1, at)).or_default().1 += 1));
    always(sizes.into_iter().collect(), |job| {
        both(job)
            .window(Sliding::of(ms(400)).every(ms(100)))
            .co_group("sizes", |g| [((g.key, g.window.start.0), (g.left.len(), g.right.len()))])
    });
}

#[test]
fn parallelism_changes_no_row_of_a_temporal_join() {
    let change = |r: Event| if r.0 % 5 == 0 { Change::Delete } else { Change::Put(r) };
    let mut rights = rights();
    // Of two changes of one time two subtasks may read either first: there are none.
    rights.iter_mut().for_each(|r| r.2 = r.2 * 1_000 + r.0);
    let mut lefts = lefts();
    lefts.iter_mut().for_each(|l| l.2 *= 1_000);
    let valid = |l: &Event| rights.iter().filter(|r| r.1 == l.1 && r.2 <= l.2).max_by_key(|r| r.2).copied();
    let row = |l: &Event| (*l, valid(l).filter(|r| r.0 % 5 != 0));
    let expected = lefts.iter().map(row).collect();
    let slow = |job: &Job, uid: &str, events: &[Event]| {
        let script = events.iter().map(|event| Line::Record(*event, event.2)).collect();
        let source = job.source(uid, ScriptSource::new(vec![script])).parallelism(1);
        source.source_time(Watermarks::bounded(ms(51_000))).key_by(&format!("by-{uid}"), |event| event.1)
    };
    always(expected, |job| {
        slow(job, "left", &lefts).connect(slow(job, "right", &rights)).temporal_join(
            "as-it-was",
            LeftOuter,
            change,
        )
    });
}

#[test]
fn e02_a_silent_side_holds_nobody_back_and_what_it_then_says_too_late_comes_out() {
    let job = Job::named("silent").parallelism(2);
    let left = (0..10).map(|n| Line::Record((n, 1u64, n * 100), n * 100));
    let left = left.chain([Line::Pause(ms(1_500)), Line::Record((10, 1, 1_000), 1_000)]).collect();
    // The other side is silent while the left one goes on, and has old things to say then.
    let right = vec![Line::Pause(ms(1_000)), Line::Record((0, 1, 150), 150), Line::Record((1, 1, 990), 990)];
    let side = |uid: &str, script: Vec<Line<Event>>| {
        let source = job.source(uid, ScriptSource::new(vec![script])).parallelism(1);
        let watermarks = Watermarks::bounded(ms(0)).idle_after(ms(100));
        source.source_time(watermarks).key_by(&format!("by-{uid}"), |event| event.1)
    };
    let connected = side("left", left).connect(side("right", right));
    let (rows, late) = connected.interval_join_with_late("joined", Interval::within(ms(50)), LeftOuter);
    let (rows, late) = (probed(rows, "rows"), probed(late, "late"));
    run_within(job, LIMIT).unwrap();
    assert_eq!(late.values(), [Either::Right((0, 1, 150))]);
    let mut alone: Vec<_> = rows.values().into_iter().map(|(l, r)| (l.0, r.map(|r| r.0))).collect();
    alone.sort_unstable();
    let mut expected: Vec<_> = (0..10).map(|n| (n, None)).collect();
    expected.push((10, Some(1)));
    assert_eq!(alone, expected);
}

#[test]
fn e16_an_interval_that_cannot_be_is_a_plan_error_that_names_the_operator() {
    let job = Job::named("wrong").parallelism(1);
    both(&job).interval_join("joined", Interval::between_ms(1, 0), Inner).sink("out", NullSink);
    let refused = job.plan().unwrap_err().to_string();
    assert!(refused.contains("\"joined\"") && refused.contains("from 1 to 0 ms"), "{refused}");
}

/// Gives all rules there are at each.
#[derive(Clone)]
struct Ruled;

impl KeyedBroadcastFunction<u64, Event, Event> for Ruled {
    type Out = (Option<i64>, Vec<i64>);
    type State = i64;
    type Rules = Vec<i64>;
    fn process(
        &mut self,
        record: Record<Event>,
        _: &Vec<i64>,
        cx: &mut KeyedContext<'_, u64, i64>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        *cx.state()? += 1;
        let count = *cx.state()?;
        out.emit(record.with((Some(count), Vec::new())))
    }
    fn rule(
        &mut self,
        rule: Record<Event>,
        rules: &mut Vec<i64>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        rules.push(rule.value.0);
        out.emit(rule.with((None, rules.clone())))
    }
}

#[test]
fn every_subtask_gets_all_rules_in_one_order_and_each_key_its_state() {
    for parallelism in AT {
        let job = Job::named("ruled").parallelism(parallelism);
        // Three subtasks say rules, in no order between them.
        let rules =
            |of: usize| (0..40).map(|n| Line::Record((n * 3 + of as i64, 0, 0), 0)).collect::<Vec<_>>();
        let rules = job.source("rules", ScriptSource::new((0..3).map(rules).collect())).parallelism(3);
        let data = keyed(&job, "left", &lefts());
        let ruled = data.connect_broadcast(rules.without_event_time()).process_keyed("ruled", Ruled);
        let probe = probed(ruled, "told");
        run_within(job, LIMIT).unwrap();
        let told_by = |subtask: usize| {
            let rules = probe.seen_by(subtask).into_iter().filter_map(|seen| match seen {
                Seen::Record((None, rules), _) => Some(rules),
                _ => None,
            });
            rules.collect::<Vec<_>>()
        };
        let first = told_by(0);
        assert_eq!(first.len(), 120);
        assert_eq!(first[119].iter().collect::<BTreeSet<_>>().len(), 120);
        (1..parallelism).for_each(|subtask| assert_eq!(told_by(subtask), first, "subtask {subtask}"));
        let mut counts: Vec<i64> = probe.values().into_iter().filter_map(|told| told.0).collect();
        counts.sort_unstable();
        let mut expected: Vec<i64> =
            (0..31).flat_map(|key| 1..=lefts().iter().filter(|e| e.1 == key).count() as i64).collect();
        expected.sort_unstable();
        assert_eq!(counts, expected);
    }
}

/// Remembers rules, and tells of each record how many there are.
#[derive(Clone)]
struct Known;

impl BroadcastFunction<i64, i64> for Known {
    type Out = (i64, bool);
    type Rules = BTreeSet<i64>;
    fn process(
        &mut self,
        record: Record<i64>,
        rules: &BTreeSet<i64>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        out.emit(record.with((record.value, rules.contains(&record.value))))
    }
    fn rule(
        &mut self,
        rule: Record<i64>,
        rules: &mut BTreeSet<i64>,
        _: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        rules.insert(rule.value);
        Ok(())
    }
}

#[test]
fn rules_hold_no_event_time_back() {
    for parallelism in AT {
        let job = Job::named("ruled").parallelism(parallelism);
        let rules = vec![Line::Record(7, 0), Line::Pause(ms(1_000)), Line::Record(8, 0)];
        let rules = job.source("rules", ScriptSource::new(vec![rules])).parallelism(1).without_event_time();
        let mut data: Vec<_> = (0..2_000).map(|n| Line::Record(n, n)).collect();
        data.insert(1_000, Line::Pause(ms(300)));
        let data = job.source("data", ScriptSource::new(vec![data])).source_time(Watermarks::monotonic());
        let known = data.connect_broadcast(rules).process("known", Known);
        let told = probed(
            known.key_by("by-it", |told| told.0 % 3).window(Tumbling::of(ms(10))).aggregate("n", count()),
            "told",
        );
        run_within(job, LIMIT).unwrap();
        let last = told.values().iter().map(|w| w.value).sum::<u64>();
        assert_eq!(last, 2_000);
        let watermarks =
            told.seen_by(0).into_iter().filter(|seen| matches!(seen, Seen::Watermark(w) if *w < i64::MAX));
        assert!(watermarks.count() > 0, "event time went on while rules could still come");
    }
}
