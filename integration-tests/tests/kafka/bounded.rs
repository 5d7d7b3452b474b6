//! Sources that end, and what is found while one runs, on a real broker.

use std::time::Duration;

use rdkafka::admin::{AdminOptions, NewPartitions};
use rdkafka::producer::Producer;
use weir_connectors::kafka::{KafkaSource, Stop};
use weir_connectors::memory::MemorySink;
use weir_engine::prelude::*;
use weir_engine::testkit::{run_within, until};

use super::rig::{Rig, SOON, admin, feed, soak, transaction, transactional};

/// What a job gives that reads until it ends, and where it stood then.
fn read(rig: &Rig, source: KafkaSource<u64, weir_connectors::format::Json>) -> (Vec<u64>, i64) {
    let (job, sink, progress) = (Job::named(&rig.name).parallelism(1), MemorySink::new(), source.progress());
    job.source("in", source).without_event_time().sink("out", sink.clone());
    run_within(job, SOON).unwrap();
    let mut all = sink.handle().take_values();
    all.sort_unstable();
    (all, progress.next_offset(&rig.topic, 0).unwrap())
}

fn source(rig: &Rig) -> KafkaSource<u64, weir_connectors::format::Json> {
    KafkaSource::json(&rig.kafka).topic(&rig.topic)
}

#[test]
fn e47_holes_and_markers_at_the_end_end_a_source_all_the_same() {
    let hole = if soak() { 300_000 } else { 60_000 };
    let rig = Rig::new("e47-bounded", 1);
    transaction(&rig, 0..10, true);
    // An aborted transaction is a hole to those who read what is committed.
    transaction(&rig, 1_000..1_000 + hole, false);
    transaction(&rig, 10..20, true);
    let end = 20 + hole as i64 + 3;
    assert_eq!(read(&rig, source(&rig).until(Stop::Latest)), ((0..20).collect(), end), "a marker at the end");
    transaction(&rig, 1_000..1_000 + hole, false);
    let all = end + hole as i64 + 1;
    assert_eq!(read(&rig, source(&rig).until(Stop::Latest)), ((0..20).collect(), all), "a hole at the end");
    let at = |offset| Stop::Offsets([((rig.topic.clone(), 0), offset)].into());
    for offset in [end + 1, end + hole as i64 / 2, all] {
        assert_eq!(
            read(&rig, source(&rig).until(at(offset))),
            ((0..20).collect(), offset),
            "an end in a hole"
        );
    }
    assert_eq!(read(&rig, source(&rig).until(at(5))), ((0..5).collect(), 5));
    assert_eq!(read(&rig, source(&rig).until(at(0))), (Vec::new(), 0));
}

/// The end is an offset that still has to be written, and then it is a marker's, or lies in a hole.
#[test]
fn e47_an_end_that_comes_to_be_a_marker_is_reached() {
    for commit in [true, false] {
        let rig = Rig::new("e47-coming", 1);
        transaction(&rig, 0..10, true);
        let source = source(&rig).until(Stop::Offsets([((rig.topic.clone(), 0), 22)].into()));
        let (job, sink) =
            (Job::named(&rig.name).parallelism(1).checkpoints(rig.checkpoints(50)), MemorySink::new());
        job.source("in", source).without_event_time().sink("out", sink.clone());
        let handle = job.start().unwrap();
        until(&handle, SOON, "what there is", || handle.is_over() || sink.handle().len() == 10);
        let open = transactional(&rig);
        open.begin_transaction().unwrap();
        super::rig::send(&open, &rig, 10..20);
        let before = handle.checkpoints().len();
        until(&handle, SOON, "checkpoints", || handle.is_over() || handle.checkpoints().len() > before + 3);
        assert!(!handle.is_over(), "the end is not there yet");
        // 10 records, their marker, 10 more: the end is behind their marker.
        if commit {
            open.commit_transaction(SOON).unwrap()
        } else {
            open.abort_transaction(SOON).unwrap()
        }
        handle.wait_for(SOON).expect("it ends").unwrap();
        assert_eq!(sink.handle().take_values(), (0..if commit { 20 } else { 10 }).collect::<Vec<_>>());
    }
}

/// An open transaction hides what is behind it: where a partition ends for those who read what is committed is before it.
#[test]
fn an_open_transaction_does_not_hold_up_a_source_that_ends() {
    let rig = Rig::new("open-end", 1);
    transaction(&rig, 0..10, true);
    let open = transactional(&rig);
    open.begin_transaction().unwrap();
    super::rig::send(&open, &rig, 10..20);
    assert_eq!(read(&rig, source(&rig).until(Stop::Latest)), ((0..10).collect(), 11));
    open.abort_transaction(SOON).unwrap();
}

#[test]
fn empty_partitions_and_several_topics_end() {
    let [one, other] = ["several", "several"].map(|name| {
        let rig = Rig::new(name, 3);
        feed(&rig, 0..300);
        (rig.topic.clone(), rig.kafka.clone())
    });
    let empty = Rig::new("several-empty", 2);
    let (job, sink) = (Job::named("several").parallelism(2), MemorySink::new());
    let source =
        KafkaSource::json::<u64>(&one.1).topics([&one.0, &empty.topic, &other.0]).until(Stop::Latest);
    job.source("in", source).without_event_time().sink("out", sink.clone());
    run_within(job, SOON).unwrap();
    let mut all = sink.handle().take_values();
    all.sort_unstable();
    assert_eq!(all, (0..300).flat_map(|n| [n, n]).collect::<Vec<u64>>());
}

#[test]
fn partitions_that_are_added_are_read_while_the_job_runs() {
    let mut rig = Rig::new("added", 2);
    feed(&rig, 0..100);
    let source = source(&rig).discover_every(Duration::from_millis(300));
    let (job, sink) =
        (Job::named(&rig.name).parallelism(2).checkpoints(rig.checkpoints(50)), MemorySink::new());
    job.source("in", source).without_event_time().sink("out", sink.clone());
    let handle = job.start().unwrap();
    until(&handle, SOON, "the first", || handle.is_over() || sink.handle().len() == 100);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let more = [NewPartitions::new(&rig.topic, 5)];
    assert!(
        runtime
            .block_on(admin().create_partitions(&more, &AdminOptions::new()))
            .unwrap()
            .iter()
            .all(Result::is_ok)
    );
    rig.partitions = 5;
    feed(&rig, 100..600);
    until(&handle, SOON, "those of all partitions", || handle.is_over() || sink.handle().len() == 600);
    handle.drain(EndKind::Keep);
    handle.wait_for(SOON).expect("it drains").unwrap();
    // And the next life goes on in all of them.
    feed(&rig, 600..700);
    let (job, again) =
        (Job::named(&rig.name).parallelism(3).checkpoints(rig.checkpoints(50)), MemorySink::new());
    job.source("in", self::source(&rig)).without_event_time().sink("out", again.clone());
    let handle = job.start().unwrap();
    until(&handle, SOON, "what came since", || handle.is_over() || again.handle().len() >= 100);
    handle.drain(EndKind::Keep);
    handle.wait_for(SOON).expect("it drains").unwrap();
    let all = |sink: &MemorySink<u64>| {
        let mut all = sink.handle().take_values();
        all.sort_unstable();
        all
    };
    assert_eq!((all(&sink), all(&again)), ((0..600).collect(), (600..700).collect()));
}
