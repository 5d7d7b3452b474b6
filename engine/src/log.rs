//! Logs: `tracing` to stderr, levels by a filter such as `info,weir_engine=debug`.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
#[error(
    "{filter:?} is not a log filter ({reason}): write a level (error, warn, info, debug, trace) or `info,weir_engine=debug`"
)]
pub struct LogError {
    filter: String,
    reason: String,
}

/// Sends logs to stderr. The first call wins: later ones change nothing, and neither does any when a subscriber was there
/// before.
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
    // The HTTP server tells of its threads at info: news to nobody, unless it is asked for.
    let quiet =
        if filter.contains("actix") { filter.to_owned() } else { format!("{filter},actix_server=warn") };
    let parsed = EnvFilter::try_new(filter)
        .and_then(|_| EnvFilter::try_new(quiet))
        .map_err(|e| LogError { filter: filter.to_owned(), reason: e.to_string() })?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // It would be printed, and panic in whoever has logged when that cannot be written either: a full disk under the log.
        .log_internal_errors(false);
    // A second initialisation is not an error: a library or a test may have been first.
    let _ = subscriber.try_init();
    Ok(())
}
