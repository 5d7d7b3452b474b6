//! The profile service as it is run in staging: options from a file, answers while it reads, and an upgrade with a savepoint.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use weir_connectors::behaviour::{Action, Behaviour};
use weir_connectors::kafka::{KafkaConfig, KafkaSink};
use weir_engine::prelude::*;
use weir_engine::testkit::{ScriptSource, run_within};

const SOON: Duration = Duration::from_secs(60);
const TOPIC: &str = "user_behavior";

/// The running service, and where it answers.
struct Service {
    child: Child,
    address: String,
}

impl Service {
    fn start(config: &Path, args: &[&str]) -> Service {
        let mut child = Command::new(env!("CARGO_BIN_EXE_profile_service"))
            .args(args)
            .env("WEIR_CONFIG", config)
            .env("WEIR_SERVE", "127.0.0.1:0")
            .env("WEIR_PARALLELISM", "")
            .env_remove("KAFKA_BROKERS")
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the service starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let address =
            line.trim().strip_prefix("serving http://").expect("where it answers").trim_end_matches('/');
        Service { address: address.to_owned(), child }
    }

    fn ask(&self, method: &str, path: &str) -> (u16, serde_json::Value) {
        let mut connection = TcpStream::connect(&self.address).expect("it listens");
        write!(connection, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .expect("it takes a request");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        (head[9..12].parse().expect("a status"), serde_json::from_str(body).expect("JSON"))
    }

    /// Waits until so many have bought twice or more.
    fn until_buyers(&self, expected: u64) {
        let deadline = Instant::now() + SOON;
        loop {
            let (status, answer) = self.ask("GET", "/segments/count?q=buys_total%20%3E%3D%202");
            if (status, answer["count"].as_u64()) == (200, Some(expected)) {
                return;
            }
            assert!(Instant::now() < deadline, "{expected} expected: {answer}");
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    fn ends_well(mut self) {
        assert!(self.child.wait().expect("it ends").success());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes one purchase of each of these users into the topic.
fn buy(kafka: &KafkaConfig, users: std::ops::Range<u64>) {
    let lines = users.map(|user_id| {
        (Behaviour { user_id, item_id: 1, category_id: 7, behavior: Action::Buy, ts: 1_000 }, 0)
    });
    let job = Job::named("writes").parallelism(1);
    let sink = KafkaSink::json(kafka, TOPIC).key(|e: &Behaviour| e.user_id.to_string());
    job.source("in", ScriptSource::of(lines)).without_event_time().sink("topic", sink);
    run_within(job, SOON).expect("it writes");
}

#[test]
fn it_reads_answers_and_is_upgraded_with_a_savepoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let kafka = KafkaConfig::embedded().expect("a broker");
    kafka.create_topic(TOPIC, 3).expect("a topic");
    let config = folder.path().join("weir.toml");
    let text = format!(
        "brokers = \"{}\"\ncheckpoints = \"{}\"\ncheckpoint-every = 60000\ncontrol = true\nparallelism = 1\nlog = \"warn\"\n",
        kafka.broker_list(),
        folder.path().join("checkpoints").display()
    );
    fs::write(&config, text).expect("a file");

    buy(&kafka, 0..100);
    buy(&kafka, 0..40);
    let service = Service::start(&config, &[]);
    service.until_buyers(40);
    let (status, stopped) = service.ask("POST", "/job/stop?savepoint=before-the-upgrade");
    assert_eq!(status, 200, "{stopped}");
    service.ends_well();

    buy(&kafka, 40..60);
    let savepoint = stopped["savepoint"].as_str().expect("an address");
    // The line goes before the file: another parallelism.
    let service = Service::start(&config, &["--savepoint", savepoint, "--parallelism", "3"]);
    service.until_buyers(60);
    let pid = service.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    service.ends_well();

    buy(&kafka, 60..70);
    let service = Service::start(&config, &[]);
    service.until_buyers(70);
}
