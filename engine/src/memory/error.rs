//! Why a job's memory and threads cannot be planned: every share, what is needed, what there is, and what to change.

use std::fmt;

use super::display::{Bytes, enough, list_threads, rows};
use super::limit::{Limit, LimitOrigin};
use super::plan::{ChannelsAsk, MOST_PERCENT, MemoryAsk};
use super::share::Share;

/// Why a job's memory and threads cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// What the job needs is more than there may be.
    #[error("{0}")]
    TooSmall(Box<Shortage>),
    /// More threads than there may be.
    #[error("{}", too_many_threads(.0))]
    Threads(Box<MemoryAsk>),
    /// More files than may be open.
    #[error("{}", too_many_files(.0))]
    Files(Box<MemoryAsk>),
    /// A share is what it is.
    #[error(
        "{share} cannot be set in percent: set state caches, block cache, write buffers and index; the rest is headroom"
    )]
    NoPercent {
        /// The share.
        share: Share,
    },
    /// A share is what it is.
    #[error("{share} has no minimum: it gets what the job needs")]
    NoMinimum {
        /// The share.
        share: Share,
    },
    /// Too little for what nobody can plan.
    #[error(
        "the shares add up to {sum} percent: they may take {MOST_PERCENT} at most, for the rest is the headroom"
    )]
    NoHeadroom {
        /// The sum.
        sum: u64,
    },
    /// A record takes something.
    #[error(
        "a record of 0 bytes cannot be: give MemoryConfig::record_bytes what a record takes, or leave it out"
    )]
    RecordBytes,
}

/// A plan that does not fit. It displays as a table of what is needed, and what to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    pub(crate) ask: MemoryAsk,
}

impl Shortage {
    /// The least that the job runs with, in bytes.
    pub fn needed(&self) -> u64 {
        Share::ALL.iter().fold(0, |sum: u64, share| sum.saturating_add(self.ask.needs(*share)))
    }

    /// What there may be, in bytes.
    pub fn limit(&self) -> u64 {
        self.ask.limit.amount
    }

    /// What can be changed, most useful first.
    fn advice(&self) -> Vec<String> {
        let (ask, needed) = (&self.ask, self.needed());
        let mut advice = vec![match &ask.limit.origin {
            LimitOrigin::Cgroup { file } => format!(
                "give the process {} ({}; in a container, its memory limit)",
                enough(needed),
                file.display()
            ),
            LimitOrigin::AddressSpace => format!("give the process {} with ulimit -v", enough(needed)),
            LimitOrigin::Set => format!("set MemoryConfig::limit to {} or more", enough(needed)),
            _ => format!("run it where there are {}", enough(needed)),
        }];
        // What is a small part of the whole would not help.
        let counts = |bytes: u64| bytes >= needed / 20;
        if counts(ask.channels.bytes()) {
            advice.extend(shallower(&ask.channels, needed.saturating_sub(ask.limit.amount)));
            let each = ask.channels.record_bytes;
            advice.push(format!("MemoryConfig::record_bytes, if a record takes less than {each} B"));
            advice.push("a lower parallelism: channels between two operators go with its square".into());
        }
        let mut declared: Vec<_> = ask.declared.iter().filter(|d| counts(d.bytes)).collect();
        declared.sort_by_key(|declared| std::cmp::Reverse(declared.bytes));
        for declared in declared {
            if let Some(setting) = declared.setting {
                advice.push(format!("{setting} of the {} ({})", declared.name, declared.whose));
            }
        }
        if counts(ask.stack_bytes()) {
            advice.push("fewer threads: a lower parallelism, fewer clients".into());
        }
        let minimums = Share::DIVIDED.into_iter().filter(|share| counts(ask.needs(*share)));
        let minimums: Vec<String> = minimums.map(|share| share.to_string()).collect();
        if !minimums.is_empty() {
            advice.push(format!("MemoryConfig::minimum of {}", minimums.join(", ")));
        }
        advice
    }
}

/// The deepest channels that fit, or else the shallowest, and what they save.
fn shallower(channels: &ChannelsAsk, short: u64) -> Option<String> {
    let with = |depth: u64| ChannelsAsk { depth, ..*channels };
    let saved = |depth: u64| channels.bytes().saturating_sub(with(depth).bytes());
    let depth = (1..channels.depth).rev().find(|depth| saved(*depth) >= short);
    let depth = depth.unwrap_or(1);
    (depth < channels.depth).then(|| {
        format!(
            "Job::channel_depth({depth}) instead of {}, which saves {}",
            channels.depth,
            Bytes(saved(depth))
        )
    })
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limit { amount, origin } = &self.ask.limit;
        writeln!(
            f,
            "job {:?} needs at least {} of memory and there are {} ({origin}):",
            self.ask.job,
            enough(self.needed()),
            Bytes(*amount)
        )?;
        for row in rows(&self.ask, |share| self.ask.needs(share)) {
            writeln!(f, "  {row}")?;
        }
        write!(f, "to change: {}", self.advice().join("; "))
    }
}

fn too_many_files(ask: &MemoryAsk) -> String {
    let max = ask.max_files.as_ref();
    let (most, origin) = max.map_or((0, String::new()), |max| (max.amount, max.origin.to_string()));
    let (databases, needed) = (ask.databases, ask.needed_files());
    format!(
        "job {:?} needs {needed} open files, {} of them for {databases} RocksDB databases, one per subtask with state, and there may be \
         {most} ({origin}): raise the hard limit (ulimit -Hn; LimitNOFILE= of a systemd unit, --ulimit nofile= of a container), or \
         lower Job::parallelism or that of operators with state",
        ask.job,
        needed - ask.other_files()
    )
}

fn too_many_threads(ask: &MemoryAsk) -> String {
    let max = ask.max_threads.as_ref();
    let (most, origin) = max.map_or((0, String::new()), |max| (max.amount, max.origin.to_string()));
    format!(
        "job {:?} needs {} threads and there may be {most} ({origin}): {}; lower Job::parallelism, or give those with many \
         subtasks one of their own",
        ask.job,
        ask.thread_count(),
        list_threads(&ask.threads)
    )
}
