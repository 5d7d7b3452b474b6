//! HTTP from a task's thread: one client for all subtasks, requests on the threads of asynchronous calls, waits that hear cancellation.

mod retry;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use weir_engine::memory::Footprint;
use weir_engine::{CallId, Calls, OperatorContext, Result, TaskError};

pub(crate) use self::retry::Backoff;

/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How much of an answer is kept: more is no answer to anything that is asked here.
const LONGEST_ANSWER: usize = 64 << 20;

/// How servers are talked to, and the client, which all copies share.
#[derive(Clone)]
pub(crate) struct Endpoint {
    client: Arc<OnceLock<reqwest::Client>>,
    auth: Auth,
    pub(crate) timeout: Duration,
}

#[derive(Clone, Default)]
enum Auth {
    #[default]
    None,
    Basic(String, String),
    Header(String, String),
}

impl fmt::Debug for Endpoint {
    /// Without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let auth = match &self.auth {
            Auth::None => "none",
            Auth::Basic(..) => "basic",
            Auth::Header(..) => "header",
        };
        f.debug_struct("Endpoint")
            .field("auth", &auth)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Default for Endpoint {
    fn default() -> Self {
        Endpoint { client: Arc::default(), auth: Auth::None, timeout: TIMEOUT }
    }
}

impl Endpoint {
    pub(crate) fn basic_auth(&mut self, user: impl Into<String>, password: impl Into<String>) {
        self.auth = Auth::Basic(user.into(), password.into());
    }

    pub(crate) fn auth_header(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.auth = Auth::Header(name.into(), value.into());
    }

    /// Opens it for one subtask.
    pub(crate) fn open(&self, cx: &OperatorContext) -> Result<Web> {
        let calls = Calls::open(cx)?;
        if let Auth::Header(name, value) = &self.auth {
            let bad =
                HeaderName::from_bytes(name.as_bytes()).is_err() || HeaderValue::from_str(value).is_err();
            if bad {
                return Err(TaskError::user(format!(
                    "the header {name:?}, or its value, cannot be sent by HTTP"
                )));
            }
        }
        let client = match self.client.get() {
            Some(client) => client.clone(),
            None => {
                let made = calls.enter(|| {
                    // What is asked for is the address that was given: another is for whoever configures it.
                    reqwest::Client::builder()
                        .connect_timeout(CONNECT)
                        .redirect(reqwest::redirect::Policy::none())
                        .build()
                });
                let made =
                    made.map_err(|e| TaskError::external("cannot make an HTTP client").caused_by(e))?;
                self.client.get_or_init(|| made).clone()
            }
        };
        Ok(Web { client, endpoint: self.clone(), calls, cx: cx.clone(), answers: Vec::new() })
    }
}

/// The threads that requests run on, and so much memory a subtask.
pub(crate) fn footprint(name: &str, bytes: u64) -> Footprint {
    Footprint::per_subtask(name, bytes, 0).and(Footprint::process("threads of asynchronous calls", 0, 2))
}

/// Refuses what is no address of a server, and one with a password in it, which messages would show.
pub(crate) fn check_url(url: &str) -> Result<()> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let host = rest.map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
    match host {
        Some(host) if host.contains('@') => Err(TaskError::user(
            "an address has a user or a password in it: give them with basic_auth instead",
        )),
        Some(host) if !host.is_empty() && reqwest::Url::parse(url).is_ok() => Ok(()),
        _ => Err(TaskError::user(format!("{url:?} is no address: give one as in http://host:port"))),
    }
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: reqwest::Method,
    pub(crate) url: String,
    pub(crate) content_type: &'static str,
    /// More headers.
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Bytes,
}

impl Request {
    pub(crate) fn get(url: String) -> Self {
        let method = reqwest::Method::GET;
        Request { method, url, content_type: "", headers: Vec::new(), body: Bytes::new() }
    }

    pub(crate) fn post(url: String, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let method = reqwest::Method::POST;
        Request { method, url, content_type, headers: Vec::new(), body: body.into() }
    }
}

/// What a server said.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn is_good(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// True when the same request may be answered well later.
    pub(crate) fn passes(&self) -> bool {
        matches!(self.status, 408 | 425 | 429 | 500 | 502 | 503 | 504)
    }

    /// For messages: the status, and how the answer begins.
    pub(crate) fn shown(&self) -> String {
        let head = &self.body[..self.body.len().min(300)];
        let text = String::from_utf8_lossy(head);
        let more = if head.len() < self.body.len() { "…" } else { "" };
        format!("status {}: {}{more}", self.status, text.trim())
    }
}

/// What became of a request: an answer, or why there is none.
pub(crate) type Outcome = Result<Reply, String>;

/// One subtask's side of the client.
pub(crate) struct Web {
    client: reqwest::Client,
    endpoint: Endpoint,
    calls: Calls<Outcome>,
    pub(crate) cx: OperatorContext,
    answers: Vec<(CallId, Outcome)>,
}

impl Web {
    /// Sends a request.
    pub(crate) fn start(&mut self, request: &Request) -> CallId {
        let mut built =
            self.client.request(request.method.clone(), &request.url).timeout(self.endpoint.timeout);
        if !request.content_type.is_empty() {
            built = built.header(CONTENT_TYPE, request.content_type).body(request.body.clone());
        }
        built = request.headers.iter().fold(built, |built, (name, value)| built.header(*name, value));
        built = match &self.endpoint.auth {
            Auth::None => built,
            Auth::Basic(user, password) => built.basic_auth(user, Some(password)),
            Auth::Header(name, value) => built.header(name, value),
        };
        self.calls.start(answer(built))
    }

    /// Waits for what becomes of a request.
    ///
    /// # Errors
    /// At once when the attempt is cancelled.
    pub(crate) fn outcome(&mut self, of: CallId) -> Result<Outcome> {
        loop {
            if let Some(at) = self.answers.iter().position(|(id, _)| *id == of) {
                return Ok(self.answers.swap_remove(at).1);
            }
            self.calls.take(&mut self.answers)?;
            if self.answers.iter().all(|(id, _)| *id != of) {
                self.calls.wait(Some(Duration::from_secs(1)))?;
            }
        }
    }

    /// Sends a request, and again while it may be answered well later, until `backoff` gives up.
    ///
    /// # Errors
    /// When it gave up, naming `what` was asked for; an answer that no time mends is none.
    pub(crate) fn ask(&mut self, request: &Request, mut backoff: Backoff, what: &str) -> Result<Reply> {
        loop {
            let id = self.start(request);
            let (why, least) = match self.outcome(id)? {
                Ok(reply) if reply.passes() => (reply.shown(), reply.retry_after),
                Ok(reply) => return Ok(reply),
                Err(why) => (why, None),
            };
            let Some(pause) = backoff.next(least) else {
                return Err(TaskError::external(format!(
                    "{what}: {} did not answer in {} tries over {:?}; the last: {why}",
                    request.url,
                    backoff.tries(),
                    backoff.waited()
                )));
            };
            tracing::debug!(operator = %self.cx.uid(), url = request.url, "asks again in {pause:?}: {why}");
            self.cx.wait(pause)?;
        }
    }
}

async fn answer(request: reqwest::RequestBuilder) -> Outcome {
    let mut response = request.send().await.map_err(|e| chain(&e))?;
    let status = response.status().as_u16();
    let retry_after = (response.headers().get(RETRY_AFTER))
        .and_then(|value| value.to_str().ok()?.trim().parse().ok())
        .map(Duration::from_secs);
    let mut body = Vec::new();
    while let Some(part) = response.chunk().await.map_err(|e| chain(&e))? {
        if body.len() + part.len() > LONGEST_ANSWER {
            return Err(format!("the answer is longer than {LONGEST_ANSWER} bytes"));
        }
        body.extend_from_slice(&part);
    }
    Ok(Reply { status, retry_after, body: body.into() })
}

/// An error with its causes: the first alone says that a request failed.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(e) = next {
        text.push_str(": ");
        text.push_str(&e.to_string());
        next = e.source();
    }
    text
}

#[cfg(test)]
pub(crate) mod testing;
