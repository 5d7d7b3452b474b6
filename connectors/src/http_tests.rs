//! The HTTP sink against a server that is busy, refuses and goes missing.

use std::sync::Mutex;

use weir_engine::testkit::context;
use weir_engine::{EventTime, Record};

use super::*;
use crate::web::testing::{Asked, Said, Server};

fn records(values: &[u64]) -> Vec<Record<u64>> {
    values.iter().map(|value| Record::new(*value, EventTime(0))).collect()
}

fn opened(mut sink: HttpSink<u64, Json>) -> HttpSink<u64, Json> {
    sink.open(&context("out", 0, 1)).unwrap();
    sink
}

fn bodies(server: &Server) -> Vec<String> {
    server.asked().into_iter().map(|asked| asked.body).collect()
}

fn good() -> Said {
    (204, Vec::new(), String::new())
}

#[test]
fn one_record_or_a_batch_in_a_request() {
    let server = Server::new(|_: &Asked| good());
    let sink = || HttpSink::<u64, _>::json(format!("{}/in?x=1", server.url()));
    let mut one = opened(sink().idempotency_key(|n| format!("k{n}")).secret_header("x-token", "secret"));
    one.write(&mut records(&[1, 2])).unwrap();
    one.flush().unwrap();
    assert_eq!(bodies(&server), ["1", "2"]);
    let last = server.asked().pop().unwrap();
    assert_eq!((last.method.as_str(), last.path.as_str()), ("POST", "/in?x=1"));
    assert_eq!((last.header("idempotency-key"), last.header("x-token")), (Some("k2"), Some("secret")));
    assert_eq!(last.header("content-type"), Some("application/json"));
    assert!(!format!("{one:?}").contains("secret"));

    let mut lines = opened(sink().lines());
    lines.write(&mut records(&[3, 4])).unwrap();
    lines.flush().unwrap();
    let last = server.asked().pop().unwrap();
    assert_eq!((last.body.as_str(), last.header("content-type")), ("3\n4\n", Some("application/x-ndjson")));
    let mut array = opened(sink().array());
    array.write(&mut records(&[5, 6])).unwrap();
    array.flush().unwrap();
    assert_eq!(bodies(&server).pop().unwrap(), "[5,6]");
}

#[test]
fn a_request_comes_again_until_it_is_taken() {
    let times = Mutex::new(0);
    let server = Server::new(move |_: &Asked| {
        let mut times = times.lock().unwrap();
        *times += 1;
        match *times {
            1 => (429, vec![("retry-after", "0".to_owned())], String::new()),
            2 => (503, Vec::new(), String::new()),
            _ => good(),
        }
    });
    let mut sink = opened(HttpSink::json(server.url()));
    sink.write(&mut records(&[1, 2])).unwrap();
    sink.flush().unwrap();
    assert_eq!(bodies(&server), ["1", "1", "1", "2"], "in order");
    let open = sink.open.as_ref().unwrap();
    assert_eq!((open.requests.get(), open.retries.get()), (2, 2));
}

#[test]
fn more_on_their_way_at_a_time() {
    let server = Server::new(|_: &Asked| good());
    let mut sink = opened(HttpSink::json(server.url()).in_flight(4));
    sink.write(&mut records(&(0..20).collect::<Vec<_>>())).unwrap();
    sink.flush().unwrap();
    let mut seen: Vec<u64> = bodies(&server).iter().map(|body| body.parse().unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..20).collect::<Vec<_>>());
}

#[test]
fn what_is_refused_or_never_taken_fails_the_job() {
    let server = Server::new(|asked: &Asked| {
        let status = if asked.body == "1" { 422 } else { 500 };
        (status, Vec::new(), "no".to_owned())
    });
    let mut sink = opened(HttpSink::json(server.url()).give_up_after(Duration::from_millis(150)));
    sink.write(&mut records(&[1])).unwrap();
    let e = sink.flush().unwrap_err().to_string();
    assert!(e.ends_with("refused a request of 1 bytes with status 422: no"), "{e}");
    sink.write(&mut records(&[2])).unwrap();
    let e = sink.flush().unwrap_err().to_string();
    assert!(e.ends_with("did not take a request in 2 tries over 100ms; the last: status 500: no"), "{e}");
    sink.close(Closing::Stopped);

    let open = |sink: HttpSink<u64, Json>| {
        let mut sink = sink;
        sink.open(&context("out", 0, 1)).unwrap_err().to_string()
    };
    let at = |url: &str| HttpSink::<u64, _>::json(url);
    assert!(open(at("alerts")).contains("is no address"));
    assert!(open(at("http://h").in_flight(0)).contains("takes one request at least"));
    assert!(open(at("http://h").lines().idempotency_key(|n| n.to_string())).contains("leave it out"));
    assert!(open(at("http://h").secret_header("a\nb", "x")).contains("cannot be sent by HTTP"));
}
