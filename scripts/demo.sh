#!/usr/bin/env bash
# Builds Facet and shows its main job on the model in the repository: text is generated, a kernel is swapped by editing
# one line, and cache policies are compared. Run it from anywhere, as often as you like.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

build="$facet_root/build/demo"
facet="$build/bin/facet"
# Configurations name the model as ../models/...: a folder of the same shape lets copies be edited without touching configs/.
tour="$build/tour"
mine="$tour/configs/mine.toml"
swapped="$tour/configs/swapped.toml"
prompt="${FACET_DEMO_PROMPT:-To install the package,}"

usage() {
  echo "usage: demo.sh [--without-cuda]"
  echo "  Installs missing packages (through sudo unless run as root), builds in build/demo, generates text, swaps a kernel,"
  echo "  compares cache policies; all of it on the CPU."
  echo "  --without-cuda     build no GPU kernels where a CUDA toolkit is installed: fewer files, a quarter of the disk"
  echo "  Variables:"
  echo "  FACET_DEMO_PROMPT  the prompt to continue (default: To install the package,)"
  echo "  FACET_JOBS         compilers at a time (default: all processors)"
}

cuda=AUTO
for argument in "$@"; do
  case "$argument" in
    --without-cuda) cuda=OFF ;;
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

build_program() {
  say "configure (release, without tests and benchmarks) in $build"
  cmake --preset release -S "$facet_root" -B "$build" \
    -DFACET_BUILD_TESTS=OFF -DFACET_BUILD_BENCHMARKS=OFF -DFACET_CUDA="$cuda" --log-level=WARNING
  local toolkit
  toolkit="$(sed -n 's/^FACET_NVCC_PROGRAM:[A-Z]*=//p' "$build/CMakeCache.txt")"
  if [[ $cuda == OFF ]]; then
    say "build with $jobs jobs, without GPU kernels"
  elif [[ $toolkit == *nvcc ]]; then
    say "build with $jobs jobs, GPU kernels too (by $toolkit; --without-cuda leaves them out)"
  else
    say "build with $jobs jobs, without GPU kernels: there is no CUDA toolkit"
  fi
  cmake --build "$build" -j "$jobs" 2>&1 | build_lines
}

# Lines of a build for a visitor: its steps share one line of a terminal, as ninja itself writes them. Remarks of ptxas on
# how it scheduled a kernel are for its author.
build_lines() {
  local line open=no
  while IFS= read -r line; do
    if [[ $line == "ptxas info"* ]]; then
      continue
    elif [[ -t 1 && $line =~ ^\[[0-9]+/[0-9]+\  ]]; then
      printf '\r\033[K%s' "${line:0:79}"
      open=yes
    else
      if [[ $open == yes ]]; then echo; fi
      open=no
      printf '%s\n' "$line"
    fi
  done
  if [[ $open == yes ]]; then echo; fi
}

prepare_tour() {
  mkdir -p "$tour/configs"
  ln -sfn "$facet_root/models" "$tour/models"
  cp "$facet_root/configs/default.toml" "$swapped"
  # The visitor's own file: made once, never written again.
  [[ -e "$mine" ]] || cp "$facet_root/configs/default.toml" "$mine"
}

# set_plugin SECTION NAME FILE: edits the plugin line of one section.
set_plugin() { sed -i "/^\[$1\]/,/^\[/ s/^plugin = .*/plugin = \"$2\"/" "$3"; }

show_generation() {
  say "generate with configs/default.toml: facet run configs/default.toml --prompt \"$prompt\""
  "$facet" run "$facet_root/configs/default.toml" --prompt "$prompt" --max-tokens 64 --greedy
}

show_swapped_kernel() {
  set_plugin linear reference "$swapped"
  say "swap the linear kernel: one line of a copy of the configuration is edited"
  diff "$facet_root/configs/default.toml" "$swapped" || true
  "$facet" run "$swapped" --prompt "$prompt" --max-tokens 64 --greedy
}

show_comparison() {
  say "compare three cache policies: facet ab static.toml ring.toml paged.toml"
  cd "$facet_root"
  "$facet" ab configs/caches/{static,ring,paged}.toml --requests configs/requests.jsonl --rounds 3
}

bash "$facet_root/scripts/setup.sh"
build_program
prepare_tour
show_generation
show_swapped_kernel
show_comparison
say "demo: done. Your turn: edit $mine (later runs of the demo keep it) and run"
echo "  $facet run $mine --prompt \"...\""
