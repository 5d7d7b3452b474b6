//! How much memory this process may take, and how many threads and files: what is set, else the cgroup's limit, else what the machine has.
//!
//! Reading files is one closure, so every rule here is tested with the contents of files.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

/// Where a limit came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LimitOrigin {
    /// The job says so.
    Set,
    /// A cgroup's limit file, of version 1 or 2.
    Cgroup {
        /// The file.
        file: PathBuf,
    },
    /// `ulimit -v`.
    AddressSpace,
    /// `ulimit -n`, the hard one: up to there a process may raise its own.
    OpenFiles,
    /// All the memory that the machine has.
    Physical,
    /// The system does not tell.
    Assumed,
}

impl fmt::Display for LimitOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitOrigin::Set => f.write_str("set by the job"),
            LimitOrigin::Cgroup { file } => write!(f, "the cgroup's {}", file.display()),
            LimitOrigin::AddressSpace => f.write_str("ulimit -v"),
            LimitOrigin::OpenFiles => f.write_str("ulimit -n"),
            LimitOrigin::Physical => f.write_str("the machine's memory"),
            LimitOrigin::Assumed => f.write_str("assumed: this system does not tell"),
        }
    }
}

/// What a process may take of something, and who says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Limit {
    /// Bytes, threads, or files.
    pub amount: u64,
    /// Where it came from.
    pub origin: LimitOrigin,
}

impl Limit {
    /// A limit that the job sets.
    pub fn set(amount: u64) -> Self {
        Limit { amount, origin: LimitOrigin::Set }
    }
}

/// What a machine without `/proc` is taken to have.
const ASSUMED: u64 = 4 << 30;
/// Version 1 writes "no limit" as the largest multiple of the page size in 63 bits.
const NO_LIMIT: u64 = 1 << 62;

/// Gives the text of a file, none when it cannot be read.
pub(crate) type ReadFile<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// Reads the files of this machine.
pub(crate) fn file(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The lowest of what the cgroups above this process, `ulimit -v` and the machine allow, in bytes.
pub(crate) fn memory(read: ReadFile<'_>) -> Limit {
    let mut limits = Vec::new();
    for (folder, version) in cgroup_folders(read, "memory") {
        // Beyond `memory.high` a process is not killed but throttled until it stands still: a limit all the same.
        let files: &[&str] = match version {
            Version::One => &["memory.limit_in_bytes"],
            Version::Two => &["memory.max", "memory.high"],
        };
        limits.extend(files.iter().filter_map(|name| cgroup_limit(read, folder.join(name))));
    }
    let address_space = read(Path::new("/proc/self/limits")).as_deref().and_then(address_space);
    limits.extend(address_space.map(|amount| Limit { amount, origin: LimitOrigin::AddressSpace }));
    let total = read(Path::new("/proc/meminfo")).as_deref().and_then(mem_total);
    limits.extend(total.map(|amount| Limit { amount, origin: LimitOrigin::Physical }));
    lowest(limits).unwrap_or(Limit { amount: ASSUMED, origin: LimitOrigin::Assumed })
}

/// The lowest of what the cgroups above this process allow in threads, if any does.
pub(crate) fn threads(read: ReadFile<'_>) -> Option<Limit> {
    let folders = cgroup_folders(read, "pids").into_iter();
    lowest(folders.filter_map(|(folder, _)| cgroup_limit(read, folder.join("pids.max"))).collect())
}

/// No kernel lets a process open more files unless it is told to.
const MOST_FILES: u64 = 1 << 20;

/// How many files this process may open: up to the hard limit it can [raise](raise_files) its own.
pub(crate) fn files(read: ReadFile<'_>) -> Option<Limit> {
    let limits = read(Path::new("/proc/self/limits"))?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let hard = line.split_whitespace().nth(1)?;
    let amount = if hard == "unlimited" { MOST_FILES } else { hard.parse().ok()? };
    Some(Limit { amount: amount.min(MOST_FILES), origin: LimitOrigin::OpenFiles })
}

/// Raises the limit of open files that this process is under to its hard one.
pub(crate) fn raise_files() {
    let now = getrlimit(Resource::Nofile);
    let most = now.maximum.unwrap_or(MOST_FILES).min(MOST_FILES);
    if now.current.is_none_or(|files| files >= most) {
        return;
    }
    let raised = Rlimit { current: Some(most), ..now };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        let files = now.current;
        tracing::warn!(%error, files, most, "the limit of open files cannot be raised: opening databases may fail");
    }
}

/// The first of the lowest ones.
fn lowest(limits: Vec<Limit>) -> Option<Limit> {
    limits.into_iter().min_by_key(|limit| limit.amount)
}

fn cgroup_limit(read: ReadFile<'_>, file: PathBuf) -> Option<Limit> {
    let amount = read(&file)?.trim().parse().ok().filter(|amount| *amount < NO_LIMIT)?;
    Some(Limit { amount, origin: LimitOrigin::Cgroup { file } })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The folders of every cgroup that holds this process and has a say in `controller`, innermost first.
fn cgroup_folders(read: ReadFile<'_>, controller: &str) -> Vec<(PathBuf, Version)> {
    let own = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let mounts = read(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    let mut folders = Vec::new();
    for version in [Version::Two, Version::One] {
        let path = own.lines().find_map(|line| own_path(line, version, controller));
        let Some(path) = path else { continue };
        let mounts = mounts.lines().filter_map(|line| cgroup_mount(line, version, controller));
        for (root, point) in mounts {
            // A container often sees its own cgroup as the root of the mount, whatever path it is told: then the mount's
            // root is the place to look, and so it is for a path outside the namespace (`/../x`).
            let below = path.strip_prefix(&root).unwrap_or(Path::new(""));
            let plain = below.components().all(|c| matches!(c, std::path::Component::Normal(_)));
            let below = if plain { below } else { Path::new("") };
            folders.extend(below.ancestors().map(|part| (point.join(part), version)));
        }
    }
    folders
}

/// The path of this process in the hierarchy, from a line of `/proc/self/cgroup`: `number:controllers:path`.
fn own_path(line: &str, version: Version, controller: &str) -> Option<PathBuf> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let fits = match version {
        Version::Two => number == "0" && controllers.is_empty(),
        Version::One => controllers.split(',').any(|c| c == controller),
    };
    fits.then(|| PathBuf::from(path))
}

/// Which cgroup is mounted where, from a line of `/proc/self/mountinfo`:
/// `id parent device root point options [more…] - kind source options`.
fn cgroup_mount(line: &str, version: Version, controller: &str) -> Option<(PathBuf, PathBuf)> {
    let (left, right) = line.split_once(" - ")?;
    let (mut left, mut right) = (left.split(' ').skip(3), right.split(' '));
    let (root, point) = (left.next()?, left.next()?);
    let fits = match version {
        Version::Two => right.next()? == "cgroup2",
        Version::One => right.next()? == "cgroup" && right.nth(1)?.split(',').any(|c| c == controller),
    };
    let unescaped = |path: &str| PathBuf::from(path.replace("\\040", " "));
    fits.then(|| (unescaped(root), unescaped(point)))
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn mem_total(text: &str) -> Option<u64> {
    let kilobytes = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    kilobytes.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The soft limit of the address space in `/proc/self/limits`, in bytes.
fn address_space(text: &str) -> Option<u64> {
    soft_limit(text, "Max address space")
}

/// The soft limit of a thread's stack that C libraries go by, in bytes; none when it is unlimited.
pub(crate) fn stack(read: ReadFile<'_>) -> Option<u64> {
    soft_limit(&read(Path::new("/proc/self/limits"))?, "Max stack size")
}

fn soft_limit(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
#[path = "limit_tests.rs"]
mod tests;
