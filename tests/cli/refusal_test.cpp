// Bad configurations, plugins and checkpoints: everything is named, nothing half runs, and the exit code says whose
// fault it is.
#include <gmock/gmock.h>

#include <fstream>

#include "config_text.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

void expect_error_document(const ProgramResult& run, const std::string& kind) {
  const Json error = run.json()["error"];
  EXPECT_EQ(error["kind"], kind) << run.text();
  EXPECT_NE(run.exit_code, 0) << run.text();
  // The same text as on stderr.
  EXPECT_THAT(run.err, HasSubstr(error["text"].get<std::string>()));
}

class RefusalTest : public FolderTest {
 protected:
  ProgramResult run_config(const std::string& toml) const {
    return run_facet({"run", write("config.toml", toml), "--prompt", "a", "--max-tokens", "1", "--json"});
  }
};

TEST_F(RefusalTest, AllMistakesOfAConfigAtOnceWithTheirLines) {
  const ProgramResult run = run_config(
      "[model]\n"
      "path = \"nowhere\"\n"
      "[engine]\n"
      "max_sequenzes = 2\n"       // line 4
      "max_context = \"many\"\n"  // line 5
      "[linear]\n"
      "plugin = \"dense\"\n"
      "[atention]\n"  // line 8
      "plugin = \"flash\"\n"
      "[kv_cache]\n"
      "plugin = \"static\"\n"
      "[scheduler]\n"
      "plugin = \"static\"\n");
  EXPECT_EQ(run.exit_code, 2) << run.text();
  expect_error_document(run, "config");
  EXPECT_THAT(run.err, AllOf(HasSubstr("config.toml:4: engine"), HasSubstr("max_sequences"),
                             HasSubstr("config.toml:5: engine.max_context"), HasSubstr("config.toml:8:"),
                             HasSubstr("attention")));
}

TEST_F(RefusalTest, WrongPluginOptionsNameTheKeyAndTheNearestOption) {
  ConfigText text;
  text.kv_cache = "[kv_cache]\nplugin = \"paged\"\noptions = { block_token = 16 }";
  const ProgramResult run = run_config(text.toml());
  EXPECT_EQ(run.exit_code, 2) << run.text();
  EXPECT_THAT(run.err, AllOf(HasSubstr("block_token"), HasSubstr("block_tokens"), HasSubstr("config.toml:")));
}

TEST_F(RefusalTest, AnUnknownPluginListsEveryPlace) {
  ConfigText text;
  text.attention = "[attention]\nplugin = \"flsh\"";
  const std::string config = write("config.toml", text.toml());
  const fs::path extra = folder_ / "extra", from_environment = folder_ / "environment";
  fs::create_directories(extra);
  const ProgramResult run = run_facet({"run", config, "--prompt", "a", "--plugin-dir", extra.string()}, {},
                                      {{"FACET_PLUGIN_PATH", from_environment.string()}});
  EXPECT_EQ(run.exit_code, 3) << run.text();
  EXPECT_THAT(run.err, AllOf(HasSubstr("'flsh'"), HasSubstr("did you mean 'flash'"), HasSubstr(extra.string()),
                             HasSubstr(from_environment.string()), HasSubstr("lib/facet/plugins")));
}

TEST_F(RefusalTest, ATextFileIsNotAPlugin) {
  write("scheduler_mine.so", "this is no library\n");
  ConfigText text;
  text.scheduler = "[scheduler]\nplugin = \"./scheduler_mine.so\"";
  const ProgramResult run = run_config(text.toml());
  EXPECT_EQ(run.exit_code, 3) << run.text();
  EXPECT_THAT(run.err, HasSubstr((fs::canonical(folder_) / "scheduler_mine.so").string()));
}

TEST_F(RefusalTest, AMissingCheckpointIsNamed) {
  ConfigText text;
  text.model = "no-such-folder";
  const ProgramResult run = run_config(text.toml());
  EXPECT_EQ(run.exit_code, 3) << run.text();
  // The path that was looked at, and what the file says where.
  EXPECT_THAT(run.err, AllOf(HasSubstr((fs::canonical(folder_) / "no-such-folder").string()),
                             HasSubstr("config.toml:2: model.path = \"no-such-folder\"")));
  expect_error_document(run, "checkpoint");
  const ProgramResult words = run_facet({"tokenize", (folder_ / "config.toml").string(), "--text", "a"});
  EXPECT_EQ(words.exit_code, 3) << words.text();
  EXPECT_EQ(words.out, "");
  EXPECT_THAT(words.err, HasSubstr("config.toml:2: model.path = \"no-such-folder\""));
}

TEST_F(RefusalTest, ATruncatedFileIsRefusedBeforeItIsRead) {
  const fs::path copy = folder_ / "cut";
  fs::create_directories(copy);
  for (const fs::directory_entry& entry : fs::directory_iterator(embedded_checkpoint())) {
    if (entry.is_regular_file()) fs::copy_file(entry.path(), copy / entry.path().filename());
  }
  const fs::path file = copy / "model.safetensors";
  const std::uintmax_t whole = fs::file_size(file);
  fs::permissions(file, fs::perms::owner_all);
  fs::resize_file(file, whole - 4096);
  ConfigText text;
  text.model = copy.string();
  const ProgramResult run = run_config(text.toml());
  EXPECT_EQ(run.signal, 0) << run.text();
  EXPECT_EQ(run.exit_code, 3) << run.text();
  expect_error_document(run, "checkpoint");
  EXPECT_THAT(run.err, AllOf(HasSubstr("model.safetensors"), HasSubstr(std::to_string(whole - 4096))));
}

// Facet computes causal attention only; running such a model would give other text without a word.
TEST_F(RefusalTest, BidirectionalAttentionIsRefused) {
  const fs::path copy = folder_ / "both-ways";
  fs::create_directories(copy);
  for (const fs::directory_entry& entry : fs::directory_iterator(embedded_checkpoint())) {
    if (entry.is_regular_file() && entry.path().filename() != "config.json")
      fs::create_symlink(entry.path(), copy / entry.path().filename());
  }
  Json config = Json::parse(std::ifstream(embedded_checkpoint() / "config.json"));
  ConfigText text;
  text.model = copy.string();
  for (const Json& value : {Json(true), Json("all")}) {
    config["use_bidirectional_attention"] = value;
    write("both-ways/config.json", config.dump());
    const ProgramResult run = run_config(text.toml());
    EXPECT_EQ(run.exit_code, 3) << run.text();
    EXPECT_THAT(run.err, AllOf(HasSubstr("use_bidirectional_attention: " + value.dump()),
                               HasSubstr("bidirectional attention is not supported")));
  }
  config["use_bidirectional_attention"] = "vision";
  write("both-ways/config.json", config.dump());
  EXPECT_EQ(run_config(text.toml()).exit_code, 0);
}

// A field of the wrong type is no absent field, and of two equal keys none is chosen.
TEST_F(RefusalTest, FieldsOfTheCheckpointThatAreWrong) {
  const fs::path copy = folder_ / "wrong";
  fs::create_directories(copy);
  for (const fs::directory_entry& entry : fs::directory_iterator(embedded_checkpoint())) {
    if (entry.is_regular_file() && entry.path().filename() != "config.json")
      fs::create_symlink(entry.path(), copy / entry.path().filename());
  }
  const Json right = Json::parse(std::ifstream(embedded_checkpoint() / "config.json"));
  ConfigText text;
  text.model = copy.string();
  const std::string config = write("config.toml", text.toml());
  const auto expect_refused = [&](const std::string& content, const std::string& message) {
    write("wrong/config.json", content);
    const ProgramResult run = run_facet({"run", config, "--prompt", "a", "--max-tokens", "1"});
    EXPECT_EQ(run.exit_code, 3) << content << run.text();
    EXPECT_THAT(run.err, AllOf(HasSubstr((copy / "config.json").string()), HasSubstr(message)));
  };
  for (const auto& [patch, message] : std::vector<std::pair<Json, const char*>>{
           {{{"attention_k_eq_v", 1}}, "attention_k_eq_v: 1 is neither true nor false"},
           {{{"tie_word_embeddings", "x"}}, "tie_word_embeddings: \"x\" is neither true nor false"},
           {{{"per_layer_config", "x"}}, "per_layer_config: \"x\" is no object"},
           {{{"per_layer_config", {{"2", 7}}}}, "per_layer_config.2: 7 is no object"},
           {{{"hidden_activation", 7}}, "hidden_activation: 7 is no text"},
           {{{"rms_norm_eps", 1e300}}, "rms_norm_eps: 1e+300 is no positive number that a float holds"},
           {{{"rms_norm_eps", 2}}, "rms_norm_eps: 2 is above 1"},
           {{{"eos_token_id", 99999}}, "eos_token_id: 99999 is no token id"}}) {
    Json wrong = right;
    wrong.update(patch);
    expect_refused(wrong.dump(), message);
  }
  std::string twice = right.dump();
  expect_refused(twice.insert(1, "\"vocab_size\":1,"), "'vocab_size' occurs twice");
}

TEST_F(RefusalTest, AConfigThatIsNotThere) {
  const ProgramResult run = run_facet({"run", (folder_ / "absent.toml").string(), "--prompt", "a"});
  EXPECT_EQ(run.exit_code, 2) << run.text();
  EXPECT_THAT(run.err, HasSubstr("absent.toml"));
}

struct WrongUse {
  const char* name;
  std::vector<std::string> arguments;  // CONFIG and TOKENS stand for files
  const char* message;
};

void PrintTo(const WrongUse& use, std::ostream* out) {
  *out << use.name;
}

class WrongUseTest : public RefusalTest, public testing::WithParamInterface<WrongUse> {};

TEST_P(WrongUseTest, EndsWithCodeTwo) {
  std::vector<std::string> arguments = GetParam().arguments;
  for (std::string& word : arguments) {
    if (word == "CONFIG") word = write("config.toml", ConfigText{}.toml());
    if (word == "SHORT") word = write("short.jsonl", "[2]\n");
    if (word == "TWICE") word = write("twice.jsonl", "{\"text\":\"x\",\"text\":\"y\"}\n");
    if (word == "TOKENS") word = write("tokens.jsonl", "[2,3,4]\n");
  }
  const ProgramResult run = run_facet(arguments);
  EXPECT_EQ(run.exit_code, 2) << run.text();
  EXPECT_EQ(run.out, "");
  EXPECT_THAT(run.err, testing::StartsWith("facet: "));
  EXPECT_THAT(run.err, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Uses, WrongUseTest,
    testing::Values(
        WrongUse{"no_command", {}, "a command is missing; commands are run, eval,"},
        WrongUse{"unknown_command", {"explan"}, "did you mean 'explain'"},
        WrongUse{"no_config", {"run"}, "facet: usage error: config is required; `facet run --help` shows"},
        WrongUse{"one_variant",
                 {"ab", "CONFIG", "--requests", "TOKENS"},
                 "facet: usage error: configs: At least 2 required but received 1; `facet ab --help`"},
        WrongUse{"unknown_flag", {"run", "CONFIG", "--prmpt", "a"}, "'--prmpt'; did you mean '--prompt'?"},
        WrongUse{"flag_with_value",
                 {"run", "CONFIG", "--prompt", "a", "--temperatur=0.5"},
                 "'--temperatur'; did you mean '--temperature'?"},
        WrongUse{"strange_flag", {"plan", "CONFIG", "--zzz"}, "unknown option '--zzz'; `facet plan --help`"},
        WrongUse{"two_configs", {"plan", "CONFIG", "CONFIG"}, "one argument too many"},
        WrongUse{"no_plugin_dir", {"explain", "CONFIG", "--plugin-dir", "no-such-folder"}, "no-such-folder"},
        WrongUse{"two_sources", {"run", "CONFIG", "--prompt", "a", "--requests", "TOKENS"}, "--requests"},
        WrongUse{"no_source", {"run", "CONFIG"}, "give one of --prompt"},
        WrongUse{"not_utf8", {"run", "CONFIG", "--prompt", "a\xff"}, "--prompt: the text is not valid UTF-8 at byte 1"},
        WrongUse{"text_not_utf8", {"tokenize", "CONFIG", "--text", "\xc3"}, "--text: the text is not valid UTF-8"},
        WrongUse{"tokens_negative", {"run", "CONFIG", "--prompt", "a", "--max-tokens=-1"}, "[0, 2147483648]"},
        WrongUse{"tokens_huge",
                 {"run", "CONFIG", "--prompt", "a", "--max-tokens", "9223372036854775808"},
                 "[0, 2147483648]"},
        WrongUse{"tokens_empty", {"run", "CONFIG", "--prompt", "a", "--max-tokens", ""}, "[0, 2147483648]"},
        WrongUse{"tokens_word", {"run", "CONFIG", "--prompt", "a", "--max-tokens", "5x"}, "'5x'"},
        WrongUse{"seed_negative", {"run", "CONFIG", "--prompt", "a", "--seed=-1"}, "18446744073709551615"},
        WrongUse{
            "seed_huge", {"run", "CONFIG", "--prompt", "a", "--seed", "18446744073709551616"}, "18446744073709551615"},
        WrongUse{"temperature", {"run", "CONFIG", "--prompt", "a", "--temperature=-0.5"}, "temperature"},
        WrongUse{"temperature_nan", {"run", "CONFIG", "--prompt", "a", "--temperature", "nan"}, "temperature"},
        WrongUse{"temperature_empty",
                 {"run", "CONFIG", "--prompt", "a", "--temperature", ""},
                 "'' is not a number, 0 to 100"},
        WrongUse{"temperature_word",
                 {"run", "CONFIG", "--prompt", "a", "--temperature", "abc"},
                 "facet: usage error: --temperature: 'abc' is not a number, 0 to 100; `facet run --help`"},
        WrongUse{"min_p_word", {"run", "CONFIG", "--prompt", "a", "--min-p", "0.5x"}, "'0.5x' is not a number, 0 to 1"},
        WrongUse{"top_p", {"run", "CONFIG", "--prompt", "a", "--top-p", "0"}, "top_p"},
        WrongUse{"top_k", {"run", "CONFIG", "--prompt", "a", "--top-k=-2"}, "--top-k"},
        WrongUse{"greedy_and_warm",
                 {"run", "CONFIG", "--prompt", "a", "--greedy", "--temperature", "1"},
                 "--greedy: contradicts --temperature 1"},
        WrongUse{"top_k_greedy", {"run", "CONFIG", "--prompt", "a", "--top-k", "5"}, "--top-k: has no effect"},
        WrongUse{"top_p_greedy", {"run", "CONFIG", "--prompt", "a", "--greedy", "--top-p", "0.5"}, "--top-p: has no"},
        WrongUse{"requests_absent",
                 {"run", "CONFIG", "--requests", "no-such.jsonl"},
                 "no-such.jsonl: cannot be opened: No such file"},
        WrongUse{"check_empty", {"plugins", "check", ""}, "must not be empty"},
        WrongUse{"in_empty", {"quantize", "--in", "", "--out", "x"}, "--in: must not be empty"},
        WrongUse{"text_twice", {"tokenize", "CONFIG", "--file", "TWICE"}, "twice.jsonl:1: 'text' occurs twice"},
        WrongUse{"prompt_twice", {"run", "CONFIG", "--requests", "TWICE"}, "twice.jsonl:1: 'text' occurs twice"},
        WrongUse{"ab_tokens", {"ab", "CONFIG", "CONFIG", "--requests", "TOKENS", "--max-tokens=-1"}, "[0, 2147483648]"},
        WrongUse{"bench_seed", {"bench", "CONFIG", "--seed=-1"}, "--seed"},
        WrongUse{"eval_short", {"eval", "CONFIG", "--tokens", "SHORT"}, "short.jsonl: sequence 1"},
        WrongUse{"log_level", {"run", "CONFIG", "--prompt", "a", "--log-level", "loud"}, "loud"},
        WrongUse{"eval_path", {"eval", "CONFIG", "--tokens", "TOKENS", "--path", "prefil"}, "prefil"},
        WrongUse{"tokenize_both", {"tokenize", "CONFIG", "--text", "a", "--file", "TOKENS"}, "either"},
        WrongUse{"tokenize_file", {"tokenize", "CONFIG", "--file", "TOKENS"}, "tokens.jsonl:1:"},
        WrongUse{"plan_limit", {"plan", "CONFIG", "--memory-limit", "10 gigs"}, "10 gigs"},
        WrongUse{"plan_zero", {"plan", "CONFIG", "--memory-limit", "0"}, "--memory-limit"},
        WrongUse{"plan_limit_empty", {"plan", "CONFIG", "--memory-limit", ""}, "--memory-limit: must not be empty"},
        WrongUse{"run_limit_empty",
                 {"run", "CONFIG", "--prompt", "a", "--memory-limit", ""},
                 "--memory-limit: must not be empty"},
        WrongUse{"bench_limit_empty", {"bench", "CONFIG", "--memory-limit", ""}, "--memory-limit: must not be empty"},
        WrongUse{"limit_huge",
                 {"plan", "CONFIG", "--memory-limit", "99999999999GiB"},
                 "'99999999999GiB' is too large; at most 9007199254740992 bytes"},
        WrongUse{"lengths_hex", {"bench", "CONFIG", "--prompt-tokens", "0x10"}, "--prompt-tokens: in '0x10': '0x10'"},
        WrongUse{"lengths_gap", {"bench", "CONFIG", "--prompt-tokens", "16,,32"}, "--prompt-tokens: in '16,,32': ''"},
        WrongUse{"lengths_end", {"bench", "CONFIG", "--generate", "1,"}, "--generate: in '1,': ''"},
        WrongUse{"batch_begin", {"bench", "CONFIG", "--batch", ",1"}, "--batch: in ',1': ''"},
        WrongUse{"batch_empty", {"bench", "CONFIG", "--batch", ""}, "--batch: in '': ''"},
        WrongUse{"batch_zero", {"bench", "CONFIG", "--batch", "0"}, "[1, 2147483648]"},
        WrongUse{"repeat_hex", {"bench", "CONFIG", "--repeat", "0x10"}, "--repeat"},
        WrongUse{"plugin_kind", {"plugins", "describe", "flash", "--kind", "atention"}, "atention"},
        WrongUse{"describe_alone", {"plugins", "describe"}, "plugin is required; `facet plugins describe --help`"},
        WrongUse{"plugins_alone",
                 {"plugins"},
                 "a command is missing; commands are list, describe, check; `facet plugins --help`"}),
    [](const testing::TestParamInfo<WrongUse>& param) { return param.param.name; });

// Asked for JSON, stdout holds one document whatever went wrong, also where no option was understood.
TEST_F(RefusalTest, WithJsonEveryKindOfFailureIsADocument) {
  const std::string config = write("config.toml", ConfigText{}.toml());
  expect_error_document(run_facet({"explan", "--json"}), "usage");
  expect_error_document(run_facet({"run", "--json"}), "usage");
  expect_error_document(run_facet({"explain", config, "--json", "--al"}), "usage");
  expect_error_document(run_facet({"run", config, "--json"}), "usage");
  expect_error_document(run_facet({"plan", (folder_ / "absent.toml").string(), "--json"}), "config");
  expect_error_document(run_facet({"plugins", "describe", "flsh", "--json"}), "plugin");
  // What follows "--" is no option, and without the option stdout stays empty.
  EXPECT_EQ(run_facet({"explan", "--", "--json"}).out, "");
}

TEST_F(RefusalTest, HelpAndVersionSucceed) {
  EXPECT_EQ(run_facet({"--help"}).exit_code, 0);
  EXPECT_EQ(run_facet({"run", "--help"}).exit_code, 0);
  const ProgramResult version = run_facet({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.out, HasSubstr("."));
}

}  // namespace
}  // namespace facet::cli_test
