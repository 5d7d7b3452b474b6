//! The state machine of the pump: what to do next, and what follows from what came of it. Pure: no client, no clock, no thread.
//!
//! It never asks a transaction what became of it. Whenever that is in doubt the producer is replaced, which ends the
//! transaction one way or the other and fences everybody else; then the marker says whether it took effect.

use weir_engine::Piece;

use super::marker::{Beginning, Marker, Prepared, Refusal, begin};

/// What the pump has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Let go of the producer, if there is one; make a new one and have it fence its predecessors.
    Replace,
    /// Read the newest marker, with `read_committed`.
    ReadMarker,
    /// Write these pieces and this marker in one transaction.
    Send(Offer),
    /// Flush, then abort the transaction.
    Abort,
    /// Nothing, until a piece is handed over.
    Wait,
    /// Nothing any more.
    Stop(Trouble),
}

/// A transaction's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) pieces: Vec<Piece>,
    pub(super) marker: Marker,
}

/// What came of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It took effect.
    Committed,
    /// It has not taken effect and can be aborted.
    Abortable,
    /// The producer is of no use any more, or nobody knows.
    InDoubt,
}

/// Why the pump has stopped for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// This life must not go on from its checkpoint.
    Refused(Refusal),
    /// A later life has taken over: its marker is there.
    Overtaken {
        /// The life.
        by: String,
    },
    /// The marker of this life is gone, or older than it was.
    MarkerLost,
    /// Nothing will come of trying again.
    Hopeless(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// There is no producer, or it is of no use.
    Unfenced,
    /// Everybody else is fenced, and the marker is not known.
    Unread,
    /// The marker is known and no transaction is open.
    Ready,
    /// The pump writes a transaction.
    Sending,
    /// It has failed, and has to be aborted.
    Failed,
    Over(Trouble),
}

/// The pump's mind.
#[derive(Debug)]
pub(super) struct Machine {
    life: String,
    since: i64,
    accept_duplicates: bool,
    /// What the checkpoint holds; none once this life has begun.
    beginning: Option<Vec<Prepared>>,
    accepted: Option<Refusal>,
    state: State,
    /// The marker that this life has written last.
    marker: Option<Marker>,
    /// What was offered last and is not known to be visible.
    offer: Option<Offer>,
    /// What waits for a transaction, oldest first.
    queue: Vec<Piece>,
    /// What has become visible and was not asked for yet.
    visible: Vec<Piece>,
}

impl Machine {
    /// A life, of the time `since`, that begins with what the checkpoint holds of all subtasks.
    pub(super) fn new(life: String, since: i64, prepared: Vec<Prepared>, accept_duplicates: bool) -> Self {
        Machine {
            life,
            since,
            accept_duplicates,
            beginning: Some(prepared),
            accepted: None,
            state: State::Unfenced,
            marker: None,
            offer: None,
            queue: Vec::new(),
            visible: Vec::new(),
        }
    }

    /// A complete checkpoint has this piece.
    pub(super) fn hand(&mut self, piece: Piece) {
        self.queue.push(piece);
    }

    /// Of how many subtasks something waits.
    pub(super) fn waiting_subtasks(&self) -> usize {
        let mut subtasks: Vec<usize> = self.queue.iter().map(|piece| piece.subtask).collect();
        subtasks.sort_unstable();
        subtasks.dedup();
        subtasks.len()
    }

    /// Everything that the checkpoint held is visible: records may flow.
    pub(super) fn has_begun(&self) -> bool {
        self.beginning.is_none()
    }

    /// What was accepted although it means duplicates, once.
    pub(super) fn take_accepted(&mut self) -> Option<Refusal> {
        self.accepted.take()
    }

    /// What has become visible since this was asked.
    pub(super) fn take_visible(&mut self) -> Vec<Piece> {
        std::mem::take(&mut self.visible)
    }

    /// What to do next. Asking twice gives the same.
    pub(super) fn step(&self) -> Step {
        match &self.state {
            State::Unfenced => Step::Replace,
            State::Unread => Step::ReadMarker,
            State::Failed => Step::Abort,
            State::Over(trouble) => Step::Stop(trouble.clone()),
            State::Ready | State::Sending => match &self.offer {
                Some(offer) => Step::Send(offer.clone()),
                None if self.queue.is_empty() => Step::Wait,
                None => self.next_offer().map_or(Step::Wait, Step::Send),
            },
        }
    }

    /// All that waits, and the marker that says so.
    fn next_offer(&self) -> Option<Offer> {
        let mut marker = self.marker.clone()?;
        for piece in &self.queue {
            let reached = marker.reached.entry(piece.subtask).or_default();
            *reached = piece.number.max(*reached);
        }
        Some(Offer { pieces: self.queue.clone(), marker })
    }

    /// The new producer has fenced its predecessors.
    pub(super) fn replaced(&mut self) {
        if self.state == State::Unfenced {
            self.state = State::Unread;
        }
    }

    /// The marker was read.
    pub(super) fn read(&mut self, found: Option<Marker>) {
        if self.state != State::Unread {
            return;
        }
        self.state = State::Ready;
        if let Some(offer) = self.offer.take() {
            if found.as_ref() == Some(&offer.marker) {
                return self.took_effect(offer);
            }
            // It did not take effect, and may not be what is to be offered now.
            if self.beginning.is_none() {
                self.offer = Some(offer);
            }
        }
        // A clock that was wrong may have made a life of the past look like one of the future: who accepts duplicates passes it.
        let later = |m: &&Marker| m.life != self.life && m.since > self.since;
        let passes = self.accept_duplicates && self.beginning.is_some();
        if let Some(found) = found.as_ref().filter(later).filter(|_| !passes) {
            return self.stop(Trouble::Overtaken { by: found.life.clone() });
        }
        if let Some(prepared) = &self.beginning {
            match begin((&self.life, self.since), found.as_ref(), prepared, self.accept_duplicates) {
                Ok(Beginning { replay, marker, accepted }) => {
                    self.accepted = accepted;
                    self.offer = Some(Offer { pieces: replay, marker });
                }
                Err(refusal) => self.stop(Trouble::Refused(refusal)),
            }
        } else if found != self.marker {
            self.stop(match found {
                Some(found) if found.life != self.life => Trouble::Overtaken { by: found.life },
                _ => Trouble::MarkerLost,
            });
        }
    }

    /// The pump begins the transaction of [`Step::Send`]: what is handed over from now on goes into the next.
    pub(super) fn sending(&mut self) {
        if self.state != State::Ready {
            return;
        }
        if self.offer.is_none() {
            self.offer = self.next_offer();
            self.queue.clear();
        }
        self.state = State::Sending;
    }

    /// What came of it.
    pub(super) fn sent(&mut self, sent: Sent) {
        if self.state != State::Sending {
            return;
        }
        match sent {
            Sent::Committed => {
                self.state = State::Ready;
                if let Some(offer) = self.offer.take() {
                    self.took_effect(offer);
                }
            }
            Sent::Abortable => self.state = State::Failed,
            Sent::InDoubt => self.state = State::Unfenced,
        }
    }

    /// The transaction was aborted, or could not be.
    pub(super) fn aborted(&mut self, done: bool) {
        if self.state == State::Failed {
            self.state = if done { State::Ready } else { State::Unfenced };
        }
    }

    /// Nothing will come of going on.
    pub(super) fn stop(&mut self, trouble: Trouble) {
        self.state = State::Over(trouble);
    }

    fn took_effect(&mut self, Offer { pieces, marker }: Offer) {
        self.visible.extend(pieces);
        self.marker = Some(marker);
        self.beginning = None;
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
