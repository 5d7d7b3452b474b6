//! How bytes become values and values bytes: a decoder answers with a value or with the reason why not.
//!
//! A decoder works on the client's own buffer: nothing is copied before it. One copy of a decoder serves one subtask, so
//! it may keep scratch space. A closure is a decoder too.

#[cfg(feature = "avro")]
mod avro;
mod csv;
mod debezium;
mod json;
mod plain;
#[cfg(feature = "protobuf")]
mod protobuf;
#[cfg(feature = "registry")]
pub(crate) mod registry;

use weir_engine::memory::Footprint;
use weir_engine::{OperatorContext, TaskError};

#[cfg(feature = "avro")]
pub use self::avro::{AvroDecoder, AvroEncoder};
pub use self::csv::Csv;
pub use self::debezium::{Change, Changed, Debezium, Envelope, Origin};
pub use self::json::Json;
pub use self::plain::{Bytes, Utf8};
#[cfg(feature = "protobuf")]
pub use self::protobuf::{DynamicDecoder, ProtobufDecoder, ProtobufEncoder};
#[cfg(feature = "registry")]
pub use self::registry::{Reference, SchemaRegistry};

/// Turns the bytes of one record into a value. `Clone` is for the recipe: one copy per subtask.
///
/// # Examples
///
/// ```
/// use weir_connectors::format::Decoder;
/// let mut first_byte = |payload: &[u8]| payload.first().copied().ok_or_else(|| "the record is empty".to_owned());
/// assert_eq!(first_byte.decode(b"x"), Ok(b'x'));
/// assert!(first_byte.decode(b"").is_err());
/// ```
pub trait Decoder<T>: Clone + Send + 'static {
    /// Called once by the source, when it opens: for decoders that ask somebody, such as a schema registry. May block.
    ///
    /// # Errors
    /// Whatever keeps it from working; the start fails.
    fn open(&mut self, cx: &OperatorContext) -> Result<(), TaskError> {
        let _ = cx;
        Ok(())
    }

    /// Decodes one record. HOT: no allocation that the value does not need.
    ///
    /// # Errors
    /// The reason in one sentence; it goes to the dead-letter output with the record and the place it came from.
    fn decode(&mut self, payload: &[u8]) -> Result<T, String>;

    /// Asked once after each error: what kept the record from being decoded, when it was not the record's fault (a schema registry
    /// that is away). The source then fails with it, and the record is read again by the next life.
    fn outage(&mut self) -> Option<TaskError> {
        None
    }

    /// What it takes in memory and threads, for the job's memory plan: nothing, unless it asks somebody.
    fn footprint(&self) -> Footprint {
        Footprint::none()
    }
}

impl<T, F> Decoder<T> for F
where
    F: FnMut(&[u8]) -> Result<T, String> + Clone + Send + 'static,
{
    #[inline]
    fn decode(&mut self, payload: &[u8]) -> Result<T, String> {
        self(payload)
    }
}

/// Turns a value into the bytes of one record. `Clone` is for the recipe: one copy per subtask.
pub trait Encoder<T>: Clone + Send + 'static {
    /// Called once by the sink, when it opens: for encoders that ask somebody, such as a schema registry. May block.
    ///
    /// # Errors
    /// Whatever keeps it from working; the start fails.
    fn open(&mut self, cx: &OperatorContext) -> Result<(), TaskError> {
        let _ = cx;
        Ok(())
    }

    /// Appends the encoded value to `out`, which the caller has emptied.
    ///
    /// # Errors
    /// The reason in one sentence. A value that cannot be written fails the job: it would be lost otherwise.
    fn encode(&mut self, value: &T, out: &mut Vec<u8>) -> Result<(), String>;

    /// What it takes in memory and threads, for the job's memory plan: nothing, unless it asks somebody.
    fn footprint(&self) -> Footprint {
        Footprint::none()
    }
}

impl<T, F> Encoder<T> for F
where
    F: FnMut(&T, &mut Vec<u8>) -> Result<(), String> + Clone + Send + 'static,
{
    #[inline]
    fn encode(&mut self, value: &T, out: &mut Vec<u8>) -> Result<(), String> {
        self(value, out)
    }
}
