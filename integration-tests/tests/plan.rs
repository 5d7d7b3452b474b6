//! Plans as a user meets them: golden text, dot and JSON of a whole job, and how operators are grouped into chains.

use std::path::Path;

use weir_connectors::prelude::*;
use weir_engine::plan::{Partitioning, Plan};
use weir_engine::prelude::*;
use weir_engine::testkit::{NullSink, ScriptSource};
use weir_operators::prelude::*;
use weir_state::profile::{ProfileUpdate, Profiles};

/// Every kind of edge and operator there is.
fn sample(job: Job, profiles: &Profiles) -> Job {
    let source = job.source("behaviour", ScriptSource::of([(1u64, 0)])).parallelism(3);
    source.dead_letters().sink("dead", PrintSink::with(|d: &DeadLetter| d.reason.clone()));
    let events = source.event_time(|n| *n as i64, Watermarks::bounded(seconds(5))).shared();
    let tags = events.stream().map(|n| ProfileUpdate::of(n).increment("seen", 1)).named("tags");
    let (counts, late) = events
        .stream()
        .filter(|n| n % 2 == 0)
        .key_by("by-number", |n| *n)
        .window(Tumbling::of(hours(1)))
        .aggregate_with_late("hourly", count());
    late.rebalance().parallelism(1).sink("late", NullSink);
    let counts = counts.map(|w| ProfileUpdate::of(w.key).set("hourly", w.value));
    tags.union(counts).update_profile("profile", profiles);
    events.stream().broadcast().sink("all", NullSink);
    job
}

fn profiles() -> Profiles {
    Profiles::named("p").int_tag("seen").int_tag("hourly")
}

fn golden(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("WEIR_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("the folder of golden files");
        std::fs::write(&path, actual).expect("the golden file is written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        actual, expected,
        "{name} differs; if that is meant, run once with WEIR_BLESS=1 and look at the change"
    );
}

#[test]
fn the_plan_reads_as_it_did() {
    let plan = sample(Job::named("sample").parallelism(2), &profiles()).plan().expect("a sound job");
    golden("plan.txt", &plan.to_string());
    golden("plan.dot", &plan.to_dot());
    golden("plan.json", &(plan.to_json() + "\n"));
}

#[test]
fn without_chaining_every_operator_is_a_chain_of_its_own() {
    let plan =
        sample(Job::named("sample").parallelism(2).chaining(false), &profiles()).plan().expect("a sound job");
    for chain in &plan.chains {
        let kinds: Vec<_> = chain.operators.iter().map(|o| o.kind).collect();
        // A key_by is how records leave a chain, not a step of its own.
        let steps = kinds.iter().filter(|k| **k != "key_by").count();
        assert!(steps <= 1, "{kinds:?}");
    }
}

fn chains(plan: &Plan) -> Vec<Vec<&str>> {
    plan.chains.iter().map(|c| c.operators.iter().map(|o| o.uid.as_str()).collect()).collect()
}

#[test]
fn one_operator_can_stand_alone_or_have_a_parallelism_of_its_own() {
    let job = Job::named("alone").parallelism(2);
    let numbers = job.source("numbers", ScriptSource::of([(1u64, 0)])).source_time(Watermarks::monotonic());
    numbers
        .map(|n| n + 1)
        .named("a")
        .map(|n| n + 1)
        .named("b")
        .chaining(false)
        .map(|n| n + 1)
        .named("c")
        .map(|n| n + 1)
        .named("d")
        .parallelism(5)
        .sink("null", NullSink);
    let plan = job.plan().expect("a sound job");
    assert_eq!(chains(&plan), [vec!["numbers", "a"], vec!["b"], vec!["c"], vec!["d", "null"]]);
    let parallelism: Vec<_> = plan.chains.iter().map(|c| c.parallelism).collect();
    assert_eq!(parallelism, [2, 2, 2, 5]);
    let edges: Vec<_> = plan.edges.iter().map(|e| e.partitioning).collect();
    assert_eq!(edges, [Partitioning::Forward, Partitioning::Forward, Partitioning::Rebalance]);
}

#[test]
fn a_side_output_follows_its_operator_into_a_chain_of_its_own() {
    let job = Job::named("side").parallelism(2);
    let numbers = job.source("numbers", ScriptSource::of([(1u64, 0)])).source_time(Watermarks::monotonic());
    let (counts, late) = numbers
        .key_by("by-number", |n| *n)
        .window(Tumbling::of(seconds(1)))
        .aggregate_with_late("count", count());
    let counts = counts.map(|w| w.value).parallelism(7);
    counts.sink("counts", NullSink);
    late.sink("late", NullSink);
    let plan = job.plan().expect("a sound job");
    let side = plan.edges.iter().find(|e| e.side.is_some()).expect("the late output");
    assert_eq!(plan.chains[side.from].operators[0].uid, "count");
    weir_engine::testkit::run_within(job, seconds(20)).expect("it runs as planned");
}
