// attention/flash_cuda at the shapes of the 12B model, as replays of a CUDA graph of several layers whose caches
// together do not fit the L2. Decode: TB/s of K and V beside the read rate of the device. Prefill: TFLOP/s of the
// visible work.
//
// bench_cuda_attention [--json FILE] [--only decode|prefill] [--prepare] [--shared] [option=value ...]   (options of
// the plugin)
//
// --prepare: decode makes queries and KV rows from projections in the same launch. --shared: bf16 caches of global
// layers have the shared form.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention/pool_host.h"
#include "facet/abi/attention.h"
#include "facet/abi/plugin.h"
#include "facet/sdk/kv_rows.h"
#include "read_rate.h"

namespace facet::bench {
namespace {

constexpr double kReadCeiling = 4.68e12;  // bytes a second, measured once with bulk copies
constexpr double kPeak = 787e12;          // bf16 FLOP a second of an 8192^3 product
constexpr std::int64_t kQueryHeads = 16;
constexpr int kReplays = 11;

struct Layer {
  const char* name;
  std::int64_t kv_heads, head_dim, window;
  std::int64_t key_channels = 0;  // more than 0: the shared form
};
constexpr Layer kSliding{"sliding", 8, 256, 1024};
constexpr Layer kGlobal{"global", 1, 512, 0};

void require(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

abi::TextSink sink() {
  return {nullptr, [](void*, const char* text, std::uint64_t size) {
            std::fprintf(stderr, "%.*s\n", static_cast<int>(size), text);
          }};
}

class Device {
 public:
  explicit Device(std::size_t bytes) : bytes_(bytes) { require(cudaMalloc(&data_, bytes), "cudaMalloc"); }
  ~Device() { cudaFree(data_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  char* data() const { return static_cast<char*>(data_); }
  std::size_t bytes() const { return bytes_; }

  // Random bf16 in [-1, 1) everywhere.
  void fill_random() {
    std::mt19937_64 random(11);
    std::vector<std::uint16_t> values(std::min<std::size_t>(bytes_ / 2, std::size_t{8} << 20));
    for (std::uint16_t& value : values) {
      value = sdk::float_to_bf16(static_cast<float>(random() >> 40) * 0x1p-23f - 1.0f);
    }
    const std::size_t first = values.size() * 2;
    require(cudaMemcpy(data_, values.data(), first, cudaMemcpyHostToDevice), "upload");
    for (std::size_t done = first; done < bytes_; done += first) {
      require(cudaMemcpy(data() + done, data_, std::min(first, bytes_ - done), cudaMemcpyDeviceToDevice), "copy");
    }
  }

 private:
  std::size_t bytes_;
  void* data_ = nullptr;
};

class Plugin {
 public:
  Plugin(const PoolHost& host, const std::map<std::string, std::int64_t>& set) {
    const std::string file = std::string(FACET_PLUGIN_DIR) + "/attention_flash_cuda.so";
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    descriptor_ = reinterpret_cast<abi::EntryFunction>(dlsym(library, abi::kEntrySymbol))();
    std::vector<abi::OptionValue> values;
    for (std::uint32_t i = 0; i < descriptor_->option_count; ++i) {
      const abi::OptionSpec& spec = descriptor_->options[i];
      const auto found = set.find(spec.name);
      values.push_back({sizeof(abi::OptionValue), spec.type, found == set.end() ? spec.default_integer : found->second,
                        spec.default_real, spec.default_text});
    }
    const abi::Options options{sizeof(abi::Options), descriptor_->option_count, values.data()};
    void* instance = nullptr;
    if (descriptor_->create(host.table(), &options, &instance, sink()) != abi::Status::ok) {
      throw std::runtime_error("the plugin made no instance");
    }
    instance_ = static_cast<abi::Attention*>(instance);
  }
  ~Plugin() { descriptor_->destroy(instance_); }
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;
  abi::Attention* operator->() const { return instance_; }

 private:
  const abi::PluginDescriptor* descriptor_ = nullptr;
  abi::Attention* instance_ = nullptr;
};

struct Case {
  std::string phase;
  Layer layer;
  std::int64_t sequences, tokens, context;  // context: rows of a sequence after the step
  abi::DType element = abi::DType::bf16;
};

struct Result {
  double median, least, most;  // microseconds of one layer
  double bytes, flop;
};

struct Memory {
  Device pool, queries, output, workspace, scales;
};

std::int64_t visible_pairs(const Case& c) {
  std::int64_t pairs = 0;
  for (std::int64_t p = c.context - c.tokens; p < c.context; ++p) pairs += p + 1 - sdk::window_begin(p, c.layer.window);
  return pairs * c.sequences;
}

abi::KvView make_view(const Case& c, const Memory& memory) {
  abi::KvView view{};
  view.size = sizeof view;
  view.layout.size = sizeof view.layout;
  const bool ring = c.layer.window > 0;
  view.layout.addressing = ring ? abi::KvAddressing::ring : abi::KvAddressing::paged;
  view.layout.order = abi::KvOrder::head_major;
  view.layout.element = c.element;
  view.layout.scales = c.element == abi::DType::i8 ? abi::KvScales::per_row_head : abi::KvScales::none;
  view.ring_rows = ring ? c.layer.window + c.tokens - 1 : 0;
  view.layout.block_rows = static_cast<std::uint32_t>(ring ? view.ring_rows : 64);
  view.layout.alignment = 64;
  view.kv_heads = c.layer.kv_heads;
  view.head_dim = c.layer.head_dim;
  view.key_channels = c.layer.key_channels;
  const sdk::KvStrides strides =
      sdk::kv_strides(view.layout, c.layer.kv_heads, sdk::kv_row_width(c.layer.head_dim, c.layer.key_channels));
  sdk::set_strides(view, strides);
  view.table_stride = ring ? 1 : sdk::ceil_div(c.context, 64);
  view.key_scales = view.value_scales = reinterpret_cast<float*>(memory.scales.data());
  return view;
}

// Projections, norms and angles are whatever the random queries hold.
abi::AttentionPreparation make_preparation(const Case& c, const Memory& memory) {
  abi::AttentionPreparation preparation{};
  preparation.size = sizeof preparation;
  preparation.values_from_keys = c.layer.window == 0 ? 1 : 0;
  preparation.projections = memory.queries.data();
  preparation.projection_stride =
      (kQueryHeads + (preparation.values_from_keys != 0 ? 1 : 2) * c.layer.kv_heads) * c.layer.head_dim;
  auto* floats = reinterpret_cast<float*>(memory.queries.data() + memory.queries.bytes() / 2);
  preparation.query_norm = floats;
  preparation.key_norm = floats + c.layer.head_dim;
  preparation.rotary_live = c.layer.window == 0 ? c.layer.head_dim / 8 : c.layer.head_dim / 2;
  preparation.cosine = floats + 2 * c.layer.head_dim;
  preparation.sine = preparation.cosine + c.sequences * preparation.rotary_live;
  preparation.epsilon = 1e-6f;
  return preparation;
}

Result measure(const Plugin& plugin, const Case& c, const Memory& memory, cudaStream_t stream, bool prepare) {
  abi::KvView view = make_view(c, memory);
  const std::int64_t blocks = c.sequences * view.table_stride;
  std::vector<std::int32_t> table(static_cast<std::size_t>(blocks));
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i);
  std::vector<std::int32_t> begin, first;
  for (std::int64_t s = 0; s <= c.sequences; ++s) begin.push_back(static_cast<std::int32_t>(s * c.tokens));
  first.assign(static_cast<std::size_t>(c.sequences), static_cast<std::int32_t>(c.context - c.tokens));
  Device arrays((table.size() + begin.size() + first.size()) * 4);
  auto* device = reinterpret_cast<std::int32_t*>(arrays.data());
  std::vector<std::int32_t> all = table;
  all.insert(all.end(), begin.begin(), begin.end());
  all.insert(all.end(), first.begin(), first.end());
  require(cudaMemcpy(device, all.data(), all.size() * 4, cudaMemcpyHostToDevice), "arrays");
  view.block_table = device;
  abi::BatchView batch{};
  batch.size = sizeof batch;
  batch.sequence_count = static_cast<std::int32_t>(c.sequences);
  batch.token_count = c.sequences * c.tokens;
  batch.token_begin = device + table.size();
  batch.first_position = device + table.size() + begin.size();
  batch.max_new_tokens = c.tokens;
  batch.max_rows = c.context;
  abi::AttentionProblem problem{};
  problem.size = sizeof problem;
  problem.device = abi::Device::cuda;
  problem.input = problem.output = abi::DType::bf16;
  problem.query_heads = kQueryHeads;
  problem.kv_heads = c.layer.kv_heads;
  problem.head_dim = c.layer.head_dim;
  problem.key_channels = c.layer.key_channels;
  problem.window = c.layer.window;
  problem.scale = 0.1f;
  problem.max_step_tokens = batch.token_count;
  problem.max_sequences = c.sequences;
  problem.max_context = c.context;
  problem.layout = view.layout;
  problem.fusions = prepare ? abi::kFusePreparation : 0u;
  abi::AttentionPlan plan{};
  if (plugin->plan(problem, &plan, sink()) != abi::Status::ok) throw std::runtime_error("no plan");
  if (plan.workspace_bytes > memory.workspace.bytes()) throw std::runtime_error("the workspace is too small");
  const std::int64_t cache_bytes = blocks * view.block_stride * sdk::element_bytes(c.element);
  const std::int64_t copies = std::clamp<std::int64_t>((std::int64_t{768} << 20) / (2 * cache_bytes), 1, 48);
  if (static_cast<std::size_t>(2 * cache_bytes * copies) > memory.pool.bytes())
    throw std::runtime_error("pool too small");
  abi::AttentionArgs args{};
  args.size = sizeof args;
  args.stream = {abi::Device::cuda, 0, stream};
  args.batch = &batch;
  args.kv = &view;
  args.queries = memory.queries.data();
  args.output = memory.output.data();
  args.query_stride = args.output_stride = kQueryHeads * c.layer.head_dim;
  args.workspace = {memory.workspace.data(), memory.workspace.bytes()};
  const abi::AttentionPreparation preparation = make_preparation(c, memory);
  if (prepare) args.preparation = &preparation;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (std::int64_t copy = 0; copy < copies; ++copy) {
    char* const pool = memory.pool.data() + 2 * copy * cache_bytes;
    const bool shared = c.layer.key_channels > 0;
    view.values = shared ? pool : pool + cache_bytes;
    view.keys = shared ? pool + c.layer.head_dim * sdk::element_bytes(c.element) : pool;
    if (plugin->run(plan, args, sink()) != abi::Status::ok) throw std::runtime_error("run failed");
  }
  require(cudaStreamEndCapture(stream, &graph), "capture");
  require(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
  cudaEvent_t start, stop;
  require(cudaEventCreate(&start), "event");
  require(cudaEventCreate(&stop), "event");
  std::vector<double> times;
  for (int i = -2; i < kReplays; ++i) {
    require(cudaEventRecord(start, stream), "record");
    require(cudaGraphLaunch(replay, stream), "replay");
    require(cudaEventRecord(stop, stream), "record");
    require(cudaEventSynchronize(stop), "the replay");
    float milliseconds = 0.0f;
    require(cudaEventElapsedTime(&milliseconds, start, stop), "elapsed");
    if (i >= 0) times.push_back(static_cast<double>(milliseconds) * 1e3 / static_cast<double>(copies));
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  plugin->release(&plan);
  std::sort(times.begin(), times.end());
  const std::int64_t rows = c.context - sdk::window_begin(c.context - c.tokens, c.layer.window);
  const std::int64_t row_bytes =
      c.layer.kv_heads * (sdk::key_value_width(c.layer.head_dim, c.layer.key_channels) * sdk::element_bytes(c.element) +
                          (c.element == abi::DType::i8 ? 8 : 0));
  const std::int64_t io = batch.token_count * kQueryHeads * c.layer.head_dim * 2 * 2;
  return {times[times.size() / 2], times.front(), times.back(),
          static_cast<double>(rows * row_bytes * c.sequences + io),
          4.0 * static_cast<double>(visible_pairs(c) * kQueryHeads * c.layer.head_dim)};
}

std::vector<Case> cases(const std::string& only, bool shared) {
  std::vector<Case> list;
  Layer global = kGlobal;
  if (shared) global.key_channels = 128;
  if (only != "prefill") {
    for (const std::int64_t sequences : {1, 8, 32, 64}) {
      for (const std::int64_t context : {1024, 8192}) list.push_back({"decode", kSliding, sequences, 1, context});
      for (const std::int64_t context : {1024, 8192, 32768}) list.push_back({"decode", global, sequences, 1, context});
    }
    for (const std::int64_t sequences : {1, 32}) {
      list.push_back({"decode", kSliding, sequences, 1, 8192, abi::DType::i8});
      list.push_back({"decode", kGlobal, sequences, 1, 8192, abi::DType::i8});
    }
  }
  if (only != "decode") {
    for (const Layer& layer : {kSliding, global}) {
      for (const std::int64_t tokens : {1024, 4096, 8192}) list.push_back({"prefill", layer, 1, tokens, tokens});
    }
    list.push_back({"prefill", kSliding, 1, 2048, 16384});
    list.push_back({"prefill", global, 1, 2048, 16384});
  }
  return list;
}

int run(int argc, char** argv) {
  std::string json_file, only;
  bool prepare = false, shared = false;
  std::map<std::string, std::int64_t> set;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--json" && i + 1 < argc) {
      json_file = argv[++i];
    } else if (argument == "--only" && i + 1 < argc) {
      only = argv[++i];
    } else if (argument == "--prepare") {
      prepare = true;
    } else if (argument == "--shared") {
      shared = true;
    } else if (const std::size_t equals = argument.find('='); equals != std::string::npos) {
      set[argument.substr(0, equals)] = std::stoll(argument.substr(equals + 1));
    } else {
      throw std::runtime_error("unknown argument " + argument);
    }
  }
  const PoolHost host(1, 0);
  const Plugin plugin(host, set);
  const double read_rate = measured_read_rate();
  cudaDeviceProp properties{};
  require(cudaGetDeviceProperties(&properties, 0), "properties");
  const std::size_t gib = std::size_t{1} << 30;
  const Memory memory{Device(9 * gib), Device(gib / 4), Device(gib / 4), Device(gib), Device(gib / 16)};
  const_cast<Device&>(memory.pool).fill_random();
  const_cast<Device&>(memory.queries).fill_random();
  require(cudaMemset(memory.scales.data(), 0x3c, memory.scales.bytes()), "scales");  // 0.0115
  cudaStream_t stream = nullptr;
  require(cudaStreamCreate(&stream), "stream");
  std::string json =
      "{\n  \"device\": \"" + std::string(properties.name) + "\",\n  \"command\": \"bench_cuda_attention";
  for (int i = 1; i < argc; ++i) json += std::string(" ") + argv[i];
  char line[512];
  std::snprintf(
      line, sizeof line,
      "\",\n  \"read_TBs\": %.3f,\n  \"floor_read_TBs\": %.2f,\n  \"floor_bf16_TFLOPs\": %.0f,\n  \"replays\": %d,\n"
      "  \"cases\": [",
      read_rate, kReadCeiling / 1e12, kPeak / 1e12, kReplays);
  json += line;
  std::printf("%s, read %.2f TB/s, floors at %.2f TB/s and %.0f TFLOP/s\n", properties.name, read_rate,
              kReadCeiling / 1e12, kPeak / 1e12);
  std::printf("%-8s %-8s %-5s %5s %7s %7s | %9s %9s %9s | %7s %8s | %9s %6s\n", "phase", "layer", "kv", "seqs",
              "tokens", "context", "median us", "min", "max", "TB/s", "TFLOP/s", "floor us", "share");
  bool first = true;
  for (const Case& c : cases(only, shared)) {
    const Result r = measure(plugin, c, memory, stream, prepare && c.phase == "decode");
    const double floor = std::max(r.bytes / kReadCeiling, r.flop / kPeak) * 1e6;
    const char* element = c.element == abi::DType::i8 ? "i8" : c.layer.key_channels > 0 ? "share" : "bf16";
    std::printf("%-8s %-8s %-5s %5lld %7lld %7lld | %9.2f %9.2f %9.2f | %7.2f %8.1f | %9.2f %5.1f%%\n", c.phase.c_str(),
                c.layer.name, element, static_cast<long long>(c.sequences), static_cast<long long>(c.tokens),
                static_cast<long long>(c.context), r.median, r.least, r.most, r.bytes / r.median / 1e6,
                r.flop / r.median / 1e6, floor, 100.0 * floor / r.median);
    std::snprintf(
        line, sizeof line,
        "%s\n    {\"phase\": \"%s\", \"layer\": \"%s\", \"kv\": \"%s\", \"sequences\": %lld, \"tokens\": %lld, "
        "\"context\": %lld, \"median_us\": %.3f, \"min_us\": %.3f, \"max_us\": %.3f, \"bytes\": %.0f, "
        "\"flop\": %.0f, \"floor_us\": %.3f, \"share_of_floor\": %.4f}",
        first ? "" : ",", c.phase.c_str(), c.layer.name, element, static_cast<long long>(c.sequences),
        static_cast<long long>(c.tokens), static_cast<long long>(c.context), r.median, r.least, r.most, r.bytes, r.flop,
        floor, floor / r.median);
    json += line;
    first = false;
  }
  json += "\n  ]\n}\n";
  if (json_file.empty()) return 0;
  std::FILE* file = std::fopen(json_file.c_str(), "w");
  if (file == nullptr) throw std::runtime_error("cannot write " + json_file);
  std::fputs(json.c_str(), file);
  std::fclose(file);
  return 0;
}

}  // namespace
}  // namespace facet::bench

int main(int argc, char** argv) {
  try {
    return facet::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
