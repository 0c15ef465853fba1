// Thousands of random opens, steps, rollbacks and closes against a model that only remembers tokens.
#include <cstring>
#include <random>
#include <set>

#include "harness.h"
#include "paged/paged_cache.h"

namespace facet::kvtest {
namespace {

struct Case {
  std::string policy;  // "constant hash": the paged policy in this program, with a hash that always collides
  std::string storage;
  OptionValues options;
  std::int64_t window;
  std::int64_t max_sequences;
  std::int64_t max_context;
  std::int64_t max_chunk;
  std::int64_t rollback;
};

void PrintTo(const Case& setup, std::ostream* out) {
  std::string text = setup.policy + " " + setup.storage + " window " + std::to_string(setup.window);
  for (const auto& [name, value] : setup.options) text += " " + name + "=" + std::to_string(value);
  *out << text;
}

Cache::Instance make_instance(const Case& setup) {
  if (setup.policy != "constant hash") return load_policy(setup.policy, setup.storage, setup.options);
  kvcache::PagedSettings settings;
  settings.element = abi::DType::f32;
  settings.block_tokens = setup.options.at("block_tokens");
  settings.pool_tokens = setup.options.at("pool_tokens");
  const kvcache::PrefixIndex::Hash constant = [](std::int64_t, std::span<const std::int32_t>,
                                                 std::uint64_t) -> std::uint64_t { return 7; };
  return {new kvcache::PagedCache(settings, constant),
          [](abi::KvCache* it) { delete static_cast<kvcache::PagedCache*>(it); }};
}

struct Live {
  std::uint64_t id;
  std::uint64_t salt;
  Tokens plan;  // what it will hold, as far as it gets
  std::int64_t committed;
  std::int64_t reserved;
  std::int64_t reused;
  std::int64_t highest;  // most rows it ever held
};

class Walk {
 public:
  explicit Walk(const Case& setup, std::uint32_t seed)
      : setup_(setup),
        random_(seed),
        cache_(make_instance(setup),
               make_problem(setup.window, setup.max_sequences, setup.max_context, setup.max_chunk)),
        chunk_(std::min(cache_.plan().max_chunk, setup.max_chunk)),
        paged_(setup.policy == "paged" || setup.policy == "constant hash") {}

  void run(int steps) {
    for (step_ = 0; step_ < steps && !testing::Test::HasFatalFailure(); ++step_) {
      const int action = pick(0, 9);
      if (live_.empty() || action == 0)
        open();
      else if (action <= 6)
        advance();
      else if (action == 7)
        rollback();
      else if (action == 8)
        refused();
      else if (pick(0, 2) == 0)
        close();
      check();
    }
    while (!live_.empty()) close();
    const abi::KvUsage usage = cache_.usage();
    EXPECT_EQ(usage.blocks_free + usage.blocks_cached, usage.blocks_total);
    EXPECT_EQ(usage.sequences, 0);
    EXPECT_EQ(usage.bytes_reserved, 0u);
    EXPECT_EQ(usage.bytes_used, 0u);
  }

  std::int64_t reused() const { return static_cast<std::int64_t>(cache_.usage().reused_tokens); }
  std::int64_t evicted() const { return static_cast<std::int64_t>(cache_.usage().evicted_blocks); }
  int out_of_memory() const { return out_of_memory_; }
  int rollbacks() const { return rollbacks_; }

 private:
  std::int64_t pick64(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  int pick(int low, int high) { return static_cast<int>(pick64(low, high)); }
  Live& any() { return live_[static_cast<std::size_t>(pick64(0, static_cast<std::int64_t>(live_.size()) - 1))]; }

  // Few tokens and few beginnings, so that prefixes are often equal and often nearly equal.
  Tokens random_plan() {
    Tokens plan(static_cast<std::size_t>(setup_.max_context));
    std::mt19937 beginning(static_cast<std::uint32_t>(pick(0, 3)));
    const std::int64_t own = pick64(0, setup_.max_context);
    for (std::int64_t i = 0; i < setup_.max_context; ++i) {
      const std::uint32_t shared = static_cast<std::uint32_t>(beginning() % 2);
      plan[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i < own ? shared : random_() % 2);
    }
    return plan;
  }

  void open() {
    Live entry{next_id_++, static_cast<std::uint64_t>(pick(0, 1)), random_plan(), 0, 0, 0, 0};
    const Tokens prompt = slice(entry.plan, 0, pick64(1, setup_.max_context));
    const std::int64_t limit = static_cast<std::int64_t>(prompt.size()) - 1;
    const std::int64_t reuse = cache_.match(prompt, limit, entry.salt);
    ASSERT_LE(reuse, limit);
    ASSERT_GE(reuse, 0);
    if (paged_) check_match(prompt, limit, entry.salt, reuse);
    const abi::Status status = cache_.open(entry.id, prompt, reuse, entry.salt);
    if (static_cast<std::int64_t>(live_.size()) == setup_.max_sequences) {
      ASSERT_EQ(status, abi::Status::out_of_memory);
      return;
    }
    ASSERT_EQ(status, abi::Status::ok) << cache_.error();
    entry.committed = entry.reused = entry.highest = reuse;
    live_.push_back(entry);
  }

  // As long as nothing was evicted, every full block ever committed can be found, and nothing else.
  void check_match(const Tokens& prompt, std::int64_t limit, std::uint64_t salt, std::int64_t reuse) {
    const std::int64_t block = setup_.options.at("block_tokens");
    ASSERT_EQ(reuse % block, 0);
    ASSERT_TRUE(reuse == 0 || known_.count({salt, slice(prompt, 0, reuse)}) == 1) << "a match nobody committed";
    if (cache_.usage().evicted_blocks != 0 || setup_.rollback > 0 || setup_.options.count("prefix_reuse") != 0) return;
    std::int64_t expected = 0;
    while (expected + block <= limit && known_.count({salt, slice(prompt, 0, expected + block)}) == 1)
      expected += block;
    ASSERT_EQ(reuse, expected);
  }

  void advance() {
    Live& entry = any();
    const std::int64_t count = std::min(pick64(0, chunk_), setup_.max_context - entry.committed);
    const abi::KvUsage before = cache_.usage();
    const std::vector<std::int32_t> table = cache_.table(entry.id);
    const abi::Status status = cache_.reserve(entry.id, count);
    if (status == abi::Status::out_of_memory) {
      ++out_of_memory_;
      const abi::KvUsage after = cache_.usage();
      ASSERT_EQ(std::memcmp(&before, &after, sizeof before), 0) << "a refused reserve changed the cache";
      ASSERT_EQ(cache_.table(entry.id), table);
      close();  // as a scheduler does
      return;
    }
    ASSERT_EQ(status, abi::Status::ok) << cache_.error();
    entry.reserved = std::max(entry.reserved, count);
    cache_.step({entry.id});
    cache_.write(0, entry.committed, entry.committed + entry.reserved, entry.plan, entry.salt);
    const std::int64_t kept = pick(0, 3) == 0 ? pick64(0, entry.reserved) : entry.reserved;
    check_writable();
    ASSERT_EQ(cache_.commit(entry.id, slice(entry.plan, entry.committed, entry.committed + kept)), abi::Status::ok)
        << cache_.error();
    entry.committed += kept;
    entry.reserved -= kept;
    entry.highest = std::max(entry.highest, entry.committed);
    remember(entry);
    if (pick(0, 1) == 0) {
      cache_.cancel(entry.id);
      entry.reserved = 0;
    }
  }

  void remember(const Live& entry) {
    if (!paged_) return;
    const std::int64_t block = setup_.options.at("block_tokens");
    for (std::int64_t end = block; end <= entry.committed; end += block)
      known_.insert({entry.salt, slice(entry.plan, 0, end)});
  }

  void rollback() {
    Live& entry = any();
    const std::int64_t count = pick64(0, std::min(entry.committed, setup_.rollback));
    const std::int64_t length = entry.committed - count;
    const abi::Status status = cache_.rollback(entry.id, count);
    // Depth counts from the most rows it ever held; below that it may be refused, but never done wrongly.
    const bool must = entry.highest - length <= cache_.plan().rollback_depth && length >= entry.reused;
    if (must) {
      ASSERT_EQ(status, abi::Status::ok) << cache_.error();
    }
    if (status != abi::Status::ok) {
      ASSERT_EQ(status, abi::Status::invalid_argument);
      return;
    }
    if (count > 0) ++rollbacks_;
    entry.committed = length;
    entry.reserved = 0;
    for (std::int64_t i = length; i < setup_.max_context; ++i)
      if (pick(0, 3) == 0) entry.plan[static_cast<std::size_t>(i)] = pick(0, 1);
  }

  // Calls against the contract answer invalid_argument and change nothing.
  void refused() {
    const Live& entry = any();
    const abi::KvUsage before = cache_.usage();
    const std::vector<std::int32_t> table = cache_.table(entry.id);
    const auto is_refused = [&](abi::Status status) {
      ASSERT_EQ(status, abi::Status::invalid_argument);
      ASSERT_FALSE(cache_.error().empty());
    };
    is_refused(cache_.reserve(entry.id, cache_.plan().max_chunk + 1));
    is_refused(cache_.reserve(entry.id, setup_.max_context - entry.committed + 1));
    is_refused(cache_.reserve(entry.id, -1));
    is_refused(cache_.reserve(next_id_ + 1, 1));
    is_refused(cache_.commit(entry.id, some_tokens(entry.reserved + 1)));
    is_refused(cache_.rollback(entry.id, entry.committed + 1));
    is_refused(cache_.open(entry.id));
    is_refused(cache_.begin_step({entry.id, entry.id}));
    cache_.close(next_id_ + 1);
    cache_.cancel(next_id_ + 1);
    const abi::KvUsage after = cache_.usage();
    ASSERT_EQ(std::memcmp(&before, &after, sizeof before), 0);
    ASSERT_EQ(cache_.table(entry.id), table);
  }

  void close() {
    const std::size_t victim = static_cast<std::size_t>(pick64(0, static_cast<std::int64_t>(live_.size()) - 1));
    cache_.close(live_[victim].id);
    cache_.close(live_[victim].id);
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(victim));
  }

  std::vector<std::uint64_t> ids() const {
    std::vector<std::uint64_t> all;
    for (const Live& entry : live_) all.push_back(entry.id);
    return all;
  }

  // Rows of the pool as block * block_rows + row.
  std::int64_t row_at(const abi::KvView& view, std::size_t index, std::int64_t position) const {
    const std::int64_t row = view.ring_rows > 0 ? position % view.ring_rows : position;
    const std::int64_t rows = view.layout.block_rows;
    const std::int64_t block = view.block_table[static_cast<std::int64_t>(index) * view.table_stride + row / rows];
    return block < 0 ? -1 : block * rows + row % rows;
  }

  // A row about to be written belongs to nobody else, neither for writing nor as content.
  void check_writable() {
    const abi::KvView view = cache_.step(ids());
    std::set<std::int64_t> held;
    std::set<std::int64_t> writable;
    for (std::size_t i = 0; i < live_.size(); ++i) {
      for (std::int64_t p = 0; p < live_[i].reserved; ++p) {
        const std::int64_t row = row_at(view, i, live_[i].committed + p);
        ASSERT_GE(row, 0);
        ASSERT_TRUE(writable.insert(row).second) << "two sequences write to row " << row;
      }
    }
    for (std::size_t i = 0; i < live_.size(); ++i) {
      const std::int64_t oldest = sdk::window_begin(live_[i].committed, setup_.window);
      for (std::int64_t p = oldest; p < live_[i].committed; ++p)
        ASSERT_EQ(writable.count(row_at(view, i, p)), 0u) << "position " << p << " is about to be overwritten";
    }
  }

  void check() {
    const abi::KvView view = cache_.step(ids());
    std::set<std::int64_t> blocks;
    std::set<std::int64_t> rows;
    for (std::size_t i = 0; i < live_.size(); ++i) {
      const Live& entry = live_[i];
      const auto index = static_cast<std::int64_t>(i);
      const std::int64_t needed = sdk::window_begin(entry.committed, setup_.window);
      ASSERT_TRUE(cache_.wrong_rows(index, needed, entry.committed, entry.plan, entry.salt).empty());
      if (view.ring_rows > 0) continue;
      for (std::int64_t p = 0; p < entry.committed; ++p) {
        if (row_at(view, i, p) < 0) continue;
        ASSERT_TRUE(p >= needed || cache_.wrong_rows(index, p, p + 1, entry.plan, entry.salt).empty());
        rows.insert(row_at(view, i, p));
      }
      for (std::int64_t j = 0; j < view.table_stride; ++j)
        if (view.block_table[index * view.table_stride + j] >= 0)
          blocks.insert(view.block_table[index * view.table_stride + j]);
    }
    const abi::KvUsage usage = cache_.usage();
    const std::uint64_t block_bytes = cache_.plan().pool_bytes / static_cast<std::uint64_t>(cache_.plan().block_count);
    ASSERT_EQ(usage.bytes_reserved % block_bytes, 0u);
    const auto held = static_cast<std::int64_t>(usage.bytes_reserved / block_bytes);
    ASSERT_EQ(usage.blocks_total, cache_.plan().block_count);
    ASSERT_EQ(usage.blocks_free + usage.blocks_cached + held, usage.blocks_total);
    ASSERT_EQ(usage.sequences, static_cast<std::int64_t>(live_.size()));
    if (view.ring_rows > 0) return;
    ASSERT_EQ(held, static_cast<std::int64_t>(blocks.size()));
    // 2 layers, keys and values, 2 heads of 3 elements, with a float each where there are scales.
    const std::uint64_t row_bytes = 2u * 2u * 2u * (setup_.storage == "f32" ? 12u : setup_.storage == "bf16" ? 6u : 7u);
    ASSERT_EQ(usage.bytes_used, rows.size() * row_bytes);
  }

  Case setup_;
  std::mt19937 random_;
  Cache cache_;
  std::int64_t chunk_;
  bool paged_;
  std::vector<Live> live_;
  std::set<std::pair<std::uint64_t, Tokens>> known_;
  std::uint64_t next_id_ = 1;
  int step_ = 0;
  int out_of_memory_ = 0;
  int rollbacks_ = 0;
};

class Property : public testing::TestWithParam<Case> {};

TEST_P(Property, RandomLivesKeepTheirRows) {
  const Case& setup = GetParam();
  int rollbacks = 0;
  int out_of_memory = 0;
  std::int64_t reused = 0;
  for (std::uint32_t seed = 1; seed <= 4 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Walk walk(setup, seed);
    walk.run(1500);
    rollbacks += walk.rollbacks();
    out_of_memory += walk.out_of_memory();
    reused += walk.reused();
    if (setup.options.count("pool_tokens") != 0) {
      EXPECT_GT(walk.evicted() + walk.out_of_memory(), 0);
    }
  }
  // What the walk is meant to reach was reached.
  if (setup.rollback > 0) {
    EXPECT_GT(rollbacks, 0);
  }
  const bool reuses =
      (setup.policy == "paged" && setup.options.count("prefix_reuse") == 0) || setup.policy == "constant hash";
  EXPECT_EQ(reused > 0, reuses);
  // A pool of the derived size is enough for everybody.
  if (setup.options.count("pool_tokens") == 0) {
    EXPECT_EQ(out_of_memory, 0);
  }
}

const Case kSetups[] = {
    {"static", "bf16", {}, 0, 3, 40, 7, 40},
    {"static", "i8", {}, 8, 3, 40, 7, 40},
    {"ring", "bf16", {}, 8, 3, 60, 5, 0},
    {"ring", "i8", {{"slack", 4}}, 8, 3, 60, 5, 4},
    {"ring", "f32", {{"rows", 16}}, 8, 3, 60, 20, 0},
    {"ring", "f32", {{"slack", 3}}, 50, 3, 40, 20, 3},
    {"paged", "bf16", {{"block_tokens", 4}}, 0, 3, 42, 9, 0},
    {"paged", "f32", {{"block_tokens", 4}, {"rollback", 5}}, 0, 3, 42, 9, 5},
    {"paged", "i8", {{"block_tokens", 4}, {"prefix_reuse", 0}}, 0, 3, 42, 9, 42},
    {"paged", "i8", {{"block_tokens", 3}, {"pool_tokens", 60}}, 0, 4, 42, 9, 0},
    {"paged", "bf16", {{"block_tokens", 4}}, 8, 3, 60, 9, 0},
    {"paged", "f32", {{"block_tokens", 4}, {"rollback", 3}}, 8, 3, 60, 9, 3},
    {"paged", "f32", {{"block_tokens", 1}}, 1, 3, 30, 5, 0},
    {"paged", "f32", {{"block_tokens", 4}, {"pool_tokens", 40}}, 7, 4, 60, 9, 0},
    {"paged", "f32", {{"block_tokens", 4}, {"pool_tokens", 48}, {"rollback", 2}}, 7, 4, 60, 9, 2},
    {"paged", "f32", {{"block_tokens", 16}}, 7, 4, 60, 9, 0},
    {"constant hash", "f32", {{"block_tokens", 4}, {"pool_tokens", 72}}, 0, 3, 42, 9, 0},
    {"constant hash", "f32", {{"block_tokens", 2}, {"pool_tokens", 40}}, 6, 3, 42, 9, 0},
};

INSTANTIATE_TEST_SUITE_P(Policies, Property, testing::ValuesIn(kSetups));

}  // namespace
}  // namespace facet::kvtest
