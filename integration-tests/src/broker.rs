//! A real Apache Kafka broker for one test or one file of tests: free ports, a fresh folder, gone with the test process.
//!
//! `scripts/kafka.sh` fetches Kafka when it is not there yet (`make test` does that before) and holds the broker: it ends it
//! and removes its folder when this side of its stdin goes away, however that happens.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer};

/// How long a start may take on a busy machine; it is 3 to 8 s on a quiet one.
const PATIENCE: Duration = Duration::from_secs(300);

/// A running broker. Dropping it ends it.
pub struct RealBroker {
    address: String,
    folder: PathBuf,
    holder: Mutex<Holder>,
}

struct Holder {
    script: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl RealBroker {
    /// Starts a broker and waits until it answers.
    ///
    /// *Blocking*: for some seconds.
    ///
    /// # Errors
    /// When it does not come up, with the end of its log.
    pub fn start() -> Result<RealBroker> {
        // Ports are free when they are asked for, and may be somebody else's a moment later.
        for _ in 0..2 {
            let broker = Self::begin()?;
            if broker.until_ready(PATIENCE).is_ok() {
                return Ok(broker);
            }
        }
        let broker = Self::begin()?;
        broker.until_ready(PATIENCE)?;
        Ok(broker)
    }

    fn begin() -> Result<RealBroker> {
        let listeners = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
        let [port, control] =
            [listeners[0].local_addr()?.port().to_string(), listeners[1].local_addr()?.port().to_string()];
        drop(listeners);
        let folder = std::env::temp_dir().join("weir-kafka").join(format!("{}-{port}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/kafka.sh");
        let mut script = Command::new("bash")
            .arg(&script)
            .arg("serve")
            .arg(&folder)
            .args([&port, &control])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", script.display()))?;
        let orders = script.stdin.take();
        let answers = script.stdout.take().context("the script has no stdout")?;
        let holder = Mutex::new(Holder { script, orders, answers: BufReader::new(answers) });
        Ok(RealBroker { address: format!("127.0.0.1:{port}"), folder, holder })
    }

    /// Its address, `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A client's configuration that points at it, and says nothing to stderr.
    pub fn client(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", &self.address).set_log_level(RDKafkaLogLevel::Emerg);
        client
    }

    /// Ends the broker at once, as `kill -9` does, and waits until it is gone.
    ///
    /// # Errors
    /// When its script is gone.
    pub fn kill(&self) -> Result<()> {
        self.order("kill")
    }

    /// Starts it again after [`RealBroker::kill`], with what it has kept, and waits until it answers.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn restart(&self) -> Result<()> {
        self.order("start")?;
        self.until_ready(PATIENCE)
    }

    fn order(&self, order: &str) -> Result<()> {
        let mut holder = self.holder.lock().unwrap_or_else(PoisonError::into_inner);
        let orders = holder.orders.as_mut().context("the broker's script was told to end")?;
        writeln!(orders, "{order}")?;
        orders.flush()?;
        let mut answer = String::new();
        holder.answers.read_line(&mut answer)?;
        if answer.trim() != format!("done {order}") {
            bail!("the broker's script answered {answer:?} to {order}");
        }
        Ok(())
    }

    fn until_ready(&self, patience: Duration) -> Result<()> {
        let client: BaseConsumer = self.client().set("reconnect.backoff.max.ms", "500").create()?;
        let deadline = Instant::now() + patience;
        loop {
            let Err(e) = client.fetch_metadata(None, Duration::from_secs(1)) else { return Ok(()) };
            let gone = self.holder.lock().unwrap_or_else(PoisonError::into_inner).script.try_wait()?;
            if gone.is_some() || Instant::now() > deadline {
                let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(30).collect();
                let tail: Vec<&str> = tail.into_iter().rev().collect();
                bail!("the broker at {} does not answer: {e}\n{}", self.address, tail.join("\n"));
            }
        }
    }
}

impl Drop for RealBroker {
    fn drop(&mut self) {
        let holder = self.holder.get_mut().unwrap_or_else(PoisonError::into_inner);
        holder.orders = None;
        // It ends as soon as its stdin does.
        drop(holder.script.wait());
    }
}

impl fmt::Debug for RealBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RealBroker({})", self.address)
    }
}
