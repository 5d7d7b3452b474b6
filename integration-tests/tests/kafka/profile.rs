//! The `user_profile` pipeline over Kafka under `kill -9` at random moments, with kills of the broker mixed in: its files and its
//! profile are those of a run that was never killed.
//!
//! Ten kills; fifty with `WEIR_SOAK`. `WEIR_SEED` repeats a run's choices, not its scheduling.

use std::fs;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use weir_connectors::behaviour::Behaviour;
use weir_connectors::file::visible_lines;
use weir_connectors::kafka::{KafkaConfig, KafkaSink, KafkaSource, Stop};
use weir_connectors::random::Random;
use weir_engine::prelude::*;
use weir_engine::testkit::run_within;

use super::children;
use super::rig::{Rig, SOON, broker, soak};
use crate::input::Input;
use crate::job;

const EVENTS: u64 = 60_000;

/// Reads the topic to its end and says what the profile comes to.
fn to_the_end(brokers: &str, topic: &str, folder: &Path, parallelism: usize, rate: Option<f64>) {
    let kafka = KafkaConfig::brokers(brokers)
        .patience(Duration::from_secs(60))
        .set("reconnect.backoff.max.ms", "500");
    let checkpoints = Checkpoints::to(folder.join("checkpoints").display().to_string())
        .every(Duration::from_millis(100))
        .forgive_restarts(true);
    let shell = Job::named(job::NAME)
        .parallelism(parallelism)
        .state(StateBackend::rocksdb().folder(folder.join("state")))
        .restart(weir_engine::RestartPolicy::FixedDelay { restarts: 100, delay: Duration::from_millis(100) })
        .checkpoints(checkpoints);
    let source = KafkaSource::json::<Behaviour>(&kafka).topic(topic).until(Stop::Latest);
    let profiles = job::profiles(Input::generated(EVENTS).days());
    job::job(shell, source, rate, &profiles, Some(&folder.join("out"))).run().unwrap();
    fs::write(folder.join("digest"), profiles.reader().digest().value.to_string()).unwrap();
}

/// The process that is killed, or comes to its end.
pub(crate) fn child(told: &[&str]) {
    let &[brokers, topic, folder, parallelism, rate] = told else { panic!("{told:?}") };
    to_the_end(brokers, topic, Path::new(folder), parallelism.parse().unwrap(), rate.parse().ok());
}

fn begin(topic: &str, folder: &Path, parallelism: u64, rate: &str) -> Child {
    let (folder, parallelism) = (folder.display().to_string(), parallelism.to_string());
    children::begin("profile", &[broker().address(), topic, &folder, &parallelism, rate])
}

/// What a life has left that came to its end.
fn left(folder: &Path) -> (String, Vec<String>) {
    let mut lines = visible_lines(folder.join("out")).unwrap();
    lines.sort();
    (fs::read_to_string(folder.join("digest")).unwrap(), lines)
}

fn ends(mut child: Child) -> bool {
    let deadline = Instant::now() + 5 * SOON;
    loop {
        match child.try_wait().unwrap() {
            Some(status) => return status.success(),
            None if Instant::now() > deadline => {
                child.kill().unwrap();
                child.wait().unwrap();
                return false;
            }
            None => std::thread::park_timeout(Duration::from_millis(20)),
        }
    }
}

#[test]
fn killed_at_random_moments_the_profile_is_that_of_the_run_that_never_was() {
    let kills = if soak() { 50 } else { 10 };
    let rig = Rig::new("profile", 5);
    let input = Arc::new(Input::generated(EVENTS));
    let writer = Job::named("profile-writer").parallelism(1);
    let sink = KafkaSink::json(&rig.kafka, &rig.topic).key(|e: &Behaviour| e.user_id.to_string());
    writer.source("events", input.source()).without_event_time().sink("topic", sink);
    run_within(writer, SOON).unwrap();

    let never = tempfile::tempdir().unwrap();
    assert!(ends(begin(&rig.topic, never.path(), 2, "none")), "the run that is not killed fails");
    let wanted = left(never.path());
    assert!(wanted.1.len() > 1_000, "{} rows", wanted.1.len());

    let seed = std::env::var("WEIR_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64));
    println!("WEIR_SEED={seed}");
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::of(seed, 0);
    // So slow that it is not at its end before the last kill.
    let rate = if soak() { "400" } else { "2000" };
    let mut ended = 0;
    for kill in 0..kills {
        let mut child = begin(&rig.topic, folder.path(), 1 + random.below(3), rate);
        std::thread::park_timeout(Duration::from_millis(700 + random.below(2_500)));
        if kill % 4 == 3 {
            broker().kill().unwrap();
            std::thread::park_timeout(Duration::from_millis(random.below(1_500)));
            broker().restart().unwrap();
        }
        match child.try_wait().unwrap() {
            None => {
                child.kill().unwrap();
                child.wait().unwrap();
            }
            Some(status) => {
                assert!(status.success(), "life {kill} of seed {seed} ended with {status}");
                ended += 1;
            }
        }
    }
    assert!(ends(begin(&rig.topic, folder.path(), 2, "none")), "the last life of seed {seed} fails");
    let (digest, lines) = left(folder.path());
    assert_eq!(digest, wanted.0, "seed {seed}: the profile's digest");
    assert!(lines == wanted.1, "seed {seed}: {} rows, {} without a kill", lines.len(), wanted.1.len());
    assert!(ended * 2 < kills, "{ended} of {kills} lives came to their end: too short to be killed");
}
