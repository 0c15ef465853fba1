// The CUDA linear plugins at the shapes of Gemma 4 12B: each alone, and the 192 matrices and head of a token as one
// chain in a graph, every kernel reading its predecessor's output.
//
//   bench_linear_cuda [--json FILE] [--only token,chain,few,tiles,rows,many] [--set option=value] [--tiles
//   option=value]
//
// --set gives options of w4a16_stream, --tiles of w4a16_wgmma.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "matrices.h"

namespace facet::bench {
namespace {

using abi::DType;
using abi::LinearRole;
using abi::WeightFormat;

constexpr std::int64_t kHidden = 3840;
constexpr std::int64_t kInner = 15360;
const Shape kQkvLocal{"qkv_local", LinearRole::qkv, 8192, kHidden};
const Shape kOLocal{"o_local", LinearRole::o, kHidden, 4096};
const Shape kGateUp{"gate_up", LinearRole::gate_up, 2 * kInner, kHidden};
const Shape kDown{"down", LinearRole::down, kHidden, kInner};
const Shape kQkGlobal{"qk_global", LinearRole::qk, 8704, kHidden};
const Shape kOGlobal{"o_global", LinearRole::o, kHidden, 8192};
const Shape kHead{"head", LinearRole::head, 262144, kHidden};

struct Options {
  std::string json;
  std::string only = "few,tiles,rows,many,chain";
  std::map<std::string, std::int64_t> stream;
  std::map<std::string, std::int64_t> tiles;
};

struct Run {
  Options options;
  double read_rate = 0;  // bytes a second
  nlohmann::json rows = nlohmann::json::array();
};

void report(Run& run, const std::string& plugin, const std::string& name, std::int64_t rows, double bytes, double flops,
            const Timing& timing, double launches) {
  const double us = timing.median_us / launches;
  const double floor_us = bytes / run.read_rate * 1e6;
  fmt::print("{:15} {:22} rows {:5} {:10.2f} us ({:.2f}..{:.2f})  floor {:8.2f} us {:5.1f} %  {:7.1f} TFLOP/s\n",
             plugin, name, rows, us, timing.least_us / launches, timing.most_us / launches, floor_us,
             100 * floor_us / us, flops / us * 1e-6);
  std::fflush(stdout);
  run.rows.push_back({{"plugin", plugin},
                      {"name", name},
                      {"rows", rows},
                      {"us", us},
                      {"least_us", timing.least_us / launches},
                      {"most_us", timing.most_us / launches},
                      {"bytes", bytes},
                      {"floor_us", floor_us},
                      {"percent_of_floor", 100 * floor_us / us},
                      {"tflops", flops / us * 1e-6}});
}

// A shape alone: launches one after the other in a graph, each on another copy of the weights.
void bench_shape(Run& run, const CudaPlugin& plugin, const Shape& shape, WeightFormat format,
                 const std::vector<std::int64_t>& rows, std::uint32_t fusions = 0) {
  const double matrix_bytes =
      static_cast<double>(shape.out_features * shape.in_features) * (format == WeightFormat::int4 ? 0.515625 : 2.0);
  const int copies = std::max(2, static_cast<int>(400e6 / matrix_bytes));
  const std::int64_t most = rows.back();
  const DType output = shape.role == LinearRole::head ? DType::f32 : DType::bf16;
  const Matrices matrices(plugin, shape, format, most, output, fusions, copies);
  const DeviceMemory x(static_cast<std::uint64_t>(most * shape.in_features * 2));
  const DeviceMemory y(static_cast<std::uint64_t>(most * shape.out_features * 4));
  const DeviceMemory workspace(std::max<std::uint64_t>(256, matrices.plan().workspace_bytes));
  fill_values(x, true, 1.0f, 99);
  for (const std::int64_t count : rows) {
    const Timing timing = time_graph(
        [&](cudaStream_t stream) {
          for (int copy = 0; copy < copies; ++copy) {
            abi::LinearArgs args{};
            args.rows = count;
            args.input = x.data();
            args.input_stride = shape.in_features;
            args.output = y.data();
            args.output_stride = shape.out_features;
            matrices.run(copy, args, workspace, stream);
          }
        },
        count > 1000 ? 5 : 15);
    const double element = output == DType::f32 ? 4 : 2;
    const double bytes =
        matrix_bytes + static_cast<double>(count) * (static_cast<double>(shape.in_features) * 2 +
                                                     static_cast<double>(shape.out_features) * element);
    report(run, plugin.name(), shape.name + (fusions != 0 ? "+gate" : ""), count, bytes,
           2.0 * static_cast<double>(count * shape.out_features * shape.in_features), timing, copies);
  }
}

// The chain of a token. `norms` fuses the residual norms as a step would; else inputs are taken as they are.
void bench_chain(Run& run, const CudaPlugin& plugin, std::int64_t rows, bool norms, bool head) {
  constexpr int kLayers = 48;
  constexpr int kGlobal = 8;
  const std::uint32_t norm = norms ? abi::kFuseResidualNorm : 0u;
  const auto make = [&](const Shape& shape, std::uint32_t fusions, int copies) {
    return std::make_unique<Matrices>(plugin, shape, WeightFormat::int4, rows,
                                      shape.role == LinearRole::head ? DType::f32 : DType::bf16, fusions, copies);
  };
  const auto qkv = make(kQkvLocal, norm, kLayers - kGlobal);
  const auto qk = make(kQkGlobal, norm, kGlobal);
  const auto o_local = make(kOLocal, 0, kLayers - kGlobal);
  const auto o_global = make(kOGlobal, 0, kGlobal);
  const auto gate_up = make(kGateUp, norm | abi::kFuseGeluGate, kLayers);
  const auto down = make(kDown, 0, kLayers);
  std::unique_ptr<Matrices> logits;
  if (head) logits = make(kHead, norm, 1);

  const auto values = [&](std::int64_t width, int element, float spread) {
    DeviceMemory memory(static_cast<std::uint64_t>(rows * width * element));
    fill_values(memory, element == 2, spread, static_cast<std::uint32_t>(width));
    return memory;
  };
  const DeviceMemory hidden[2] = {values(kHidden, 4, 1.0f), values(kHidden, 4, 1.0f)};
  const DeviceMemory update = values(kHidden, 2, 1.0f);  // of o and down
  const DeviceMemory mixed = values(8704, 2, 1.0f);      // of qkv
  const DeviceMemory inner = values(kInner, 2, 1.0f);    // of gate_up
  const DeviceMemory out = values(kHead.out_features, 4, 1.0f);
  std::uint64_t workspace_bytes = 256;
  for (const Matrices* matrices : {qkv.get(), qk.get(), o_local.get(), o_global.get(), gate_up.get(), down.get()})
    workspace_bytes = std::max(workspace_bytes, matrices->plan().workspace_bytes);
  if (head) workspace_bytes = std::max(workspace_bytes, logits->plan().workspace_bytes);
  const DeviceMemory workspace(workspace_bytes);
  const DeviceMemory weights = values(kHidden, 4, 0.0f);
  const std::vector<float> ones(static_cast<std::size_t>(kHidden), 1.0f);
  require(cudaMemcpy(weights.data(), ones.data(), ones.size() * 4, cudaMemcpyHostToDevice), "cudaMemcpy");

  double bytes = 0;
  double flops = 0;
  const auto body = [&](cudaStream_t stream) {
    int parity = 0;
    int locals = 0;
    int globals = 0;
    const auto step = [&](const Matrices& matrices, const Shape& shape, int copy, const DeviceMemory& input,
                          std::int64_t input_width, const DeviceMemory& output, std::int64_t output_width, bool normed,
                          bool updated) {
      abi::LinearResidual residual{};
      residual.size = sizeof residual;
      residual.epsilon = 1e-6f;
      residual.scale = 0.7f;
      residual.hidden = reinterpret_cast<const float*>(hidden[parity].data());
      residual.next_norm = reinterpret_cast<const float*>(weights.data());
      if (updated) {
        residual.update = update.data();
        residual.post_norm = residual.next_norm;
        residual.hidden_out = reinterpret_cast<float*>(hidden[1 - parity].data());
      }
      abi::LinearArgs args{};
      args.rows = rows;
      args.input = input.data();
      args.input_stride = input_width;
      args.output = output.data();
      args.output_stride = output_width;
      if (normed && norms) {
        args.residual = &residual;
        args.input = nullptr;
        if (updated) parity = 1 - parity;
      }
      matrices.run(copy, args, workspace, stream);
      bytes += static_cast<double>(matrices.plan().packed_bytes);
      flops += 2.0 * static_cast<double>(rows * shape.out_features * shape.in_features);
    };
    bytes = flops = 0;
    for (int layer = 0; layer < kLayers; ++layer) {
      const bool global = layer % 6 == 5;
      const int copy = global ? globals++ : locals++;
      if (global) {
        step(*qk, kQkGlobal, copy, update, kHidden, mixed, 8704, true, layer > 0);
        step(*o_global, kOGlobal, copy, mixed, 8704, update, kHidden, false, false);
      } else {
        step(*qkv, kQkvLocal, copy, update, kHidden, mixed, 8704, true, layer > 0);
        step(*o_local, kOLocal, copy, mixed, 8704, update, kHidden, false, false);
      }
      step(*gate_up, kGateUp, layer, update, kHidden, inner, kInner, true, true);
      step(*down, kDown, layer, inner, kInner, update, kHidden, false, false);
    }
    if (head) step(*logits, kHead, 0, update, kHidden, out, kHead.out_features, true, true);
  };
  const Timing timing = time_graph(body, 30);
  report(run, plugin.name(), fmt::format("chain{}{}", norms ? "+norms" : "", head ? "+head" : ""), rows, bytes, flops,
         timing, 1.0);
  // Without norms the gates make activations grow or vanish layer by layer.
  if (norms && (!all_finite(hidden[0], false) || !all_finite(update, true)))
    throw std::runtime_error("the chain's activations are not finite");
}

void bench_few(Run& run) {
  const CudaPlugin stream("w4a16_stream", run.options.stream);
  for (const Shape& shape : {kQkvLocal, kOLocal, kGateUp, kDown, kQkGlobal, kOGlobal, kHead})
    bench_shape(run, stream, shape, WeightFormat::int4, {1, 2, 4, 8});
}

// More rows than the stream takes, up to where unpacking the matrix first is faster.
void bench_tiles(Run& run) {
  const CudaPlugin wgmma("w4a16_wgmma", run.options.tiles);
  const CudaPlugin unpacked("dequant_cublas", {});
  const std::vector<std::int64_t> decoding{8, 16, 32, 48, 64};
  const std::vector<std::int64_t> prompts{96, 128, 256, 512, 768, 1024, 1536, 2048};
  for (const Shape& shape : {kQkvLocal, kOLocal, kGateUp, kDown, kQkGlobal, kOGlobal, kHead})
    bench_shape(run, wgmma, shape, WeightFormat::int4, decoding);
  bench_shape(run, wgmma, kGateUp, WeightFormat::int4, decoding, abi::kFuseGeluGate);
  for (const Shape& shape : {kQkvLocal, kOLocal, kGateUp, kDown}) {
    bench_shape(run, wgmma, shape, WeightFormat::int4, prompts);
    bench_shape(run, unpacked, shape, WeightFormat::int4, prompts);
  }
}

// A token's chain for several sequences at once.
void bench_chain_rows(Run& run) {
  const CudaPlugin stream("w4a16_stream", run.options.stream);
  const CudaPlugin wgmma("w4a16_wgmma", run.options.tiles);
  for (const std::int64_t rows : {1, 2, 4, 8}) bench_chain(run, stream, rows, false, true);
  for (const std::int64_t rows : {8, 16, 32, 64}) bench_chain(run, wgmma, rows, false, true);
}

void bench_many(Run& run) {
  const std::vector<std::int64_t> rows{128, 256, 512, 1024, 1536, 2048, 8192};
  for (const Shape& shape : {kQkvLocal, kOLocal, kGateUp, kDown}) {
    for (const char* name : {"dequant_cublas", "reference_cuda"}) {
      const CudaPlugin plugin(name, {});
      bench_shape(run, plugin, shape, WeightFormat::int4, rows);
    }
    const CudaPlugin dense("dense_cublas", {});
    bench_shape(run, dense, shape, WeightFormat::bf16, {1, 16, 64, 128, 256, 512, 2048, 8192});
  }
}

void bench_chains(Run& run) {
  const CudaPlugin stream("w4a16_stream", run.options.stream);
  for (const std::int64_t rows : {1, 2}) bench_chain(run, stream, rows, true, true);
  if (run.options.only.find("chain") == std::string::npos) return;
  bench_chain(run, stream, 1, true, false);
  bench_chain(run, stream, 1, false, true);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i];
    const std::string value = argv[i + 1];
    if (key == "--json") {
      options.json = value;
    } else if (key == "--only") {
      options.only = value;
    } else if ((key == "--set" || key == "--tiles") && value.find('=') != std::string::npos) {
      auto& target = key == "--set" ? options.stream : options.tiles;
      target[value.substr(0, value.find('='))] = std::atoll(value.c_str() + value.find('=') + 1);
    } else {
      throw std::runtime_error("unknown argument " + key);
    }
  }
  return options;
}

void write_json(const Run& run, int argc, char** argv) {
  cudaDeviceProp device{};
  require(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  std::string command;
  for (int i = 0; i < argc; ++i) command += (i == 0 ? "" : " ") + std::string(argv[i]);
  const nlohmann::json document{
      {"machine",
       {{"gpu", device.name}, {"multiprocessors", device.multiProcessorCount}, {"l2_bytes", device.l2CacheSize}}},
      {"command", command},
      {"read_tb_s", run.read_rate * 1e-12},
      {"method",
       "median of CUDA graph replays behind a delay kernel; launches of a graph rotate through copies of the "
       "weights of 400 MB or more together; floor: bytes at the read rate of the same run"},
      {"results", run.rows}};
  std::ofstream(run.options.json) << document.dump(1) << '\n';
}

int bench(int argc, char** argv) {
  Run run;
  run.options = parse(argc, argv);
  {
    const DeviceMemory memory(std::uint64_t{4} << 30);
    fill_values(memory, false, 1.0f, 5);
    run.read_rate = read_rate(memory);
  }
  fmt::print("read {:.3f} TB/s\n", run.read_rate * 1e-12);
  const auto wanted = [&](const char* part) { return run.options.only.find(part) != std::string::npos; };
  if (wanted("token") || wanted("chain")) bench_chains(run);
  if (wanted("few")) bench_few(run);
  if (wanted("tiles")) bench_tiles(run);
  if (wanted("rows")) bench_chain_rows(run);
  if (wanted("many")) bench_many(run);
  if (!run.options.json.empty()) write_json(run, argc, argv);
  return 0;
}

}  // namespace
}  // namespace facet::bench

int main(int argc, char** argv) {
  try {
    return facet::bench::bench(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_linear_cuda: {}\n", error.what());
    return 1;
  }
}
