//! Writes Elasticsearch or OpenSearch by bulks whose documents have ids of their own, so that what is written again changes nothing.

mod bulk;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use weir_engine::memory::Footprint;
use weir_engine::{CallId, Closing, Counter, Data, OperatorContext, Record, Result, Sink, TaskError};

use self::bulk::{Action, Bulk};
use crate::web::{Backoff, Endpoint, Request, Web, check_url, footprint};

/// A bulk is sent when it has so many bytes, at the latest.
const BULK_BYTES: usize = 5 << 20;
/// The first and the longest pause between tries, and for how long it is tried.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
const GIVE_UP: Duration = Duration::from_secs(5 * 60);
/// How long a server that does not answer is waited for at the start.
const START: Duration = Duration::from_secs(30);
const NDJSON: &str = "application/x-ndjson";

type IdOf<T> = Arc<dyn Fn(&T) -> String + Send + Sync>;
type IndexOf<T> = Arc<dyn Fn(&T) -> String + Send + Sync>;
type DeleteIf<T> = Arc<dyn Fn(&T) -> bool + Send + Sync>;
type VersionOf<T> = Arc<dyn Fn(&T) -> u64 + Send + Sync>;

/// What happens to a document that the server will never take, such as one that does not fit its index's mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refused {
    /// The job fails.
    #[default]
    Fail,
    /// It is logged, a line a bulk, and counted (`weir_documents_refused_total`).
    Skip,
}

/// Writes every record as a document, at least once: after a restart some are written again, under the same ids, and so change
/// nothing in the end.
///
/// *Client*: one for all subtasks, on the threads of asynchronous calls. Each subtask has one bulk on its way at a time, which keeps the
/// documents of one id in order; meanwhile the job goes on until it has the next one ready.
///
/// *Trouble*: a server that cannot be reached, a bulk or a document that is turned away because the server is busy (429, 502, 503, …) is tried
/// again after pauses that double, as long as the server wants (`Retry-After`), and of a bulk only the documents that were turned away; with
/// several addresses, at the next one. After [`ElasticSink::give_up_after`] the job fails.
///
/// *Blocking*: while the bulk before is on its way, and in `flush`, until the servers have taken everything. All of it hears cancellation.
///
/// ```no_run
/// use weir_connectors::elastic::ElasticSink;
/// #[derive(Clone, serde::Serialize)]
/// struct Profile { user: String, buys: u64 }
/// let sink = ElasticSink::new("http://search-1:9200", "profiles", |p: &Profile| p.user.clone()).basic_auth("weir", "secret");
/// # drop(sink);
/// ```
pub struct ElasticSink<T> {
    urls: Vec<String>,
    index: IndexOf<T>,
    id: IdOf<T>,
    delete_if: Option<DeleteIf<T>>,
    version: Option<VersionOf<T>>,
    upsert: bool,
    refused: Refused,
    bulk_bytes: usize,
    give_up: Duration,
    endpoint: Endpoint,
    open: Option<Open>,
}

/// What a subtask has while it runs.
struct Open {
    web: Web,
    /// Which address is used.
    at: usize,
    next: Bulk,
    on_its_way: Option<(Bulk, CallId)>,
    written: Counter,
    refused: Counter,
    retries: Counter,
}

impl<T> ElasticSink<T> {
    /// Writes to the server at `url`, as in `http://host:9200`, into `index`, under the ids that `id` makes: they must be the same
    /// whenever the record is written again.
    pub fn new(
        url: impl Into<String>,
        index: impl Into<String>,
        id: impl Fn(&T) -> String + Send + Sync + 'static,
    ) -> Self {
        let index = index.into();
        ElasticSink {
            urls: vec![trimmed(url)],
            index: Arc::new(move |_| index.clone()),
            id: Arc::new(id),
            delete_if: None,
            version: None,
            upsert: false,
            refused: Refused::Fail,
            bulk_bytes: BULK_BYTES,
            give_up: GIVE_UP,
            endpoint: Endpoint::default(),
            open: None,
        }
    }

    /// Another server of the same cluster, used when the one before does not answer.
    #[must_use]
    pub fn and(mut self, url: impl Into<String>) -> Self {
        self.urls.push(trimmed(url));
        self
    }

    /// Chooses the index by the record, by its day say.
    #[must_use]
    pub fn index_by(mut self, index: impl Fn(&T) -> String + Send + Sync + 'static) -> Self {
        self.index = Arc::new(index);
        self
    }

    /// Adds the record's fields to the document that is there, or makes one of them (`doc_as_upsert`), instead of replacing it.
    #[must_use]
    pub fn upsert(mut self) -> Self {
        self.upsert = true;
        self
    }

    /// Deletes the document of records that this is true for.
    #[must_use]
    pub fn delete_if(mut self, is: impl Fn(&T) -> bool + Send + Sync + 'static) -> Self {
        self.delete_if = Some(Arc::new(is));
        self
    }

    /// Gives documents versions (`external_gte`): one that is older than what is there changes nothing, so that even while records are
    /// written again nobody sees an older one. Not together with [`ElasticSink::upsert`].
    #[must_use]
    pub fn version(mut self, version: impl Fn(&T) -> u64 + Send + Sync + 'static) -> Self {
        self.version = Some(Arc::new(version));
        self
    }

    /// What happens to a document that the server will never take: the job fails, unless set.
    #[must_use]
    pub fn on_refused(mut self, refused: Refused) -> Self {
        self.refused = refused;
        self
    }

    /// Who writes. Never shown in a log.
    #[must_use]
    pub fn basic_auth(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.endpoint.basic_auth(user, password);
        self
    }

    /// Sends `Authorization: ApiKey …` with every request. Never shown in a log.
    #[must_use]
    pub fn api_key(mut self, key: impl AsRef<str>) -> Self {
        self.endpoint.auth_header("authorization", format!("ApiKey {}", key.as_ref()));
        self
    }

    /// How many bytes a bulk has at most, but for its last document: 5 MiB unless set.
    #[must_use]
    pub fn bulk_bytes(mut self, bytes: usize) -> Self {
        self.bulk_bytes = bytes;
        self
    }

    /// How long one request may take: 30 s unless set.
    #[must_use]
    pub fn timeout(mut self, time: Duration) -> Self {
        self.endpoint.timeout = time;
        self
    }

    /// For how long a bulk is tried, pauses counted, before the job fails: five minutes unless set.
    #[must_use]
    pub fn give_up_after(mut self, time: Duration) -> Self {
        self.give_up = time;
        self
    }

    /// Which address answers: each is tried once, and then the first waited for.
    fn find(&self, web: &mut Web) -> Result<usize> {
        let look = |web: &mut Web, at: usize, patience: Duration| {
            let backoff = Backoff::new(PAUSES.0, PAUSES.1, patience);
            web.ask(&Request::get(format!("{}/", self.urls[at])), backoff, "looking for the cluster")
        };
        let mut found = None;
        for at in 0..self.urls.len() {
            if let Ok(reply) = look(web, at, Duration::ZERO) {
                found = Some((at, reply));
                break;
            }
            web.cx.not_cancelled()?;
        }
        let (at, reply) = match found {
            Some(found) => found,
            None => (0, look(web, 0, START)?),
        };
        if !reply.is_good() {
            return Err(TaskError::external(format!("{} answered with {}", self.urls[at], reply.shown())));
        }
        Ok(at)
    }

    /// Sends the next bulk, when the one before was taken.
    fn send(&mut self) -> Result<()> {
        self.settle()?;
        let Some(open) = self.open.as_mut().filter(|open| !open.next.is_empty()) else { return Ok(()) };
        let bulk = std::mem::take(&mut open.next);
        let id = open.web.start(&request(&self.urls[open.at], &bulk));
        open.on_its_way = Some((bulk, id));
        Ok(())
    }

    /// Waits until the bulk on its way was taken.
    fn settle(&mut self) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let Some((mut bulk, mut id)) = open.on_its_way.take() else { return Ok(()) };
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1, self.give_up);
        loop {
            let (why, least) = match open.web.outcome(id)? {
                Ok(reply) if reply.is_good() => {
                    let judged =
                        bulk.judge(&reply.body, self.version.is_some()).map_err(TaskError::external)?;
                    open.written.add(judged.taken);
                    if let Some(reason) = judged.refused.first() {
                        let message = format!(
                            "{} of {} documents were refused, the first of them: {reason}",
                            judged.refused.len(),
                            bulk.len()
                        );
                        if self.refused == Refused::Fail {
                            let hint = "ElasticSink::on_refused(Refused::Skip) passes over such";
                            return Err(TaskError::user(format!("{message}; {hint}")));
                        }
                        open.refused.add(judged.refused.len() as u64);
                        tracing::warn!(operator = %open.web.cx.uid(), "{message}");
                    }
                    if judged.again.is_empty() {
                        return Ok(());
                    }
                    let why =
                        format!("{} documents were turned away: {}", judged.again.len(), judged.why_again);
                    bulk = judged.again;
                    (why, reply.retry_after)
                }
                Ok(reply) if reply.passes() => (reply.shown(), reply.retry_after),
                Ok(reply) => {
                    let url = &self.urls[open.at];
                    let hint = if reply.status == 413 {
                        " (ElasticSink::bulk_bytes makes bulks smaller)"
                    } else {
                        ""
                    };
                    return Err(TaskError::external(format!(
                        "a bulk of {} documents, {} bytes, to {url} was answered with {}{hint}",
                        bulk.len(),
                        bulk.bytes(),
                        reply.shown()
                    )));
                }
                Err(why) => {
                    open.at = (open.at + 1) % self.urls.len();
                    (why, None)
                }
            };
            let Some(pause) = backoff.next(least) else {
                return Err(TaskError::external(format!(
                    "{} documents were not taken in {} tries over {:?}; the last: {why}",
                    bulk.len(),
                    backoff.tries(),
                    backoff.waited()
                )));
            };
            open.retries.add(1);
            tracing::debug!(operator = %open.web.cx.uid(), "tries a bulk again in {pause:?}: {why}");
            open.web.cx.wait(pause)?;
            id = open.web.start(&request(&self.urls[open.at], &bulk));
        }
    }
}

fn trimmed(url: impl Into<String>) -> String {
    let mut url: String = url.into();
    url.truncate(url.trim_end_matches('/').len());
    url
}

fn request(url: &str, bulk: &Bulk) -> Request {
    Request::post(format!("{url}/_bulk"), NDJSON, bulk.body())
}

impl<T: Data + Serialize> Sink<T> for ElasticSink<T> {
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.urls.iter().try_for_each(|url| check_url(url))?;
        if self.upsert && self.version.is_some() {
            return Err(TaskError::user(
                "ElasticSink::version is for whole documents, and ElasticSink::upsert writes parts of them: leave one out",
            ));
        }
        let mut web = self.endpoint.open(cx)?;
        // The start is the time to hear that nothing can be written here.
        let at = self.find(&mut web)?;
        self.open = Some(Open {
            web,
            at,
            next: Bulk::default(),
            on_its_way: None,
            written: cx.counter("documents_written"),
            refused: cx.counter("documents_refused"),
            retries: cx.counter("bulk_retries"),
        });
        Ok(())
    }

    fn write(&mut self, batch: &mut Vec<Record<T>>) -> Result<()> {
        for record in batch.drain(..) {
            let value = &record.value;
            let (index, id) = ((self.index)(value), (self.id)(value));
            let version = self.version.as_ref().map(|version| version(value));
            let action = match &self.delete_if {
                Some(is) if is(value) => Action::Delete,
                _ if self.upsert => Action::Upsert(value),
                _ => Action::Index(value),
            };
            let Some(open) = &mut self.open else { return Err(not_open()) };
            open.next
                .add(&index, &id, version, action)
                .map_err(|reason| TaskError::user(format!("document {id:?} for index {index}: {reason}")))?;
            if open.next.bytes() >= self.bulk_bytes {
                self.send()?;
            }
        }
        // Nobody says when a pause comes, so nothing waits here for more.
        self.send()
    }

    fn flush(&mut self) -> Result<()> {
        self.send()?;
        self.settle()
    }

    fn close(&mut self, _: Closing) {
        // With it goes what is on its way: no checkpoint counts it.
        self.open = None;
    }

    fn footprint(&self) -> Footprint {
        // One that is filled, one on its way, and what comes back.
        footprint("bulks of documents", self.bulk_bytes as u64 * 3)
    }
}

fn not_open() -> TaskError {
    TaskError::internal("an Elasticsearch sink was used before it was opened")
}

impl<T> Clone for ElasticSink<T> {
    /// The recipe, sharing the client; what is open stays with the original.
    fn clone(&self) -> Self {
        ElasticSink {
            urls: self.urls.clone(),
            index: self.index.clone(),
            id: self.id.clone(),
            delete_if: self.delete_if.clone(),
            version: self.version.clone(),
            upsert: self.upsert,
            refused: self.refused,
            bulk_bytes: self.bulk_bytes,
            give_up: self.give_up,
            endpoint: self.endpoint.clone(),
            open: None,
        }
    }
}

impl<T> fmt::Debug for ElasticSink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ElasticSink")
            .field("urls", &self.urls)
            .field("upsert", &self.upsert)
            .field("endpoint", &self.endpoint)
            .field("open", &self.open.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
