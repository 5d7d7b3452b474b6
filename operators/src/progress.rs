//! How far event time had come at a checkpoint: kept so that nothing fires twice after a restore, and what was late stays late.

use weir_engine::{OperatorContext, Result, TaskError, Watermark};
use weir_state::store::Snapshot;

/// The list of the checkpoint that it is in, and its key.
const LIST: &str = "progress";
const WATERMARK: &str = "watermark";
const HELD: &str = "held";

/// Keeps the watermark that the operator has acted upon.
pub(crate) fn keep(watermark: Watermark, into: &mut Snapshot) {
    into.item(LIST, WATERMARK, watermark.0.into());
}

/// Says that the watermark has not gone downstream: results are to be given before it.
pub(crate) fn keep_held(into: &mut Snapshot) {
    into.item(LIST, HELD, true.into());
}

/// Some subtask whose keys are now this one's had not let its watermark go downstream.
pub(crate) fn was_held(cx: &OperatorContext) -> bool {
    cx.restored_of_own_keys(LIST).iter().any(|item| item.key == HELD)
}

/// The watermark that had been acted upon for the keys of this subtask, where this life goes on from it.
///
/// One that was the end of all input is not gone on from: a life that begins after the end has more to read, files that were added for
/// instance, and to it all of that would be late. Everything was given by then, so nothing is given twice; event time begins
/// anew. But where results were still to be given, the end has not come yet: that life gives them first.
///
/// # Errors
/// As [`reached`].
pub(crate) fn restored(cx: &OperatorContext) -> Result<Watermark> {
    let reached = reached(cx)?;
    Ok(if was_held(cx) { reached } else { unless_over(reached) })
}

/// The watermark, unless it is the end of all input: after that event time begins anew.
pub(crate) fn unless_over(watermark: Watermark) -> Watermark {
    if watermark == Watermark::MAX { Watermark::MIN } else { watermark }
}

/// The watermark that had been acted upon for the keys of this subtask: at an unchanged parallelism, the one that this subtask itself
/// had come to. Subtasks differ at one barrier: what an input that was idle for a while has let pass depends on the order in which each
/// of them read its channels. Where keys of several come together, the least of theirs counts: what was ahead of it may come again,
/// but nothing is lost.
///
/// # Errors
/// The checkpoint holds something else in its place.
pub(crate) fn reached(cx: &OperatorContext) -> Result<Watermark> {
    let kept = cx.restored_of_own_keys(LIST).into_iter().filter(|item| item.key == WATERMARK);
    let kept = kept.map(|item| item.value.as_i64().map(Watermark).ok_or(item.value));
    let least = kept.reduce(|a, b| Ok(a?.min(b?))).unwrap_or(Ok(Watermark::MIN));
    least.map_err(|value| {
        TaskError::external(format!(
            "the checkpoint says that event time was at {value}, which is no number: restore from another one"
        ))
    })
}
