// Libraries stay loaded: threads and instances may outlive every registry, and nothing is leaked on the way.
#include <atomic>
#include <thread>

#include "plugin_fixture.h"

namespace facet {
namespace {

using testing_support::fixture;

class LifetimeTest : public testing_support::PluginTest {};

std::size_t entries(const char* folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder)) ++count;
  return count;
}

// Mappings of files: those of the heap and of thread stacks come and go with the allocator.
std::size_t mappings() {
  std::ifstream in("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(in, line);) count += line.find(".so") != std::string::npos ? 1 : 0;
  return count;
}

abi::Status step(abi::Scheduler& scheduler) {
  abi::SequenceView sequence{};
  sequence.size = sizeof sequence;
  sequence.id = 5;
  sequence.pending_tokens = 9;
  abi::SchedulerView view{};
  view.size = sizeof view;
  view.sequence_count = 1;
  view.sequences = &sequence;
  view.max_chunk = 100;
  abi::StepBuilder builder{};
  builder.size = sizeof builder;
  builder.schedule = [](void*, std::uint64_t, std::int64_t, std::int64_t*) { return abi::ScheduleResult::scheduled; };
  return scheduler.step(view, builder, {nullptr, [](void*, const char*, std::uint64_t) {}});
}

TEST_F(LifetimeTest, ThreadWithPluginThreadLocalEndsAfterTheRegistry) {
  auto plugins = std::make_unique<PluginRegistry>(registry());
  const LoadedPlugin& plugin = plugins->load_file(fixture("scheduler_thread_local_scratch"));
  auto instance = plugins->create<abi::Scheduler>(plugin, OptionSet(*plugin.descriptor));
  std::atomic<bool> called{false};
  std::atomic<bool> go{false};
  std::thread caller([&] {
    EXPECT_EQ(step(*instance.get()), abi::Status::ok);
    called = true;
    called.notify_all();
    go.wait(false);
  });
  called.wait(false);
  instance = {};
  plugins.reset();
  go = true;
  go.notify_all();
  caller.join();  // the destructor of the plugin's thread_local runs here
  EXPECT_STREQ(plugin.descriptor->name, "thread_local_scratch");
}

TEST_F(LifetimeTest, InstancesOutliveTheRegistry) {
  PluginInstance<abi::Scheduler> instance;
  {
    PluginRegistry plugins = registry();
    const LoadedPlugin& plugin = plugins.load_file(fixture("scheduler_minimal"));
    instance = plugins.create<abi::Scheduler>(plugin, OptionSet(*plugin.descriptor));
  }
  ASSERT_TRUE(instance);
  EXPECT_EQ(step(*instance.get()), abi::Status::ok);
  PluginInstance<abi::Scheduler> moved = std::move(instance);
  EXPECT_FALSE(instance);
  EXPECT_EQ(step(*moved.get()), abi::Status::ok);
}

TEST_F(LifetimeTest, ThousandCyclesLeakNoFileNoMappingNoThread) {
  std::size_t files = 0, maps = 0, threads = 0;
  for (int cycle = 0; cycle < 1000; ++cycle) {
    PluginRegistry plugins = registry();
    for (const char* name : {"scheduler_minimal", "scheduler_thread_local_scratch"}) {
      const LoadedPlugin& plugin = plugins.load_file(fixture(name));
      auto instance = plugins.create<abi::Scheduler>(plugin, OptionSet(*plugin.descriptor));
      ASSERT_EQ(step(*instance.get()), abi::Status::ok);
    }
    EXPECT_THROW(plugins.load_file(fixture("unknown_flag")), Error);
    EXPECT_THROW(plugins.load_file(fixture("no_stamp")), Error);
    if (cycle == 1) {
      files = entries("/proc/self/fd");
      maps = mappings();
      threads = entries("/proc/self/task");
    }
  }
  EXPECT_EQ(entries("/proc/self/fd"), files);
  EXPECT_EQ(mappings(), maps);
  EXPECT_EQ(entries("/proc/self/task"), threads);
}

// In a process of its own: exit() while an instance, its host and a thread inside the plugin are alive.
TEST_F(LifetimeTest, ExitWithLiveInstancesIsClean) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        // Never freed, and static so that the leak check sees them as reachable.
        static auto* host = new HostServices(2, "auto");
        static auto* plugins = new PluginRegistry(host->table(), {});
        const LoadedPlugin& plugin = plugins->load_file(fixture("scheduler_thread_local_scratch"));
        static auto instance = plugins->create<abi::Scheduler>(plugin, OptionSet(*plugin.descriptor));
        const bool ok = step(*instance.get()) == abi::Status::ok;
        std::exit(ok ? 0 : 9);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace facet
