//! Where lives of a job begin: after one that came to no complete checkpoint, from the group, at a time, behind markers.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdkafka::admin::AdminOptions;
use rdkafka::{Offset, TopicPartitionList};
use weir_connectors::kafka::{KafkaConfig, KafkaSource, Start, Stop};
use weir_connectors::memory::MemorySink;
use weir_engine::RestartPolicy;
use weir_engine::prelude::*;
use weir_engine::testkit::{run_within, until};

use super::rig::{Rig, SOON, Trap, admin, committed, feed, soak, transaction};

/// A job that collects numbers; a source made anew is another process, as far as it can tell.
fn job(
    rig: &Rig,
    kafka: &KafkaConfig,
    from: Start,
    trap: Trap,
    checkpoints: Checkpoints,
) -> (Job, MemorySink<u64>) {
    let (job, sink) = (Job::named(&rig.name).parallelism(2).checkpoints(checkpoints), MemorySink::new());
    let job = job.restart(RestartPolicy::FixedDelay { restarts: 10, delay: Duration::from_millis(300) });
    job.source("in", KafkaSource::json::<u64>(kafka).topic(&rig.topic).from(from))
        .without_event_time()
        .transform(weir_engine::OperatorInfo::stateless("trap"), trap)
        .sink("out", sink.clone());
    (job, sink)
}

fn seen(sink: &MemorySink<u64>) -> BTreeSet<u64> {
    sink.handle().snapshot().into_iter().map(|r| r.value).collect()
}

/// No checkpoint is complete, and the process dies: the next one begins where the first did, and so do restarts.
#[test]
fn latest_is_the_end_at_the_first_start_for_the_next_process_too() {
    let rig = Rig::new("latest", 2);
    feed(&rig, 0..100);
    // The group is the test's own.
    let kafka = rig.kafka.clone().set("group.id", &rig.name);
    let never = || rig.checkpoints(3_600_000);
    let (first, sink) = job(&rig, &kafka, Start::Latest, Trap::at([40]), never());
    let handle = first.start().unwrap();
    until(&handle, SOON, "its start", || handle.is_over() || handle.status().state == JobState::Running);
    feed(&rig, 100..150);
    until(&handle, SOON, "a restart, and all records after it", || {
        handle.is_over() || seen(&sink) == (100..150).collect()
    });
    assert!(!handle.is_over());
    handle.cancel();
    drop(handle.wait_for(SOON).expect("it stops"));

    feed(&rig, 150..200);
    let (second, sink) = job(&rig, &kafka, Start::Latest, Trap::at([]), never());
    let handle = second.start().unwrap();
    until(&handle, SOON, "what the first was to read", || handle.is_over() || seen(&sink).len() >= 100);
    assert_eq!(seen(&sink), (100..200).collect());
    // Its end is a complete checkpoint. Whoever begins anew after that means now.
    handle.drain(EndKind::Keep);
    handle.wait_for(SOON).expect("it drains").unwrap();
    let (third, sink) = job(&rig, &kafka, Start::Latest, Trap::at([]), never().start_from(StartFrom::Fresh));
    let handle = third.start().unwrap();
    until(&handle, SOON, "its start", || handle.is_over() || handle.status().state == JobState::Running);
    feed(&rig, 200..210);
    until(&handle, SOON, "the new ones", || handle.is_over() || seen(&sink).len() >= 10);
    assert_eq!(seen(&sink), (200..210).collect());
    handle.cancel();
    drop(handle.wait_for(SOON));
}

#[test]
fn e42_while_no_checkpoint_is_complete_nothing_is_committed_and_nothing_is_skipped() {
    let rig = Rig::new("e42", 2);
    feed(&rig, 0..200);
    let kafka = rig.kafka.clone().set("group.id", &rig.name);
    fail::cfg("checkpoint::before_publish", "return").unwrap();
    let (first, sink) = job(&rig, &kafka, Start::Group, Trap::at([]), rig.checkpoints(50));
    let handle = first.start().unwrap();
    until(&handle, SOON, "all records, and checkpoints that fail", || {
        handle.is_over() || seen(&sink).len() == 200 && handle.checkpoints().len() > 5
    });
    assert_eq!(committed(&rig.name, &rig.topic, 2), [None, None]);
    handle.cancel();
    drop(handle.wait_for(SOON).expect("it stops"));

    // From the group: nothing is skipped.
    fail::remove("checkpoint::before_publish");
    let (second, sink) = job(&rig, &kafka, Start::Group, Trap::at([]), rig.checkpoints(50));
    let handle = second.start().unwrap();
    until(&handle, SOON, "all records again", || handle.is_over() || seen(&sink).len() == 200);
    handle.drain(EndKind::Keep);
    handle.wait_for(SOON).expect("it drains").unwrap();
    assert_eq!(
        committed(&rig.name, &rig.topic, 2).iter().flatten().sum::<i64>(),
        200,
        "a clean stop commits"
    );

    // From the group, without the checkpoint: nothing comes twice.
    feed(&rig, 200..250);
    let fresh = rig.checkpoints(50).start_from(StartFrom::Fresh);
    let (third, sink) = job(&rig, &kafka, Start::Group, Trap::at([]), fresh);
    let handle = third.start().unwrap();
    until(&handle, SOON, "the new records", || handle.is_over() || sink.handle().len() >= 50);
    handle.drain(EndKind::Keep);
    handle.wait_for(SOON).expect("it drains").unwrap();
    let mut all: Vec<u64> = sink.handle().snapshot().into_iter().map(|r| r.value).collect();
    all.sort_unstable();
    assert_eq!(all, (200..250).collect::<Vec<_>>());
}

#[test]
fn e41_what_the_group_has_committed_never_goes_back_while_a_job_restarts() {
    let rig = Rig::new("e41", 2);
    let kafka = rig.kafka.clone().set("group.id", &rig.name);
    let restarts = if soak() { 100 } else { 8 };
    let trap = Trap::at((1..=restarts).map(|n| n * 300));
    let (job, sink) = job(&rig, &kafka, Start::Earliest, trap, rig.checkpoints(20));
    let job = job.restart(RestartPolicy::FixedDelay { restarts: 1_000, delay: Duration::from_millis(10) });
    let handle = job.start().unwrap();
    let (over, looks) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut last = vec![0; 2];
            while !over.load(Ordering::Acquire) {
                let now: Vec<i64> =
                    committed(&rig.name, &rig.topic, 2).into_iter().map(Option::unwrap_or_default).collect();
                assert!(now.iter().zip(&last).all(|(now, last)| now >= last), "{last:?}, and then {now:?}");
                last = now;
                looks.fetch_add(1, Ordering::AcqRel);
                std::thread::park_timeout(Duration::from_millis(5));
            }
            last
        });
        let n = restarts * 200;
        for first in (0..n).step_by(100) {
            feed(&rig, first..first + 100);
            let before = looks.load(Ordering::Acquire);
            until(&handle, SOON, "a look", || {
                handle.is_over() || watch.is_finished() || looks.load(Ordering::Acquire) > before
            });
        }
        until(&handle, SOON, "all records", || handle.is_over() || seen(&sink).len() as u64 == n);
        // The last life may still read again what one before it has read.
        let all = || committed(&rig.name, &rig.topic, 2).iter().flatten().sum::<i64>();
        until(&handle, SOON, "all of them committed", || handle.is_over() || all() == n as i64);
        handle.drain(EndKind::Keep);
        let report = handle.wait_for(SOON).expect("it drains").unwrap();
        over.store(true, Ordering::Release);
        let last = watch.join().unwrap();
        assert!(report.attempts > 1, "{} attempts", report.attempts);
        assert_eq!(all(), n as i64, "{last:?}");
    });
}

#[test]
fn a_source_begins_and_ends_at_times() {
    let rig = Rig::new("times", 2);
    // Record n has the time 1,000 + n.
    feed(&rig, 0..100);
    let read = |start, stop| {
        let (job, sink) = (Job::named("times").parallelism(1), MemorySink::new());
        let source = KafkaSource::json::<u64>(&rig.kafka).topic(&rig.topic).from(start).until(stop);
        job.source("in", source).without_event_time().sink("out", sink.clone());
        run_within(job, SOON).unwrap();
        seen(&sink)
    };
    assert_eq!(read(Start::Timestamp(1_040), Stop::Latest), (40..100).collect());
    assert_eq!(read(Start::Earliest, Stop::Timestamp(1_040)), (0..40).collect());
    assert_eq!(read(Start::Timestamp(1_020), Stop::Timestamp(1_030)), (20..30).collect());
    assert_eq!(read(Start::Timestamp(5_000), Stop::Latest), BTreeSet::new(), "there is none yet");
    assert_eq!(read(Start::Timestamp(-5), Stop::Timestamp(5_000)), (0..100).collect());
}

/// What was read are markers at last, which retention then deletes: nothing was lost.
#[test]
fn e47_a_position_behind_markers_outlives_what_lies_before_it() {
    let rig = Rig::new("e47-deleted", 1);
    transaction(&rig, 0..50, true);
    transaction(&rig, 50..60, false);
    let kafka = rig.kafka.clone().set("group.id", &rig.name);
    let (first, sink) = job(&rig, &kafka, Start::Earliest, Trap::at([]), rig.checkpoints(50));
    let handle = first.start().unwrap();
    // 60 records and 2 markers.
    until(&handle, SOON, "no lag", || handle.is_over() || committed(&rig.name, &rig.topic, 1) == [Some(62)]);
    assert_eq!(seen(&sink), (0..50).collect());
    handle.drain(EndKind::Keep);
    handle.wait_for(SOON).expect("it drains").unwrap();

    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(&rig.topic, 0, Offset::End).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(admin().delete_records(&offsets, &AdminOptions::new())).unwrap();
    feed(&rig, 60..70);
    let (second, sink) = job(&rig, &kafka, Start::Earliest, Trap::at([]), rig.checkpoints(50));
    let handle = second.start().unwrap();
    until(&handle, SOON, "what came since", || handle.is_over() || sink.handle().len() >= 10);
    assert_eq!(seen(&sink), (60..70).collect());
    handle.cancel();
    drop(handle.wait_for(SOON));
}

/// Somebody else is a member of the group: it takes no offsets. The job goes on, its checkpoints are complete.
#[test]
fn e43_a_group_that_refuses_offsets_stops_neither_the_job_nor_its_checkpoints() {
    use rdkafka::consumer::{BaseConsumer, Consumer};
    let rig = Rig::new("e43", 1);
    let kafka = rig.kafka.clone().set("group.id", &rig.name);
    let member: BaseConsumer = super::rig::broker()
        .client()
        .set("group.id", &rig.name)
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "latest")
        .create()
        .unwrap();
    member.subscribe(&[&rig.topic]).unwrap();
    let deadline = Instant::now() + SOON;
    while member.assignment().unwrap().count() == 0 {
        assert!(Instant::now() < deadline, "it does not join");
        drop(member.poll(Duration::from_millis(50)));
    }
    feed(&rig, 0..100);
    let (job, sink) = job(&rig, &kafka, Start::Earliest, Trap::at([]), rig.checkpoints(50));
    let handle = job.start().unwrap();
    let refused = || {
        drop(member.poll(Duration::ZERO));
        let tasks = handle.tasks();
        let all = tasks.iter().flat_map(|task| &task.counters);
        all.filter(|(_, name, _)| *name == "offset_commit_failures").map(|(.., n)| *n).sum::<u64>()
    };
    until(&handle, SOON, "commits that are refused", || handle.is_over() || refused() > 2);
    feed(&rig, 100..200);
    until(&handle, SOON, "all records", || handle.is_over() || seen(&sink).len() == 200);
    let complete = handle.checkpoints().len();
    assert!(!handle.is_over() && complete > 2, "{complete} checkpoints");
    handle.drain(EndKind::Keep);
    assert_eq!(handle.wait_for(SOON).expect("it drains").unwrap().attempts, 1);
}

/// Its partitions have no leaders for a moment, and then a broker refuses to say where they end.
#[test]
fn a_topic_that_was_just_made_can_be_read() {
    for _ in 0..3 {
        let rig = Rig::new("just-made", 40);
        let (job, sink) = job(&rig, &rig.kafka, Start::Earliest, Trap::at([]), rig.checkpoints(50));
        let handle = job.restart(RestartPolicy::None).start().unwrap();
        feed(&rig, 0..400);
        until(&handle, SOON, "all records", || handle.is_over() || sink.handle().len() == 400);
        handle.drain(EndKind::Keep);
        handle.wait_for(SOON).expect("it drains").unwrap();
    }
}

/// An open transaction holds back those who read what is committed; an offset behind that is there all the same.
#[test]
fn an_offset_behind_an_open_transaction_is_waited_for() {
    let rig = Rig::new("behind-open", 1);
    feed(&rig, 0..10);
    let open = super::rig::transactional(&rig);
    rdkafka::producer::Producer::begin_transaction(&open).unwrap();
    super::rig::send(&open, &rig, 10..20);
    let at = |offset| Start::Offsets([((rig.topic.clone(), 0), offset)].into());
    let (job, sink) = self::job(&rig, &rig.kafka, at(15), Trap::at([]), rig.checkpoints(50));
    let handle = job.restart(RestartPolicy::None).start().unwrap();
    until(&handle, SOON, "a checkpoint", || handle.is_over() || !handle.checkpoints().is_empty());
    rdkafka::producer::Producer::commit_transaction(&open, SOON).unwrap();
    until(&handle, SOON, "what is behind it", || handle.is_over() || seen(&sink) == (15..20).collect());
    assert!(!handle.is_over());
    handle.cancel();
    drop(handle.wait_for(SOON));

    let apart = Checkpoints::to("memory://kafka-behind-open-2").every(Duration::from_secs(1));
    let (job, _) = self::job(&rig, &rig.kafka, at(500), Trap::at([]), apart);
    let e = format!("{:?}", run_within(job.restart(RestartPolicy::None), SOON).unwrap_err());
    assert!(e.contains("offset 500 (named by Start::Offsets) is gone"), "{e}");
}

/// Deleted, made anew and longer than before: the position of the checkpoint is in it, and means something else.
#[test]
fn a_topic_that_was_made_anew_is_not_gone_on_with() {
    let rig = Rig::new("made-anew", 1);
    feed(&rig, 0..10);
    let (first, sink) = job(&rig, &rig.kafka, Start::Earliest, Trap::at([]), rig.checkpoints(50));
    let handle = first.start().unwrap();
    until(&handle, SOON, "all records", || handle.is_over() || sink.handle().len() == 10);
    handle.drain(EndKind::Keep);
    handle.wait_for(SOON).expect("it drains").unwrap();

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let deleted = runtime.block_on(admin().delete_topics(&[&rig.topic], &AdminOptions::new())).unwrap();
    assert!(deleted.iter().all(std::result::Result::is_ok));
    let deadline = Instant::now() + SOON;
    // The broker forgets it in its own time.
    while !rig.kafka.create_topic(&rig.topic, 1).unwrap_or(false) {
        assert!(Instant::now() < deadline, "it cannot be made anew");
        std::thread::park_timeout(Duration::from_millis(100));
    }
    feed(&rig, 100..130);
    let (second, sink) = job(&rig, &rig.kafka, Start::Earliest, Trap::at([]), rig.checkpoints(50));
    let e = format!("{:?}", run_within(second.restart(RestartPolicy::None), SOON).unwrap_err());
    assert!(e.contains("the topic was deleted and made anew"), "{e}");
    assert_eq!(seen(&sink), BTreeSet::new());
}
