//! A whole Kafka record as a value, and how sources make values of messages: of the payload alone, or of all of it.
// HOT: nothing is looked at that the value does not need.

use std::sync::Arc;

use rdkafka::message::{BorrowedMessage, Headers as _, Message};
use weir_engine::memory::Footprint;
use weir_engine::{OperatorContext, TaskError};

use super::recipe::Headers;
use crate::format::{Decoder, Encoder};

/// A Kafka record as it is: key, payload and headers, and where it was. Its time is the stream record's.
///
/// ```no_run
/// use weir_connectors::kafka::{ExactlyOnce, KafkaConfig, KafkaSink, KafkaSource};
/// let kafka = KafkaConfig::brokers("kafka-1:9092");
/// let source = KafkaSource::records(&kafka).topic("orders");
/// let sink = KafkaSink::records(&kafka, "orders-copy").exactly_once(ExactlyOnce::named("orders-copy"));
/// # drop((source, sink));
/// ```
#[derive(Clone, Debug)]
pub struct KafkaRecord {
    /// The topic it was read from.
    pub topic: Arc<str>,
    /// The partition it was read from.
    pub partition: i32,
    /// Its offset there.
    pub offset: i64,
    /// Its key, if it has one.
    pub key: Option<Vec<u8>>,
    /// Its payload; none for a tombstone.
    pub payload: Option<Vec<u8>>,
    /// Its headers, in their order.
    pub headers: Headers,
}

/// The format of whole records: [`KafkaRecord`]s in, and out again as they were.
#[derive(Clone, Debug, Default)]
pub struct Records {
    topic: Option<Arc<str>>,
}

impl Encoder<KafkaRecord> for Records {
    fn encode(&mut self, record: &KafkaRecord, out: &mut Vec<u8>) -> Result<(), String> {
        out.extend_from_slice(record.payload.as_deref().unwrap_or_default());
        Ok(())
    }
}

/// What a message is to a source.
#[derive(Debug)]
pub enum Taken<T> {
    /// A value.
    Value(T),
    /// No value, and why not.
    Bad(String),
    /// A message without a payload, for a decoder of payloads.
    Tombstone,
    /// No value, and the message is not at fault.
    Failed(TaskError),
}

/// What makes values of messages: every [`Decoder`], of their payloads, and [`Records`], of all of them.
pub trait FromMessage<T>: Clone + Send + 'static {
    /// Called once when the source opens.
    #[doc(hidden)]
    fn begin(&mut self, cx: &OperatorContext) -> Result<(), TaskError> {
        let _ = cx;
        Ok(())
    }

    /// What it takes in memory and threads.
    #[doc(hidden)]
    fn takes(&self) -> Footprint {
        Footprint::none()
    }

    /// Makes one. HOT: no allocation that the value does not need.
    #[doc(hidden)]
    fn take(&mut self, message: &BorrowedMessage<'_>) -> Taken<T>;
}

impl<T, D: Decoder<T>> FromMessage<T> for D {
    fn begin(&mut self, cx: &OperatorContext) -> Result<(), TaskError> {
        self.open(cx)
    }

    fn takes(&self) -> Footprint {
        self.footprint()
    }

    #[inline]
    fn take(&mut self, message: &BorrowedMessage<'_>) -> Taken<T> {
        match message.payload().map(|payload| self.decode(payload)) {
            Some(Ok(value)) => Taken::Value(value),
            Some(Err(reason)) => match self.outage() {
                None => Taken::Bad(reason),
                Some(e) => Taken::Failed(e),
            },
            None => Taken::Tombstone,
        }
    }
}

impl FromMessage<KafkaRecord> for Records {
    fn take(&mut self, message: &BorrowedMessage<'_>) -> Taken<KafkaRecord> {
        let topic = match &self.topic {
            Some(topic) if **topic == *message.topic() => topic.clone(),
            _ => self.topic.insert(message.topic().into()).clone(),
        };
        let mut headers = Headers::default();
        if let Some(theirs) = message.headers() {
            // The client library panics at a name that is not UTF-8, which other clients may write: that is one bad record and not
            // a job that can never pass it.
            let read = std::panic::AssertUnwindSafe(|| {
                let mut headers = Headers::default();
                theirs.iter().for_each(|header| headers.add(header.key, header.value));
                headers
            });
            match std::panic::catch_unwind(read) {
                Ok(read) => headers = read,
                Err(_) => return Taken::Bad("the name of a header is not UTF-8".to_owned()),
            }
        }
        Taken::Value(KafkaRecord {
            topic,
            partition: message.partition(),
            offset: message.offset(),
            key: message.key().map(<[u8]>::to_vec),
            payload: message.payload().map(<[u8]>::to_vec),
            headers,
        })
    }
}
