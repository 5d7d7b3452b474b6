//! The recorder behind the `metrics` facade: Prometheus text, installed once per process.

use std::sync::OnceLock;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Installs the Prometheus recorder, unless the process has a recorder of its own already: then metrics go there.
/// Counts published before the first call are not kept; call it before a job starts. Calling it again does nothing.
pub fn install() {
    handle();
}

fn handle() -> Option<&'static PrometheusHandle> {
    RECORDER.get_or_init(|| PrometheusBuilder::new().install_recorder().ok()).as_ref()
}

/// Every metric as Prometheus text, the process's own read now. None when another recorder was there first. Installs the
/// recorder if nobody has.
///
/// ```
/// weir_engine::metrics::install();
/// let text = weir_engine::metrics::render().expect("no recorder was there before");
/// # #[cfg(target_os = "linux")]
/// assert!(text.contains("\nprocess_threads "));
/// ```
pub fn render() -> Option<String> {
    let handle = handle()?;
    super::process::publish();
    handle.run_upkeep();
    Some(handle.render())
}
