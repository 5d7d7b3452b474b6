#!/usr/bin/env bash
# Checks the shell scripts: that they parse, and with shellcheck where it is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts=(scripts/*.sh .ci/run)
for script in "${scripts[@]}"; do bash -n "$script"; done
if command -v shellcheck >/dev/null; then
    shellcheck -x "${scripts[@]}"
    echo "shell: ${#scripts[@]} scripts parse, shellcheck is content"
else
    echo "shell: ${#scripts[@]} scripts parse (shellcheck skipped: not installed)"
fi
