//! Kafka: a source and a sink on librdkafka, and a broker in this process for when there is none.
//!
//! ```no_run
//! use weir_connectors::behaviour::Behaviour;
//! use weir_connectors::kafka::{KafkaConfig, KafkaSink, KafkaSource};
//!
//! # fn main() -> Result<(), weir_connectors::kafka::KafkaSetupError> {
//! let kafka = KafkaConfig::embedded()?;
//! let source = KafkaSource::json::<Behaviour>(&kafka).topic("user_behavior");
//! let sink = KafkaSink::json(&kafka, "user_behavior")
//!     .key(|e: &Behaviour| e.user_id.to_string())
//!     .create_topic(4)
//!     .follow(source.progress());
//! # drop(sink);
//! # Ok(())
//! # }
//! ```

mod admin;
pub mod assign;
mod begin;
mod client;
mod config;
mod deal;
mod embedded;
mod ends;
mod errors;
mod exactly_once;
mod fetching;
mod firsts;
mod footprint;
mod group;
mod lag;
mod lost;
mod opening;
mod partition;
mod patience;
mod progress;
mod properties;
mod reader;
mod recipe;
mod record;
mod restored;
mod secrets;
mod selection;
mod sink;
mod slots;
mod source;
mod topic;
mod watch;
mod window;
mod writer;

pub use self::config::{KafkaConfig, KafkaSetupError};
pub use self::embedded::EmbeddedBroker;
pub use self::ends::Stop;
pub use self::exactly_once::ExactlyOnce;
pub use self::partition::{murmur2, partition_of};
pub use self::progress::Progress;
pub use self::recipe::Headers;
#[doc(hidden)]
pub use self::record::{FromMessage, Taken};
pub use self::record::{KafkaRecord, Records};
pub use self::sink::KafkaSink;
pub use self::source::{KafkaSource, Start};

#[cfg(test)]
mod tests;
