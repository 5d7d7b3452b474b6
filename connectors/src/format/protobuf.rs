//! Protobuf records, with or without a schema in a registry: into a type of prost's, or into a message that knows its fields by name.
// HOT: per record one comparison of ids and indexes; a schema is fetched when its id is seen first.

use std::fmt;

use base64::Engine as _;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use prost_types::FileDescriptorProto;
use weir_engine::memory::Footprint;
use weir_engine::{OperatorContext, TaskError};

use super::registry::{
    Asker, Fetched, Form, NoSchema, SchemaRegistry, asking, framed, indexes, put_indexes, split,
};
use super::{Decoder, Encoder};

const NOT_OPEN: &str = "a format with a schema registry was used before it was opened";

/// Decodes Protobuf records into a type that prost derives or generates. One copy serves one subtask.
///
/// With a registry each record begins with the id of its schema and the place of its message there, as Confluent's serializers write
/// them; it must be the expected message, by its full name. Fields that the type does not know are passed over, as Protobuf has it.
/// The registry is asked for descriptors (`format=serialized`), which Confluent's, Karapace and Redpanda give.
///
/// *Blocking*: see [`SchemaRegistry`].
///
/// ```
/// use weir_connectors::format::{Decoder, ProtobufDecoder, SchemaRegistry};
/// #[derive(Clone, PartialEq, prost::Message)]
/// struct Order {
///     #[prost(int64, tag = "1")]
///     id: i64,
/// }
/// let decoder = ProtobufDecoder::with(&SchemaRegistry::at("http://registry-1:8081"), "shop.Order");
/// let order: Order = ProtobufDecoder::plain().decode(&[8, 7])?; // without a registry
/// assert_eq!(order, Order { id: 7 });
/// # drop(decoder);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug)]
pub struct ProtobufDecoder(Option<Framed>, String);

/// Decodes Protobuf records of any message in a registry. One copy serves one subtask.
///
/// *Blocking*: see [`SchemaRegistry`].
#[derive(Clone, Debug)]
pub struct DynamicDecoder(Framed);

impl ProtobufDecoder {
    /// Records that begin with a schema in this registry, all of them this message, as in `package.Message`.
    pub fn with(registry: &SchemaRegistry, message: impl Into<String>) -> Self {
        ProtobufDecoder(Some(Framed::of(registry)), message.into())
    }

    /// Records that are messages and nothing else.
    pub fn plain() -> Self {
        ProtobufDecoder(None, String::new())
    }
}

impl DynamicDecoder {
    /// Records that begin with a schema in this registry.
    pub fn with(registry: &SchemaRegistry) -> Self {
        DynamicDecoder(Framed::of(registry))
    }
}

/// What reads the beginning of a record.
struct Framed {
    registry: SchemaRegistry,
    open: Option<Asker>,
    /// What was seen; the one used last is the first.
    seen: Vec<Seen>,
    /// The place of the message at hand.
    path: Vec<u32>,
    outage: Option<TaskError>,
}

/// A schema's id, and the message that lies there at a place.
struct Seen {
    id: u32,
    path: Vec<u32>,
    message: MessageDescriptor,
}

impl Framed {
    fn of(registry: &SchemaRegistry) -> Self {
        Framed { registry: registry.clone(), open: None, seen: Vec::new(), path: Vec::new(), outage: None }
    }

    fn open(&mut self, cx: &OperatorContext) -> Result<(), TaskError> {
        self.open = Some(self.registry.open(cx)?);
        Ok(())
    }

    /// What message it is, and its bytes.
    #[inline]
    fn message<'a>(&mut self, payload: &'a [u8]) -> Result<(&MessageDescriptor, &'a [u8]), String> {
        let (id, rest) = split(payload)?;
        let body = indexes(rest, &mut self.path)?;
        if self.seen.first().is_none_or(|seen| seen.id != id || seen.path != self.path) {
            self.bring(id)?;
        }
        Ok((&self.seen[0].message, body))
    }

    #[cold]
    fn bring(&mut self, id: u32) -> Result<(), String> {
        let at = match self.seen.iter().position(|seen| seen.id == id && seen.path == self.path) {
            Some(at) => at,
            None => {
                let Some(asker) = &mut self.open else { return Err(NOT_OPEN.to_owned()) };
                let fetched = asker.schema(id, Form::Serialized).map_err(|e| match e {
                    NoSchema::Bad(reason) => reason,
                    NoSchema::Outage(e) => {
                        let reason = e.chain();
                        self.outage = Some(e);
                        reason
                    }
                })?;
                let message = described(&fetched, &self.path)?;
                self.seen.push(Seen { id, path: self.path.clone(), message });
                self.seen.len() - 1
            }
        };
        self.seen.swap(0, at);
        Ok(())
    }
}

impl Clone for Framed {
    /// The recipe; what is open stays with the original.
    fn clone(&self) -> Self {
        Framed::of(&self.registry)
    }
}

impl fmt::Debug for Framed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Framed").field("registry", &self.registry).finish_non_exhaustive()
    }
}

/// The message at `path` of a schema.
fn described(fetched: &Fetched, path: &[u32]) -> Result<MessageDescriptor, String> {
    let id = fetched.id;
    if fetched.kind != "PROTOBUF" {
        return Err(format!("schema id {id} is of {}, and Protobuf is expected", fetched.kind));
    }
    // With the well-known types, which nobody registers.
    let mut pool = DescriptorPool::global();
    let own = format!("schema-{id}.proto");
    let all = fetched.references.iter().map(|(name, text)| (name, text)).chain([(&own, &fetched.text)]);
    for (name, text) in all {
        let mut file = descriptor(text).map_err(|why| {
            format!(
                "schema id {id}: {name} is no descriptor ({why}); does the registry know format=serialized?"
            )
        })?;
        // As those that refer to it call it: the registry need not know.
        file.name = Some(name.clone());
        pool.add_file_descriptor_proto(file)
            .map_err(|e| format!("schema id {id} cannot be read with: {e}"))?;
    }
    let file = pool.get_file_by_name(&own).ok_or_else(|| format!("schema id {id} is empty"))?;
    let none = || format!("schema id {id} has no message at {path:?}");
    let (first, inner) = path.split_first().ok_or_else(none)?;
    let mut message = file.messages().nth(*first as usize).ok_or_else(none)?;
    for index in inner {
        let child = message.child_messages().nth(*index as usize).ok_or_else(none)?;
        message = child;
    }
    Ok(message)
}

fn descriptor(text: &str) -> Result<FileDescriptorProto, String> {
    let bytes = base64::engine::general_purpose::STANDARD.decode(text.trim()).map_err(|e| e.to_string())?;
    FileDescriptorProto::decode(&bytes[..]).map_err(|e| e.to_string())
}

fn not_expected(e: &prost::DecodeError) -> String {
    // It names the message and the field.
    format!("not the expected Protobuf: {e}")
}

impl<T: Message + Default> Decoder<T> for ProtobufDecoder {
    fn open(&mut self, cx: &OperatorContext) -> Result<(), TaskError> {
        self.0.as_mut().map_or(Ok(()), |framed| framed.open(cx))
    }

    #[inline]
    fn decode(&mut self, payload: &[u8]) -> Result<T, String> {
        let body = match &mut self.0 {
            None => payload,
            Some(framed) => {
                let (message, body) = framed.message(payload)?;
                if message.full_name() != self.1 {
                    return Err(format!("it is a {}, and {} is expected", message.full_name(), self.1));
                }
                body
            }
        };
        T::decode(body).map_err(|e| not_expected(&e))
    }

    fn outage(&mut self) -> Option<TaskError> {
        self.0.as_mut()?.outage.take()
    }

    fn footprint(&self) -> Footprint {
        self.0.as_ref().map_or_else(Footprint::none, |_| asking())
    }
}

impl Decoder<DynamicMessage> for DynamicDecoder {
    fn open(&mut self, cx: &OperatorContext) -> Result<(), TaskError> {
        self.0.open(cx)
    }

    fn decode(&mut self, payload: &[u8]) -> Result<DynamicMessage, String> {
        let (message, body) = self.0.message(payload)?;
        DynamicMessage::decode(message.clone(), body).map_err(|e| not_expected(&e))
    }

    fn outage(&mut self) -> Option<TaskError> {
        self.0.outage.take()
    }

    fn footprint(&self) -> Footprint {
        asking()
    }
}

/// Encodes messages of prost's, each with the id of its schema, which is registered at the start, and its place there; or alone.
///
/// ```
/// use weir_connectors::format::{Encoder, ProtobufEncoder, SchemaRegistry};
/// #[derive(Clone, PartialEq, prost::Message)]
/// struct Order {
///     #[prost(int64, tag = "1")]
///     id: i64,
/// }
/// let schema = "syntax = \"proto3\"; package shop; message Order { int64 id = 1; }";
/// let encoder = ProtobufEncoder::new(&SchemaRegistry::at("http://registry-1:8081"), "orders-value", schema);
/// let mut out = Vec::new();
/// ProtobufEncoder::plain().encode(&Order { id: 7 }, &mut out)?; // without a registry
/// assert_eq!(out, [8, 7]);
/// # drop(encoder);
/// # Ok::<(), String>(())
/// ```
#[derive(Debug)]
pub struct ProtobufEncoder {
    /// The registry, the subject and the schema.
    of: Option<(SchemaRegistry, String, String)>,
    path: Vec<u32>,
    /// What every record begins with.
    head: Option<Vec<u8>>,
}

impl ProtobufEncoder {
    /// Messages that this schema (the text of a `.proto` file) begins with, registered under this subject: `<topic>-value` as a rule.
    pub fn new(registry: &SchemaRegistry, subject: impl Into<String>, schema: impl Into<String>) -> Self {
        let of = Some((registry.clone(), subject.into(), schema.into()));
        ProtobufEncoder { of, path: vec![0], head: None }
    }

    /// Messages and nothing else.
    pub fn plain() -> Self {
        ProtobufEncoder { of: None, path: vec![0], head: None }
    }

    /// Which message of the file it is: the index of the outermost one, of the one in it, and so on. The first unless set.
    #[must_use]
    pub fn message_at(mut self, path: impl Into<Vec<u32>>) -> Self {
        self.path = path.into();
        self
    }
}

impl<T: Message> Encoder<T> for ProtobufEncoder {
    fn open(&mut self, cx: &OperatorContext) -> Result<(), TaskError> {
        let Some((registry, subject, schema)) = &self.of else { return Ok(()) };
        let id = registry.open(cx)?.register(subject, "PROTOBUF", schema, &[])?;
        let mut head = Vec::new();
        framed(id, &mut head);
        put_indexes(&self.path, &mut head);
        self.head = Some(head);
        Ok(())
    }

    #[inline]
    fn encode(&mut self, value: &T, out: &mut Vec<u8>) -> Result<(), String> {
        match (&self.head, &self.of) {
            (Some(head), _) => out.extend_from_slice(head),
            (None, Some(_)) => return Err(NOT_OPEN.to_owned()),
            (None, None) => {}
        }
        value.encode(out).map_err(|e| format!("cannot be written as Protobuf: {e}"))
    }

    fn footprint(&self) -> Footprint {
        self.of.as_ref().map_or_else(Footprint::none, |_| asking())
    }
}

impl Clone for ProtobufEncoder {
    /// The recipe; what is open stays with the original.
    fn clone(&self) -> Self {
        ProtobufEncoder { of: self.of.clone(), path: self.path.clone(), head: None }
    }
}

#[cfg(test)]
mod tests;
