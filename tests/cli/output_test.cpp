// Files and folders that commands write: checked before any work, and nothing half written stays.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <fstream>
#include <sstream>

#include "config_text.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The limit on file sizes that child processes inherit, put back afterwards.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit lower = before_;
    lower.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &lower);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

class OutputTest : public FolderTest {
 protected:
  static ProgramResult quantize(const std::string& out) {
    return run_facet({"quantize", "--in", embedded_checkpoint().string(), "--out", out});
  }
  // Two configs that cannot be planned: a refusal of --out must come first.
  ProgramResult ab(const std::string& out) const {
    const std::string config = write("broken.toml", "[model\n");
    return run_facet({"ab", config, config, "--requests", "absent.jsonl", "--out", out});
  }
};

TEST_F(OutputTest, QuantizeTakesATrailingSlash) {
  const ProgramResult run = quantize((folder_ / "int4").string() + "/");
  EXPECT_EQ(run.exit_code, 0) << run.text();
  EXPECT_TRUE(fs::exists(folder_ / "int4" / "model.safetensors"));
  EXPECT_FALSE(fs::exists(folder_ / "int4" / ".partial"));
}

TEST_F(OutputTest, QuantizeRefusesAnEmptyNameAndADanglingLink) {
  const ProgramResult empty = quantize("");
  EXPECT_EQ(empty.exit_code, 2) << empty.text();
  EXPECT_THAT(empty.err, AllOf(HasSubstr("--out"), HasSubstr("empty")));
  fs::create_symlink(folder_ / "nowhere", folder_ / "link");
  const ProgramResult link = quantize((folder_ / "link").string());
  EXPECT_EQ(link.exit_code, 1) << link.text();
  EXPECT_THAT(link.err, HasSubstr("leads nowhere"));
  EXPECT_FALSE(fs::exists(folder_ / "nowhere"));
}

TEST_F(OutputTest, QuantizePastTheFileSizeLimitReportsAndCleansUp) {
  ProgramResult run;
  {
    const FileSizeLimit limit(256 << 10);
    run = quantize((folder_ / "int4").string());
  }
  EXPECT_EQ(run.signal, 0) << run.text();
  EXPECT_EQ(run.exit_code, 1) << run.text();
  EXPECT_THAT(run.err, AllOf(HasSubstr("model.safetensors"), HasSubstr("cannot write"), HasSubstr("too large")));
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(OutputTest, AbChecksItsFileFirst) {
  const ProgramResult absent = ab((folder_ / "no" / "ab.json").string());
  EXPECT_EQ(absent.exit_code, 2) << absent.text();
  EXPECT_THAT(absent.err, AllOf(HasSubstr("--out"), HasSubstr((folder_ / "no").string()), HasSubstr("no folder")));
  const ProgramResult folder = ab(folder_.string());
  EXPECT_EQ(folder.exit_code, 2) << folder.text();
  EXPECT_THAT(folder.err, HasSubstr("is a folder"));
  const ProgramResult empty = ab("");
  EXPECT_EQ(empty.exit_code, 2) << empty.text();
  EXPECT_THAT(empty.err, HasSubstr("empty"));
  // A usable name goes on to the configs and leaves nothing behind when they are refused.
  const ProgramResult usable = ab((folder_ / "ab.json").string());
  EXPECT_EQ(usable.exit_code, 2) << usable.text();
  EXPECT_THAT(usable.err, HasSubstr("broken.toml"));
  EXPECT_FALSE(fs::exists(folder_ / "ab.json"));
}

// What was measured is on stdout even when the file cannot be written at the end.
TEST_F(OutputTest, AbPrintsBeforeItWrites) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "needs /dev/full";
  const std::string config = write("config.toml", ConfigText{}.toml());
  const std::string requests = write("requests.jsonl", "{\"prompt_ids\":[2,5],\"max_tokens\":2}\n");
  const ProgramResult run = run_facet(
      {"ab", config, config, "--requests", requests, "--rounds", "1", "--warmup", "0", "--out", "/dev/full", "--json"});
  EXPECT_EQ(run.exit_code, 1) << run.text();
  EXPECT_TRUE(run.json().contains("variants")) << run.text();
  EXPECT_THAT(run.err, HasSubstr("--out /dev/full: cannot be written: No space left"));
}

std::string text_of(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

// A result that cannot be written whole leaves the one before, and nothing else.
TEST_F(OutputTest, TheOldResultStaysUntilTheNewOneIsWhole) {
  ConfigText text;
  text.linear = "[linear]\nplugin = \"dense\"\n[[linear.rules]]\nmax_rows = 2\nplugin = \"reference\"";
  const std::string config = write("config.toml", text.toml());
  const std::string requests = write("requests.jsonl", "{\"prompt_ids\":[2,5],\"max_tokens\":2}\n");
  const std::string tuned = "# Row thresholds of linear plugins, measured by 'facet bench --tune'.\n# before\n";
  const std::string out = write("ab.json", "before"), rules = write("tuned.toml", tuned);
  ProgramResult ab, tune;
  {
    const FileSizeLimit limit(512);
    ab = run_facet({"ab", config, config, "--requests", requests, "--rounds", "1", "--warmup", "0", "--out", out});
    tune = run_facet({"bench", config, "--tune", rules, "--repeat", "1"});
  }
  EXPECT_EQ(ab.exit_code, 1) << ab.text();
  EXPECT_THAT(ab.err, AllOf(HasSubstr("--out " + out), HasSubstr("File too large")));
  EXPECT_EQ(text_of(out), "before");
  EXPECT_EQ(tune.exit_code, 1) << tune.text();
  EXPECT_THAT(tune.err, AllOf(HasSubstr("--tune " + rules), HasSubstr("File too large")));
  EXPECT_EQ(text_of(rules), tuned);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator{}), 4);
}

TEST_F(OutputTest, AResultGoesWhereALinkLeads) {
  const std::string config = write("config.toml", ConfigText{}.toml());
  const std::string requests = write("requests.jsonl", "{\"prompt_ids\":[2,5],\"max_tokens\":2}\n");
  fs::create_symlink("real.json", folder_ / "link.json");
  const ProgramResult run = run_facet({"ab", config, config, "--requests", requests, "--rounds", "1", "--warmup", "0",
                                       "--out", (folder_ / "link.json").string()});
  EXPECT_EQ(run.exit_code, 0) << run.text();
  EXPECT_TRUE(fs::is_symlink(folder_ / "link.json"));
  EXPECT_TRUE(Json::parse(text_of(folder_ / "real.json")).contains("variants"));
}

}  // namespace
}  // namespace facet::cli_test
