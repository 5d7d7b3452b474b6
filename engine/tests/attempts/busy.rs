//! A source in the middle of a long call shows as its own trigger, and while a checkpoint waits for it that can be seen.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weir_engine::http::HttpPort;
use weir_engine::prelude::*;
use weir_engine::testkit::{NullSink, ScriptSource, until};

use crate::common::get;
use crate::rig::*;

#[test]
fn a_source_that_is_busy_shows_as_its_trigger_and_not_as_alignment_elsewhere() {
    let job = Job::named("busy").parallelism(1).checkpoints(asked_for("busy"));
    let held = Held::of(ScriptSource::of([(1, 0)]).endless());
    let busy = job.source("busy", held.clone()).without_event_time();
    let free = job.source("free", ScriptSource::of([(2, 0)]).endless()).without_event_time();
    busy.union(free).sink("out", NullSink);
    let port = HttpPort::bind("127.0.0.1:0").unwrap().serve().unwrap();
    let job = job.start().unwrap();
    port.show(&job);
    held.hold.store(true, Ordering::SeqCst);
    until(&job, SOON, "a call that lasts", || held.holds.load(Ordering::SeqCst));
    let lasted = std::thread::scope(|scope| {
        let asked = scope.spawn(|| job.checkpoint());
        let aligns = || job.tasks().iter().any(|t| t.aligning == ["busy#0"]);
        until(&job, SOON, "a barrier on one input", aligns);
        let since = Instant::now();
        until(&job, SOON, "a call that lasts longer", || since.elapsed() > Duration::from_millis(400));
        let waited = || job.tasks().iter().any(|t| t.aligning_for >= Duration::from_millis(400));
        until(&job, SOON, "the time that it is waited for", waited);
        // While it lasts: who has acknowledged, and who is waited for.
        let flying = || job.checkpoints_in_flight().remove(0);
        until(&job, SOON, "the part of the other one", || flying().acknowledged.tasks == 1);
        let flying = flying();
        assert_eq!((flying.id, flying.acknowledged.of), (1, 3), "{flying:?}");
        assert!(flying.waits_for.contains("barrier missing from busy#0"), "{flying:?}");
        let busy = flying.tasks.iter().find(|t| t.uid == "busy").unwrap();
        assert!(busy.phases.trigger_ms >= Some(400), "so far: {flying:?}");
        let missing = flying.tasks.iter().flat_map(|t| &t.missing).find(|m| m.from == "busy#0").unwrap();
        assert!(missing.waited_ms >= 400, "since the other one came: {flying:?}");
        let (_, shown) = get(port.address(), "/job");
        let shown = &shown["checkpoints_in_flight"][0];
        assert_eq!((&shown["id"], &shown["kind"]), (&1.into(), &"checkpoint".into()), "{shown}");
        assert_eq!((&shown["acknowledged"]["tasks"], &shown["acknowledged"]["of"]), (&1.into(), &3.into()));
        assert!(shown["waits_for"].as_str().unwrap().contains("busy#0"), "{shown}");
        let lasted = since.elapsed();
        held.hold.store(false, Ordering::SeqCst);
        asked.join().unwrap().unwrap();
        lasted.as_millis() as u64
    });
    let record = job.checkpoints().pop().unwrap();
    let trigger = of(&record, "busy").phases.trigger_ms.unwrap();
    assert!(trigger >= lasted, "{record:?}");
    assert_eq!(record.phases.trigger_ms, Some(trigger), "the job's is the longest: {record:?}");
    // The two follow each other: what is counted once does not fit into the whole twice.
    let align = record.phases.align_ms.unwrap();
    let whole = (record.ended_ms - record.triggered_ms) as u64;
    assert!(trigger + align <= whole + 2, "{record:?}");
    assert_eq!((record.acknowledged.tasks, record.acknowledged.of), (3, 3), "{record:?}");
    assert_eq!(job.checkpoints_in_flight(), []);
    // The sink commits beside the coordinator.
    let committed = || job.checkpoints()[0].phases.commit_ms.is_some();
    until(&job, SOON, "a commit", committed);
    assert_eq!(get(port.address(), "/job").1["checkpoints_in_flight"], serde_json::json!([]));
    job.cancel();
    assert!(job.wait().is_err());
}
