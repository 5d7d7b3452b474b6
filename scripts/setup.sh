#!/usr/bin/env bash
# Makes a machine ready to build Weir; safe to run again, and quick when there is nothing to do.
#
#   scripts/setup.sh           what is missing, once per machine and version of this script
#   scripts/setup.sh --force   check everything again
#   scripts/setup.sh --kafka   only what the tests' Kafka broker runs on
#
# The steps: the Rust toolchain is new enough; a C and C++ compiler and make are there (installed with apt-get where that
# exists); so is what RocksDB is built with, and then RocksDB itself; cargo builds outside the clone and links that RocksDB. A new step is a function and a word in MACHINE_STEPS (once per machine) or CLONE_STEPS (cheap, every time).
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
# shellcheck source=scripts/env.sh
. scripts/env.sh

MACHINE_STEPS=(toolchain compilers rocksdb_tools)
CLONE_STEPS=(rocksdb target_folder)

say() { printf 'setup: %s\n' "$*"; }
fail() {
    printf 'setup: cannot go on: %s\n' "$1" >&2
    shift
    if (($#)); then printf 'setup:   %s\n' "$@" >&2; fi
    exit 1
}

# ---- toolchain: rustc is at least the workspace's rust-version -------------------------------------------------------

toolchain() {
    command -v cargo >/dev/null || fail "cargo is not on PATH and not in ${CARGO_HOME:-$HOME/.cargo}/bin" \
        "install Rust with rustup (https://rustup.rs), then run this again"
    local wanted found
    wanted="$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' Cargo.toml | head -n 1)"
    [[ -n "$wanted" ]] || fail "Cargo.toml names no rust-version"
    # rustup may fetch the toolchain that rust-toolchain.toml names at this call: let it say so.
    found="$(rustc --version)" || fail "rustc does not start (its message is above)" \
        "with rustup: rustup toolchain install stable --component rustfmt --component clippy"
    found="${found#rustc }"
    found="${found%%[ -]*}"
    if ! at_least "$found" "$wanted"; then
        fail "rustc $found is too old: Weir needs $wanted or newer" \
            "with rustup: rustup update stable" \
            "without:     install Rust from https://rustup.rs; the system's package is too old"
    fi
    say "rustc $found (needs $wanted or newer)"
}

# at_least A B: version A >= version B, by numbers.
at_least() {
    local -a a b
    IFS=. read -ra a <<<"$1"
    IFS=. read -ra b <<<"$2"
    local i
    for i in 0 1 2; do
        local x="${a[i]:-0}" y="${b[i]:-0}"
        ((10#$x > 10#$y)) && return 0
        ((10#$x < 10#$y)) && return 1
    done
    return 0
}

# ---- compilers: what rdkafka-sys needs to build librdkafka from the source it ships ----------------------------------
#
# Its configure wants a C and a C++ compiler (it compiles both), make and the binutils. No OpenSSL, curl, SASL, zstd, cmake or
# python; zlib comes from the system where pkg-config and its headers are there and else from the source in libz-sys.

compilers() {
    local missing
    missing="$(missing_tools)"
    if [[ -z "$missing" ]]; then
        say "C and C++ compilers and make work (librdkafka is built with them)"
        return
    fi
    say "missing, to build librdkafka from source: ${missing//$'\n'/, }"
    if ! command -v apt-get >/dev/null; then
        fail "this system has no apt-get, so the packages are yours to install" \
            "Fedora, RHEL:  dnf install gcc gcc-c++ make" \
            "Arch:          pacman -S base-devel" \
            "Alpine:        apk add build-base bash" \
            "macOS:         xcode-select --install"
    fi
    apt_install build-essential
    missing="$(missing_tools)"
    [[ -z "$missing" ]] || fail "still missing after the installation: ${missing//$'\n'/, }"
    say "C and C++ compilers and make work now"
}

# One line for each tool that is not there or does not work; a compiler counts when it can link.
missing_tools() (
    dir="$(mktemp -d)"
    trap 'rm -rf "$dir"' EXIT
    printf '#include <stdio.h>\nint main(void) { return puts("") < 0; }\n' >"$dir/probe.c"
    printf '#include <string>\nint main() { return (int)std::string().size(); }\n' >"$dir/probe.cc"
    "${CC:-cc}" -o "$dir/c" "$dir/probe.c" >/dev/null 2>&1 || echo "a working C compiler (${CC:-cc})"
    "${CXX:-c++}" -o "$dir/cxx" "$dir/probe.cc" >/dev/null 2>&1 || echo "a working C++ compiler (${CXX:-c++})"
    for tool in make ar nm; do
        command -v "$tool" >/dev/null || echo "$tool"
    done
)

# apt_install PACKAGE...: as root, or through sudo.
apt_install() {
    local -a as_root=()
    if [[ "$(id -u)" != 0 ]]; then
        command -v sudo >/dev/null || fail "installing needs root, and there is no sudo here" \
            "as root, run: apt-get update && apt-get install -y --no-install-recommends $*"
        as_root=(sudo)
        # Without a terminal nobody can answer a password question.
        [[ -t 0 ]] || as_root=(sudo -n)
    fi
    local -a apt=(${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -q
        -o Dpkg::Use-Pty=0 -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300)
    say "apt-get update"
    "${apt[@]}" update || say "apt-get update failed; trying with the package lists that are here"
    say "apt-get install $*"
    "${apt[@]}" install -y --no-install-recommends "$@" || fail "apt-get could not install: $*" \
        "its message is above; as root: apt-get update && apt-get install -y --no-install-recommends $*"
}

# ---- rocksdb: built once per machine (scripts/rocksdb.sh says why), and cargo told where it is -------------------------

# bindgen reads RocksDB's header with libclang; the rest builds RocksDB with its own CMake.
rocksdb_tools() {
    local missing
    missing="$(missing_rocksdb_tools)"
    if [[ -n "$missing" ]] && command -v apt-get >/dev/null; then
        say "missing, to build RocksDB: ${missing//$'\n'/, }"
        apt_install cmake ninja-build clang libclang-dev liblz4-dev libzstd-dev
        missing="$(missing_rocksdb_tools)"
    fi
    if [[ -z "$missing" ]]; then
        say "cmake, ninja, libclang, lz4 and zstd are there (RocksDB is built with them)"
    else
        say "still missing: ${missing//$'\n'/, }: cargo will build RocksDB by itself, which can take most of an hour"
    fi
}

# One line for each thing that is not there.
missing_rocksdb_tools() {
    local tool
    for tool in cmake ninja; do command -v "$tool" >/dev/null || echo "$tool"; done
    for tool in lz4 zstd; do
        printf '#include <%s.h>\n' "$tool" | "${CC:-cc}" -E - >/dev/null 2>&1 || echo "$tool.h"
    done
    if [[ -z "${LIBCLANG_PATH:-}" ]] && ! ldconfig -p 2>/dev/null | grep -q libclang &&
        ! compgen -G '/usr/lib*/llvm*/lib*/libclang*.so*' >/dev/null; then
        echo libclang
    fi
}

# The folder of librocksdb.a, or nothing when cargo builds RocksDB by itself.
ROCKSDB=""

rocksdb() {
    if [[ -n "${ROCKSDB_LIB_DIR:-}" ]]; then
        say "RocksDB comes from $ROCKSDB_LIB_DIR (ROCKSDB_LIB_DIR is set)"
    elif [[ -n "$(missing_rocksdb_tools)" ]]; then
        say "RocksDB will be built by cargo"
    else
        ROCKSDB="$(bash scripts/rocksdb.sh)" || fail "RocksDB could not be built: its message is above"
        say "RocksDB is linked from $ROCKSDB"
    fi
}

# ---- kafka: the broker of the tests (scripts/kafka.sh fetches and runs it) needs a Java runtime and curl ---------------

kafka_tools() {
    local missing
    missing="$(missing_kafka_tools)"
    if [[ -n "$missing" ]] && command -v apt-get >/dev/null; then
        say "missing, to run the tests' Kafka broker: ${missing//$'\n'/, }"
        apt_install default-jre-headless curl ca-certificates
        missing="$(missing_kafka_tools)"
    fi
    if [[ -z "$missing" ]]; then
        say "a Java runtime and curl are there (the tests' Kafka broker runs on them)"
    else
        say "still missing: ${missing//$'\n'/, }: the tests with a real Kafka broker will fail; nothing else needs it"
    fi
}

# One line for each thing that is not there.
missing_kafka_tools() {
    command -v curl >/dev/null || echo curl
    local version
    version="$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)" || true
    ((10#${version:-0} >= 17)) || echo "a Java runtime, 17 or newer"
}

# ---- target_folder: cargo builds outside the clone -------------------------------------------------------------------
#
# Each clone has a folder of its own under the cache: cargo tells two clones' versions of one crate apart by modification
# times only, so a shared folder would now and then run the other clone's code. A new clone's folder begins with the
# dependencies that another clone has built, so that librdkafka and two hundred crates are built once per machine.

MARK="# Written by scripts/setup.sh: builds live outside the clone. Delete this line to keep your own version of the file."

target_folder() {
    local file=.cargo/config.toml other text
    for other in .cargo/config "$file"; do
        if [[ -e "$other" ]] && ! head -n 1 "$other" | grep -qxF "$MARK"; then
            say "$other is your own: left alone"
            say "add to it:" "$(env_section)"
            return
        fi
    done
    text="$MARK$(build_section)$(env_section)"
    if [[ ! -e "$file" || "$(<"$file")" != "$text" ]]; then
        mkdir -p .cargo
        printf '%s\n' "$text" >"$file.new.$$"
        mv "$file.new.$$" "$file"
        say "wrote $file"
    fi
}

# quoted TEXT: as a TOML string.
quoted() {
    local text="${1//\\/\\\\}"
    printf '"%s"' "${text//\"/\\\"}"
}

# The variables that the crates of C libraries read; here rather than exported, so that plain cargo sees what make sees.
env_section() {
    # The allocator gives memory back within a second instead of ten: a process should not take more than its plan says. And it
    # keeps as many small chunks at hand per thread as a batch of strings has: they are made and freed a batch at a time.
    printf '\n\n[env]\nJEMALLOC_SYS_WITH_MALLOC_CONF = "dirty_decay_ms:1000,muzzy_decay_ms:0,tcache_nslots_small_max:2048,lg_tcache_nslots_mul:3"'
    [[ -n "$ROCKSDB" ]] || return 0
    printf '\nROCKSDB_LIB_DIR = %s\nROCKSDB_STATIC = "1"' "$(quoted "$ROCKSDB")"
}

# Where builds go, unless somebody has said so already. What it says goes to stderr: its output is a part of the file.
build_section() {
    local target other
    target="$WEIR_CACHE/target/$(basename "$ROOT")-$(printf %s "$ROOT" | cksum | cut -d' ' -f1)"
    for other in CARGO_TARGET_DIR CARGO_BUILD_TARGET_DIR; do
        if [[ -n "${!other:-}" ]]; then
            say "builds go to ${!other} ($other is set)" >&2
            return
        fi
    done
    for other in "${CARGO_HOME:-$HOME/.cargo}"/config{.toml,}; do
        if [[ -e "$other" ]] && grep -Eq '^[[:space:]]*(build\.)?target-dir[[:space:]]*=' "$other"; then
            say "builds go where $other says" >&2
            return
        fi
    done
    {
        [[ -d "$target" ]] || begin_with_dependencies "$target"
        if ! { mkdir -p "$target" && printf '%s\n' "$ROOT" >"$target/CLONE"; } 2>/dev/null; then
            say "$target cannot be written: builds go to $ROOT/target"
            return
        fi
        say "builds go to $target"
        forget_gone_clones "$target"
    } >&2
    printf '\n\n[build]\ntarget-dir = %s' "$(quoted "$target")"
}

# begin_with_dependencies TARGET: fills it from the folder of the clone that built last. What cargo may rewrite in place is
# copied, the large files are linked; Weir's own crates are left out, they are this clone's to build.
begin_with_dependencies() {
    local target="$1" from="" profile part
    from="$(find "$WEIR_CACHE/target" -mindepth 2 -maxdepth 2 -name CLONE -printf '%T@ %h\n' 2>/dev/null | sort -rn | head -n 1 | cut -d' ' -f2-)"
    [[ -n "$from" ]] || return 0
    local new="$target.new.$$"
    for profile in debug release; do
        [[ -d "$from/$profile/deps" ]] || continue
        mkdir -p "$new/$profile" || return 0
        for part in .fingerprint build; do
            cp -a "$from/$profile/$part" "$new/$profile/$part" 2>/dev/null || true
        done
        cp -al "$from/$profile/deps" "$new/$profile/deps" 2>/dev/null ||
            cp -a "$from/$profile/deps" "$new/$profile/deps" 2>/dev/null || true
        rm -rf "$new/$profile"/{.fingerprint,build}/weir-* "$new/$profile"/deps/*weir_*
    done
    mv "$new" "$target" 2>/dev/null || rm -rf "$new"
    say "began with the dependencies built in $from"
}

# forget_gone_clones TARGET: a clone that was deleted needs its builds no more.
forget_gone_clones() {
    local mark
    for mark in "$WEIR_CACHE"/target/*/CLONE; do
        if [[ -e "$mark" && "$mark" != "$1/CLONE" && ! -d "$(<"$mark")" ]]; then
            rm -rf "$(dirname "$mark")"
            say "removed the builds of $(basename "$(dirname "$mark")"): its clone is gone"
        fi
    done
}

# ---- main ------------------------------------------------------------------------------------------------------------

# What a machine's readiness depends on: this script, the versions it asks for, and which compilers it was asked to use.
stamp_of() {
    {
        cat scripts/setup.sh scripts/env.sh rust-toolchain.toml
        grep '^rust-version' Cargo.toml
        printf '%s|%s|%s\n' "${CC:-cc}" "${CXX:-c++}" "${RUSTUP_TOOLCHAIN:-}"
        command -v cargo "${CC:-cc}" "${CXX:-c++}" make || true
    } | cksum | tr -c '0-9\n' '-'
}

case "${1:-}" in
    "") force=no ;;
    --force) force=yes ;;
    --kafka)
        kafka_tools
        exit
        ;;
    *) fail "unknown option $1" "usage: scripts/setup.sh [--force | --kafka]" ;;
esac

stamps="$WEIR_CACHE/setup"
stamp="$stamps/$(stamp_of)"
if [[ $force == no && -e "$stamp" ]]; then
    say "this machine is ready (checked before; scripts/setup.sh --force checks again)"
else
    say "checking what a build needs"
    for step in "${MACHINE_STEPS[@]}"; do "$step"; done
    # The stamp names what is there now: what was missing at the start may have come since.
    stamp="$stamps/$(stamp_of)"
    { mkdir -p "$stamps" && : >"$stamp"; } 2>/dev/null || say "cannot write $stamp: the next run checks again"
fi
for step in "${CLONE_STEPS[@]}"; do "$step"; done
