// Every operation of the CUDA backend against the CPU's, on fresh random inputs. Activations are bf16 there, so inputs
// are exact bf16 and results may differ by its rounding.
#include "cuda_backend_fixture.h"
#include "facet/sdk/kv_rows.h"

namespace facet {
namespace {

TEST_F(CudaBackendTest, MemoryIsZeroAlignedCountedAndRefusedWithNumbers) {
  {
    const DeviceBuffer buffer = gpu_->allocate(1000, 4096, "weights");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 4096, 0u);
    for (const char byte : back(buffer.as<char>(), 1000)) ASSERT_EQ(byte, 0);
    EXPECT_EQ(gpu_->accounts().front().bytes, 1000u);
  }
  EXPECT_EQ(gpu_->accounts().front().bytes, 0u);
  EXPECT_EQ(gpu_->accounts().front().peak_bytes, 1000u);
  try {
    gpu_->allocate(std::uint64_t{1} << 46, 256, "kv");
    FAIL() << "64 TiB were given";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("70368744177664 bytes"), std::string::npos) << error.message();
  }
  EXPECT_NO_THROW(gpu_->allocate(64, 64, "weights"));  // a refusal leaves the device usable
}

TEST_F(CudaBackendTest, LargeUploadsArriveWhole) {
  std::vector<std::uint32_t> words(20'000'000);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::uint32_t>(i * 2654435761u);
  EXPECT_EQ(back(on_gpu(words), words.size()), words);
}

TEST_F(CudaBackendTest, GateGatherSoftCapAndEmbedding) {
  const std::int64_t tokens = 3, width = 1000;
  const auto count = static_cast<std::size_t>(tokens * width);
  const std::vector<float> gate_up = numbers(2 * count, 3);
  std::vector<float> right(count);
  cpu_->gelu_gate(gate_up.data(), tokens, width, right.data());
  auto* gated = bf16_on_gpu(std::vector<float>(count, kNan));
  gpu_->gelu_gate(bf16_on_gpu(gate_up), tokens, width, gated);
  expect_near(bf16_back(gated, count), right, kBf16, 1e-4);

  const std::vector<float> rows = numbers(count);
  const std::vector<std::int32_t> index = {2, 0, 2, 1};
  auto* gathered = on_gpu(std::vector<float>(4 * static_cast<std::size_t>(width), kNan));
  gpu_->gather_rows(on_gpu(rows), on_gpu(index), 4, width, gathered);
  std::vector<float> right_rows(4 * static_cast<std::size_t>(width));
  cpu_->gather_rows(rows.data(), index.data(), 4, width, right_rows.data());
  EXPECT_EQ(back(gathered, right_rows.size()), right_rows);

  std::vector<float> capped = numbers(count, 40);
  auto* device_capped = on_gpu(capped);
  gpu_->soft_cap(device_capped, tokens * width, 30);
  cpu_->soft_cap(capped.data(), tokens * width, 30);
  expect_near(back(device_capped, count), capped, 1e-5, 1e-5);
}

TEST_F(CudaBackendTest, EmbedsEveryWeightFormat) {
  const std::int64_t rows = 37, width = 200, group = 64, groups = 4;
  // The last two are those of the step before; where that had none, row 0 is as good as any.
  const std::vector<std::int32_t> ids = {36, 17, -1, -2}, previous = {17, -1};
  std::vector<std::uint16_t> bf16;
  for (const float value : numbers(static_cast<std::size_t>(rows * width))) bf16.push_back(sdk::float_to_bf16(value));
  std::vector<std::uint32_t> words(static_cast<std::size_t>(rows * width / 8));
  for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random_());
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(rows * width)),
      zeros(static_cast<std::size_t>(rows * groups));
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random_());
  for (std::uint8_t& zero : zeros) zero = static_cast<std::uint8_t>(random_() % 16);
  const std::vector<float> scales = numbers(static_cast<std::size_t>(rows * groups));
  using abi::WeightFormat;
  const std::uint32_t size = sizeof(abi::WeightView);
  const abi::WeightView views[] = {
      {size, WeightFormat::bf16, rows, width, 0, bf16.data(), 2 * width, nullptr, nullptr},
      {size, WeightFormat::int4, rows, width, group, words.data(), width / 2, scales.data(), nullptr},
      {size, WeightFormat::int4, rows, width, group, words.data(), width / 2, scales.data(), zeros.data()},
      {size, WeightFormat::int8, rows, width, group, bytes.data(), width, scales.data(), nullptr}};
  for (const abi::WeightView& view : views) {
    const PlacedWeight placed = gpu_->place(view, "weights");
    std::vector<float> right(ids.size() * static_cast<std::size_t>(width));
    cpu_->embed(view, ids.data(), previous.data(), static_cast<std::int64_t>(ids.size()), 19.5f, right.data());
    auto* out = on_gpu(std::vector<float>(right.size(), kNan));
    gpu_->embed(placed.view, on_gpu(ids), on_gpu(previous), static_cast<std::int64_t>(ids.size()), 19.5f, out);
    expect_near(back(out, right.size()), right, 1e-6, 0);
  }
}

class CudaPrepareTest : public CudaBackendTest,
                        public testing::WithParamInterface<std::tuple<abi::DType, abi::KvOrder, std::int64_t, bool>> {};

// Queries and KV rows, in every element type, order and form; a padding row writes nothing.
TEST_P(CudaPrepareTest, QueriesAndCacheRows) {
  const abi::DType element = std::get<0>(GetParam());
  const abi::KvOrder order = std::get<1>(GetParam());
  const std::int64_t dim = std::get<2>(GetParam());
  const bool shared = std::get<3>(GetParam());
  const std::int64_t q_heads = 4, kv_heads = 2, blocks = 3, tokens = 4, live = 24;
  abi::KvView view{};
  view.size = sizeof view;
  view.layout = {sizeof(abi::KvLayout),
                 abi::KvAddressing::paged,
                 order,
                 element,
                 element == abi::DType::i8 ? abi::KvScales::per_row_head : abi::KvScales::none,
                 4,
                 64};
  view.key_channels = shared ? 2 * live : 0;
  const sdk::KvStrides strides = sdk::kv_strides(view.layout, kv_heads, sdk::kv_row_width(dim, view.key_channels));
  view.kv_heads = kv_heads;
  view.head_dim = dim;
  sdk::set_strides(view, strides);
  view.table_stride = 2;
  const std::vector<std::int32_t> table = {2, 0, 1, -1}, positions = {5, 1, 6, 0}, sequence = {0, 1, 0, -1};
  const auto bytes = static_cast<std::size_t>(strides.block * blocks * sdk::element_bytes(element));
  const auto scale_count = static_cast<std::size_t>(strides.scale_block * blocks + 1);
  std::vector<unsigned char> keys(bytes, 0x7f), values = keys;
  std::vector<float> key_scales(scale_count, -1), value_scales = key_scales;
  AttentionInput input;
  input.stride = (q_heads + 2 * kv_heads) * dim;
  const std::vector<float> projections = numbers(static_cast<std::size_t>(tokens * input.stride)),
                           query_norm = numbers(static_cast<std::size_t>(dim)),
                           key_norm = numbers(static_cast<std::size_t>(dim)), frequency = {1, 0.5f, 0.01f};
  std::vector<float> cosine, sine, queries(static_cast<std::size_t>(tokens * q_heads * dim), kNan);
  for (std::int64_t i = 0; i < tokens * live; ++i) {
    cosine.push_back(std::cos(0.1f * static_cast<float>(i)));
    sine.push_back(std::sin(0.1f * static_cast<float>(i)));
  }
  input.query_heads = q_heads;
  input.kv_heads = kv_heads;
  input.head_dim = dim;
  input.values_from_keys = shared;
  input.epsilon = 1e-6f;
  input.tokens = tokens;

  AttentionInput host = input;
  abi::KvView host_view = view;
  const std::int64_t behind = dim * sdk::element_bytes(element);  // where a shared row has its key
  host_view.keys = shared ? values.data() + behind : keys.data();
  host_view.values = values.data();
  host_view.key_scales = key_scales.data();
  host_view.value_scales = value_scales.data();
  host_view.block_table = table.data();
  host.projections = projections.data();
  host.query_norm = query_norm.data();
  host.key_norm = key_norm.data();
  host.rotary = {live, cosine.data(), sine.data()};
  host.positions = positions.data();
  host.sequence = sequence.data();
  host.kv = &host_view;
  host.queries = queries.data();

  abi::KvView device_view = view;
  auto *device_keys = on_gpu(keys), *device_values = on_gpu(values);
  auto *device_key_scales = on_gpu(key_scales), *device_value_scales = on_gpu(value_scales);
  device_view.keys = shared ? device_values + behind : device_keys;
  device_view.values = device_values;
  device_view.key_scales = device_key_scales;
  device_view.value_scales = device_value_scales;
  device_view.block_table = on_gpu(table);
  auto* device_queries = bf16_on_gpu(queries);
  input.projections = bf16_on_gpu(projections);
  input.query_norm = on_gpu(query_norm);
  input.key_norm = on_gpu(key_norm);
  input.rotary = {live, on_gpu(cosine), on_gpu(sine)};
  input.positions = on_gpu(positions);
  input.sequence = on_gpu(sequence);
  input.kv = &device_view;
  input.queries = device_queries;

  cpu_->prepare_attention(host);
  gpu_->prepare_attention(input);
  expect_near(bf16_back(device_queries, queries.size()), queries, kBf16, 1e-4);
  const std::vector<unsigned char> got_keys = back(device_keys, bytes), got_values = back(device_values, bytes);
  for (const auto& [got, right] : {std::pair{&got_keys, &keys}, {&got_values, &values}}) {
    for (std::size_t i = 0; i < bytes / static_cast<std::size_t>(sdk::element_bytes(element)); ++i) {
      if (element == abi::DType::i8) {
        ASSERT_NEAR(reinterpret_cast<const std::int8_t*>(got->data())[i],
                    reinterpret_cast<const std::int8_t*>(right->data())[i], 1)
            << i;
      } else {
        const auto value = [&](const std::vector<unsigned char>& from) {
          return element == abi::DType::f32
                     ? reinterpret_cast<const float*>(from.data())[i]
                     : sdk::bf16_to_float(reinterpret_cast<const std::uint16_t*>(from.data())[i]);
        };
        ASSERT_NEAR(value(*got), value(*right), kBf16 * std::abs(value(*right)) + 1e-4) << i;
      }
    }
  }
  if (element == abi::DType::i8) {
    expect_near(back(device_key_scales, scale_count), key_scales, 1e-4, 1e-7);
    expect_near(back(device_value_scales, scale_count), value_scales, 1e-4, 1e-7);
  }
}

// Heads of 90 cannot be accessed four elements at a time.
INSTANTIATE_TEST_SUITE_P(All, CudaPrepareTest,
                         testing::Combine(testing::Values(abi::DType::f32, abi::DType::bf16, abi::DType::i8),
                                          testing::Values(abi::KvOrder::token_major, abi::KvOrder::head_major),
                                          testing::Values(90, 96, 512, 1024), testing::Bool()));

TEST_F(CudaBackendTest, RotaryUsesFloatAngles) {
  const std::vector<float> frequency = {1.0f, 0.1f, 1e-4f};
  const std::vector<std::int32_t> positions = {0, 1, 1023, 262143};
  std::vector<float> cosine(12, kNan), sine(12, kNan);
  cpu_->rotary(positions.data(), 4, frequency.data(), {3, cosine.data(), sine.data()});
  auto *device_cosine = on_gpu(std::vector<float>(12, kNan)), *device_sine = on_gpu(std::vector<float>(12, kNan));
  gpu_->rotary(on_gpu(positions), 4, on_gpu(frequency), {3, device_cosine, device_sine});
  expect_near(back(device_cosine, 12), cosine, 0, 1e-6);
  expect_near(back(device_sine, 12), sine, 0, 1e-6);
}

// Two owners may use the same key for different work, and what one recorded goes with it.
TEST_F(CudaBackendTest, RecordedStepsBelongToTheirOwner) {
  auto* row = on_gpu(std::vector<std::int32_t>{0});
  struct Owner {
    float *in, *out;
  };
  std::vector<Owner> owners;
  for (const float value : {1.0f, 2.0f})
    owners.push_back({on_gpu(std::vector<float>(64, value)), on_gpu(std::vector<float>(64, kNan))});
  const auto step = [&](const Owner& owner) {
    return gpu_->run_recorded(&owner, 1, [&] { gpu_->gather_rows(owner.in, row, 1, 64, owner.out); });
  };
  for (const Owner& owner : owners) EXPECT_TRUE(step(owner));
  expect_near(back(owners[0].out, 64), std::vector<float>(64, 1.0f), 0, 0);
  expect_near(back(owners[1].out, 64), std::vector<float>(64, 2.0f), 0, 0);
  gpu_->forget_recorded(&owners[0]);
  EXPECT_TRUE(step(owners[0]));
  EXPECT_FALSE(step(owners[1]));
}

// The first call records and runs; later ones run what was recorded on what the memory holds then.
TEST_F(CudaBackendTest, RecordedStepsReadTheMemoryOfTheirReplay) {
  const std::int64_t width = 512;
  auto* in = on_gpu(numbers(static_cast<std::size_t>(width)));
  auto* out = on_gpu(std::vector<float>(static_cast<std::size_t>(width), kNan));
  auto* row = on_gpu(std::vector<std::int32_t>{0});
  int launches = 0;
  const auto step = [&] {
    ++launches;
    gpu_->gather_rows(in, row, 1, width, out);
    gpu_->soft_cap(out, width, 30);
  };
  EXPECT_TRUE(gpu_->run_recorded(this, 1, step));
  for (int round = 0; round < 3; ++round) {
    std::vector<float> values = numbers(static_cast<std::size_t>(width), 20);
    gpu_->upload(in, values.data(), values.size() * sizeof(float));
    EXPECT_FALSE(gpu_->run_recorded(this, 1, step));
    cpu_->soft_cap(values.data(), width, 30);
    expect_near(back(out, values.size()), values, 1e-5, 1e-5);
  }
  EXPECT_EQ(launches, 1);
  EXPECT_THROW(gpu_->run_recorded(this, 2, [] { throw_error(ErrorKind::run, "inside"); }), Error);
  EXPECT_FALSE(gpu_->run_recorded(this, 1, step));  // the stream records no longer
  EXPECT_EQ(gpu_->recorded_rows(5, 64), 8);
  EXPECT_EQ(gpu_->recorded_rows(5, 6), 6);
  EXPECT_EQ(gpu_->recorded_rows(64, 64), 64);
}

}  // namespace
}  // namespace facet
