//! The job of the `profile_service` example: behaviour events of a topic into a profile, for good.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use weir_connectors::kafka::{KafkaConfig, KafkaSource, Start};
use weir_connectors::prelude::*;
use weir_engine::DeadLetter;
use weir_engine::prelude::*;
use weir_operators::prelude::*;
use weir_state::profile::{ProfileUpdate, Profiles};

/// What is read, and where what cannot be read goes.
#[derive(Clone, Debug)]
pub struct Service {
    /// The cluster.
    pub kafka: KafkaConfig,
    /// Its topic of [`Behaviour`]s as JSON.
    pub topic: String,
    /// Records that are none are written here, exactly once; counted and logged only if there is no folder.
    pub dead_letters: Option<PathBuf>,
}

/// One row per user: what came last, how much was bought, and of what.
pub fn profiles() -> Profiles {
    Profiles::named("user_profile").enum_tag("last_behaviour").int_tag("buys_total").set_tag("categories")
}

impl Service {
    /// Adds the streams to a job.
    pub fn build(&self, job: &Job, profiles: &Profiles) {
        let source = KafkaSource::json::<Behaviour>(&self.kafka)
            .topic(&self.topic)
            .from(Start::Earliest)
            .discover_every(Duration::from_secs(30));
        let events = job.source("behaviour", source);
        if let Some(folder) = &self.dead_letters {
            let sink = FileSink::json_lines(folder);
            events.dead_letters().map(refused).named("refused").sink("dead", sink);
        }
        events
            .event_time(|e| e.ts, Watermarks::bounded(seconds(5)).idle_after(seconds(10)))
            .map(tags_of)
            .named("tags")
            .update_profile("profile", profiles);
    }
}

/// A record that is not one, as it is written down: with its payload as text, whatever is none replaced.
#[derive(Clone, Debug, Serialize)]
struct Refused {
    topic: String,
    partition: i32,
    offset: i64,
    reason: String,
    payload: String,
}

fn refused(letter: DeadLetter) -> Refused {
    let DeadLetter { origin: topic, partition, offset, reason, payload, .. } = letter;
    Refused { topic, partition, offset, reason, payload: String::from_utf8_lossy(&payload).into_owned() }
}

fn tags_of(e: Behaviour) -> ProfileUpdate {
    let update = ProfileUpdate::of(e.user_id)
        .set("last_behaviour", e.behavior.as_str())
        .add("categories", e.category_id.to_string());
    if e.behavior == Action::Buy { update.increment("buys_total", 1) } else { update }
}
