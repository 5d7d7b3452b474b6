#!/usr/bin/env bash
# Builds the RocksDB that librocksdb-sys ships, once per machine, in minutes; prints the folder of librocksdb.a.
#
#   scripts/rocksdb.sh    progress to stderr; the folder, alone, to stdout
#
# The crate compiles RocksDB's 343 files one at a time, and parsing headers is nearly all of it: 46 minutes on two slow
# cores, again for every profile and target folder. RocksDB's own CMake in unity mode builds the same sources in 7 to 9. The result lies
# in the user's cache under the version, the compiler and the options it was built with. What was interrupted goes on
# where it was; two that run at once wait for each other. Without this script cargo still builds RocksDB, slowly.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/env.sh
. scripts/env.sh

say() { printf 'rocksdb: %s\n' "$*" >&2; }
fail() {
    say "cannot go on: $*"
    exit 1
}

# The compiler: the one that was asked for, else clang (a third faster at this), else the system's.
compiler() {
    local cxx
    for cxx in ${CXX:+"$CXX"} clang++ clang++-{19,18,17,16,15,14} c++; do
        if command -v "$cxx" >/dev/null; then
            command -v "$cxx"
            return
        fi
    done
    fail "no C++ compiler"
}

# The sources cargo will bind to, of the version in Cargo.lock; fetched if they are not there yet.
sources() {
    local manifest
    manifest="$(cargo metadata --format-version 1 --locked |
        grep -o '"manifest_path":"[^"]*/librocksdb-sys-[^"/]*/Cargo.toml"' | head -n 1 | cut -d'"' -f4)"
    [[ -n "$manifest" ]] || fail "Cargo.lock names no librocksdb-sys"
    dirname "$manifest"
}

crate="$(sources)"
cxx="$(compiler)"
options=(-DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS=-O2 -w -fPIC -ffunction-sections -fdata-sections"
    -DROCKSDB_BUILD_SHARED=OFF -DWITH_TESTS=OFF -DWITH_TOOLS=OFF -DWITH_CORE_TOOLS=OFF -DWITH_BENCHMARK_TOOLS=OFF
    -DWITH_GFLAGS=OFF -DWITH_LIBURING=OFF -DFAIL_ON_WARNINGS=OFF -DPORTABLE=1 -DUSE_RTTI=1 -DWITH_LZ4=ON -DWITH_ZSTD=ON
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=32)

version="$(basename "$crate")"
made_of="$("$cxx" --version | head -n 1) $(uname -m) ${options[*]}"
key="${version#librocksdb-sys-}-$(printf %s "$made_of" | cksum | cut -d' ' -f1)"
ready="$WEIR_CACHE/rocksdb/$key"
if [[ ! -e "$ready/librocksdb.a" ]]; then
    mkdir -p "$WEIR_CACHE/rocksdb"
    exec 9>"$WEIR_CACHE/rocksdb/lock"
    if ! flock -n 9; then
        say "another build of RocksDB is running: waiting for it"
        flock 9
    fi
fi
if [[ ! -e "$ready/librocksdb.a" ]]; then
    build="$WEIR_CACHE/rocksdb/$key.build"
    say "building $version with $cxx, once for this machine: 7 to 10 minutes on two cores"
    say "the build goes on where it was if it is interrupted; its log is $build/log"
    mkdir -p "$build"
    cmake -S "$crate/rocksdb" -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$cxx" \
        ${CC:+-DCMAKE_C_COMPILER="$CC"} "${options[@]}" >"$build/log" 2>&1 ||
        { tail -n 30 "$build/log" >&2; fail "cmake does not accept this machine, see above"; }
    # A unity file is 32 sources in one; on a machine with little memory two at once are what fits.
    memory_gb=$(awk '/MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo 2>/dev/null || echo 4)
    jobs=$(nproc 2>/dev/null || echo 2)
    ((jobs <= memory_gb)) || jobs=$((memory_gb > 0 ? memory_gb : 1))
    started=$SECONDS
    ninja -C "$build" -j "$jobs" rocksdb 2>&1 | tee -a "$build/log" | while IFS= read -r line; do
        case "$line" in
            \[*\]*) say "${line%%]*}] after $((SECONDS - started)) s" ;;
            *error:* | FAILED:*) say "$line" ;;
        esac
    done || fail "the build failed; its log is $build/log"
    mkdir -p "$ready"
    cp "$build/librocksdb.a" "$ready/librocksdb.a.new"
    printf '%s\n' "$made_of" >"$ready/made-of"
    mv "$ready/librocksdb.a.new" "$ready/librocksdb.a"
    rm -rf "$build"
    say "built in $((SECONDS - started)) s"
fi
printf '%s\n' "$ready"
