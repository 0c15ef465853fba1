// What a plugin answers is checked where it enters: plans once, views in every step. A wrong number would otherwise be
// an address.
#pragma once

#include <cstdint>

#include "facet/engine/kv_manager.h"

namespace facet {

// Larger sizes are a mistake of the plugin: 64 TiB, more than any device holds; sums of a few stay far from 2^64.
inline constexpr std::uint64_t kMaxPlannedBytes = std::uint64_t{1} << 46;
// Of a pool: the largest page that backends place memory on.
inline constexpr std::uint64_t kMaxPoolAlignment = std::uint64_t{2} << 20;

// Throws Error(plugin) naming plugin, `field`, value and limit when `bytes` is above kMaxPlannedBytes.
void check_planned_bytes(const LoadedPlugin& plugin, const char* field, std::uint64_t bytes);

// What a cache policy planned for `problem` and the asked `layout`. Throws Error(plugin) with plugin, field, value and
// allowed range of every violation.
void check_kv_plan(const LoadedPlugin& plugin, const abi::KvProblem& problem, const abi::KvLayout& layout,
                   const abi::KvPlan& plan);

// The view of one layer of `group` for the step's `sequences`: equal to plan and spec, and every element of every
// block inside the pool. Throws Error(run) with plugin, layer, field and both values.
void check_kv_view(const KvGroup& group, const abi::KvView& view, std::size_t layer, std::int64_t sequences);

// All layers of a group have one table. Throws Error(run).
void check_kv_table_shared(const KvGroup& group, const abi::KvView& view, std::size_t layer);

// Entries of the table of `sequences` in host memory: -1 or a block of the pool. Throws Error(run).
void check_kv_table(const KvGroup& group, const abi::KvView& view, std::int64_t sequences);

}  // namespace facet
