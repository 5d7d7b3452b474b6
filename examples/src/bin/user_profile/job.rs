//! The job itself: behaviour events in, a live profile out. This page is what a user of Weir writes.

use std::path::Path;

use serde::Serialize;
use weir_connectors::prelude::*;
use weir_engine::Source;
use weir_engine::prelude::*;
use weir_operators::prelude::*;
use weir_state::profile::{ProfileUpdate, Profiles};

use crate::days::{Days, day_of};

/// The job, in metrics, logs and checkpoints.
pub(crate) const NAME: &str = "user-profile";

/// The topic that events come from.
pub(crate) const TOPIC: &str = "user_behavior";

/// The profile: one row per user, one tag per column.
pub(crate) fn profiles(days: Days) -> Profiles {
    let space = Profiles::named("user_profile")
        .enum_tag("last_behaviour")
        .int_tag("buys_total")
        .set_tag("categories")
        .set_tag("active_days");
    days.iter().fold(space, |space, day| space.int_tag(&day.buys_tag()))
}

/// What one user bought on one day, as it is written to files.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DayOfUser {
    user: u64,
    day: String,
    buys: u64,
}

/// Events → tags of each event, and purchases per user and day of event time → profile, and files if there is a folder for
/// them.
pub(crate) fn job(
    job: Job,
    source: impl Source<Out = Behaviour>,
    rate: Option<f64>,
    profiles: &Profiles,
    out: Option<&Path>,
) -> Job {
    let job = job.on_interrupt(EndKind::Keep);
    let events = job
        .source("behaviour", source)
        .max_rate(rate)
        .event_time(|e| e.ts, Watermarks::bounded(seconds(5)).idle_after(seconds(10)))
        .shared();

    let tags = events.stream().map(tags_of).named("tags");
    let buys_per_day = events
        .stream()
        .filter(|e| e.behavior == Action::Buy)
        .key_by("by-user", |e| e.user_id)
        .window(Tumbling::of(days(1)))
        .aggregate("buys-per-day", count())
        .shared();
    let day_tags = buys_per_day
        .stream()
        .map(|w| {
            let tag = day_of(w.window.start.millis()).buys_tag();
            ProfileUpdate::of(w.key).set(tag, w.value)
        })
        .named("day-tag");
    tags.union(day_tags).update_profile("profile", profiles);
    if let Some(folder) = out {
        buys_per_day
            .stream()
            .map(|w| DayOfUser { user: w.key, day: day_of(w.window.start.millis()).name(), buys: w.value })
            .named("day-row")
            .sink("files", FileSink::json_lines(folder));
    }
    job
}

fn tags_of(e: Behaviour) -> ProfileUpdate {
    let update = ProfileUpdate::of(e.user_id)
        .set("last_behaviour", e.behavior.as_str())
        .add("categories", e.category_id.to_string())
        .add("active_days", day_of(e.ts).name());
    if e.behavior == Action::Buy { update.increment("buys_total", 1) } else { update }
}
