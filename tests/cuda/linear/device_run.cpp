#include "device_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace facet::test {

namespace {

constexpr std::uint64_t kGuard = 4096;
constexpr int kCanary = 0x7f;  // 3e38 as float and as bf16: a read past the end shows in the result

}  // namespace

std::string missing_device() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess) return cudaGetErrorString(result);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  if (properties.major == 9 && properties.minor == 0) return {};
  return "device 0 has compute capability " + std::to_string(properties.major) + "." +
         std::to_string(properties.minor) + ", the kernels need 9.0";
}

void check(cudaError_t result, const char* what) {
  if (result != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(result));
}

DeviceBytes::DeviceBytes(std::uint64_t bytes) : bytes_(bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes + 2 * kGuard), "cudaMalloc");
  base_ = static_cast<std::uint8_t*>(memory);
  data_ = base_ + kGuard;
  check(cudaMemset(base_, kCanary, bytes + 2 * kGuard), "cudaMemset");
  poison();
}

DeviceBytes::~DeviceBytes() {
  cudaFree(base_);
}

void DeviceBytes::poison() const {
  check(cudaMemset(data_, 0xff, bytes_), "cudaMemset");
}

void DeviceBytes::write(const void* source, std::uint64_t bytes) const {
  check(cudaMemcpy(data_, source, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
}

std::vector<std::uint8_t> DeviceBytes::read() const {
  std::vector<std::uint8_t> bytes(bytes_);
  check(cudaMemcpy(bytes.data(), data_, bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return bytes;
}

bool DeviceBytes::intact() const {
  std::vector<std::uint8_t> guards(2 * kGuard);
  check(cudaMemcpy(guards.data(), base_, kGuard, cudaMemcpyDeviceToHost), "cudaMemcpy");
  check(cudaMemcpy(guards.data() + kGuard, data_ + bytes_, kGuard, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return std::all_of(guards.begin(), guards.end(), [](std::uint8_t byte) { return byte == kCanary; });
}

abi::LinearProblem device_problem(const DeviceProblem& problem) {
  abi::LinearProblem made{};
  made.size = sizeof made;
  made.device = abi::Device::cuda;
  made.weight = problem.shape.format;
  made.role = problem.role;
  made.out_features = problem.shape.out_features;
  made.in_features = problem.shape.in_features;
  made.group_size = problem.shape.format == abi::WeightFormat::bf16 ? 0 : problem.shape.group_size;
  made.symmetric = problem.shape.symmetric || problem.shape.format == abi::WeightFormat::bf16 ? 1 : 0;
  made.input = abi::DType::bf16;
  made.output = problem.output;
  made.layer = 3;
  made.min_rows = problem.min_rows;
  made.max_rows = problem.max_rows;
  made.fusions = problem.fusions;
  return made;
}

DeviceMatrix::DeviceMatrix(const LoadedPlugin& plugin, const DeviceProblem& problem,
                           const std::vector<RandomPart>& parts)
    : plugin_(plugin), problem_(problem) {
  std::vector<abi::WeightView> views;
  for (const RandomPart& part : parts) views.push_back(part.view());
  Text error;
  if (plugin.linear().plan(device_problem(problem), &plan_, error.sink()) != abi::Status::ok)
    throw std::runtime_error("plan: " + error.text);
  packed_ = std::make_unique<DeviceBytes>(plan_.packed_bytes);
  if (plugin.linear().pack(plan_, views.data(), static_cast<std::uint32_t>(views.size()), packed_->memory(),
                           error.sink()) != abi::Status::ok)
    throw std::runtime_error("pack: " + error.text);
  EXPECT_TRUE(packed_->intact()) << "pack wrote outside its memory";
}

DeviceMatrix::~DeviceMatrix() {
  plugin_.linear().release(&plan_);
}

std::int64_t DeviceMatrix::columns() const {
  const bool gate = (problem_.fusions & abi::kFuseGeluGate) != 0;
  return gate ? problem_.shape.out_features / 2 : problem_.shape.out_features;
}

std::vector<float> DeviceMatrix::run(const std::vector<float>& inputs, std::int64_t padding) {
  const std::int64_t in = problem_.shape.in_features;
  const std::int64_t rows = static_cast<std::int64_t>(inputs.size()) / in;
  const std::int64_t stride = in + padding;
  const std::vector<std::uint16_t> bits = to_bf16(inputs);
  // The last row of x ends with its buffer: no padding after it.
  DeviceBytes x(static_cast<std::uint64_t>((rows - 1) * stride + in) * 2);
  for (std::int64_t row = 0; row < rows; ++row)
    check(cudaMemcpy(x.data() + row * stride * 2, bits.data() + row * in, static_cast<std::size_t>(in) * 2,
                     cudaMemcpyHostToDevice),
          "cudaMemcpy");
  abi::LinearArgs args{};
  args.rows = rows;
  args.input = x.data();
  args.input_stride = stride;
  std::vector<float> outputs = run_args(args, padding);
  EXPECT_TRUE(x.intact());
  return outputs;
}

std::vector<float> DeviceMatrix::run(ResidualInputs& residual, std::int64_t rows) {
  const auto count = static_cast<std::uint64_t>(rows * problem_.shape.in_features);
  const auto inputs = static_cast<std::uint64_t>(problem_.shape.in_features);
  const DeviceBytes hidden(count * 4);
  const DeviceBytes update(count * 2);
  const DeviceBytes post(inputs * 4);
  const DeviceBytes next(inputs * 4);
  const DeviceBytes out(count * 4);
  hidden.write(residual.hidden.data(), count * 4);
  next.write(residual.next_norm.data(), inputs * 4);
  const bool updated = !residual.update.empty();
  if (updated) {
    update.write(to_bf16(residual.update).data(), count * 2);
    post.write(residual.post_norm.data(), inputs * 4);
  }
  abi::LinearResidual made{};
  made.size = sizeof made;
  made.epsilon = residual.epsilon;
  made.scale = residual.scale;
  made.hidden = reinterpret_cast<const float*>(hidden.data());
  made.update = updated ? update.data() : nullptr;
  made.post_norm = updated ? reinterpret_cast<const float*>(post.data()) : nullptr;
  made.next_norm = reinterpret_cast<const float*>(next.data());
  made.hidden_out = reinterpret_cast<float*>(out.data());
  abi::LinearArgs args{};
  args.rows = rows;
  args.residual = &made;
  std::vector<float> outputs = run_args(args, 8);
  EXPECT_TRUE(hidden.intact() && update.intact() && out.intact());
  residual.hidden_out.resize(count);
  std::memcpy(residual.hidden_out.data(), out.read().data(), count * 4);
  return outputs;
}

std::vector<float> DeviceMatrix::run_args(abi::LinearArgs& args, std::int64_t padding) {
  const std::int64_t out = columns();
  const std::int64_t element = problem_.output == abi::DType::f32 ? 4 : 2;
  const std::int64_t stride = out + padding;
  const DeviceBytes y(static_cast<std::uint64_t>(((args.rows - 1) * stride + out) * element));
  const DeviceBytes workspace(plan_.workspace_bytes);
  const std::vector<std::uint8_t> zeros(abi::kCounterBytes);
  const DeviceBytes counters(abi::kCounterBytes);
  counters.write(zeros.data(), abi::kCounterBytes);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  args.size = sizeof args;
  args.stream = {abi::Device::cuda, 0, stream};
  args.output = y.data();
  args.output_stride = stride;
  args.packed = packed_->data();
  args.workspace = workspace.memory();
  args.counters = counters.data();
  Text error;
  const auto run_once = [&] {
    EXPECT_EQ(plugin_.linear().run(plan_, args, error.sink()), abi::Status::ok) << error.text;
  };
  const auto result = [&](const auto& launch) {
    y.poison();
    workspace.poison();
    check(cudaDeviceSynchronize(), "poison");
    launch();
    check(cudaStreamSynchronize(stream), "run");
    EXPECT_EQ(counters.read(), zeros) << "counters are left other than zero";
    return y.read();
  };
  const std::vector<std::uint8_t> first = result(run_once);
  EXPECT_EQ(first, result(run_once)) << "two runs differ";

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  run_once();
  run_once();  // a predecessor in the graph
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  EXPECT_EQ(first, result([&] { check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch"); }))
      << "a graph replay differs from the eager run";
  check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  EXPECT_TRUE(y.intact() && workspace.intact() && counters.intact() && packed_->intact())
      << "run wrote outside its buffers";

  std::vector<float> outputs(static_cast<std::size_t>(args.rows * out));
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const std::uint8_t* source = first.data() + row * stride * element;
    for (std::int64_t column = 0; column < out; ++column) {
      float& output = outputs[static_cast<std::size_t>(row * out + column)];
      if (element == 4) {
        std::memcpy(&output, source + column * 4, 4);
      } else {
        std::uint16_t bits;
        std::memcpy(&bits, source + column * 2, 2);
        output = static_cast<float>(bf16_value(bits));
      }
    }
    if (row + 1 == args.rows) continue;
    const bool untouched =
        std::all_of(source + out * element, source + stride * element, [](std::uint8_t byte) { return byte == 0xff; });
    EXPECT_TRUE(untouched) << "padding of y written";
  }
  return outputs;
}

}  // namespace facet::test
