//! The second thread: asks every segment while the job writes, and prints the answers that changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_state::profile::{Predicate, Reader};

use crate::questions::Question;

/// Asks until it is stopped.
pub(crate) struct Live {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

const EVERY: Duration = Duration::from_millis(250);

impl Live {
    pub(crate) fn start(reader: Reader, questions: &[Question]) -> anyhow::Result<Live> {
        let stop = Arc::new(AtomicBool::new(false));
        let asked: Vec<(String, Predicate)> = (questions.iter())
            .map(|q| Ok((q.name.clone(), Predicate::parse(&q.condition)?)))
            .collect::<anyhow::Result<_>>()?;
        let heard = stop.clone();
        let thread = std::thread::Builder::new().name("questions".into()).spawn(move || {
            let began = Instant::now();
            let mut last: Vec<u64> = vec![0; asked.len()];
            let mut answers = 0;
            while !heard.load(Ordering::Relaxed) {
                std::thread::park_timeout(EVERY);
                let snapshot = reader.snapshot();
                let counts: Vec<u64> = (asked.iter())
                    .zip(&last)
                    .map(|((_, p), before)| snapshot.count(p).map_or(*before, |a| a.value))
                    .collect();
                answers += counts.len() as u64;
                let changed: Vec<String> = (asked.iter().zip(&counts).zip(&last))
                    .filter(|((_, now), before)| now != before)
                    .map(|(((name, _), now), _)| format!("{name} {now}"))
                    .collect();
                if !changed.is_empty() {
                    let version = snapshot.version();
                    println!(
                        "{:>6.2} s  version {:>5}  {}",
                        began.elapsed().as_secs_f64(),
                        version.sequence,
                        changed.join(" · ")
                    );
                }
                last = counts;
            }
            answers
        })?;
        Ok(Live { stop, thread })
    }

    /// Stops asking; gives how many answers there were.
    pub(crate) fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        // A panic of that thread has been printed; it answered nothing then.
        self.thread.join().unwrap_or(0)
    }
}
