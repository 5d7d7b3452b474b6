//! What the operating system says about this process: CPU, memory, threads, open files, network bytes.

use metrics::{counter, describe_counter, describe_gauge, gauge};
use procfs::WithCurrentSystemInfo;
use procfs::process::Process;

/// One reading of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessReading {
    /// CPU time used, user and system, in seconds.
    pub cpu_seconds: f64,
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// The most memory that was ever resident, in bytes.
    pub peak_resident_bytes: u64,
    /// Threads.
    pub threads: u64,
    /// Open file descriptors.
    pub open_files: u64,
    /// Bytes received over all interfaces of the process's network namespace.
    pub received_bytes: u64,
    /// Bytes sent over all interfaces of the process's network namespace.
    pub sent_bytes: u64,
}

/// Reads `/proc`. None where there is none; 0 for what it does not tell.
///
/// ```
/// # #[cfg(target_os = "linux")]
/// assert!(weir_engine::metrics::process::read().is_some_and(|me| me.threads > 0 && me.resident_bytes > 0));
/// ```
pub fn read() -> Option<ProcessReading> {
    let me = Process::myself().ok()?;
    let stat = me.stat().ok()?;
    let status = me.status().ok();
    let ticks = procfs::ticks_per_second() as f64;
    let devices = me.dev_status().unwrap_or_default();
    Some(ProcessReading {
        cpu_seconds: (stat.utime + stat.stime) as f64 / ticks,
        resident_bytes: stat.rss_bytes().get(),
        peak_resident_bytes: status.and_then(|s| s.vmhwm).unwrap_or(0) * 1024,
        threads: stat.num_threads.max(0) as u64,
        open_files: me.fd_count().unwrap_or(0) as u64,
        received_bytes: devices.values().map(|d| d.recv_bytes).sum(),
        sent_bytes: devices.values().map(|d| d.sent_bytes).sum(),
    })
}

/// Publishes one reading. Called when metrics are asked for.
pub(crate) fn publish() {
    let Some(now) = read() else { return };
    counter!("process_cpu_milliseconds_total").absolute((now.cpu_seconds * 1000.0) as u64);
    gauge!("process_resident_memory_bytes").set(now.resident_bytes as f64);
    gauge!("process_peak_resident_memory_bytes").set(now.peak_resident_bytes as f64);
    gauge!("process_threads").set(now.threads as f64);
    gauge!("process_open_fds").set(now.open_files as f64);
    counter!("process_network_receive_bytes_total").absolute(now.received_bytes);
    counter!("process_network_transmit_bytes_total").absolute(now.sent_bytes);
}

pub(crate) fn describe() {
    describe_counter!("process_cpu_milliseconds_total", "User and system CPU time");
    describe_gauge!("process_resident_memory_bytes", "Resident memory");
    describe_gauge!("process_peak_resident_memory_bytes", "The most memory that was ever resident");
    describe_gauge!("process_threads", "Threads");
    describe_gauge!("process_open_fds", "Open file descriptors");
    describe_counter!("process_network_receive_bytes_total", "Bytes received in the network namespace");
    describe_counter!("process_network_transmit_bytes_total", "Bytes sent in the network namespace");
}
