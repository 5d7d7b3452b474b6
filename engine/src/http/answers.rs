//! The routes: what each answers, as JSON unless it says otherwise.

use std::collections::BTreeMap;

use actix_web::http::StatusCode;
use actix_web::web::{self, Data, Path, Query, ServiceConfig};
use actix_web::{HttpResponse, ResponseError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_state::profile::{Page, Predicate, Reader, TagValue, UserId, Version};

use super::Shown;
use crate::coordinator::Health;
use crate::job::JobView;
use crate::metrics;

/// The most users that one answer lists.
const MOST_IDS: usize = 10_000;

pub(super) fn routes(config: &mut ServiceConfig) {
    config
        .route("/", web::get().to(index))
        .route("/health", web::get().to(health))
        .route("/ready", web::get().to(ready))
        .route("/metrics", web::get().to(prometheus))
        .route("/job", web::get().to(job))
        .route("/plan", web::get().to(plan))
        .route("/segments/count", web::get().to(count))
        .route("/segments/ids", web::get().to(ids))
        .route("/profiles/{user}", web::get().to(profile))
        .default_service(web::to(async || {
            HttpResponse::from(Refusal::missing("no such route; GET / lists them"))
        }));
}

/// What went wrong, for the one who asked.
#[derive(Debug, Serialize)]
struct Refusal {
    #[serde(skip)]
    status: StatusCode,
    error: String,
}

impl Refusal {
    fn bad(error: impl Into<String>) -> Self {
        Refusal { status: StatusCode::BAD_REQUEST, error: error.into() }
    }
    fn missing(error: impl Into<String>) -> Self {
        Refusal { status: StatusCode::NOT_FOUND, error: error.into() }
    }
    fn not_yet(error: impl Into<String>) -> Self {
        Refusal { status: StatusCode::SERVICE_UNAVAILABLE, error: error.into() }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.error)
    }
}

impl ResponseError for Refusal {
    fn status_code(&self) -> StatusCode {
        self.status
    }
    fn error_response(&self) -> HttpResponse {
        HttpResponse::build(self.status).json(self)
    }
}

impl From<Refusal> for HttpResponse {
    fn from(refusal: Refusal) -> Self {
        refusal.error_response()
    }
}

type Answered = Result<HttpResponse, Refusal>;

async fn index() -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain; charset=utf-8").body(
        "GET /segments/count?q=CONDITION   users who match; curl -G --data-urlencode \"q=buys_total >= 2\" http://…/segments/count\n\
         GET /segments/ids?q=CONDITION&offset=0&limit=100   who they are\n\
         GET /profiles/USER    every tag of one user\n\
         GET /job              state, tasks and their counts\n\
         GET /plan             the plan as text; ?format=dot or json\n\
         GET /metrics          Prometheus text\n\
         GET /health           503 when the job has failed, or its checkpoints are older than it tolerates\n\
         GET /ready            503 as well while no records flow, or when checkpoints are half that old\n",
    )
}

#[derive(Deserialize)]
struct SegmentQuery {
    q: Option<String>,
    #[serde(default)]
    offset: u64,
    limit: Option<usize>,
}

impl SegmentQuery {
    fn predicate(&self) -> Result<Predicate, Refusal> {
        let text = self.q.as_deref().unwrap_or_default();
        if text.trim().is_empty() {
            return Err(Refusal::bad("q is missing: the condition, e.g. q=buys_total >= 2"));
        }
        Predicate::parse(text).map_err(|e| Refusal::bad(e.to_string()))
    }
}

fn reader(shown: &Data<Shown>) -> Result<Reader, Refusal> {
    shown.profiles.clone().ok_or_else(|| Refusal::missing("this job keeps no profiles"))
}

#[derive(Serialize)]
struct Read<T> {
    #[serde(flatten)]
    value: T,
    version: Version,
    /// Absent before anything was published.
    #[serde(skip_serializing_if = "Option::is_none")]
    age_ms: Option<u64>,
}

fn read<T: Serialize>(value: T, version: Version) -> HttpResponse {
    let age_ms = (version.sequence > 0).then(|| version.age().as_millis() as u64);
    HttpResponse::Ok().json(Read { value, version, age_ms })
}

/// Queries use the processor, so they run beside the thread that answers, not on it.
async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
    web::block(work).await.map_err(|e| Refusal::not_yet(format!("too busy: {e}")))
}

async fn count(shown: Data<Shown>, query: Result<Query<SegmentQuery>, actix_web::Error>) -> Answered {
    #[derive(Serialize)]
    struct Count {
        count: u64,
    }
    let query = query.map_err(|e| Refusal::bad(e.to_string()))?;
    let (reader, predicate) = (reader(&shown)?, query.predicate()?);
    let answer =
        off_thread(move || reader.count(&predicate)).await?.map_err(|e| Refusal::bad(e.to_string()))?;
    Ok(read(Count { count: answer.value }, answer.version))
}

async fn ids(shown: Data<Shown>, query: Result<Query<SegmentQuery>, actix_web::Error>) -> Answered {
    #[derive(Serialize)]
    struct Ids {
        ids: Vec<UserId>,
    }
    let query = query.map_err(|e| Refusal::bad(e.to_string()))?;
    let limit = query.limit.unwrap_or(100);
    if limit > MOST_IDS {
        return Err(Refusal::bad(format!("limit is {limit}: at most {MOST_IDS}; page on with offset")));
    }
    let page = Page { offset: query.offset, limit };
    let (reader, predicate) = (reader(&shown)?, query.predicate()?);
    let answer =
        off_thread(move || reader.ids(&predicate, page)).await?.map_err(|e| Refusal::bad(e.to_string()))?;
    Ok(read(Ids { ids: answer.value }, answer.version))
}

async fn profile(shown: Data<Shown>, user: Path<String>) -> Answered {
    #[derive(Serialize)]
    struct Profile<U, T> {
        user: U,
        tags: T,
    }
    let reader = reader(&shown)?;
    // A path has no types: digits name the numeric user first, then the one whose name is digits.
    let number = user.parse::<u64>().ok().map(UserId::from);
    let candidates = number.into_iter().chain([UserId::from(user.as_str())]);
    for id in candidates {
        let answer = reader.profile(&id);
        if let Some(tags) = answer.value {
            let tags: BTreeMap<String, Value> =
                tags.into_iter().map(|(tag, value)| (tag, plain(value))).collect();
            return Ok(read(Profile { user: id, tags }, answer.version));
        }
    }
    Err(Refusal::missing(format!("no user {:?} in this version", user.as_str())))
}

/// A tag's value as anyone would write it in JSON: a string, a number, a list of strings.
fn plain(value: TagValue) -> Value {
    match value {
        TagValue::Text(text) => Value::from(text),
        TagValue::Int(n) => Value::from(n),
        TagValue::Set(elements) => elements.into_iter().collect(),
        // Types to come say in their own serde image what they are.
        other => serde_json::to_value(other).unwrap_or(Value::Null),
    }
}

fn view(shown: &Data<Shown>) -> Result<&JobView, Refusal> {
    shown.job.get().ok_or_else(|| Refusal::not_yet("the job has not started yet"))
}

fn well(yes: bool, health: &Health) -> HttpResponse {
    let code = if yes { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    HttpResponse::build(code).json(health)
}

async fn health(shown: Data<Shown>) -> Answered {
    let health = view(&shown)?.health();
    Ok(well(health.healthy, &health))
}

async fn ready(shown: Data<Shown>) -> Answered {
    let health = view(&shown)?.health();
    Ok(well(health.ready, &health))
}

async fn job(shown: Data<Shown>) -> Answered {
    Ok(HttpResponse::Ok().json(view(&shown)?.describe()))
}

#[derive(Deserialize)]
struct PlanQuery {
    format: Option<String>,
}

async fn plan(shown: Data<Shown>, query: Query<PlanQuery>) -> Answered {
    let plan = view(&shown)?.plan();
    let (kind, body) = match query.format.as_deref().unwrap_or("text") {
        "text" => ("text/plain; charset=utf-8", plan.to_string()),
        "dot" => ("text/vnd.graphviz; charset=utf-8", plan.to_dot()),
        "json" => ("application/json", plan.to_json()),
        other => return Err(Refusal::bad(format!("format is {other:?}: text, dot or json"))),
    };
    Ok(HttpResponse::Ok().content_type(kind).body(body))
}

async fn prometheus() -> Answered {
    let text = metrics::render()
        .ok_or_else(|| Refusal::missing("metrics go to another recorder of this process"))?;
    Ok(HttpResponse::Ok().content_type("text/plain; version=0.0.4; charset=utf-8").body(text))
}
