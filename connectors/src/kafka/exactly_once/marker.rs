//! What the control topic says is visible, what a checkpoint says was kept back, and so what has to be replayed. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use weir_engine::Piece;

/// By subtask, the newest of its pieces that is visible.
pub(super) type Reached = BTreeMap<usize, u64>;

/// The newest record of the control topic. It is written in the transaction that makes visible what it names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Marker {
    /// Of this layout.
    pub(super) format: u32,
    /// The life of the job that wrote it. Numbers of pieces begin anew in each.
    pub(super) life: String,
    /// When that life began, in milliseconds since the epoch by its machine's clock: a life that is late to begin does not take over
    /// from one that came after it.
    pub(super) since: i64,
    /// What this life began from, once all of that was visible; none when it began without a checkpoint.
    pub(super) from: Option<Begun>,
    /// What of this life's own pieces is visible.
    pub(super) reached: Reached,
}

/// A checkpoint that a life began from, as the sink knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Begun {
    /// The life that took it.
    pub(super) life: String,
    /// The newest pieces that it names.
    pub(super) reached: Reached,
}

/// The layout of markers and of what is kept in checkpoints.
pub(super) const FORMAT: u32 = 1;

/// What one subtask puts into a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Prepared {
    /// Of this layout.
    pub(super) format: u32,
    /// The life that takes the checkpoint.
    pub(super) life: String,
    /// The subtask's pieces that were not known to be visible, oldest first; the last ends at this barrier.
    pub(super) pieces: Vec<Piece>,
    /// There will be no other: the input has ended.
    pub(super) last: bool,
}

/// Why a life must not go on from its checkpoint.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(super) enum Refusal {
    #[error(
        "no marker is in the control topic, so it is not known what of the checkpoint is visible already"
    )]
    Missing,
    #[error(
        "output is visible that is newer than the checkpoint (subtask {subtask} has made piece {visible} visible, the \
         checkpoint knows up to {known}), and would be written again"
    )]
    Newer { subtask: usize, visible: u64, known: u64 },
    #[error(
        "the newest marker is of another line of runs (life {found}) than the checkpoint (life {wanted}), so it is not known \
         what of the checkpoint is visible already"
    )]
    Another { found: String, wanted: String },
    #[error(
        "output of an earlier run is visible (life {found}), and this one begins without a checkpoint, so it may write the same \
         again"
    )]
    Anew { found: String },
    #[error("the checkpoint holds pieces of two lives, {one} and {other}")]
    Mixed { one: String, other: String },
    #[error("layout {found} was written by a later version of this sink, which knows {FORMAT}")]
    Format { found: u32 },
}

impl Refusal {
    /// True when the user may say that duplicates are accepted.
    pub(super) fn may_be_accepted(&self) -> bool {
        matches!(
            self,
            Refusal::Missing | Refusal::Newer { .. } | Refusal::Another { .. } | Refusal::Anew { .. }
        )
    }
}

/// Everything that a life begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Beginning {
    /// What has to be made visible together with `marker`, in this order.
    pub(super) replay: Vec<Piece>,
    /// The first marker of the new life.
    pub(super) marker: Marker,
    /// What was refused, and accepted all the same.
    pub(super) accepted: Option<Refusal>,
}

/// Decides how life `life`, of the time `since`, begins: `found` is the newest marker, `prepared` what the checkpoint holds of all subtasks.
pub(super) fn begin(
    (life, since): (&str, i64),
    found: Option<&Marker>,
    prepared: &[Prepared],
    accept_duplicates: bool,
) -> Result<Beginning, Refusal> {
    if let Some(found) = found.filter(|m| m.format > FORMAT) {
        return Err(Refusal::Format { found: found.format });
    }
    if let Some(p) = prepared.iter().find(|p| p.format > FORMAT) {
        return Err(Refusal::Format { found: p.format });
    }
    let marker =
        |from| Marker { format: FORMAT, life: life.to_owned(), since, from, reached: Reached::new() };
    let Some(first) = prepared.first() else {
        // A run that ended before its first checkpoint has shown nothing.
        let shown = found.filter(|m| m.from.is_some() || !m.reached.is_empty());
        let refusal = shown.map(|m| Refusal::Anew { found: m.life.clone() });
        return match refusal {
            Some(refusal) if !accept_duplicates => Err(refusal),
            accepted => Ok(Beginning { replay: Vec::new(), marker: marker(None), accepted }),
        };
    };
    if let Some(other) = prepared.iter().find(|p| p.life != first.life) {
        return Err(Refusal::Mixed { one: first.life.clone(), other: other.life.clone() });
    }
    // A subtask may have prepared several times: for a checkpoint that was given up or a savepoint, and for this one. What the
    // latest names no more was visible, and its bytes may be gone.
    let mut latest: BTreeMap<usize, &Prepared> = BTreeMap::new();
    for p in prepared {
        let Some(newest) = p.pieces.last() else { continue };
        let known = latest.entry(newest.subtask).or_insert(p);
        if known.pieces.last().is_some_and(|piece| piece.number < newest.number) {
            *known = p;
        }
    }
    let pieces: BTreeSet<(u64, usize, Piece)> =
        latest.values().flat_map(|p| &p.pieces).map(|p| (p.number, p.subtask, *p)).collect();
    let mut named = Reached::new();
    for (number, subtask, _) in &pieces {
        named.insert(*subtask, *number);
    }
    let (visible, refusal) = visible(found, &first.life, &named);
    if let Some(refusal) = &refusal
        && !accept_duplicates
    {
        return Err(refusal.clone());
    }
    let is_visible = |p: &Piece| visible.get(&p.subtask).is_some_and(|newest| p.number <= *newest);
    Ok(Beginning {
        replay: pieces.into_iter().map(|(_, _, piece)| piece).filter(|p| !is_visible(p)).collect(),
        marker: marker(Some(Begun { life: first.life.clone(), reached: named })),
        accepted: refusal,
    })
}

/// What is known to be visible of the pieces of `life`, and what speaks against going on from a checkpoint that names its
/// pieces up to `named`.
fn visible(found: Option<&Marker>, life: &str, named: &Reached) -> (Reached, Option<Refusal>) {
    let Some(found) = found else { return (Reached::new(), Some(Refusal::Missing)) };
    let newer = |reached: &Reached| {
        let known = |subtask: &usize| named.get(subtask).copied();
        let newer = reached.iter().find(|(subtask, visible)| known(subtask).is_none_or(|k| k < **visible));
        newer.map(|(subtask, visible)| Refusal::Newer {
            subtask: *subtask,
            visible: *visible,
            known: known(subtask).unwrap_or(0),
        })
    };
    match &found.from {
        _ if found.life == life => (found.reached.clone(), newer(&found.reached)),
        // The life that wrote it began from a checkpoint of the same life, and so made all of that visible.
        Some(from) if from.life == life => {
            let beyond = found.reached.iter().next();
            let own = beyond.map(|(subtask, visible)| Refusal::Newer {
                subtask: *subtask,
                visible: *visible,
                known: 0,
            });
            (from.reached.clone(), own.or_else(|| newer(&from.reached)))
        }
        _ => {
            let (found, wanted) = (found.life.clone(), life.to_owned());
            (Reached::new(), Some(Refusal::Another { found, wanted }))
        }
    }
}

#[cfg(test)]
#[path = "marker_tests.rs"]
mod tests;
