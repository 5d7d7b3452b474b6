//! How a subtask's consumer comes to its partitions: which are there, which are its own, where they begin and end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};
use weir_engine::{OperatorContext, Result, TaskError};

use super::begin::{Begin, Offsets, Timed, check_offsets, depends_on_now};
use super::client::{ClientLog, SLICE, drop_within, who};
use super::config::{Fixed, KafkaConfig};
use super::deal::{Card, Deal};
use super::ends::{Ends, Stop};
use super::footprint::QUEUED_KBYTES;
use super::group::{Group, committed, marked};
use super::restored::Restored;
use super::slots::{Slot, Slots};
use super::source::{Settings, Start};

/// Properties that a source lives by.
const FIXED: &[Fixed] = &[
    Fixed {
        property: "auto.offset.reset",
        value: "error",
        instead: "a source never lets the client choose an offset; say where to begin with KafkaSource::from(Start::…)",
    },
    Fixed {
        property: "enable.auto.commit",
        value: "false",
        instead: "offsets belong to the job's checkpoints, and are committed when these are complete; leave it out",
    },
    Fixed {
        property: "enable.auto.offset.store",
        value: "false",
        instead: "offsets belong to the job's checkpoints, and are committed when these are complete; leave it out",
    },
    Fixed {
        property: "enable.partition.eof",
        value: "true",
        instead: "a source has to know when a partition is read dry, which ends nothing; leave it out",
    },
];

/// Defaults that differ from the library's.
const DEFAULTS: &[(&str, &str)] = &[
    ("allow.auto.create.topics", "false"),
    // The library stops fetching for a whole second once its queue is full.
    ("fetch.queue.backoff.ms", "5"),
    ("queued.max.messages.kbytes", QUEUED_KBYTES),
    // Brokers close idle connections: no news.
    ("log.connection.close", "false"),
];

/// What a subtask has to read.
pub(super) struct Opened {
    pub(super) slots: Slots,
    /// The partitions of all subtasks.
    pub(super) deal: Arc<Deal>,
    /// How many of them there were.
    pub(super) dealt: usize,
}

/// The consumer of a subtask.
pub(super) fn consumer(settings: &Settings, cx: &OperatorContext) -> Result<BaseConsumer<ClientLog>> {
    // What a replica shows that is behind is not the end, so what ends is read from leaders.
    let config =
        &if settings.ends() { settings.config.without(&["client.rack"]) } else { settings.config.clone() };
    // The library reads assigned partitions only with a group's name, though the group is not used.
    let (group, client) = (format!("weir-{}", cx.uid()), format!("weir-{}", who(cx)));
    let mut defaults = DEFAULTS.to_vec();
    defaults.extend([("group.id", &group[..]), ("client.id", &client[..])]);
    if config.embedded_broker().is_some() {
        // That broker answers a fetch that found nothing after the whole wait, even when something has come meanwhile.
        defaults.push(("fetch.wait.max.ms", "5"));
    }
    (config.client(&defaults, FIXED)?)
        .create_with_context(ClientLog::committing(cx))
        .map_err(|e| TaskError::user("the Kafka client does not take its configuration").caused_by(e))
}

/// Finds this subtask's partitions, and where each begins and ends.
///
/// *Blocking*: up to the configured patience for every question to the brokers; hears cancellation between them.
pub(super) fn open(
    consumer: &BaseConsumer<ClientLog>,
    settings: &Settings,
    restored: &Restored,
    cx: &OperatorContext,
) -> Result<Opened> {
    let Settings { config, start, stop, .. } = settings;
    let found = settings.selection.find(consumer, config, settings.discovers().is_some(), restored, cx)?;
    if let Start::Offsets(offsets) = start {
        check_offsets("Start::Offsets", offsets.keys(), &found)?;
    }
    if let Stop::Offsets(offsets) = stop {
        check_offsets("Stop::Offsets", offsets.keys(), &found)?;
    }
    for (topic, partition, position) in restored.not_among(&found) {
        let offset = position.next;
        tracing::warn!(operator = %cx.uid(), topic, partition, offset, "the checkpoint stands in a partition that is not read any more");
    }
    let seen = unsettled(settings, restored).then(|| settings.firsts.begin(cx.uid().as_str(), &found));
    let deal = settings.dealer.join(cx, &found).ok_or_else(|| {
        TaskError::user("a Kafka source reads at most 65536 topics, and of each at most 65536 partitions")
    })?;
    let (own, dealt) = deal.own(cx, 0);
    // Before it is asked what a time means: a record that is written in between has that time, and comes behind this end.
    let mut limits = Vec::with_capacity(own.len());
    for card in &own {
        limits.push(limits_of(consumer, config, card, cx)?);
        cx.not_cancelled()?;
    }
    let known = known(consumer, settings, restored, &own, seen, cx)?;
    let (mut slots, mut chosen) = (Slots::default(), Vec::new());
    for (card, (low, high)) in own.into_iter().zip(limits) {
        let (topic, partition) = (&card.name[..], card.at.partition);
        let end = known.ends.end(topic, partition, high);
        let position = restored.position(topic, partition);
        let next = match (position, end, card.oldest) {
            // Whatever became of its records since.
            (Some(position), Some(end), _) if position.next >= end => position.next,
            // Another subtask found it while this one began.
            (None, _, Some(oldest)) => oldest.max(low),
            _ if known.begin.is_beyond(topic, partition, high) => {
                let all = end_of_all(settings, &card, cx)?.map_or(high, |all| all.max(high));
                known.begin.offset(topic, partition, low, all)?
            }
            _ => known.begin.offset(topic, partition, low, high)?,
        };
        if known.begin.is_chosen_now(topic, partition) {
            chosen.push(((topic.to_owned(), partition), next));
        }
        let reached = settings.progress.start(topic, partition, next);
        let mut slot = Slot::new(card.name, card.at, next, end, high, reached);
        if let Some(position) = position {
            slot.restore(position, low);
        }
        slots.push(slot);
        cx.not_cancelled()?;
    }
    if !chosen.is_empty() {
        keep(consumer, settings, chosen, cx);
    }
    Ok(Opened { slots, deal, dealt })
}

/// True while nothing but this process, and marks in the group, holds where partitions began.
pub(super) fn unsettled(settings: &Settings, restored: &Restored) -> bool {
    depends_on_now(&settings.start) && restored.is_empty()
}

/// The first offset of a partition, and the one behind the last record that may be read.
fn limits_of(
    consumer: &BaseConsumer<ClientLog>,
    config: &KafkaConfig,
    card: &Card,
    cx: &OperatorContext,
) -> Result<(i64, i64)> {
    let (topic, partition) = (&card.name[..], card.at.partition);
    patiently(config, cx, |slice| consumer.fetch_watermarks(topic, partition, slice))?.map_err(|e| {
        let brokers = config.broker_list();
        let message =
            format!("Kafka at {brokers} does not say which offsets topic {topic}, partition {partition} has");
        TaskError::external(message).caused_by(e)
    })
}

/// Where a partition ends with all that is not committed: an offset behind a transaction that is still open is not gone. None when
/// nobody says.
#[cold]
fn end_of_all(settings: &Settings, card: &Card, cx: &OperatorContext) -> Result<Option<i64>> {
    let config = settings.config.without(&[ISOLATION]);
    let client = config.client(&[(ISOLATION, "read_uncommitted"), ("log.connection.close", "false")], &[])?;
    let asker: BaseConsumer<ClientLog> = client
        .create_with_context(ClientLog::new(cx))
        .map_err(|e| TaskError::user("the Kafka client does not take its configuration").caused_by(e))?;
    let limits = limits_of(&asker, &config, card, cx);
    drop_within(format!("a Kafka client of {}", who(cx)), asker, CLOSE_PATIENCE);
    cx.not_cancelled()?;
    Ok(limits.ok().map(|(_, high)| high))
}

/// Whether what is not committed is read, too.
const ISOLATION: &str = "isolation.level";
/// How long closing a client may take.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// What no patience helps against.
const REFUSED: &[Code] =
    &[Code::TopicAuthorizationFailed, Code::GroupAuthorizationFailed, Code::ClusterAuthorizationFailed];

/// Asks until there is an answer, for as long as a start is patient: a topic that was just made has no leaders at first, and a group no
/// coordinator. The last answer counts.
///
/// *Blocking*: up to the configured patience and half a second; hears cancellation within 2 s.
fn patiently<T>(
    config: &KafkaConfig,
    cx: &OperatorContext,
    mut ask: impl FnMut(Duration) -> KafkaResult<T>,
) -> Result<KafkaResult<T>> {
    let deadline = Instant::now() + config.start_patience();
    loop {
        let slice = deadline.saturating_duration_since(Instant::now()).clamp(SLICE / 4, SLICE);
        let answer = ask(slice);
        let hopeless = |e: &KafkaError| e.rdkafka_error_code().is_some_and(|code| REFUSED.contains(&code));
        if answer.as_ref().map_or_else(hopeless, |_| true) || Instant::now() >= deadline {
            return Ok(answer);
        }
        cx.wait(Duration::from_millis(100))?;
    }
}

/// What there is to know about where partitions begin and end.
struct Known<'a> {
    begin: Begin<'a>,
    ends: Ends<'a>,
}

fn known<'a>(
    consumer: &BaseConsumer<ClientLog>,
    settings: &'a Settings,
    restored: &'a Restored,
    own: &[Card],
    seen: Option<BTreeSet<(String, i32)>>,
    cx: &OperatorContext,
) -> Result<Known<'a>> {
    let Settings { config, start, stop, firsts, .. } = settings;
    let firsts = firsts.of(cx.uid().as_str());
    let promises_nothing = !cx.takes_checkpoints();
    let mut begin =
        Begin { start, restored, group: Offsets::new(), timed: Timed::new(), firsts, seen, promises_nothing };
    let mut ends = Ends { stop, restored, timed: Timed::new() };
    let names = || own.iter().map(|card| (&card.name[..], card.at.partition));
    if own.is_empty() {
        return Ok(Known { begin, ends });
    }
    let silent = |what: &str, e| {
        let message = format!("Kafka at {} does not say {what}", config.broker_list());
        TaskError::external(message).caused_by(e)
    };
    if *start == Start::Group {
        let group = patiently(config, cx, |slice| committed(consumer, names(), slice))?;
        begin.group = group.map_err(|e| silent("what the group has committed", e))?;
    }
    if survives(settings, cx) && names().any(|(topic, partition)| begin.is_chosen_now(topic, partition)) {
        match patiently(config, cx, |slice| marked(consumer, names(), slice))? {
            // What this process knows itself is newer.
            Ok(marks) => marks.into_iter().for_each(|(of, at)| {
                begin.firsts.entry(of).or_insert(at);
            }),
            Err(e) => tracing::warn!(
                operator = %cx.uid(),
                "Kafka does not say whether an earlier life began that came to no complete checkpoint: {e}; its records \
                 are not looked for"
            ),
        }
    }
    for (asked, timed) in [(time_of(start), &mut begin.timed), (stop_time(stop), &mut ends.timed)] {
        if let Some(time) = asked {
            let answer = patiently(config, cx, |slice| first_at(consumer, names(), time, slice))?;
            *timed = answer.map_err(|e| silent("which records a time begins with", e))?;
        }
    }
    Ok(Known { begin, ends })
}

fn time_of(start: &Start) -> Option<i64> {
    if let Start::Timestamp(time) = start { Some(*time) } else { None }
}

fn stop_time(stop: &Stop) -> Option<i64> {
    if let Stop::Timestamp(time) = stop { Some(*time) } else { None }
}

/// Where the group is told at what offsets a life begins: of use to a later process, of a job that takes checkpoints.
fn survives(settings: &Settings, cx: &OperatorContext) -> bool {
    cx.takes_checkpoints() && settings.config.embedded_broker().is_none()
}

/// A partition was found while the job runs that no complete checkpoint knows: later lives are to begin there too. Does not wait for
/// the group's answer.
#[cold]
pub(super) fn keep_found(
    consumer: &BaseConsumer<ClientLog>,
    settings: &Settings,
    (topic, partition, offset): (&str, i32, i64),
    cx: &OperatorContext,
) {
    if survives(settings, cx) {
        Group::mark(consumer, std::iter::once((topic, partition)), vec![offset], None);
    }
    settings.firsts.keep(cx.uid().as_str(), [((topic.to_owned(), partition), offset)]);
}

/// These partitions begin where they do because of when that was asked: later lives are to begin there too, until a checkpoint
/// is complete.
fn keep(
    consumer: &BaseConsumer<ClientLog>,
    settings: &Settings,
    chosen: Vec<((String, i32), i64)>,
    cx: &OperatorContext,
) {
    if survives(settings, cx) {
        let names = chosen.iter().map(|((topic, partition), _)| (&topic[..], *partition));
        let offsets = chosen.iter().map(|(_, at)| *at).collect();
        Group::mark(consumer, names, offsets, Some(settings.config.start_patience()));
    }
    settings.firsts.keep(cx.uid().as_str(), chosen);
}

/// The offset of the first record at or after `time`, in milliseconds since the epoch, of the partitions that have one.
///
/// *Blocking*: up to `patience`.
fn first_at<'a>(
    consumer: &BaseConsumer<ClientLog>,
    partitions: impl Iterator<Item = (&'a str, i32)>,
    time: i64,
    patience: Duration,
) -> KafkaResult<Timed> {
    let mut asked = TopicPartitionList::new();
    for (topic, partition) in partitions {
        // The library takes times in the place of offsets; negative ones mean something else to it.
        asked.add_partition_offset(topic, partition, Offset::Offset(time.max(0)))?;
    }
    let mut timed = Timed::new();
    for element in consumer.offsets_for_times(asked, patience)?.elements() {
        element.error()?;
        if let Offset::Offset(at) = element.offset() {
            timed.insert((element.topic().to_owned(), element.partition()), at);
        }
    }
    Ok(timed)
}
