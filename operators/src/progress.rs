//! How far event time had come at a checkpoint: kept so that nothing fires twice after a restore, and what was late stays late.

use weir_engine::{OperatorContext, Result, TaskError, Watermark};
use weir_state::store::Snapshot;

/// The list of the checkpoint that it is in, and its key.
const LIST: &str = "progress";
const WATERMARK: &str = "watermark";

/// Keeps the watermark that the operator has acted upon.
pub(crate) fn keep(watermark: Watermark, into: &mut Snapshot) {
    into.item(LIST, WATERMARK, watermark.0.into());
}

/// The watermark that every subtask there was had acted upon. At one barrier they all have seen the same.
///
/// # Errors
/// The checkpoint holds something else in its place.
pub(crate) fn restored(cx: &OperatorContext) -> Result<Watermark> {
    let kept = cx.restored(LIST).into_iter().filter(|item| item.key == WATERMARK);
    let kept = kept.map(|item| item.value.as_i64().map(Watermark).ok_or(item.value));
    let least = kept.reduce(|a, b| Ok(a?.min(b?))).unwrap_or(Ok(Watermark::MIN));
    least.map_err(|value| {
        TaskError::external(format!(
            "the checkpoint says that event time was at {value}, which is no number: restore from another one"
        ))
    })
}
