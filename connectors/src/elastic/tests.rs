//! The sink against a server that turns away, refuses and goes missing: nothing is lost, and order is kept.

use std::sync::Mutex;

use serde_json::{Value, json};
use weir_engine::testkit::context;
use weir_engine::{EventTime, Record};

use super::*;
use crate::web::testing::{Asked, Said, Server};

#[derive(Clone, Serialize)]
struct Profile {
    user: String,
    buys: u64,
}

fn profile(user: &str, buys: u64) -> Record<Profile> {
    Record::new(Profile { user: user.into(), buys }, EventTime(0))
}

/// A server that answers for each document by `status`, which sees its id and how often that was asked for.
fn server(status: impl Fn(&str, u32) -> u16 + Send + Sync + 'static) -> Server {
    let asked = Mutex::new(std::collections::BTreeMap::<String, u32>::new());
    Server::new(move |request: &Asked| -> Said {
        if request.method == "GET" {
            return (200, Vec::new(), "{}".to_owned());
        }
        let mut items = Vec::new();
        for line in request.body.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            for name in ["index", "update", "delete"] {
                let Some(id) = line.get(name).and_then(|head| head.get("_id")) else { continue };
                let mut asked = asked.lock().unwrap();
                let times = asked.entry(id.to_string()).or_default();
                *times += 1;
                let status = status(id.as_str().unwrap(), *times);
                let error = (status >= 400).then(|| json!({"reason": "no"}));
                items.push(json!({name: {"_id": id, "status": status, "error": error}}));
            }
        }
        let errors =
            items.iter().any(|item| !item.as_object().unwrap().values().next().unwrap()["error"].is_null());
        (200, Vec::new(), json!({"errors": errors, "items": items}).to_string())
    })
}

fn sink(server: &Server) -> ElasticSink<Profile> {
    ElasticSink::new(server.url(), "profiles", |p: &Profile| p.user.clone())
}

fn opened(mut sink: ElasticSink<Profile>) -> ElasticSink<Profile> {
    sink.open(&context("out", 0, 1)).unwrap();
    sink
}

/// The ids of each bulk that came.
fn bulks(server: &Server) -> Vec<Vec<String>> {
    let ids = |body: &str| {
        let lines = body.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines
            .filter_map(|line| Some(line.as_object()?.values().next()?.get("_id")?.as_str()?.to_owned()))
            .collect()
    };
    server.asked().iter().filter(|asked| asked.method == "POST").map(|asked| ids(&asked.body)).collect()
}

#[test]
fn documents_are_written_when_flush_returns() {
    let server = server(|_, _| 201);
    let mut sink = opened(sink(&server).basic_auth("weir", "secret"));
    sink.write(&mut vec![profile("a", 1), profile("b", 2)]).unwrap();
    sink.write(&mut vec![profile("a", 3)]).unwrap();
    sink.flush().unwrap();
    assert_eq!(bulks(&server), [vec!["a", "b"], vec!["a"]]);
    let last = server.asked().pop().unwrap();
    assert_eq!((last.path.as_str(), last.header("content-type")), ("/_bulk", Some(NDJSON)));
    assert_eq!(last.header("authorization"), Some("Basic d2VpcjpzZWNyZXQ="));
    assert_eq!(
        last.body,
        "{\"index\":{\"_index\":\"profiles\",\"_id\":\"a\"}}\n{\"user\":\"a\",\"buys\":3}\n"
    );
    assert!(!format!("{sink:?}").contains("secret"));
    assert_eq!(sink.open.as_ref().unwrap().written.get(), 3);
}

#[test]
fn what_is_turned_away_comes_again_before_anything_newer() {
    let server = server(|id, times| if id == "b" && times < 3 { 429 } else { 200 });
    let mut sink = opened(sink(&server).upsert().delete_if(|p| p.buys == 0));
    sink.write(&mut vec![profile("a", 1), profile("b", 2), profile("c", 0)]).unwrap();
    sink.write(&mut vec![profile("b", 9)]).unwrap();
    sink.flush().unwrap();
    assert_eq!(bulks(&server), [vec!["a", "b", "c"], vec!["b"], vec!["b"], vec!["b"]]);
    assert!(server.asked()[1].body.contains("{\"delete\":{\"_index\":\"profiles\",\"_id\":\"c\"}}\n"));
    assert!(server.asked().pop().unwrap().body.contains("\"doc\":{\"user\":\"b\",\"buys\":9}"));
    assert_eq!(sink.open.as_ref().unwrap().retries.get(), 2);
}

#[test]
fn bulks_are_as_large_as_they_may_be() {
    let server = server(|_, _| 200);
    let mut sink = opened(sink(&server).bulk_bytes(1));
    sink.write(&mut vec![profile("a", 1), profile("b", 2), profile("c", 3)]).unwrap();
    sink.flush().unwrap();
    assert_eq!(bulks(&server), [vec!["a"], vec!["b"], vec!["c"]]);
}

#[test]
fn what_is_never_taken_fails_the_job_or_is_counted() {
    let server = server(|id, _| if id == "b" { 400 } else { 200 });
    let mut failing = opened(sink(&server));
    failing.write(&mut vec![profile("a", 1), profile("b", 2)]).unwrap();
    let e = failing.flush().unwrap_err().to_string();
    assert!(
        e.starts_with("1 of 2 documents were refused, the first of them: index of \"b\" got status 400"),
        "{e}"
    );
    let mut passing = opened(sink(&server).on_refused(Refused::Skip));
    passing.write(&mut vec![profile("a", 1), profile("b", 2)]).unwrap();
    passing.flush().unwrap();
    let open = passing.open.as_ref().unwrap();
    assert_eq!((open.written.get(), open.refused.get()), (1, 1));
}

#[test]
fn a_server_that_is_busy_is_waited_for_and_given_up() {
    let times = Mutex::new(0);
    let server = Server::new(move |asked: &Asked| -> Said {
        let mut times = times.lock().unwrap();
        *times += 1;
        match (asked.method.as_str(), *times) {
            ("GET", _) => (200, Vec::new(), "{}".to_owned()),
            (_, 2) => (429, vec![("retry-after", "0".to_owned())], "busy".to_owned()),
            (_, 3) => (503, Vec::new(), "away".to_owned()),
            (_, 4) => (200, Vec::new(), r#"{"errors":false,"items":[{"index":{"status":201}}]}"#.to_owned()),
            _ => (429, Vec::new(), "busy".to_owned()),
        }
    });
    let mut sink = opened(sink(&server).give_up_after(Duration::from_millis(400)));
    sink.write(&mut vec![profile("a", 1)]).unwrap();
    sink.flush().unwrap();
    sink.write(&mut vec![profile("a", 2)]).unwrap();
    let e = sink.flush().unwrap_err().to_string();
    assert!(
        e.starts_with("1 documents were not taken in 3 tries over 300ms; the last: status 429: busy"),
        "{e}"
    );
    sink.close(Closing::Stopped);
}

#[test]
fn a_server_that_is_away_is_replaced_by_the_next() {
    let server = server(|_, _| 200);
    let mut sink =
        ElasticSink::new("http://127.0.0.1:1", "profiles", |p: &Profile| p.user.clone()).and(server.url());
    sink.open(&context("out", 0, 1)).unwrap();
    sink.write(&mut vec![profile("a", 1)]).unwrap();
    sink.flush().unwrap();
    assert_eq!(bulks(&server), [vec!["a"]]);
}

#[test]
fn starts_that_cannot_work_say_so() {
    let closed = Server::new(|_: &Asked| (401, Vec::new(), "who are you".to_owned()));
    let e = sink(&closed).open(&context("out", 0, 1)).unwrap_err().to_string();
    assert!(e.contains("answered with status 401: who are you"), "{e}");
    let e = sink(&closed).upsert().version(|p| p.buys).open(&context("out", 0, 1)).unwrap_err().to_string();
    assert!(e.contains("leave one out"), "{e}");
    let mut odd = ElasticSink::new("search:9200", "profiles", |p: &Profile| p.user.clone());
    assert!(odd.open(&context("out", 0, 1)).unwrap_err().to_string().contains("is no address"));
}
