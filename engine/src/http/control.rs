//! The routes that change a job: savepoints and its stop, for jobs that were given to [`HttpServing::control`](super::HttpServing::control).

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::web::{self, Data, Path, Query, ServiceConfig};
use serde::{Deserialize, Serialize};

use super::Shown;
use super::answers::{Answered, Refusal};
use crate::element::EndKind;
use crate::job::JobControl;

pub(super) fn routes(config: &mut ServiceConfig) {
    config
        .route("/job/savepoints/{name}", web::post().to(savepoint))
        .route("/job/stop", web::post().to(stop));
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stop {
    savepoint: Option<String>,
}

#[derive(Serialize)]
struct Saved {
    savepoint: String,
}

async fn savepoint(shown: Data<Shown>, name: Path<String>) -> Answered {
    save(control(&shown)?, name.into_inner(), false).await
}

async fn stop(shown: Data<Shown>, query: Result<Query<Stop>, actix_web::Error>) -> Answered {
    let query =
        query.map_err(|e| Refusal::bad(format!("{e}; write POST /job/stop?savepoint=NAME, or without")))?;
    let control = control(&shown)?;
    match query.into_inner().savepoint {
        Some(name) => save(control, name, true).await,
        None => {
            control.drain(EndKind::Keep);
            Ok(HttpResponse::Accepted().json(serde_json::json!({ "stopping": true })))
        }
    }
}

fn control(shown: &Data<Shown>) -> Result<JobControl, Refusal> {
    let known = shown.control.get().cloned();
    known.ok_or_else(|| {
        Refusal::missing(
            "this job may not be changed over HTTP: its program has not called HttpServing::control",
        )
    })
}

/// A savepoint takes as long as the storage does: on a thread of its own, so that no query waits behind it.
async fn save(control: JobControl, name: String, stop: bool) -> Answered {
    let (tell, told) = tokio::sync::oneshot::channel();
    let work = move || {
        // Nobody may be waiting any more; the savepoint is taken all the same.
        let _ = tell.send(control.save(Some(&name), stop));
    };
    let started = std::thread::Builder::new().name("weir-savepoint".into()).spawn(work);
    started.map_err(|e| Refusal::not_yet(format!("no thread for it: {e}")))?;
    match told.await {
        Ok(Ok(savepoint)) => Ok(HttpResponse::Ok().json(Saved { savepoint })),
        Ok(Err(why)) => Err(Refusal::with(StatusCode::CONFLICT, why)),
        Err(_) => Err(Refusal::with(StatusCode::INTERNAL_SERVER_ERROR, "the savepoint's thread went away")),
    }
}
