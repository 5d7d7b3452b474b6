//! Where Weir's streams come from and go to: Kafka, files, a seeded generator, vectors, the terminal.
//!
//! | from | to |
//! |---|---|
//! | [`kafka::KafkaSource`] | [`kafka::KafkaSink`] |
//! | [`file::FileSource`] | [`file::FileSink`] |
//! | [`generator::Generator`], [`behaviour`] | [`print::PrintSink`] |
//! | [`memory::MemorySource`] | [`memory::MemorySink`] |
//! | | `http::HttpSink`, `elastic::ElasticSink` (with the feature `http`) |
//!
//! **What every source here promises.** It says at the start, and with names, what keeps it from working. It reads with
//! bounded memory. A record that does not decode goes to the dead-letter output with the place it came from and a reason;
//! nothing is skipped in silence. Every partition or file is a split with a watermark of its own, and its number does not
//! depend on the parallelism. Event times are milliseconds since the Unix epoch. Where it stands is in the job's
//! checkpoints: a life that begins from one reads every record after it once, whatever its parallelism.
//!
//! **What every sink here promises.** When `flush` returns, all that was written is where it belongs. A wait that may be
//! long hears cancellation. [`file::FileSink`] writes exactly once; the others write a record again when it is read again
//! after a restart.
//!
//! Bytes become values through [`format::Decoder`] and back through [`format::Encoder`].

pub mod behaviour;
#[cfg(feature = "http")]
pub mod elastic;
pub mod file;
pub mod format;
pub mod generator;
#[cfg(feature = "http")]
pub mod http;
pub mod kafka;
pub mod memory;
pub mod prelude;
pub mod print;
pub mod random;
mod rate;
mod stripes;
#[cfg(feature = "web")]
mod web;
