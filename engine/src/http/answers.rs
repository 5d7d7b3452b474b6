//! The routes: what each answers, as JSON unless it says otherwise. (over 400 lines: all of them beside each other)

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use actix_web::http::StatusCode;
use actix_web::web::{self, Data, Path, Query, ServiceConfig};
use actix_web::{HttpResponse, ResponseError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_state::profile::{
    self, Answer, Explained, NumberStats, Page, Predicate, QueryError, Reader, TagValue, TopValue, UserId,
    Version,
};

use super::Shown;
use super::control;
use super::pages::{self, List, Pages, Token};
use crate::coordinator::Health;
use crate::job::JobView;
use crate::metrics;

/// The most users that one answer lists.
const MOST_IDS: usize = 10_000;
/// The most values that one answer lists: each is counted among everyone.
const MOST_TOPS: usize = 1_000;

pub(super) fn routes(config: &mut ServiceConfig) {
    config
        .route("/", web::get().to(index))
        .route("/openapi.json", web::get().to(openapi))
        .route("/health", web::get().to(health))
        .route("/ready", web::get().to(ready))
        .route("/metrics", web::get().to(prometheus))
        .route("/job", web::get().to(job))
        .configure(super::logs::routes)
        .route("/plan", web::get().to(plan))
        .configure(control::routes)
        .route("/segments/count", web::get().to(count))
        .route("/segments/ids", web::get().to(ids))
        .route("/segments/explain", web::get().to(explain))
        .route("/segments/top", web::get().to(top))
        .route("/segments/numbers", web::get().to(numbers))
        .route("/segments/overlap", web::get().to(overlap))
        .route("/sql", web::get().to(sql_by_query))
        .route("/sql", web::post().to(sql_by_body))
        .route("/profiles/{user}", web::get().to(profile))
        .default_service(web::to(async || {
            HttpResponse::from(Refusal::missing("no such route; GET / lists them"))
        }));
}

/// What went wrong, for the one who asked.
#[derive(Debug, Serialize)]
pub(super) struct Refusal {
    #[serde(skip)]
    status: StatusCode,
    error: String,
}

impl Refusal {
    pub(super) fn with(status: StatusCode, error: impl Into<String>) -> Self {
        Refusal { status, error: error.into() }
    }
    pub(super) fn bad(error: impl Into<String>) -> Self {
        Refusal { status: StatusCode::BAD_REQUEST, error: error.into() }
    }
    pub(super) fn missing(error: impl Into<String>) -> Self {
        Refusal { status: StatusCode::NOT_FOUND, error: error.into() }
    }
    fn gone() -> Self {
        let error = format!(
            "this page is gone: its version is kept for {} s after the last page, for {} s in all, and as one of the {} \
             that were read last; begin again with q and pin=true",
            pages::KEPT.as_secs(),
            pages::OLDEST.as_secs(),
            pages::MOST
        );
        Refusal { status: StatusCode::GONE, error }
    }
    pub(super) fn not_yet(error: impl Into<String>) -> Self {
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

pub(super) type Answered = Result<HttpResponse, Refusal>;

async fn index() -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain; charset=utf-8").body(
        "GET /segments/count?q=CONDITION   users who match; curl -G --data-urlencode \"q=buys_total >= 2\" http://…/segments/count\n\
         GET /segments/ids?q=CONDITION&offset=0&limit=100   who they are; with pin=true, next is the token of the next page\n\
         GET /segments/ids?page=TOKEN&limit=100   the next page, of the same version, for a minute after the last, 15 in all\n\
         GET /segments/explain?q=CONDITION   each part of it: who matches, how long that takes, what is read\n\
         GET /segments/top?q=CONDITION&tag=TAG&limit=10   its commonest values, against everyone's\n\
         GET /segments/numbers?q=CONDITION&tag=TAG&percentiles=50,95   count, sum, mean, min, max and percentiles of a number\n\
         GET /segments/overlap?q=CONDITION&with=CONDITION   what two segments share\n\
         GET /sql?q=STATEMENT  SELECT, SHOW TABLES, DESCRIBE; or POST /sql with the statement as the body, up to 64 KiB\n\
         GET /profiles/USER    every tag of one user\n\
         GET /openapi.json     all of these with parameters and answers, for programs\n\
         GET /job              state, tasks and their counts\n\
         GET /plan             the plan as text; ?format=dot or json\n\
         GET /log              the log filter in force; PUT /log with another as the body, such as info,checkpoint=debug\n\
         POST /job/savepoints/NAME   takes a savepoint, where the program allows it\n\
         POST /job/stop?savepoint=NAME   stops the job, with a savepoint or without, where the program allows it\n\
         GET /metrics          Prometheus text\n\
         GET /health           503 when the job has failed, or its checkpoints are older than it tolerates\n\
         GET /ready            503 as well while no records flow, or when checkpoints are half that old\n",
    )
}

/// All routes with their parameters and answers, for programs.
async fn openapi() -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(include_str!("openapi.json"))
}

#[derive(Deserialize)]
struct SegmentQuery {
    q: Option<String>,
}

fn predicate(q: Option<&str>) -> Result<Predicate, Refusal> {
    let text = q.unwrap_or_default();
    if text.trim().is_empty() {
        return Err(Refusal::bad("q is missing: the condition, e.g. q=buys_total >= 2"));
    }
    Predicate::parse(text).map_err(|e| Refusal::bad(e.to_string()))
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

/// An answer's body. *Blocking*: while a large one is written.
fn body<T: Serialize>(value: T, version: Version) -> Result<Vec<u8>, Refusal> {
    let age_ms = (version.sequence > 0).then(|| version.age().as_millis() as u64);
    let body = serde_json::to_vec(&Read { value, version, age_ms });
    body.map_err(|e| Refusal { status: StatusCode::INTERNAL_SERVER_ERROR, error: e.to_string() })
}

fn answered(body: Vec<u8>) -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(body)
}

/// Works an answer out, its body too, beside the thread that answers; `shape` says what of it is shown.
async fn answer<A, T: Serialize>(
    shown: &Shown,
    work: impl FnOnce() -> Result<Answer<A>, QueryError> + Send + 'static,
    shape: impl FnOnce(A) -> T + Send + 'static,
) -> Answered {
    let done = move || {
        let Answer { value, version } = work().map_err(|e| Refusal::bad(e.to_string()))?;
        body(shape(value), version)
    };
    Ok(answered(off_thread(shown, done).await??))
}

/// Queries use the processor, so they run beside the thread that answers, not on it.
/// So many wait or run at once: a client that asks faster than it is answered hears so, and nobody waits behind what nobody
/// reads any more.
async fn off_thread<T: Send + 'static>(
    shown: &Shown,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    let busy = |why: &dyn std::fmt::Display| Refusal::not_yet(format!("too busy: {why}"));
    let turn = shown.turns.clone().try_acquire_owned();
    let turn = turn.map_err(|_| {
        busy(&format_args!("{} queries are waiting already; ask again later", super::QUERIES))
    })?;
    let done = move || {
        // Until the work is done, whether or not somebody still waits for it.
        let _turn = turn;
        work()
    };
    web::block(done).await.map_err(|e| busy(&e))
}

async fn count(shown: Data<Shown>, query: Result<Query<SegmentQuery>, actix_web::Error>) -> Answered {
    #[derive(Serialize)]
    struct Count {
        count: u64,
    }
    let query = query.map_err(|e| Refusal::bad(e.to_string()))?;
    let (reader, predicate) = (reader(&shown)?, predicate(query.q.as_deref())?);
    answer(&shown, move || reader.count(&predicate), |count| Count { count }).await
}

async fn explain(shown: Data<Shown>, query: Result<Query<SegmentQuery>, actix_web::Error>) -> Answered {
    #[derive(Serialize)]
    struct Explains {
        explained: Explained,
    }
    let query = query.map_err(|e| Refusal::bad(e.to_string()))?;
    let (reader, predicate) = (reader(&shown)?, predicate(query.q.as_deref())?);
    answer(&shown, move || reader.explain(&predicate), |explained| Explains { explained }).await
}

#[derive(Deserialize)]
struct TopQuery {
    q: Option<String>,
    tag: String,
    limit: Option<usize>,
}

async fn top(shown: Data<Shown>, query: Result<Query<TopQuery>, actix_web::Error>) -> Answered {
    #[derive(Serialize)]
    struct Top {
        value: Value,
        users: u64,
        everyone: u64,
        lift: f64,
    }
    #[derive(Serialize)]
    struct Tops {
        top: Vec<Top>,
    }
    let query = query.map_err(|e| Refusal::bad(e.to_string()))?.into_inner();
    let limit = query.limit.unwrap_or(10);
    if limit > MOST_TOPS {
        return Err(Refusal::bad(format!("limit is {limit}: at most {MOST_TOPS}")));
    }
    let (reader, predicate) = (reader(&shown)?, predicate(query.q.as_deref())?);
    let shape =
        |t: TopValue| Top { value: plain(t.value), users: t.users, everyone: t.everyone, lift: t.lift };
    let work = move || reader.top_values(&query.tag, &predicate, limit);
    answer(&shown, work, move |tops| Tops { top: tops.into_iter().map(shape).collect() }).await
}

#[derive(Deserialize)]
struct NumbersQuery {
    q: Option<String>,
    tag: String,
    percentiles: Option<String>,
}

async fn numbers(shown: Data<Shown>, query: Result<Query<NumbersQuery>, actix_web::Error>) -> Answered {
    #[derive(Serialize)]
    struct Numbers {
        users: u64,
        nans: u64,
        sum: Option<Value>,
        mean: Option<Value>,
        min: Option<Value>,
        max: Option<Value>,
        percentiles: Vec<(f64, Value)>,
    }
    let query = query.map_err(|e| Refusal::bad(e.to_string()))?.into_inner();
    let listed = query.percentiles.as_deref().unwrap_or_default().split(',').filter(|p| !p.trim().is_empty());
    let percentiles: Result<Vec<f64>, Refusal> = listed
        .map(|p| match p.trim().parse::<f64>() {
            Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
            _ => Err(Refusal::bad(format!("percentiles has {p:?}: numbers from 0 to 100, as in 50,95"))),
        })
        .collect();
    let percentiles = percentiles?;
    let (reader, predicate) = (reader(&shown)?, predicate(query.q.as_deref())?);
    let work = move || reader.number_stats(&query.tag, &predicate, &percentiles);
    let shape = |stats: NumberStats| Numbers {
        users: stats.users,
        nans: stats.nans,
        sum: stats.sum.map(plain),
        mean: stats.mean.map(|mean| plain(mean.into())),
        min: stats.min.map(plain),
        max: stats.max.map(plain),
        percentiles: stats.percentiles.into_iter().map(|(percent, value)| (percent, plain(value))).collect(),
    };
    answer(&shown, work, shape).await
}

#[derive(Deserialize)]
struct OverlapQuery {
    q: Option<String>,
    with: Option<String>,
}

async fn overlap(shown: Data<Shown>, query: Result<Query<OverlapQuery>, actix_web::Error>) -> Answered {
    let query = query.map_err(|e| Refusal::bad(e.to_string()))?;
    let reader = reader(&shown)?;
    let (first, second) = (predicate(query.q.as_deref())?, predicate(query.with.as_deref())?);
    answer(&shown, move || reader.overlap(&first, &second), |overlap| overlap).await
}

#[derive(Deserialize)]
struct IdsQuery {
    q: Option<String>,
    offset: Option<u64>,
    limit: Option<usize>,
    /// Keeps the version for the pages that follow.
    #[serde(default)]
    pin: bool,
    page: Option<String>,
}

async fn ids(shown: Data<Shown>, query: Result<Query<IdsQuery>, actix_web::Error>) -> Answered {
    #[derive(Serialize)]
    struct Ids {
        ids: Vec<UserId>,
        /// The token of the next page, if the list is kept and has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        next: Option<String>,
    }
    let query = query.map_err(|e| Refusal::bad(e.to_string()))?.into_inner();
    let limit = query.limit.unwrap_or(100);
    if limit > MOST_IDS {
        return Err(Refusal::bad(format!(
            "limit is {limit}: at most {MOST_IDS}; page on with pin=true or offset"
        )));
    }
    let kept = query.pin || query.page.is_some();
    if kept && limit == 0 {
        return Err(Refusal::bad("limit is 0: pages have at least one user"));
    }
    let (list, known, offset) = match &query.page {
        Some(page) => {
            if query.q.is_some() || query.offset.is_some() || query.pin {
                return Err(Refusal::bad(
                    "page names condition, place and version: leave q, offset and pin out",
                ));
            }
            let bad = |()| Refusal::bad(format!("page is {page:?}: not what next was in an answer"));
            let token = page.parse::<Token>().map_err(bad)?;
            let list = shown.pages.find(token.list, Instant::now()).ok_or_else(Refusal::gone)?;
            (list, Some(token.list), token.offset)
        }
        None => {
            let predicate = Arc::new(predicate(query.q.as_deref())?);
            let snapshot = reader(&shown)?.snapshot();
            (List { snapshot, predicate, since: Instant::now() }, None, query.offset.unwrap_or(0))
        }
    };
    let pages = shown.pages.clone();
    let page = move || {
        // One more than asked for shows whether there is a next page.
        let page = Page { offset, limit: limit + usize::from(kept) };
        let found = list.snapshot.ids(&list.predicate, page).map_err(|e| Refusal::bad(e.to_string()))?;
        let (mut ids, version) = (found.value, found.version);
        let more = ids.len() > limit;
        ids.truncate(limit);
        let (id, sweep) = keep(&pages, known, list, more);
        let next =
            id.filter(|_| more).map(|list| Token { list, offset: offset + ids.len() as u64 }.to_string());
        Ok::<_, Refusal>((body(Ids { ids, next }, version)?, sweep))
    };
    // A task of its own: what is kept is swept, even if nobody waits for the answer any more.
    let given = shown.clone();
    let done = actix_web::rt::spawn(async move {
        let (body, to_sweep) = off_thread(&given, page).await??;
        if to_sweep {
            actix_web::rt::spawn(sweep(given.pages.clone()));
        }
        Ok::<_, Refusal>(answered(body))
    });
    done.await.map_err(|e| Refusal { status: StatusCode::INTERNAL_SERVER_ERROR, error: e.to_string() })?
}

/// Keeps a list that has a next page, or had one: its id, and whether somebody is to sweep. *Blocking*: what has no room is dropped here.
fn keep(pages: &Pages, known: Option<u64>, list: List, more: bool) -> (Option<u64>, bool) {
    let now = Instant::now();
    let (id, sweep, dropped) = match known {
        Some(id) => {
            let (sweep, dropped) = pages.answered(id, list, !more, now);
            (id, sweep, dropped)
        }
        None if more => pages.keep(list, now),
        None => return (None, false),
    };
    dropped.free();
    (Some(id), sweep)
}

/// Lets lists go that nobody asks for, until there are none.
async fn sweep(pages: Arc<Pages>) {
    loop {
        let (wait, dropped) = pages.sweep(Instant::now());
        // A version may be as large as the index: not on the thread that answers.
        let freed = web::block(move || dropped.free()).await;
        let (Some(wait), Ok(())) = (wait, freed) else { return };
        actix_web::rt::time::sleep(wait).await;
    }
}

async fn sql_by_query(shown: Data<Shown>, query: Result<Query<SegmentQuery>, actix_web::Error>) -> Answered {
    let query = query.map_err(|e| Refusal::bad(e.to_string()))?;
    let missing = || Refusal::bad("q is missing: the statement, e.g. q=show tables");
    sql(shown, query.into_inner().q.ok_or_else(missing)?).await
}

async fn sql_by_body(shown: Data<Shown>, body: Result<web::Bytes, actix_web::Error>) -> Answered {
    let body = body.map_err(|e| Refusal::bad(e.to_string()))?;
    let text = String::from_utf8(body.into()).map_err(|_| Refusal::bad("the statement is not UTF-8"))?;
    sql(shown, text).await
}

async fn sql(shown: Data<Shown>, text: String) -> Answered {
    #[derive(Serialize)]
    struct Rows {
        columns: Vec<String>,
        rows: Vec<Vec<Value>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        notes: Vec<String>,
    }
    let reader = reader(&shown)?;
    let cell = |cell: Option<TagValue>| cell.map_or(Value::Null, plain);
    let shape = move |found: profile::Rows| {
        let rows = found.rows.into_iter().map(|row| row.into_iter().map(cell).collect());
        Rows { columns: found.columns, rows: rows.collect(), notes: found.notes }
    };
    answer(&shown, move || reader.sql(&text), shape).await
}

async fn profile(shown: Data<Shown>, user: Path<String>) -> Answered {
    #[derive(Serialize)]
    struct Profile<U, T> {
        user: U,
        tags: T,
    }
    let reader = reader(&shown)?;
    // A path has no types: digits name the numeric user first, then the one whose name is digits.
    // "007" and "+7" name nobody but the users called so.
    let number = user.parse::<u64>().ok().filter(|n| n.to_string() == *user).map(UserId::from);
    let candidates = number.into_iter().chain([UserId::from(user.as_str())]);
    for id in candidates {
        let answer = reader.profile(&id);
        if let Some(tags) = answer.value {
            let tags: BTreeMap<String, Value> =
                tags.into_iter().map(|(tag, value)| (tag, plain(value))).collect();
            return Ok(answered(body(Profile { user: id, tags }, answer.version)?));
        }
    }
    Err(Refusal::missing(format!("no user {:?} in this version", user.as_str())))
}

/// A tag's value as anyone would write it in JSON: a string, a number, true or false, a list; decimals, dates and moments are strings.
fn plain(value: TagValue) -> Value {
    match value {
        TagValue::Text(text) => Value::from(text),
        TagValue::Int(n) => Value::from(n),
        TagValue::UInt(n) => Value::from(n),
        TagValue::Bool(b) => Value::from(b),
        // JSON has neither NaN nor infinity.
        TagValue::Float(n) if n.0.is_finite() => Value::from(n.0),
        TagValue::Float(n) => Value::from(n.to_string()),
        // A JSON number is a float to most who read it.
        TagValue::Decimal(n) => Value::from(n.to_string()),
        TagValue::Date(day) => Value::from(day.to_string()),
        TagValue::Timestamp(at) => Value::from(at.to_string()),
        TagValue::Set(elements) => elements.into_iter().collect(),
        TagValue::IntSet(elements) => elements.into_iter().collect(),
        TagValue::Map(entries) => entries.into_iter().map(|(key, value)| (key, plain(value))).collect(),
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

async fn plan(shown: Data<Shown>, query: Result<Query<PlanQuery>, actix_web::Error>) -> Answered {
    let query = query.map_err(|e| Refusal::bad(e.to_string()))?;
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn more_queries_than_may_wait_are_refused_at_once_and_others_come_in_when_those_are_done() {
        actix_web::rt::System::new().block_on(async {
            let shown = Arc::new(Shown::new(None));
            let mut held = Vec::new();
            let mut waiting = Vec::new();
            for _ in 0..super::super::QUERIES {
                let (release, hold) = mpsc::channel::<()>();
                held.push(release);
                let shown = shown.clone();
                waiting.push(actix_web::rt::spawn(async move {
                    off_thread(&shown, move || hold.recv().is_err()).await.is_ok()
                }));
            }
            while shown.turns.available_permits() > 0 {
                actix_web::rt::task::yield_now().await;
            }
            let refused = off_thread(&shown, || ()).await.expect_err("there is no room");
            assert!(format!("{refused:?}").contains("too busy"), "{refused:?}");
            drop(held);
            for done in waiting {
                assert!(done.await.unwrap());
            }
            assert!(off_thread(&shown, || ()).await.is_ok());
        });
    }
}
