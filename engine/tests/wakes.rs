//! A chain is woken at the first time that one of its operators asks for, behind a source and behind channels.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weir_engine::testkit::{NullSink, Probe, ScriptSource, Seen, until};
use weir_engine::{
    Operator, OperatorInfo, SharedClock, Source, SourceBatch, SourceStatus, SplitId, prelude::*,
};

/// Rings once, so long after it has opened, and notes how long it took; counts how often it was asked.
#[derive(Clone)]
struct Alarm {
    after: i64,
    at: Option<i64>,
    clock: Option<SharedClock>,
    rang: Arc<Mutex<Vec<(i64, i64)>>>,
}

impl Alarm {
    fn in_ms(after: i64, rang: &Arc<Mutex<Vec<(i64, i64)>>>) -> Self {
        Alarm { after, at: None, clock: None, rang: rang.clone() }
    }
}

impl Operator<i64> for Alarm {
    type Out = i64;
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.at = Some(cx.clock().now_ms() + self.after);
        self.clock = Some(cx.clock().clone());
        Ok(())
    }
    fn process(&mut self, r: Record<i64>, out: &mut impl Collector<i64>) -> Result<()> {
        out.emit(r)
    }
    fn on_quiet(&mut self, _: &mut impl Collector<i64>) -> Result<()> {
        let now = self.clock.as_ref().map_or(0, |clock| clock.now_ms());
        if let Some(at) = self.at.filter(|at| *at <= now) {
            self.rang.lock().expect("no alarm panics").push((self.after, now - at));
            self.at = None;
        }
        Ok(())
    }
    fn wakes_at(&self) -> Option<i64> {
        self.at
    }
}

#[test]
fn every_operator_of_a_quiet_chain_is_woken_in_its_turn() {
    for boundary in [false, true] {
        let (job, rang) = (Job::named("alarms").parallelism(1), Arc::default());
        let numbers = job.source("in", ScriptSource::of([(1, 0)]).endless()).without_event_time();
        let numbers = if boundary { numbers.boundary() } else { numbers };
        numbers
            .transform(OperatorInfo::stateless("late"), Alarm::in_ms(200, &rang))
            .transform(OperatorInfo::stateless("early"), Alarm::in_ms(80, &rang))
            .sink("out", NullSink);
        let running = job.start().unwrap();
        until(&running, Duration::from_secs(30), "both", || rang.lock().unwrap().len() == 2);
        running.cancel();
        assert!(running.wait().is_err());
        let rang = rang.lock().unwrap();
        assert_eq!(rang.iter().map(|(after, _)| *after).collect::<Vec<_>>(), [80, 200]);
        assert!(rang.iter().all(|(_, late)| *late < 1_000), "{rang:?}");
    }
}

/// Asks for a time that is past, for ever.
#[derive(Clone)]
struct Impatient(Arc<Mutex<u64>>);

impl Operator<i64> for Impatient {
    type Out = i64;
    fn process(&mut self, r: Record<i64>, out: &mut impl Collector<i64>) -> Result<()> {
        out.emit(r)
    }
    fn on_quiet(&mut self, _: &mut impl Collector<i64>) -> Result<()> {
        *self.0.lock().expect("nobody panics") += 1;
        Ok(())
    }
    fn wakes_at(&self) -> Option<i64> {
        Some(0)
    }
}

#[test]
fn one_that_asks_for_a_past_time_for_ever_does_not_keep_a_processor_busy() {
    let (job, calls) = (Job::named("impatient").parallelism(1), Arc::new(Mutex::new(0)));
    let numbers = job.source("in", ScriptSource::of([(1, 0)]).endless()).without_event_time().boundary();
    numbers.transform(OperatorInfo::stateless("it"), Impatient(calls.clone())).sink("out", NullSink);
    let (running, began) = (job.start().unwrap(), Instant::now());
    until(&running, Duration::from_secs(30), "calls", || *calls.lock().unwrap() > 50);
    running.cancel();
    assert!(running.wait().is_err());
    // One per millisecond, and a few for what wakes it otherwise.
    let (calls, ms) = (*calls.lock().unwrap(), began.elapsed().as_millis() as u64);
    assert!(calls <= ms + 20, "{calls} calls in {ms} ms");
}

/// Says for ever that there may be more at once, and gives nothing after its first record.
#[derive(Clone)]
struct Hopeful {
    given: bool,
}

impl Source for Hopeful {
    type Out = i64;
    fn open(&mut self, _: &OperatorContext) -> Result<()> {
        Ok(())
    }
    fn poll(&mut self, out: &mut SourceBatch<i64>, _: Duration) -> Result<SourceStatus> {
        if !std::mem::replace(&mut self.given, true) {
            out.push(SplitId(0), 1, EventTime(0));
        }
        Ok(SourceStatus::More)
    }
}

#[test]
fn a_source_that_always_says_more_and_gives_nothing_lets_its_chain_go_on() {
    let (job, rang, probe) = (Job::named("hopeful").parallelism(1), Arc::default(), Probe::new());
    let numbers = job.source("in", Hopeful { given: false }).source_time(Watermarks::monotonic());
    let numbers = numbers.transform(OperatorInfo::stateless("alarm"), Alarm::in_ms(50, &rang));
    let behind = numbers.boundary().transform(OperatorInfo::stateless("look"), probe.clone());
    behind.sink("out", NullSink);
    let running = job.start().unwrap();
    // What is fused with it is called when it is due, and what it holds back leaves, the watermark too.
    until(&running, Duration::from_secs(30), "the alarm", || rang.lock().unwrap().len() == 1);
    until(&running, Duration::from_secs(30), "the record", || probe.values() == [1]);
    until(&running, Duration::from_secs(30), "its time", || probe.seen_by(0).contains(&Seen::Watermark(-1)));
    running.drain(EndKind::Keep);
    running.wait_for(Duration::from_secs(30)).expect("it hears a drain").unwrap();
}
