//! Which topics and partitions a source reads: named, of a pattern, or some partitions only; and what of it is there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaResult;
use rdkafka::metadata::Metadata;
use regex::Regex;
use weir_engine::{OperatorContext, Result, TaskError};

use super::client::{ClientLog, SLICE, hear, no_topic, partitions_of_topic};
use super::config::KafkaConfig;
use super::deal::Found;
use super::restored::{self, Restored};
use super::topic;

/// What a source reads.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    /// By name, in the order in which they were named.
    topics: Vec<String>,
    /// Only these partitions of a topic.
    only: BTreeMap<String, BTreeSet<i32>>,
    /// And the topics whose whole name matches.
    pattern: Option<String>,
}

impl Selection {
    pub(super) fn topic(&mut self, topic: String) {
        if !self.topics.contains(&topic) {
            self.topics.push(topic);
        }
    }

    pub(super) fn partitions(&mut self, topic: String, partitions: impl IntoIterator<Item = i32>) {
        self.only.entry(topic.clone()).or_default().extend(partitions);
        self.topic(topic);
    }

    pub(super) fn pattern(&mut self, pattern: String) {
        self.pattern = Some(match self.pattern.take() {
            Some(before) => format!("{before}|{pattern}"),
            None => pattern,
        });
    }

    /// True when it may be more than one topic.
    pub(super) fn may_be_several(&self) -> bool {
        self.topics.len() > 1 || self.pattern.is_some()
    }

    /// The pattern, for whoever has to know whether there was one.
    pub(super) fn shown_pattern(&self) -> Option<&str> {
        self.pattern.as_deref()
    }

    /// Refuses what cannot be before a broker is asked.
    pub(super) fn check(&self) -> Result<()> {
        if self.topics.is_empty() && self.pattern.is_none() {
            return Err(TaskError::user("the Kafka source reads no topic: name one with .topic(…)"));
        }
        self.topics.iter().try_for_each(|name| topic::check_name(name))?;
        if let Some((topic, _)) = self.only.iter().find(|(_, partitions)| partitions.is_empty()) {
            let message = format!("KafkaSource::partitions names topic {topic} and no partition of it");
            return Err(TaskError::user(message));
        }
        self.regex().map(drop)
    }

    /// The pattern, for whole names.
    fn regex(&self) -> Result<Option<Regex>> {
        let Some(pattern) = &self.pattern else { return Ok(None) };
        let regex = restored::regex(pattern).map_err(|e| {
            let message = format!("{pattern:?} is no pattern for topics (the regex crate's syntax)");
            TaskError::user(message).caused_by(e)
        })?;
        Ok(Some(regex))
    }

    /// Finds topics and partitions as [`Selection::find_once`] does, among them all that the checkpoint stands in: a broker whose
    /// metadata is behind does not show what was added last, and a position that is not carried on is lost.
    ///
    /// *Blocking*: up to the configured patience for each topic, and once more; hears cancellation.
    ///
    /// # Errors
    /// When a partition of the checkpoint is not shown, but for those of whole topics of the pattern: these may be deleted.
    pub(super) fn find(
        &self,
        client: &BaseConsumer<ClientLog>,
        config: &KafkaConfig,
        may_be_none: bool,
        restored: &Restored,
        cx: &OperatorContext,
    ) -> Result<Found> {
        let patience = config.start_patience();
        let deadline = Instant::now() + patience;
        loop {
            let (found, untold) = self.find_once(client, config, may_be_none, cx)?;
            let regex = self.regex()?;
            let unseen: Vec<_> = restored
                .not_among(&found)
                .filter(|(topic, partition, _)| self.reads(topic, *partition, regex.as_ref()))
                .collect();
            if unseen.is_empty() && untold.is_empty() {
                return Ok(found);
            }
            if Instant::now() >= deadline {
                let is_there = |topic: &str| {
                    self.topics.iter().chain(&untold).any(|t| t == topic)
                        || found.iter().any(|(t, _)| t == topic)
                };
                if let Some((topic, partition, position)) = unseen.iter().find(|(topic, ..)| is_there(topic))
                {
                    return Err(TaskError::external(format!(
                        "topic {topic}, partition {partition}: the checkpoint stands at offset {}, and Kafka at {} does not show that \
                         partition after {patience:?}; where its metadata is behind, another start finds it; if the topic was deleted or \
                         made anew with fewer partitions, begin anew, without a checkpoint (StartFrom::Fresh), or leave the topic out",
                        position.next,
                        config.broker_list()
                    )));
                }
                for (topic, partition, position) in unseen {
                    let offset = position.next;
                    tracing::warn!(operator = %cx.uid(), topic, partition, offset, "a topic of the checkpoint is there no more");
                }
                for topic in untold {
                    tracing::warn!(operator = %cx.uid(), topic, "a topic of the pattern cannot be read: its brokers do not tell about it");
                }
                return Ok(found);
            }
            cx.wait(Duration::from_millis(100))?;
        }
    }

    /// True when the partition is read, if it is there.
    fn reads(&self, topic: &str, partition: i32, regex: Option<&Regex>) -> bool {
        match self.only.get(topic) {
            Some(only) => only.contains(&partition),
            None => self.topics.iter().any(|t| t == topic) || regex.is_some_and(|r| fits(r, topic)),
        }
    }

    /// Finds topics and partitions: those named first, in their order, then those of the pattern, by name; and names those of the pattern
    /// of which the brokers do not tell.
    ///
    /// *Blocking*: up to the configured patience for each topic; hears cancellation.
    fn find_once(
        &self,
        client: &BaseConsumer<ClientLog>,
        config: &KafkaConfig,
        may_be_none: bool,
        cx: &OperatorContext,
    ) -> Result<(Found, Vec<String>)> {
        let (mut found, mut untold) = (Found::new(), Vec::new());
        for topic in &self.topics {
            let count = partitions_of_topic(client, config, topic, true, cx)?
                .ok_or_else(|| no_topic(config, topic, "create it, or name another"))?;
            let all = 0..count as i32;
            let partitions = match self.only.get(topic) {
                None => all.collect(),
                Some(only) => match only.iter().find(|p| !all.contains(p)) {
                    None => only.iter().copied().collect(),
                    Some(p) => {
                        let message = format!(
                            "KafkaSource::partitions names partition {p} of topic {topic}, which has {count}"
                        );
                        return Err(TaskError::user(message));
                    }
                },
            };
            found.push((topic.clone(), partitions));
        }
        if let Some(regex) = self.regex()? {
            untold = self.find_pattern(&regex, &mut found, client, config, may_be_none, cx)?;
        }
        Ok((found, untold))
    }

    fn find_pattern(
        &self,
        regex: &Regex,
        found: &mut Found,
        client: &BaseConsumer<ClientLog>,
        config: &KafkaConfig,
        may_be_none: bool,
        cx: &OperatorContext,
    ) -> Result<Vec<String>> {
        let patience = config.start_patience();
        let (brokers, deadline) = (config.broker_list(), Instant::now() + patience);
        loop {
            let slice = deadline.saturating_duration_since(Instant::now()).clamp(SLICE / 4, SLICE);
            let answer = client.fetch_metadata(None, slice);
            hear(client);
            let over = Instant::now() >= deadline;
            match answer {
                Ok(metadata) => {
                    let (matching, untold) = self.matching(regex, &metadata);
                    let none = matching.is_empty() && found.is_empty();
                    if !none || may_be_none {
                        found.extend(matching);
                        return Ok(untold);
                    }
                    if over {
                        let pattern = regex.as_str();
                        return Err(TaskError::external(format!(
                            "Kafka at {brokers} has no topic that matches {pattern} after {patience:?}: create one, change the \
                             pattern, or wait for one with KafkaSource::discover_every"
                        )));
                    }
                }
                Err(e) if over => {
                    let reason = client.context().last_reason();
                    let message =
                        format!("Kafka at {brokers} did not tell its topics within {patience:?} ({reason})");
                    return Err(TaskError::external(message).caused_by(e));
                }
                Err(_) => {}
            }
            cx.wait(Duration::from_millis(100))?;
        }
    }

    /// The topics of the pattern that are there and not named, in the order of their names, and those of which there is nothing to be
    /// heard just now. Kafka's own are none.
    fn matching(&self, regex: &Regex, metadata: &Metadata) -> (Found, Vec<String>) {
        let (mut found, mut untold) = (Found::new(), Vec::new());
        let named = |name: &str| self.topics.iter().any(|named| named == name);
        for topic in metadata.topics().iter().filter(|t| fits(regex, t.name()) && !named(t.name())) {
            if topic.error().is_none() && !topic.partitions().is_empty() {
                found.push((topic.name().to_owned(), (0..topic.partitions().len() as i32).collect()));
            } else {
                untold.push(topic.name().to_owned());
            }
        }
        found.sort();
        (found, untold)
    }

    /// Looks what there is now; what is not there, or not told, is left out.
    ///
    /// *Blocking*: up to `patience` for each topic.
    pub(super) fn look<C: ClientContext + ConsumerContext>(
        &self,
        client: &BaseConsumer<C>,
        patience: Duration,
    ) -> KafkaResult<Found> {
        let mut found = Found::new();
        for topic in self.topics.iter().filter(|topic| !self.only.contains_key(*topic)) {
            let metadata = client.fetch_metadata(Some(topic), patience)?;
            let of = metadata.topics().iter().filter(|t| t.error().is_none() && t.name() == topic);
            found.extend(of.map(|t| (topic.clone(), (0..t.partitions().len() as i32).collect())));
        }
        if let Ok(Some(regex)) = self.regex() {
            let metadata = client.fetch_metadata(None, patience)?;
            found.extend(self.matching(&regex, &metadata).0);
        }
        Ok(found)
    }
}

/// True for topics of the pattern; Kafka's own are none.
fn fits(regex: &Regex, topic: &str) -> bool {
    !topic.starts_with("__") && regex.is_match(topic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused_before_a_broker_is_asked() {
        let said = |make: fn(&mut Selection)| {
            let mut selection = Selection::default();
            make(&mut selection);
            selection.check().map_err(|e| e.chain())
        };
        assert!(said(|_| {}).unwrap_err().contains("reads no topic"));
        assert!(said(|s| s.topic("a b".into())).is_err());
        assert!(said(|s| s.partitions("t".into(), [])).unwrap_err().contains("no partition of it"));
        let e = said(|s| s.pattern("orders-(".into())).unwrap_err();
        assert!(e.starts_with("\"orders-(\" is no pattern for topics"), "{e}");
        assert!(said(|s| s.pattern("orders-\\d+".into())).is_ok());
        assert!(said(|s| s.partitions("t".into(), [3, 0])).is_ok());
    }

    #[test]
    fn a_pattern_is_for_whole_names() {
        let mut selection = Selection::default();
        selection.pattern("a|b.*".into());
        selection.pattern("c".into());
        let regex = selection.regex().unwrap().unwrap();
        let fits = ["a", "ab", "xa", "b", "bc", "xb", "c", "cc"].map(|name| regex.is_match(name));
        assert_eq!(fits, [true, false, false, true, true, false, true, false]);
    }
}
