// Sizes on the command line.
#pragma once

#include <cstdint>
#include <string>

namespace facet::cli {

// "10GiB", "512 MiB", "1.5GB", "4096": KiB, MiB, GiB and TiB are powers of 1,024, KB, MB, GB and TB of 1,000; no unit
// means bytes. Rounds down to whole bytes. Throws Error(usage) naming `option` for anything else, for 0 and above 2^53
// bytes.
std::uint64_t parse_byte_size(const std::string& text, const std::string& option);

}  // namespace facet::cli
