//! `/log`: the filter is shown, changed while the process runs, and refused when it is none. A process of its own: it has one log.

#![allow(
    clippy::unwrap_used,
    reason = "the lint's exception for tests does not see helpers of an integration test"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use weir_engine::http::HttpPort;
use weir_engine::log;

fn ask(address: SocketAddr, method: &str, body: &[u8]) -> (u16, serde_json::Value) {
    let mut connection = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        connection,
        "{method} /log HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    )
    .unwrap();
    connection.write_all(body).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap())
}

#[test]
fn levels_change_at_run_time_and_a_bad_filter_is_refused() {
    let serving = HttpPort::bind("127.0.0.1:0").unwrap().serve().unwrap();
    let address = serving.address();
    let (status, answer) = ask(address, "PUT", b"info");
    assert!(
        status == 404 && answer["error"].as_str().unwrap().contains("weir_engine::log::init"),
        "{answer}"
    );
    assert_eq!(ask(address, "GET", b"").0, 404, "nothing is set up yet");

    log::init("warn").unwrap();
    let enabled = || tracing::enabled!(target: "checkpoint", tracing::Level::DEBUG);
    assert!(!enabled());
    assert_eq!(ask(address, "GET", b""), (200, serde_json::json!({"filter": "warn"})));
    let (status, answer) = ask(address, "PUT", b"warn,checkpoint=debug\n");
    let expected = serde_json::json!({"filter": "warn,checkpoint=debug", "before": "warn"});
    assert_eq!((status, answer), (200, expected));
    assert!(enabled(), "from now on");
    for bad in [&b"checkpoint=loud"[..], b"", b"inof", b"\xff", &b"info,".repeat(1_000)] {
        let (status, answer) = ask(address, "PUT", bad);
        assert!(status == 400 && answer["error"].is_string(), "{bad:?}: {answer}");
    }
    let (_, answer) = ask(address, "PUT", b"checkpoint=loud");
    assert!(
        answer["error"].as_str().unwrap().starts_with("\"checkpoint=loud\" is not a log filter ("),
        "{answer}"
    );
    assert!(enabled(), "what is refused changes nothing");
    assert_eq!(ask(address, "PUT", b"warn").0, 200);
    assert!(!enabled());
}
