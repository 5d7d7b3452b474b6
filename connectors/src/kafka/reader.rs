//! One subtask's consumer: opened at offsets that are known to be there, drained batch by batch, closed under a deadline (over 400 lines: one loop and what it calls).
// HOT: per record one poll of the client and one decode, no clock, no lock, no allocation of ours.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};
use weir_engine::{
    Barrier, Closing, DeadLetter, Domain, EventTime, Notice, OperatorContext, Result, SourceBatch,
    SourceStatus, SplitId, TaskError,
};

use super::client::{ClientLog, drop_within, who};
use super::deal::Deal;
use super::errors::{Verdict, judge};
use super::fetching::{ask, assigns_not, fetch, seek};
use super::group::Group;
use super::lag::Lag;
use super::lost::{failure, other_log};
use super::opening;
use super::patience::Patience;
use super::record::{FromMessage, Taken};
use super::restored::{PATTERN, Restored, Seen};
use super::slots::{Slot, Slots, Stage};
use super::source::Settings;
use super::watch::Ticket;

/// How long closing a client may take.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);
/// How many dead letters one poll passes on: they count against no room.
const REJECTED_PER_POLL: usize = 256;
/// The shortest and the longest wait when nothing is ready.
const WAIT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(8));

pub(super) struct Reader {
    cx: OperatorContext,
    settings: Settings,
    /// None when no partition fell to this subtask, and none can.
    consumer: Option<Arc<BaseConsumer<ClientLog>>>,
    slots: Slots,
    /// The partitions of all subtasks, and how many of them were looked at.
    deal: Arc<Deal>,
    dealt: usize,
    suspected: usize,
    measured: usize,
    /// No complete checkpoint knows where partitions began that were found since.
    unsettled: bool,
    /// What looks for new partitions and for stalls, for all subtasks.
    watch: Option<Ticket>,
    /// Partitions end.
    ends: bool,
    announced: bool,
    wait: Duration,
    /// What the group is told; offsets are in the order of the slots.
    group: Group,
    /// Without checkpoints what was read is never read again.
    read_settles: bool,
}

impl Reader {
    pub(super) fn open(settings: &Settings, restored: &Restored, cx: &OperatorContext) -> Result<Reader> {
        let (who, consumer) = (who(cx), opening::consumer(settings, cx)?);
        let opened = opening::open(&consumer, settings, restored, cx);
        let mut reader = match opened {
            Ok(opened) => Reader {
                cx: cx.clone(),
                settings: settings.clone(),
                consumer: None,
                slots: opened.slots,
                deal: opened.deal,
                dealt: opened.dealt,
                suspected: 0,
                measured: 0,
                unsettled: opening::unsettled(settings, restored),
                watch: None,
                ends: settings.ends(),
                announced: false,
                wait: WAIT.0,
                group: Group::begin(),
                read_settles: !cx.takes_checkpoints(),
            },
            Err(e) => {
                drop_within(format!("the Kafka consumer of {who}"), consumer, CLOSE_PATIENCE);
                return Err(e);
            }
        };
        let fetched = fetch(&consumer, &mut reader.slots, reader.ends);
        if fetched.is_err() || reader.slots.is_empty() && settings.discovers().is_none() {
            drop_within(format!("the Kafka consumer of {who}"), consumer, CLOSE_PATIENCE);
            return fetched.map(|()| reader);
        }
        let consumer = Arc::new(consumer);
        if cx.subtask() == 0 {
            let lag = Lag::new(settings, Arc::clone(&consumer), Arc::clone(&reader.deal), cx);
            reader.watch = settings.config.desk().add(Box::new(lag), Lag::every(settings));
        }
        reader.consumer = Some(consumer);
        Ok(reader)
    }

    pub(super) fn poll<T, D: FromMessage<T>>(
        &mut self,
        out: &mut SourceBatch<T>,
        decoder: &mut D,
        budget: Duration,
    ) -> Result<SourceStatus> {
        if !std::mem::replace(&mut self.announced, true) {
            for slot in self.slots.all() {
                out.split_started(slot.split);
                if slot.stage == Stage::Done {
                    out.split_finished(slot.split);
                }
            }
        }
        if self.deal.len() != self.dealt {
            self.take_new(out)?;
        }
        let Some(consumer) = &self.consumer else { return Ok(self.nothing(Duration::from_secs(1))) };
        let (mut taken, mut over) = (0u64, false);
        let mut patience = Patience::new(budget);
        let mut served = consumer.context().served();
        let drained = loop {
            if out.room() == 0 || out.rejected().len() >= REJECTED_PER_POLL {
                break false;
            }
            let message = match consumer.poll(Duration::ZERO) {
                Some(Ok(message)) => Some(message),
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    if let Some(slot) = self.slots.at_end(partition) {
                        slot.read_dry(true, self.read_settles);
                        slot.told = true;
                        out.split_drained(slot.split);
                        over |= self.ends && slot.is_over(Instant::now());
                    } else {
                        let of = self.slots.numbered(partition);
                        of.for_each(|slot| slot.read_dry(false, self.read_settles));
                    }
                    None
                }
                Some(Err(e)) if judge(&e) == Verdict::RideOut => None,
                Some(Err(e)) => return Err(failure(consumer, &self.slots, &who(&self.cx), e)),
                // The client also answers so when it has served an event of its own (rust-rdkafka issue 644), whatever
                // lies behind it. Only an empty queue may make the source idle.
                None => {
                    let now = consumer.context().served();
                    if std::mem::replace(&mut served, now) == now {
                        break true;
                    }
                    None
                }
            };
            let Some(message) = message else {
                if patience.is_over() {
                    break false;
                }
                continue;
            };
            let (partition, offset) = (message.partition(), message.offset());
            let Some(slot) = self.slots.find(|| message.topic(), partition) else {
                let (topic, who) = (message.topic(), who(&self.cx));
                let message = format!(
                    "{who} got a record of topic {topic}, partition {partition}, which it does not read"
                );
                return Err(TaskError::internal(message));
            };
            if offset < slot.floor {
                let found = Seen { offset, time: message.timestamp().to_millis().unwrap_or(-1) };
                if !slot.is_as_before(found) {
                    return Err(other_log(slot, found));
                }
                if patience.is_over() {
                    break false;
                }
                continue;
            }
            if offset >= slot.end {
                // All before the end was read; the client has read ahead.
                slot.next = slot.next.max(slot.end);
                over = true;
                if patience.is_over() {
                    break false;
                }
                continue;
            }
            let time = message.timestamp().to_millis();
            slot.next = offset + 1;
            slot.last = Some(Seen { offset, time: time.unwrap_or(-1) });
            over |= slot.next == slot.end;
            taken += 1;
            let reject = |out: &mut SourceBatch<T>, reason: String, payload: &[u8]| {
                out.reject(DeadLetter::new(message.topic(), partition, offset, reason, payload));
            };
            // A decoder of whole records has a value for a tombstone, too.
            let tombstone = self.settings.skip_tombstones && message.payload().is_none();
            match if tombstone { Taken::Tombstone } else { decoder.take(&message) } {
                Taken::Value(value) => {
                    out.push(slot.split, value, time.map_or(EventTime::NONE, EventTime));
                }
                Taken::Failed(e) => return Err(not_decoded(e, message.topic(), partition, offset)),
                Taken::Bad(reason) => reject(out, reason, message.payload().unwrap_or_default()),
                Taken::Tombstone if self.settings.skip_tombstones => {
                    if patience.is_over() {
                        break false;
                    }
                }
                Taken::Tombstone => {
                    let reason = "no payload: a tombstone (KafkaSource::skip_tombstones passes over them)";
                    reject(out, reason.to_owned(), &[]);
                }
            }
        };
        if taken > 0 {
            self.slots.all().iter().for_each(|slot| slot.reached.read(slot.next, self.read_settles));
            self.wait = WAIT.0;
        }
        if over {
            self.finish(out)?;
        }
        if self.measured != self.deal.measured() {
            self.tell_empty(out);
        }
        if let Some(consumer) = self.consumer.as_ref().filter(|_| self.ends) {
            ask(consumer, &mut self.slots);
        }
        if !drained {
            return Ok(SourceStatus::More);
        }
        // Whose end of partition is told by a number that several have cannot be told of alone: now all of them are dry.
        let told = self.slots.all().iter().filter(|slot| slot.told && slot.shares);
        told.for_each(|slot| out.split_drained(slot.split));
        self.slots.all().iter().for_each(|slot| slot.reached.was_dry());
        if self.suspected != self.deal.suspected() {
            self.probe();
        }
        let wait = self.wait;
        self.wait = (wait * 2).min(WAIT.1);
        Ok(self.nothing(wait))
    }

    /// There is nothing just now, or there never will be.
    fn nothing(&self, wait: Duration) -> SourceStatus {
        if self.ends && self.slots.all().iter().all(|slot| slot.stage == Stage::Done) {
            return SourceStatus::End;
        }
        SourceStatus::Idle(wait)
    }

    /// Tells of those that are read dry of several topics' partitions of one number: the client says the number only, but the watch has
    /// seen where each of them ends.
    #[cold]
    fn tell_empty<T>(&mut self, out: &mut SourceBatch<T>) {
        self.measured = self.deal.measured();
        if !self.slots.all().iter().any(|slot| slot.shares) {
            return;
        }
        self.pass_markers();
        for slot in self.slots.all_mut().iter_mut().filter(|slot| slot.shares) {
            if slot.next == slot.reached.seen_end() {
                slot.told = true;
                out.split_drained(slot.split);
            }
        }
    }

    /// Reads the partitions too that were found since and fell to this subtask: from their beginning.
    #[cold]
    fn take_new<T>(&mut self, out: &mut SourceBatch<T>) -> Result<()> {
        let (new, dealt) = self.deal.own(&self.cx, self.dealt);
        self.dealt = dealt;
        for card in new {
            let next = card.oldest.unwrap_or(0);
            tracing::info!(
                operator = %self.cx.uid(),
                topic = &*card.name,
                partition = card.at.partition,
                offset = next,
                "a partition was found while the job ran, and is read from its beginning"
            );
            if let Some(consumer) = self.consumer.as_ref().filter(|_| self.unsettled) {
                opening::keep_found(
                    consumer,
                    &self.settings,
                    (&*card.name, card.at.partition, next),
                    &self.cx,
                );
            }
            let reached = self.settings.progress.start(&card.name, card.at.partition, next);
            let slot = Slot::new(card.name, card.at, next, None, next, reached);
            out.split_started(slot.split);
            self.slots.push(slot);
        }
        self.consumer.as_ref().map_or(Ok(()), |consumer| fetch(consumer, &mut self.slots, self.ends))
    }

    /// Lets go of partitions that were read to their end, and begins with those that waited for them.
    #[cold]
    fn finish<T>(&mut self, out: &mut SourceBatch<T>) -> Result<()> {
        let Some(consumer) = &self.consumer else { return Ok(()) };
        let mut done = TopicPartitionList::new();
        for slot in self.slots.all_mut().iter_mut().filter(|s| s.stage == Stage::Reading && s.next >= s.end) {
            slot.stage = Stage::Done;
            slot.reached.read(slot.next, self.read_settles);
            out.split_finished(slot.split);
            done.add_partition(&slot.topic, slot.partition);
        }
        if done.count() > 0 {
            consumer.incremental_unassign(&done).map_err(assigns_not)?;
        }
        fetch(consumer, &mut self.slots, self.ends)
    }

    /// Has the client fetch anew what it gives nothing of, though the broker has more: it may have lost its turn, or there are holes
    /// up to the end.
    #[cold]
    fn probe(&mut self) {
        self.suspected = self.deal.suspected();
        self.pass_markers();
        let Some(consumer) = &self.consumer else { return };
        for slot in self.slots.all_mut().iter_mut().filter(|slot| slot.stage == Stage::Reading) {
            if let Some(high) = slot.reached.take_suspect().filter(|high| *high > slot.next) {
                slot.probe = Some(high);
                seek(consumer, slot);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn client(&self) -> Option<&BaseConsumer<ClientLog>> {
        self.consumer.as_deref()
    }

    /// As positions are named.
    pub(super) fn split_name(&self, split: SplitId) -> Option<String> {
        self.slots.all().iter().find(|slot| slot.split == split).map(Slot::name)
    }

    /// The offset of the next record of every partition, kept until it is known what became of the checkpoint.
    pub(super) fn positions(&mut self, barrier: Barrier) -> Vec<(String, serde_json::Value)> {
        self.pass_markers();
        let all = self.slots.all();
        self.group.keep(barrier.checkpoint, all.iter().map(|slot| slot.next).collect());
        let mut positions: Vec<_> = all.iter().map(|slot| (slot.name(), slot.position().written())).collect();
        if self.cx.subtask() == 0
            && let Some(pattern) = self.settings.selection.shown_pattern()
        {
            positions.push((PATTERN.to_owned(), pattern.into()));
        }
        positions
    }

    /// What the client has passed over behind the last record, the markers of transactions say, was read too: a position before
    /// them would lag for ever, and point at nothing once they are deleted.
    fn pass_markers(&mut self) {
        let Some(Ok(known)) = self.consumer.as_ref().map(|consumer| consumer.position()) else { return };
        for element in known.elements() {
            if let Offset::Offset(at) = element.offset()
                && let Some(slot) = self.slots.find(|| element.topic(), element.partition())
                && slot.stage == Stage::Reading
                && at > slot.next
            {
                slot.next = at.min(slot.end);
                slot.reached.read(slot.next, self.read_settles);
            }
        }
    }

    /// The offsets of a complete checkpoint, and no others, go to the group.
    pub(super) fn on_notice(&mut self, notice: Notice) {
        let Some(offsets) = self.group.notice(notice) else { return };
        self.unsettled = false;
        self.slots.all().iter().zip(&offsets).for_each(|(slot, offset)| slot.reached.settle(*offset));
        self.settings.firsts.forget(self.cx.uid().as_str(), self.slots.names().take(offsets.len()));
        if let Some(consumer) = &self.consumer {
            self.group.commit(consumer, self.slots.names(), offsets);
        }
    }

    pub(super) fn close(mut self, outcome: Closing) {
        if outcome == Closing::Ended {
            self.settings.firsts.forget(self.cx.uid().as_str(), self.slots.names());
        }
        let Some(consumer) = self.consumer else { return };
        if outcome == Closing::Ended {
            self.group.await_commit(&consumer, || self.slots.names());
        }
        // The watch holds the client, too: it goes first.
        let open = (self.watch, consumer);
        drop_within(format!("the Kafka consumer of {}", who(&self.cx)), open, CLOSE_PATIENCE);
    }
}

/// A record could not be decoded, and it is not its fault.
#[cold]
fn not_decoded(e: TaskError, topic: &str, partition: i32, offset: i64) -> TaskError {
    if !e.cause().is_primary() {
        return e;
    }
    let chain = e.chain();
    let message = format!("cannot decode topic {topic}, partition {partition}, offset {offset}: {chain}");
    if e.domain() == Domain::User { TaskError::user(message) } else { TaskError::external(message) }
}
