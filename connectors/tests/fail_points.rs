//! A file sink that fails at each of its own steps, once and again, at several parallelisms: shown once in the end.
//!
//! One test, since fail points are the process's.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not see helpers of an integration test"
)]

use std::time::Duration;

use fail::FailScenario;
use weir_connectors::file::{FileSink, visible_lines};
use weir_connectors::generator::Generator;
use weir_engine::RestartPolicy;
use weir_engine::prelude::*;
use weir_engine::testkit::run_within;

const N: u64 = 5_000;

#[test]
fn every_step_of_a_file_sink_may_fail() {
    let scenario = FailScenario::setup();
    for point in ["before_sync", "before_rename", "after_rename", "before_folder_sync"] {
        for parallelism in 1..4 {
            // The third time, the one after, and now and then.
            for action in ["2*off->1*return->off", "2*off->2*return->off", "20%6*return->off"] {
                let what = format!("{point} at parallelism {parallelism}: {action}");
                fail::cfg(format!("file_sink::{point}"), action).unwrap();
                let folder = tempfile::tempdir().unwrap();
                let job = Job::named(&what)
                    .parallelism(parallelism)
                    .restart(RestartPolicy::FixedDelay { restarts: 100, delay: Duration::from_millis(1) })
                    .checkpoints(Checkpoints::to("memory://fail-points").every(Duration::from_millis(10)));
                let numbers = Generator::new(1, Some(N), |i, _| (i, EventTime(i as i64))).rate(20_000.0);
                job.source("in", numbers)
                    .without_event_time()
                    .sink("out", FileSink::json_lines(folder.path()).roll_bytes(2_000));
                let report = run_within(job, Duration::from_secs(60)).unwrap();
                let mut got: Vec<u64> =
                    visible_lines(folder.path()).unwrap().iter().map(|line| line.parse().unwrap()).collect();
                got.sort_unstable();
                assert!(got.iter().copied().eq(0..N), "{what}: {} of {N}", got.len());
                assert!(report.attempts > 1 || action.contains('%'), "{what}: it did not fail");
                fail::remove(format!("file_sink::{point}"));
            }
        }
    }
    scenario.teardown();
}
