//! A slow sink holds the source back: what the whole job holds is bounded by its channels, and memory by that.

use std::time::Duration;

use weir_connectors::prelude::*;
use weir_engine::prelude::*;
use weir_engine::testkit::until;
use weir_operators::prelude::*;

const DEPTH: usize = 8;
const BATCH: u64 = 1024;

#[test]
fn a_sink_of_a_thousand_records_a_second_holds_the_source_back() -> anyhow::Result<()> {
    let sink = MemorySink::new().rate(1000.0);
    let job = Job::named("slow-sink").parallelism(2).channel_depth(DEPTH);
    job.source("numbers", Generator::new(1, None, |i, _| (i, EventTime(i as i64))))
        .source_time(Watermarks::monotonic())
        .map(|n: u64| n * 2)
        .chaining(false)
        .key_by("by-rest", |n| n % 1000)
        .process("pass", Pass)
        .rebalance()
        .sink("slow", sink);
    let handle = job.start()?;
    until(&handle, Duration::from_secs(20), "running", || handle.status().state == JobState::Running);
    assert!(handle.wait_for(Duration::from_secs(10)).is_none());
    let plan = handle.plan();
    let capacity: u64 = plan.edges.iter().map(|e| (e.channels * DEPTH) as u64 * BATCH).sum();
    let tasks = handle.tasks();
    let sum = |uid: &str, pick: fn(&weir_engine::TaskReading) -> u64| -> u64 {
        tasks.iter().filter(|t| t.task.chain.as_str() == uid).map(pick).sum()
    };
    let (read, written) = (sum("numbers", |t| t.records_in), sum("slow", |t| t.records_out));
    let held = read - written;
    assert!(held < capacity + plan.tasks() as u64 * BATCH, "{held} records in flight of {capacity}");
    // A sink counts a batch when all of it is written: up to one per subtask is on its way.
    assert!((7_500..=11_500).contains(&written), "{written} records written in ten seconds");
    // And batches shrink: a full channel holds about what its consumer takes in a second, not what it has room for.
    assert!(held < capacity / 2, "{held} records in flight of {capacity}");
    handle.cancel();
    assert_eq!(handle.wait().unwrap_err(), JobError::Cancelled { job: "slow-sink".into() });
    Ok(())
}

#[derive(Clone)]
struct Pass;

impl ProcessFunction<u64, u64> for Pass {
    type Out = u64;
    type State = u64;
    fn process(
        &mut self,
        r: Record<u64>,
        cx: &mut KeyedContext<'_, u64, u64>,
        out: &mut impl Collector<u64>,
    ) -> Result<()> {
        *cx.state()? += 1;
        out.emit(r)
    }
}
