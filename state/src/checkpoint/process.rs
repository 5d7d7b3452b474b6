//! Which process this is, and whether another one of the same machine still lives.

use std::collections::HashSet;
use std::fs;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// What tells one process from all others, also from a later one with the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// The host's name.
    pub host: String,
    /// The process number.
    pub pid: u32,
    /// Which run of the machine's kernel it belongs to; empty where the system does not tell.
    pub boot: String,
    /// Which set of process numbers it belongs to (containers have their own); empty where the system does not tell.
    pub pid_namespace: String,
    /// When it started, in the kernel's ticks; 0 where the system does not tell.
    pub started: u64,
}

/// Whether a process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    /// It does.
    Alive,
    /// It does not.
    Dead,
    /// It runs on another machine, or in another container, or the system does not tell.
    Unknown,
}

impl ProcessId {
    /// This process.
    pub fn current() -> Self {
        let pid = std::process::id();
        let line =
            |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
        let host = Some(line("/proc/sys/kernel/hostname")).filter(|host| !host.is_empty());
        Self {
            host: host.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_else(|| "unknown".into()),
            pid,
            boot: line("/proc/sys/kernel/random/boot_id"),
            pid_namespace: fs::read_link("/proc/self/ns/pid")
                .map(|link| link.to_string_lossy().into_owned())
                .unwrap_or_default(),
            started: stat(pid).map_or(0, |(_, started)| started),
        }
    }

    /// Whether the process lives, as far as this one, `here`, can tell.
    pub(crate) fn liveness(&self, here: &Self) -> Liveness {
        let same = |ours: &str, theirs: &str| !ours.is_empty() && ours == theirs;
        if self.host != here.host
            || !same(&self.boot, &here.boot)
            || !same(&self.pid_namespace, &here.pid_namespace)
            || self.started == 0
        {
            return Liveness::Unknown;
        }
        match stat(self.pid) {
            // A zombie has been killed; only its parent has not looked yet.
            Some((state, started)) if started == self.started && !matches!(state, 'Z' | 'X') => {
                Liveness::Alive
            }
            Some(_) => Liveness::Dead,
            // Where the first process cannot be seen either, the system hides those of other users.
            None if stat(1).is_none() => Liveness::Unknown,
            None => Liveness::Dead,
        }
    }
}

/// A process's state and start time.
fn stat(pid: u32) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, and may contain anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// The leases that live in this process, by their nonces: one that was dropped without being released is dead though its process
/// is not.
static LIVING: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);

pub(crate) fn living() -> MutexGuard<'static, HashSet<String>> {
    LIVING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_of_this_machine_is_known_to_live_or_to_be_dead() {
        let here = ProcessId::current();
        assert!(here.started > 0 && !here.boot.is_empty() && !here.pid_namespace.is_empty(), "{here:?}");
        assert_eq!(here.liveness(&here), Liveness::Alive);
        let earlier = ProcessId { started: here.started - 1, ..here.clone() };
        assert_eq!(earlier.liveness(&here), Liveness::Dead, "its number was given again");
        let elsewhere = ProcessId { host: "elsewhere".into(), ..here.clone() };
        assert_eq!(elsewhere.liveness(&here), Liveness::Unknown);
        let contained = ProcessId { pid_namespace: "pid:[1]".into(), ..here.clone() };
        assert_eq!(contained.liveness(&here), Liveness::Unknown);

        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let started = stat(child.id()).unwrap().1;
        let other = ProcessId { pid: child.id(), started, ..here.clone() };
        assert_eq!(other.liveness(&here), Liveness::Alive);
        child.kill().unwrap();
        // Killed but not yet waited for, it is a zombie, soon.
        while other.liveness(&here) == Liveness::Alive {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(other.liveness(&here), Liveness::Dead);
    }
}
