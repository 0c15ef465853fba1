# Shared by the scripts here: where the repository is, messages with elapsed time. Sourced, never run.
# shellcheck shell=bash
set -euo pipefail

facet_root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
jobs="${FACET_JOBS:-$(nproc)}"
# One line of ninja says how far it is and how long it took so far.
export NINJA_STATUS='[%f/%t %es] '

start_seconds=$SECONDS

# clock SECONDS: "3:07"
clock() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# say TEXT...: a line with the time since the script began.
say() { printf '\n[%s] %s\n' "$(clock $((SECONDS - start_seconds)))" "$*"; }

fail() {
  printf '%s: %s\n' "$(basename -- "$0")" "$*" >&2
  exit 1
}

# tool NAME: the versioned program where the distribution has it (name-14), else the plain one.
tool() {
  local name
  for name in "$1-14" "$1"; do
    if command -v "$name" > /dev/null; then
      printf '%s' "$name"
      return
    fi
  done
  fail "$1 is missing; run scripts/setup.sh --dev"
}
