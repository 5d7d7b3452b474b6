//! Limits from the contents of files: both cgroup versions, nested and hidden paths, and machines that tell nothing.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::*;

const MEMINFO: (&str, &str) = ("/proc/meminfo", "MemTotal:       8388608 kB\nMemFree:        12 kB\n");
const V2_MOUNT: &str =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n";
const V1_MOUNT: &str = "25 30 0:22 / /sys/fs/cgroup ro,nosuid shared:8 - tmpfs tmpfs ro,mode=755\n\
                        34 25 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:15 - cgroup cgroup rw,cpu,cpuacct\n\
                        35 25 0:31 / /sys/fs/cgroup/memory rw,nosuid shared:16 - cgroup cgroup rw,memory\n";

fn machine<'a>(files: &[(&'a str, &'a str)]) -> impl Fn(&Path) -> Option<String> + use<'a> {
    let files: HashMap<PathBuf, String> =
        files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect();
    move |path| files.get(path).cloned()
}

fn found(files: &[(&str, &str)]) -> (u64, String) {
    let limit = memory(&machine(files));
    (limit.amount, limit.origin.to_string())
}

#[test]
fn version_2_takes_the_lowest_on_the_way_up() {
    let mut files = vec![
        MEMINFO,
        ("/proc/self/mountinfo", V2_MOUNT),
        ("/proc/self/cgroup", "0::/kubepods/pod1/box\n"),
        ("/sys/fs/cgroup/kubepods/pod1/box/memory.max", "max\n"),
        ("/sys/fs/cgroup/kubepods/pod1/memory.max", "536870912\n"),
        ("/sys/fs/cgroup/kubepods/memory.max", "1073741824\n"),
    ];
    assert_eq!(
        found(&files),
        (512 << 20, "the cgroup's /sys/fs/cgroup/kubepods/pod1/memory.max".into()),
        "the root has no such file, and the box says max"
    );
    files.push(("/sys/fs/cgroup/kubepods/pod1/box/memory.high", "104857600\n"));
    assert_eq!(found(&files).0, 100 << 20, "beyond `high` a process stands still");
}

#[test]
fn a_namespace_makes_the_own_cgroup_the_root() {
    let files = [
        MEMINFO,
        ("/proc/self/mountinfo", V2_MOUNT),
        ("/proc/self/cgroup", "0::/\n"),
        ("/sys/fs/cgroup/memory.max", "268435456\n"),
    ];
    assert_eq!(found(&files), (256 << 20, "the cgroup's /sys/fs/cgroup/memory.max".into()));
    let outside = [files[0], files[1], ("/proc/self/cgroup", "0::/../other\n"), files[3]];
    assert_eq!(found(&outside).0, 256 << 20);
}

#[test]
fn version_1_is_found_beside_version_2_and_its_huge_number_is_no_limit() {
    let mounts =
        format!("{V1_MOUNT}41 25 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n30 broken line\n");
    let own = "9:name=systemd:/\n4:cpu,cpuacct:/x\n3:memory:/docker/abc\n0::/\n";
    let mut files = vec![
        MEMINFO,
        ("/proc/self/mountinfo", &mounts[..]),
        ("/proc/self/cgroup", own),
        ("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
    ];
    assert_eq!(found(&files), (8 << 30, "the machine's memory".into()));
    files[3].1 = "1073741824\n";
    let file = "the cgroup's /sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes";
    assert_eq!(found(&files), (1 << 30, file.into()));
}

#[test]
fn a_bind_mount_hides_the_upper_part_of_the_path() {
    // Docker without a namespace of cgroups: the path is the host's, the mount begins at the container.
    let mount = "35 25 0:31 /docker/abc /sys/fs/cgroup/my\\040memory ro - cgroup cgroup rw,memory\n";
    let files = [
        MEMINFO,
        ("/proc/self/mountinfo", mount),
        ("/proc/self/cgroup", "3:memory:/docker/abc/inner\n"),
        ("/sys/fs/cgroup/my memory/memory.limit_in_bytes", "67108864"),
    ];
    assert_eq!(found(&files).0, 64 << 20);
}

#[test]
fn a_limit_above_the_machine_is_none() {
    let files = [
        MEMINFO,
        ("/proc/self/mountinfo", V2_MOUNT),
        ("/proc/self/cgroup", "0::/\n"),
        ("/sys/fs/cgroup/memory.max", "1099511627776\n"),
    ];
    assert_eq!(found(&files), (8 << 30, "the machine's memory".into()));
}

#[test]
fn the_address_space_counts() {
    let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                  Max stack size            8388608              unlimited            bytes     \n\
                  Max address space         2147483648           unlimited            bytes     \n";
    let files = [MEMINFO, ("/proc/self/limits", limits)];
    assert_eq!(found(&files), (2 << 30, "ulimit -v".into()));
    assert_eq!(stack(&machine(&files)), Some(8 << 20));
    let unlimited = limits.replace("2147483648", "unlimited ").replace("8388608", "unlimited");
    let files = [MEMINFO, ("/proc/self/limits", &unlimited[..])];
    assert_eq!((found(&files).0, stack(&machine(&files))), (8 << 30, None));
}

#[test]
fn nothing_told_is_said_to_be_assumed() {
    assert_eq!(found(&[]), (4 << 30, "assumed: this system does not tell".into()));
    let garbage = [
        ("/proc/meminfo", "MemTotal: much kB"),
        ("/proc/self/cgroup", "0::"),
        ("/proc/self/mountinfo", "x - "),
    ];
    assert_eq!(found(&garbage).0, 4 << 30);
}

#[test]
fn threads_are_limited_by_pids_max() {
    let files = [
        ("/proc/self/mountinfo", V2_MOUNT),
        ("/proc/self/cgroup", "0::/a/b\n"),
        ("/sys/fs/cgroup/a/b/pids.max", "max"),
        ("/sys/fs/cgroup/a/pids.max", "512"),
    ];
    let limit = threads(&machine(&files)).expect("there is one");
    assert_eq!(
        (limit.amount, limit.origin.to_string()),
        (512, "the cgroup's /sys/fs/cgroup/a/pids.max".into())
    );
    assert_eq!(threads(&machine(&[])), None);
}

#[test]
fn files_are_limited_by_the_hard_ulimit() {
    let text = |hard: &str| {
        format!(
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max open files            1024                 {hard:<20} files     \n"
        )
    };
    let of = |hard: &str| files(&machine(&[("/proc/self/limits", &text(hard)[..])]));
    let limit = |amount| Some(Limit { amount, origin: LimitOrigin::OpenFiles });
    assert_eq!(of("524288"), limit(524_288));
    assert_eq!(of("unlimited"), limit(1 << 20));
    assert_eq!(files(&machine(&[])), None);
}

#[cfg(target_os = "linux")]
#[test]
fn the_limit_of_files_is_raised_as_far_as_it_goes() {
    raise_files();
    let now = getrlimit(Resource::Nofile).current;
    let most = files(&file).map(|limit| limit.amount);
    assert!(now.is_none() || now >= most, "{now:?} of {most:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn this_machine_tells() {
    let limit = memory(&file);
    assert!(limit.amount > 1 << 20 && limit.origin != LimitOrigin::Assumed, "{limit:?}");
}
