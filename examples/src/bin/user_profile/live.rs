//! The second thread: asks every segment while the job writes, and prints the answers that changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use weir_state::profile::{Predicate, Reader};

use crate::questions::Question;
use crate::say::say;

/// Asks until it is stopped, or cannot go on.
pub(crate) struct Live {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64>>,
}

const EVERY: Duration = Duration::from_millis(250);

impl Live {
    pub(crate) fn start(reader: Reader, questions: &[Question]) -> Result<Live> {
        let stop = Arc::new(AtomicBool::new(false));
        let asked: Vec<(String, Predicate)> = (questions.iter())
            .map(|q| Ok((q.name.clone(), Predicate::parse(&q.condition)?)))
            .collect::<Result<_>>()?;
        let heard = stop.clone();
        let thread = std::thread::Builder::new()
            .name("questions".into())
            .spawn(move || ask(&reader, &asked, &heard, say))?;
        Ok(Live { stop, thread })
    }

    /// True when it asks no more, although nobody has stopped it: [`Live::stop`] says why.
    pub(crate) fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Stops asking; gives how many answers there were, or what kept it from going on.
    pub(crate) fn stop(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().map_err(|_| anyhow!("the thread that asks the segments panicked"))?
    }
}

fn ask(
    reader: &Reader,
    asked: &[(String, Predicate)],
    stop: &AtomicBool,
    say: impl Fn(String) -> Result<()>,
) -> Result<u64> {
    let began = Instant::now();
    let mut last: Vec<u64> = vec![0; asked.len()];
    let mut answers = 0;
    while !stop.load(Ordering::Relaxed) {
        std::thread::park_timeout(EVERY);
        let snapshot = reader.snapshot();
        let counts: Vec<u64> = (asked.iter())
            .map(|(name, p)| Ok(snapshot.count(p).with_context(|| format!("segment {name:?}"))?.value))
            .collect::<Result<_>>()?;
        answers += counts.len() as u64;
        let changed: Vec<String> = (asked.iter().zip(&counts).zip(&last))
            .filter(|((_, now), before)| now != before)
            .map(|(((name, _), now), _)| format!("{name} {now}"))
            .collect();
        if !changed.is_empty() {
            let (passed, version) = (began.elapsed().as_secs_f64(), snapshot.version().sequence);
            say(format!("{passed:>6.2} s  version {version:>5}  {}", changed.join(" · ")))?;
        }
        last = counts;
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use weir_state::profile::Profiles;

    use super::*;

    /// A condition that names no tag of the profile is no answer of 0.
    #[test]
    fn a_segment_that_cannot_be_counted_ends_the_questions() {
        let reader = Profiles::named("p").int_tag("buys").reader();
        let asked = [("odd".to_owned(), Predicate::parse("nose = 1").expect("it parses"))];
        let error = ask(&reader, &asked, &AtomicBool::new(false), |_| Ok(())).expect_err("no such tag");
        assert!(
            format!("{error:#}").starts_with("segment \"odd\": ") && format!("{error:#}").contains("nose"),
            "{error:#}"
        );
    }
}
