//! A schema registry as Confluent's REST API has it: schemas by id, asked for once a process, and subjects to register under.

mod wire;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weir_engine::memory::Footprint;
use weir_engine::{OperatorContext, Result, TaskError};

pub(crate) use self::wire::{framed, indexes, put_indexes, split};
use crate::web::{Backoff, Endpoint, Reply, Request, Web, check_url, footprint};

const CONTENT: &str = "application/vnd.schemaregistry.v1+json";
/// Pauses between tries, and for how long a registry that is away is waited for.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
const PATIENCE: Duration = Duration::from_secs(30);
/// After what time an id that the registry did not know is asked for again, and how many such are remembered.
const ASK_AGAIN: Duration = Duration::from_secs(30);
const UNKNOWN_KEPT: usize = 1_000;

/// A schema registry, for the formats that need one. Copies share the client and the schemas.
///
/// *Blocking*: a schema is asked for when a record with its id is the first that a process sees; then the task that reads waits
/// for the answer, and hears cancellation. From then on no record waits: schemas never change under their ids, and are kept as long as the
/// process lives. An id that the registry does not know makes its records bad, and is asked for again after half a minute at the
/// earliest. A registry that is away is waited for, half a minute unless set; then the job fails, and no record is bad for that.
///
/// ```
/// use weir_connectors::format::SchemaRegistry;
/// let registry = SchemaRegistry::at("http://registry-1:8081").basic_auth("weir", "secret");
/// # drop(registry);
/// ```
#[derive(Clone, Debug)]
pub struct SchemaRegistry {
    url: String,
    endpoint: Endpoint,
    patience: Duration,
    known: Arc<Known>,
}

#[derive(Default)]
struct Known {
    schemas: Mutex<HashMap<(u32, Form), Arc<Fetched>>>,
}

impl Known {
    fn lock(&self) -> MutexGuard<'_, HashMap<(u32, Form), Arc<Fetched>>> {
        // Whole between statements, whoever panicked.
        self.schemas.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Known")
    }
}

/// How the text of a schema is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// As it was registered.
    #[cfg_attr(not(feature = "avro"), allow(dead_code))]
    Plain,
    /// A descriptor of Protobuf, in base64.
    #[cfg_attr(not(feature = "protobuf"), allow(dead_code))]
    Serialized,
}

/// A schema with all that it refers to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fetched {
    pub(crate) id: u32,
    pub(crate) kind: String,
    pub(crate) text: String,
    /// What it refers to, by name, each before those that refer to it.
    pub(crate) references: Vec<(String, String)>,
}

/// The answer to a question for a schema.
#[derive(Deserialize)]
struct Schema {
    schema: String,
    #[serde(default, rename = "schemaType")]
    kind: Option<String>,
    #[serde(default)]
    references: Vec<Reference>,
}

/// Another schema that one refers to: by what name, and under which subject and version it is registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    /// As the schema calls it.
    pub name: String,
    /// The subject.
    pub subject: String,
    /// The version there.
    pub version: i64,
}

#[derive(Serialize)]
struct ToRegister<'a> {
    schema: &'a str,
    #[serde(rename = "schemaType")]
    kind: &'a str,
    references: &'a [Reference],
}

#[derive(Deserialize)]
struct Registered {
    id: u32,
}

impl SchemaRegistry {
    /// The registry at this address, as in `http://host:8081`.
    pub fn at(url: impl Into<String>) -> Self {
        let mut url: String = url.into();
        url.truncate(url.trim_end_matches('/').len());
        SchemaRegistry { url, endpoint: Endpoint::default(), patience: PATIENCE, known: Arc::default() }
    }

    /// Says who asks. Never shown in a log.
    #[must_use]
    pub fn basic_auth(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.endpoint.basic_auth(user, password);
        self
    }

    /// Sends `Authorization: Bearer …` with every request. Never shown in a log.
    #[must_use]
    pub fn bearer(mut self, token: impl AsRef<str>) -> Self {
        self.endpoint.auth_header("authorization", format!("Bearer {}", token.as_ref()));
        self
    }

    /// How long one that is away is waited for before the job fails: 30 s unless set.
    #[must_use]
    pub fn patience(mut self, time: Duration) -> Self {
        self.patience = time;
        self
    }

    /// Opens it for one subtask.
    pub(crate) fn open(&self, cx: &OperatorContext) -> Result<Asker> {
        check_url(&self.url)?;
        Ok(Asker { registry: self.clone(), web: self.endpoint.open(cx)?, unknown: HashMap::new() })
    }
}

/// What every subtask with a registry takes: schemas are few and small.
pub(crate) fn asking() -> Footprint {
    footprint("schemas of records", 1 << 20)
}

/// Why there is no schema for a record.
#[derive(Debug)]
pub(crate) enum NoSchema {
    /// The record is at fault.
    Bad(String),
    /// The registry, or that the attempt was cancelled.
    Outage(TaskError),
}

/// One subtask's side of a registry.
pub(crate) struct Asker {
    registry: SchemaRegistry,
    web: Web,
    /// Ids that were not known, with when to ask again.
    unknown: HashMap<u32, Instant>,
}

impl Asker {
    /// The schema under `id`. For ids that the caller has not seen yet.
    #[cold]
    pub(crate) fn schema(&mut self, id: u32, form: Form) -> Result<Arc<Fetched>, NoSchema> {
        if let Some(found) = self.registry.known.lock().get(&(id, form)) {
            return Ok(found.clone());
        }
        let bad = |url: &str| {
            NoSchema::Bad(format!("schema id {id}, which the schema registry {url} does not know"))
        };
        let now = Instant::now();
        if self.unknown.get(&id).is_some_and(|again| *again > now) {
            return Err(bad(&self.registry.url));
        }
        let Some(found) = self.fetch(id, form).map_err(NoSchema::Outage)? else {
            if self.unknown.len() >= UNKNOWN_KEPT {
                self.unknown.clear();
            }
            self.unknown.insert(id, now + ASK_AGAIN);
            return Err(bad(&self.registry.url));
        };
        self.unknown.remove(&id);
        // Another subtask may have been as fast.
        Ok(self.registry.known.lock().entry((id, form)).or_insert_with(|| Arc::new(found)).clone())
    }

    /// None when the registry says that there is none.
    fn fetch(&mut self, id: u32, form: Form) -> Result<Option<Fetched>> {
        let what = format!("schema {id}");
        let Some(schema) = self.get(&format!("/schemas/ids/{id}"), form, &what)? else { return Ok(None) };
        let mut references = Vec::new();
        self.follow(&schema.references, form, &mut references, &what)?;
        let kind = schema.kind.unwrap_or_else(|| "AVRO".to_owned());
        tracing::info!(operator = %self.web.cx.uid(), id, kind, "a schema was fetched from {}", self.registry.url);
        Ok(Some(Fetched { id, kind, text: schema.schema, references }))
    }

    /// Fetches what a schema refers to, depth first.
    fn follow(
        &mut self,
        wanted: &[Reference],
        form: Form,
        found: &mut Vec<(String, String)>,
        what: &str,
    ) -> Result<()> {
        for reference in wanted {
            if found.iter().any(|(name, _)| *name == reference.name) {
                continue;
            }
            let path = format!("/subjects/{}/versions/{}", escaped(&reference.subject), reference.version);
            let Some(schema) = self.get(&path, form, what)? else {
                return Err(TaskError::external(format!(
                    "{what} refers to {} (subject {}, version {}), which the schema registry {} does not have",
                    reference.name, reference.subject, reference.version, self.registry.url
                )));
            };
            self.follow(&schema.references, form, found, what)?;
            found.push((reference.name.clone(), schema.schema));
        }
        Ok(())
    }

    fn get(&mut self, path: &str, form: Form, what: &str) -> Result<Option<Schema>> {
        let query = if form == Form::Serialized { "?format=serialized" } else { "" };
        let request = Request::get(format!("{}{path}{query}", self.registry.url));
        let reply = self.web.ask(&request, self.backoff(), what)?;
        if reply.status == 404 {
            return Ok(None);
        }
        self.read(&reply, what).map(Some)
    }

    /// Registers a schema under a subject, where it may be already, and answers with its id. Called at the start.
    pub(crate) fn register(
        &mut self,
        subject: &str,
        kind: &str,
        schema: &str,
        references: &[Reference],
    ) -> Result<u32> {
        let body = serde_json::to_vec(&ToRegister { schema, kind, references })
            .map_err(|e| TaskError::internal("a schema to register is no JSON").caused_by(e))?;
        let url = format!("{}/subjects/{}/versions", self.registry.url, escaped(subject));
        let what = format!("registering a schema under {subject}");
        let reply = self.web.ask(&Request::post(url, CONTENT, body), self.backoff(), &what)?;
        self.read::<Registered>(&reply, &what).map(|registered| registered.id)
    }

    fn read<'a, T: Deserialize<'a>>(&self, reply: &'a Reply, what: &str) -> Result<T> {
        let url = &self.registry.url;
        if !reply.is_good() {
            return Err(TaskError::external(format!(
                "{what}: the schema registry {url} says {}",
                reply.shown()
            )));
        }
        serde_json::from_slice(&reply.body).map_err(|e| {
            let message =
                format!("{what}: the schema registry {url} gives no answer of its API ({})", reply.shown());
            TaskError::external(message).caused_by(e)
        })
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(PAUSES.0, PAUSES.1, self.registry.patience)
    }
}

/// A subject as part of a path.
fn escaped(subject: &str) -> String {
    let mut out = String::with_capacity(subject.len());
    for byte in subject.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
