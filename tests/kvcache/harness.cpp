#include "harness.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include "facet/abi/plugin.h"

namespace facet::kvtest {

namespace {

constexpr std::size_t kGuard = 256;
constexpr unsigned char kGuardByte = 0xa5;

const abi::HostTable& tiny_host() {
  static const abi::HostTable kTable = [] {
    abi::HostTable table{};
    table.size = sizeof table;
    table.contract_version = abi::kContractVersion;
    table.worker_count = 1;
    table.log = [](void*, abi::LogLevel, const char*, std::uint64_t) {};
    table.allocate = [](void*, std::uint64_t bytes, std::uint64_t, const char*) { return std::calloc(1, bytes); };
    table.deallocate = [](void*, void* memory, std::uint64_t) { std::free(memory); };
    table.parallel_for = [](void*, std::int64_t count, std::int64_t, void* data, abi::ParallelBody body) {
      body(data, 0, count, 0);
    };
    return table;
  }();
  return kTable;
}

const abi::PluginDescriptor& descriptor(const std::string& name) {
  const std::string file = std::string(FACET_BINARY_DIR) + "/lib/facet/plugins/kv_cache_" + name + ".so";
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  void* symbol = dlsym(library, abi::kEntrySymbol);
  if (symbol == nullptr) throw std::runtime_error(file + " has no entry function");
  return *reinterpret_cast<abi::EntryFunction>(symbol)();
}

std::uint64_t mixed(std::uint64_t word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
  return word ^ (word >> 31);
}

// Integer in [-127, 127]: exact in f32, bf16 and i8.
int element_value(std::uint64_t content, std::int64_t layer, bool is_value, std::int64_t head, std::int64_t d) {
  const auto where = static_cast<std::uint64_t>(((layer * 2 + (is_value ? 1 : 0)) * 64 + head) * 1024 + d);
  return static_cast<int>(mixed(content + 0x9e3779b97f4a7c15u * (where + 1)) % 255) - 127;
}

float scale_value(std::uint64_t content, std::int64_t layer, bool is_value, std::int64_t head) {
  return static_cast<float>(1 + mixed(content ^ static_cast<std::uint64_t>(layer * 8 + head * 2 + is_value)) % 4096);
}

void store(const abi::KvView& view, void* base, std::int64_t offset, int value) {
  switch (view.layout.element) {
    case abi::DType::f32:
      static_cast<float*>(base)[offset] = static_cast<float>(value);
      return;
    case abi::DType::bf16:
      static_cast<std::uint16_t*>(base)[offset] = sdk::float_to_bf16(static_cast<float>(value));
      return;
    default:
      static_cast<std::int8_t*>(base)[offset] = static_cast<std::int8_t>(value);
  }
}

float fetch(const abi::KvView& view, const void* base, std::int64_t offset) {
  switch (view.layout.element) {
    case abi::DType::f32:
      return static_cast<const float*>(base)[offset];
    case abi::DType::bf16:
      return sdk::bf16_to_float(static_cast<const std::uint16_t*>(base)[offset]);
    default:
      return static_cast<float>(static_cast<const std::int8_t*>(base)[offset]);
  }
}

bool is_resident(const abi::KvView& view, std::int64_t index, std::int64_t position) {
  const std::int64_t row = view.ring_rows > 0 ? position % view.ring_rows : position;
  return view.block_table[index * view.table_stride + row / view.layout.block_rows] >= 0;
}

}  // namespace

abi::TextSink Text::sink() {
  return {this, [](void* context, const char* text, std::uint64_t size) {
            std::string& all = static_cast<Text*>(context)->lines;
            if (!all.empty()) all += '\n';
            all.append(text, size);
          }};
}

std::unique_ptr<abi::KvCache, void (*)(abi::KvCache*)> load_policy(const std::string& name, const std::string& storage,
                                                                   const OptionValues& options) {
  const abi::PluginDescriptor& plugin = descriptor(name);
  EXPECT_EQ(plugin.kind, abi::PluginKind::kv_cache);
  EXPECT_STREQ(plugin.name, name.c_str());
  std::vector<abi::OptionValue> values(plugin.option_count);
  std::size_t used = 0;
  for (std::uint32_t i = 0; i < plugin.option_count; ++i) {
    const abi::OptionSpec& spec = plugin.options[i];
    values[i] = {sizeof(abi::OptionValue), spec.type, spec.default_integer, spec.default_real, spec.default_text};
    if (std::string(spec.name) == "storage") values[i].text = storage.c_str();
    const auto given = options.find(spec.name);
    if (given != options.end()) {
      values[i].integer = given->second;
      ++used;
    }
  }
  EXPECT_EQ(used, options.size()) << "an option that " << name << " does not have";
  const abi::Options all{sizeof(abi::Options), plugin.option_count, values.data()};
  Text error;
  void* instance = nullptr;
  if (plugin.create(&tiny_host(), &all, &instance, error.sink()) != abi::Status::ok)
    throw std::runtime_error(error.lines);
  // The deleter of an abstract class with a protected destructor must know the library; one for each policy.
  if (name == "static")
    return {static_cast<abi::KvCache*>(instance), [](abi::KvCache* it) { descriptor("static").destroy(it); }};
  if (name == "ring")
    return {static_cast<abi::KvCache*>(instance), [](abi::KvCache* it) { descriptor("ring").destroy(it); }};
  return {static_cast<abi::KvCache*>(instance), [](abi::KvCache* it) { descriptor("paged").destroy(it); }};
}

abi::KvProblem make_problem(std::int64_t window, std::int64_t max_sequences, std::int64_t max_context,
                            std::int64_t max_chunk) {
  abi::KvProblem problem{};
  problem.size = sizeof problem;
  problem.device = abi::Device::cpu;
  problem.layer_count = 2;
  problem.kv_heads = 2;
  problem.head_dim = 3;  // odd on purpose: blocks need padding
  problem.window = window;
  problem.max_sequences = max_sequences;
  problem.max_context = max_context;
  problem.max_chunk = max_chunk;
  problem.max_step_tokens = std::min<std::int64_t>(max_sequences * max_chunk, 2147483647);
  return problem;
}

Cache::Cache(Instance instance, const abi::KvProblem& problem, abi::KvOrder order)
    : instance_(std::move(instance)), problem_(problem) {
  abi::KvLayout layouts[4];
  const std::uint32_t count = instance_->layouts(problem, layouts, 4);
  const abi::KvLayout* chosen = nullptr;
  for (std::uint32_t i = 0; i < count; ++i)
    if (layouts[i].order == order) chosen = &layouts[i];
  Text text;
  if (chosen == nullptr) {
    instance_->supports(problem, text.sink());
    throw std::runtime_error("no layout: " + text.lines);
  }
  if (instance_->plan(problem, *chosen, &plan_, text.sink()) != abi::Status::ok) throw std::runtime_error(text.lines);
  memory_.assign(plan_.pool_bytes + 2 * kGuard + plan_.pool_alignment, kGuardByte);
  const auto start = reinterpret_cast<std::uintptr_t>(memory_.data()) + kGuard;
  pool_ = memory_.data() + kGuard + (plan_.pool_alignment - start % plan_.pool_alignment) % plan_.pool_alignment;
  std::memset(pool_, 0xff, plan_.pool_bytes);  // NaN as float and as bf16
  if (instance_->bind(plan_, {pool_, plan_.pool_bytes}, text.sink()) != abi::Status::ok)
    throw std::runtime_error(text.lines);
}

Cache::~Cache() {
  EXPECT_TRUE(guards_intact()) << "bytes around the pool changed";
  instance_->release(&plan_);
}

bool Cache::guards_intact() const {
  for (const unsigned char* p = memory_.data(); p < pool_; ++p)
    if (*p != kGuardByte) return false;
  for (const unsigned char* p = pool_ + plan_.pool_bytes; p < memory_.data() + memory_.size(); ++p)
    if (*p != kGuardByte) return false;
  return true;
}

abi::KvUsage Cache::usage() const {
  abi::KvUsage usage;
  std::memset(&usage, 0xff, sizeof usage);
  instance_->usage(&usage);
  return usage;
}

std::int64_t Cache::match(const Tokens& tokens, std::int64_t limit, std::uint64_t salt) const {
  return instance_->match(tokens.data(), static_cast<std::int64_t>(tokens.size()), salt, limit);
}

abi::Status Cache::open(std::uint64_t sequence, const Tokens& tokens, std::int64_t reuse, std::uint64_t salt) {
  Text text;
  const abi::Status status = instance_->open(sequence, tokens.data(), reuse, salt, text.sink());
  error_ = text.lines;
  return status;
}

abi::Status Cache::reserve(std::uint64_t sequence, std::int64_t count) {
  Text text;
  const abi::Status status = instance_->reserve(sequence, count, text.sink());
  error_ = text.lines;
  return status;
}

abi::Status Cache::commit(std::uint64_t sequence, const Tokens& tokens) {
  Text text;
  const abi::Status status =
      instance_->commit(sequence, tokens.data(), static_cast<std::int64_t>(tokens.size()), text.sink());
  error_ = text.lines;
  return status;
}

abi::Status Cache::rollback(std::uint64_t sequence, std::int64_t count) {
  Text text;
  const abi::Status status = instance_->rollback(sequence, count, text.sink());
  error_ = text.lines;
  return status;
}

abi::Status Cache::begin_step(const std::vector<std::uint64_t>& sequences) {
  Text text;
  const abi::Status status =
      instance_->begin_step(sequences.data(), static_cast<std::int32_t>(sequences.size()), text.sink());
  error_ = text.lines;
  return status;
}

abi::KvView Cache::step(const std::vector<std::uint64_t>& sequences, std::int64_t layer) {
  EXPECT_EQ(begin_step(sequences), abi::Status::ok) << error_;
  abi::KvView view{};
  Text text;
  EXPECT_EQ(instance_->view(layer, &view, text.sink()), abi::Status::ok) << text.lines;
  return view;
}

std::vector<std::int32_t> Cache::table(std::uint64_t sequence) {
  const abi::KvView view = step({sequence});
  return {view.block_table, view.block_table + view.table_stride};
}

abi::Status Cache::feed(std::uint64_t sequence, const Tokens& prefix, const Tokens& tokens, std::uint64_t salt) {
  const abi::Status status = reserve(sequence, static_cast<std::int64_t>(tokens.size()));
  if (status != abi::Status::ok) return status;
  step({sequence});
  const auto held = static_cast<std::int64_t>(prefix.size());
  write(0, held, held + static_cast<std::int64_t>(tokens.size()), joined(prefix, tokens), salt);
  return commit(sequence, tokens);
}

void Cache::write(std::int64_t index, std::int64_t begin, std::int64_t end, const Tokens& tokens, std::uint64_t salt) {
  for (std::int64_t layer = 0; layer < problem_.layer_count; ++layer) {
    abi::KvView view{};
    Text text;
    ASSERT_EQ(instance_->view(layer, &view, text.sink()), abi::Status::ok) << text.lines;
    for (std::int64_t position = begin; position < end; ++position) {
      ASSERT_TRUE(is_resident(view, index, position)) << "position " << position << " has no block to write to";
      const sdk::KvRun run = sdk::kv_run(view, index, position, position + 1);
      const std::uint64_t content = row_content(tokens, position, salt);
      for (std::int64_t head = 0; head < view.kv_heads; ++head) {
        for (std::int64_t d = 0; d < view.head_dim; ++d) {
          const std::int64_t offset = run.offset + head * view.head_stride + d;
          if (d < sdk::key_width(view.head_dim, view.key_channels))
            store(view, view.keys, offset, element_value(content, layer, false, head, d));
          store(view, view.values, offset, element_value(content, layer, true, head, d));
        }
        if (view.key_scales == nullptr) continue;
        const std::int64_t offset = run.scale_offset + head * view.scale_head_stride;
        view.key_scales[offset] = scale_value(content, layer, false, head);
        view.value_scales[offset] = scale_value(content, layer, true, head);
      }
    }
  }
}

std::vector<std::int64_t> Cache::wrong_rows(std::int64_t index, std::int64_t begin, std::int64_t end,
                                            const Tokens& tokens, std::uint64_t salt) {
  std::vector<std::int64_t> wrong;
  for (std::int64_t position = begin; position < end; ++position) {
    const std::uint64_t content = row_content(tokens, position, salt);
    bool right = true;
    for (std::int64_t layer = 0; layer < problem_.layer_count && right; ++layer) {
      abi::KvView view{};
      Text text;
      EXPECT_EQ(instance_->view(layer, &view, text.sink()), abi::Status::ok) << text.lines;
      right = is_resident(view, index, position);
      if (!right) break;
      const sdk::KvRun run = sdk::kv_run(view, index, position, position + 1);
      for (std::int64_t head = 0; head < view.kv_heads; ++head) {
        for (std::int64_t d = 0; d < view.head_dim; ++d) {
          const std::int64_t offset = run.offset + head * view.head_stride + d;
          // Comparisons are false for NaN, so a row that was never written is wrong.
          const bool in_key = d < sdk::key_width(view.head_dim, view.key_channels);
          right = right &&
                  (!in_key || fetch(view, view.keys, offset) ==
                                  static_cast<float>(element_value(content, layer, false, head, d))) &&
                  fetch(view, view.values, offset) == static_cast<float>(element_value(content, layer, true, head, d));
        }
        if (view.key_scales == nullptr) continue;
        const std::int64_t offset = run.scale_offset + head * view.scale_head_stride;
        right = right && view.key_scales[offset] == scale_value(content, layer, false, head) &&
                view.value_scales[offset] == scale_value(content, layer, true, head);
      }
    }
    if (!right) wrong.push_back(position);
  }
  return wrong;
}

std::uint64_t row_content(const Tokens& tokens, std::int64_t position, std::uint64_t salt) {
  std::uint64_t content = mixed(salt + 77);
  for (std::int64_t i = 0; i <= position; ++i)
    content = mixed(content * 31 + static_cast<std::uint32_t>(tokens[static_cast<std::size_t>(i)]) + 1);
  return content;
}

Tokens some_tokens(std::int64_t count, std::int32_t seed) {
  Tokens tokens(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = seed * 1000 + static_cast<std::int32_t>(i);
  return tokens;
}

Tokens slice(const Tokens& tokens, std::int64_t begin, std::int64_t end) {
  return {tokens.begin() + begin, tokens.begin() + end};
}

Tokens joined(const Tokens& left, const Tokens& right) {
  Tokens both = left;
  both.insert(both.end(), right.begin(), right.end());
  return both;
}

}  // namespace facet::kvtest
