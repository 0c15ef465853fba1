// The only place that includes toml++, so that every unit of the reader sees it with the same settings.
#pragma once

#define TOML_ENABLE_FORMATTERS 0
#define TOML_ENABLE_WINDOWS_COMPAT 0
#include <toml++/toml.h>
