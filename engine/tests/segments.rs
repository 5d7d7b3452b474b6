//! Segments over HTTP: registered, changed and asked as text and as JSON, of the version that was asked for; and what is refused says why.

mod common;

use std::io::Write;
use std::net::TcpStream;

use common::{ask, raw};
use serde_json::json;
use weir_engine::http::HttpPort;
use weir_state::profile::{ProfileUpdate, Profiles};

fn crowd() -> Profiles {
    let profiles = Profiles::named("crowd").int_tag("n").enum_tag("city");
    let mut writer = profiles.writer(0..profiles.key_groups(), 1).expect("nobody else writes");
    for user in 0..20u64 {
        let city = if user % 2 == 0 { "Pau" } else { "Nice" };
        writer.apply(ProfileUpdate::of(user).at(5).set("n", user).set("city", city)).expect("it fits");
    }
    writer.finish(5);
    profiles
}

#[test]
fn segments_are_registered_asked_changed_and_dropped() {
    let serving = HttpPort::bind("127.0.0.1:0").unwrap().profiles(&crowd()).serve().unwrap();
    let ask = |request: &str, body: &str| ask(serving.address(), request, body);
    assert_eq!(ask("PUT /segment/south", "city = 'Nice'").0, 204);
    let rich = json!({"and": [{"segment": "south"}, {"tag": "n", "ge": 10}]});
    assert_eq!(ask("PUT /segment/rich", &rich.to_string()).0, 204);
    let (status, answer) = ask("GET /segments/count?q=segment('rich')", "");
    assert_eq!((status, &answer["count"], &answer["version"]["watermark"]), (200, &json!(5), &json!(5)));
    assert!(answer["age_ms"].is_u64(), "{answer}");
    let (_, answer) = ask("POST /segments/count", &json!({"q": rich}).to_string());
    assert_eq!(answer["count"], 5);
    let (_, answer) =
        ask("POST /segments/overlap", &json!({"q": "n > 0", "with": {"segment": "south"}}).to_string());
    assert_eq!(answer["both"], 10);
    let asked = json!({"q": {"segment": "south"}, "tag": "n", "percentiles": [50, 100]});
    let (_, answer) = ask("POST /segments/numbers", &asked.to_string());
    assert_eq!(answer["percentiles"], json!([[50.0, 9], [100.0, 19]]), "{answer}");
    let (_, answer) = ask("GET /segment/rich", "");
    assert_eq!((&answer["name"], &answer["condition"], &answer["count"]), (&json!("rich"), &rich, &json!(5)));
    assert_eq!(ask("GET /segments", "").1["segments"].as_array().unwrap().len(), 2);
    for (request, body, says) in [
        ("PUT /segment/south", "segment('rich')", "a part of itself"),
        ("PUT /segment/bad", "{\"tag\": \"n\"}", "is not supported here"),
        ("PUT /segment/bad", "{", "no JSON"),
        ("PUT /segment/bad", "nope = 1", "'nope' is not known"),
        ("DELETE /segment/south", "", "named by segment 'rich'"),
    ] {
        let (status, answer) = ask(request, body);
        assert!(status == 400 && answer["error"].as_str().unwrap().contains(says), "{request}: {answer}");
    }
    assert_eq!(ask("DELETE /segment/rich", "").0, 204);
    assert_eq!((ask("DELETE /segment/rich", "").0, ask("GET /segment/rich", "").0), (404, 404));
    let (status, _) = ask("POST /sql", "alter table crowd add column vip Bool");
    assert_eq!(status, 200);
    let (status, answer) = ask("GET /sql?q=alter%20table%20crowd%20drop%20column%20vip", "");
    assert!(status == 400 && answer["error"].as_str().unwrap().contains("POST /sql"), "{answer}");
    let (status, answer) = ask("POST /sql", "insert into crowd (user_id, n) values (1, 1)");
    assert!(status == 503 && answer["error"].as_str().unwrap().contains("start the job"), "{answer}");
}

#[test]
fn a_version_is_waited_for_or_refused() {
    let profiles = Profiles::named("crowd").int_tag("n");
    let mut writer = profiles.writer(0..profiles.key_groups(), 1).unwrap();
    writer.publish(10);
    let serving = HttpPort::bind("127.0.0.1:0").unwrap().profiles(&profiles).serve().unwrap();
    let address = serving.address();
    let get = |path: &str| ask(address, &format!("GET {path}"), "");
    assert_eq!(get("/segments/count?q=n=1&at_least=10").0, 200);
    let (status, answer) = get("/segments/count?q=n=1&at_least=11&wait_ms=1");
    assert!(status == 503 && answer["error"].as_str().unwrap().contains("up to event time 10"), "{answer}");
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ask(address, "GET /segments/ids?q=n=1&at_least=20&wait_ms=60000", ""));
        writer.apply(ProfileUpdate::of(7u64).at(15).set("n", 1)).unwrap();
        writer.publish(20);
        waiting.join().unwrap()
    });
    assert_eq!((waiting.0, &waiting.1["ids"]), (200, &json!([7])));
    let (status, answer) = get("/segments/count?q=n=1&at=checkpoint");
    assert!(status == 503 && answer["error"].as_str().unwrap().contains("keep_checkpoints"), "{answer}");
    for wrong in ["at=noon", "at_least=soon", "at_least=1&wait_ms=90000", "at=checkpoint&at_least=1"] {
        assert_eq!(get(&format!("/segments/count?q=n=1&{wrong}")).0, 400, "{wrong}");
    }
}

#[test]
fn a_head_is_that_of_the_answer_and_what_is_missing_or_wrong_is_named() {
    let serving = HttpPort::bind("127.0.0.1:0").unwrap().profiles(&crowd()).serve().unwrap();
    for path in [
        "/",
        "/metrics",
        "/health",
        "/openapi.json",
        "/segments",
        "/segments/count?q=n=1",
        "/profiles/1",
        "/nope",
    ] {
        let (got, head) = (
            raw(serving.address(), &format!("GET {path}"), ""),
            raw(serving.address(), &format!("HEAD {path}"), ""),
        );
        assert_eq!((got.0, head.2.as_str()), (head.0, ""), "{path}");
    }
    for (path, says) in [
        ("count", "q is missing: the condition"),
        ("overlap?q=n=1", "with is missing: the condition"),
        ("top?q=n=1", "tag is missing"),
        ("numbers?q=n=1&tag=%20", "tag is missing"),
        ("top?q=n=1&tag=n&limit=-1", "limit is \"-1\": a whole number from 0 to 1000"),
        ("ids?q=n=1&limit=-1", "limit is \"-1\": a whole number from 0 to 10000"),
        ("ids?q=n=1&limit=10001", "limit is \"10001\""),
        ("ids?q=n=1&offset=x", "offset is \"x\": a whole number"),
        ("ids?q=n=1&pin=maybe", "pin is \"maybe\": true or false"),
    ] {
        let (status, answer) = ask(serving.address(), &format!("GET /segments/{path}"), "");
        let error = answer["error"].as_str().unwrap();
        assert!(status == 400 && error.contains(says), "{path}: {error}");
    }
    for (body, says) in
        [("[1]", "no JSON object"), ("{\"q\": [\"x\"]}", "q is a list"), ("x", "no JSON object")]
    {
        let (status, answer) = ask(serving.address(), "POST /segments/count", body);
        let error = answer["error"].as_str().unwrap();
        assert!(status == 400 && error.contains(says), "{body}: {error}");
    }
}

#[test]
fn those_who_connect_and_say_nothing_keep_nobody_from_the_health() {
    let serving = HttpPort::bind("127.0.0.1:0").unwrap().profiles(&crowd()).serve().unwrap();
    let silent: Vec<TcpStream> = (0..300)
        .map(|n| {
            let mut connection = TcpStream::connect(serving.address()).expect("it listens");
            if n % 2 == 0 {
                connection.write_all(b"GET /segments/count?q=").expect("it reads");
            }
            connection
        })
        .collect();
    assert_eq!(ask(serving.address(), "GET /health", "").0, 503, "no job has started, and it says so");
    drop(silent);
}
