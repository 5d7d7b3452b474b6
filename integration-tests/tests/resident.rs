//! Fifty keyed states in one operator: the process keeps to the limit that its memory was planned with, though its state outgrows its caches.
//!
//! In a process of its own, with the allocator that the examples use: what is resident belongs to the process.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::process::Command;
use std::time::Duration;

use weir_connectors::generator::Generator;
use weir_engine::memory::{MemoryConfig, Share};
use weir_engine::prelude::*;
use weir_engine::testkit::{NullSink, Probe, until};
use weir_engine::{OperatorInfo, log, metrics};
use weir_operators::prelude::*;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const MIB: u64 = 1 << 20;
/// The folder of a child: its presence makes a child of this program.
const IN: &str = "WEIR_RESIDENT_TEST_FOLDER";

const STATES: usize = 50;
/// What each state has of each key.
const VALUE: usize = 200;
/// What the process is given.
const LIMIT: u64 = 256 * MIB;
/// How often each key comes.
const ROUNDS: u64 = 2;

fn keys() -> u64 {
    // 220 MB of values, or 3 GB.
    if std::env::var_os("WEIR_SOAK").is_some() { 300_000 } else { 22_000 }
}

/// Counts in each of its states how often the key has come, and gives the sum of the counts.
#[derive(Clone)]
struct Fifty(Vec<ValueState<u64, Vec<u8>>>);

impl ProcessFunction<u64, u64> for Fifty {
    type Out = u64;
    type State = ();
    fn states(&mut self) -> Vec<&mut dyn NamedState<u64>> {
        self.0.iter_mut().map(|state| state as &mut dyn NamedState<u64>).collect()
    }
    fn process(
        &mut self,
        record: Record<u64>,
        cx: &mut KeyedContext<'_, u64, ()>,
        out: &mut impl Collector<u64>,
    ) -> Result<()> {
        let mut sum = 0;
        for state in &mut self.0 {
            let value = state.get_or_insert_with(cx, || vec![0; VALUE])?;
            value[0] += 1;
            sum += u64::from(value[0]);
        }
        // Only the last of a key's sums is looked at.
        if sum == ROUNDS * STATES as u64 { out.emit(record.with(sum)) } else { Ok(()) }
    }
}

/// Not a test of its own: what the other runs.
#[test]
fn as_a_child() {
    let Ok(folder) = std::env::var(IN) else { return };
    log::init("warn,weir_engine=info").unwrap();
    let keys = keys();
    let job = Job::named("fifty")
        .parallelism(2)
        .memory(MemoryConfig::new().limit(LIMIT))
        .state(StateBackend::rocksdb().folder(format!("{folder}/state")))
        .checkpoints(
            Checkpoints::to(format!("{folder}/checkpoints")).every(Duration::from_secs(2)).retain(1),
        );
    let numbers = Generator::new(1, Some(keys * ROUNDS), move |i, _| (i % keys, EventTime(i as i64)));
    let states = (0..STATES).map(|i| ValueState::named(&format!("state-{i}"))).collect();
    let probe = Probe::new();
    job.source("numbers", numbers)
        .without_event_time()
        .key_by("by-number", |n| *n)
        .process("fifty", Fifty(states))
        .transform(OperatorInfo::stateless("look"), probe.clone())
        .sink("out", NullSink);
    let planned = job.memory_plan().unwrap();
    let patience = Duration::from_secs(3_600);
    let job = job.start().unwrap();
    until(&job, patience, "the end", || job.is_over());
    job.wait().unwrap();
    assert_eq!(probe.values().len() as u64, keys, "each key has come so often, says each of its states");
    let stored = job.checkpoints().last().unwrap().full_bytes();
    let now = metrics::process::read().unwrap();
    eprintln!(
        "{STATES} states: {} MiB of values, {} MiB of them stored; caches planned {} MiB; resident at most {} MiB of {} MiB",
        (keys * STATES as u64 * VALUE as u64) / MIB,
        stored / MIB,
        planned.bytes(Share::StateCaches) / MIB,
        now.peak_resident_bytes / MIB,
        LIMIT / MIB,
    );
    let values = keys * STATES as u64 * VALUE as u64;
    assert!(
        values > 3 * planned.bytes(Share::StateCaches),
        "the state outgrows what is kept of it in memory"
    );
    assert!(now.peak_resident_bytes <= LIMIT + LIMIT / 10, "the process keeps to its limit, and a tenth");
}

#[test]
fn a58_fifty_states_keep_to_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "as_a_child", "--nocapture", "--test-threads", "1"])
        .env(IN, folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stdout));
}
