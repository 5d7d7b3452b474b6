//! Avro records whose schemas are in a registry: decoded by the schema they were written with, into a type, through a reader's schema if wanted.
// HOT: per record one comparison of ids; a schema is fetched and made ready when its id is seen first.

mod value;

use std::fmt;

use apache_avro::Schema;
use apache_avro::reader::datum::GenericDatumReader;
use apache_avro::writer::datum::GenericDatumWriter;
use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_engine::memory::Footprint;
use weir_engine::{OperatorContext, TaskError};

use self::value::Given;
use super::registry::{Asker, Fetched, Form, NoSchema, SchemaRegistry, asking, framed, split};
use super::{Decoder, Encoder};

/// Decodes Avro records that begin with the id of their schema, as Confluent's serializers write them, into any type that serde
/// can make. One copy serves one subtask.
///
/// The bytes are read by the schema they were written with. Its fields go to the type's by their names: those that the type has not are
/// passed over, and those that the schema has not take the type's default (`#[serde(default)]`). With
/// [`AvroDecoder::reader_schema`] Avro's own rules of resolution come between: defaults and promotions of that schema.
///
/// *Blocking*: see [`SchemaRegistry`].
///
/// ```no_run
/// use weir_connectors::format::{AvroDecoder, SchemaRegistry};
/// use weir_connectors::kafka::{KafkaConfig, KafkaSource};
/// #[derive(Clone, serde::Deserialize)]
/// struct Order { id: i64, amount: f64 }
/// let registry = SchemaRegistry::at("http://registry-1:8081");
/// let kafka = KafkaConfig::brokers("kafka-1:9092");
/// let orders = KafkaSource::decoded::<Order, _>(&kafka, AvroDecoder::with(&registry)).topic("orders");
/// # drop(orders);
/// ```
pub struct AvroDecoder {
    registry: SchemaRegistry,
    reader_schema: Option<String>,
    open: Option<Open>,
    outage: Option<TaskError>,
}

/// What a subtask has once it is open.
struct Open {
    asker: Asker,
    reader_schema: Option<&'static Schema>,
    /// The one used last is the first.
    ready: Vec<Ready>,
}

/// A schema made ready to read with.
struct Ready {
    id: u32,
    reader: GenericDatumReader<'static>,
    /// By the writer's schema alone, and the type is one that can be made directly.
    direct: bool,
}

impl AvroDecoder {
    /// Records whose schemas are in this registry.
    pub fn with(registry: &SchemaRegistry) -> Self {
        AvroDecoder { registry: registry.clone(), reader_schema: None, open: None, outage: None }
    }

    /// Gives records as this schema has them (JSON, as Avro writes schemas), whatever schema they were written with. Aliases of
    /// fields are not looked at: `#[serde(alias = "…")]` on the type, without a reader's schema, does that.
    #[must_use]
    pub fn reader_schema(mut self, schema: impl Into<String>) -> Self {
        self.reader_schema = Some(schema.into());
        self
    }
}

impl Open {
    /// The schema with this id, ready, at the front.
    #[inline]
    fn ready(&mut self, id: u32) -> Result<&mut Ready, NoSchema> {
        if self.ready.first().is_none_or(|ready| ready.id != id) {
            self.bring(id)?;
        }
        Ok(&mut self.ready[0])
    }

    #[cold]
    fn bring(&mut self, id: u32) -> Result<(), NoSchema> {
        let at = match self.ready.iter().position(|ready| ready.id == id) {
            Some(at) => at,
            None => {
                let fetched = self.asker.schema(id, Form::Plain)?;
                let reader = reader(&fetched, self.reader_schema).map_err(NoSchema::Bad)?;
                self.ready.push(Ready { id, reader, direct: self.reader_schema.is_none() });
                self.ready.len() - 1
            }
        };
        self.ready.swap(0, at);
        Ok(())
    }
}

/// Parsed, with what it refers to. Schemas are kept as long as the process lives, as the registry's are: readers and writers borrow them.
fn parsed(text: &str, references: &[(String, String)]) -> apache_avro::AvroResult<Vec<&'static Schema>> {
    let (schema, mut all) = Schema::parse_str_with_list(text, references.iter().map(|(_, text)| text))?;
    all.push(schema);
    Ok(all.into_iter().map(|schema| &*Box::leak(Box::new(schema))).collect())
}

fn reader(fetched: &Fetched, wanted: Option<&'static Schema>) -> Result<GenericDatumReader<'static>, String> {
    let id = fetched.id;
    if fetched.kind != "AVRO" {
        return Err(format!("schema id {id} is of {}, and Avro is expected", fetched.kind));
    }
    let made = || {
        let all = parsed(&fetched.text, &fetched.references)?;
        let own = all[all.len() - 1];
        GenericDatumReader::builder(own).writer_schemata(all)?.maybe_reader_schema(wanted).build()
    };
    made().map_err(|e| format!("schema id {id} cannot be read with: {e}"))
}

/// The bytes of a record, and whether more were wanted than there are.
struct Whole<'a> {
    rest: &'a [u8],
    is_short: bool,
}

impl std::io::Read for Whole<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.is_short |= into.len() > self.rest.len();
        std::io::Read::read(&mut self.rest, into)
    }
}

impl Ready {
    #[inline]
    fn decode<T: DeserializeOwned>(&mut self, body: &[u8]) -> Result<T, String> {
        if self.direct {
            let mut rest = body;
            if let Ok(value) = self.reader.read_deser(&mut rest)
                && rest.is_empty()
            {
                return Ok(value);
            }
        }
        let value = self.slowly(body)?;
        // The direct way knows no option where the schema has no union, and no promotion.
        self.direct = false;
        Ok(value)
    }

    /// By way of a value of any schema, which takes more than the direct way does, and can tell where something is wrong.
    fn slowly<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, String> {
        let not = |why: String| format!("not the expected Avro (schema id {}): {why}", self.id);
        let mut body = Whole { rest: body, is_short: false };
        let value = self.reader.read_value(&mut body);
        // The library takes some values that are cut off for null.
        if body.is_short {
            return Err(not("the record is cut off".to_owned()));
        }
        let value = value.map_err(|e| not(e.to_string()))?;
        if !body.rest.is_empty() {
            return Err(not(format!("{} bytes after the record", body.rest.len())));
        }
        T::deserialize(Given(&value)).map_err(|e| {
            let field = serde_path_to_error::deserialize::<_, T>(Given(&value))
                .err()
                .filter(|e| e.path().iter().next().is_some())
                .map_or_else(String::new, |e| format!(" (field {})", e.path()));
            not(format!("{e}{field}"))
        })
    }
}

impl<T: DeserializeOwned> Decoder<T> for AvroDecoder {
    fn open(&mut self, cx: &OperatorContext) -> Result<(), TaskError> {
        let reader_schema =
            self.reader_schema.as_deref().map(|text| own_schema(text, "reader's schema")).transpose()?;
        self.open = Some(Open { asker: self.registry.open(cx)?, reader_schema, ready: Vec::new() });
        Ok(())
    }

    #[inline]
    fn decode(&mut self, payload: &[u8]) -> Result<T, String> {
        let (id, body) = split(payload)?;
        let Some(open) = &mut self.open else { return Err(NOT_OPEN.to_owned()) };
        match open.ready(id) {
            Ok(ready) => ready.decode(body),
            Err(NoSchema::Bad(reason)) => Err(reason),
            Err(NoSchema::Outage(e)) => {
                let reason = e.chain();
                self.outage = Some(e);
                Err(reason)
            }
        }
    }

    fn outage(&mut self) -> Option<TaskError> {
        self.outage.take()
    }

    fn footprint(&self) -> Footprint {
        asking()
    }
}

const NOT_OPEN: &str = "a format with a schema registry was used before it was opened";

/// A schema that the job brings along.
fn own_schema(text: &str, which: &str) -> Result<&'static Schema, TaskError> {
    let all = parsed(text, &[])
        .map_err(|e| TaskError::user(format!("the {which} is no Avro schema")).caused_by(e))?;
    Ok(all[all.len() - 1])
}

impl Clone for AvroDecoder {
    /// The recipe; what is open stays with the original.
    fn clone(&self) -> Self {
        let reader_schema = self.reader_schema.clone();
        AvroDecoder { registry: self.registry.clone(), reader_schema, open: None, outage: None }
    }
}

impl fmt::Debug for AvroDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AvroDecoder")
            .field("registry", &self.registry)
            .field("reader_schema", &self.reader_schema)
            .finish_non_exhaustive()
    }
}

/// Encodes records in Avro by one schema, which is registered at the start, and begins each with its id.
///
/// ```no_run
/// use weir_connectors::format::{AvroEncoder, SchemaRegistry};
/// use weir_connectors::kafka::{KafkaConfig, KafkaSink};
/// #[derive(Clone, serde::Serialize)]
/// struct Order { id: i64 }
/// let registry = SchemaRegistry::at("http://registry-1:8081");
/// let schema = r#"{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}"#;
/// let kafka = KafkaConfig::brokers("kafka-1:9092");
/// let sink = KafkaSink::<Order, _>::encoded(&kafka, "orders", AvroEncoder::new(&registry, "orders-value", schema));
/// # drop(sink);
/// ```
pub struct AvroEncoder {
    registry: SchemaRegistry,
    subject: String,
    schema: String,
    open: Option<(u32, GenericDatumWriter<'static>)>,
}

impl AvroEncoder {
    /// Records of this schema, registered under this subject: `<topic>-value` as a rule.
    pub fn new(registry: &SchemaRegistry, subject: impl Into<String>, schema: impl Into<String>) -> Self {
        AvroEncoder { registry: registry.clone(), subject: subject.into(), schema: schema.into(), open: None }
    }
}

impl<T: Serialize> Encoder<T> for AvroEncoder {
    fn open(&mut self, cx: &OperatorContext) -> Result<(), TaskError> {
        let schema = own_schema(&self.schema, "schema to write with")?;
        let writer = GenericDatumWriter::builder(schema).build()?;
        let id = self.registry.open(cx)?.register(&self.subject, "AVRO", &self.schema, &[])?;
        self.open = Some((id, writer));
        Ok(())
    }

    #[inline]
    fn encode(&mut self, value: &T, out: &mut Vec<u8>) -> Result<(), String> {
        let Some((id, writer)) = &self.open else { return Err(NOT_OPEN.to_owned()) };
        framed(*id, out);
        match writer.write_ser(out, value) {
            Ok(_) => Ok(()),
            Err(e) => Err(format!("cannot be written by the Avro schema of subject {}: {e}", self.subject)),
        }
    }

    fn footprint(&self) -> Footprint {
        asking()
    }
}

impl Clone for AvroEncoder {
    /// The recipe; what is open stays with the original.
    fn clone(&self) -> Self {
        AvroEncoder::new(&self.registry, &*self.subject, &*self.schema)
    }
}

impl fmt::Debug for AvroEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AvroEncoder")
            .field("registry", &self.registry)
            .field("subject", &self.subject)
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
