//! What tests of the HTTP side share: one request, one answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// The status and the body of an answer.
pub(crate) fn get(address: SocketAddr, path: &str) -> (u16, serde_json::Value) {
    ask(address, "GET", path)
}

/// The same of a request that changes something.
#[allow(dead_code, reason = "not every suite changes something")]
pub(crate) fn post(address: SocketAddr, path: &str) -> (u16, serde_json::Value) {
    ask(address, "POST", path)
}

fn ask(address: SocketAddr, method: &str, path: &str) -> (u16, serde_json::Value) {
    let mut connection = TcpStream::connect(address).expect("somebody listens");
    write!(connection, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .expect("it takes a request");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head[9..12].parse().expect("a status"), serde_json::from_str(body).expect("JSON"))
}
