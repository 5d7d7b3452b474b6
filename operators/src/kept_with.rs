//! What state was made with, kept beside it: a later life that needs what was never kept is refused instead of going wrong.

use weir_engine::{OperatorContext, Result, TaskError};
use weir_state::store::Snapshot;

/// The list of the checkpoint that it is in.
const LIST: &str = "kept_with";

/// What is kept, and whether it is.
pub(crate) type KeptWith = Vec<(&'static str, bool)>;

/// Says what the state of the snapshot has.
pub(crate) fn keep(kept: &KeptWith, into: &mut Snapshot) {
    for (what, kept) in kept {
        into.item(LIST, *what, (*kept).into());
    }
}

/// State that was restored must have what is needed now. A checkpoint that does not say (of an older version) is trusted.
///
/// # Errors
/// It has not.
pub(crate) fn check(needed: &KeptWith, cx: &OperatorContext) -> Result<()> {
    for item in cx.restored(LIST) {
        let now = needed.iter().any(|(what, needed)| *what == item.key && *needed);
        if now && item.value.as_bool() == Some(false) {
            return Err(TaskError::user(format!(
                "the checkpoint holds records or results of this operator for which was not kept {}, which the job needs now: declare \
                 the operator as it was until they are gone, or give it another uid and drop the state of this one",
                item.key
            )));
        }
    }
    Ok(())
}
