// A planned call of a device plugin: workspace full of NaN before every run, guards behind it, eager and as a graph.
#pragma once

#include <gtest/gtest.h>

#include "world.h"

namespace facet::test {

class Runner {
 public:
  Runner(const AttentionPlugin& plugin, const abi::AttentionProblem& problem) : plugin_(plugin) {
    Lines error;
    const abi::Status status = plugin_->plan(problem, &plan_, error.sink());
    if (status != abi::Status::ok) throw std::runtime_error("plan: " + error.joined());
    workspace_ = std::make_unique<DeviceBuffer<std::uint8_t>>(plan_.workspace_bytes + kGuard);
    require_cuda(cudaStreamCreate(&stream_), "cudaStreamCreate");
  }
  ~Runner() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    cudaStreamDestroy(stream_);
    plugin_->release(&plan_);
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  void run(CudaWorld& world) {
    prepare(world);
    launch(world);
    finish();
  }
  // Captures two calls in a row: the second must find what the first left behind in order.
  void capture(CudaWorld& world) {
    cudaGraph_t graph = nullptr;
    require_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin capture");
    launch(world);
    launch(world);
    require_cuda(cudaStreamEndCapture(stream_, &graph), "end capture");
    require_cuda(cudaGraphInstantiate(&graph_, graph, 0), "instantiate");
    cudaGraphDestroy(graph);
  }
  void replay(CudaWorld& world) {
    prepare(world);
    require_cuda(cudaGraphLaunch(graph_, stream_), "replay");
    finish();
  }

 private:
  static constexpr std::size_t kGuard = 4096;

  void prepare(CudaWorld& world) {
    world.poison_output();
    workspace_->fill(0xff);
    require_cuda(cudaDeviceSynchronize(), "poison");
  }
  void launch(CudaWorld& world) {
    abi::AttentionArgs args = world.args();
    args.stream = {abi::Device::cuda, 0, stream_};
    args.workspace = {workspace_->data(), plan_.workspace_bytes};
    Lines error;
    const abi::Status status = plugin_->run(plan_, args, error.sink());
    if (status != abi::Status::ok) throw std::runtime_error("run: " + error.joined());
  }
  void finish() {
    require_cuda(cudaStreamSynchronize(stream_), "the run");
    const std::vector<std::uint8_t> bytes = workspace_->read();
    for (std::size_t i = plan_.workspace_bytes; i < bytes.size(); ++i) {
      ASSERT_EQ(bytes[i], 0xff) << "written " << i - plan_.workspace_bytes << " bytes past the workspace";
    }
  }

  const AttentionPlugin& plugin_;
  abi::AttentionPlan plan_{};
  std::unique_ptr<DeviceBuffer<std::uint8_t>> workspace_;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace facet::test
