//! What a job author imports.

pub use crate::behaviour::{Action, Behaviour, BehaviourCsv};
pub use crate::file::{FileSink, FileSource};
pub use crate::format::{Debezium, Decoder, Encoder};
pub use crate::generator::Generator;
pub use crate::kafka::{KafkaConfig, KafkaSink, KafkaSource, Start, Stop};
pub use crate::memory::{MemorySink, MemorySource};
pub use crate::print::PrintSink;
