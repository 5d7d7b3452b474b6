//! Sends records to an HTTP server, each or a batch in a request, and again until the server has taken them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use weir_engine::memory::Footprint;
use weir_engine::{CallId, Closing, Counter, Data, OperatorContext, Record, Result, Sink, TaskError};

use crate::format::{Encoder, Json};
use crate::web::{Backoff, Endpoint, Request, Web, check_url, footprint};

/// The first and the longest pause between tries, and for how long it is tried.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
const GIVE_UP: Duration = Duration::from_secs(5 * 60);
/// What a request is taken to hold, for the memory plan.
const REQUEST: u64 = 256 << 10;

type KeyOf<T> = Arc<dyn Fn(&T) -> String + Send + Sync>;

/// What one request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carries {
    One,
    Lines,
    Array,
}

/// Sends every record by `POST`, at least once: after a restart some are sent again.
///
/// *Requests*: one for each record, unless [`HttpSink::lines`] or [`HttpSink::array`] puts the records of a batch (256 at most) into
/// one. Each subtask has one on its way at a time, so that records arrive in order, or as many as [`HttpSink::in_flight`] says. One client for
/// all subtasks, on the threads of asynchronous calls.
///
/// *Trouble*: a server that cannot be reached, or says 408, 425, 429, 500, 502, 503 or 504, is asked again after pauses that double, and as long
/// as it wants (`Retry-After`). After [`HttpSink::give_up_after`] the job fails. Any other answer than 2xx fails it at once.
///
/// *Twice*: [`HttpSink::idempotency_key`] lets a server know a record that it has seen.
///
/// *Blocking*: while too many requests are on their way, and in `flush`, until the server has taken everything. All of it hears cancellation.
///
/// ```no_run
/// use weir_connectors::http::HttpSink;
/// #[derive(Clone, serde::Serialize)]
/// struct Alert { id: u64, text: String }
/// let sink = HttpSink::<Alert, _>::json("https://alerts.example.com/v1/alerts").idempotency_key(|a| a.id.to_string());
/// # drop(sink);
/// ```
pub struct HttpSink<T, E> {
    url: String,
    encoder: E,
    content_type: &'static str,
    carries: Carries,
    key: Option<KeyOf<T>>,
    in_flight: usize,
    give_up: Duration,
    endpoint: Endpoint,
    open: Option<Open>,
}

/// What a subtask has while it runs.
struct Open {
    web: Web,
    /// The oldest first.
    on_their_way: VecDeque<(Request, CallId)>,
    requests: Counter,
    retries: Counter,
}

impl<T: Serialize> HttpSink<T, Json> {
    /// Records as JSON.
    pub fn json(url: impl Into<String>) -> Self {
        HttpSink::encoded(url, "application/json", Json)
    }
}

impl<T, E> HttpSink<T, E> {
    /// Records as an encoder of your own makes them.
    pub fn encoded(url: impl Into<String>, content_type: &'static str, encoder: E) -> Self {
        HttpSink {
            url: url.into(),
            encoder,
            content_type,
            carries: Carries::One,
            key: None,
            in_flight: 1,
            give_up: GIVE_UP,
            endpoint: Endpoint::default(),
            open: None,
        }
    }

    /// Puts the records of a batch into one request, each on a line of its own. JSON is then `application/x-ndjson`.
    #[must_use]
    pub fn lines(mut self) -> Self {
        self.carries = Carries::Lines;
        if self.content_type == "application/json" {
            self.content_type = "application/x-ndjson";
        }
        self
    }

    /// Puts the records of a batch into one request, as a JSON array.
    #[must_use]
    pub fn array(mut self) -> Self {
        self.carries = Carries::Array;
        self
    }

    /// Sends `Idempotency-Key` with each record. Only where a request carries one.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Fn(&T) -> String + Send + Sync + 'static) -> Self {
        self.key = Some(Arc::new(key));
        self
    }

    /// How many requests of a subtask may be on their way at a time: one unless set. With more, records may arrive in another order.
    #[must_use]
    pub fn in_flight(mut self, requests: usize) -> Self {
        self.in_flight = requests;
        self
    }

    /// Who sends. Never shown in a log.
    #[must_use]
    pub fn basic_auth(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.endpoint.basic_auth(user, password);
        self
    }

    /// Sends this header with every request, a token say. Never shown in a log.
    #[must_use]
    pub fn secret_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.endpoint.auth_header(name, value);
        self
    }

    /// How long one request may take: 30 s unless set.
    #[must_use]
    pub fn timeout(mut self, time: Duration) -> Self {
        self.endpoint.timeout = time;
        self
    }

    /// For how long a request is tried, pauses counted, before the job fails: five minutes unless set.
    #[must_use]
    pub fn give_up_after(mut self, time: Duration) -> Self {
        self.give_up = time;
        self
    }
}

impl Open {
    /// Waits until the server has taken the oldest request.
    fn settle(&mut self, give_up: Duration) -> Result<()> {
        let Some((request, mut id)) = self.on_their_way.pop_front() else { return Ok(()) };
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1, give_up);
        loop {
            let (why, least) = match self.web.outcome(id)? {
                Ok(reply) if reply.is_good() => {
                    self.requests.add(1);
                    return Ok(());
                }
                Ok(reply) if reply.passes() => (reply.shown(), reply.retry_after),
                Ok(reply) => {
                    return Err(TaskError::external(format!(
                        "{} refused a request of {} bytes with {}",
                        request.url,
                        request.body.len(),
                        reply.shown()
                    )));
                }
                Err(why) => (why, None),
            };
            let Some(pause) = backoff.next(least) else {
                return Err(TaskError::external(format!(
                    "{} did not take a request in {} tries over {:?}; the last: {why}",
                    request.url,
                    backoff.tries(),
                    backoff.waited()
                )));
            };
            self.retries.add(1);
            tracing::debug!(operator = %self.web.cx.uid(), "sends a request again in {pause:?}: {why}");
            self.web.cx.wait(pause)?;
            id = self.web.start(&request);
        }
    }
}

impl<T, E: Encoder<T>> HttpSink<T, E> {
    fn send(&mut self, body: Vec<u8>, key: Option<String>) -> Result<()> {
        let Some(open) = &mut self.open else { return Err(not_open()) };
        while open.on_their_way.len() >= self.in_flight {
            open.settle(self.give_up)?;
        }
        let mut request = Request::post(self.url.clone(), self.content_type, body);
        request.headers.extend(key.map(|key| ("idempotency-key", key)));
        let id = open.web.start(&request);
        open.on_their_way.push_back((request, id));
        Ok(())
    }

    fn encode(&mut self, value: &T, into: &mut Vec<u8>) -> Result<()> {
        (self.encoder.encode(value, into))
            .map_err(|reason| TaskError::user(format!("a record for {}: {reason}", self.url)))
    }
}

impl<T: Data, E: Encoder<T>> Sink<T> for HttpSink<T, E> {
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        check_url(&self.url)?;
        if self.in_flight == 0 {
            return Err(TaskError::user("HttpSink::in_flight takes one request at least"));
        }
        if self.key.is_some() && self.carries != Carries::One {
            return Err(TaskError::user(
                "HttpSink::idempotency_key is for requests with one record: leave it out, or lines and array",
            ));
        }
        self.encoder.open(cx)?;
        self.open = Some(Open {
            web: self.endpoint.open(cx)?,
            on_their_way: VecDeque::new(),
            requests: cx.counter("http_requests"),
            retries: cx.counter("http_retries"),
        });
        Ok(())
    }

    fn write(&mut self, batch: &mut Vec<Record<T>>) -> Result<()> {
        let (between, around): (&[u8], _) = match self.carries {
            Carries::One => {
                for record in batch.drain(..) {
                    let mut body = Vec::new();
                    self.encode(&record.value, &mut body)?;
                    let key = self.key.as_ref().map(|key| key(&record.value));
                    self.send(body, key)?;
                }
                return Ok(());
            }
            Carries::Lines => (b"\n", None),
            Carries::Array => (b",", Some((b'[', b']'))),
        };
        let (mut body, mut one) = (Vec::new(), Vec::new());
        body.extend(around.map(|(begin, _)| begin));
        for (at, record) in batch.drain(..).enumerate() {
            if at > 0 {
                body.extend_from_slice(between);
            }
            // An encoder is promised an empty buffer.
            one.clear();
            self.encode(&record.value, &mut one)?;
            body.extend_from_slice(&one);
        }
        body.push(around.map_or(b'\n', |(_, end)| end));
        self.send(body, None)
    }

    fn flush(&mut self) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        while !open.on_their_way.is_empty() {
            open.settle(self.give_up)?;
        }
        Ok(())
    }

    fn close(&mut self, _: Closing) {
        // With it goes what is on its way: no checkpoint counts it.
        self.open = None;
    }

    fn footprint(&self) -> Footprint {
        footprint("HTTP requests", self.in_flight as u64 * REQUEST)
    }
}

fn not_open() -> TaskError {
    TaskError::internal("an HTTP sink was used before it was opened")
}

impl<T, E: Clone> Clone for HttpSink<T, E> {
    /// The recipe, sharing the client; what is open stays with the original.
    fn clone(&self) -> Self {
        HttpSink {
            url: self.url.clone(),
            encoder: self.encoder.clone(),
            content_type: self.content_type,
            carries: self.carries,
            key: self.key.clone(),
            in_flight: self.in_flight,
            give_up: self.give_up,
            endpoint: self.endpoint.clone(),
            open: None,
        }
    }
}

impl<T, E> fmt::Debug for HttpSink<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSink")
            .field("url", &self.url)
            .field("carries", &self.carries)
            .field("in_flight", &self.in_flight)
            .field("endpoint", &self.endpoint)
            .field("open", &self.open.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
