//! Checkpoints of whole jobs: what a failure, a stop and another process leave of them
//! (over 400 lines: one job, and each thing that may happen to it).
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_engine::testkit::{Line, NullSink, Probe, ScriptSource, until};
use weir_engine::{Barrier, Notice, Operator, OperatorInfo, Sink, Snapshot, metrics, prelude::*};
use weir_state::checkpoint::Outcome;
use weir_state::key_hash;
use weir_state::keyed::{KeyedState, Table, ValueState};

const SOON: Duration = Duration::from_secs(30);

/// Sums up, gives the sum at the end, remembers it in checkpoints, and fails once at a value if told to.
#[derive(Clone, Default)]
struct Sum {
    sum: i64,
    fails_at: Option<i64>,
    failed: Arc<AtomicBool>,
    refuses: Arc<AtomicU64>,
}

impl Operator<i64> for Sum {
    type Out = i64;
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.sum = cx.restored("sum").iter().filter_map(|item| item.value.as_i64()).sum();
        Ok(())
    }
    fn process(&mut self, r: Record<i64>, _: &mut impl Collector<i64>) -> Result<()> {
        if self.fails_at == Some(r.value) && !self.failed.swap(true, Ordering::SeqCst) {
            return Err(TaskError::user("once"));
        }
        self.sum += r.value;
        Ok(())
    }
    fn snapshot(&mut self, barrier: Barrier, into: &mut Snapshot) -> Result<()> {
        if barrier != Barrier::LAST && self.refuses.load(Ordering::SeqCst) > 0 {
            self.refuses.fetch_sub(1, Ordering::SeqCst);
            return Err(TaskError::external("cannot prepare"));
        }
        into.item("sum", "sum", self.sum.into());
        Ok(())
    }
    fn on_end(&mut self, _: EndKind, out: &mut impl Collector<i64>) -> Result<()> {
        out.emit(Record::new(self.sum, EventTime(0)))
    }
}

fn numbers(n: i64) -> ScriptSource<i64> {
    let lines = (1..=n).flat_map(|i| {
        let pause = (i % 50 == 0).then_some(Line::Pause(Duration::from_millis(2)));
        [Some(Line::Record(i, i)), pause].into_iter().flatten()
    });
    ScriptSource::new(vec![lines.collect()])
}

fn sum_to(n: i64) -> i64 {
    n * (n + 1) / 2
}

/// A job whose sum goes to the probe.
fn job(name: &str, source: ScriptSource<i64>, sum: Sum, checkpoints: Checkpoints) -> (Job, Probe<i64>) {
    let (job, probe) = (Job::named(name).parallelism(1).checkpoints(checkpoints), Probe::new());
    job.source("in", source)
        .without_event_time()
        .boundary()
        .transform(OperatorInfo::stateful("sum", "sum"), sum)
        .transform(OperatorInfo::stateless("look"), probe.clone())
        .sink("out", NullSink);
    (job, probe)
}

fn often(name: &str) -> Checkpoints {
    Checkpoints::to(format!("memory://engine-{name}")).every(Duration::from_millis(5))
}

/// Waits until the sum has seen `n` records.
fn until_summed(job: &JobHandle, n: u64) {
    let sums = |t: &weir_engine::TaskReading| matches!(t.task.chain.as_str(), "sum" | "union");
    let summed = || job.tasks().iter().any(|t| t.records_in == n && sums(t));
    until(job, SOON, "all records", summed);
}

#[test]
fn a_failure_costs_no_record_and_counts_none_twice() {
    let sum = Sum { fails_at: Some(700), ..Sum::default() };
    let (job, probe) = job("fails", numbers(1_000), sum, often("fails"));
    let policy = RestartPolicy::FixedDelay { restarts: 1, delay: Duration::ZERO };
    let report = job.restart(policy).run().unwrap();
    assert_eq!((report.attempts, probe.values()), (2, vec![sum_to(1_000)]));
    assert!(report.checkpoints > 2, "{}", report.checkpoints);
}

#[test]
fn another_process_goes_on_where_the_last_checkpoint_was() {
    let url = often("goes-on");
    let (first, _) = job("goes-on", numbers(100).endless(), Sum::default(), url.clone());
    let first = first.start().unwrap();
    until_summed(&first, 100);
    let id = first.checkpoint().unwrap();
    let recorded = first.checkpoints().iter().any(|c| c.id.to_string() == id);
    assert!(recorded, "its record is there when its number is");
    first.cancel();
    assert!(first.wait().is_err());
    // The script goes on: 50 more.
    let (second, probe) = job("goes-on", numbers(150), Sum::default(), url);
    let second = second.start().unwrap();
    let report = second.wait().unwrap();
    assert_eq!(probe.values(), [sum_to(150)]);
    assert_eq!(report.tasks[0].records_in, 50, "of the source, after checkpoint {id}");
    assert!(second.history().iter().any(|s| s.state == JobState::Restoring));
}

#[test]
fn a_fresh_start_takes_nothing_over() {
    let (first, _) = job("fresh", numbers(10), Sum::default(), often("fresh"));
    first.run().unwrap();
    let (again, probe) = job("fresh", numbers(10), Sum::default(), often("fresh"));
    again.run().unwrap();
    assert_eq!(probe.values(), [sum_to(10)], "it had ended: nothing is read again");
    let fresh = often("fresh").start_from(StartFrom::Fresh);
    let (fresh, probe) = job("fresh", numbers(20), Sum::default(), fresh);
    fresh.run().unwrap();
    assert_eq!(probe.values(), [sum_to(20)]);
}

#[test]
fn a_savepoint_starts_another_job() {
    // A place that can be named by another job: what is in memory is found by the name of the storage only.
    let folder = tempfile::tempdir().unwrap();
    let url = Checkpoints::to(folder.path().display().to_string()).every(Duration::from_millis(20));
    let (first, _) = job("old", numbers(100).endless(), Sum::default(), url.clone());
    let first = first.start().unwrap();
    until_summed(&first, 100);
    let kept = first.savepoint("kept").unwrap();
    let stopped = first.stop_with_savepoint("stopped").unwrap();
    first.wait().unwrap();
    // A plain start goes on from the stop: its sinks have committed what is in it.
    let (again, probe) = job("old", numbers(110), Sum::default(), url.clone());
    let report = again.run().unwrap();
    assert_eq!((probe.values(), report.tasks[0].records_in), (vec![sum_to(110)], 10));
    for from in [kept, stopped] {
        let checkpoints = url.clone().start_from(StartFrom::Savepoint(from));
        let (second, probe) = job("new", numbers(120), Sum::default(), checkpoints);
        second.run().unwrap();
        assert_eq!(probe.values(), [sum_to(120)]);
    }
}

#[test]
fn a_stop_with_a_name_that_cannot_be_is_refused_and_the_job_goes_on() {
    let (job, probe) = job("names", numbers(100).endless(), Sum::default(), often("names"));
    let job = job.start().unwrap();
    until_summed(&job, 100);
    job.savepoint("a").unwrap();
    for (name, why) in [("a", "already exists"), ("a/b", "a/b"), ("", "characters")] {
        let refused = job.stop_with_savepoint(name).unwrap_err();
        assert!(refused.starts_with("the job goes on: ") && refused.contains(why), "{refused}");
        assert_eq!(job.status().state, JobState::Running, "{name}");
    }
    job.checkpoint().unwrap();
    job.stop_with_savepoint("b").unwrap();
    job.wait().unwrap();
    assert_eq!(probe.values(), [sum_to(100)]);
}

/// Each of them waits for the savepoint's folder to be looked at, which takes a thread itself.
#[test]
fn a_savepoint_of_many_tasks_is_not_held_up_by_their_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::to(folder.path().display().to_string()).every(Duration::from_secs(3_600));
    let job = Job::named("many").parallelism(16).checkpoints(checkpoints);
    let source = ScriptSource::new(vec![vec![Line::Record(1i64, 1)]; 16]).endless();
    job.source("in", source)
        .without_event_time()
        .boundary()
        .transform(OperatorInfo::stateful("sum", "sum"), Sum::default())
        .sink("out", NullSink);
    let job = job.start().unwrap();
    let summed =
        || job.tasks().iter().filter(|t| t.task.chain.as_str() == "sum" && t.records_in == 1).count() == 16;
    until(&job, SOON, "all records", summed);
    job.savepoint("on-the-way").unwrap();
    job.stop_with_savepoint("stopped").unwrap();
    job.wait().unwrap();
}

#[test]
fn e34_state_of_an_operator_that_is_gone_is_refused_unless_it_may_go() {
    let (first, _) = job("e34", numbers(10), Sum::default(), often("e34"));
    first.run().unwrap();
    let without = |checkpoints: Checkpoints| {
        let job = Job::named("e34").parallelism(1).checkpoints(checkpoints);
        job.source("in", numbers(20)).without_event_time().sink("out", NullSink);
        job.run()
    };
    let refused = without(often("e34")).unwrap_err().to_string();
    assert!(refused.contains("operators that the job does not have: sum"), "{refused}");
    assert!(refused.contains("drop_state(\"sum\")"), "{refused}");
    assert_eq!(without(often("e34").drop_state("sum")).unwrap().tasks[0].records_in, 10);
}

/// Counts every record in each of its tables.
struct Tables {
    names: Vec<&'static str>,
    open: Vec<(&'static str, ValueState<u64, u64>)>,
    /// How many, by table.
    told: Told,
}

type Told = Arc<Mutex<BTreeMap<String, u64>>>;

impl Tables {
    fn new(names: &[&'static str], told: &Told) -> Self {
        Tables { names: names.to_vec(), open: Vec::new(), told: told.clone() }
    }
}

impl Clone for Tables {
    fn clone(&self) -> Self {
        Tables::new(&self.names, &self.told)
    }
}

impl Operator<i64> for Tables {
    type Out = i64;
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        for name in &self.names {
            self.open.push((*name, cx.store()?.value_state(Table::new(*name))?));
        }
        Ok(())
    }
    fn process(&mut self, r: Record<i64>, out: &mut impl Collector<i64>) -> Result<()> {
        for (name, counts) in &mut self.open {
            let count = counts.get_or_insert_with(key_hash(&1u64), &1, || 0)?;
            *count += 1;
            self.told.lock().expect("no operator panics").insert((*name).to_owned(), *count);
        }
        out.emit(r)
    }
    fn on_batch_end(&mut self, _: &mut impl Collector<i64>) -> Result<()> {
        self.open.iter_mut().try_for_each(|(_, counts)| Ok(counts.batch_end()?))
    }
    fn snapshot(&mut self, _: Barrier, into: &mut Snapshot) -> Result<()> {
        self.open.iter_mut().try_for_each(|(_, counts)| Ok(counts.freeze(into)?))
    }
}

/// What the process logs, in one place for all tests.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no logger panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn e34_a_job_with_operators_inserted_and_swapped_and_a_table_removed_goes_on() {
    let log = Log::default();
    let into = log.clone();
    tracing_subscriber::fmt().with_ansi(false).with_writer(move || into.clone()).init();
    let job = |chain: &[(&'static str, &[&'static str])], n: i64, checkpoints: Checkpoints| {
        let told = Told::default();
        let job = Job::named("e34-tables").parallelism(1).checkpoints(checkpoints);
        let numbers = job.source("in", numbers(n)).without_event_time();
        let op = |i: usize| (OperatorInfo::stateful("tables", chain[i].0), Tables::new(chain[i].1, &told));
        let [(first, a), (second, b), (third, c)] = [op(0), op(1), op(2)];
        numbers.transform(first, a).transform(second, b).transform(third, c).sink("out", NullSink);
        job.run().map(|_| told.lock().unwrap().clone())
    };
    let often = || often("e34-tables");
    let before: [(&str, &[&str]); 3] = [("a", &["a-total", "a-gone"]), ("b", &["b-total"]), ("c", &[])];
    let counted = job(&before, 10, often()).unwrap();
    assert_eq!(
        counted.into_iter().collect::<Vec<_>>(),
        counts(&[("a-gone", 10), ("a-total", 10), ("b-total", 10)])
    );

    // `a` and `b` have changed places, `new` has come between them, and `a` has one table less. (`c` had no state.)
    let after: [(&str, &[&str]); 3] = [("b", &["b-total"]), ("new", &["new-total"]), ("a", &["a-total"])];
    let refused = job(&after, 25, often()).unwrap_err().to_string();
    assert!(refused.contains("operator \"a\"") && refused.contains("table \"a-gone\""), "{refused}");
    assert!(refused.contains("drop_state(\"a/a-gone\")"), "{refused}");
    // Another table's name does not help.
    let refused = job(&after, 25, often().drop_state("a/a-total")).unwrap_err().to_string();
    assert!(refused.contains("drop_state(\"a/a-gone\")"), "{refused}");

    let counted = job(&after, 25, often().drop_state("a/a-gone")).unwrap();
    assert_eq!(
        counted.into_iter().collect::<Vec<_>>(),
        counts(&[("a-total", 25), ("b-total", 25), ("new-total", 15)])
    );
    let logged = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let dropped =
        |line: &str| line.contains("restoring drops a table") && line.contains("operator=a table=a-gone");
    assert_eq!(logged.lines().filter(|line| dropped(line)).count(), 1, "{logged}");
    // It is gone: nobody has to be told of it again.
    assert_eq!(job(&after, 30, often()).unwrap()["a-total"], 30);
}

fn counts(of: &[(&str, u64)]) -> Vec<(String, u64)> {
    of.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn an_operator_of_another_kind_under_an_old_uid_is_refused() {
    let (first, _) = job("kinds", numbers(10), Sum::default(), often("kinds"));
    first.run().unwrap();
    let with_tables = |n: i64, checkpoints: Checkpoints| {
        let (job, told) = (Job::named("kinds").parallelism(1).checkpoints(checkpoints), Told::default());
        let tables = Tables::new(&["total"], &told);
        job.source("in", numbers(n))
            .without_event_time()
            .transform(OperatorInfo::stateful("tables", "sum"), tables)
            .sink("out", NullSink);
        job.run().map(|_| told.lock().unwrap().clone())
    };
    let refused = with_tables(25, often("kinds")).unwrap_err().to_string();
    assert!(
        refused.contains("\"sum\" was an operator of kind sum when it was taken and is one of kind tables"),
        "{refused}"
    );
    let counted = with_tables(25, often("kinds").drop_state("sum")).unwrap();
    assert_eq!(counted["total"], 15, "of the records after the checkpoint");
    assert_eq!(with_tables(30, often("kinds")).unwrap()["total"], 20, "it is its own now");
}

/// Shows what it is given when the checkpoint is complete, or never: its life ends before.
#[derive(Clone)]
struct Shows {
    open: Vec<i64>,
    dies: bool,
    shown: Arc<Mutex<Vec<i64>>>,
}

impl Sink<i64> for Shows {
    fn write(&mut self, batch: &mut Vec<Record<i64>>) -> Result<()> {
        self.open.extend(batch.drain(..).map(|r| r.value));
        Ok(())
    }
    fn prepare(&mut self, _: Barrier) -> Result<Option<serde_json::Value>> {
        let rows = std::mem::take(&mut self.open);
        Ok(if rows.is_empty() { None } else { Some(serde_json::to_value(rows)?) })
    }
    fn commit(&mut self, prepared: serde_json::Value) -> Result<()> {
        if self.dies {
            return Err(TaskError::external("the disk is away"));
        }
        let rows: Vec<i64> = serde_json::from_value(prepared)?;
        self.shown.lock().expect("no sink panics").extend(rows);
        Ok(())
    }
}

#[test]
fn what_a_sink_prepared_is_not_lost_to_a_sink_that_cannot_commit_it() {
    let shown = Arc::<Mutex<Vec<i64>>>::default();
    let sink = |dies: bool| Shows { open: Vec::new(), dies, shown: shown.clone() };
    let run = |n: i64, sink: Option<Shows>, checkpoints: Checkpoints| {
        let job = Job::named("prepared").parallelism(1).checkpoints(checkpoints);
        let numbers = job.source("in", numbers(n)).without_event_time();
        match sink {
            Some(sink) => numbers.sink("out", sink),
            None => numbers.sink("out", NullSink),
        };
        job.run()
    };
    let often = || often("prepared");
    // It dies with something that a complete checkpoint holds.
    let died = run(100, Some(sink(true)), often()).unwrap_err().to_string();
    assert!(died.contains("the disk is away"), "{died}");

    let refused = run(100, None, often()).unwrap_err().to_string();
    assert!(
        refused.contains("operator \"out\"") && refused.contains("written and not shown yet"),
        "{refused}"
    );
    assert!(refused.contains("drop_state(\"out\")"), "{refused}");
    // A refusal costs nothing: the old one still shows it, each record once.
    run(100, Some(sink(false)), often()).unwrap();
    let mut rows = shown.lock().unwrap().clone();
    rows.sort_unstable();
    assert_eq!(rows, (1..=100).collect::<Vec<_>>());

    // And if it may be lost it is.
    let died = run(200, Some(sink(true)), often()).unwrap_err().to_string();
    assert!(died.contains("the disk is away"), "{died}");
    run(200, None, often().drop_state("out")).unwrap();
    assert_eq!(shown.lock().unwrap().len(), 100);
}

/// A bounded source and one that never ends, together.
fn two_sources(name: &str, more: i64, sum: Sum) -> (Job, Probe<i64>) {
    let (job, probe) = (Job::named(name).parallelism(1).checkpoints(often(name)), Probe::new());
    let rare = Line::Pause(Duration::from_millis(20));
    let lines = (1..=more).flat_map(|i| [Line::Record(i * 1_000, i), rare.clone()]);
    let runs = job.source("runs", ScriptSource::new(vec![lines.collect()]).endless()).without_event_time();
    let ends = job.source("ends", numbers(10)).without_event_time();
    runs.union(ends)
        .transform(OperatorInfo::stateful("sum", "sum"), sum)
        .transform(OperatorInfo::stateless("look"), probe.clone())
        .sink("out", NullSink);
    (job, probe)
}

#[test]
fn e37_checkpoints_go_on_after_one_of_two_sources_has_ended() {
    let (first, _) = two_sources("e37", 3, Sum::default());
    let first = first.start().unwrap();
    until_summed(&first, 13);
    for _ in 0..3 {
        first.checkpoint().unwrap();
    }
    first.cancel();
    assert!(first.wait().is_err());
    // What the ended one gave is in them, and it is not read again.
    let (again, probe) = two_sources("e37", 5, Sum::default());
    let again = again.start().unwrap();
    until_summed(&again, 2);
    again.checkpoint().unwrap();
    again.drain(EndKind::Keep);
    again.wait().unwrap();
    assert_eq!(probe.values(), [sum_to(5) * 1_000 + sum_to(10)]);
}

#[test]
fn e40_a_snapshot_that_fails_is_not_part_of_a_checkpoint() {
    let sum = Sum::default();
    sum.refuses.store(1, Ordering::SeqCst);
    let (job, probe) = job("e40", numbers(1_000), sum, often("e40"));
    let policy = RestartPolicy::FixedDelay { restarts: 3, delay: Duration::ZERO };
    metrics::install();
    let job = job.restart(policy).start().unwrap();
    // Its record says who, and why; it is among the last hundred for a while only.
    let mut found = None;
    until(&job, SOON, "its record", || {
        found = job.checkpoints().into_iter().find(|c| matches!(c.outcome, Outcome::Declined(_)));
        found.is_some()
    });
    let report = job.wait().unwrap();
    assert_eq!((report.attempts, probe.values()), (2, vec![sum_to(1_000)]));
    let (record, why) = (found.unwrap(), "sum[0]: cannot prepare");
    assert_eq!(record.outcome, Outcome::Declined(why.to_owned()));
    let said: Vec<_> =
        record.tasks.iter().filter_map(|t| Some((t.uid.as_str(), t.declined.as_deref()?))).collect();
    assert_eq!(said, [("sum", why)], "{record:?}");
    let text = metrics::render().unwrap();
    assert!(text.contains("weir_checkpoints_failed_total{job=\"e40\"} 1"), "{text}");
}

/// A failure of a task beside a checkpoint in flight is not that checkpoint's, but it says what took it along.
#[test]
fn a_checkpoint_that_an_attempt_takes_along_says_what_ended_it() {
    let folder = tempfile::tempdir().unwrap();
    let (hold, fails) = (Arc::new(AtomicBool::new(true)), Arc::<AtomicBool>::default());
    let job = Job::named("along")
        .parallelism(1)
        .checkpoints(Checkpoints::to(folder.path().display().to_string()).every(Duration::from_secs(3_600)));
    let holds = Holds { hold: hold.clone(), cx: None };
    job.source("held", numbers(1).endless())
        .without_event_time()
        .boundary()
        .transform(OperatorInfo::stateful("holds", "holds"), holds)
        .sink("out", NullSink);
    job.source("in", ScriptSource::of([(1, 0)]).endless())
        .without_event_time()
        .transform(OperatorInfo::stateless("fails"), Fails(fails.clone()))
        .sink("nowhere", NullSink);
    let job = job.start().unwrap();
    until(&job, SOON, "it runs", || job.status().state == JobState::Running);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| job.checkpoint());
        until(&job, SOON, "a snapshot that lasts", || !hold.load(Ordering::SeqCst));
        fails.store(true, Ordering::SeqCst);
        let refused = asked.join().unwrap().unwrap_err();
        assert!(
            refused.contains("the attempt ended: operator \"fails\" subtask 0 failed: told to"),
            "{refused}"
        );
    });
    assert!(job.wait().is_err());
    let record = job.checkpoints().pop().unwrap();
    assert!(matches!(&record.outcome, Outcome::Aborted(why) if why.contains("told to")), "{record:?}");
    assert!(record.tasks.iter().all(|t| t.declined.is_none()), "{record:?}");
}

/// Stays in its snapshot until the attempt is cancelled, and says so by lowering the flag.
#[derive(Clone)]
struct Holds {
    hold: Arc<AtomicBool>,
    cx: Option<OperatorContext>,
}

impl Operator<i64> for Holds {
    type Out = i64;
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.cx = Some(cx.clone());
        Ok(())
    }
    fn process(&mut self, r: Record<i64>, out: &mut impl Collector<i64>) -> Result<()> {
        out.emit(r)
    }
    fn snapshot(&mut self, barrier: Barrier, _: &mut Snapshot) -> Result<()> {
        if barrier == Barrier::LAST {
            return Ok(());
        }
        loop {
            self.hold.store(false, Ordering::SeqCst);
            if let Some(cx) = &self.cx {
                cx.wait(Duration::from_millis(1))?;
            }
        }
    }
}

/// Fails when it is told to, whether or not there are records.
#[derive(Clone)]
struct Fails(Arc<AtomicBool>);

impl Operator<i64> for Fails {
    type Out = i64;
    fn process(&mut self, r: Record<i64>, out: &mut impl Collector<i64>) -> Result<()> {
        out.emit(r)
    }
    fn on_quiet(&mut self, _: &mut impl Collector<i64>) -> Result<()> {
        if self.0.load(Ordering::SeqCst) { Err(TaskError::user("told to")) } else { Ok(()) }
    }
}

#[test]
fn two_processes_do_not_run_one_job() {
    let (first, _) = job("twice", numbers(1).endless(), Sum::default(), often("twice"));
    let first = first.start().unwrap();
    until(&first, SOON, "a record", || first.tasks().iter().any(|t| t.records_in > 0));
    let (second, _) = job("twice", numbers(1), Sum::default(), often("twice"));
    let refused = second.run().unwrap_err().to_string();
    assert!(refused.contains("twice"), "{refused}");
    first.cancel();
    assert!(first.wait().is_err());
}

/// Fails after each checkpoint, and counts the lives after the first that remember nothing.
#[derive(Clone, Default)]
struct Forgetful {
    lives: Arc<AtomicU64>,
    anew: Arc<AtomicU64>,
}

impl Operator<i64> for Forgetful {
    type Out = i64;
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        let again = self.lives.fetch_add(1, Ordering::SeqCst) > 0;
        self.anew.fetch_add(u64::from(again && cx.restored("life").is_empty()), Ordering::SeqCst);
        Ok(())
    }
    fn process(&mut self, _: Record<i64>, _: &mut impl Collector<i64>) -> Result<()> {
        Ok(())
    }
    fn snapshot(&mut self, _: Barrier, into: &mut Snapshot) -> Result<()> {
        into.item("life", "life", 1.into());
        Ok(())
    }
    fn on_notice(&mut self, notice: Notice) -> Result<()> {
        match notice {
            Notice::Completed(_) => Err(TaskError::external("fails")),
            Notice::Aborted(_) => Ok(()),
        }
    }
}

#[test]
fn a_cancel_between_two_lives_lets_no_other_begin() {
    // A folder: giving its lease back takes longer than the pause between two lives.
    let folder = tempfile::tempdir().unwrap();
    for round in 0..30 {
        let url = Checkpoints::to(folder.path().display().to_string()).every(Duration::from_millis(2));
        let job = Job::named(&format!("between-{round}")).parallelism(1).checkpoints(url);
        let sum = Forgetful::default();
        job.source("in", numbers(10).endless())
            .without_event_time()
            .transform(OperatorInfo::stateful("sum", "sum"), sum.clone())
            .sink("out", NullSink);
        let delay = Duration::from_millis(1);
        let job = job.restart(RestartPolicy::FixedDelay { restarts: 1_000, delay }).start().unwrap();
        until(&job, SOON, "a pause", || job.status().state == JobState::Suspended);
        job.cancel();
        assert!(job.wait().is_err());
        assert_eq!(sum.anew.load(Ordering::SeqCst), 0, "a life began from nothing");
    }
}
