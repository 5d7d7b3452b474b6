//! Logs: `tracing` to stderr, levels by a filter such as `info,weir_engine=debug` that may be changed while jobs run.

use std::io::IsTerminal;
use std::sync::{Mutex, OnceLock, PoisonError};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Why logging could not be set up, or its filter not be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// It does not read as a filter.
    #[error(
        "{filter:?} is not a log filter ({reason}): write a level (error, warn, info, debug, trace) or `info,weir_engine=debug`"
    )]
    Filter {
        /// What was given.
        filter: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The logs of the process are not this module's.
    #[error(
        "the log filter cannot be changed: logs go to a subscriber that was not set up by weir_engine::log::init"
    )]
    Elsewhere,
}

/// What logs go by at the moment, and how to change that.
struct Ours {
    filter: Mutex<String>,
    reload: Box<dyn Fn(EnvFilter) -> bool + Send + Sync>,
}

static OURS: OnceLock<Ours> = OnceLock::new();

/// Sends logs to stderr. The first call wins: later ones change nothing, and neither does any when a subscriber was there
/// before. To change the filter later there is [`set`].
///
/// # Errors
/// When `filter` does not read as a filter, also in a later call.
///
/// ```
/// weir_engine::log::init("warn,weir_engine=debug")?;
/// let error = weir_engine::log::init("weir_engine=loud").unwrap_err();
/// assert!(error.to_string().starts_with(r#""weir_engine=loud" is not a log filter"#));
/// # Ok::<(), weir_engine::log::LogError>(())
/// ```
pub fn init(filter: &str) -> Result<(), LogError> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(parsed(filter)?)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // It would be printed, and panic in whoever has logged when that cannot be written either: a full disk under the log.
        .log_internal_errors(false)
        .with_filter_reloading();
    let handle = builder.reload_handle();
    // A second initialisation is not an error: a library or a test may have been first.
    if builder.try_init().is_ok() {
        let reload = Box::new(move |filter| handle.reload(filter).is_ok());
        let _ = OURS.set(Ours { filter: Mutex::new(filter.to_owned()), reload });
    }
    Ok(())
}

/// Changes what is logged, from now on and for the whole process; gives the filter that stood before. What checkpoints do, phase
/// by phase, is logged with the target `checkpoint`: `info,checkpoint=debug` shows it. Over HTTP it is `PUT /log`.
///
/// # Errors
/// When `filter` does not read as a filter; when [`init`] has not set logging up, or somebody else had before.
///
/// ```
/// use weir_engine::log;
/// log::init("warn")?;
/// assert_eq!(log::set("warn,checkpoint=debug")?, "warn");
/// assert_eq!(log::filter().as_deref(), Some("warn,checkpoint=debug"));
/// let error = log::set("inof").unwrap_err().to_string();
/// assert!(error.starts_with(r#""inof" is not a log filter ("inof" is no level"#), "{error}");
/// # Ok::<(), weir_engine::log::LogError>(())
/// ```
pub fn set(filter: &str) -> Result<String, LogError> {
    let parsed = parsed(filter)?;
    let ours = OURS.get().ok_or(LogError::Elsewhere)?;
    // Two who set it at once: what is remembered is what is in force.
    let mut stands = ours.filter.lock().unwrap_or_else(PoisonError::into_inner);
    if !(ours.reload)(parsed) {
        return Err(LogError::Elsewhere);
    }
    Ok(std::mem::replace(&mut *stands, filter.to_owned()))
}

/// The filter in force; none when [`init`] has not set logging up.
pub fn filter() -> Option<String> {
    OURS.get().map(|ours| ours.filter.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

fn parsed(filter: &str) -> Result<EnvFilter, LogError> {
    let wrong = |reason: String| LogError::Filter { filter: filter.to_owned(), reason };
    // A bare word is a target to the library, logged in full and nothing else: a level that is misspelt silences all the rest.
    let parts = || filter.split(',').map(str::trim).filter(|part| !part.is_empty());
    let bare =
        |part: &&str| !part.contains(['=', '[', ']', '{', '}']) && part.parse::<LevelFilter>().is_err();
    if let Some(part) = parts().find(bare) {
        return Err(wrong(format!("{part:?} is no level; a target has one, as in {part}=debug")));
    }
    if parts().next().is_none() {
        return Err(wrong("it is empty".to_owned()));
    }
    // The library takes a space before a level for a part of a name.
    let plain = parts().collect::<Vec<_>>().join(",");
    // The HTTP server tells of its threads at info: news to nobody, unless it is asked for.
    let quiet = if plain.contains("actix") { plain.clone() } else { format!("{plain},actix_server=warn") };
    EnvFilter::try_new(plain).and_then(|_| EnvFilter::try_new(quiet)).map_err(|e| wrong(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_told_from_what_would_silence_the_log() {
        for good in
            ["info", "WARN", "off", "info,checkpoint=debug", "a::b=trace, warn", "[span{a=1}]=debug,info"]
        {
            assert!(parsed(good).is_ok(), "{good:?}");
        }
        let spaced = parsed("a=trace, warn").unwrap().to_string();
        assert!(!spaced.contains(' ') && !spaced.contains("warn=trace"), "a level, not a name: {spaced}");
        for bad in ["", " , ", "loud", "info,checkpoint", "weir_engine=loud", "info,a=b=c"] {
            let error = parsed(bad).unwrap_err().to_string();
            assert!(error.contains("is not a log filter"), "{bad:?}: {error}");
        }
    }
}
