//! Where the records go that a source refuses: those that do not decode and those of impossible times; counted and told.
// HOT: not at all, but for `pass`, once per turn.

use std::time::Duration;

use crate::context::{Counter, OperatorContext};
use crate::dead_letter::{BadRecords, DeadLetter};
use crate::element::{Data, Record};
use crate::error::{Result, TaskError};
use crate::operator::Collector;
use crate::runtime::input::Turn;
use crate::runtime::source_input::SourceSettings;
use crate::runtime::stats::TaskStats;
use crate::runtime::time_keeper::Refused;
use crate::side::{SideOutput, SignalPort};
use crate::time::EventTime;
use crate::watermarks::{Quarantined, TimeFault};

pub(crate) struct Refusals<T> {
    dead: Option<SideOutput<DeadLetter>>,
    quarantine: Option<SideOutput<Quarantined<T>>>,
    cx: OperatorContext,
    far_future: Counter,
    out_of_order: Counter,
    untimed: Counter,
    warned_at: Option<Duration>,
}

const WARN_EVERY: Duration = Duration::from_secs(1);

fn signal(port: &mut dyn SignalPort, turn: Turn) -> Result<()> {
    match turn {
        Turn::Batch | Turn::Notice(_) => Ok(()),
        Turn::Quiet => port.quiet(),
        Turn::Watermark(w) => port.watermark(w),
        Turn::Idle => port.idle(),
        Turn::Active => port.active(),
        Turn::Barrier(b) => port.barrier(b),
        Turn::End(kind) => port.end(kind),
    }
}

impl<T: Data> Refusals<T> {
    pub(crate) fn open(settings: &SourceSettings<T>, cx: &OperatorContext) -> Self {
        let (dead, quarantine) = (&settings.dead_letters, &settings.quarantine);
        Refusals {
            dead: dead.is_read().then(|| dead.open(cx)),
            quarantine: quarantine.is_read().then(|| quarantine.open(cx)),
            far_future: cx.counter("far_future_records"),
            out_of_order: cx.counter("out_of_order_records"),
            untimed: cx.counter("untimed_records"),
            cx: cx.clone(),
            warned_at: None,
        }
    }

    /// Both outputs hear the same signals as the main one.
    pub(crate) fn pass(&mut self, turn: Turn) -> Result<()> {
        self.dead.as_mut().map_or(Ok(()), |out| signal(out.signals(), turn))?;
        self.quarantine.as_mut().map_or(Ok(()), |out| signal(out.signals(), turn))
    }

    /// True when it may be said again: a flood of bad records is not to become one of lines.
    fn may_warn(&mut self) -> bool {
        let now = self.cx.clock().elapsed();
        let due = self.warned_at.is_none_or(|at| now.saturating_sub(at) >= WARN_EVERY);
        if due {
            self.warned_at = Some(now);
        }
        due
    }

    fn bury(&mut self, letter: DeadLetter) -> Result<()> {
        let Some(dead) = &mut self.dead else { return Ok(()) };
        dead.emit(Record { value: letter.refused_by(self.cx.uid()), time: EventTime::NONE })
    }

    /// Records that do not decode.
    #[cold]
    pub(crate) fn undecoded(&mut self, letters: Vec<DeadLetter>, policy: BadRecords) -> Result<()> {
        TaskStats::add(&self.cx.task_context().stats.dead_letters, letters.len() as u64);
        let Some(l) = letters.first() else { return Ok(()) };
        if policy == BadRecords::Fail {
            return Err(TaskError::user(format!(
                "cannot decode {} partition {} offset {}: {}; let it go to the dead letters instead with BadRecords::DeadLetter",
                l.origin, l.partition, l.offset, l.reason
            ))
            .at(self.cx.uid()));
        }
        if self.may_warn() {
            tracing::warn!(
                operator = %self.cx.uid(), origin = %l.origin, partition = l.partition, offset = l.offset, reason = %l.reason,
                count = letters.len(), routed = self.dead.is_some(),
                "records that do not decode went to the dead letters"
            );
        }
        letters.into_iter().try_for_each(|letter| self.bury(letter))
    }

    /// Records whose time is refused; `policy` says of each fault what is to be done.
    #[cold]
    pub(crate) fn untimely(
        &mut self,
        refused: Vec<Refused<T>>,
        policy: impl Fn(TimeFault) -> BadRecords,
    ) -> Result<()> {
        TaskStats::add(&self.cx.task_context().stats.dead_letters, refused.len() as u64);
        for Refused { letter, .. } in &refused {
            self.counter(letter.fault).add(1);
        }
        let failing = refused.iter().find(|r| policy(r.letter.fault) == BadRecords::Fail);
        if let Some(Refused { letter: Quarantined { time, split, fault, .. }, .. }) = failing {
            return Err(TaskError::user(why_it_fails(split, *time, *fault)).at(self.cx.uid()));
        }
        if self.may_warn()
            && let Some(Refused { letter: Quarantined { time, split, fault, .. }, .. }) = refused.first()
        {
            tracing::warn!(
                operator = %self.cx.uid(), %split, %time, reason = %fault,
                count = refused.len(), routed = self.quarantine.is_some(),
                "records were quarantined for their time"
            );
        }
        for Refused { split, letter } in refused {
            let reason = format!("its time {} is refused: {}", letter.time, letter.fault);
            let partition = i32::try_from(split.0).unwrap_or(-1);
            self.bury(DeadLetter::new(&letter.split, partition, -1, reason, &[]))?;
            if let Some(quarantine) = &mut self.quarantine {
                quarantine.emit(Record { value: letter, time: EventTime::NONE })?;
            }
        }
        Ok(())
    }

    fn counter(&self, fault: TimeFault) -> &Counter {
        match fault {
            TimeFault::Missing => &self.untimed,
            TimeFault::AheadOfClock { .. } | TimeFault::AheadOfSplit { .. } => &self.far_future,
            TimeFault::WentBack { .. } => &self.out_of_order,
        }
    }
}

/// What a person reads when a record's time fails the job.
fn why_it_fails(split: &str, time: EventTime, fault: TimeFault) -> String {
    match fault {
        TimeFault::WentBack { latest } => {
            let behind = latest.0.abs_diff(time.0);
            format!(
                "{split} gave a record of {time} after one of {latest}, and its times are said to be in order: say \
                 Watermarks::bounded(disorder) with at least {behind} ms, or let it be quarantined with \
                 .out_of_order(BadRecords::DeadLetter)"
            )
        }
        fault => format!(
            "{split} gave a record whose time {time} is refused: {fault}; let it be quarantined instead with \
             BadRecords::DeadLetter"
        ),
    }
}
