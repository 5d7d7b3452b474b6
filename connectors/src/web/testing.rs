//! A small HTTP/1.1 server inside a test: it answers as a closure says and remembers what it was asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What a server was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    /// With names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

/// A status, headers and a body.
pub(crate) type Said = (u16, Vec<(&'static str, String)>, String);

type Answer = Arc<dyn Fn(&Asked) -> Said + Send + Sync>;

/// Gone when dropped.
pub(crate) struct Server {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn new(answer: impl Fn(&Asked) -> Said + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, asked) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<Asked>>>::default());
        let (over, answer): (_, Answer) = (Arc::new(AtomicBool::new(false)), Arc::new(answer));
        let (seen, end) = (asked.clone(), over.clone());
        let accept = move || {
            for stream in listener.incoming().flatten() {
                if end.load(Ordering::Acquire) {
                    return;
                }
                // One request a connection, one after the other: clients of a test are few.
                serve(stream, &seen, &answer);
            }
        };
        let thread = std::thread::Builder::new().name("test-http".to_owned()).spawn(accept).unwrap();
        Server { address, asked, over, thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All that it was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn serve(stream: TcpStream, seen: &Mutex<Vec<Asked>>, answer: &Answer) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    if reader.read_line(&mut line).is_err() || line.is_empty() {
        return;
    }
    let mut first = line.split_whitespace().map(str::to_owned);
    let (method, path) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    let mut headers = Vec::new();
    loop {
        line.clear();
        if reader.read_line(&mut line).is_err() || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    let mut asked = Asked { method, path, headers, body: String::new() };
    let length = asked.header("content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    if reader.read_exact(&mut body).is_err() {
        return;
    }
    asked.body = String::from_utf8_lossy(&body).into_owned();
    let (status, headers, body) = answer(&asked);
    seen.lock().unwrap().push(asked);
    let mut text = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
    let stream = reader.get_mut();
    let _ = stream.write_all(format!("{text}\r\n{body}").as_bytes());
    let _ = stream.flush();
}
