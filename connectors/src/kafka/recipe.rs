//! How a sink makes a Kafka record of a value: key, partition, headers, payload or none.
// HOT: per record one encode into buffers that are kept.

use std::sync::Arc;

use rdkafka::message::{Header, OwnedHeaders};
use weir_engine::{DeadLetter, OperatorContext, Result, TaskError};

use super::exactly_once::{push_header, take_header};
use super::partition::partition_of;
use crate::format::Encoder;

type KeyOf<T> = Arc<dyn Fn(&T, &mut Vec<u8>) -> bool + Send + Sync>;
type HeadersOf<T> = Arc<dyn Fn(&T, &mut Headers) + Send + Sync>;
type PartitionOf<T> = Arc<dyn Fn(&T) -> i32 + Send + Sync>;
type TombstoneIf<T> = Arc<dyn Fn(&T) -> bool + Send + Sync>;
type Rejects = Arc<dyn Fn(DeadLetter) + Send + Sync>;

/// The headers of one record, as a sink's closure adds them.
///
/// ```
/// use weir_connectors::kafka::{KafkaConfig, KafkaSink};
/// let kafka = KafkaConfig::brokers("kafka-1:9092");
/// let sink = KafkaSink::<Vec<u8>, _>::bytes(&kafka, "t").headers(|_, headers| headers.add("source", Some(b"weir")));
/// # drop(sink);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Headers(Vec<u8>);

impl Headers {
    /// Adds a header; names may come more than once, and their order is kept.
    pub fn add(&mut self, name: &str, value: Option<&[u8]>) {
        push_header(&mut self.0, name, value);
    }

    /// The headers in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&[u8]>)> {
        let mut left = &self.0[..];
        std::iter::from_fn(move || take_header(&mut left))
    }
}

/// The recipe, and the record at hand.
pub(super) struct Recipe<T> {
    key_of: Option<KeyOf<T>>,
    headers_of: Option<HeadersOf<T>>,
    partition_of: Option<PartitionOf<T>>,
    tombstone_if: Option<TombstoneIf<T>>,
    rejects: Option<Rejects>,
    key: Vec<u8>,
    payload: Vec<u8>,
    headers: Headers,
    has_key: bool,
    is_tombstone: bool,
}

impl<T> Default for Recipe<T> {
    fn default() -> Self {
        Recipe {
            key_of: None,
            headers_of: None,
            partition_of: None,
            tombstone_if: None,
            rejects: None,
            key: Vec::new(),
            payload: Vec::new(),
            headers: Headers::default(),
            has_key: false,
            is_tombstone: false,
        }
    }
}

impl<T> Clone for Recipe<T> {
    fn clone(&self) -> Self {
        Recipe {
            key_of: self.key_of.clone(),
            headers_of: self.headers_of.clone(),
            partition_of: self.partition_of.clone(),
            tombstone_if: self.tombstone_if.clone(),
            rejects: self.rejects.clone(),
            ..Recipe::default()
        }
    }
}

impl<T> Recipe<T> {
    pub(super) fn set_key(&mut self, key: impl Fn(&T, &mut Vec<u8>) -> bool + Send + Sync + 'static) {
        self.key_of = Some(Arc::new(key));
    }

    pub(super) fn set_headers(&mut self, headers: impl Fn(&T, &mut Headers) + Send + Sync + 'static) {
        self.headers_of = Some(Arc::new(headers));
    }

    pub(super) fn set_partition(&mut self, partition: impl Fn(&T) -> i32 + Send + Sync + 'static) {
        self.partition_of = Some(Arc::new(partition));
    }

    pub(super) fn set_tombstone(&mut self, tombstone: impl Fn(&T) -> bool + Send + Sync + 'static) {
        self.tombstone_if = Some(Arc::new(tombstone));
    }

    pub(super) fn set_rejects(&mut self, rejects: impl Fn(DeadLetter) + Send + Sync + 'static) {
        self.rejects = Some(Arc::new(rejects));
    }

    /// The record at hand cannot be written: it becomes a dead letter of the sink of `cx`, if somebody takes these.
    ///
    /// # Errors
    /// When nobody does.
    #[cold]
    pub(super) fn reject(&self, topic: &str, reason: String, cx: &OperatorContext) -> Result<()> {
        let Some(rejects) = &self.rejects else {
            return Err(TaskError::user(format!("a record for Kafka topic {topic}: {reason}")));
        };
        cx.counter("dead_letters").add(1);
        let letter = DeadLetter::new(topic, -1, -1, reason, &self.payload);
        rejects(DeadLetter { uid: cx.uid().to_string(), ..letter });
        Ok(())
    }

    pub(super) fn is_keyed(&self) -> bool {
        self.key_of.is_some()
    }

    /// Makes `value` the record at hand, or says why it is none.
    #[inline]
    pub(super) fn make<E: Encoder<T>>(
        &mut self,
        value: &T,
        encoder: &mut E,
    ) -> std::result::Result<(), String> {
        self.payload.clear();
        self.is_tombstone = self.tombstone_if.as_ref().is_some_and(|is| is(value));
        if !self.is_tombstone {
            encoder.encode(value, &mut self.payload)?;
        }
        self.key.clear();
        self.has_key = self.key_of.as_ref().is_some_and(|key| key(value, &mut self.key));
        if let Some(headers) = &self.headers_of {
            self.headers.0.clear();
            headers(value, &mut self.headers);
        }
        Ok(())
    }

    /// The partition of the record at hand: the one that was said, else the key's, else the next in turn.
    ///
    /// # Errors
    /// When the one that was said is not there.
    #[inline]
    pub(super) fn partition(&self, value: &T, partitions: i32, next: &mut i32) -> Result<i32> {
        if let Some(of) = &self.partition_of {
            let partition = of(value);
            if (0..partitions).contains(&partition) {
                return Ok(partition);
            }
            return Err(TaskError::user(format!(
                "a record is to go to partition {partition}, and the topic has {partitions}: create it with more, or leave \
                 KafkaSink::partition out"
            )));
        }
        if self.has_key {
            return Ok(partition_of(&self.key, partitions));
        }
        let turn = *next;
        *next = (turn + 1) % partitions;
        Ok(turn)
    }

    pub(super) fn key(&self) -> Option<&[u8]> {
        self.has_key.then_some(&self.key[..])
    }

    /// None for a tombstone.
    pub(super) fn payload(&self) -> Option<&[u8]> {
        (!self.is_tombstone).then_some(&self.payload[..])
    }

    /// One after the other.
    pub(super) fn headers(&self) -> &[u8] {
        &self.headers.0
    }
}

/// Headers as the client wants them; none when there are none.
pub(super) fn owned(mut headers: &[u8]) -> Option<OwnedHeaders> {
    let (key, value) = take_header(&mut headers)?;
    let mut owned = OwnedHeaders::new().insert(Header { key, value });
    while let Some((key, value)) = take_header(&mut headers) {
        owned = owned.insert(Header { key, value });
    }
    Some(owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Bytes;

    #[test]
    fn a_record_is_made_of_its_value_alone() {
        let mut recipe = Recipe::<Vec<u8>>::default();
        recipe.set_key(|value, out| {
            out.extend(value.iter().take(1));
            value.len() > 1
        });
        recipe.set_headers(|value, headers| headers.add("len", Some(&[value.len() as u8])));
        recipe.set_tombstone(|value| value.len() == 3);
        let mut next = 0;
        let mut made = |value: &[u8]| {
            recipe.make(&value.to_vec(), &mut Bytes).unwrap();
            let partition = recipe.partition(&value.to_vec(), 3, &mut next).unwrap();
            let headers: Vec<_> = recipe.headers.iter().map(|(n, v)| (n.to_owned(), v.unwrap()[0])).collect();
            assert_eq!(headers, [("len".to_owned(), value.len() as u8)]);
            (recipe.key().map(<[u8]>::to_vec), recipe.payload().map(<[u8]>::to_vec), partition)
        };
        assert_eq!(made(b"ab"), (Some(b"a".to_vec()), Some(b"ab".to_vec()), partition_of(b"a", 3)));
        assert_eq!(made(b"x"), (None, Some(b"x".to_vec()), 0));
        assert_eq!(made(b"abc"), (Some(b"a".to_vec()), None, partition_of(b"a", 3)), "a tombstone");
        assert_eq!(made(b"y"), (None, Some(b"y".to_vec()), 1));
    }

    #[test]
    fn a_partition_that_is_said_must_be_there() {
        let mut recipe = Recipe::<i32>::default();
        recipe.set_partition(|value| *value);
        assert_eq!(recipe.partition(&2, 3, &mut 0).unwrap(), 2);
        let e = recipe.partition(&3, 3, &mut 0).unwrap_err().to_string();
        assert!(e.starts_with("a record is to go to partition 3, and the topic has 3: "), "{e}");
        assert!(recipe.partition(&-1, 3, &mut 0).is_err());
    }
}
