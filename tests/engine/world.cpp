#include "world.h"

#include <random>

namespace facet::test {
namespace {

PluginChoice make_choice(const std::string& plugin, const OptionValues& values) {
  PluginChoice choice;
  choice.plugin = plugin;
  choice.key_path = plugin;
  for (const auto& [name, value] : values) choice.options.push_back({name, value, 1, plugin + ".options." + name});
  return choice;
}

OptionSet resolved(const LoadedPlugin& plugin, const PluginChoice& choice) {
  Problems problems;
  OptionSet options = resolve_options(*plugin.descriptor, choice, "test", problems);
  problems.throw_if_any(ErrorKind::config, "the test sets wrong options:");
  return options;
}

KvGroup make_group(PluginRegistry& registry, const WorldOptions& options, bool sliding) {
  OptionValues values = sliding ? options.sliding_options : options.global_options;
  values.emplace("storage", std::string("f32"));
  const std::string& name = sliding ? options.sliding : options.global;
  const LoadedPlugin& plugin = registry.load(abi::PluginKind::kv_cache, name, {});
  KvGroup group;
  group.spec = {sliding ? "sliding" : "global", {sliding ? 0 : 1}, 1, 2, sliding ? options.window : 0};
  group.cache = registry.create<abi::KvCache>(plugin, resolved(plugin, make_choice(name, values)));
  abi::KvProblem problem{};
  problem.size = sizeof problem;
  problem.device = abi::Device::cpu;
  problem.layer_count = 1;
  problem.kv_heads = group.spec.kv_heads;
  problem.head_dim = group.spec.head_dim;
  problem.window = group.spec.window;
  problem.max_sequences = options.max_sequences;
  problem.max_context = options.max_context;
  problem.max_chunk = std::min(options.max_chunk, options.max_context);
  problem.max_step_tokens = options.max_step_tokens;
  SinkText text;
  if (group.cache->supports(problem, text.sink()) == 0) throw_error(ErrorKind::plugin, "{}: {}", name, text.text());
  abi::KvLayout layout{};
  group.cache->layouts(problem, &layout, 1);
  check_call(group.cache->plan(problem, layout, &group.plan, text.sink()), plugin, "planning", text);
  return group;
}

void destroy_nothing(void* /*instance*/) {}

const LoadedPlugin& rogue_plugin() {
  static const abi::PluginDescriptor kDescriptor = [] {
    abi::PluginDescriptor descriptor{};
    descriptor.size = sizeof descriptor;
    descriptor.kind = abi::PluginKind::scheduler;
    descriptor.name = "rogue";
    descriptor.version = "1.2.3";
    descriptor.destroy = destroy_nothing;
    return descriptor;
  }();
  static const LoadedPlugin kPlugin{"scheduler_rogue.so", &kDescriptor, 0};
  return kPlugin;
}

}  // namespace

World::World(const WorldOptions& asked) : options(asked) {
  build_model();
  const LoadedPlugin& plugin = registry->load(abi::PluginKind::scheduler, options.scheduler, {});
  scheduler.plugin = registry->create<abi::Scheduler>(
      plugin, resolved(plugin, make_choice(options.scheduler, options.scheduler_options)));
  engine = std::make_unique<Engine>(
      *model, scheduler,
      EngineLimits{options.max_sequences, options.max_step_tokens, options.max_chunk, options.run_ahead});
}

World::World(const WorldOptions& asked, FunctionScheduler& own) : options(asked) {
  build_model();
  scheduler.plugin = PluginInstance<abi::Scheduler>(&rogue_plugin(), &own);
  engine = std::make_unique<Engine>(
      *model, scheduler,
      EngineLimits{options.max_sequences, options.max_step_tokens, options.max_chunk, options.run_ahead});
}

void World::build_model() {
  services = std::make_unique<HostServices>(1, "generic");
  backend = make_cpu_backend(*services);
  const std::filesystem::path folder = std::filesystem::path(FACET_BINARY_DIR) / "lib/facet/plugins";
  registry = std::make_unique<PluginRegistry>(services->table(), std::vector<std::filesystem::path>{folder});
  std::vector<KvGroup> groups;
  groups.push_back(make_group(*registry, options, true));
  groups.push_back(make_group(*registry, options, false));
  model = std::make_unique<StubModel>(std::move(groups), options.max_sequences, *backend, options.max_step_tokens,
                                      options.window);
}

std::uint64_t World::ask(Ids prompt, std::int64_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return engine->submit(std::move(request));
}

std::map<std::uint64_t, RequestResult> World::finish(std::int64_t most_steps) {
  std::map<std::uint64_t, RequestResult> results;
  for (std::int64_t steps = 0; !engine->idle(); ++steps) {
    if (steps == most_steps) {
      ADD_FAILURE() << "not finished after " << most_steps << " steps";
      break;
    }
    for (RequestResult& result : step()) {
      const std::uint64_t id = result.id;
      EXPECT_TRUE(results.emplace(id, std::move(result)).second) << "request " << id << " has two results";
    }
  }
  return results;
}

std::vector<RequestResult> World::step() {
  engine->step();
  return engine->take_finished();
}

testing::AssertionResult World::nothing_held() const {
  const std::vector<abi::KvUsage> usage = model->kv().usage();
  for (std::size_t g = 0; g < usage.size(); ++g) {
    const abi::KvUsage& now = usage[g];
    if (now.sequences == 0 && now.bytes_used == 0 && now.bytes_reserved == 0 &&
        now.blocks_free + now.blocks_cached == now.blocks_total)
      continue;
    return testing::AssertionFailure() << fmt::format(
               "{}: {} sequences, {} bytes used, {} reserved, {} + {} of {} blocks free or cached",
               model->kv().groups()[g].spec.name, now.sequences, now.bytes_used, now.bytes_reserved, now.blocks_free,
               now.blocks_cached, now.blocks_total);
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult is_undisturbed(const RequestResult& result, std::int64_t window) {
  if (result.finish_reason == FinishReason::error)
    return testing::AssertionFailure() << "request " << result.id << " failed: " << result.error;
  const Ids right = greedy_continuation(result.prompt, static_cast<std::int64_t>(result.ids.size()), window);
  if (result.ids == right) return testing::AssertionSuccess();
  const auto differ = std::mismatch(result.ids.begin(), result.ids.end(), right.begin());
  return testing::AssertionFailure() << fmt::format("request {} (prompt of {}): id {} is {}, alone it is {}", result.id,
                                                    result.prompt.size(), differ.first - result.ids.begin(),
                                                    *differ.first, *differ.second);
}

Ids some_ids(std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed * 7919 + 13);
  Ids ids(static_cast<std::size_t>(count));
  for (std::int32_t& id : ids) id = 1 + static_cast<std::int32_t>(random() % 499);
  return ids;
}

}  // namespace facet::test
