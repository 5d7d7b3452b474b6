//! Keys with timers over lives of another parallelism each, stopped in every way: each timer fires once, each count is exact.

use std::time::Duration;

use weir_connectors::file::FileSink;
use weir_connectors::generator::Generator;
use weir_engine::prelude::*;
use weir_engine::testkit::until;
use weir_operators::prelude::*;

use crate::rig::*;

const KEYS: u64 = 100_000;

/// Counts, and gives the count when event time has come to the key's own moment, after its last record.
#[derive(Clone)]
struct CountUntil;

impl ProcessFunction<u64, u64> for CountUntil {
    type Out = (u64, u64, i64);
    type State = u64;
    fn process(
        &mut self,
        _: Record<u64>,
        cx: &mut KeyedContext<'_, u64, u64>,
        _: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        *cx.state()? += 1;
        let at = moment(*cx.key());
        cx.set_timer(EventTime(at));
        Ok(())
    }
    fn on_timer(
        &mut self,
        time: EventTime,
        cx: &mut KeyedContext<'_, u64, u64>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        let count = *cx.state()?;
        cx.clear_state();
        out.emit(Record::new((*cx.key(), count, time.millis()), time))
    }
}

/// Some of them come while there are records, most after the last one.
fn moment(key: u64) -> i64 {
    (key + KEYS + KEYS / 3) as i64
}

#[test]
fn e25_a_hundred_thousand_timers_fire_once_each_at_2_3_7_and_1() {
    let rig = Rig::in_folder("rescale");
    let job = |parallelism: usize, rate: f64| {
        let checkpoints = rig.checkpoints().every(Duration::from_millis(100));
        let job = rig.empty_job(parallelism, checkpoints);
        job.source(
            "in",
            Generator::new(1, Some(2 * KEYS), |i, _| (i % KEYS, EventTime(i as i64))).rate(rate),
        )
        .source_time(Watermarks::monotonic())
        .key_by("by-key", |key| *key)
        .process("counts", CountUntil)
        .sink("out", FileSink::json_lines(rig.at("out")));
        job
    };
    let read = |job: &JobHandle, more: u64| {
        let read = || {
            job.tasks().iter().filter(|t| t.task.chain.as_str() == "in").map(|t| t.records_in).sum::<u64>()
        };
        until(job, SOON, "records", || read() >= more);
    };

    let two = job(2, 150_000.0).start().unwrap();
    read(&two, 60_000);
    two.drain(EndKind::Keep);
    two.wait_for(SOON).expect("it stops").unwrap();
    assert_eq!(rig.lines().len(), 0, "no timer was due");

    let three = job(3, 150_000.0).start().unwrap();
    read(&three, 85_000);
    until_completed(&three, 1);
    cancelled(&three);
    let fired = rig.lines().len() as u64;

    let seven = job(7, 100_000.0).start().unwrap();
    read(&seven, 20_000);
    seven.stop_with_savepoint("at seven").unwrap();
    seven.wait_for(SOON).expect("it stops").unwrap();
    let more = rig.lines().len() as u64;
    println!("{fired} timers had fired when 3 were cancelled, {more} when 7 had stopped");
    assert!(more > 0 && more < KEYS, "{more}");

    finished(job(1, 1_000_000.0));
    let mut expected: Vec<String> = (0..KEYS).map(|key| format!("[{key},2,{}]", moment(key))).collect();
    expected.sort();
    let lines = rig.lines();
    assert!(lines == expected, "{} lines, expected {}", lines.len(), expected.len());
}
