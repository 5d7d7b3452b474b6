//! What tests of the HTTP side share: one request, one answer.
#![allow(dead_code, reason = "no suite asks in all of these ways")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Status, head and body of the answer to `request`, a method and a path.
pub(crate) fn raw(address: SocketAddr, request: &str, body: &str) -> (u16, String, String) {
    let mut connection = TcpStream::connect(address).expect("somebody listens");
    let length = body.len();
    write!(
        connection,
        "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .expect("it takes a request");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("it answers and closes");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head[9..12].parse().expect("a status"), head.to_owned(), body.to_owned())
}

/// Status and body, which is JSON or empty.
pub(crate) fn ask(address: SocketAddr, request: &str, body: &str) -> (u16, serde_json::Value) {
    let (status, _, body) = raw(address, request, body);
    let value = if body.is_empty() { Ok(serde_json::Value::Null) } else { serde_json::from_str(&body) };
    (status, value.unwrap_or_else(|e| panic!("{e}: {body}")))
}

pub(crate) fn get(address: SocketAddr, path: &str) -> (u16, serde_json::Value) {
    ask(address, &format!("GET {path}"), "")
}

pub(crate) fn post(address: SocketAddr, path: &str) -> (u16, serde_json::Value) {
    ask(address, &format!("POST {path}"), "")
}
