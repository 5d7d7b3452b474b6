//! Writes the input into the topic, in event-time order, and waits until the job has read all of it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use weir_connectors::kafka::Progress;
use weir_connectors::prelude::*;
use weir_engine::prelude::*;

use crate::input::Input;
use crate::job::TOPIC;

/// Replays `input` as JSON keyed by user. It never runs so far ahead of the reader that a small broker would drop what
/// was not read. Returns when every record has been read or the reader is told to stop; `report` hears how many, and may
/// break it off.
pub(crate) fn replay(
    input: &Input,
    kafka: &KafkaConfig,
    read: Progress,
    rate: Option<f64>,
    reader: &JobHandle,
    mut report: impl FnMut(u64) -> ControlFlow<()>,
) -> anyhow::Result<()> {
    let n = input.len();
    let from: u64 = offsets(&read);
    // One subtask, or two of them would mix the order of one user's events.
    let job = Job::named("replay").parallelism(1);
    let sink = KafkaSink::json(kafka, TOPIC).key(|e: &Behaviour| e.user_id.to_string()).follow(read.clone());
    match input {
        Input::Recorded(events) => {
            let events = Arc::new(events.clone());
            let source = Generator::new(0, Some(n), move |i, _| {
                let event = events[i as usize];
                (event, event.time())
            });
            job.source("recorded", source)
                .max_rate(rate)
                .source_time(Watermarks::monotonic())
                .sink("topic", sink);
        }
        Input::Generated { shop, seed, .. } => {
            let source = weir_connectors::behaviour::behaviours_of(*shop, *seed, Some(n));
            job.source("generated", source)
                .max_rate(rate)
                .source_time(Watermarks::monotonic())
                .sink("topic", sink);
        }
    }
    let writing = job.start()?;
    loop {
        let done = offsets(&read) - from;
        if report(done).is_break() {
            writing.cancel();
            return Ok(());
        }
        if done >= n && writing.is_over() {
            writing.wait()?;
            return Ok(());
        }
        if writing.is_over() {
            // Written in full, or failed: then nothing more will come.
            writing.wait()?;
        }
        if interrupted(reader) {
            writing.cancel();
            return Ok(());
        }
        if reader.is_over() {
            writing.cancel();
            reader.wait()?;
            bail!("the job ended before it had read everything");
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// Whether the job is being drained, or was: as long as nobody here has asked for that, it was a signal.
pub(crate) fn interrupted(job: &JobHandle) -> bool {
    job.history().iter().any(|status| status.state == JobState::Draining)
}

/// Records read so far over all partitions, as offsets.
fn offsets(read: &Progress) -> u64 {
    read.snapshot().iter().map(|(_, _, next)| (*next).max(0) as u64).sum()
}
