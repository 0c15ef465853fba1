#!/usr/bin/env bash
# Every check of the repository, in order, each with its time; a table at the end. Exit code 1 when one fails.
# Logs are in build/gates/NAME.log.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

all_gates=(format build test packaging clang tidy asan tsan)
known_gates=("${all_gates[@]}" asan-all golden)
quick_gates=(format build test)
logs="$facet_root/build/gates"
# Tests that run under the address sanitizer by default; together they build and run in a few minutes. The gate asan-all
# runs everything but the long ones and those that have gates of their own.
asan_labels="base|backend|config|checkpoint|tokenizer|kvcache|scheduler|sampling|engine|linear|attention|workers"
asan_all_without="slow|golden|packaging|gpu"
# Tests that run under the thread sanitizer.
tsan_labels="engine|workers"

usage() {
  cat << 'TEXT'
usage: test.sh [--quick] [--gate NAME]... [--without-cuda] [--no-setup] [--verbose]
  --quick      only format, build and test
  --gate NAME  only this gate; may be repeated. A gate that needs a build makes it. Names:
               format     clang-format over all tracked C++ files
               build      release build with g++, warnings are errors, benchmarks included
               test       all tests of that build but packaging
               clang      build of programs, plugins and libraries with clang, warnings are errors
               tidy       clang-tidy over our own sources with that build's compile commands
               asan       address and undefined-behaviour sanitizers over core, caches, schedulers, engine and CPU kernels
               tsan       engine and worker threads under the thread sanitizer
               packaging  install, move, build a plugin outside of the tree, run it
               asan-all   on request: the same over loader, commands, quantizer and models too
               golden     on request: quality of the quantizer on the 22 M model
  --without-cuda
               build no GPU kernels and none of their tests in the release build where a CUDA toolkit is installed
  --no-setup   do not look for missing packages first
  --verbose    show what the gates print, not only their logs' ends on failure
TEXT
}

# --- gates: each is a function gate_NAME that returns non-zero on failure ---

gate_format() {
  local formatter files
  formatter="$(tool clang-format)"
  mapfile -t files < <(tracked_sources '*.h' '*.cpp')
  echo "$("$formatter" --version), ${#files[@]} files"
  "$formatter" --dry-run --Werror "${files[@]}"
}

gate_build() { configure_and_build release; }

gate_test() {
  need_build release &&
    ctest --test-dir "$facet_root/build/release" -j "$jobs" --output-on-failure --no-tests=error --label-exclude '^(packaging|golden)$'
}

gate_clang() { configure_and_build clang -DFACET_BUILD_TESTS=OFF; }

gate_tidy() {
  need_build clang || return
  local files
  # Only what that build compiles: it has no CUDA, whose headers the others need.
  mapfile -t files < <(tracked_sources 'framework/*.cpp' 'plugins/*.cpp' 'models/*.cpp' 'apps/*.cpp' |
    grep -F -x -f <(python3 -c 'import json, sys; print("\n".join(e["file"] for e in json.load(open(sys.argv[1]))))' \
      "$facet_root/build/clang/compile_commands.json"))
  [[ ${#files[@]} -gt 100 ]] || { echo "only ${#files[@]} files to look at"; return 1; }
  echo "$(tool clang-tidy), ${#files[@]} files"
  # One process a file: a failing file is named and the others are still looked at.
  printf '%s\0' "${files[@]}" |
    xargs -0 -n 1 -P "$jobs" "$(tool clang-tidy)" -p "$facet_root/build/clang" --quiet
}

gate_asan() {
  configure asan-ubsan || return
  local targets
  mapfile -t targets < <(tests_labelled asan-ubsan "$asan_labels")
  [[ ${#targets[@]} -gt 0 ]] || { echo "no test has one of the labels $asan_labels"; return 1; }
  cmake --build "$facet_root/build/asan-ubsan" -j "$jobs" --target facet_plugins "${targets[@]}" &&
    ctest --test-dir "$facet_root/build/asan-ubsan" -j "$jobs" --output-on-failure --label-regex "^($asan_labels)\$"
}

gate_asan-all() {
  configure_and_build asan-ubsan &&
    ctest --test-dir "$facet_root/build/asan-ubsan" -j "$jobs" --output-on-failure --no-tests=error \
      --label-exclude "^($asan_all_without)\$"
}

# The whole quality table of the quantizer on the 22 M model: minutes, and it needs that checkpoint.
gate_golden() {
  configure release && cmake --build "$facet_root/build/release" -j "$jobs" --target quantize_golden_test &&
    ctest --test-dir "$facet_root/build/release" --output-on-failure --no-tests=error --label-regex '^golden$'
}

gate_tsan() {
  configure tsan || return
  local targets
  # Only what runs: the tests, the program and the plugins they load.
  mapfile -t targets < <(tests_labelled tsan "$tsan_labels")
  [[ ${#targets[@]} -gt 0 ]] || { echo "no test has one of the labels $tsan_labels"; return 1; }
  cmake --build "$facet_root/build/tsan" -j "$jobs" --target facet facet_plugins "${targets[@]}" &&
    ctest --test-dir "$facet_root/build/tsan" --output-on-failure --no-tests=error --label-regex "^($tsan_labels)\$"
}

gate_packaging() {
  need_build release &&
    ctest --test-dir "$facet_root/build/release" --output-on-failure --no-tests=error --label-regex '^packaging$'
}

# --- what the gates share ---

# Tracked files of these patterns that are still there; absolute paths.
tracked_sources() {
  git -C "$facet_root" ls-files -- "$@" | while IFS= read -r file; do
    if [[ -f "$facet_root/$file" ]]; then printf '%s\n' "$facet_root/$file"; fi
  done
}

configure() {
  local preset=$1
  shift
  # The presets of the other gates say themselves that they have none.
  if [[ $preset == release ]]; then set -- "-DFACET_CUDA=$cuda" "$@"; fi
  cmake --preset "$preset" -S "$facet_root" -B "$facet_root/build/$preset" "$@"
}

configure_and_build() {
  configure "$@" && cmake --build "$facet_root/build/$1" -j "$jobs"
}

# A gate that was asked for alone makes the build it needs; after a build that failed here it fails at once.
need_build() {
  local gate=$1
  if [[ $gate == release ]]; then gate=build; fi
  case "${result[$gate]:-none}" in
    passed) return 0 ;;
    failed)
      echo "needs the gate $gate, which failed"
      return 1
      ;;
    *) "gate_$gate" ;;
  esac
}

# Names of the test programs with a label in a configured build. A program has the name of its test; before it is built
# ctest knows no command for it. Scripts have another command and need no build.
tests_labelled() {
  ctest --test-dir "$facet_root/build/$1" --show-only=json-v1 2> /dev/null | python3 -c '
import json, sys
for test in json.load(sys.stdin)["tests"]:
    labels = [p["value"] for p in test["properties"] if p["name"] == "LABELS"]
    program = "command" not in test or test["command"][0].endswith("/" + test["name"])
    if labels and set(sys.argv[1].split("|")) & set(labels[0]) and program:
        print(test["name"])' "$2"
}

declare -A result=() seconds=() cpu_seconds=()

# run_gate NAME: runs it in a subshell with a log of its own, keeps result and times.
run_gate() {
  local name=$1 log="$logs/$1.log" began=$SECONDS status=0 cpu_before
  say "gate $name"
  cpu_before="$(child_cpu)"
  if [[ $verbose == yes ]]; then
    (set +e; "gate_$name") 2>&1 | tee "$log" || status=$?
  else
    (set +e; "gate_$name") > "$log" 2>&1 || status=$?
  fi
  seconds[$name]=$((SECONDS - began))
  cpu_seconds[$name]=$(($(child_cpu) - cpu_before))
  if [[ $status -eq 0 ]]; then
    result[$name]=passed
    say "gate $name passed in $(clock "${seconds[$name]}")"
  else
    result[$name]=failed
    say "gate $name FAILED after $(clock "${seconds[$name]}"); the end of $log:"
    tail -n 60 "$log"
  fi
}

# The lines of a log that say what failed: compilers' and linters' errors, assertions of tests with what they saw,
# sanitizers' reports.
what_failed() {
  grep -E -A 8 '(: Failure$|: error: |: fatal error: |\berror: |^==[0-9]+==ERROR|runtime error:|WARNING: ThreadSanitizer|\*\*\*Failed|Not Run)' "$1" |
    head -n 60 || true
}

# Processor seconds of all finished children so far.
child_cpu() {
  python3 - "$$" << 'TEXT'
import os, sys
fields = open(f"/proc/{sys.argv[1]}/stat").read().rsplit(")", 1)[1].split()
print((int(fields[13]) + int(fields[14])) // os.sysconf("SC_CLK_TCK"))
TEXT
}

summary() {
  local name failed=()
  say "summary"
  printf '  %-10s %-8s %8s %14s\n' gate result time 'processor time'
  for name in "${gates[@]}"; do
    printf '  %-10s %-8s %8s %14s\n' "$name" "${result[$name]}" "$(clock "${seconds[$name]}")" \
      "$(clock "${cpu_seconds[$name]}")"
    if [[ ${result[$name]} != passed ]]; then failed+=("$name"); fi
  done
  if [[ ${#failed[@]} -gt 0 ]]; then
    for name in "${failed[@]}"; do
      printf '\nfrom %s:\n' "$logs/$name.log"
      what_failed "$logs/$name.log"
    done
    echo "failed: ${failed[*]}"
    exit 1
  fi
  echo "all passed"
}

gates=()
cuda=AUTO
setup=yes
verbose=no
while [[ $# -gt 0 ]]; do
  case "$1" in
    --quick) gates=("${quick_gates[@]}") ;;
    --gate)
      [[ " ${known_gates[*]} " == *" ${2:-} "* && -n "${2:-}" ]] || fail "--gate needs one of: ${known_gates[*]}"
      gates+=("$2")
      shift
      ;;
    --without-cuda) cuda=OFF ;;
    --no-setup) setup=no ;;
    --verbose) verbose=yes ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      usage >&2
      fail "unknown argument '$1'"
      ;;
  esac
  shift
done
if [[ ${#gates[@]} -eq 0 ]]; then gates=("${all_gates[@]}"); fi

if [[ $setup == yes ]]; then bash "$facet_root/scripts/setup.sh" --dev; fi
mkdir -p "$logs"
# cmake --preset reads the presets of the folder it runs in.
cd "$facet_root"
for gate in "${gates[@]}"; do run_gate "$gate"; done
summary
