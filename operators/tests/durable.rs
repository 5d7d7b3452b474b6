//! Whole jobs that fail again and again: what they give is what a plain loop over the same input gives, once.
//! (over 400 lines: one trial, and each kind of operator in it)

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_engine::testkit::{Line, ScriptSource, run_within};
use weir_engine::{
    Barrier, Checkpoints, Collector, Data, Either, EventTime, Job, KeyedStream, Operator, OperatorInfo, Pipe,
    Record, RestartPolicy, Result, Sink, StateBackend, Stream, TaskError, Watermarks,
};
use weir_operators::prelude::*;

const LIMIT: Duration = Duration::from_secs(120);

/// Passes everything on, and fails when so many records have passed in all lives together.
#[derive(Clone)]
struct Fails {
    passed: Arc<AtomicU64>,
    at: &'static [u64],
}

impl<T: Data> Operator<T> for Fails {
    type Out = T;
    fn process(&mut self, record: Record<T>, out: &mut impl Collector<T>) -> Result<()> {
        if self.at.contains(&self.passed.fetch_add(1, Ordering::SeqCst)) {
            return Err(TaskError::user("a failure that was asked for"));
        }
        out.emit(record)
    }
}

/// What was committed, by the id of the transaction.
type Committed<T> = Arc<Mutex<BTreeMap<String, Vec<T>>>>;

/// Gives records away when the checkpoint they are part of is complete.
#[derive(Clone)]
struct Once<T> {
    open: Vec<T>,
    committed: Committed<T>,
    given: Arc<AtomicBool>,
}

impl<T: Data + Serialize + DeserializeOwned> Sink<T> for Once<T> {
    fn write(&mut self, batch: &mut Vec<Record<T>>) -> Result<()> {
        self.open.extend(batch.drain(..).map(|r| r.value));
        Ok(())
    }
    fn prepare(&mut self, _: Barrier) -> Result<Option<serde_json::Value>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::SeqCst).to_string();
        let rows = std::mem::take(&mut self.open);
        Ok(if rows.is_empty() { None } else { Some(serde_json::to_value((id, rows))?) })
    }
    fn commit(&mut self, prepared: serde_json::Value) -> Result<()> {
        let (id, rows) = serde_json::from_value(prepared)?;
        self.given.store(true, Ordering::Relaxed);
        self.committed.lock().expect("no sink panics").insert(id, rows);
        Ok(())
    }
}

/// One job under failures.
struct Trial {
    parallelism: usize,
    backend: StateBackend,
    fails_at: &'static [u64],
    folder: tempfile::TempDir,
    /// Whether its job at hand has given rows with a checkpoint.
    given: Arc<AtomicBool>,
}

impl Trial {
    /// With each backend and parallelism.
    fn each(fails_at: &'static [u64], mut run: impl FnMut(&Trial)) {
        for rocks in [false, true] {
            for parallelism in [1, 2, 3] {
                let folder = tempfile::tempdir().expect("a temporary folder");
                let backend = if rocks { StateBackend::rocksdb() } else { StateBackend::memory() };
                let backend = backend.folder(folder.path().join("state"));
                run(&Trial { parallelism, backend, fails_at, folder, given: Arc::default() });
            }
        }
    }

    fn job(&self) -> Job {
        self.job_in("checkpoints")
    }

    fn job_in(&self, checkpoints: &str) -> Job {
        let url = self.folder.path().join(checkpoints);
        Job::named("durable")
            .parallelism(self.parallelism)
            .state(self.backend.clone())
            .restart(RestartPolicy::FixedDelay { restarts: 20, delay: Duration::ZERO })
            .checkpoints(Checkpoints::to(url.display().to_string()).every(Duration::from_millis(3)))
    }

    /// Lets the stream fail on its way to a sink, runs the job, and gives what came out, sorted.
    fn run<T: Data + Serialize + DeserializeOwned + Ord + Debug, P: Pipe<Out = T>>(
        &self,
        job: Job,
        stream: Stream<T, P>,
    ) -> Vec<T> {
        let mut rows: Vec<T> = self.transactions(job, stream).into_iter().flatten().collect();
        rows.sort();
        rows
    }

    /// The same, by the checkpoint with which it came out.
    fn transactions<T: Data + Serialize + DeserializeOwned + Debug, P: Pipe<Out = T>>(
        &self,
        job: Job,
        stream: Stream<T, P>,
    ) -> Vec<Vec<T>> {
        let passed = Arc::new(AtomicU64::new(0));
        let committed = Committed::default();
        stream
            .transform(OperatorInfo::stateless("fails"), Fails { passed, at: self.fails_at })
            .sink("out", Once { open: Vec::new(), committed: committed.clone(), given: self.given.clone() });
        let report = run_within(job, LIMIT).expect("the job gets over its failures");
        let name = format!("{} x {:?}", self.parallelism, self.backend);
        // Two subtasks may fail in one life.
        assert!(
            (3..=self.fails_at.len() + 1).contains(&(report.attempts as usize)),
            "{name}: {}",
            report.attempts
        );
        let committed = committed.lock().expect("no sink panics");
        committed.values().cloned().collect()
    }
}

/// `(key, value)` of each time: a few keys often, many seldom. In as many scripts, with pauses for checkpoints.
fn events(n: i64) -> Vec<(u64, i64, i64)> {
    let key = |i: i64| if i % 3 == 0 { i as u64 % 7 } else { i as u64 * 7_919 % 1_009 };
    (0..n).map(|i| (key(i), i % 11, i * 13 - 5_000)).collect()
}

fn source(events: &[(u64, i64, i64)], parallelism: usize) -> ScriptSource<(u64, i64)> {
    source_of(events, parallelism, |(key, value, _)| (key, value))
}

fn source_of<T: Data + Sync>(
    events: &[(u64, i64, i64)],
    parallelism: usize,
    of: impl Fn((u64, i64, i64)) -> T,
) -> ScriptSource<T> {
    let script = |subtask: usize| {
        let own = events.iter().skip(subtask).step_by(parallelism).enumerate();
        own.flat_map(|(n, event)| {
            let pause = (n % 100 == 99).then_some(Line::Pause(Duration::from_millis(4)));
            [Some(Line::Record(of(*event), event.2)), pause].into_iter().flatten()
        })
    };
    ScriptSource::new((0..parallelism).map(|subtask| script(subtask).collect()).collect())
}

/// Sums up what comes within a second, and tells when it is over.
#[derive(Clone)]
struct Seconds;

impl ProcessFunction<u64, (u64, i64)> for Seconds {
    type Out = (u64, i64, i64);
    type State = BTreeMap<i64, i64>;
    fn process(
        &mut self,
        record: Record<(u64, i64)>,
        cx: &mut KeyedContext<'_, u64, Self::State>,
        _: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        let end = record.time.0.div_euclid(1_000) * 1_000 + 999;
        *cx.state()?.entry(end).or_default() += record.value.1;
        cx.set_timer(EventTime(end));
        Ok(())
    }
    fn on_timer(
        &mut self,
        time: EventTime,
        cx: &mut KeyedContext<'_, u64, Self::State>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        let key = *cx.key();
        let sums = cx.state()?;
        let sum = sums.remove(&time.0);
        if sums.is_empty() {
            cx.clear_state();
        }
        out.emit(Record::new((key, time.0 - 999, sum.unwrap_or(i64::MIN)), time))
    }
}

fn by_second(events: &[(u64, i64, i64)]) -> Vec<(u64, i64, i64)> {
    let mut sums = BTreeMap::new();
    for (key, value, time) in events {
        *sums.entry((*key, time.div_euclid(1_000) * 1_000)).or_insert(0) += value;
    }
    sums.into_iter().map(|((key, start), sum)| (key, start, sum)).collect()
}

#[test]
fn states_and_timers_of_a_job_that_fails_come_to_what_they_should() {
    let events = events(3_000);
    let expected = by_second(&events);
    Trial::each(&[100, 700, 1_300, 2_000], |trial| {
        let job = trial.job();
        let sums = job
            .source("in", source(&events, trial.parallelism))
            .source_time(Watermarks::monotonic())
            .key_by("by-key", |(key, _)| *key)
            .process("seconds", Seconds);
        assert_eq!(trial.run(job, sums), expected);
    });
}

#[test]
fn windows_of_a_job_that_fails_are_given_once() {
    let events = events(3_000);
    let expected = by_second(&events);
    Trial::each(&[100, 700, 1_300, 2_000], |trial| {
        let job = trial.job();
        let sums = job
            .source("in", source(&events, trial.parallelism))
            .source_time(Watermarks::monotonic())
            .key_by("by-key", |(key, _)| *key)
            .window(Tumbling::of(seconds(1)))
            .aggregate("sums", sum(|(_, value): &(u64, i64)| *value))
            .map(|w| (w.key, w.window.start.0, w.value));
        assert_eq!(trial.run(job, sums), expected);
    });
}

/// Takes a while for some results until some have come out with a checkpoint, so that one comes between them on any machine.
fn slowly<T>(trial: &Trial) -> impl Fn(T) -> T + Clone + Send + 'static {
    // One subtask alone is looked at.
    trial.given.store(trial.parallelism > 1, Ordering::Relaxed);
    let (given, passed) = (trial.given.clone(), Arc::new(AtomicU64::new(0)));
    move |row| {
        if passed.fetch_add(1, Ordering::Relaxed).is_multiple_of(100) && !given.load(Ordering::Relaxed) {
            std::thread::park_timeout(Duration::from_millis(20));
        }
        row
    }
}

/// Windows with so many keys that checkpoints, and failures, come in the middle of giving them.
#[test]
fn windows_with_many_keys_of_a_job_that_fails_are_given_once() {
    const KEYS: u64 = 20_000;
    // Two windows, and what ends the second.
    let events: Vec<(u64, i64, i64)> =
        (0..2 * KEYS + 1).map(|i| (i % KEYS, i as i64, (i / KEYS) as i64 * 1_000)).collect();
    let expected: Vec<(u64, i64, i64)> = {
        let mut rows: Vec<_> = events.iter().map(|(key, value, time)| (*key, *time, *value)).collect();
        rows.sort_unstable();
        rows
    };
    let source = |trial: &Trial, job: &Job| {
        let n = trial.parallelism;
        let script = |subtask: usize| {
            let own = events.iter().skip(subtask).step_by(n);
            own.map(|(key, value, time)| Line::Record((*key, *value), *time)).collect()
        };
        let source = job.source("in", ScriptSource::new((0..n).map(script).collect()));
        source.source_time(Watermarks::monotonic()).key_by("by-key", |(key, _): &(u64, i64)| *key)
    };
    let mut split = [0; 3];
    let mut check = |kind: usize, trial: &Trial, mut transactions: Vec<Vec<(u64, i64, i64)>>| {
        let alone = trial.parallelism == 1;
        split[kind] +=
            transactions.iter().filter(|rows| alone && (1..KEYS as usize).contains(&rows.len())).count();
        let mut rows: Vec<_> = transactions.drain(..).flatten().collect();
        rows.sort_unstable();
        assert!(rows == expected, "{} rows, {} expected", rows.len(), expected.len());
    };
    Trial::each(&[3_000, 15_000, 31_000, 52_000], |trial| {
        let job = trial.job();
        let sums = source(trial, &job)
            .window(Tumbling::of(seconds(1)))
            .aggregate("sums", sum(|(_, value): &(u64, i64)| *value))
            .map(|w| (w.key, w.window.start.0, w.value))
            .map(slowly(trial));
        check(0, trial, trial.transactions(job, sums));
        let job = trial.job_in("lenient");
        let sums = source(trial, &job)
            .window(Tumbling::of(seconds(1)).allow_lateness(seconds(1)))
            .aggregate("sums", sum(|(_, value): &(u64, i64)| *value))
            .map(|w| (w.key, w.window.start.0, w.value))
            .map(slowly(trial));
        check(1, trial, trial.transactions(job, sums));
        let job = trial.job_in("sessions");
        let sums = source(trial, &job)
            .window(Session::gap(Duration::from_millis(500)))
            .aggregate("sums", sum(|(_, value): &(u64, i64)| *value))
            .map(|w| (w.key, w.window.start.0, w.value))
            .map(slowly(trial));
        check(2, trial, trial.transactions(job, sums));
    });
    assert!(
        split.iter().all(|times| *times > 0),
        "checkpoints came in the middle of a window: {split:?} times"
    );
}

#[test]
fn histories_of_keys_of_a_job_that_fails_are_what_they_should_be() {
    let events = events(3_000);
    let (mut frames, mut firsts, mut pairs) = (Vec::new(), Vec::new(), Vec::new());
    let mut of_key = BTreeMap::<u64, Vec<(i64, i64)>>::new();
    for (key, value, time) in &events {
        let before = of_key.entry(*key).or_default();
        before.push((*value, *time));
        frames.push((*key, *time, before.iter().rev().take(3).map(|(value, _)| value).sum::<i64>()));
    }
    for (key, records) in &of_key {
        let mut until = i64::MIN;
        for (i, (value, time)) in records.iter().enumerate() {
            if *time >= until {
                until = time + 500;
                firsts.push((*key, *time, *value));
            }
            let then =
                records[i + 1..].iter().take_while(|then| then.1 - time <= 2_000).find(|then| then.0 == 7);
            if let (3, Some((_, at))) = (*value, then) {
                pairs.push((*key, *at, *time));
            }
        }
    }
    [&mut frames, &mut firsts, &mut pairs].into_iter().for_each(|rows| rows.sort_unstable());
    assert!(pairs.len() > 50, "{}", pairs.len());
    let keyed = |trial: &Trial, job: &Job| {
        let source = job.source("in", source_of(&events, trial.parallelism, |event| event));
        source.source_time(Watermarks::monotonic()).key_by("by-key", |(key, ..)| *key)
    };
    Trial::each(&[100, 700, 1_300, 2_000], |trial| {
        let job = trial.job();
        let sum = sum(|(_, value, _): &(u64, i64, i64)| *value);
        let sums = keyed(trial, &job).over("frames", Over::rows(3), sum);
        assert_eq!(trial.run(job, sums.map(|o| (o.key, o.record.2, o.value))), frames);
    });
    Trial::each(&[100, 700, 1_300, 2_000], |trial| {
        let job = trial.job();
        let once = keyed(trial, &job).deduplicate("once", Keep::First, Duration::from_millis(500));
        assert_eq!(trial.run(job, once.map(|(key, value, time)| (key, time, value))), firsts);
    });
    Trial::each(&[10, 20, 30, 40], |trial| {
        let job = trial.job();
        let pattern = Pattern::begin(|e: &(u64, i64, i64)| e.1 == 3).followed_by(|e| e.1 == 7, seconds(2));
        let found = keyed(trial, &job).detect("pairs", pattern);
        let found = found.map(|found| (found.key, found.then.map_or(0, |then| then.2), found.first.2));
        assert_eq!(trial.run(job, found), pairs);
    });
}

/// Key, value, time.
type Event = (u64, i64, i64);

/// Every second record is of the one side, the others of the other.
fn sides(events: &[Event]) -> [Vec<Event>; 2] {
    [0, 1].map(|side| events.iter().skip(side).step_by(2).copied().collect())
}

fn both(trial: &Trial, job: &Job, sides: &[Vec<Event>; 2]) -> KeyedStream<u64, Either<Event, Event>> {
    let [left, right] = [("left", &sides[0]), ("right", &sides[1])].map(|(uid, events)| {
        let source = job.source(uid, source_of(events, trial.parallelism, |event| event));
        source.source_time(Watermarks::monotonic()).key_by(&format!("by-{uid}"), |(key, ..)| *key)
    });
    left.connect(right)
}

#[test]
fn joins_of_a_job_that_fails_give_each_row_once() {
    let sides = sides(&events(3_000));
    let [left, right] = &sides;
    let (mut paired, mut windowed, mut versions) = (Vec::new(), Vec::new(), Vec::new());
    for l in left {
        let of_key = || right.iter().filter(|r| r.0 == l.0);
        let near: Vec<_> = of_key().filter(|r| (-300..=500).contains(&(r.2 - l.2))).collect();
        paired.extend(near.iter().map(|r| (*l, Some(**r))));
        paired.extend(near.is_empty().then_some((*l, None)));
        let second = |time: i64| time.div_euclid(1_000);
        windowed.extend((!of_key().any(|r| second(r.2) == second(l.2))).then_some(*l));
        versions.push((*l, of_key().filter(|r| r.2 <= l.2).max_by_key(|r| r.2).copied()));
    }
    [&mut paired, &mut versions].into_iter().for_each(|rows| rows.sort_unstable());
    windowed.sort_unstable();
    assert!(paired.len() > 1_500 && windowed.len() > 500, "{} {}", paired.len(), windowed.len());
    Trial::each(&[100, 400, 900, 1_300], |trial| {
        let job = trial.job();
        let rows =
            both(trial, &job, &sides).interval_join("paired", Interval::between_ms(-300, 500), LeftOuter);
        assert_eq!(trial.run(job, rows), paired);
    });
    Trial::each(&[50, 150, 300, 450], |trial| {
        let job = trial.job();
        let rows = both(trial, &job, &sides).window(Tumbling::of(seconds(1))).join("alone", Anti);
        assert_eq!(trial.run(job, rows.map(|w| w.value)), windowed);
    });
    Trial::each(&[100, 400, 900, 1_300], |trial| {
        let job = trial.job();
        let rows = both(trial, &job, &sides).temporal_join("versions", LeftOuter, Change::Put);
        assert_eq!(trial.run(job, rows), versions);
    });
}

/// Tells how many rules there are by each.
#[derive(Clone)]
struct Rules;

impl BroadcastFunction<(u64, i64), i64> for Rules {
    type Out = (usize, i64);
    type Rules = BTreeSet<i64>;
    fn process(
        &mut self,
        record: Record<(u64, i64)>,
        rules: &BTreeSet<i64>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        assert!(rules.iter().all(|rule| (0..500).contains(rule)));
        out.emit(record.with((0, record.time.0)))
    }
    fn rule(
        &mut self,
        rule: Record<i64>,
        rules: &mut BTreeSet<i64>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        rules.insert(rule.value);
        out.emit(rule.with((rules.len(), 0)))
    }
}

#[test]
fn rules_of_a_job_that_fails_are_those_of_its_checkpoint_in_every_subtask() {
    let (data, rules) = (events(1_500), (0..500).map(|n| (0, n, n)).collect::<Vec<_>>());
    Trial::each(&[100, 400, 900, 1_300], |trial| {
        let job = trial.job();
        let rules_in = job.source("rules", source_of(&rules, trial.parallelism, |(_, rule, _)| rule));
        let data_in = job.source("in", source(&data, trial.parallelism)).source_time(Watermarks::monotonic());
        let told = data_in.connect_broadcast(rules_in.without_event_time()).process("ruled", Rules);
        // Each subtask has had every rule once, after all those before.
        let told_rules = (1..=500).flat_map(|n| std::iter::repeat_n((n, 0), trial.parallelism));
        let mut expected: Vec<_> = told_rules.chain(data.iter().map(|event| (0, event.2))).collect();
        expected.sort_unstable();
        assert_eq!(trial.run(job, told), expected);
    });
}
