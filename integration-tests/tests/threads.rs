//! Finished, failed, cancelled and killed jobs leave no thread behind. One test, so that no other job runs beside it.

use std::time::{Duration, Instant};

use weir_connectors::prelude::*;
use weir_engine::prelude::*;
use weir_engine::testkit::{thread_names, until};
use weir_operators::prelude::*;

fn job(name: &str, kafka: &KafkaConfig, boom: Option<u64>) -> Job {
    let job = Job::named(name).parallelism(3).chaining(false);
    job.source("numbers", Generator::new(1, Some(2_000_000), |i, _| (i, EventTime(i as i64))))
        .source_time(Watermarks::monotonic())
        .map(move |n: u64| if Some(n) == boom { panic!("boom at {n}") } else { n })
        .rebalance()
        .sink("kafka", KafkaSink::json(kafka, "numbers"));
    job
}

#[test]
fn no_thread_is_left_behind() -> anyhow::Result<()> {
    let kafka = KafkaConfig::embedded()?;
    kafka.create_topic("numbers", 3)?;
    // The broker's own client starts a thread when it is first spoken to; that one is the broker's to keep.
    let first = job("first", &kafka, Some(500)).start()?;
    assert!(matches!(first.wait(), Err(JobError::Failed { .. })));
    drop(first);
    std::thread::park_timeout(Duration::from_secs(1));
    let mut before = thread_names();
    before.sort();

    let failed = job("failed", &kafka, Some(500)).start()?;
    assert!(matches!(failed.wait(), Err(JobError::Failed { .. })));
    drop(failed);
    assert_left(&before, "a failed job");

    let cancelled = job("cancelled", &kafka, None).start()?;
    until(&cancelled, Duration::from_secs(20), "records", || {
        cancelled.tasks().iter().any(|t| t.records_out > 1000)
    });
    cancelled.cancel();
    assert!(matches!(cancelled.wait(), Err(JobError::Cancelled { .. })));
    drop(cancelled);
    assert_left(&before, "a cancelled job");

    let drained = job("drained", &kafka, None).start()?;
    until(&drained, Duration::from_secs(20), "records", || {
        drained.tasks().iter().any(|t| t.records_out > 1000)
    });
    drained.drain(EndKind::Keep);
    drained.wait()?;
    drop(drained);
    assert_left(&before, "a drained job");

    // Nobody listens there: the start fails half way, with the source open and the sink not.
    let nowhere = KafkaConfig::brokers("127.0.0.1:1").patience(Duration::from_secs(2));
    let unreachable = job("unreachable", &nowhere, None).start()?.wait();
    let error = unreachable.unwrap_err().to_string();
    assert!(error.starts_with("deploy: job \"unreachable\": operator \"kafka\""), "{error}");
    assert!(error.contains("127.0.0.1:1"), "{error}");
    assert_left(&before, "a job that could not start");
    Ok(())
}

/// Threads that were told to end may take a moment to be gone from the system's list.
fn assert_left(before: &[String], what: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let mut now = thread_names();
        now.sort();
        let extra: Vec<_> = now.iter().filter(|name| !before.contains(name)).collect();
        if extra.is_empty() && now.len() <= before.len() {
            return;
        }
        assert!(Instant::now() < deadline, "{what} left threads behind: {extra:?} of {now:?}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}
