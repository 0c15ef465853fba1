#!/usr/bin/env bash
# Every CPU benchmark, with the machine's limits measured in the same run. Run it on a quiet machine.
set -euo pipefail
root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"

usage() {
  echo "usage: cpu.sh [BUILD] [--out FOLDER]"
  echo "  BUILD         folder of a release build with benchmarks (default: build/release)"
  echo "  --out FOLDER  where the JSON files go (default: BUILD/bench-results; bench/results holds the recorded run)"
}

fail() {
  usage >&2
  echo "cpu.sh: $*" >&2
  exit 2
}

build=""
out=""
while [[ $# -gt 0 ]]; do
  case "$1" in
    -h | --help)
      usage
      exit 0
      ;;
    --out)
      [[ -n "${2:-}" ]] || fail "--out needs a folder"
      out="$2"
      shift
      ;;
    -*) fail "unknown option '$1'" ;;
    *)
      [[ -z "$build" ]] || fail "two build folders: '$build' and '$1'"
      build="$1"
      ;;
  esac
  shift
done
build="$(realpath -m -- "${build:-$root/build/release}")"
for program in facet bench_linear bench_attention bench_tokenizer; do
  [[ -x "$build/bin/$program" ]] || fail "$build/bin/$program is missing; build with: cmake --preset release && cmake --build build/release"
done
out="$(realpath -m -- "${out:-$build/bench-results}")"
mkdir -p "$out"
for name in linear attention tokenizer; do
  echo "== bench_$name"
  "$build/bin/bench_$name" --benchmark_out="$out/cpu-$name.json" --benchmark_out_format=json
done
echo "== facet bench"
(cd "$root" && "$build/bin/facet" bench configs/default.toml --prompt-tokens 128,512,2048 --generate 64 --batch 1,8 --repeat 5 --json) \
  > "$out/cpu-end-to-end.json"
# Folders and the host's name say nothing about the result.
sed -i "s|$build/||g; s|$root/||g; /\"host_name\"/d" "$out"/cpu-*.json
echo "written: $out"
