//! Event time in whole jobs: quiet partitions, stalls that are not silence, and what late records may change.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::time::Duration;

use weir_connectors::prelude::*;
use weir_engine::prelude::*;
use weir_engine::testkit::{Line, ManualClock, NullSink, ScriptSource, until};
use weir_engine::{OperatorContext, Sink, Source, SourceBatch, SourceStatus, SplitId};
use weir_operators::prelude::*;

const SOON: Duration = Duration::from_secs(20);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Counts per window of ten over every record, results and late records kept.
fn counting(
    job: &Job,
    scripts: Vec<Vec<Line<u64>>>,
    sources: usize,
    watermarks: Watermarks,
    results: &MemorySink<WindowResult<u8, u64>>,
    late: &MemorySink<u64>,
) {
    let numbers = job.source("numbers", ScriptSource::new(scripts).endless()).parallelism(sources);
    let (counts, too_late) = numbers
        .source_time(watermarks)
        .key_by("everything", |_| 0u8)
        .window(Tumbling::of(ms(10)))
        .aggregate_with_late("count", count());
    counts.sink("results", results.clone());
    too_late.sink("late", late.clone());
}

fn records(times: impl IntoIterator<Item = i64>) -> Vec<Line<u64>> {
    times.into_iter().map(|t| Line::Record(t as u64, t)).collect()
}

#[test]
fn e01_a_quiet_partition_does_not_hold_windows_back() {
    // The second script has a split that gives nothing; with four sources two more have no split at all.
    for sources in [2, 4] {
        let (results, late) = (MemorySink::new(), MemorySink::new());
        let clock = ManualClock::at(0);
        let job = Job::named("e01").parallelism(1).clock(std::sync::Arc::new(clock.clone()));
        let quiet = vec![Line::Pause(Duration::from_secs(3600))];
        let watermarks = Watermarks::monotonic().idle_after(Duration::from_secs(2));
        counting(&job, vec![records(1..=100), quiet], sources, watermarks, &results, &late);
        let handle = job.start().unwrap();
        until(&handle, SOON, "all read", || handle.tasks().iter().map(|t| t.records_in).sum::<u64>() >= 200);
        std::thread::park_timeout(ms(200));
        assert!(results.handle().is_empty(), "the quiet partition is not idle yet");
        clock.advance(Duration::from_secs(3));
        until(&handle, SOON, "the first window", || !results.handle().is_empty());
        let first = &results.handle().snapshot()[0].value;
        assert_eq!((first.window.start, first.window.end, first.value), (EventTime(0), EventTime(10), 9));
        handle.cancel();
        assert!(handle.wait().is_err());
    }
}

#[test]
fn e02_a_partition_that_returns_inside_the_open_window_is_counted() {
    let (results, late) = (MemorySink::new(), MemorySink::new());
    let job = Job::named("e02").parallelism(1);
    let mut back = vec![Line::Record(1, 1), Line::Pause(ms(900))];
    // The first partition stands at 25: [20, 30) is open, [0, 10) is over.
    back.extend([Line::Record(22, 22), Line::Record(3, 3)]);
    let watermarks = Watermarks::bounded(ms(0)).idle_after(ms(150));
    counting(&job, vec![records([5, 25]), back], 2, watermarks, &results, &late);
    let handle = job.start().unwrap();
    until(&handle, SOON, "the late record", || late.handle().len() == 1);
    handle.drain(EndKind::Flush);
    handle.wait().unwrap();
    let mut counts: Vec<(i64, u64)> = (results.handle().snapshot().iter())
        .map(|r| (r.value.window.start.millis(), r.value.value))
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, [(0, 2), (20, 2)]);
    assert_eq!(late.handle().take_values(), [3]);
}

/// Takes its time over the first batch without saying so to anyone.
#[derive(Clone)]
struct Stall(Duration);

impl<T: weir_engine::Data> Sink<T> for Stall {
    fn open(&mut self, _: &OperatorContext) -> Result<()> {
        Ok(())
    }
    fn write(&mut self, batch: &mut Vec<Record<T>>) -> Result<()> {
        batch.clear();
        std::thread::park_timeout(std::mem::take(&mut self.0));
        Ok(())
    }
}

#[test]
fn e05_a_source_held_back_by_its_sink_is_not_idle() {
    // Both in the source's own task and behind a channel: for a second nothing is read, with an idle limit of 200 ms.
    for boundary in [false, true] {
        let late = MemorySink::new();
        let job = Job::named("e05").parallelism(1).channel_depth(1);
        // Two partitions in one subtask would be told apart only by who is read first: here each has its own subtask.
        let script = || records(0..20_000);
        let watermarks = Watermarks::bounded(ms(50)).idle_after(ms(200));
        let numbers = job.source("numbers", ScriptSource::new(vec![script(), script()])).parallelism(2);
        let numbers = numbers.source_time(watermarks).shared();
        let (counts, too_late) = numbers
            .stream()
            .key_by("everything", |_| 0u8)
            .window(Tumbling::of(ms(10)))
            .aggregate_with_late("count", count());
        let total = MemorySink::new();
        counts.map(|w| w.value).sink("total", total.clone());
        too_late.sink("late", late.clone());
        let slow = numbers.stream();
        if boundary {
            slow.rebalance().sink("stall", Stall(Duration::from_secs(1)));
        } else {
            slow.sink("stall", Stall(Duration::from_secs(1)));
        }
        weir_engine::testkit::run_within(job, Duration::from_secs(60)).unwrap();
        assert_eq!(late.handle().take_values(), Vec::<u64>::new());
        assert_eq!(total.handle().take_values().iter().sum::<u64>(), 40_000);
    }
}

#[test]
fn a_wall_clock_that_jumps_changes_no_result() {
    let (results, late) = (MemorySink::new(), MemorySink::new());
    let clock = ManualClock::at(1_700_000_000_000);
    let job = Job::named("jump").parallelism(1).clock(std::sync::Arc::new(clock.clone()));
    let watermarks = Watermarks::monotonic().idle_after(Duration::from_secs(2));
    counting(&job, vec![records(0..100)], 1, watermarks, &results, &late);
    let handle = job.start().unwrap();
    until(&handle, SOON, "all read", || handle.tasks().iter().map(|t| t.records_in).sum::<u64>() >= 200);
    clock.jump_to(-5);
    clock.jump_to(4_000_000_000_000);
    handle.drain(EndKind::Flush);
    handle.wait().unwrap();
    assert_eq!(results.handle().take_values().iter().map(|w| w.value).sum::<u64>(), 100);
    assert!(late.handle().is_empty());
}

#[test]
fn nothing_fires_when_a_job_is_kept() {
    let (results, late) = (MemorySink::new(), MemorySink::new());
    let job = Job::named("keep").parallelism(2);
    counting(&job, vec![records(0..15)], 1, Watermarks::monotonic(), &results, &late);
    job.source("other", ScriptSource::of([(1u64, 1)]))
        .source_time(Watermarks::monotonic())
        .sink("null", NullSink);
    let handle = job.start().unwrap();
    until(&handle, SOON, "the closed window", || results.handle().len() == 1);
    handle.drain(EndKind::Keep);
    handle.wait().unwrap();
    assert_eq!(results.handle().len(), 1, "the open window is kept, not fired");
}

/// Two splits of one subtask, read in turn, `per_poll` records at a time, always with more to come until both are read.
#[derive(Clone)]
struct TwoSplits {
    left: [u64; 2],
    n: u64,
    per_poll: usize,
    turn: usize,
}

impl TwoSplits {
    fn new(n: u64, per_poll: usize) -> Self {
        TwoSplits { left: [n, n], n, per_poll, turn: 0 }
    }
}

impl Source for TwoSplits {
    type Out = u64;
    fn open(&mut self, _: &OperatorContext) -> Result<()> {
        Ok(())
    }
    fn poll(&mut self, out: &mut SourceBatch<u64>, _: Duration) -> Result<SourceStatus> {
        if self.left == [self.n, self.n] && self.turn == 0 {
            (0..2).for_each(|i| out.split_started(SplitId(i)));
        }
        let split = self.turn % 2;
        self.turn += 1;
        for _ in 0..self.per_poll.min(out.room()) {
            if self.left[split] > 0 {
                let at = self.n - self.left[split];
                self.left[split] -= 1;
                out.push(SplitId(split as u32), at, EventTime(at as i64));
            }
        }
        Ok(if self.left == [0, 0] { SourceStatus::End } else { SourceStatus::More })
    }
}

/// Counts per window; gives what was counted and what was late.
fn counted(job: Job, numbers: Stream<u64>) -> (u64, usize) {
    let (total, late) = (MemorySink::new(), MemorySink::new());
    let (counts, too_late) = numbers
        .key_by("everything", |_| 0u8)
        .window(Tumbling::of(ms(10)))
        .aggregate_with_late("count", count());
    counts.map(|w| w.value).sink("total", total.clone());
    too_late.sink("late", late.clone());
    weir_engine::testkit::run_within(job, Duration::from_secs(60)).unwrap();
    (total.handle().take_values().iter().sum(), late.handle().len())
}

#[test]
fn e04_a_paced_split_is_not_idle() {
    let job = Job::named("e04").parallelism(1);
    let watermarks = Watermarks::monotonic().idle_after(ms(100));
    // One split is read far ahead of the other: at this rate the other waits for longer than the limit.
    let source = TwoSplits::new(150, 150);
    let numbers = job.source("numbers", source).max_rate(300.0).source_time(watermarks);
    assert_eq!(counted(job, numbers), (300, 0));
}

#[test]
fn e05_a_slow_operator_in_the_sources_own_task_does_not_make_a_split_idle() {
    let job = Job::named("e05").parallelism(1);
    let watermarks = Watermarks::monotonic().idle_after(ms(100));
    let numbers = job.source("numbers", TwoSplits::new(40, 4)).source_time(watermarks);
    let mut seen = 0;
    let slow = numbers.map(move |n| {
        seen += 1;
        if seen % 10 == 0 {
            std::thread::park_timeout(ms(300));
        }
        n
    });
    assert_eq!(counted(job, slow.boundary()), (80, 0));
}

#[test]
fn e02_a_partition_that_returns_is_heard_by_every_consumer() {
    // The second source falls silent at 10 and comes back inside the open window [0, 1000) with one key only; the first
    // then runs far ahead. The consumer of other keys must not close the window before the second has caught up.
    let late = MemorySink::new();
    let total = MemorySink::new();
    let job = Job::named("e02-all").parallelism(2);
    let first = vec![
        Line::Record(0u64, 10),
        Line::Pause(ms(1100)),
        Line::Record(1, 5000),
        Line::Record(2, 5001),
        Line::Pause(ms(600)),
    ];
    let mut second =
        vec![Line::Record(0, 10), Line::Pause(ms(1000)), Line::Record(7, 500), Line::Pause(ms(300))];
    second.extend((0..64).map(|key| Line::Record(key, 600)));
    let scripts = vec![first, second];
    // Longer than the second's pause after its return, shorter than the one before it.
    let watermarks = Watermarks::monotonic().idle_after(ms(450));
    let (counts, too_late) = job
        .source("numbers", ScriptSource::new(scripts))
        .source_time(watermarks)
        .key_by("by-number", |n| *n)
        .window(Tumbling::of(ms(1000)))
        .aggregate_with_late("count", count());
    counts.sink("counts", total.clone());
    too_late.sink("late", late.clone());
    weir_engine::testkit::run_within(job, SOON).unwrap();
    let counted: u64 = total.handle().take_values().iter().map(|w| w.value).sum();
    assert_eq!((counted, late.handle().take_values()), (3 + 2 + 64, Vec::new()));
}

/// Tells how often its key came within an hour of event time, and a millisecond after each record that it did.
#[derive(Clone)]
struct Remembers(ValueState<u8, u64>);

impl ProcessFunction<u8, (u8, i64)> for Remembers {
    type Out = String;
    type State = ();
    fn states(&mut self) -> Vec<&mut dyn NamedState<u8>> {
        vec![&mut self.0]
    }
    fn process(
        &mut self,
        record: Record<(u8, i64)>,
        cx: &mut KeyedContext<'_, u8, ()>,
        out: &mut impl Collector<String>,
    ) -> Result<()> {
        let seen = self.0.get(cx)?.copied().unwrap_or(0) + 1;
        self.0.set(cx, seen)?;
        cx.set_timer(EventTime(record.time.0 + 1));
        out.emit(record.with(format!("{seen} at {}", record.time.0)))
    }
    fn on_timer(
        &mut self,
        time: EventTime,
        _: &mut KeyedContext<'_, u8, ()>,
        out: &mut impl Collector<String>,
    ) -> Result<()> {
        out.emit(Record::new(format!("timer of {}", time.0), time))
    }
}

/// All input ends, the last checkpoint is complete, and a later life has more to read: it is not late, its timers fire, what was
/// remembered is as old as event time says, and what was given is not given again.
#[test]
fn a_job_whose_input_had_ended_goes_on_with_the_files_that_are_added() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, rows: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, rows).unwrap();
        path
    };
    let life = |source: FileSource<(u8, i64), weir_connectors::format::Csv<(u8, i64)>>| {
        let checkpoints = Checkpoints::to(folder.path().join("checkpoints").display().to_string());
        let state = StateBackend::rocksdb().folder(folder.path().join("state"));
        let job = Job::named("goes-on").parallelism(2).state(state).checkpoints(checkpoints.every(SOON));
        let (results, late) = (MemorySink::new(), MemorySink::new());
        let rows = job.source("rows", source).event_time(|row| row.1, Watermarks::monotonic()).shared();
        let keyed = |uid: &str| rows.stream().key_by(uid, |row| row.0);
        let told = |uid: &'static str| {
            move |r: WindowResult<u8, u64>| format!("{uid} from {}: {}", r.window.start.0, r.value)
        };
        let (tumbling, a) =
            keyed("by-key-a").window(Tumbling::of(ms(10))).aggregate_with_late("tumbling", count());
        let sliding = Sliding::of(ms(20)).every(ms(10));
        let (sliding, b) = keyed("by-key-b").window(sliding).aggregate_with_late("sliding", count());
        let (sessions, c) =
            keyed("by-key-c").window(Session::gap(ms(10))).aggregate_with_late("sessions", count());
        tumbling.map(told("tumbling")).sink("tumbling-out", results.clone());
        sliding.map(told("sliding")).sink("sliding-out", results.clone());
        sessions.map(told("session")).sink("sessions-out", results.clone());
        a.union(b).union(c).sink("late", late.clone());
        let hour = Ttl::event_time(Duration::from_secs(3600));
        keyed("by-key-d")
            .process("remembers", Remembers(ValueState::named("seen").ttl(hour)))
            .sink("remembered", results.clone());
        weir_engine::testkit::run_within(job, SOON).unwrap();
        assert!(late.handle().is_empty(), "{:?}", late.handle().take_values());
        let mut results = results.handle().take_values();
        results.sort();
        results
    };
    let source = FileSource::csv(file("first.csv", "1,5\n1,15\n"));
    let first = [
        "1 at 5",
        "2 at 15",
        "session from 5: 1",
        "session from 15: 1",
        "sliding from -10: 1",
        "sliding from 0: 2",
        "sliding from 10: 1",
        "timer of 16",
        "timer of 6",
        "tumbling from 0: 1",
        "tumbling from 10: 1",
    ];
    let mut first = first.map(str::to_owned);
    first.sort();
    assert_eq!(life(source.clone()), first);
    assert_eq!(life(source.clone()), Vec::<String>::new(), "nothing was added");

    let source = source.and(file("second.csv", "1,25\n1,1005\n"));
    let second = [
        "3 at 25",
        "4 at 1005",
        "timer of 26",
        "timer of 1006",
        "tumbling from 20: 1",
        "tumbling from 1000: 1",
        "sliding from 10: 1",
        "sliding from 20: 1",
        "sliding from 990: 1",
        "sliding from 1000: 1",
        "session from 25: 1",
        "session from 1005: 1",
    ];
    let mut second = second.map(str::to_owned);
    second.sort();
    assert_eq!(life(source), second);
}
