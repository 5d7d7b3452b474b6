//! The recorder behind the `metrics` facade: Prometheus text, installed once per process.

use std::sync::OnceLock;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Installs the Prometheus recorder, unless the process has a recorder of its own already: then metrics go there.
/// Counts published before the first call are not kept; call it before a job starts.
pub fn install() {
    handle();
}

fn handle() -> Option<&'static PrometheusHandle> {
    RECORDER.get_or_init(|| PrometheusBuilder::new().install_recorder().ok()).as_ref()
}

/// Every metric as Prometheus text, the process's own read now. None when another recorder was there first.
pub fn render() -> Option<String> {
    let handle = handle()?;
    super::process::publish();
    handle.run_upkeep();
    Some(handle.render())
}
