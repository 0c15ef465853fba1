// Attention at the shapes of the 12B model. Decode: GB/s of K and V read beside the read bandwidth of the machine.
// Prefill: GFLOP/s of the visible work (4 head_dim a query head and key) beside its fp32 FMA peak.
#include <benchmark/benchmark.h>
#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>

#include "facet/abi/attention.h"
#include "facet/sdk/kv_rows.h"
#include "limits.h"

namespace facet::bench {
namespace {

// FACET_BENCH_WORKERS=1 measures one core by its processor time, which other load on the machine hardly disturbs.
std::uint32_t worker_count() {
  const char* text = std::getenv("FACET_BENCH_WORKERS");
  return text != nullptr ? static_cast<std::uint32_t>(std::max(1, std::atoi(text)))
                         : std::max(1u, std::thread::hardware_concurrency());
}

struct Machine {
  PoolHost host{worker_count(), machine_features()};
  double read_gb = read_bandwidth(host);
  double fma_gflop = fma_peak(host);
};

Machine& machine() {
  static Machine only;
  return only;
}

// One layer of Gemma 4 12B.
struct Layer {
  std::int64_t kv_heads;
  std::int64_t head_dim;
  std::int64_t window;
  std::int64_t key_channels = 0;  // more than 0: the shared form of the cache
};
constexpr Layer kSliding{8, 256, 1024};
constexpr Layer kGlobal{1, 512, 0};
constexpr Layer kShared{1, 512, 0, 128};
constexpr std::int64_t kQueryHeads = 16;

// bf16 K and V of several layers, so that a decode step finds them in memory and not in the cache of the processor.
class Caches {
 public:
  Caches(const Layer& layer, abi::KvOrder order, std::int64_t rows, std::int64_t count) : layer_(layer) {
    view_.size = sizeof view_;
    view_.layout.size = sizeof view_.layout;
    view_.layout.addressing = layer.window > 0 ? abi::KvAddressing::ring : abi::KvAddressing::paged;
    view_.layout.order = order;
    view_.layout.element = abi::DType::bf16;
    view_.layout.block_rows = static_cast<std::uint32_t>(layer.window > 0 ? rows : 64);
    view_.layout.alignment = 64;
    view_.ring_rows = layer.window > 0 ? rows : 0;
    view_.kv_heads = layer.kv_heads;
    view_.head_dim = layer.head_dim;
    view_.key_channels = layer.key_channels;
    const sdk::KvStrides strides =
        sdk::kv_strides(view_.layout, layer.kv_heads, sdk::kv_row_width(layer.head_dim, layer.key_channels));
    view_.block_stride = strides.block;
    view_.row_stride = strides.row;
    view_.head_stride = strides.head;
    const std::int64_t blocks = sdk::ceil_div(rows, view_.layout.block_rows);
    for (std::int64_t block = 0; block < blocks; ++block) table_.push_back(static_cast<std::int32_t>(block));
    view_.block_table = table_.data();
    view_.table_stride = blocks;
    std::mt19937 random(7);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    for (std::int64_t i = 0; i < (shared() ? 1 : 2) * count; ++i) {
      std::vector<std::uint16_t> pool(static_cast<std::size_t>(blocks * strides.block));
      for (std::size_t j = 0; j < pool.size(); ++j) {
        pool[j] = j < 65536 ? sdk::float_to_bf16(uniform(random)) : pool[j - 65536];
      }
      pools_.push_back(std::move(pool));
    }
  }
  const abi::KvView& next() {
    view_.values = pools_[turn_].data();
    view_.keys = shared() ? pools_[turn_].data() + layer_.head_dim : pools_[turn_ + 1].data();
    turn_ = (turn_ + (shared() ? 1 : 2)) % pools_.size();
    return view_;
  }
  const abi::KvLayout& layout() const { return view_.layout; }

 private:
  bool shared() const { return layer_.key_channels > 0; }

  Layer layer_;
  abi::KvView view_{};
  std::vector<std::int32_t> table_;
  std::vector<std::vector<std::uint16_t>> pools_;
  std::size_t turn_ = 0;
};

class Plugin {
 public:
  explicit Plugin(const char* name) {
    const std::string file = std::string(FACET_PLUGIN_DIR) + "/attention_" + name + ".so";
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    descriptor_ = reinterpret_cast<abi::EntryFunction>(dlsym(library, abi::kEntrySymbol))();
    std::vector<abi::OptionValue> values;
    for (std::uint32_t i = 0; i < descriptor_->option_count; ++i) {
      const abi::OptionSpec& spec = descriptor_->options[i];
      // FACET_BENCH_QUERY_CHUNK=128 and the like try other values.
      std::string variable = std::string("FACET_BENCH_") + spec.name;
      for (char& c : variable) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      const char* text = std::getenv(variable.c_str());
      values.push_back({sizeof(abi::OptionValue), spec.type, text != nullptr ? std::atoll(text) : spec.default_integer,
                        spec.default_real, spec.default_text});
    }
    const abi::Options options{sizeof(abi::Options), descriptor_->option_count, values.data()};
    void* instance = nullptr;
    if (descriptor_->create(machine().host.table(), &options, &instance, sink()) != abi::Status::ok) {
      throw std::runtime_error("the plugin made no instance");
    }
    instance_ = static_cast<abi::Attention*>(instance);
  }
  ~Plugin() { descriptor_->destroy(instance_); }
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;
  abi::Attention* operator->() const { return instance_; }
  static abi::TextSink sink() {
    return {nullptr, [](void*, const char* text, std::uint64_t size) {
              std::fprintf(stderr, "%.*s\n", static_cast<int>(size), text);
            }};
  }

 private:
  const abi::PluginDescriptor* descriptor_ = nullptr;
  abi::Attention* instance_ = nullptr;
};

// Positions [first, first + tokens) of one sequence; returns visible (query, key) pairs of one head.
double run_step(benchmark::State& state, const char* name, const Layer& layer, abi::KvOrder order, std::int64_t first,
                std::int64_t tokens, std::int64_t caches) {
  const std::int64_t rows = layer.window > 0 ? layer.window + tokens - 1 : first + tokens;
  Caches cache(layer, order, rows, caches);
  const Plugin plugin(name);
  abi::AttentionProblem problem{};
  problem.size = sizeof problem;
  problem.device = abi::Device::cpu;
  problem.input = problem.output = abi::DType::f32;
  problem.query_heads = kQueryHeads;
  problem.kv_heads = layer.kv_heads;
  problem.head_dim = layer.head_dim;
  problem.key_channels = layer.key_channels;
  problem.window = layer.window;
  problem.scale = 0.05f;
  problem.max_step_tokens = tokens;
  problem.max_sequences = 1;
  problem.max_context = first + tokens;
  problem.layout = cache.layout();
  abi::AttentionPlan plan{};
  if (plugin->plan(problem, &plan, Plugin::sink()) != abi::Status::ok) state.SkipWithError("no plan");
  std::vector<std::byte> workspace(plan.workspace_bytes);
  const std::int64_t width = kQueryHeads * layer.head_dim;
  std::vector<float> queries(static_cast<std::size_t>(tokens * width), 0.5f);
  std::vector<float> output(queries.size());
  const std::int32_t token_begin[] = {0, static_cast<std::int32_t>(tokens)};
  const auto first_position = static_cast<std::int32_t>(first);
  const abi::BatchView batch{sizeof batch, 1, tokens, token_begin, &first_position, tokens, first + tokens};
  abi::AttentionArgs args{};
  args.size = sizeof args;
  args.batch = &batch;
  args.queries = queries.data();
  args.query_stride = width;
  args.output = output.data();
  args.output_stride = width;
  args.workspace = {workspace.data(), workspace.size()};
  for (auto _ : state) {
    args.kv = &cache.next();
    if (plugin->run(plan, args, Plugin::sink()) != abi::Status::ok) state.SkipWithError("run failed");
  }
  plugin->release(&plan);
  double pairs = 0.0;
  for (std::int64_t p = first; p < first + tokens; ++p) {
    pairs += static_cast<double>(p + 1 - sdk::window_begin(p, layer.window));
  }
  return pairs;
}

void decode(benchmark::State& state, const char* name, const Layer& layer, abi::KvOrder order) {
  const std::int64_t context = state.range(0);
  const std::int64_t seen = layer.window > 0 ? std::min(layer.window, context) : context;
  const std::int64_t bytes = seen * layer.kv_heads * sdk::key_value_width(layer.head_dim, layer.key_channels) * 2;
  const double pairs = run_step(state, name, layer, order, context - 1, 1, (std::int64_t{256} << 20) / bytes + 1);
  benchmark::DoNotOptimize(pairs);
  using benchmark::Counter;
  const double gb = static_cast<double>(bytes) / 1e9;
  state.counters["GB/s"] = Counter(gb, Counter::kIsIterationInvariantRate);
  state.counters["of_read"] = Counter(gb / machine().read_gb, Counter::kIsIterationInvariantRate);
}

void prefill(benchmark::State& state, const char* name, const Layer& layer, abi::KvOrder order) {
  const double pairs = run_step(state, name, layer, order, 0, state.range(0), 1);
  using benchmark::Counter;
  const double gflop = 4.0 * pairs * static_cast<double>(kQueryHeads * layer.head_dim) / 1e9;
  state.counters["GFLOP/s"] = Counter(gflop, Counter::kIsIterationInvariantRate);
  state.counters["of_peak"] = Counter(gflop / machine().fma_gflop, Counter::kIsIterationInvariantRate);
}

void add(const std::string& name, void (*run)(benchmark::State&, const char*, const Layer&, abi::KvOrder),
         const char* plugin, const Layer& layer, abi::KvOrder order, std::initializer_list<std::int64_t> arguments) {
  auto* entry = benchmark::RegisterBenchmark((std::string(plugin) + "/" + name).c_str(),
                                             [=](benchmark::State& state) { run(state, plugin, layer, order); });
  for (const std::int64_t argument : arguments) entry->Arg(argument);
  entry->Unit(benchmark::kMicrosecond);
  if (worker_count() > 1) entry->UseRealTime();
}

void add_all() {
  const auto head_major = abi::KvOrder::head_major;
  const auto token_major = abi::KvOrder::token_major;
  add("decode/sliding", decode, "flash", kSliding, head_major, {1024, 8192});
  add("decode/sliding_token_major", decode, "flash", kSliding, token_major, {1024, 8192});
  add("decode/global", decode, "flash", kGlobal, head_major, {1024, 8192, 32768});
  add("decode/global_shared", decode, "flash", kShared, head_major, {1024, 8192, 32768});
  add("prefill/sliding", prefill, "flash", kSliding, head_major, {512, 2048});
  add("prefill/sliding_token_major", prefill, "flash", kSliding, token_major, {2048});
  add("prefill/global", prefill, "flash", kGlobal, head_major, {512, 2048});
  add("prefill/global_shared", prefill, "flash", kShared, head_major, {512, 2048});
  add("decode/sliding", decode, "reference", kSliding, head_major, {1024});
  add("decode/global", decode, "reference", kGlobal, head_major, {8192});
  add("prefill/sliding", prefill, "reference", kSliding, head_major, {512});
}

}  // namespace
}  // namespace facet::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const auto& limits = facet::bench::machine();
  benchmark::AddCustomContext("read_GB/s", std::to_string(limits.read_gb));
  benchmark::AddCustomContext("fma_GFLOP/s", std::to_string(limits.fma_gflop));
  benchmark::AddCustomContext("workers", std::to_string(limits.host.table()->worker_count));
  facet::bench::add_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
