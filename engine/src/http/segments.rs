//! Questions about segments: each reads one version, the newest unless the request says which, and answers with it.
//! (over 400 lines: a handler per route, beside each other)

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::http::StatusCode;
use actix_web::web::{self, Bytes, Data, Path};
use actix_web::{HttpRequest, HttpResponse};
use serde::Serialize;
use serde_json::Value;
use weir_state::profile::{
    Answer, Explained, NumberStats, Page, Predicate, Profiles, QueryError, Rows, Snapshot, SqlError,
    TagValue, TopValue, UserId, Version, WriteError,
};

use super::Shown;
use super::answers::{Answered, Refusal, answered, off_thread};
use super::pages::{List, Pages, Token};
use super::params::{Given, Params};

/// The most users that one answer lists.
const MOST_IDS: u64 = 10_000;
/// The most values that one answer lists: each is counted among everyone.
const MOST_TOPS: u64 = 1_000;
/// How long a question waits for event time, if it does not say how long.
const WAIT_MS: u64 = 5_000;
/// How long it may wait.
const MOST_WAIT_MS: u64 = 60_000;
/// How often who waits looks again.
const LOOK_EVERY: Duration = Duration::from_millis(10);

pub(super) fn profiles(shown: &Shown) -> Result<&Profiles, Refusal> {
    shown.profiles.as_ref().ok_or_else(|| Refusal::missing("this job keeps no profiles"))
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
    let age_ms = (version.published_at > 0).then(|| version.age().as_millis() as u64);
    let body = serde_json::to_vec(&Read { value, version, age_ms });
    body.map_err(|e| Refusal::internal(e.to_string()))
}

/// The version that a request asks of: `at=checkpoint`, `at_least=MS` with `wait_ms`, or the newest.
async fn version(shown: &Shown, params: &Params) -> Result<Snapshot, Refusal> {
    let reader = profiles(shown)?.reader();
    let late = |error: QueryError| Refusal::not_yet(error.to_string());
    match params.text("at") {
        None | Some("newest") => {}
        Some("checkpoint") if params.has("at_least") => {
            return Err(Refusal::bad("at=checkpoint reads what there is: leave at_least out"));
        }
        Some("checkpoint") => return reader.at_checkpoint().map_err(late),
        Some(other) => return Err(Refusal::bad(format!("at is {other:?}: newest or checkpoint"))),
    }
    let Some(wanted) = params.read::<i64>("at_least", "an event time in ms since the epoch")? else {
        return Ok(reader.snapshot());
    };
    let patience = Duration::from_millis(params.up_to("wait_ms", WAIT_MS, MOST_WAIT_MS, " ms")?);
    let began = Instant::now();
    // Of those that wait, too, there is a bound; they hold no thread.
    let mut turn = None;
    loop {
        let snapshot = reader.snapshot();
        if snapshot.version().watermark >= wanted {
            return Ok(snapshot);
        }
        drop(snapshot);
        if began.elapsed() >= patience {
            return Err(late(reader.not_yet(wanted, began.elapsed())));
        }
        if turn.is_none() {
            let waiting = shown.waits.clone().try_acquire_owned();
            let full =
                |_| Refusal::not_yet("too busy: too many wait for event time already; ask again later");
            turn = Some(waiting.map_err(full)?);
        }
        actix_web::rt::time::sleep(LOOK_EVERY.min(patience)).await;
    }
}

/// Works an answer out, its body too, beside the thread that answers; `shape` says what of it is shown.
async fn answer<A, T: Serialize>(
    shown: &Shown,
    params: &Params,
    work: impl FnOnce(&Snapshot) -> Result<Answer<A>, QueryError> + Send + 'static,
    shape: impl FnOnce(A) -> T + Send + 'static,
) -> Answered {
    let snapshot = version(shown, params).await?;
    let done = move || {
        let Answer { value, version } = work(&snapshot).map_err(|e| Refusal::bad(e.to_string()))?;
        body(shape(value), version)
    };
    Ok(answered(off_thread(shown, done).await??))
}

pub(super) async fn count(shown: Data<Shown>, request: HttpRequest, given: Given) -> Answered {
    #[derive(Serialize)]
    struct Count {
        count: u64,
    }
    let params = Params::of(&request, given)?;
    profiles(&shown)?;
    let predicate = params.condition("q")?;
    answer(&shown, &params, move |s| s.count(&predicate), |count| Count { count }).await
}

pub(super) async fn explain(shown: Data<Shown>, request: HttpRequest, given: Given) -> Answered {
    #[derive(Serialize)]
    struct Explains {
        explained: Explained,
    }
    let params = Params::of(&request, given)?;
    profiles(&shown)?;
    let predicate = params.condition("q")?;
    answer(&shown, &params, move |s| s.explain(&predicate), |explained| Explains { explained }).await
}

pub(super) async fn top(shown: Data<Shown>, request: HttpRequest, given: Given) -> Answered {
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
    let params = Params::of(&request, given)?;
    profiles(&shown)?;
    let limit = params.up_to("limit", 10, MOST_TOPS, "")? as usize;
    let tag = params.needed("tag", "whose values are counted, e.g. tag=city")?.to_owned();
    let predicate = params.condition("q")?;
    let shape =
        |t: TopValue| Top { value: plain(t.value), users: t.users, everyone: t.everyone, lift: t.lift };
    let work = move |s: &Snapshot| s.top_values(&tag, &predicate, limit);
    answer(&shown, &params, work, move |tops| Tops { top: tops.into_iter().map(shape).collect() }).await
}

pub(super) async fn numbers(shown: Data<Shown>, request: HttpRequest, given: Given) -> Answered {
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
    let params = Params::of(&request, given)?;
    profiles(&shown)?;
    let listed = params.text("percentiles").unwrap_or_default().split(',').filter(|p| !p.trim().is_empty());
    let percentiles: Result<Vec<f64>, Refusal> = listed
        .map(|p| match p.trim().parse::<f64>() {
            Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
            _ => Err(Refusal::bad(format!("percentiles has {p:?}: numbers from 0 to 100, as in 50,95"))),
        })
        .collect();
    let percentiles = percentiles?;
    let tag = params.needed("tag", "whose numbers are summed up, e.g. tag=buys_total")?.to_owned();
    let predicate = params.condition("q")?;
    let work = move |s: &Snapshot| s.number_stats(&tag, &predicate, &percentiles);
    let shape = |stats: NumberStats| Numbers {
        users: stats.users,
        nans: stats.nans,
        sum: stats.sum.map(plain),
        mean: stats.mean.map(|mean| plain(mean.into())),
        min: stats.min.map(plain),
        max: stats.max.map(plain),
        percentiles: stats.percentiles.into_iter().map(|(percent, value)| (percent, plain(value))).collect(),
    };
    answer(&shown, &params, work, shape).await
}

pub(super) async fn overlap(shown: Data<Shown>, request: HttpRequest, given: Given) -> Answered {
    let params = Params::of(&request, given)?;
    profiles(&shown)?;
    let (first, second) = (params.condition("q")?, params.condition("with")?);
    answer(&shown, &params, move |s| s.overlap(&first, &second), |overlap| overlap).await
}

pub(super) async fn ids(shown: Data<Shown>, request: HttpRequest, given: Given) -> Answered {
    #[derive(Serialize)]
    struct Ids {
        ids: Vec<UserId>,
        /// The token of the next page, if the list is kept and has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        next: Option<String>,
    }
    let params = Params::of(&request, given)?;
    let pin = params.read::<bool>("pin", "true or false")?.unwrap_or(false);
    let limit = params.up_to("limit", 100, MOST_IDS, "; page on with pin=true or offset")? as usize;
    let page = params.text("page");
    let kept = pin || page.is_some();
    if kept && limit == 0 {
        return Err(Refusal::bad("limit is 0: pages have at least one user"));
    }
    let (list, known, offset) = match page {
        Some(page) => {
            if ["q", "offset", "pin", "at", "at_least"].iter().any(|name| params.has(name)) {
                return Err(Refusal::bad(
                    "page names condition, place and version: leave q, offset, pin, at and at_least out",
                ));
            }
            let bad = |()| Refusal::bad(format!("page is {page:?}: not what next was in an answer"));
            let token = page.parse::<Token>().map_err(bad)?;
            let list = shown.pages.find(token.list, Instant::now()).ok_or_else(Refusal::gone)?;
            (list, Some(token.list), token.offset)
        }
        None => {
            profiles(&shown)?;
            let predicate = Arc::new(params.condition("q")?);
            let offset = params.up_to("offset", 0, u64::MAX, "")?;
            let snapshot = version(&shown, &params).await?;
            (List { snapshot, predicate, since: Instant::now() }, None, offset)
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
    done.await.map_err(|e| Refusal::internal(e.to_string()))?
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

#[derive(Serialize)]
struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<Value>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

fn table(found: Rows) -> Table {
    let cell = |cell: Option<TagValue>| cell.map_or(Value::Null, plain);
    let rows = found.rows.into_iter().map(|row| row.into_iter().map(cell).collect());
    Table { columns: found.columns, rows: rows.collect(), notes: found.notes }
}

/// A statement that reads.
pub(super) async fn sql_by_query(shown: Data<Shown>, request: HttpRequest) -> Answered {
    let params = Params::of(&request, Ok(Bytes::new()))?;
    profiles(&shown)?;
    let text = params.needed("q", "the statement, e.g. q=show tables")?.to_owned();
    answer(&shown, &params, move |s| s.sql(&text), table).await
}

/// Any statement.
pub(super) async fn sql_by_body(shown: Data<Shown>, request: HttpRequest, given: Given) -> Answered {
    let given = given.map_err(|e| Refusal::bad(e.to_string()))?;
    let text = String::from_utf8(given.into()).map_err(|_| Refusal::bad("the statement is not UTF-8"))?;
    let params = Params::of(&request, Ok(Bytes::new()))?;
    let profiles = profiles(&shown)?.clone();
    if params.has("at") || params.has("at_least") {
        // What names a version reads it.
        return answer(&shown, &params, move |s| s.sql(&text), table).await;
    }
    let done = move || {
        let refused = |e: SqlError| match &e {
            SqlError::Write(WriteError::NotVisible { .. }) => Refusal::accepted(e.to_string()),
            SqlError::Write(WriteError::NoJournal { .. } | WriteError::NoWriter { .. }) => {
                Refusal::not_yet(e.to_string())
            }
            _ => Refusal::bad(e.to_string()),
        };
        let Answer { value, version } = profiles.sql(&text).map_err(refused)?;
        body(table(value), version)
    };
    Ok(answered(off_thread(&shown, done).await??))
}

pub(super) async fn profile(shown: Data<Shown>, request: HttpRequest, user: Path<String>) -> Answered {
    #[derive(Serialize)]
    struct Profile<U, T> {
        user: U,
        tags: T,
    }
    let params = Params::of(&request, Ok(Bytes::new()))?;
    let snapshot = version(&shown, &params).await?;
    // A path has no types: digits name the numeric user first, then the one whose name is digits.
    // "007" and "+7" name nobody but the users called so.
    let number = user.parse::<u64>().ok().filter(|n| n.to_string() == *user).map(UserId::from);
    let candidates = number.into_iter().chain([UserId::from(user.as_str())]);
    for id in candidates {
        let answer = snapshot.profile(&id);
        if let Some(tags) = answer.value {
            let tags: BTreeMap<String, Value> =
                tags.into_iter().map(|(tag, value)| (tag, plain(value))).collect();
            return Ok(answered(body(Profile { user: id, tags }, answer.version)?));
        }
    }
    Err(Refusal::missing(format!("no user {:?} in this version", user.as_str())))
}

#[derive(Serialize)]
struct Defined {
    name: String,
    condition: Value,
}

/// All registered segments.
pub(super) async fn list(shown: Data<Shown>, request: HttpRequest) -> Answered {
    #[derive(Serialize)]
    struct Segments {
        segments: Vec<Defined>,
    }
    let params = Params::of(&request, Ok(Bytes::new()))?;
    let snapshot = version(&shown, &params).await?;
    let defined = |(name, condition): (String, Predicate)| Defined { name, condition: condition.to_json() };
    let segments = snapshot.segments().into_iter().map(defined).collect();
    Ok(answered(body(Segments { segments }, snapshot.version())?))
}

/// One segment and how many are in it.
pub(super) async fn defined(shown: Data<Shown>, request: HttpRequest, name: Path<String>) -> Answered {
    #[derive(Serialize)]
    struct Segment {
        #[serde(flatten)]
        defined: Defined,
        count: u64,
    }
    let params = Params::of(&request, Ok(Bytes::new()))?;
    let snapshot = version(&shown, &params).await?;
    let name = name.into_inner();
    let done = move || {
        let found = snapshot.segments().into_iter().find(|(of, _)| *of == name);
        let (name, condition) =
            found.ok_or_else(|| Refusal::missing(format!("no segment {name:?} in this version")))?;
        let count = snapshot.count(&condition).map_err(|e| Refusal::bad(e.to_string()))?;
        let defined = Defined { name, condition: condition.to_json() };
        body(Segment { defined, count: count.value }, count.version)
    };
    Ok(answered(off_thread(&shown, done).await??))
}

/// Registers a segment, or changes it.
pub(super) async fn define(shown: Data<Shown>, name: Path<String>, given: Given) -> Answered {
    let given = given.map_err(|e| Refusal::bad(e.to_string()))?;
    let profiles = profiles(&shown)?.clone();
    let text = std::str::from_utf8(&given).map_err(|_| Refusal::bad("the condition is not UTF-8"))?;
    let bad = |e: QueryError| Refusal::bad(e.to_string());
    let condition = if text.trim_start().starts_with('{') {
        let json: Value =
            serde_json::from_str(text).map_err(|e| Refusal::bad(format!("the body is no JSON: {e}")))?;
        Predicate::from_json(&json).map_err(bad)?
    } else {
        Predicate::parse(text).map_err(bad)?
    };
    let name = name.into_inner();
    let put = move || profiles.define_segment(&name, condition).map_err(|e| Refusal::bad(e.to_string()));
    off_thread(&shown, put).await??;
    Ok(HttpResponse::build(StatusCode::NO_CONTENT).finish())
}

/// Drops a segment.
pub(super) async fn forget(shown: Data<Shown>, name: Path<String>) -> Answered {
    let profiles = profiles(&shown)?.clone();
    let of = name.clone();
    let drop = move || profiles.drop_segment(&of).map_err(|e| Refusal::bad(e.to_string()));
    match off_thread(&shown, drop).await?? {
        true => Ok(HttpResponse::build(StatusCode::NO_CONTENT).finish()),
        false => Err(Refusal::missing(format!("no segment {:?}", name.as_str()))),
    }
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
