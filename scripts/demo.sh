#!/usr/bin/env bash
# Builds Facet and shows its main job on the model in the repository: text is generated, a kernel is swapped by editing
# one line, and cache policies are compared. Run it from anywhere, as often as you like.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

build="$facet_root/build/demo"
facet="$build/bin/facet"
# Configurations name the model as ../models/...: a folder of the same shape lets copies be edited without touching configs/.
tour="$build/tour"
prompt="${FACET_DEMO_PROMPT:-To install the package,}"

build_program() {
  say "configure (release, without tests and benchmarks) in $build"
  cmake --preset release -S "$facet_root" -B "$build" \
    -DFACET_BUILD_TESTS=OFF -DFACET_BUILD_BENCHMARKS=OFF --log-level=WARNING
  say "build with $jobs jobs"
  cmake --build "$build" -j "$jobs"
}

prepare_tour() {
  mkdir -p "$tour/configs"
  ln -sfn "$facet_root/models" "$tour/models"
  cp "$facet_root/configs/default.toml" "$tour/configs/mine.toml"
}

# set_plugin SECTION NAME FILE: edits the plugin line of one section.
set_plugin() { sed -i "/^\[$1\]/,/^\[/ s/^plugin = .*/plugin = \"$2\"/" "$3"; }

show_generation() {
  say "generate with configs/default.toml: facet run configs/default.toml --prompt \"$prompt\""
  "$facet" run "$facet_root/configs/default.toml" --prompt "$prompt" --max-tokens 64 --greedy
}

show_swapped_kernel() {
  set_plugin linear reference "$tour/configs/mine.toml"
  say "swap the linear kernel: one line of a copy of the configuration is edited"
  diff "$facet_root/configs/default.toml" "$tour/configs/mine.toml" || true
  "$facet" run "$tour/configs/mine.toml" --prompt "$prompt" --max-tokens 64 --greedy
}

show_comparison() {
  if ! "$facet" ab --help > /dev/null 2>&1; then
    say "this build has no ab command: the comparison is left out"
    return
  fi
  local policy
  for policy in static ring paged; do
    cp "$facet_root/configs/default.toml" "$tour/configs/cache-$policy.toml"
    set_plugin kv_cache.sliding "$policy" "$tour/configs/cache-$policy.toml"
  done
  printf '{"prompt": "%s", "max_tokens": 32}\n' "$prompt" "The options of the command are" "A function returns" \
    "Before you begin, check" > "$tour/requests.jsonl"
  say "compare three cache policies for the sliding layers: facet ab static ring paged"
  "$facet" ab "$tour"/configs/cache-{static,ring,paged}.toml --requests "$tour/requests.jsonl" --rounds 3
}

bash "$facet_root/scripts/setup.sh"
build_program
prepare_tour
show_generation
show_swapped_kernel
show_comparison
say "demo: done. Your turn: edit $tour/configs/mine.toml and run"
echo "  $facet run $tour/configs/mine.toml --prompt \"...\""
