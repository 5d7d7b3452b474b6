//! The HTTP side of a job: segment counts, profiles, metrics, plan and status, from a thread of its own.

mod answers;
mod control;
mod logs;
mod pages;
mod params;
mod segments;

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use actix_web::dev::ServerHandle;
use actix_web::{App, HttpServer, web};
use procfs::process::LimitValue;
use tokio::sync::Semaphore;
use weir_state::profile::Profiles;

use crate::job::{JobControl, JobHandle, JobView};
use crate::metrics;
use crate::runtime::latch::Latch;
use crate::signals;

/// Threads that answer queries: they use the processor, so more of them would only take it from the job.
const QUERY_THREADS: usize = 4;
/// Queries that run or wait for a thread; more are refused at once.
const QUERIES: usize = 32;
/// Queries that wait for event time at once; they hold no thread.
const WAITS: usize = 256;
/// Connections that are open at once, if the process may open many files; more wait to be accepted.
const CONNECTIONS: u64 = 4_096;
/// How long a client may take to say what it wants: who only connects makes room for others soon.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A share of the files that the process may open: the job needs them too.
fn connections() -> usize {
    let limits = procfs::process::Process::myself().and_then(|me| me.limits());
    let files = match limits.map(|limits| limits.max_open_files.soft_limit) {
        Ok(LimitValue::Value(files)) => files,
        _ => u64::MAX,
    };
    (files / 2).clamp(64, CONNECTIONS) as usize
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The address does not read as one.
    #[error(
        "{address:?} is not an address to listen on ({reason}): write host:port, such as 127.0.0.1:8080; port 0 takes a free one"
    )]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The port is taken or not allowed.
    #[error("cannot listen on {address}: {reason}; choose another port, or 0 for a free one")]
    Listen {
        /// What was given.
        address: String,
        /// What the system says.
        reason: String,
    },
    /// No thread for it.
    #[error("cannot start the HTTP server: {reason}")]
    Start {
        /// What the system says.
        reason: String,
    },
}

/// What requests are answered from.
#[derive(Debug)]
pub(crate) struct Shown {
    profiles: Option<Profiles>,
    /// Of queries that may wait or run at once.
    turns: Arc<Semaphore>,
    /// Of queries that may wait for event time at once.
    waits: Arc<Semaphore>,
    /// Lists that are read page by page.
    pages: Arc<pages::Pages>,
    /// Set when the job has started; asked for before that, it is not there yet.
    job: OnceLock<JobView>,
    /// Set when the job may be saved and stopped by whoever asks.
    control: OnceLock<JobControl>,
}

impl Shown {
    fn new(profiles: Option<Profiles>) -> Self {
        let (turns, waits) = (Arc::new(Semaphore::new(QUERIES)), Arc::new(Semaphore::new(WAITS)));
        let (job, control) = (OnceLock::new(), OnceLock::new());
        Shown { profiles, turns, waits, pages: Arc::default(), job, control }
    }
}

/// A port that is taken and not yet served: take it before a job starts, so that a taken port stops nothing half way.
///
/// ```
/// use weir_engine::http::HttpPort;
/// let port = HttpPort::bind("127.0.0.1:0")?;
/// let taken = HttpPort::bind(&port.address().to_string());
/// assert!(taken.unwrap_err().to_string().starts_with("cannot listen on 127.0.0.1:"));
/// # Ok::<(), weir_engine::http::HttpError>(())
/// ```
#[derive(Debug)]
pub struct HttpPort {
    listener: TcpListener,
    address: SocketAddr,
    profiles: Option<Profiles>,
}

impl HttpPort {
    /// Listens on `address` (`host:port`; port 0 takes a free one), and installs the metrics recorder. Who connects waits
    /// until [`HttpPort::serve`].
    ///
    /// *Blocking*: while the system looks up the host.
    ///
    /// # Errors
    /// When the address makes no sense or cannot be taken.
    pub fn bind(address: &str) -> Result<Self, HttpError> {
        let parsed: Vec<SocketAddr> = (address.to_socket_addrs())
            .map_err(|e| HttpError::Address { address: address.into(), reason: e.to_string() })?
            .collect();
        let failed = |e: std::io::Error| HttpError::Listen { address: address.into(), reason: e.to_string() };
        let listener = TcpListener::bind(parsed.as_slice()).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        metrics::install();
        Ok(HttpPort { listener, address, profiles: None })
    }

    /// Answers `/segments/…` and `/profiles/…` from `profiles`.
    #[must_use]
    pub fn profiles(mut self, profiles: &Profiles) -> Self {
        self.profiles = Some(profiles.clone());
        self
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts answering: one thread answers, and threads of a pool, made as they are needed, run the queries.
    ///
    /// *Blocking*: until it answers.
    ///
    /// # Errors
    /// When its thread or the server cannot be started.
    pub fn serve(self) -> Result<HttpServing, HttpError> {
        let HttpPort { listener, address, profiles } = self;
        let shown = Arc::new(Shown::new(profiles));
        let given = shown.clone();
        let up = Arc::new(Latch::<Result<ServerHandle, String>>::new());
        let told = up.clone();
        let run = move || {
            actix_web::rt::System::new().block_on(async move {
                let app =
                    move || App::new().app_data(web::Data::from(given.clone())).configure(answers::routes);
                let server = HttpServer::new(app)
                    .workers(1)
                    .worker_max_blocking_threads(QUERY_THREADS)
                    .max_connections(connections())
                    .client_request_timeout(REQUEST_TIMEOUT)
                    .disable_signals()
                    .shutdown_timeout(2)
                    .listen(listener);
                match server {
                    Ok(server) => {
                        let server = server.run();
                        told.open(Ok(server.handle()));
                        if let Err(e) = server.await {
                            tracing::error!("the HTTP server stopped: {e}");
                        }
                    }
                    Err(e) => told.open(Err(e.to_string())),
                }
            });
        };
        let start = |reason: String| HttpError::Start { reason };
        let thread = (std::thread::Builder::new().name("weir-http".into()).spawn(run))
            .map_err(|e| start(e.to_string()))?;
        match up.wait(None) {
            Some(Ok(server)) => Ok(HttpServing { address, shown, server, thread: Some(thread) }),
            Some(Err(reason)) => Err(start(reason)),
            None => Err(start("its thread went away".into())),
        }
    }
}

/// A running server. Dropping it stops it and joins its thread.
///
/// *Blocking*: the drop waits for requests that are being answered, 2 s at most.
///
/// ```
/// use {std::{io::{Read, Write}, net::TcpStream}, weir_engine::http::HttpPort};
/// let serving = HttpPort::bind("127.0.0.1:0")?.serve()?;
/// let (mut connection, mut answer) = (TcpStream::connect(serving.address())?, String::new());
/// connection.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
/// connection.read_to_string(&mut answer)?;
/// assert!(answer.starts_with("HTTP/1.1 503") && answer.ends_with(r#"{"error":"the job has not started yet"}"#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct HttpServing {
    address: SocketAddr,
    shown: Arc<Shown>,
    server: ServerHandle,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for HttpServing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HttpServing({})", self.address)
    }
}

impl HttpServing {
    /// Where it answers.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers `/health`, `/ready`, `/job` and `/plan` from `job` from now on; before that they say 503. The first call wins.
    pub fn show(&self, job: &JobHandle) {
        // A second job on one server has no route of its own.
        let _ = self.shown.job.set(job.view());
    }

    /// Lets who can reach the address save and stop the job from now on: `POST /job/savepoints/NAME` takes a savepoint,
    /// `POST /job/stop?savepoint=NAME` stops with one, `POST /job/stop` without (windows and timers stay as they are, as the last
    /// checkpoint has them). Nobody is asked who they are: give this only to jobs on an address that no stranger reaches. The first call wins.
    ///
    /// ```
    /// # use {std::{io::{Read, Write}, net::TcpStream, time::Duration}, weir_engine::{http::HttpPort, prelude::*, testkit::*}};
    /// let job = Job::named("endless").parallelism(1).checkpoints(Checkpoints::to("memory://doc-control"));
    /// job.source("in", ScriptSource::of([(1, 0)]).endless()).without_event_time().sink("out", NullSink);
    /// let serving = HttpPort::bind("127.0.0.1:0")?.serve()?;
    /// let running = job.start()?;
    /// serving.control(&running);
    /// until(&running, Duration::from_secs(60), "a record", || running.tasks().iter().any(|t| t.records_in > 0));
    /// let (mut connection, mut answer) = (TcpStream::connect(serving.address())?, String::new());
    /// connection.write_all(b"POST /job/stop?savepoint=v2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    /// connection.read_to_string(&mut answer)?;
    /// assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("v2"), "{answer}");
    /// running.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn control(&self, job: &JobHandle) {
        // A second job on one server has no route of its own.
        let _ = self.shown.control.set(job.control());
    }
}

/// Waits for Ctrl-C or SIGTERM, for a process that has nothing left to do but answer.
///
/// *Blocking*: until then.
///
/// # Errors
/// When signals cannot be listened for.
pub fn until_interrupted() -> Result<(), HttpError> {
    signals::wait().map_err(|e| HttpError::Start { reason: format!("cannot listen for signals: {e}") })
}

impl Drop for HttpServing {
    fn drop(&mut self) {
        // The future only awaits an acknowledgement; the order itself is sent at once.
        drop(self.server.stop(true));
        if let Some(thread) = self.thread.take() {
            // A panicked server thread has said so itself.
            let _ = thread.join();
        }
    }
}
