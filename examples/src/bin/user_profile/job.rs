//! The job itself: behaviour events in, a live profile out. This page is what a user of Weir writes.

use weir_connectors::format::Json;
use weir_connectors::prelude::*;
use weir_engine::prelude::*;
use weir_operators::prelude::*;
use weir_state::profile::{ProfileUpdate, Profiles};

use crate::days::{Days, day_of};

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

/// Events → tags of each event, and purchases per user and day of event time → profile.
pub(crate) fn job(source: KafkaSource<Behaviour, Json>, profiles: &Profiles, parallelism: usize) -> Job {
    let job = Job::named("user-profile").parallelism(parallelism).on_interrupt(EndKind::Keep);
    let events = job
        .source("behaviour", source)
        .event_time(|e| e.ts, Watermarks::bounded(seconds(5)).idle_after(seconds(10)))
        .shared();

    let tags = events.stream().map(tags_of).named("tags");
    let buys_per_day = events
        .stream()
        .filter(|e| e.behavior == Action::Buy)
        .key_by("by-user", |e| e.user_id)
        .window(Tumbling::of(days(1)))
        .aggregate("buys-per-day", count())
        .map(|w| {
            let tag = day_of(w.window.start.millis()).buys_tag();
            ProfileUpdate::of(w.key).set(tag, w.value)
        })
        .named("day-tag");
    tags.union(buys_per_day).update_profile("profile", profiles);
    job
}

fn tags_of(e: Behaviour) -> ProfileUpdate {
    let update = ProfileUpdate::of(e.user_id)
        .set("last_behaviour", e.behavior.as_str())
        .add("categories", e.category_id.to_string())
        .add("active_days", day_of(e.ts).name());
    if e.behavior == Action::Buy { update.increment("buys_total", 1) } else { update }
}
