//! The routes, and what those of the job answer, as JSON unless it says otherwise.

use actix_web::http::StatusCode;
use actix_web::web::{self, Data, Query, ServiceConfig};
use actix_web::{HttpResponse, ResponseError, Route, guard};
use serde::{Deserialize, Serialize};

use super::{Shown, control, pages, segments};
use crate::coordinator::Health;
use crate::job::JobView;
use crate::metrics;

/// Answers GET, and HEAD with the same head.
fn get() -> Route {
    web::route().guard(guard::Any(guard::Get()).or(guard::Head()))
}

pub(super) fn routes(config: &mut ServiceConfig) {
    config
        .route("/", get().to(index))
        .route("/openapi.json", get().to(openapi))
        .route("/health", get().to(health))
        .route("/ready", get().to(ready))
        .route("/metrics", get().to(prometheus))
        .route("/job", get().to(job))
        .configure(super::logs::routes)
        .route("/plan", get().to(plan))
        .configure(control::routes)
        .route("/sql", get().to(segments::sql_by_query))
        .route("/sql", web::post().to(segments::sql_by_body))
        .route("/segments", get().to(segments::list))
        .route("/segment/{name}", get().to(segments::defined))
        .route("/segment/{name}", web::put().to(segments::define))
        .route("/segment/{name}", web::delete().to(segments::forget))
        .route("/profiles/{user}", get().to(segments::profile));
    // A condition may be too long for an address, or be JSON.
    for (path, get, post) in [
        ("/segments/count", get().to(segments::count), web::post().to(segments::count)),
        ("/segments/ids", get().to(segments::ids), web::post().to(segments::ids)),
        ("/segments/explain", get().to(segments::explain), web::post().to(segments::explain)),
        ("/segments/top", get().to(segments::top), web::post().to(segments::top)),
        ("/segments/numbers", get().to(segments::numbers), web::post().to(segments::numbers)),
        ("/segments/overlap", get().to(segments::overlap), web::post().to(segments::overlap)),
    ] {
        config.route(path, get).route(path, post);
    }
    config.default_service(web::to(async || {
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
    pub(super) fn gone() -> Self {
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
    /// It is written and will be so, but that is not seen yet: it is not to be sent again.
    pub(super) fn accepted(error: impl Into<String>) -> Self {
        Refusal { status: StatusCode::ACCEPTED, error: error.into() }
    }
    pub(super) fn internal(error: impl Into<String>) -> Self {
        Refusal { status: StatusCode::INTERNAL_SERVER_ERROR, error: error.into() }
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
         POST /segments/…      the same, with a JSON body: {\"q\": CONDITION or {\"tag\": \"buys_total\", \"ge\": 2}, …}\n\
         …&at_least=MS&wait_ms=5000   once the version is complete up to that event time; &at=checkpoint: of the last completed one\n\
         GET /segments         registered segments; GET, PUT (the condition as the body) or DELETE /segment/NAME\n\
         GET /sql?q=STATEMENT  SELECT, SHOW TABLES or SEGMENTS, DESCRIBE; POST /sql with the statement as the body, up to 64 KiB, also\n\
                               ALTER TABLE, CREATE SEGMENT and DROP SEGMENT\n\
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

pub(super) fn answered(body: Vec<u8>) -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(body)
}

/// Queries use the processor, so they run beside the thread that answers, not on it.
/// So many wait or run at once: a client that asks faster than it is answered hears so, and nobody waits behind what nobody
/// reads any more.
pub(super) async fn off_thread<T: Send + 'static>(
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
    use std::sync::{Arc, mpsc};

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
