// attention/flash_cuda making queries and KV rows itself: the bits of the backend's own preparation and a prepared
// call, in the output, in the cache and around both.
#include "cases.h"

namespace facet::test {
namespace {

using abi::DType;
using abi::KvAddressing;
using abi::KvOrder;

class Prepared : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = no_device_reason();
    if (!reason.empty()) GTEST_SKIP() << reason;
    prepare_ = backend_preparation();
  }
  static const TestHost& host() {
    static const TestHost host(1);
    return host;
  }
  void check(const AttentionPlugin& plugin, const CudaShape& shape, const CudaStorage& storage,
             const std::vector<Piece>& pieces, const PreparedShape& prepared, const std::string& what) {
    if (!drawn(work_of(shape, pieces))) return;
    PreparedWorld(prepare_, plugin, shape, storage, pieces, prepared, base_seed() + pieces.size()).expect_equal(what);
  }

  Prepare prepare_;
};

TEST_F(Prepared, EveryLayoutHeadDimGroupAndElement) {
  const AttentionPlugin plugin("attention_flash_cuda", host());
  int round = 0;
  for (const std::int64_t dim : kHeadDims) {
    for (const KvAddressing addressing : kAddressings) {
      for (const KvOrder order : kOrders) {
        for (const DType element : kElements) {
          for (const std::int64_t group : {1, 2, 16}) {
            const CudaShape shape{2 * group, 2, dim, round % 3 == 0 ? 24 : 0};
            const PreparedShape prepared{round % 2 == 1, round % 5 == 0 ? dim / 8 : dim / 2, round % 4};
            check(plugin, shape, {addressing, order, element, 16, 2},
                  {{70, 1}, {0, 1}, {0, 0}, {9, 1}, {150, 1}, {31, 1}, {0, 0}}, prepared, "layouts");
            ++round;
          }
        }
      }
    }
  }
}

// The two kinds of layers of the 12B model, with contexts around tile, split and window edges; alone and together.
TEST_F(Prepared, ModelShapes) {
  const AttentionPlugin plugin("attention_flash_cuda", host());
  const CudaShape sliding{16, 8, 256, 1024};
  const CudaShape global{16, 1, 512, 0};
  for (const std::int64_t context : {1, 16, 17, 65, 1024, 1025, 3000}) {
    for (const bool together : {false, true}) {
      std::vector<Piece> pieces{{context - 1, 1}};
      if (together) pieces.insert(pieces.end(), {{2 * context, 1}, {0, 0}, {context / 2, 1}, {0, 1}});
      check(plugin, sliding, {KvAddressing::ring}, pieces, {false, 128, together ? 3 : 0}, "sliding");
      check(plugin, sliding, {KvAddressing::paged, KvOrder::head_major, DType::bf16, 64}, pieces,
            {false, 128, together ? 3 : 0}, "sliding, paged");
      check(plugin, global, {KvAddressing::paged, KvOrder::head_major, DType::bf16, 64}, pieces,
            {true, 64, together ? 3 : 0}, "global");
      check(plugin, sliding, {KvAddressing::ring, KvOrder::head_major, DType::i8}, pieces,
            {false, 128, together ? 3 : 0}, "sliding codes");
      check(plugin, global, {KvAddressing::paged, KvOrder::head_major, DType::i8, 64}, pieces,
            {true, 64, together ? 3 : 0}, "global codes");
    }
  }
}

// The shared form of the cache: queries that bring the weights, and keys of which a part is written.
TEST_F(Prepared, SharedForm) {
  const AttentionPlugin plugin("attention_flash_cuda", host());
  for (const auto& [dim, channels] : {std::pair{128, 32}, {512, 128}}) {
    for (const KvAddressing addressing : kAddressings) {
      for (const KvOrder order : kOrders) {
        for (const std::int64_t group : {1, 2, 16}) {
          check(plugin, {2 * group, 2, dim, group == 2 ? 24 : 0, 4.0f, channels},
                {addressing, order, DType::bf16, 16, 2}, {{70, 1}, {0, 1}, {0, 0}, {9, 1}, {150, 1}, {31, 1}},
                {true, channels / 2, group % 4}, "shared form");
        }
      }
    }
  }
  const CudaShape global{16, 1, 512, 0, 4.0f, 128};
  for (const std::int64_t context : {1, 16, 17, 65, 1024, 1025, 3000}) {
    for (const bool together : {false, true}) {
      std::vector<Piece> pieces{{context - 1, 1}};
      if (together) pieces.insert(pieces.end(), {{2 * context, 1}, {0, 0}, {context / 2, 1}, {0, 1}});
      check(plugin, global, {KvAddressing::paged, KvOrder::head_major, DType::bf16, 64}, pieces,
            {true, 64, together ? 3 : 0}, "shared form of the model");
    }
  }
}

// Angles of any count and at any address.
TEST_F(Prepared, AnglesThatDoNotComeInFours) {
  const AttentionPlugin plugin("attention_flash_cuda", host());
  for (const std::int64_t dim : kHeadDims) {
    for (const std::int64_t live : {std::int64_t{0}, std::int64_t{1}, std::int64_t{6}, dim / 2 - 1}) {
      check(plugin, {4, 2, dim, 0}, {}, {{40, 1}, {7, 1}}, {false, live, 1}, "angles");
    }
    check(plugin, {4, 2, dim, 0}, {}, {{40, 1}, {7, 1}}, {false, dim / 2, 1, false}, "angles off their alignment");
  }
}

// Shares of more tiles than stages, one block or many, whatever holds the newest key.
TEST_F(Prepared, RandomBatches) {
  std::mt19937_64 random(base_seed());
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int round = 0; round < 60; ++round) {
    const std::int64_t longest_split = round % 2 == 0 ? 20 : 200;
    const AttentionPlugin plugin(
        "attention_flash_cuda", host(),
        {{"split_keys", 16 * pick(1, longest_split)}, {"cluster_blocks", std::int64_t{1} << pick(0, 4)}});
    const std::int64_t kv_heads = pick(1, 4);
    CudaShape shape{kv_heads * pick(1, 16), kv_heads, kHeadDims[pick(0, 4)], pick(0, 2) * pick(1, 600)};
    const bool shared = (shape.head_dim == 128 || shape.head_dim == 512) && pick(0, 1) == 1;
    if (shared) shape.key_channels = shape.head_dim / 4;
    CudaStorage storage{kAddressings[pick(0, 2)], kOrders[pick(0, 1)], kElements[pick(0, 3) / 3],
                        static_cast<std::uint32_t>(pick(1, 80)), pick(0, 70)};
    std::vector<Piece> pieces;
    for (std::int64_t i = pick(1, 9); i > 0; --i) pieces.push_back({pick(0, 1500), pick(0, 4) > 0 ? 1 : 0});
    PreparedShape prepared{pick(0, 1) == 1, pick(0, shape.head_dim / 2), pick(0, 3)};
    if (shared) {
      storage.element = DType::bf16;
      prepared.values_from_keys = true;
      prepared.live = shape.key_channels / 2;
    }
    if (!drawn(work_of(shape, pieces))) continue;
    PreparedWorld(prepare_, plugin, shape, storage, pieces, prepared, random())
        .expect_equal("round " + std::to_string(round) + " of base seed " + std::to_string(base_seed()));
  }
}

// One graph, captured within bounds, serves other positions and sequences behind the same pointers.
TEST_F(Prepared, GraphFollowsTheArrays) {
  const AttentionPlugin plugin("attention_flash_cuda", host());
  for (const CudaShape& shape : {CudaShape{16, 8, 256, 200}, CudaShape{16, 1, 512, 0}, CudaShape{4, 4, 64, 0},
                                 CudaShape{16, 1, 512, 0, 4.0f, 128}}) {
    const std::int64_t live = shape.key_channels > 0 ? shape.key_channels / 2 : shape.head_dim / 4;
    const std::vector<Piece> widest = {{900, 1}, {899, 1}, {999, 1}, {17, 1}};
    if (!drawn(work_of(shape, widest))) continue;
    PreparedWorld world(prepare_, plugin, shape, {KvAddressing::paged, KvOrder::head_major, DType::bf16, 32}, widest,
                        {shape.kv_heads == 1, live, 2}, base_seed(), true);
    const abi::BatchView bounds = world.world().batch();
    world.capture();
    const std::vector<std::vector<Piece>> steps = {
        {{0, 1}, {5, 1}, {64, 1}, {999, 1}},
        {{500, 1}, {0, 0}, {63, 1}, {64, 1}},
        {{0, 0}, {0, 0}, {0, 1}, {0, 0}},
    };
    for (const std::vector<Piece>& step : steps) {
      world.set_pieces(step);
      world.world().batch().max_new_tokens = bounds.max_new_tokens;
      world.world().batch().max_rows = bounds.max_rows;
      world.expect_replay_equal("graph");
    }
  }
}

TEST_F(Prepared, SaysWhyNot) {
  const AttentionPlugin plugin("attention_flash_cuda", host());
  const AttentionPlugin without("attention_flash_cuda", host(), {{"fuse_preparation", 0}});
  PreparedWorld world(prepare_, plugin, {4, 2, 64, 0}, {}, {{3, 1}}, {false, 32, 0}, 1);
  abi::AttentionProblem problem = world.fused_problem();
  Lines lines;
  EXPECT_EQ(without->supports(problem, lines.sink()), 0u);
  EXPECT_NE(lines.joined().find("fuses no preparation"), std::string::npos) << lines.joined();
  problem.query_heads = 34;
  lines = {};
  EXPECT_EQ(plugin->supports(problem, lines.sink()), 0u);
  EXPECT_NE(lines.joined().find("not for 17"), std::string::npos) << lines.joined();
  problem.fusions = 0;
  EXPECT_EQ(plugin->supports(problem, lines.sink()), 1u) << lines.joined();

  const auto error_of = [&](const abi::AttentionProblem& planned, auto bend) {
    abi::AttentionPreparation preparation = world.preparation();
    abi::BatchView batch = world.world().batch();
    bend(preparation, batch);
    abi::AttentionPlan plan{};
    Lines text;
    EXPECT_EQ(plugin->plan(planned, &plan, text.sink()), abi::Status::ok) << text.joined();
    DeviceBuffer<std::uint8_t> workspace(plan.workspace_bytes);
    abi::AttentionArgs args = world.world().args();
    args.stream = {abi::Device::cuda, 0, nullptr};
    args.workspace = {workspace.data(), plan.workspace_bytes};
    args.batch = &batch;
    args.preparation = &preparation;
    EXPECT_EQ(plugin->run(plan, args, text.sink()), abi::Status::invalid_argument);
    plugin->release(&plan);
    return text.joined();
  };
  abi::AttentionProblem plain = world.fused_problem();
  plain.fusions = 0;
  EXPECT_NE(error_of(plain, [](auto&, auto&) {}).find("plan was made without"), std::string::npos);
  const abi::AttentionProblem& fused = world.fused_problem();
  EXPECT_NE(error_of(fused, [](auto&, auto& batch) { batch.max_new_tokens = 2; }).find("steps of one"),
            std::string::npos);
  EXPECT_NE(error_of(fused, [](auto& from, auto&) { from.projection_stride = 12; }).find("the stride is 12"),
            std::string::npos);
  EXPECT_NE(error_of(fused, [](auto& from, auto&) { from.rotary_live = 33; }).find("rotary_live 33"),
            std::string::npos);
  EXPECT_NE(error_of(fused, [](auto& from, auto&) { from.key_norm += 1; }).find("norm weights"), std::string::npos);
}

}  // namespace
}  // namespace facet::test
