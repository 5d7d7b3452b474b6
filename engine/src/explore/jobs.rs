//! Whole jobs: whatever fails and whenever, each record is visible outside once, and the job comes to its end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weir_state::store::Snapshot;

use super::outside::{Outside, Value, read_prepared, read_value};
use super::shell::Flaw;
use super::world::{Faults, Setting, StepClock, live_through};
use super::{explore, pick};
use crate::context::OperatorContext;
use crate::element::{Barrier, Keyed, Record};
use crate::error::{Result, TaskError};
use crate::graph::OperatorInfo;
use crate::job::Job;
use crate::operator::{Collector, Operator};
use crate::sink::Sink;
use crate::source::{Source, SourceBatch, SourceStatus, SplitId};
use crate::time::{EventTime, Watermark};
use crate::watermarks::Watermarks;

/// An error or a panic, if one happens here.
fn may_fail(setting: &Setting, what: &str) -> Result<()> {
    if !setting.faults.strike(60) {
        return Ok(());
    }
    if pick(3) == 0 {
        std::panic::panic_any(super::ON_PURPOSE);
    }
    Err(TaskError::external(format!("{what} fails, as it was to")))
}

/// Counts up, in fits and starts.
#[derive(Clone)]
struct Numbers {
    setting: Setting,
    from: usize,
    at: u64,
}

impl Source for Numbers {
    type Out = Value;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        may_fail(&self.setting, "opening a source")?;
        self.from = cx.subtask();
        let positions = cx.restored("positions");
        let own = positions.iter().find(|item| item.subtask == self.from);
        self.at = own.and_then(|item| item.value.as_u64()).unwrap_or(0);
        Ok(())
    }

    fn poll(&mut self, out: &mut SourceBatch<Value>, _: Duration) -> Result<SourceStatus> {
        may_fail(&self.setting, "polling")?;
        out.split_started(SplitId(self.from as u32));
        let give = pick(4).min(self.setting.each - self.at);
        for _ in 0..give {
            out.push(SplitId(self.from as u32), (self.from, self.at, 0), EventTime(self.at as i64));
            self.at += 1;
        }
        Ok(match self.at == self.setting.each {
            true if pick(2) == 0 => SourceStatus::End,
            false if give > 0 && pick(2) == 0 => SourceStatus::More,
            _ => SourceStatus::Idle(Duration::from_millis(1)),
        })
    }

    fn positions(&mut self, _: Barrier) -> Result<Vec<(String, serde_json::Value)>> {
        Ok(vec![(self.from.to_string(), self.at.into())])
    }
}

/// Sends each record one of two ways.
#[derive(Clone)]
struct Way(u8);

impl Operator<Value> for Way {
    type Out = Value;
    fn process(&mut self, r: Record<Value>, out: &mut impl Collector<Value>) -> Result<()> {
        out.emit(r.with((r.value.0, r.value.1, self.0)))
    }
}

/// Remembers what it has seen, and lets nothing through twice, out of order, or late.
#[derive(Clone)]
struct Tally {
    setting: Setting,
    seen: BTreeSet<Value>,
    last: BTreeMap<(usize, u8), u64>,
    watermark: Watermark,
}

impl Tally {
    fn new(setting: &Setting) -> Self {
        let (setting, seen, last) = (setting.clone(), BTreeSet::new(), BTreeMap::new());
        Tally { setting, seen, last, watermark: Watermark::MIN }
    }
}

impl Operator<Keyed<u64, Value>> for Tally {
    type Out = Value;

    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        may_fail(&self.setting, "opening an operator")?;
        let own = cx.restored("seen").into_iter().filter(|item| item.subtask == cx.subtask());
        self.seen = own.map(|item| read_value(&item.value)).collect();
        Ok(())
    }

    fn process(&mut self, r: Record<Keyed<u64, Value>>, out: &mut impl Collector<Value>) -> Result<()> {
        may_fail(&self.setting, "processing")?;
        let value = r.value.value;
        assert!(self.seen.insert(value), "{value:?} comes twice");
        let last = self.last.insert((value.0, value.2), value.1);
        assert!(last < Some(value.1), "{value:?} comes after {last:?}");
        assert!(!self.watermark.is_late(r.time), "{value:?} comes after {:?}", self.watermark);
        out.emit(Record::new(value, r.time))
    }

    fn on_watermark(&mut self, watermark: Watermark, _: &mut impl Collector<Value>) -> Result<()> {
        self.watermark = watermark;
        Ok(())
    }

    fn snapshot(&mut self, _: Barrier, into: &mut Snapshot) -> Result<()> {
        may_fail(&self.setting, "a snapshot")?;
        for value in &self.seen {
            let (from, nth, way) = value;
            into.item("seen", format!("{from}.{nth}.{way}"), serde_json::to_value(value).expect("JSON"));
        }
        Ok(())
    }
}

/// Makes visible outside what a complete checkpoint holds.
#[derive(Clone)]
struct Ledger {
    setting: Setting,
    own: String,
    prepared: u64,
    held: Vec<Value>,
}

impl Ledger {
    fn new(setting: &Setting) -> Self {
        Ledger { setting: setting.clone(), own: String::new(), prepared: 0, held: Vec::new() }
    }
}

impl Sink<Value> for Ledger {
    fn open(&mut self, cx: &OperatorContext) -> Result<()> {
        self.own = format!("{}-{}.", cx.attempt(), cx.subtask());
        Ok(())
    }

    fn recover(&mut self, prepared: Option<Vec<serde_json::Value>>) -> Result<()> {
        let prepared = prepared.unwrap_or_default();
        let kept = prepared.iter().map(|p| read_prepared(p).0).collect();
        let subtask = self.own.split_once('-').map_or("", |(_, subtask)| subtask);
        self.setting.outside.throw_away(&format!("-{subtask}"), &kept);
        prepared.into_iter().try_for_each(|p| self.commit(p))
    }

    fn write(&mut self, batch: &mut Vec<Record<Value>>) -> Result<()> {
        may_fail(&self.setting, "writing")?;
        self.held.extend(batch.drain(..).map(|r| r.value));
        Ok(())
    }

    fn prepare(&mut self, _: Barrier) -> Result<Option<serde_json::Value>> {
        may_fail(&self.setting, "preparing")?;
        if self.held.is_empty() {
            return Ok(None);
        }
        self.prepared += 1;
        let name = format!("{}{}", self.own, self.prepared);
        self.setting.outside.prepare(&name);
        let prepared = serde_json::to_value((name, std::mem::take(&mut self.held))).expect("JSON");
        if self.setting.flaw == Flaw::CommitsEarly {
            self.setting.outside.commit(&prepared);
        }
        Ok(Some(prepared))
    }

    fn commit(&mut self, prepared: serde_json::Value) -> Result<()> {
        let early = self.setting.faults.strike(60);
        if !early {
            self.setting.outside.commit(&prepared);
        }
        // Whether it failed before or after, nobody can tell.
        match early || self.setting.faults.strike(60) {
            true => {
                Err(TaskError::external(format!("{:?} is lost, as it was to be", read_prepared(&prepared).0)))
            }
            false => Ok(()),
        }
    }
}

fn setting(sources: usize, each: u64, ways: u8, faults: u64, orders: u64) -> Setting {
    Setting {
        sources,
        each,
        outside: Outside::new(ways),
        faults: Faults::up_to(faults),
        orders: Faults::up_to(orders),
        clock: StepClock::shared(),
        flaw: Flaw::None,
    }
}

/// Two sources, an exchange by key, two subtasks that remember and write.
fn by_key(setting: &Setting) -> Job {
    let job =
        Job::named("by-key").parallelism(2).channel_depth(1 + pick(2) as usize).clock(setting.clock.clone());
    let numbers = Numbers { setting: setting.clone(), from: 0, at: 0 };
    let numbers = job.source("in", numbers).source_time(Watermarks::monotonic().never_idle());
    let tally = numbers
        .key_by("mod", |v| v.1 % 5)
        .transform(OperatorInfo::stateful("tally", "tally"), Tally::new(setting));
    tally.sink("out", Ledger::new(setting));
    job
}

/// One source, two ways to the same place, channels that hold one element: what waits for a barrier on one way must not hold
/// up the other.
fn diamond(setting: &Setting) -> Job {
    let job = Job::named("diamond").parallelism(1).channel_depth(1).clock(setting.clock.clone());
    let numbers = Numbers { setting: setting.clone(), from: 0, at: 0 };
    let numbers = job.source("in", numbers).source_time(Watermarks::monotonic().never_idle()).shared();
    let left = numbers.stream().transform(OperatorInfo::stateless("left"), Way(0));
    let right = numbers.stream().transform(OperatorInfo::stateless("right"), Way(1));
    let both = left.union(right).key_by("way", |v| u64::from(v.2));
    both.transform(OperatorInfo::stateful("tally", "tally"), Tally::new(setting))
        .sink("out", Ledger::new(setting));
    job
}

#[test]
fn all_is_visible_once_when_nothing_fails() {
    explore("jobs::all_is_visible_once_when_nothing_fails", || live_through(&setting(2, 6, 1, 0, 0), by_key));
}

#[test]
fn a_diamond_with_room_for_one_comes_to_its_end() {
    explore("jobs::a_diamond_with_room_for_one_comes_to_its_end", || {
        live_through(&setting(1, 8, 2, 0, pick(2)), diamond);
    });
}

#[test]
fn all_is_visible_once_whatever_fails() {
    explore("jobs::all_is_visible_once_whatever_fails", || {
        live_through(&setting(2, 6, 1, 1 + pick(3), 0), by_key);
    });
}

/// Mistakes in storage and operators, and orders of the user's.
pub(super) fn with_trouble(flaw: Flaw) {
    live_through(&Setting { flaw, ..setting(2, 5, 1, pick(3), 1 + pick(3)) }, by_key);
}

#[test]
fn all_is_visible_once_whatever_the_user_does() {
    explore("jobs::all_is_visible_once_whatever_the_user_does", || with_trouble(Flaw::None));
}
