#!/usr/bin/env bash
# Every CPU benchmark, with the machine's limits measured in the same run; JSON files go to bench/results/.
# usage: bench/cpu.sh [BUILD_FOLDER]      a release build (default build/release); run it on a quiet machine
set -euo pipefail
root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
build="${1:-$root/build/release}"
out="$root/bench/results"
mkdir -p "$out"
for name in linear attention tokenizer; do
  echo "== bench_$name"
  "$build/bin/bench_$name" --benchmark_out="$out/cpu-$name.json" --benchmark_out_format=json
done
echo "== facet bench"
(cd "$root" && "$build/bin/facet" bench configs/default.toml --prompt-tokens 128,512,2048 --generate 64 --batch 1,8 --repeat 5 --json) \
  > "$out/cpu-end-to-end.json"
# Folders and the host's name say nothing about the result.
sed -i "s|$root/||g; s|$build/||g; /\"host_name\"/d" "$out"/cpu-*.json
echo "written: $out"
