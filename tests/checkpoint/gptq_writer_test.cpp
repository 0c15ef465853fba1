// What this project writes: against its own reader here, against other libraries by scripts/fixtures/check_written.py,
// whose verdict the committed files carry.
#include "facet/checkpoint/gptq_writer.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>

#include "gptq_builder.h"

namespace facet::test {
namespace {

using testing::HasSubstr;

// Random codes, bf16 scales that F16 holds as well, and zero codes 0 to 15.
QuantizedMatrix random_matrix(const QuantizationScheme& scheme, std::int64_t out, std::int64_t in, Random& random) {
  QuantizedMatrix matrix;
  const std::int64_t per_word = 32 / scheme.bits;
  const std::int64_t groups = scheme.group_size < 0 ? 1 : (in + scheme.group_size - 1) / scheme.group_size;
  for (std::int64_t i = 0; i < out * ((in + per_word - 1) / per_word); ++i) matrix.words.push_back(random());
  for (std::int64_t i = 0; i < out * groups; ++i) {
    matrix.scales.push_back(bf16_to_float(static_cast<std::uint16_t>(0x3a00 + random() % 0x400)));
    if (!scheme.symmetric) matrix.zeros.push_back(static_cast<std::uint8_t>(random() % (1u << scheme.bits)));
  }
  return matrix;
}

LinearWeight as_weight(const QuantizedMatrix& matrix, const QuantizationScheme& scheme, std::int64_t out,
                       std::int64_t in) {
  const std::int64_t per_word = 32 / scheme.bits;
  return LinearWeight::from_parts(scheme.bits == 4 ? abi::WeightFormat::int4 : abi::WeightFormat::int8, out, in,
                                  scheme.group_size < 0 ? in : scheme.group_size, matrix.words.data(),
                                  (in + per_word - 1) / per_word * 4, matrix.scales, matrix.zeros);
}

TEST(GptqWriter, EveryShapeComesBack) {
  const unsigned seed = std::random_device{}();
  Random random{std::mt19937(seed)};
  for (const std::int64_t in : {8, 64, 120, 192, 1025}) {
    for (const std::int64_t out : {1, 8, 13, 48}) {
      for (const std::int64_t group : {-1, 32, 128}) {
        for (const bool symmetric : {false, true}) {
          SCOPED_TRACE(testing::Message() << "seed " << seed << " out " << out << " in " << in << " group " << group
                                          << " symmetric " << symmetric);
          const QuantizationScheme scheme{4, symmetric, group};
          const std::vector<QuantizationGroup> groups = {{"group_0", {"Linear"}, scheme}};
          const QuantizedMatrix matrix = random_matrix(scheme, out, in, random);
          const TempFolder folder;
          SafetensorsWriter writer(folder / "model.safetensors");
          int produced = 0;
          add_gptq_module(writer, "m", scheme, gptq_zeros(groups), out, in, [&] {
            ++produced;
            return matrix;
          });
          writer.write();
          EXPECT_EQ(produced, 1);
          write_file(folder / "config.json", with_gptq_config("{}", groups, {"lm_head"}));
          const Checkpoint checkpoint = Checkpoint::open(folder.path());
          const QuantizationConfig config = read_quantization(checkpoint);
          EXPECT_EQ(config.gptq->zeros, symmetric ? GptqZeros::minus_one : GptqZeros::plain);
          const LinearWeight weight = load_linear(checkpoint, config, "m", out, in);
          const LinearWeight expected = as_weight(matrix, scheme, out, in);
          for (std::int64_t row = 0; row < out; ++row) ASSERT_EQ(row_of(weight, row), row_of(expected, row));
        }
      }
    }
  }
}

TEST(GptqWriter, RefusesWhatTheFormatCannotHold) {
  const QuantizationScheme symmetric{4, true, 32}, asymmetric{4, false, 32};
  const auto written = [&](const QuantizationScheme& scheme, GptqZeros zeros, QuantizedMatrix matrix) {
    const TempFolder folder;
    SafetensorsWriter writer(folder / "model.safetensors");
    return error_of(
        [&] {
          add_gptq_module(writer, "m", scheme, zeros, 2, 32, [&] { return matrix; });
          writer.write();
        },
        ErrorKind::run);
  };
  const std::vector<std::uint32_t> words(8);
  // 1 + 2^-7 is exact in both types, times 2^-24 only in bf16.
  expect_words(written(symmetric, GptqZeros::minus_one, {words, {1.0078125f, std::ldexp(1.0078125f, -24)}, {}}),
               {"m", "output 1, group 0", "F16", "compressed-tensors"});
  expect_words(written(symmetric, GptqZeros::minus_one, {words, {1.0f, 70000.0f}, {}}), {"70000", "F16"});
  expect_words(written(symmetric, GptqZeros::minus_one, {words, {1.0f}, {}}), {"1 scales", "8, 2 and 0"});
  expect_words(written(asymmetric, GptqZeros::minus_one, {words, {1.0f, 1.0f}, {5, 0}}),
               {"output 1, group 0", "zero code", "'gptq_v2'"});
  expect_words(written({8, true, 32}, GptqZeros::minus_one, {words, {1.0f, 1.0f}, {}}), {"8 bits"});

  const auto config = [](const std::vector<QuantizationGroup>& groups, ErrorKind kind = ErrorKind::usage) {
    return error_of([&] { with_gptq_config("{}", groups, {}); }, kind);
  };
  EXPECT_THAT(config({{"a", {"re:x"}, {4, true, 32}}}), HasSubstr("all linear layers"));
  expect_words(config({{"a", {"Linear"}, {8, true, 32}}}), {"Linear", "int8 symmetric g32", "compressed-tensors"});
  expect_words(config({{"a", {"Linear"}, {4, true, 32}}, {"b", {"re:.*embed_tokens"}, {4, true, 128}}}),
               {"embed_tokens", "bf16"});
  for (const char* text : {"[]", "{", R"({"quantization_config":{}})"})
    error_of([&] { with_gptq_config(text, {{"a", {"Linear"}, {4, true, 32}}}, {}); });
}

TEST(GptqWriter, ConfigSaysTheSameAsTheGroups) {
  const std::vector<QuantizationGroup> groups = {{"group_0", {"Linear"}, {4, true, 128}},
                                                 {"group_1", {"re:.*down_proj"}, {4, false, 32}},
                                                 {"group_2", {"model.layers.1.mlp.down_proj"}, {4, true, -1}}};
  const std::string text =
      with_gptq_config(R"({"b":1,"a":2})", groups, {"lm_head", "re:.*vision.*", "model.layers.0.mlp.up_proj"});
  EXPECT_LT(text.find("\"b\""), text.find("\"a\"")) << "the order of other entries is kept";
  const GptqSettings settings = *parse_quantization_config(text).gptq;
  EXPECT_EQ(settings.zeros, GptqZeros::plain);
  EXPECT_EQ(settings.settings_for("model.layers.0.mlp.gate_proj").scheme, groups[0].scheme);
  EXPECT_EQ(settings.settings_for("model.layers.0.mlp.down_proj").scheme, groups[1].scheme);
  EXPECT_EQ(settings.settings_for("model.layers.1.mlp.down_proj").scheme, groups[2].scheme);
  EXPECT_EQ(settings.settings_for("model.layers.10.mlp.down_proj").scheme, groups[1].scheme);
  EXPECT_TRUE(settings.settings_for("model.vision_tower.x").excluded);
  EXPECT_TRUE(settings.settings_for("model.layers.0.mlp.up_proj").excluded);
  EXPECT_FALSE(settings.settings_for("modelXlayers.0.mlp.up_proj").excluded);
  EXPECT_FALSE(settings.settings_for("model.layers.0.mlp.up_projection").excluded);
}

TEST(FloatBits, ExactHalves) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = f16_to_float(half);
    if (std::isfinite(value)) {
      ASSERT_EQ(exact_f16(value), half);
      const float next = std::nextafter(value, std::numeric_limits<float>::infinity());
      ASSERT_EQ(exact_f16(next), std::nullopt) << bits;
    } else {
      ASSERT_EQ(exact_f16(value), std::nullopt);
    }
  }
  for (const float value : {65520.0f, 1e30f, 0x1p-25f, 1e-40f}) EXPECT_EQ(exact_f16(value), std::nullopt) << value;
}

// --- Committed files -------------------------------------------------------------------------------------------------

struct WrittenModule {
  const char* name;
  std::int64_t out, in;
  std::size_t group;
};

struct WrittenCheckpoint {
  const char* folder;
  bool gptq;
  std::vector<QuantizationGroup> groups;
};

// The compressed-tensors library takes no short last group, so groups divide the inputs here.
constexpr WrittenModule kModules[] = {{"model.layers.0.self_attn.q_proj", 16, 96, 0},
                                      {"model.layers.0.mlp.down_proj", 20, 256, 1}};

std::vector<WrittenCheckpoint> written_checkpoints() {
  const auto groups = [](bool symmetric) {
    return std::vector<QuantizationGroup>{{"group_0", {"Linear"}, {4, true, 32}},
                                          {"group_1", {"re:.*down_proj"}, {4, symmetric, 128}}};
  };
  return {{"compressed_tensors", false, groups(false)}, {"gptq", true, groups(true)}, {"gptq_v2", true, groups(false)}};
}

void write_checkpoint(const WrittenCheckpoint& checkpoint, const std::filesystem::path& folder) {
  Random random{std::mt19937(20251130)};
  SafetensorsWriter writer(folder / "model.safetensors", {{"format", "pt"}});
  const GptqZeros zeros = gptq_zeros(checkpoint.groups);
  for (const WrittenModule& module : kModules) {
    const QuantizationScheme scheme = checkpoint.groups[module.group].scheme;
    const QuantizedMatrix matrix = random_matrix(scheme, module.out, module.in, random);
    const auto produce = [matrix] { return matrix; };
    if (checkpoint.gptq) {
      add_gptq_module(writer, module.name, scheme, zeros, module.out, module.in, produce);
    } else {
      add_quantized_module(writer, module.name, scheme, module.out, module.in, produce);
    }
  }
  const std::vector<std::uint16_t> dense(8 * 16, 0x3f80);
  writer.add("model.layers.0.mlp.up_proj.weight", TensorType::bf16, {8, 16}, dense.data());
  writer.write();
  const std::string config = R"({"model_type": "gemma4_text"})";
  const std::vector<std::string> ignore = {"lm_head", "model.layers.0.mlp.up_proj"};
  write_file(folder / "config.json", checkpoint.gptq ? with_gptq_config(config, checkpoint.groups, ignore)
                                                     : with_quantization_config(config, checkpoint.groups, ignore));
}

// The writers still write, byte for byte, what the other libraries were shown; and the numbers those decoded are ours.
// After a change of what is written: run with FACET_UPDATE_WRITTEN=1, then scripts/fixtures/check_written.py --write.
TEST(WrittenFiles, AreWhatOtherLibrariesDecoded) {
  const std::filesystem::path data = std::filesystem::path(FACET_SOURCE_DIR) / "tests/data/written";
  if (const char* update = std::getenv("FACET_UPDATE_WRITTEN"); update != nullptr && *update == '1') {
    for (const WrittenCheckpoint& checkpoint : written_checkpoints()) {
      std::filesystem::create_directories(data / checkpoint.folder);
      write_checkpoint(checkpoint, data / checkpoint.folder);
    }
  }
  for (const WrittenCheckpoint& checkpoint : written_checkpoints()) {
    SCOPED_TRACE(checkpoint.folder);
    const std::filesystem::path committed = data / checkpoint.folder;
    const TempFolder folder;
    write_checkpoint(checkpoint, folder.path());
    for (const char* name : {"model.safetensors", "config.json"}) {
      ASSERT_FALSE(read_file(committed / name).empty()) << committed / name;
      EXPECT_TRUE(read_file(committed / name) == read_file(folder / name)) << name << " differs from the committed one";
    }
    const Checkpoint loaded = Checkpoint::open(folder.path());
    const QuantizationConfig config = read_quantization(loaded);
    const SafetensorsFile expected = SafetensorsFile::open(committed / "expected.safetensors");
    ASSERT_EQ(expected.tensors().size(), std::size(kModules));
    for (const WrittenModule& module : kModules) {
      SCOPED_TRACE(module.name);
      const Tensor* values = expected.find(module.name);
      ASSERT_NE(values, nullptr);
      expect_values(load_linear(loaded, config, module.name, module.out, module.in), *values);
    }
  }
}

}  // namespace
}  // namespace facet::test
