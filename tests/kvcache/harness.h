// A cache policy as the host sees it, loaded by its entry symbol, with a pool of NaN between guards, and rows written
// and read through views as a backend does.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "facet/sdk/kv_cache.h"

namespace facet::kvtest {

using Tokens = std::vector<std::int32_t>;

// Collects lines of a plugin.
struct Text {
  std::string lines;
  abi::TextSink sink();
};

// Integer and boolean options by name, and the storage.
using OptionValues = std::map<std::string, std::int64_t>;

// An instance of lib/facet/plugins/kv_cache_NAME.so; the library stays loaded.
std::unique_ptr<abi::KvCache, void (*)(abi::KvCache*)> load_policy(const std::string& name, const std::string& storage,
                                                                   const OptionValues& options);

abi::KvProblem make_problem(std::int64_t window, std::int64_t max_sequences, std::int64_t max_context,
                            std::int64_t max_chunk);

// A planned and bound policy.
class Cache {
 public:
  using Instance = std::unique_ptr<abi::KvCache, void (*)(abi::KvCache*)>;

  Cache(Instance instance, const abi::KvProblem& problem, abi::KvOrder order = abi::KvOrder::head_major);
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  abi::KvCache& policy() { return *instance_; }
  const abi::KvPlan& plan() const { return plan_; }
  const abi::KvProblem& problem() const { return problem_; }
  abi::KvUsage usage() const;
  // Text of the last call that was not ok.
  const std::string& error() const { return error_; }

  std::int64_t match(const Tokens& tokens, std::int64_t limit, std::uint64_t salt = 0) const;
  abi::Status open(std::uint64_t sequence, const Tokens& tokens = {}, std::int64_t reuse = 0, std::uint64_t salt = 0);
  abi::Status reserve(std::uint64_t sequence, std::int64_t count);
  abi::Status commit(std::uint64_t sequence, const Tokens& tokens);
  abi::Status rollback(std::uint64_t sequence, std::int64_t count);
  void cancel(std::uint64_t sequence) { instance_->cancel(sequence); }
  void close(std::uint64_t sequence) { instance_->close(sequence); }

  // begin_step() and the view of one layer; fails the test when either does not answer ok.
  abi::KvView step(const std::vector<std::uint64_t>& sequences, std::int64_t layer = 0);
  abi::Status begin_step(const std::vector<std::uint64_t>& sequences);
  // Block table of one sequence.
  std::vector<std::int32_t> table(std::uint64_t sequence);

  // One step of one sequence as the core does it: reserve, write, commit. `prefix` is what the sequence holds already.
  abi::Status feed(std::uint64_t sequence, const Tokens& prefix, const Tokens& tokens, std::uint64_t salt = 0);
  // Writes rows of positions [begin, end) of sequence number `index` of the last step, in all layers, keys and values.
  void write(std::int64_t index, std::int64_t begin, std::int64_t end, const Tokens& tokens, std::uint64_t salt);
  // Positions in [begin, end) whose rows are not what write() stored for these tokens, or whose block is -1.
  std::vector<std::int64_t> wrong_rows(std::int64_t index, std::int64_t begin, std::int64_t end, const Tokens& tokens,
                                       std::uint64_t salt);
  // True when no byte around the pool changed.
  bool guards_intact() const;

 private:
  Instance instance_;
  abi::KvProblem problem_;
  abi::KvPlan plan_{};
  std::vector<unsigned char> memory_;
  unsigned char* pool_ = nullptr;
  std::string error_;
};

// The content of a row depends on every token up to it, so that a wrongly shared prefix shows.
std::uint64_t row_content(const Tokens& tokens, std::int64_t position, std::uint64_t salt);

// tokens [0, count) with values that depend on `seed`.
Tokens some_tokens(std::int64_t count, std::int32_t seed = 1);
Tokens slice(const Tokens& tokens, std::int64_t begin, std::int64_t end);
Tokens joined(const Tokens& left, const Tokens& right);

}  // namespace facet::kvtest
