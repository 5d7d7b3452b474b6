//! SIGINT and SIGTERM for the whole process: to every job that listens, and to nobody's surprise when none does.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::signal::unix::{SignalKind, signal};

use crate::runtime::latch::Latch;

type Listener = (u64, Box<dyn Fn() + Send>);

/// Who listens. A handler cannot be taken back once it is installed, so the thread stays; with nobody listening it does
/// what the system would have done.
static LISTENERS: Mutex<Vec<Listener>> = Mutex::new(Vec::new());
static STARTED: Mutex<bool> = Mutex::new(false);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Listens until it is dropped.
#[derive(Debug)]
pub(crate) struct Listening(u64);

impl Drop for Listening {
    fn drop(&mut self) {
        lock(&LISTENERS).retain(|(id, _)| *id != self.0);
    }
}

/// Calls `heard` for every SIGINT and SIGTERM. While anybody listens neither ends the process by itself; when nobody does
/// any more they end it again, with status 128 + the signal's number.
pub(crate) fn listen(heard: impl Fn() + Send + 'static) -> io::Result<Listening> {
    start()?;
    let mut listeners = lock(&LISTENERS);
    let id = listeners.last().map_or(0, |(last, _)| last + 1);
    listeners.push((id, Box::new(heard)));
    Ok(Listening(id))
}

/// Starts the thread that hears signals, once per process.
fn start() -> io::Result<()> {
    let mut started = lock(&STARTED);
    if *started {
        return Ok(());
    }
    let up = std::sync::Arc::new(Latch::<Result<(), String>>::new());
    let told = up.clone();
    std::thread::Builder::new().name("weir-signals".into()).spawn(move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(e) => return told.open(Err(e.to_string())),
        };
        runtime.block_on(async {
            let (mut interrupt, mut terminate) =
                match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
                    (Ok(interrupt), Ok(terminate)) => (interrupt, terminate),
                    (Err(e), _) | (_, Err(e)) => return told.open(Err(e.to_string())),
                };
            told.open(Ok(()));
            loop {
                let number = tokio::select! {
                    _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
                    _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
                };
                let listeners = lock(&LISTENERS);
                if listeners.is_empty() {
                    std::process::exit(128 + number);
                }
                listeners.iter().for_each(|(_, heard)| heard());
            }
        });
    })?;
    match up.wait(None) {
        Some(Ok(())) => {
            *started = true;
            Ok(())
        }
        Some(Err(reason)) => Err(io::Error::other(reason)),
        None => Err(io::Error::other("the thread that hears signals went away")),
    }
}

/// Waits for SIGINT or SIGTERM.
pub(crate) fn wait() -> io::Result<()> {
    let heard = std::sync::Arc::new(Latch::new());
    let tell = heard.clone();
    let _listening = listen(move || tell.open(()))?;
    heard.wait(None);
    Ok(())
}
