//! `/log`: what the process logs, shown and changed while it runs.

use actix_web::HttpResponse;
use actix_web::web::{self, ServiceConfig};
use serde_json::json;

use crate::log::{self, LogError};

/// A filter is a line, not a book.
const LONGEST: usize = 4 << 10;

pub(super) fn routes(config: &mut ServiceConfig) {
    config.route("/log", web::get().to(show)).route("/log", web::put().to(set));
}

async fn show() -> HttpResponse {
    match log::filter() {
        Some(filter) => HttpResponse::Ok().json(json!({ "filter": filter })),
        None => HttpResponse::NotFound().json(json!({ "error": LogError::Elsewhere.to_string() })),
    }
}

async fn set(body: Result<web::Bytes, actix_web::Error>) -> HttpResponse {
    let bad = |why: String| HttpResponse::BadRequest().json(json!({ "error": why }));
    let body = match body {
        Ok(body) if body.len() <= LONGEST => body,
        Ok(body) => return bad(format!("the filter has {} bytes: at most {LONGEST}", body.len())),
        Err(e) => return bad(e.to_string()),
    };
    let Ok(filter) = std::str::from_utf8(&body) else { return bad("the filter is not UTF-8".to_owned()) };
    match log::set(filter.trim()) {
        Ok(before) => {
            tracing::info!("the log filter is {:?} now; it was {before:?}", filter.trim());
            HttpResponse::Ok().json(json!({ "filter": filter.trim(), "before": before }))
        }
        Err(e @ LogError::Elsewhere) => HttpResponse::NotFound().json(json!({ "error": e.to_string() })),
        Err(e) => bad(e.to_string()),
    }
}
