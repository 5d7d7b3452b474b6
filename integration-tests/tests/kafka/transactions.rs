//! E46: transactions that fail at every step, run into their time limit, or are fenced. The job goes on, or says why not.

use std::time::Duration;

use weir_connectors::kafka::KafkaConfig;
use weir_engine::RestartPolicy;
use weir_engine::prelude::*;
use weir_engine::testkit::{run_within, until};

use super::rig::{Rig, SOON, Trap};

#[test]
fn e46_every_step_of_a_transaction_may_fail_without_failing_the_job() {
    const N: u64 = 4_000;
    for point in ["after_begin", "after_produce", "before_commit", "after_commit"] {
        for (parallelism, action) in [(2, "1*off->3*return->off"), (1, "40%4*return->off")] {
            let rig = Rig::new(&format!("fails-{}", point.replace('_', "-")), 3);
            fail::cfg(format!("kafka::{point}"), action).unwrap();
            let job = rig.job(parallelism, N, 5_000.0, Trap::at([]), rig.checkpoints(60));
            let report = run_within(job, SOON).unwrap();
            fail::remove(format!("kafka::{point}"));
            assert_eq!(report.attempts, 1, "{point}: the pump gets over it by itself");
            rig.assert_exact(N, &format!("{point}: {action}"));
        }
    }
}

/// The library's own fatal errors, and a broker that has given up the transaction: the epoch is written again in a new one.
#[test]
fn e46_a_transaction_past_its_time_is_written_again() {
    const N: u64 = 4_000;
    let mut rig = Rig::new("too-late", 3);
    rig.kafka = timed();
    // Produced, and then nothing for longer than the broker waits.
    fail::cfg("kafka::after_produce", "2*off->2*sleep(4000)->off").unwrap();
    let job = rig.job(2, N, 2_000.0, Trap::at([]), rig.checkpoints(100).timeout(Duration::from_secs(30)));
    let report = run_within(job, SOON).unwrap();
    fail::remove("kafka::after_produce");
    assert_eq!(report.attempts, 1);
    rig.assert_exact(N, "past the time limit");
}

fn timed() -> KafkaConfig {
    super::rig::kafka().set("transaction.timeout.ms", "1500").set("message.timeout.ms", "1500")
}

#[test]
fn e46_a_second_run_under_the_same_name_stops_the_first_and_goes_on() {
    let rig = Rig::new("twice", 2);
    let first = rig.job(1, u64::MAX, 1_000.0, Trap::at([]), rig.checkpoints(100));
    let first = first.restart(RestartPolicy::None).start().unwrap();
    until(&first, SOON, "some checkpoints", || first.is_over() || first.checkpoints().len() > 2);
    // With checkpoints of its own it is not held back by the lease; nor does it know what the first has made visible.
    let apart = || Checkpoints::to("memory://kafka-twice-second").every(Duration::from_millis(100));
    let second = rig.job(1, 3_000, 1_000.0, Trap::at([]), apart()).restart(RestartPolicy::None);
    let refused = format!("{:?}", run_within(second, SOON).unwrap_err());
    assert!(refused.contains("output of an earlier run is visible"), "{refused}");
    let before = first.checkpoints().len();
    until(&first, SOON, "the first goes on", || first.is_over() || first.checkpoints().len() > before + 2);
    assert!(!first.is_over(), "a second run that was refused changes nothing");
    let sink = rig.sink(rig.how().accept_duplicates());
    run_within(rig.job_into(sink, 1, 3_000, 1_000.0, Trap::at([]), apart()), SOON).unwrap();
    let ended = first.wait_for(SOON).expect("it hears of it").unwrap_err();
    let said = format!("{ended} {ended:?}");
    assert!(said.contains("was overtaken by life"), "{said}");
}
