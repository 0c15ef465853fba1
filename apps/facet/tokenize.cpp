// facet tokenize: text to ids and back, with the checkpoint's tokenizer.
#include "common.h"
#include "facet/base/log.h"
#include "request_file.h"

namespace facet::cli {
namespace {

struct TokenizeOptions {
  std::string config, text, file;
  CLI::Option* text_given = nullptr;
};

std::vector<std::string> collect_texts(const TokenizeOptions& options) {
  if ((options.text_given->count() > 0) == !options.file.empty())
    throw_error(ErrorKind::usage, "give either --text or --file");
  if (options.file.empty()) {
    require_utf8("--text", options.text);
    return {options.text};
  }
  std::vector<std::string> texts;
  for (const JsonLine& line : read_json_lines(options.file)) {
    if (!line.object.is_object() || !line.object.contains("text") || !line.object["text"].is_string()) {
      throw_error(ErrorKind::usage, "{}:{}: expected {{\"text\": \"...\"}}", options.file, line.line);
    }
    texts.push_back(line.object["text"].get<std::string>());
  }
  return texts;
}

void tokenize(const TokenizeOptions& options, const GlobalOptions& global) {
  const std::vector<std::string> texts = collect_texts(options);
  const Config config = load_config(options.config);
  if (!config.model.synthetic.empty())
    throw_error(ErrorKind::config, "{}: model.synthetic '{}' has no tokenizer; name a checkpoint in model.path",
                config.file.string(), config.model.synthetic);
  const Tokenizer tokenizer =
      load_model_of(config, [&] { return Tokenizer::load(config.model.path / "tokenizer.json"); });
  Json document = {{"results", Json::array()}};
  for (const std::string& text : texts) {
    const std::vector<std::int32_t> ids = tokenizer.encode(text, {});
    Json tokens = Json::array();
    for (const std::int32_t id : ids) tokens.push_back(std::string(tokenizer.token(id)));
    document["results"].push_back({{"ids", ids}, {"tokens", tokens}, {"text", tokenizer.decode(ids, true)}});
  }
  if (global.json) {
    print_json(document);
    return;
  }
  for (const Json& result : document["results"]) fmt::print("{}\n{}\n", result["ids"].dump(), result["tokens"].dump());
}

}  // namespace

void add_tokenize(CLI::App& app, GlobalOptions& global) {
  CLI::App* command = app.add_subcommand("tokenize", "Token ids of a text, and the text of the ids");
  auto options = std::make_shared<TokenizeOptions>();
  command->add_option("config", options->config, "TOML file; only model.path counts")->required();
  options->text_given = command->add_option("--text", options->text, "The text");
  command->add_option("--file", options->file, "File with one {\"text\": ...} a line");
  add_global_options(*command, global);
  command->callback([options, &global] {
    set_log_level(parse_log_level(global.log_level));
    tokenize(*options, global);
  });
}

}  // namespace facet::cli
