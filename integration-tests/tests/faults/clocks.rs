//! A clock that jumps forward a day and back an hour under a job with timers and TTLs that go by it: nothing stops, nothing doubles.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_connectors::file::FileSink;
use weir_engine::prelude::*;
use weir_engine::testkit::until;
use weir_engine::{Clock, SharedClock, SystemClock};
use weir_operators::prelude::*;
use weir_operators::process::{NamedState, ValueState};

use crate::rig::*;

const HOUR_MS: i64 = 3_600_000;
const KEYS: u64 = 128 * 7;

/// The machine's clock, set wrong by so much.
#[derive(Debug)]
struct Jumping {
    real: SharedClock,
    by_ms: AtomicI64,
}

impl Clock for Jumping {
    fn now_ms(&self) -> i64 {
        self.real.now_ms() + self.by_ms.load(Ordering::SeqCst)
    }
    fn elapsed(&self) -> Duration {
        self.real.elapsed()
    }
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct Kept {
    total: u64,
    timer: bool,
}

/// Tells each record's total; each key that was not seen for two hours; and each key once, twelve hours after it came first.
#[derive(Clone)]
struct Watch {
    seen: ValueState<u64, bool>,
    fails: Arc<AtomicBool>,
}

impl ProcessFunction<u64, (u64, u64)> for Watch {
    type Out = (String, u64, u64);
    type State = Kept;
    fn states(&mut self) -> Vec<&mut dyn NamedState<u64>> {
        vec![&mut self.seen]
    }
    fn process(
        &mut self,
        record: Record<(u64, u64)>,
        cx: &mut KeyedContext<'_, u64, Kept>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        if self.fails.swap(false, Ordering::SeqCst) {
            return Err(TaskError::user("once"));
        }
        let (key, i) = record.value;
        if self.seen.get(cx)?.is_none() {
            out.emit(record.with(("new".to_owned(), key, 0)))?;
        }
        self.seen.set(cx, true)?;
        let kept = cx.state()?;
        kept.total += i;
        let (total, timer) = (kept.total, std::mem::replace(&mut kept.timer, true));
        if !timer {
            let at = cx.now_ms() + 12 * HOUR_MS;
            cx.set_processing_timer(at);
        }
        out.emit(record.with(("total".to_owned(), i, total)))
    }
    fn on_processing_timer(
        &mut self,
        _: i64,
        cx: &mut KeyedContext<'_, u64, Kept>,
        out: &mut impl Collector<Self::Out>,
    ) -> Result<()> {
        out.emit(Record::new(("timer".to_owned(), *cx.key(), 0), EventTime(0)))
    }
}

fn expected_lines(n: u64) -> Vec<String> {
    let totals = expected(n).into_iter().map(|line| format!("[\"total\",{}", &line[1..]));
    let once = |what: &'static str| (0..KEYS).map(move |key| format!("[{what:?},{key},0]"));
    let mut lines: Vec<String> = totals.chain(once("new")).chain(once("new")).chain(once("timer")).collect();
    lines.sort();
    lines
}

#[test]
fn a_clock_that_jumps_loses_no_checkpoint_and_doubles_nothing() {
    let rig = Rig::in_folder("clock");
    let clock = Arc::new(Jumping { real: SystemClock::shared(), by_ms: AtomicI64::new(0) });
    let fails = Arc::new(AtomicBool::new(false));
    let job = |n: Option<u64>, parallelism: usize, rate: f64| {
        let seen = ValueState::named("seen").ttl(Ttl::processing_time(hours(2)));
        let job = rig
            .empty_job(parallelism, rig.checkpoints())
            .clock(clock.clone())
            .restart(RestartPolicy::FixedDelay { restarts: 10, delay: Duration::ZERO });
        job.source("numbers", numbers(n, rate, &rig.made))
            .without_event_time()
            .key_by("by-key", |(key, _)| *key)
            .process(TOTALS, Watch { seen, fails: fails.clone() })
            .sink("out", FileSink::json_lines(rig.at("out")));
        job
    };
    let running = job(None, 2, 20_000.0).start().unwrap();
    let made = |more: u64| {
        let wanted = rig.made.load(Ordering::Relaxed) + more;
        until(&running, SOON, "records", || rig.made.load(Ordering::Relaxed) >= wanted);
    };
    // Every key once at least, whichever subtask is behind.
    made(20 * KEYS);
    until_completed(&running, 2);
    for hours in [24, -1] {
        clock.by_ms.fetch_add(hours * HOUR_MS, Ordering::SeqCst);
        until_completed(&running, 3);
        made(20 * KEYS);
        // And a restore under the new time.
        fails.store(true, Ordering::SeqCst);
        until(&running, SOON, "a failure", || !fails.load(Ordering::SeqCst));
        until_completed(&running, 3);
        made(20 * KEYS);
    }
    assert!(!running.is_over(), "{:?}", running.status());
    let records = running.checkpoints();
    assert!(records.iter().all(|c| !matches!(c.outcome, weir_state::checkpoint::Outcome::Failed(_))));
    cancelled(&running);
    // Another process's clock has never jumped: what is there is from the future by it, the lease too.
    clock.by_ms.store(0, Ordering::SeqCst);
    let n = rig.enough();
    finished(job(Some(n), 3, 1_000_000.0));
    let (lines, expected) = (rig.lines(), expected_lines(n));
    let odd = lines.iter().find(|l| expected.binary_search(l).is_err());
    assert!(lines == expected, "{} lines, expected {}; wrong: {odd:?}", lines.len(), expected.len());
}
