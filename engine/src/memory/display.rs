//! How a memory plan reads: one line per share with what it is made of, and who costs the threads.

use std::fmt;

use super::plan::{MemoryAsk, MemoryPlan, TASKS_PER_CORE, ThreadGroup, ThreadKind};
use super::share::Share;

/// A number of bytes for people: three digits at most, in KiB, MiB, GiB or TiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

/// Whole MiB, rounded up: what is asked for is enough.
pub(crate) fn enough(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        let text = match units.iter().find(|(_, shift)| self.0 >> shift > 0) {
            None => format!("{} B", self.0),
            Some((unit, shift)) => {
                let amount = self.0 as f64 / (1u64 << shift) as f64;
                let whole = amount.fract() == 0.0 || amount >= 9.95;
                if whole { format!("{amount:.0} {unit}") } else { format!("{amount:.1} {unit}") }
            }
        };
        f.pad(&text)
    }
}

/// A line per share that the job has a use for: its name, its bytes, and what they are made of.
pub(super) fn rows(ask: &MemoryAsk, bytes: impl Fn(Share) -> u64) -> Vec<String> {
    let row = |share: Share| {
        format!("{share:<13} {:>8}  {}", Bytes(bytes(share)).to_string(), made_of(ask, share, bytes(share)))
    };
    let shown = |share: &Share| ask.has(*share) && (bytes(*share) > 0 || Share::DIVIDED.contains(share));
    Share::ALL.into_iter().filter(shown).map(|share| row(share).trim_end().to_owned()).collect()
}

fn made_of(ask: &MemoryAsk, share: Share, bytes: u64) -> String {
    match share {
        Share::Base => "the program and what it holds at the start".into(),
        Share::Channels => {
            let c = &ask.channels;
            format!(
                "{} channels × {} batches × {} records × {} B",
                c.channels,
                c.batches(),
                c.batch_records,
                c.record_bytes
            )
        }
        Share::Stacks => {
            let started = ask.threads.iter().filter(|g| g.kind != ThreadKind::Before);
            let threads: u64 = started.map(|group| group.threads).sum();
            format!("{threads} threads; {} of address space", Bytes(ask.stack_reserved_bytes()))
        }
        Share::Connectors => {
            let parts = ask.declared.iter().filter(|d| d.bytes > 0).map(|d| {
                let times = if d.count > 1 { format!("{} × ", d.count) } else { String::new() };
                format!("{times}{} ({}) {}", d.name, d.whose, Bytes(d.bytes))
            });
            parts.collect::<Vec<_>>().join(", ")
        }
        Share::StateCaches => {
            let each = Bytes(bytes / ask.stores.max(1));
            // Without a database below it there is nowhere to evict to.
            let held = if ask.databases > 0 { "" } else { ", all state: it may take more" };
            format!("{each} for each of {} stores{held}", ask.stores)
        }
        Share::BlockCache => "RocksDB, all stores together".into(),
        Share::WriteBuffers => format!("RocksDB, {} databases together", ask.databases),
        Share::Index => "the profile index".into(),
        Share::Headroom => "the allocator's slack, snapshots, what is not planned".into(),
    }
}

/// `6 tasks (source 4, count 2), 8 Kafka consumer, 3 before the start`.
pub(super) fn list_threads(groups: &[ThreadGroup]) -> String {
    let of = |kind: ThreadKind| groups.iter().filter(move |group| group.kind == kind && group.threads > 0);
    let mut parts = Vec::new();
    let tasks: u64 = of(ThreadKind::Task).map(|group| group.threads).sum();
    if tasks > 0 {
        let each: Vec<String> =
            of(ThreadKind::Task).map(|group| format!("{} {}", group.name, group.threads)).collect();
        parts.push(format!("{tasks} tasks ({})", each.join(", ")));
    }
    let others = of(ThreadKind::Client).chain(of(ThreadKind::Before));
    parts.extend(others.map(|group| format!("{} {}", group.threads, group.name)));
    parts.join(", ")
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({})", Bytes(self.limit.amount), self.limit.origin)?;
        for row in rows(&self.ask, |share| self.bytes(share)) {
            writeln!(f, "  {row}")?;
        }
        let max = self.ask.max_threads.as_ref();
        let of = max.map_or(String::new(), |max| format!(" of {} ({})", max.amount, max.origin));
        write!(f, "  threads {}{of}: {}", self.ask.thread_count(), list_threads(&self.ask.threads))?;
        match &self.ask.max_files {
            Some(max) if self.ask.databases > 0 => {
                let (amount, origin, databases) = (max.amount, &max.origin, self.ask.databases);
                let (each, others) = (self.open_files_per_database(), self.ask.other_files());
                write!(
                    f,
                    "\n  open files {amount} ({origin}): RocksDB, {databases} databases × {each}; {others} others"
                )
            }
            _ => Ok(()),
        }
    }
}

impl MemoryPlan {
    /// What is not wrong, but likely to hurt: more than four tasks per core (and more than one of each chain, which is what
    /// every job has when it says nothing), a limit above what the system allows.
    pub fn warnings(&self) -> Vec<String> {
        let (ask, mut warnings) = (&self.ask, Vec::new());
        let (tasks, cores) = (ask.task_count(), ask.cores.max(1));
        let chains = ask.threads.iter().filter(|group| group.kind == ThreadKind::Task).count() as u64;
        if tasks > cores.saturating_mul(TASKS_PER_CORE.max(chains)) {
            warnings.push(format!(
                "{tasks} tasks on {cores} cores are more than {TASKS_PER_CORE} a core: more threads take turns, they do not \
                 work more; lower Job::parallelism, or that of light operators"
            ));
        }
        if let Some(below) = &ask.below {
            warnings.push(format!(
                "the limit of {} that the job sets is more than the {} that there are ({}): the system may end the process",
                Bytes(ask.limit.amount),
                Bytes(below.amount),
                below.origin
            ));
        }
        warnings
    }

    /// Says at the start what is planned, line by line, and warns.
    pub(crate) fn say(&self) {
        let job = &self.ask.job;
        for line in self.to_string().lines() {
            tracing::info!(%job, "memory  {line}");
        }
        for warning in self.warnings() {
            tracing::warn!(%job, "memory  {warning}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_well() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (10 << 20, "10 MiB"),
            ((10 << 20) - 1, "10 MiB"),
            (2573 << 20, "2.5 GiB"),
            (300 << 30, "300 GiB"),
            (u64::MAX, "16777216 TiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(enough((1 << 20) + 1), "2 MiB");
    }
}
