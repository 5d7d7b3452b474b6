//! Results that replace each other are not added up without saying so, whatever the window.

use super::*;
use crate::aggregate::{count, sum};
use crate::window::seconds;
use std::time::Duration;
use weir_engine::testkit::{NullSink, ScriptSource};
use weir_engine::{Job, Watermarks};

use crate::prelude::StreamOps;

/// What the plan says of adding up the results of a window.
fn added_up<W: Window<u64, u64>>(window: W, discards: bool) {
    let job = Job::named("adds-up").parallelism(1);
    let numbers = job.source("in", ScriptSource::of([(7u64, 0)])).source_time(Watermarks::monotonic());
    let name = W::NAME;
    let updates = window.updates();
    let results = numbers.key_by("by-key", |n| *n).window(window).aggregate("per-key", count());
    results
        .map(|w| w.value)
        .key_by("all", |_| ())
        .window(Tumbling::of(seconds(1)))
        .aggregate("all-keys", sum(|n: &u64| *n))
        .sink("out", NullSink);
    assert_eq!(updates, !discards, "{name}");
    match job.plan() {
        Ok(_) => assert!(!updates, "{name} gives updates, which are added up"),
        Err(error) => assert!(updates && error.to_string().contains("per-key"), "{name}: {error}"),
    }
}

#[test]
fn updates_of_any_window_are_not_added_up_without_saying_so() {
    let (second, half) = (seconds(1), Duration::from_millis(500));
    let zone = "Europe/Berlin";
    for adds_up in [false, true] {
        let fires = |firing: Firing| if adds_up { firing.discarding() } else { firing };
        added_up(fires(Tumbling::of(second).allow_lateness(second)), adds_up);
        added_up(fires(Tumbling::of(second).early_every(2)), adds_up);
        added_up(fires(Tumbling::of(second).early_after(second)), adds_up);
        added_up(fires(Calendar::days(zone).allow_lateness(second)), adds_up);
        added_up(fires(Calendar::weeks(zone).early_every(2)), adds_up);
        let session = |session: Session| if adds_up { session.discarding() } else { session };
        added_up(session(Session::gap(second).allow_lateness(second)), adds_up);
        added_up(session(Session::gap(second).early_every(2)), adds_up);
        added_up(session(Session::gap(second).early_after(second)), adds_up);
        let global = Global::new().early_every(2);
        added_up(if adds_up { global.discarding() } else { global }, adds_up);
    }
    added_up(Sliding::of(second).every(half).allow_lateness(second), false);
    added_up(Cumulate::of(second).every(half).allow_lateness(second), false);
    // These give each window once, so that there is nothing to take back.
    added_up(Tumbling::of(second), true);
    added_up(Calendar::months(zone), true);
    added_up(Sliding::of(second).every(half).emit_when_emptied(), true);
    added_up(Cumulate::of(second).every(half), true);
    added_up(Session::gap(second), true);
    added_up(CountWindow::of(2), true);
    added_up(Global::new(), true);
}
