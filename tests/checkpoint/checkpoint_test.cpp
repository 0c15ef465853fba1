// Case 58: an index is a promise about every tensor; what breaks it is listed with names and files.
#include "facet/checkpoint/checkpoint.h"

#include <gmock/gmock.h>

#include <sys/stat.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "facet/checkpoint/prefixes.h"
#include "file_builder.h"

namespace facet::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string shard(const std::vector<std::string>& names) {
  FileBuilder builder;
  for (const std::string& name : names) builder.add<float>(name, "F32", {2}, {1.5f, -2.0f});
  return builder.build();
}

std::string index_of(const std::vector<std::pair<std::string, std::string>>& rows) {
  std::string text;
  for (const auto& [tensor, file] : rows) text += fmt::format("{}\"{}\":\"{}\"", text.empty() ? "" : ",", tensor, file);
  return fmt::format("{{\"metadata\":{{\"total_size\":1}},\"weight_map\":{{{}}}}}", text);
}

constexpr const char* kOne = "model-00001-of-00003.safetensors";
constexpr const char* kTwo = "model-00002-of-00003.safetensors";
constexpr const char* kThree = "model-00003-of-00003.safetensors";

class Sharded : public testing::Test {
 protected:
  void SetUp() override {
    write_file(folder_ / "config.json", "{}");
    write_file(folder_ / kOne, shard({"a", "b"}));
    write_file(folder_ / kTwo, shard({"c"}));
    write_file(folder_ / kThree, shard({"d"}));
    index(rows_);
  }
  void index(const std::vector<std::pair<std::string, std::string>>& rows) {
    write_file(folder_ / "model.safetensors.index.json", index_of(rows));
  }
  std::string open_error() {
    return error_of([&] { Checkpoint::open(folder_.path()); });
  }

  TempFolder folder_;
  std::vector<std::pair<std::string, std::string>> rows_ = {{"a", kOne}, {"b", kOne}, {"c", kTwo}, {"d", kThree}};
};

TEST_F(Sharded, EveryTensorIsReadOnce) {
  Checkpoint first = Checkpoint::open(folder_.path());
  const Checkpoint checkpoint = std::move(first);
  EXPECT_THAT(checkpoint.names(), ElementsAre("a", "b", "c", "d"));
  EXPECT_EQ(checkpoint.tensor_bytes(), 32u);
  for (const std::string& name : checkpoint.names()) {
    std::vector<float> destination(2, std::numeric_limits<float>::quiet_NaN());
    std::memcpy(destination.data(), checkpoint.find(name)->data, 8);
    EXPECT_THAT(destination, ElementsAre(1.5f, -2.0f)) << name;
  }
  EXPECT_EQ(checkpoint.find("c")->file.filename(), kTwo);
}

TEST_F(Sharded, MissingShard) {
  std::filesystem::remove(folder_ / kTwo);
  expect_words(open_error(), {kTwo, "'c'", "missing"});
}

TEST_F(Sharded, IndexPointsToTheWrongShard) {
  rows_[2].second = kThree;
  index(rows_);
  // kTwo is then named by nobody, and 'c' is not where the index says.
  expect_words(open_error(), {"'c'", kThree, kTwo});
  rows_[3].second = kTwo;
  index(rows_);
  expect_words(open_error(), {"tensor 'c' is in", "tensor 'd' is in"});
}

TEST_F(Sharded, StaleIndexListsOldAndNewFiles) {
  index({{"a", "old-1.safetensors"}, {"b", "old-2.safetensors"}});
  expect_words(open_error(), {"old-1.safetensors", "old-2.safetensors", kOne, kTwo, kThree});
}

TEST_F(Sharded, TensorInNoIndexEntry) {
  write_file(folder_ / kThree, shard({"d", "extra"}));
  expect_words(open_error(), {"'extra'", kThree, "no index entry"});
}

TEST_F(Sharded, SameTensorInTwoShards) {
  write_file(folder_ / kThree, shard({"d", "a"}));
  expect_words(open_error(), {"'a'", "two shards", kOne, kThree});
}

TEST_F(Sharded, ExpectedTensorAbsent) {
  write_file(folder_ / kOne, shard({"a"}));
  expect_words(open_error(), {"'b'", kOne, "missing"});
}

TEST_F(Sharded, AllProblemsAtOnce) {
  write_file(folder_ / kOne, shard({"a", "new"}));
  std::filesystem::remove(folder_ / kTwo);
  expect_words(open_error(), {"'b'", "'new'", kTwo});
}

TEST_F(Sharded, ExtraFilesAreIgnoredWithAWarning) {
  write_file(folder_ / "adapter.safetensors", shard({"z"}));
  testing::internal::CaptureStderr();
  const Checkpoint checkpoint = Checkpoint::open(folder_.path());
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(checkpoint.find("z"), nullptr);
  EXPECT_THAT(log, HasSubstr("adapter.safetensors"));
}

TEST_F(Sharded, IndexAbsent) {
  std::filesystem::remove(folder_ / "model.safetensors.index.json");
  expect_words(open_error(), {"index.json is missing", kOne, kTwo, kThree});
}

TEST_F(Sharded, MalformedIndex) {
  const auto with = [&](const std::string& text) {
    write_file(folder_ / "model.safetensors.index.json", text);
    return open_error();
  };
  EXPECT_THAT(with("{"), HasSubstr("JSON"));
  EXPECT_THAT(with("[]"), HasSubstr("weight_map"));
  EXPECT_THAT(with("{\"weight_map\":{}}"), HasSubstr("no tensor"));
  EXPECT_THAT(with("{\"weight_map\":{\"a\":1}}"), HasSubstr("file name"));
  EXPECT_THAT(with("{\"weight_map\":{\"a\":\"../x.safetensors\"}}"), HasSubstr("not the name of a file"));
  EXPECT_THAT(with("{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}"), HasSubstr("twice"));
}

// A pipe that nobody writes to would be waited for.
TEST_F(Sharded, PipesAndFoldersAreRefusedByName) {
  for (const std::string name : {"config.json", "model.safetensors.index.json", kTwo}) {
    const std::string content = read_file(folder_ / name);
    std::filesystem::remove(folder_ / name);
    ASSERT_EQ(mkfifo((folder_ / name).c_str(), 0600), 0);
    expect_words(open_error(), {name, "pipe", "not a regular file"});
    std::filesystem::remove(folder_ / name);
    std::filesystem::create_directory(folder_ / name);
    expect_words(open_error(), {name, "it is a folder"});
    std::filesystem::remove(folder_ / name);
    write_file(folder_ / name, content);
  }
  ASSERT_EQ(mkfifo((folder_ / "generation_config.json").c_str(), 0600), 0);
  const Checkpoint checkpoint = Checkpoint::open(folder_.path());
  expect_words(error_of([&] { checkpoint.file_text("generation_config.json"); }), {"generation_config.json", "pipe"});
}

TEST_F(Sharded, TruncatedShardIsNamed) {
  const std::string whole = read_file(folder_ / kTwo);
  write_file(folder_ / kTwo, whole.substr(0, whole.size() - 1));
  expect_words(open_error(), {kTwo, "'c'", std::to_string(whole.size()), std::to_string(whole.size() - 1)});
}

TEST(CheckpointFolder, SingleFileAndOddFolders) {
  const TempFolder folder;
  EXPECT_THAT(error_of([&] { Checkpoint::open(folder / "none"); }), HasSubstr("no such"));
  expect_words(error_of([&] { Checkpoint::open(folder.path()); }), {"model.safetensors", "neither"});
  write_file(folder / "other.safetensors", shard({"x"}));
  expect_words(error_of([&] { Checkpoint::open(folder.path()); }), {"other.safetensors"});
  EXPECT_THAT(error_of([&] { Checkpoint::open(folder / "other.safetensors"); }), HasSubstr("is a folder"));
  write_file(folder / "model.safetensors", shard({"y"}));
  testing::internal::CaptureStderr();
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("other.safetensors"));
  EXPECT_THAT(checkpoint.names(), ElementsAre("y"));
  EXPECT_THAT(error_of([&] { checkpoint.config_json(); }), HasSubstr("config.json is missing"));
  EXPECT_FALSE(checkpoint.file_text("generation_config.json").has_value());
  write_file(folder / "generation_config.json", "{\"a\":1}");
  EXPECT_EQ(checkpoint.file_text("generation_config.json"), "{\"a\":1}");
}

TEST(CheckpointFolder, RequireNamesBothValues) {
  const TempFolder folder;
  write_file(folder / "model.safetensors", shard({"model.norm.weight"}));
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(checkpoint.require("model.norm.weight", {2}, {TensorType::f32}).bytes, 8u);
  expect_words(error_of([&] { checkpoint.require("model.norm.weigth", {2}, {TensorType::f32}); }),
               {"model.norm.weigth", "nearest", "model.norm.weight'"});
  expect_words(error_of([&] { checkpoint.require("model.norm.weight", {3}, {TensorType::f32}); }),
               {"model.safetensors", "model.norm.weight", "[2]", "[3]"});
  expect_words(error_of([&] {
                 checkpoint.require("model.norm.weight", {2}, {TensorType::bf16, TensorType::f16});
               }),
               {"model.norm.weight", "F32", "BF16 or F16"});
}

TEST(CheckpointFolder, LoadVector) {
  const TempFolder folder;
  write_file(folder / "model.safetensors", FileBuilder()
                                               .add<std::uint16_t>("bf", "BF16", {2}, {0x3f80, 0xc000})
                                               .add<std::uint16_t>("half", "F16", {3}, {0x3c00, 0xc100, 0x0001})
                                               .add<float>("single", "F32", {1}, {0.1f})
                                               .add<float>("scalar", "F32", {}, {3.0f})
                                               .add<std::uint16_t>("nan", "BF16", {1}, {0x7fc0})
                                               .build());
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_THAT(load_vector(checkpoint, "bf", 2), ElementsAre(1.0f, -2.0f));
  EXPECT_THAT(load_vector(checkpoint, "half", 3), ElementsAre(1.0f, -2.5f, 0x1p-24f));
  EXPECT_THAT(load_vector(checkpoint, "single", 1), ElementsAre(0.1f));
  EXPECT_THAT(load_vector(checkpoint, "scalar", 1), ElementsAre(3.0f));
  expect_words(error_of([&] { load_vector(checkpoint, "bf", 3); }), {"'bf'", "[2]", "[3]"});
  expect_words(error_of([&] { load_vector(checkpoint, "nan", 1); }), {"'nan'", "nan"});
}

TEST(CheckpointFolder, ContentHashFollowsContents) {
  const TempFolder a, b;
  for (const TempFolder* folder : {&a, &b}) {
    write_file(*folder / "config.json", "{}");
    write_file(*folder / "model.safetensors", shard({"x", "y"}));
  }
  const std::uint64_t hash = Checkpoint::open(a.path()).content_hash();
  EXPECT_EQ(Checkpoint::open(b.path()).content_hash(), hash);
  std::string changed = read_file(b / "model.safetensors");
  changed.back() = static_cast<char>(changed.back() ^ 1);
  write_file(b / "model.safetensors", changed);
  EXPECT_NE(Checkpoint::open(b.path()).content_hash(), hash);
}

TEST(CheckpointFolder, MappingsOutliveTheCheckpoint) {
  const TempFolder folder;
  write_file(folder / "model.safetensors", shard({"x"}));
  const std::byte* data = nullptr;
  std::shared_ptr<const void> keep;
  {
    const Checkpoint checkpoint = Checkpoint::open(folder.path());
    data = checkpoint.find("x")->data;
    keep = checkpoint.keep_alive();
  }
  float value = 0;
  std::memcpy(&value, data, 4);
  EXPECT_EQ(value, 1.5f);
}

TEST(CheckpointFolder, PrefixesAndSkippedModules) {
  const TempFolder flat, nested, neither, both;
  write_file(flat / "model.safetensors", shard({"model.layers.0.x", "model.norm.weight"}));
  write_file(
      nested / "model.safetensors",
      shard({"model.language_model.layers.0.x", "model.language_model.embed_tokens.weight", "model.vision_tower.a.b",
             "model.vision_tower.c", "model.embed_vision.proj.weight", "model.audio_tower.q"}));
  write_file(neither / "model.safetensors", shard({"transformer.h.0.x"}));
  write_file(both / "model.safetensors", shard({"model.language_model.layers.0.x", "model.layers.0.x"}));
  const Checkpoint checkpoint = Checkpoint::open(nested.path());
  EXPECT_EQ(weight_prefix(Checkpoint::open(flat.path())), "model.");
  EXPECT_EQ(weight_prefix(checkpoint), "model.language_model.");
  expect_words(error_of([&] { weight_prefix(Checkpoint::open(neither.path())); }), {"transformer.h.0.x"});
  expect_words(error_of([&] { weight_prefix(Checkpoint::open(both.path())); }), {"two text models"});
  const SkippedModules skipped = skipped_modules(checkpoint, "model.language_model.");
  EXPECT_EQ(skipped.tensors, 4);
  EXPECT_EQ(skipped.bytes, 32u);
  expect_words(skipped.text(), {"4 tensors", "model.vision_tower 2", "model.embed_vision 1", "model.audio_tower 1"});
  EXPECT_EQ(skipped_modules(Checkpoint::open(flat.path()), "model.").text(), "");
}

TEST(CheckpointFolder, RealCheckpoints) {
  const Checkpoint small =
      Checkpoint::open(std::filesystem::path(FACET_SOURCE_DIR) / "models/gemma4/checkpoints/docs-5m");
  EXPECT_EQ(weight_prefix(small), "model.");
  EXPECT_EQ(small.require("model.embed_tokens.weight", {8192, 256}, {TensorType::bf16}).bytes, 8192u * 256 * 2);
  EXPECT_EQ(load_vector(small, "model.norm.weight", 256).size(), 256u);

  const char* reference = std::getenv("FACET_REFERENCE_DIR");
  const std::filesystem::path root =
      reference != nullptr ? reference : std::filesystem::path(FACET_SOURCE_DIR) / "../shared";
  if (!std::filesystem::exists(root / "models/gemma4-docs-22m")) {
    GTEST_SKIP() << "models/gemma4-docs-22m not found under " << root << "; set FACET_REFERENCE_DIR";
  }
  const Checkpoint sharded = Checkpoint::open(root / "models/gemma4-docs-22m");
  EXPECT_EQ(sharded.files().size(), 4u);
  EXPECT_EQ(sharded.tensor_bytes(), 45051152u);
  EXPECT_EQ(sharded.find("model.layers.3.self_attn.v_proj.weight"), nullptr);
}

}  // namespace
}  // namespace facet::test
