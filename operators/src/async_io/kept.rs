//! What a checkpoint keeps of the calls under way: their records, to be asked for again.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use weir_engine::{EventTime, KeyHash, OperatorContext, Result, Watermark};
use weir_state::key_hash;
use weir_state::keyed::{StateMap, Table};
use weir_state::store::Snapshot;

use crate::aggregate::Kept;

/// The key of a record in the state. `salt` is whatever brings it to the key group of its key, or for a stream without keys to one of
/// the subtask's own, so that any number of subtasks may take over.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Ticket {
    number: u64,
    subtask: u32,
    salt: u32,
}

impl Ticket {
    /// The number of its record in its subtask.
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

/// A record under way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Request<T> {
    pub(super) input: T,
    pub(super) time: EventTime,
    /// The last watermark that came before it.
    pub(super) behind: Watermark,
}

/// The records in the state. It holds those that were under way at the last barrier and are still.
pub(super) struct Requests<T: Kept> {
    table: StateMap<Ticket, Request<T>>,
    own: Range<u16>,
    groups: u16,
    subtask: u32,
}

impl<T: Kept> Requests<T> {
    pub(super) fn open(cx: &OperatorContext) -> Result<Self> {
        Ok(Requests {
            table: cx.store()?.state_map(Table::new("requests"))?,
            own: cx.own_key_groups(),
            groups: cx.key_groups(),
            subtask: cx.subtask() as u32,
        })
    }

    /// What was under way at the checkpoint that this life began from, in the order in which it came; those of several subtasks
    /// by the watermark they came behind, of which all have seen `seen`. One that came behind a later watermark comes behind
    /// `seen` now, and in the state too: the next life is to order it as this one does.
    pub(super) fn restored(&mut self, seen: Watermark) -> Result<Vec<(Ticket, Request<T>)>> {
        let mut all = Vec::new();
        self.table.for_each(|ticket, request| all.push((ticket.clone(), request.clone())))?;
        for (ticket, request) in all.iter_mut().filter(|(_, request)| request.behind > seen) {
            request.behind = seen;
            self.table.insert(self.hash(ticket), ticket.clone(), request.clone())?;
        }
        all.sort_by_key(|(ticket, request)| (request.behind, ticket.number, ticket.subtask));
        Ok(all)
    }

    fn hash(&self, ticket: &Ticket) -> KeyHash {
        key_hash(ticket)
    }

    /// The key group of a key.
    pub(super) fn group(&self, hash: KeyHash) -> u16 {
        hash.group(self.groups).0
    }

    /// Puts the record of this number into the state: with the key group of its key, so that it goes where its key goes; without
    /// one, into any of the subtask's own.
    pub(super) fn add(&mut self, number: u64, group: Option<u16>, request: Request<T>) -> Result<Ticket> {
        let mut ticket = Ticket { number, subtask: self.subtask, salt: 0 };
        // One in as many as there are subtasks fits, or as there are groups: a hash of a few nanoseconds each.
        let fits = |at: u16| group.map_or_else(|| self.own.contains(&at), |group| at == group);
        while !fits(self.group(self.hash(&ticket))) {
            ticket.salt += 1;
        }
        self.table.insert(self.hash(&ticket), ticket.clone(), request)?;
        Ok(ticket)
    }

    /// It is under way no more.
    pub(super) fn remove(&mut self, ticket: &Ticket) {
        self.table.remove(self.hash(ticket), ticket);
    }

    pub(super) fn freeze(&mut self, into: &mut Snapshot) -> Result<()> {
        Ok(self.table.freeze(into)?)
    }

    pub(super) fn batch_end(&mut self) -> Result<()> {
        Ok(self.table.batch_end()?)
    }
}
