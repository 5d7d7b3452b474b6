# shellcheck shell=sh
# Finds HOME, PATH and cargo where the caller's environment lacks them. Sourced by the Makefile, scripts/setup.sh and
# .ci/run, so plain sh. Sets WEIR_CACHE: where builds and later downloads live, outside any clone.

PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"

if [ -z "${HOME:-}" ]; then
    HOME="$(getent passwd "$(id -u)" 2>/dev/null | cut -d: -f6)" || HOME=""
    HOME="${HOME:-/tmp}"
fi

# After the rest: a cargo that is already on PATH wins.
PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

WEIR_CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/weir"

export PATH HOME WEIR_CACHE
