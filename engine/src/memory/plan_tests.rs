//! Plans from asks: the shares add up, nobody gets less than it must have, and what cannot fit says why and what to do.

use proptest::prelude::*;

use super::super::limit::LimitOrigin;
use super::*;

const MIB: u64 = 1 << 20;

fn group(kind: ThreadKind, name: &str, threads: u64, stack_bytes: u64, resident_bytes: u64) -> ThreadGroup {
    ThreadGroup { kind, name: name.into(), threads, stack_bytes, resident_bytes }
}

/// A job with everything, in 1 GiB.
fn whole() -> MemoryAsk {
    MemoryAsk {
        job: "everything".into(),
        limit: Limit::set(1024 * MIB),
        below: None,
        max_threads: None,
        max_files: None,
        cores: 2,
        base_bytes: 40 * MIB,
        channels: ChannelsAsk { channels: 8, depth: 8, batch_records: 1024, record_bytes: 256 },
        threads: vec![
            group(ThreadKind::Task, "in", 2, 2 * MIB, MIB / 8),
            group(ThreadKind::Task, "count", 2, 2 * MIB, MIB / 8),
            group(ThreadKind::Client, "Kafka consumer (in)", 8, 8 * MIB, MIB / 8),
            group(ThreadKind::Before, "before the start", 3, 0, 0),
        ],
        declared: vec![Declared {
            name: "Kafka consumer".into(),
            whose: "in".into(),
            count: 2,
            bytes: 128 * MIB,
            setting: Some("queued.max.messages.kbytes"),
        }],
        stores: 4,
        databases: 6,
        index: true,
        config: MemoryConfig::new(),
    }
}

#[test]
fn what_is_needed_is_counted_and_the_rest_divided() {
    let plan = MemoryPlan::of(&whole()).expect("it fits");
    assert_eq!(plan.bytes(Share::Channels), 22 * MIB, "8 channels × 11 batches × 1,024 records × 256 B");
    assert_eq!(plan.bytes(Share::Stacks), 12 * MIB / 8, "of the 12 threads that the job starts");
    let rest = (1024 - 40 - 22 - 128) * MIB - 12 * MIB / 8;
    assert_eq!(plan.bytes(Share::StateCaches), rest * 40 / 100);
    assert_eq!(plan.cache_bytes_per_store() as u64, rest * 40 / 100 / 4);
    assert_eq!(plan.block_cache_bytes() as u64, rest * 15 / 100);
    assert_eq!(plan.write_buffer_bytes() as u64, rest * 10 / 100);
    assert_eq!(plan.index_bytes() as u64, rest * 15 / 100);
    assert_eq!(Share::ALL.iter().map(|share| plan.bytes(*share)).sum::<u64>(), 1024 * MIB);
}

#[test]
fn it_reads_as_a_table() {
    let ask = MemoryAsk { max_threads: Some(Limit::set(64)), ..whole() };
    let expected = "\
1 GiB (set by the job)
  base            40 MiB  the program and what it holds at the start
  channels        22 MiB  8 channels × 11 batches × 1024 records × 256 B
  stacks         1.5 MiB  12 threads; 72 MiB of address space
  connectors     128 MiB  2 × Kafka consumer (in) 128 MiB
  state caches   333 MiB  83 MiB for each of 4 stores
  block cache    125 MiB  RocksDB, all stores together
  write buffers   83 MiB  RocksDB, 6 databases together
  index          125 MiB  the profile index
  headroom       166 MiB  the allocator's slack, snapshots, what is not planned
  threads 15 of 64 (set by the job): 4 tasks (in 2, count 2), 8 Kafka consumer (in), 3 before the start";
    assert_eq!(MemoryPlan::of(&ask).expect("it fits").to_string(), expected);
}

#[test]
fn what_the_job_has_no_use_for_takes_nothing() {
    let ask = MemoryAsk { stores: 0, databases: 0, index: false, ..whole() };
    let plan = MemoryPlan::of(&ask).expect("it fits");
    for share in [Share::StateCaches, Share::BlockCache, Share::WriteBuffers, Share::Index] {
        assert_eq!(plan.bytes(share), 0);
    }
    assert_eq!(Share::ALL.iter().map(|share| plan.bytes(*share)).sum::<u64>(), 1024 * MIB);
    assert!(!plan.to_string().contains("RocksDB") && !plan.to_string().contains("index"), "{plan}");
}

/// 529 threads, 500 of them with stacks of 5 MB that are used to the bottom: 2,573 MB were seen committed, the heap aside.
#[test]
fn five_hundred_deep_stacks_are_two_and_a_half_gigabytes() {
    let threads = vec![
        group(ThreadKind::Client, "deep", 500, 5 * MIB, 5 * MIB),
        group(ThreadKind::Before, "others", 29, 2 * MIB, 2 * MIB),
    ];
    let ask = MemoryAsk { limit: Limit::set(4096 * MIB), threads, ..whole() };
    assert_eq!((ask.thread_count(), ask.stack_bytes()), (529, (500 * 5 + 29 * 2) * MIB));
    let seen = 2573 * MIB;
    assert!(ask.stack_bytes().abs_diff(seen) < seen / 100, "within one percent of what was seen");
    let plan = MemoryPlan::of(&ask).expect("4 GiB are enough");
    assert_eq!(plan.bytes(Share::Stacks), 2558 * MIB);

    let error = MemoryPlan::of(&MemoryAsk { limit: Limit::set(2048 * MIB), ..ask.clone() }).unwrap_err();
    assert!(error.to_string().contains("  stacks         2.5 GiB"), "{error}");
    // The same threads with stacks that are reserved and not touched need little, and say how much is reserved.
    let mut shallow = ask;
    shallow.threads.iter_mut().for_each(|group| group.resident_bytes = MIB / 8);
    assert_eq!(shallow.stack_bytes(), 529 * MIB / 8);
    assert_eq!(shallow.stack_reserved_bytes(), 2558 * MIB);
}

#[test]
fn what_cannot_fit_is_refused_with_every_share_and_what_to_change() {
    let ask = MemoryAsk { limit: Limit::set(256 * MIB), ..whole() };
    let error = MemoryPlan::of(&ask).unwrap_err();
    let expected = "\
job \"everything\" needs at least 258 MiB of memory and there are 256 MiB (set by the job):
  base            40 MiB  the program and what it holds at the start
  channels        22 MiB  8 channels × 11 batches × 1024 records × 256 B
  stacks         1.5 MiB  12 threads; 72 MiB of address space
  connectors     128 MiB  2 × Kafka consumer (in) 128 MiB
  state caches     4 MiB  1 MiB for each of 4 stores
  block cache      8 MiB  RocksDB, all stores together
  write buffers    6 MiB  RocksDB, 6 databases together
  index           16 MiB  the profile index
  headroom        32 MiB  the allocator's slack, snapshots, what is not planned
to change: set MemoryConfig::limit to 258 MiB or more; Job::channel_depth(7) instead of 8, which saves 2 MiB; \
MemoryConfig::record_bytes, if a record takes less than 256 B; \
a lower parallelism: channels between two operators go with its square; \
queued.max.messages.kbytes of the Kafka consumer (in); MemoryConfig::minimum of index, headroom";
    assert_eq!(error.to_string(), expected);
    let MemoryError::TooSmall(shortage) = error else { panic!("{error}") };
    assert_eq!((shortage.limit(), shortage.needed().div_ceil(MIB)), (256 * MIB, 258));

    let fits = MemoryAsk { limit: Limit::set(shortage.needed()), ..ask.clone() };
    let plan = MemoryPlan::of(&fits).expect("what it says it needs is enough");
    assert_eq!(plan.bytes(Share::Headroom), 32 * MIB);
    let advised = MemoryAsk { channels: ChannelsAsk { depth: 7, ..ask.channels }, ..ask };
    assert!(MemoryPlan::of(&advised).is_ok(), "what it says to change is enough");
}

#[test]
fn the_advice_fits_where_the_limit_came_from() {
    let with = |origin| {
        let limit = Limit { amount: 100 * MIB, origin };
        MemoryPlan::of(&MemoryAsk { limit, ..whole() }).unwrap_err().to_string()
    };
    let file = "/sys/fs/cgroup/memory.max";
    let cgroup = with(LimitOrigin::Cgroup { file: file.into() });
    assert!(
        cgroup.contains(&format!("there are 100 MiB (the cgroup's {file})"))
            && cgroup
                .contains(&format!("give the process 258 MiB ({file}; in a container, its memory limit)"))
            && cgroup.contains("Job::channel_depth(1) instead of 8, which saves 14 MiB"),
        "{cgroup}"
    );
    assert!(with(LimitOrigin::AddressSpace).contains("give the process 258 MiB with ulimit -v"));
    assert!(with(LimitOrigin::Physical).contains("run it where there are 258 MiB"));
}

#[test]
fn percents_and_minimums_are_the_users() {
    let config = MemoryConfig::new()
        .percent(Share::StateCaches, 0)
        .percent(Share::Index, 60)
        .minimum(Share::StateCaches, 64 * MIB)
        .minimum(Share::Headroom, 0);
    let plan = MemoryPlan::of(&MemoryAsk { config, ..whole() }).expect("it fits");
    assert_eq!(plan.bytes(Share::StateCaches), 64 * MIB);
    assert_eq!(plan.index_bytes() / plan.write_buffer_bytes(), 6);

    let refused = |config| MemoryPlan::of(&MemoryAsk { config, ..whole() }).unwrap_err();
    let e = refused(MemoryConfig::new().percent(Share::Index, 31));
    assert_eq!(e, MemoryError::NoHeadroom { sum: 96 });
    assert_eq!(
        refused(MemoryConfig::new().percent(Share::Index, u64::MAX)),
        MemoryError::NoHeadroom { sum: u64::MAX }
    );
    for share in [Share::Headroom, Share::Base] {
        assert_eq!(refused(MemoryConfig::new().percent(share, 1)), MemoryError::NoPercent { share });
    }
    let share = Share::Channels;
    assert_eq!(refused(MemoryConfig::new().minimum(share, 1)), MemoryError::NoMinimum { share });
}

#[test]
fn threads_have_a_limit_of_their_own() {
    let ask = MemoryAsk { max_threads: Some(Limit::set(14)), ..whole() };
    let error = MemoryPlan::of(&ask).unwrap_err().to_string();
    let expected = "job \"everything\" needs 15 threads and there may be 14 (set by the job): 4 tasks (in 2, count 2), \
                    8 Kafka consumer (in), 3 before the start; lower ";
    assert!(error.starts_with(expected), "{error}");
    assert!(MemoryPlan::of(&MemoryAsk { max_threads: Some(Limit::set(15)), ..whole() }).is_ok());
}

#[test]
fn too_many_tasks_a_core_and_a_limit_above_what_there_is_are_warned_of() {
    let warnings = |ask: &MemoryAsk| MemoryPlan::of(ask).expect("it fits").warnings();
    assert!(warnings(&whole()).is_empty());
    let mut ask = whole();
    ask.threads[0].threads = 6;
    assert!(warnings(&ask).is_empty(), "8 tasks on 2 cores are 4 a core");
    ask.threads[0].threads = 7;
    assert!(warnings(&ask)[0].starts_with("9 tasks on 2 cores are more than 4 a core: "));
    ask.threads.extend((0..3).map(|i| group(ThreadKind::Task, &format!("more {i}"), 2, MIB, MIB / 8)));
    assert_eq!((ask.task_count(), warnings(&ask).len()), (15, 1));
    ask.threads[0].threads = 2;
    assert!(
        warnings(&ask).is_empty(),
        "one task of each of five chains on each core is what a job has by default"
    );
    ask.threads[0].threads = 7;
    ask.below = Some(Limit { amount: 512 * MIB, origin: LimitOrigin::Physical });
    assert!(warnings(&ask)[1].contains("is more than the 512 MiB that there are (the machine's memory)"));
}

fn asks() -> impl Strategy<Value = MemoryAsk> {
    let sizes = (0..8u64 << 30, 0..1u64 << 28, 0..600u64, 1..16u64, 1..4000u64, 0..1u64 << 30);
    let state = (0..64u64, 0..64u64, any::<bool>(), 0..400u64, 0..300u64 << 20);
    let percents = proptest::collection::vec(0..24u64, 4);
    (sizes, state, percents).prop_map(|(sizes, state, percents)| {
        let (limit, base_bytes, channels, depth, record_bytes, bytes) = sizes;
        let (stores, databases, index, threads, least) = state;
        let shares = [Share::StateCaches, Share::BlockCache, Share::WriteBuffers, Share::Index];
        let config =
            (shares.into_iter().zip(percents)).fold(MemoryConfig::new(), |c, (s, p)| c.percent(s, p));
        let declared = Declared { bytes, ..whole().declared.remove(0) };
        MemoryAsk {
            limit: Limit::set(limit),
            base_bytes,
            channels: ChannelsAsk { channels, depth, batch_records: 1024, record_bytes },
            threads: vec![group(ThreadKind::Task, "t", threads, 2 * MIB, MIB / 8)],
            declared: vec![declared],
            stores,
            databases,
            index,
            config: config.minimum(Share::Index, least),
            ..whole()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn shares_add_up_to_the_budget_and_none_is_below_what_it_must_have(ask in asks()) {
        let needed: u64 = Share::ALL.iter().map(|share| ask.needs(*share)).sum();
        match MemoryPlan::of(&ask) {
            Ok(plan) => {
                prop_assert!(needed <= ask.limit.amount);
                prop_assert_eq!(Share::ALL.iter().map(|share| plan.bytes(*share)).sum::<u64>(), ask.limit.amount);
                for share in Share::ALL {
                    prop_assert!(plan.bytes(share) >= ask.needs(share), "{share}");
                    prop_assert!(ask.has(share) || plan.bytes(share) == 0, "{share}");
                }
                let caches = plan.cache_bytes_per_store() as u64 * ask.stores;
                prop_assert!(caches <= plan.bytes(Share::StateCaches));
            }
            Err(MemoryError::TooSmall(shortage)) => {
                prop_assert!(needed > ask.limit.amount);
                prop_assert_eq!(shortage.needed(), needed);
                let message = shortage.to_string();
                for share in Share::ALL.into_iter().filter(|share| ask.needs(*share) > 0) {
                    prop_assert!(message.contains(&format!("\n  {share:<13}")), "{message}");
                }
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

#[test]
fn databases_share_the_files_that_may_be_open() {
    let with = |amount| {
        let max = Limit { amount, origin: LimitOrigin::OpenFiles };
        MemoryPlan::of(&MemoryAsk { max_files: Some(max), ..whole() })
    };
    // 128 of the program and 8 for each of 4 tasks; 6 databases, each with 32 beside those of its tables.
    assert_eq!(with(1 << 20).expect("it fits").open_files_per_database(), 256);
    assert_eq!(with(160 + 6 * (100 + 32)).expect("it fits").open_files_per_database(), 100);
    assert_eq!(with(160 + 6 * 64).expect("it fits").open_files_per_database(), 32);
    let text = with(1024).expect("it fits").to_string();
    let last = text.lines().last().unwrap_or_default();
    assert_eq!(last, "  open files 1024 (ulimit -n): RocksDB, 6 databases × 112; 160 others");
    let error = with(160 + 6 * 64 - 1).expect_err("one too few").to_string();
    assert!(
        error.starts_with("job \"everything\" needs 544 open files, 384 of them for 6 RocksDB databases"),
        "{error}"
    );
    assert!(error.contains("there may be 543 (ulimit -n): raise the hard limit"), "{error}");
    let stateless = MemoryAsk { databases: 0, max_files: Some(Limit::set(64)), ..whole() };
    assert!(MemoryPlan::of(&stateless).is_ok(), "nothing is planned for");
}
