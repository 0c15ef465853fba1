#!/usr/bin/env bash
# Installs what Facet needs to build: Debian 12 or Ubuntu 24.04 packages, by name, through apt. Does nothing when all is
# there. --dev adds what the checks of scripts/test.sh use; --print only lists what is missing.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

packages=(
  g++ cmake ninja-build ccache git python3
  libfmt-dev libspdlog-dev libtbb-dev libboost-dev libboost-context-dev libboost-filesystem-dev libboost-system-dev
  libtomlplusplus-dev nlohmann-json3-dev libsimdjson-dev libcli11-dev libgtest-dev libgmock-dev libbenchmark-dev
  libopenblas-pthread-dev liblapacke-dev
)
# Version 14 on both distributions: formatting and warnings differ from one release of clang to the next.
dev_packages=(clang-14 clang-format-14 clang-tidy-14 lld-14 libclang-rt-14-dev)

usage() {
  echo "usage: setup.sh [--dev] [--print]"
  echo "  --dev    also install clang, clang-format, clang-tidy and lld 14 for scripts/test.sh"
  echo "  --print  print the missing packages and install nothing"
}

print_only=no
for argument in "$@"; do
  case "$argument" in
    --dev) packages+=("${dev_packages[@]}") ;;
    --print) print_only=yes ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      usage >&2
      fail "unknown argument '$argument'"
      ;;
  esac
done

command -v dpkg-query > /dev/null ||
  fail "this system has no dpkg; install the equivalents of: ${packages[*]}"

installed() { [[ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2> /dev/null)" == installed ]]; }

missing=()
for package in "${packages[@]}"; do
  installed "$package" || missing+=("$package")
done

if [[ ${#missing[@]} -eq 0 ]]; then
  echo "setup: all ${#packages[@]} packages are installed"
  exit 0
fi
if [[ $print_only == yes ]]; then
  printf '%s\n' "${missing[@]}"
  exit 0
fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo > /dev/null ||
    fail "not root and no sudo; ask an administrator for: apt-get install ${missing[*]}"
  as_root=(sudo)
fi

say "setup: installing ${#missing[@]} of ${#packages[@]} packages with apt: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# A package list that cannot be refreshed may still be good enough, so only the install decides.
"${as_root[@]}" apt-get update -qq || echo "setup: apt-get update failed, trying with the lists at hand" >&2
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" ||
  fail "apt-get could not install: ${missing[*]}"
say "setup: done"
