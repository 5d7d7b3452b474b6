//! What is read out of a job's plan: who has a store, who a database, what is declared once, and every thread.

use super::super::share::Share;
use super::*;
use crate::checkpoint::Checkpoints;
use crate::graph::OperatorInfo;
use crate::job::Job;
use crate::plan::{Partitioning, PlannedEdge};
use crate::testkit::{NullSink, Probe, ScriptSource};

const MIB: u64 = 1 << 20;

fn operator(uid: &str, kind: &'static str, stateful: bool) -> PlannedOperator {
    PlannedOperator { uid: uid.into(), kind, stateful, ..PlannedOperator::default() }
}

fn chain(parallelism: usize, operators: Vec<PlannedOperator>) -> PlannedChain {
    PlannedChain { operators, parallelism, complete: true }
}

/// A source on three subtasks, a count and a profile index on two, a sink in the last chain.
fn plan() -> Plan {
    let broker = || Footprint::process("broker", 20 * MIB, 1);
    let mut source = operator("in", "source", true);
    source.footprint = Footprint::per_subtask("reader", 10 * MIB, 4).and(broker());
    let mut profile = operator("profile", "update_profile", true);
    profile.index = true;
    let mut sink = operator("out", "sink", false);
    sink.footprint =
        Footprint::shared("writer", 5 * MIB, 3).and(broker().and(Footprint::process("broker", 30 * MIB, 2)));
    let edge = |from, to, channels| PlannedEdge {
        from,
        operator: None,
        to,
        right: false,
        partitioning: Partitioning::KeyBy,
        side: None,
        channels,
    };
    Plan {
        job: "j".into(),
        channel_depth: 4,
        key_groups: 128,
        chains: vec![
            chain(3, vec![source]),
            chain(2, vec![operator("count", "process", true), operator("again", "tumbling_window", true)]),
            chain(2, vec![profile, sink]),
        ],
        edges: vec![edge(0, 1, 6), edge(1, 2, 4)],
    }
}

fn here() -> Surroundings {
    Surroundings {
        memory: Limit::set(4 << 30),
        threads: None,
        files: None,
        cores: 2,
        resident_bytes: 7 * MIB,
        running: 2,
        task_stack_bytes: 2 * MIB,
        client_stack_bytes: 8 * MIB,
    }
}

fn asked(config: MemoryConfig, rocksdb: bool) -> MemoryAsk {
    ask(&plan(), &config, &here(), &[Footprint::process("control", 0, 1)], rocksdb)
}

#[test]
fn stores_databases_and_channels_are_counted() {
    let memory = asked(MemoryConfig::new(), false);
    assert_eq!(
        (memory.stores, memory.databases, memory.index),
        (4, 0, true),
        "two subtasks of two operators"
    );
    assert_eq!(
        (memory.channels.channels, memory.channels.batches(), memory.channels.record_bytes),
        (10, 7, 256)
    );
    assert_eq!(memory.base_bytes, 32 * MIB, "what is resident is less than what the first records touch");
    let rocks = asked(MemoryConfig::new(), true);
    assert_eq!((rocks.stores, rocks.databases), (4, 6), "the index lies in databases too; positions do not");
    let database = rocks.declared.last().expect("RocksDB declares itself");
    assert_eq!((database.bytes, &database.whose[..]), (6 * MIB, "the engine"));
}

#[test]
fn what_the_process_has_one_of_is_declared_once_as_the_largest_says() {
    let memory = asked(MemoryConfig::new(), false);
    let declared: Vec<(&str, &str, u64)> =
        memory.declared.iter().map(|d| (&d.name[..], &d.whose[..], d.bytes / MIB)).collect();
    assert_eq!(
        declared,
        [
            ("reader", "in", 30),
            ("broker", "in, out, out", 30),
            ("writer", "out", 5),
            ("control", "the engine", 0)
        ]
    );
    let threads: Vec<(String, u64)> = memory.threads.iter().map(|g| (g.name.clone(), g.threads)).collect();
    let expected = [
        ("in", 3),
        ("count", 2),
        ("profile", 2),
        ("reader (in)", 12),
        ("broker (in, out, out)", 2),
        ("writer (out)", 3),
        ("control (the engine)", 1),
        ("before the start", 2),
    ];
    assert_eq!(threads, expected.map(|(name, threads)| (name.to_owned(), threads)));
    assert_eq!(plan().client_threads(), 12 + 2 + 3);
    assert_eq!(memory.task_count(), 7);
}

#[test]
fn a_job_says_where_its_state_lies_and_whether_it_takes_checkpoints() {
    let config = MemoryConfig::new().limit(1 << 30).record_bytes(100);
    let job =
        Job::named("j").parallelism(2).memory(config).state(StateBackend::rocksdb().cache_bytes(100 << 20));
    let job = job.checkpoints(Checkpoints::to("memory://plans"));
    let numbers = job.source("in", ScriptSource::of([(1, 0)])).without_event_time();
    numbers.transform(OperatorInfo::stateful("look", "kept"), Probe::new()).sink("out", NullSink);
    let plan = job.memory_plan().expect("it fits");
    assert_eq!(
        (plan.bytes(Share::StateCaches), plan.cache_bytes_per_store()),
        (100 * MIB, 50 << 20),
        "as set"
    );
    assert_eq!(
        plan.bytes(Share::Connectors),
        (2 + 4 * 8 + 8 + 3 * 8) * MIB,
        "two databases, four parts, eight buffers, three snapshots"
    );
    let threads = |name: &str| plan.threads().iter().find(|g| g.name == name).map(|group| group.threads);
    assert_eq!(
        ["in", "RocksDB (the engine)", "checkpoints (the engine)", "control (the engine)"].map(threads),
        [Some(2), Some(3), Some(13), Some(1)]
    );
}

#[test]
fn the_users_limits_come_first_and_stacks_are_no_larger_than_they_are() {
    let config = MemoryConfig::new().limit(8 << 30).max_threads(99).stack_resident_bytes(4 * MIB);
    let memory = ask(&plan(), &config, &Surroundings { threads: Some(Limit::set(50)), ..here() }, &[], false);
    assert_eq!(memory.limit, Limit::set(8 << 30));
    assert_eq!(memory.below, Some(Limit::set(4 << 30)), "the system has less than what is set");
    assert_eq!(memory.max_threads, Some(Limit::set(99)));
    assert_eq!(memory.threads[0].resident_bytes, 2 * MIB);
    assert_eq!(memory.threads[3].resident_bytes, 4 * MIB);
    let found = asked(MemoryConfig::new(), false);
    assert_eq!((found.limit.amount, found.below), (4 << 30, None));
}
