// attention/flash_cuda against exact results on random inputs: layouts, head sizes, windows, groups, ragged batches,
// graphs. FACET_SEED sets the seed; every failure names it.
#include "cases.h"
#include "runner.h"

namespace facet::test {
namespace {

using abi::DType;
using abi::KvAddressing;
using abi::KvOrder;

class FlashCuda : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = no_device_reason();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  static const TestHost& host() {
    static const TestHost host(1);
    return host;
  }
  // One run near the exact result, and a second with the same bits.
  static void check(const AttentionPlugin& plugin, CudaWorld& world, const std::string& what) {
    Runner runner(plugin, world.problem());
    runner.run(world);
    world.expect_right(what);
    const std::vector<std::uint16_t> once = world.output();
    runner.run(world);
    EXPECT_EQ(once, world.output()) << what << ": a second run differs: " << world.describe();
  }
  static void check(const CudaShape& shape, const CudaStorage& storage, const std::vector<Piece>& pieces,
                    const std::string& what) {
    if (!drawn(work_of(shape, pieces))) return;
    const AttentionPlugin plugin("attention_flash_cuda", host());
    CudaWorld world(shape, storage, pieces, base_seed() + pieces.size());
    check(plugin, world, what);
  }
};

TEST_F(FlashCuda, EveryLayoutHeadDimAndElement) {
  for (const std::int64_t dim : kHeadDims) {
    for (const KvAddressing addressing : kAddressings) {
      for (const KvOrder order : kOrders) {
        for (const DType element : kElements) {
          for (const std::int64_t window : {0, 24}) {
            const CudaShape shape{4, 2, dim, window};
            const CudaStorage storage{addressing, order, element, 16, 2};
            check(shape, storage, {{70, 1}, {0, 45}, {0, 0}, {9, 5}, {150, 33}}, "layouts");
          }
        }
      }
    }
  }
}

TEST_F(FlashCuda, EveryGroup) {
  for (const std::int64_t dim : kHeadDims) {
    for (const std::int64_t group : {1, 2, 3, 4, 8, 16, 24}) {
      for (const std::int64_t window : {0, 100}) {
        const CudaShape shape{2 * group, 2, dim, window};
        check(shape, {KvAddressing::paged, KvOrder::head_major, DType::bf16, 64}, {{300, 1}, {211, 1}, {0, 1}},
              "decode");
        check(shape, {KvAddressing::contiguous}, {{0, 70}, {130, 3}, {222, 1}}, "mixture");
      }
    }
  }
}

// The two kinds of layers of the 12B model, with contexts around tile, split and window edges.
TEST_F(FlashCuda, ModelShapes) {
  const CudaShape sliding{16, 8, 256, 1024};
  const CudaShape global{16, 1, 512, 0};
  for (const std::int64_t context : {1, 15, 63, 64, 65, 1023, 1024, 1025, 1500}) {
    check(sliding, {KvAddressing::ring}, {{context - 1, 1}, {2 * context, 1}}, "sliding decode");
    check(global, {KvAddressing::contiguous}, {{context - 1, 1}, {2 * context, 1}}, "global decode");
    check(sliding, {KvAddressing::ring, KvOrder::head_major, DType::i8}, {{context - 1, 1}, {2 * context, 1}},
          "sliding decode of codes");
    check(global, {KvAddressing::paged, KvOrder::head_major, DType::i8, 64}, {{context - 1, 1}, {2 * context, 1}},
          "global decode of codes");
  }
  check(sliding, {KvAddressing::ring}, {{0, 129}, {1000, 40}, {2100, 1}}, "sliding prefill");
  check(global, {KvAddressing::paged, KvOrder::token_major, DType::bf16, 32}, {{0, 131}, {700, 20}, {900, 1}},
        "global prefill");
  check(sliding, {KvAddressing::ring}, {{0, 1200}}, "sliding long prefill");
  check(global, {KvAddressing::contiguous}, {{64, 300}}, "global long prefill");
}

// Decode over int8 rows: tiles with few rows, shares of more tiles than stages, blocks alone and in clusters, the edges
// of tiles, windows and pages.
TEST_F(FlashCuda, DecodeOfCodes) {
  for (const std::int64_t split_keys : {32, 4096}) {
    for (const std::int64_t dim : kHeadDims) {
      for (const KvAddressing addressing : kAddressings) {
        for (const std::int64_t group : {1, 2, 3, 5, 8, 13, 16}) {
          const CudaShape shape{2 * group, 2, dim, group % 2 == 0 ? 70 : 0};
          const CudaStorage storage{addressing, kOrders[group % 2], DType::i8, 24, 2};
          const std::vector<Piece> pieces = {{0, 1}, {15, 1}, {16, 1}, {33, 1}, {0, 0}, {190, 1}, {416, 1}};
          if (!drawn(work_of(shape, pieces))) continue;
          const AttentionPlugin plugin("attention_flash_cuda", host(),
                                       {{"split_keys", split_keys}, {"cluster_blocks", split_keys == 32 ? 4 : 1}});
          CudaWorld world(shape, storage, pieces, base_seed() + static_cast<std::uint64_t>(group));
          check(plugin, world, "codes");
        }
      }
      check({8, 4, dim, 0}, {KvAddressing::paged, KvOrder::head_major, DType::i8, 64}, {{90, 5}, {7, 8}, {250, 2}},
            "a few tokens");
      for (const float sharpness : {-4.0f, 0.0f, 40.0f})
        check({8, 2, dim, 0, sharpness}, {KvAddressing::paged, KvOrder::token_major, DType::i8, 32}, {{200, 1}, {9, 1}},
              "sharpness " + std::to_string(sharpness));
    }
  }
}

// At most 8 packed rows of 256 channels: shares of more tiles than places, of few keys and of none, blocks alone, in
// clusters and in several of them, tokens of which a query does not see all, the edges of tiles, windows and pages.
TEST_F(FlashCuda, FewRows) {
  for (const auto& [split_keys, cluster_blocks] : {std::pair{4096, 1}, {16, 1}, {32, 4}, {64, 16}}) {
    for (const KvAddressing addressing : kAddressings) {
      for (const std::int64_t group : {1, 2, 3, 4, 7, 8}) {
        const CudaShape shape{2 * group, 2, 256, group % 2 == 0 ? 150 : 0};
        const CudaStorage storage{addressing, kOrders[group % 2], DType::bf16, group == 3 ? 1u : 24u, 2};
        const std::int64_t tokens = 8 / group;
        for (const std::vector<Piece>& pieces :
             {std::vector<Piece>{{0, 1}, {15, 1}, {16, 1}, {33, 1}, {0, 0}, {190, 1}, {416, 1}},
              {{0, tokens}, {63, tokens}, {90, 1}, {301, tokens}},
              {{1100, 1}}}) {
          if (!drawn(work_of(shape, pieces))) continue;
          const AttentionPlugin plugin("attention_flash_cuda", host(),
                                       {{"split_keys", split_keys}, {"cluster_blocks", cluster_blocks}});
          CudaWorld world(shape, storage, pieces, base_seed() + static_cast<std::uint64_t>(group));
          check(plugin, world, "few rows");
        }
      }
    }
  }
}

// Keys of which only the channels that turn lie beside the values: every layout, decode and both prefill kernels,
// groups of any size, contexts around tile, split and page edges.
TEST_F(FlashCuda, SharedForm) {
  for (const auto& [dim, channels] : {std::pair{128, 32}, {512, 128}}) {
    for (const KvAddressing addressing : kAddressings) {
      for (const KvOrder order : kOrders) {
        for (const std::uint32_t block_rows : {16u, 24u, 48u, 64u}) {
          if (addressing != KvAddressing::paged && block_rows != 16) continue;
          for (const std::int64_t window : {0, 24}) {
            const CudaShape shape{4, 2, dim, window, 4.0f, channels};
            check(shape, {addressing, order, DType::bf16, block_rows, 2}, {{70, 1}, {0, 45}, {0, 0}, {9, 5}, {150, 33}},
                  "shared form");
          }
        }
      }
    }
    for (const std::int64_t group : {1, 3, 16, 24}) {
      const CudaShape shape{group, 1, dim, 0, 4.0f, channels};
      check(shape, {KvAddressing::paged, KvOrder::head_major, DType::bf16, 64}, {{300, 1}, {211, 1}, {0, 1}}, "decode");
      check(shape, {KvAddressing::contiguous}, {{0, 70}, {130, 3}, {222, 1}}, "mixture");
    }
  }
}

TEST_F(FlashCuda, SharedFormOfTheModel) {
  const CudaShape global{16, 1, 512, 0, 4.0f, 128};
  for (const std::int64_t context : {1, 15, 47, 48, 49, 63, 64, 65, 96, 1023, 1025, 1500}) {
    check(global, {KvAddressing::contiguous}, {{context - 1, 1}, {2 * context, 1}}, "decode");
    check(global, {KvAddressing::paged, KvOrder::head_major, DType::bf16, 64}, {{context, 37}}, "prefill");
  }
  check(global, {KvAddressing::paged, KvOrder::token_major, DType::bf16, 32}, {{0, 131}, {700, 20}, {900, 1}},
        "prefill");
  check(global, {KvAddressing::contiguous}, {{64, 300}}, "long prefill");
  std::vector<Piece> pieces;
  for (std::int64_t i = 0; i < 64; ++i) pieces.push_back({i * 40 + 3, 1});
  check(global, {KvAddressing::paged, KvOrder::head_major, DType::bf16, 64}, pieces, "64 sequences");
  // Without wgmma, and with scores of the other sign.
  pieces = {{0, 131}, {700, 20}, {900, 1}};
  if (drawn(work_of(global, pieces))) {
    const AttentionPlugin plugin("attention_flash_cuda", host(), {{"wgmma", 0}});
    CudaWorld world(global, {KvAddressing::contiguous}, pieces, base_seed());
    check(plugin, world, "mma.sync");
  }
  check({16, 1, 512, 0, -4.0f, 128}, {KvAddressing::contiguous}, {{200, 1}, {0, 50}}, "negative scale");
}

TEST_F(FlashCuda, ScalesOfEverySign) {
  for (const float sharpness : {-4.0f, 0.0f, 40.0f}) {
    const CudaShape shape{8, 2, 128, 0, sharpness};
    check(shape, {}, {{200, 1}, {0, 50}}, "sharpness " + std::to_string(sharpness));
  }
}

TEST_F(FlashCuda, RandomBatches) {
  std::mt19937_64 random(base_seed());
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int round = 0; round < 60; ++round) {
    const AttentionPlugin plugin("attention_flash_cuda", host(),
                                 {{"split_keys", 16 * pick(1, 20)}, {"cluster_blocks", std::int64_t{1} << pick(0, 4)}});
    const std::int64_t kv_heads = pick(1, 4);
    CudaShape shape{kv_heads * pick(1, 18), kv_heads, kHeadDims[pick(0, 4)], pick(0, 2) * pick(1, 300)};
    const bool shared = (shape.head_dim == 128 || shape.head_dim == 512) && pick(0, 1) == 1;
    if (shared) shape.key_channels = shape.head_dim / 4;
    CudaStorage storage{kAddressings[pick(0, 2)], kOrders[pick(0, 1)], kElements[pick(0, 3) / 3],
                        static_cast<std::uint32_t>(pick(1, 80)), pick(0, 70)};
    if (shared) storage.element = DType::bf16;
    std::vector<Piece> pieces;
    for (std::int64_t i = pick(1, 7); i > 0; --i)
      pieces.push_back({pick(0, 1) * pick(0, 700), pick(0, 1) * pick(0, 90)});
    if (pick(0, 2) == 0) {
      for (Piece& piece : pieces) piece.tokens = 1;
    }
    if (!drawn(work_of(shape, pieces))) continue;
    CudaWorld world(shape, storage, pieces, random());
    check(plugin, world, "round " + std::to_string(round) + " of base seed " + std::to_string(base_seed()));
  }
}

// One graph, captured within bounds, serves other positions and token counts behind the same pointers.
TEST_F(FlashCuda, GraphFollowsTheArrays) {
  for (const bool decode : {true, false}) {
    for (const CudaShape& shape : {CudaShape{16, 8, 256, 200}, CudaShape{16, 1, 512, 0}, CudaShape{4, 4, 64, 0},
                                   CudaShape{16, 1, 512, 0, 4.0f, 128}}) {
      const std::int64_t most = decode ? 1 : 40;
      const std::vector<Piece> widest = {{900, 1}, {899, 1}, {1000 - most, most}, {17, 1}};
      if (!drawn(work_of(shape, widest))) continue;
      const AttentionPlugin plugin("attention_flash_cuda", host());
      CudaWorld world(shape, {KvAddressing::paged, KvOrder::head_major, DType::bf16, 32}, widest, base_seed(), true);
      Runner runner(plugin, world.problem());
      const abi::BatchView bounds = world.batch();
      runner.capture(world);
      const std::vector<std::vector<Piece>> steps = {
          {{0, 1}, {5, 1}, {64, 1}, {999, 1}},
          {{500, 1}, {0, 0}, {63, most}, {64, 1}},
          {{0, 0}, {0, 0}, {0, most}, {0, 0}},
      };
      for (const std::vector<Piece>& step : steps) {
        world.set_pieces(step);
        runner.replay(world);
        world.expect_right("replay");
        const std::vector<std::uint16_t> replayed = world.output();
        // The same launch, eagerly: bounds of the capture, arrays of this step.
        world.batch().token_count = bounds.token_count;
        world.batch().max_new_tokens = bounds.max_new_tokens;
        world.batch().max_rows = bounds.max_rows;
        runner.run(world);
        EXPECT_EQ(replayed, world.output()) << "replay and eager differ: " << world.describe();
      }
    }
  }
}

TEST_F(FlashCuda, SequenceInABatchIsAsRightAsAlone) {
  const CudaShape shape{16, 8, 256, 1024};
  std::vector<Piece> pieces;
  for (std::int64_t i = 0; i < 64; ++i) pieces.push_back({i * 40 + 3, 1});
  check(shape, {KvAddressing::ring}, pieces, "64 sequences");
  check({16, 1, 512, 0}, {KvAddressing::paged, KvOrder::head_major, DType::bf16, 64}, pieces, "64 sequences");
  check({16, 1, 512, 0}, {KvAddressing::paged, KvOrder::head_major, DType::i8, 64}, pieces, "64 sequences");
}

TEST_F(FlashCuda, SaysWhyNot) {
  const AttentionPlugin plugin("attention_flash_cuda", host());
  const CudaWorld world({4, 2, 64, 0}, {}, {{0, 1}}, 1);
  const auto reasons = [&](auto change) {
    abi::AttentionProblem problem = world.problem();
    change(problem);
    Lines lines;
    EXPECT_EQ(plugin->supports(problem, lines.sink()), 0u);
    return lines.joined();
  };
  EXPECT_NE(reasons([](auto& p) { p.head_dim = 80; }).find("head_dim 80"), std::string::npos);
  EXPECT_NE(reasons([](auto& p) { p.device = abi::Device::cpu; }).find("device"), std::string::npos);
  EXPECT_NE(reasons([](auto& p) { p.layout.element = DType::f32; }).find("KV element f32"), std::string::npos);
  EXPECT_NE(reasons([](auto& p) { p.key_channels = 16; }).find("neither 32 of 128 nor 128 of 512"), std::string::npos);
  EXPECT_NE(reasons([](auto& p) {
              p.key_channels = 32, p.head_dim = 128, p.layout.element = DType::i8;
            }).find("in the shared form KV element i8 is not bf16"),
            std::string::npos);
  EXPECT_NE(reasons([](auto& p) { p.input = DType::f32; }).find("queries are f32"), std::string::npos);
}

// Runs on every machine: either the device is there, or the plugin says what is missing.
TEST(FlashCudaProbe, SaysWhatIsMissing) {
  const TestHost host(1);
  const AttentionPlugin plugin("attention_flash_cuda", host);
  Lines lines;
  const abi::Status status = plugin.descriptor().probe(host.table(), lines.sink());
  if (no_device_reason().empty()) {
    EXPECT_EQ(status, abi::Status::ok) << lines.joined();
  } else {
    EXPECT_EQ(status, abi::Status::unavailable);
    EXPECT_FALSE(lines.lines.empty());
  }
}

}  // namespace
}  // namespace facet::test
