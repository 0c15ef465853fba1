// The steps of reading tokenizer.json; each takes one part of the document into the data.
#pragma once

#include <string_view>

#include "json_reader.h"
#include "tokenizer_data.h"

namespace facet {

// Value of a byte token, "<0x0A>" with two hexadecimal digits; -1 for any other text.
int byte_token_value(std::string_view token);

// Vocabulary and added tokens into tokens, special, added and added_plain.
void load_tokens(const JsonField& document, TokenizerData& data);
// The model's settings and merges into bpe; needs the tokens.
void load_model(const JsonField& document, TokenizerData& data);
// normalizer and the pre_tokenizer that must follow from it.
void load_normalizer(const JsonField& document, TokenizerData& data);
// post_processor into prefix and suffix; needs the tokens.
void load_template(const JsonField& document, TokenizerData& data);
// decoder into the decoded texts; needs the tokens.
void load_decoder(const JsonField& document, TokenizerData& data);

}  // namespace facet
