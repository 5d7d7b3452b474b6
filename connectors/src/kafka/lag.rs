//! What a source's watch looks at: partitions that are new, how far each is behind, and which have stopped for no reason.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::{describe_gauge, gauge};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::{Offset, TopicPartitionList};
use weir_engine::{Counter, OperatorContext};

use super::client::ClientLog;
use super::deal::{Card, Deal};
use super::progress::Reached;
use super::source::Settings;
use super::watch::Look;

/// How long a broker may take with an answer.
const ANSWER: Duration = Duration::from_secs(2);
/// How often lag is looked at, at least.
const EVERY: Duration = Duration::from_secs(10);
/// The same for a source of several topics.
const EVERY_OF_SEVERAL: Duration = Duration::from_secs(1);

/// What became of a partition since it was looked at last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Fine,
    /// It has not moved for long, though the client was read dry and the broker has more: have the client fetch it anew.
    Suspect,
    /// Nor has that helped.
    Stalled,
}

/// Judges one partition. Pure but for the time it is given.
#[derive(Debug)]
struct Judge {
    next: i64,
    /// How often the client had been read dry when this was looked at last.
    dry: u64,
    since: Instant,
    suspected: bool,
}

impl Judge {
    fn new(next: i64, dry: u64, now: Instant) -> Judge {
        Judge { next, dry, since: now, suspected: false }
    }

    /// `answered` is an offset up to which it is known that there is nothing to read.
    fn look(&mut self, seen: Seen, stall_after: Duration, now: Instant) -> Verdict {
        let fine =
            seen.next != self.next || seen.high <= seen.next.max(seen.answered) || seen.dry == self.dry;
        if fine {
            // A reader that is held back by what comes after it does not ask the client: nothing is wrong with that.
            *self = Judge::new(seen.next, seen.dry, now);
            return Verdict::Fine;
        }
        self.dry = seen.dry;
        if now.saturating_duration_since(self.since) < stall_after {
            return Verdict::Fine;
        }
        self.since = now;
        if std::mem::replace(&mut self.suspected, true) { Verdict::Stalled } else { Verdict::Suspect }
    }
}

/// A partition at one moment.
#[derive(Clone, Copy, Debug)]
struct Seen {
    next: i64,
    high: i64,
    answered: i64,
    dry: u64,
}

/// How many offsets there are from one up to the end.
fn behind(end: i64, offset: i64) -> f64 {
    end.saturating_sub(offset).max(0) as f64
}

/// What a source's watch remembers.
pub(super) struct Lag {
    uid: String,
    settings: Settings,
    consumer: Arc<BaseConsumer<ClientLog>>,
    deal: Arc<Deal>,
    judges: BTreeMap<(Arc<str>, i32), Judge>,
    stalled: Counter,
    discovered: Instant,
}

impl Lag {
    pub(super) fn new(
        settings: &Settings,
        consumer: Arc<BaseConsumer<ClientLog>>,
        deal: Arc<Deal>,
        cx: &OperatorContext,
    ) -> Lag {
        describe_gauge!(
            "weir_kafka_lag_records",
            "Offsets between the next record to be read of a partition and its end, as the source is to read it"
        );
        describe_gauge!(
            "weir_kafka_checkpoint_lag_records",
            "Offsets between where a partition would be read on after a restart and its end"
        );
        Lag {
            uid: cx.uid().to_string(),
            settings: settings.clone(),
            consumer,
            deal,
            judges: BTreeMap::new(),
            stalled: cx.counter("kafka_stalls"),
            discovered: Instant::now(),
        }
    }

    /// How often to look.
    pub(super) fn every(settings: &Settings) -> Duration {
        // What is read dry of several topics is known by this alone, and holds back event time until then.
        let most = if settings.selection.may_be_several() { EVERY_OF_SEVERAL } else { EVERY };
        let stalls = (settings.stall_after / 3).max(Duration::from_millis(50)).min(most);
        settings.discovers().map_or(stalls, |every| every.min(stalls))
    }

    /// Deals partitions that are new.
    fn discover(&mut self) -> KafkaResult<()> {
        let found = self.settings.selection.look(&self.consumer, ANSWER)?;
        let mut new = Vec::new();
        for (topic, partition) in self.deal.unknown(&found) {
            // One without a leader yet is found the next time.
            if let Ok((low, _)) = self.consumer.fetch_watermarks(&topic, partition, ANSWER) {
                new.push((topic, partition, Some(low)));
            }
        }
        self.deal.add(new);
        Ok(())
    }

    /// Asks where partitions end and compares that with where their readers stand.
    fn measure(&mut self) -> KafkaResult<()> {
        let cards = self.deal.all();
        // In one request for each broker: the library takes this for a time, and the brokers for the end.
        let mut asked = TopicPartitionList::with_capacity(cards.len());
        for Card { name, at, .. } in &cards {
            asked.add_partition_offset(name, at.partition, Offset::End)?;
        }
        let before: Vec<_> = cards
            .iter()
            .map(|card| self.settings.progress.partition(&card.name, card.at.partition))
            .map(|reached| reached.map(|r| (r.next(), r.settled(), r.dry(), r)))
            .collect();
        let answer = self.consumer.offsets_for_times(asked, ANSWER)?;
        let mut suspects = false;
        for (card, before) in cards.iter().zip(before) {
            let (topic, partition) = (&card.name, card.at.partition);
            let Some((next, settled, dry, reached)) = before else { continue };
            let Some(element) = answer.find_partition(topic, partition) else { continue };
            let (Offset::Offset(high), Ok(())) = (element.offset(), element.error()) else { continue };
            reached.see_end(high);
            let high = high.min(reached.end());
            let labels = [
                ("operator", self.uid.clone()),
                ("topic", topic.to_string()),
                ("partition", partition.to_string()),
            ];
            gauge!("weir_kafka_lag_records", &labels).set(behind(high, next));
            gauge!("weir_kafka_checkpoint_lag_records", &labels).set(behind(high, settled));
            let seen = Seen { next, high, answered: reached.answered(), dry };
            suspects |= self.judge(topic, partition, seen, &reached);
        }
        self.deal.measure();
        if suspects {
            self.deal.suspect();
        }
        Ok(())
    }

    /// True when the partition is to be fetched anew.
    fn judge(&mut self, topic: &Arc<str>, partition: i32, seen: Seen, reached: &Reached) -> bool {
        let now = Instant::now();
        let judge = self.judges.entry((Arc::clone(topic), partition));
        let judge = judge.or_insert_with(|| Judge::new(seen.next, seen.dry, now));
        let verdict = judge.look(seen, self.settings.stall_after, now);
        if verdict == Verdict::Stalled {
            self.stalled.add(1);
            tracing::warn!(
                operator = &self.uid[..],
                topic = &**topic,
                partition,
                offset = seen.next,
                end = seen.high,
                "a Kafka partition has stopped: nothing comes of it, though the broker has more and the source asks for it; it is \
                 fetched anew. If that does not help, look at the partition's leader, and restart the job"
            );
        }
        if verdict != Verdict::Fine {
            reached.suspect(seen.high);
        }
        verdict != Verdict::Fine
    }
}

impl Look for Lag {
    fn look(&mut self) -> Duration {
        let mut discovered = Ok(());
        if let Some(every) = self.settings.discovers()
            && self.discovered.elapsed() >= every
        {
            discovered = self.discover();
            self.discovered = Instant::now();
        }
        // A topic that cannot be looked for hides nothing of the others.
        for said in [discovered, self.measure()] {
            if let Err(e) = said {
                // Brokers that are away are told of by the client.
                tracing::debug!(operator = &self.uid[..], "Kafka does not say what there is: {e}");
            }
        }
        Self::every(&self.settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_does_not_move_while_it_is_asked_for_has_stalled() {
        let (start, after) = (Instant::now(), Duration::from_secs(30));
        let at = |s: u64| start + Duration::from_secs(s);
        let seen = |next, dry| Seen { next, high: 100, answered: 0, dry };
        let mut judge = Judge::new(50, 1, start);
        assert_eq!(judge.look(seen(50, 2), after, at(29)), Verdict::Fine, "not for long enough");
        assert_eq!(judge.look(seen(50, 3), after, at(30)), Verdict::Suspect);
        assert_eq!(
            judge.look(seen(50, 4), after, at(40)),
            Verdict::Fine,
            "what was done about it takes its time"
        );
        assert_eq!(judge.look(seen(50, 5), after, at(60)), Verdict::Stalled);
        assert_eq!(judge.look(seen(50, 6), after, at(90)), Verdict::Stalled, "again and again");
        assert_eq!(judge.look(seen(51, 7), after, at(120)), Verdict::Fine, "it moves");
        assert_eq!(judge.look(seen(51, 8), after, at(151)), Verdict::Suspect);
        let read = Seen { answered: 100, ..seen(51, 9) };
        assert_eq!(judge.look(read, after, at(200)), Verdict::Fine, "there is nothing but a hole");
    }

    #[test]
    fn a_reader_that_does_not_ask_or_has_read_all_is_fine() {
        let (start, after) = (Instant::now(), Duration::from_secs(30));
        for (next, dry) in [(50, 1), (100, 9)] {
            let mut judge = Judge::new(next, 1, start);
            for minute in 0..100 {
                let seen = Seen { next, high: 100, answered: 0, dry };
                assert_eq!(judge.look(seen, after, start + Duration::from_secs(60 * minute)), Verdict::Fine);
            }
        }
    }
}
