#!/usr/bin/env bash
# Every GPU test and every GPU benchmark on a prebuilt tree, in under nine minutes on one H200. Run it alone on the GPU.
set -uo pipefail
root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"

usage() {
  echo "usage: gpu.sh [BUILD] [--out FOLDER] [--only tests|kernels|model|quantize|sanitizer]..."
  echo "  BUILD         folder of a release build with tests and benchmarks (default: build/release)"
  echo "  --out FOLDER  where the JSON files go (default: BUILD/gpu-results; bench/results holds the recorded run)"
  echo "  --only PART   may be repeated; without: tests, kernels and model. Kernels alone, then Gemma 4 12B's shape."
  echo "                quantize: a bf16 checkpoint in Gemma 4 12B's shape, from files to files; takes 35 GB in TMPDIR, 4 minutes"
  echo "                sanitizer: compute-sanitizer memcheck over the tests of the kernels"
}

fail() {
  usage >&2
  echo "gpu.sh: $*" >&2
  exit 2
}

build=""
out=""
parts=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    -h | --help)
      usage
      exit 0
      ;;
    --out | --only)
      [[ -n "${2:-}" ]] || fail "$1 needs a value"
      if [[ "$1" == --out ]]; then out="$2"; else parts+=("$2"); fi
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
[[ ${#parts[@]} -gt 0 ]] || parts=(tests kernels model)
for part in "${parts[@]}"; do
  [[ "$part" =~ ^(tests|kernels|model|quantize|sanitizer)$ ]] || fail "unknown part '$part'"
done
build="$(realpath -m -- "${build:-$root/build/release}")"
out="$(realpath -m -- "${out:-$build/gpu-results}")"
tests=(cuda_backend_test cuda_linear_test cuda_attention_test cuda_quantizer_test cuda_calibration_test cuda_quantize_command_test)
[[ -x "$build/bin/facet" ]] || fail "$build/bin/facet is missing; build with: cmake --preset release && cmake --build build/release"
mkdir -p "$out"
cd "$root" || exit 1
failed=()

# A step with a time limit in seconds; the others go on when one fails.
step() {
  local name="$1" limit="$2"
  shift 2
  echo "== $name"
  local begin=$SECONDS
  timeout "$limit" "$@" || failed+=("$name (exit code $?)")
  echo "== $name: $((SECONDS - begin)) s"
}

wants() {
  local part
  for part in "${parts[@]}"; do [[ "$part" == "$1" ]] && return 0; done
  return 1
}

run_test() {
  FACET_REQUIRE_GPU=1 "$build/tests/$1" --gtest_brief=1
}

bench_model() {
  "$build/bin/facet" bench configs/cuda/gemma4-12b-synthetic.toml "${@:2}" --json > "$out/$1"
}

if wants tests; then
  for name in "${tests[@]}" test_gemma4_cuda cli_bench_gpu_test; do step "$name" 120 run_test "$name"; done
fi
if wants kernels; then
  step bench_linear_cuda 150 "$build/bin/bench_linear_cuda" --json "$out/cuda-linear.json"
  step bench_cuda_attention 60 "$build/bin/bench_cuda_attention" --json "$out/cuda-attention.json"
  step bench_quantize_cuda 60 "$build/bin/bench_quantize_cuda" --json "$out/cuda-quantize.json" \
    --library "$build/lib/facet/libfacet_quantizer_cuda.so"
fi
if wants model; then
  step "decode" 100 bench_model cuda-decode.json --prompt-tokens 1024 --generate 64 --batch 1,8,32,64 --repeat 3 --profile
  step "decode, long" 60 bench_model cuda-decode-long.json --prompt-tokens 32000 --generate 32 --batch 1 --repeat 1
  step "prefill" 60 bench_model cuda-prefill.json --prompt-tokens 512,2048,8192 --generate 1 --batch 1 --repeat 3 --profile
  python3 - "$out" <<'P'
import json, os, sys
for name in ("cuda-decode", "cuda-decode-long", "cuda-prefill"):
    path = os.path.join(sys.argv[1], name + ".json")
    if not os.path.getsize(path):
        continue
    document = json.load(open(path))
    for run in document["runs"]:
        decode = run["decode"] or {"tokens_per_second": {"median": 0}, "ms_per_step": {"median": 0}}
        print(f"batch {run['batch']:3} prompt {run['prompt_tokens']:6}: prefill {run['prefill']['tokens_per_second']['median']:9.0f} tokens/s, "
              f"decode {decode['tokens_per_second']['median']:8.1f} tokens/s, {decode['ms_per_step']['median']:7.3f} ms a step, "
              f"{(decode.get('gap_us') or {'median': 0})['median']:6.2f} us between steps")
P
fi
if wants quantize; then
  work="$(mktemp -d)"
  trap 'rm -rf "$work"' EXIT
  step "make a checkpoint" 120 python3 bench/cuda/quantize/make_checkpoint.py "$work/in"
  step "quantize" 400 "$build/bin/facet" quantize --in "$work/in" --out "$work/out" --method gptq \
    --calibration "$work/in/calibration.jsonl" --device cuda --log-level info
  python3 - "$work" "$out/cuda-quantize-12b.json" <<'P'
import json, sys
report = json.load(open(sys.argv[1] + "/out/quantization_report.json"))
report["in"] = "bench/cuda/quantize/make_checkpoint.py"
report["settings"]["calibration"] = "calibration.jsonl"
for layer in report["layers"]:
    layer["modules"] = {m["name"].split(".")[-1]: round(m["seconds"], 4) for m in layer["modules"]}
    layer["inputs"] = {i["first_module"].split(".")[-1]: round(i["seconds"], 4) for i in layer["inputs"]}
json.dump(report, open(sys.argv[2], "w"), indent=1)
P
fi
if wants sanitizer; then
  for name in "${tests[@]}"; do step "memcheck $name" 240 compute-sanitizer --error-exitcode 1 --report-api-errors no "$build/tests/$name" --gtest_brief=1; done
fi
# Folders say nothing about the result.
sed -i "s|$build/||g; s|$root/||g" "$out"/*.json 2>/dev/null
echo "written: $out"
if [[ ${#failed[@]} -gt 0 ]]; then
  printf 'gpu.sh: failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
