// Plugins that are broken one way each: refused with the file, the field, both values and the cure.
#include "plugin_fixture.h"

namespace facet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_support::fixture;

struct Broken {
  const char* fixture;
  std::vector<const char*> texts;  // field, their value, our value, cure
  bool before_loading;             // no code of the library may have run
};

void PrintTo(const Broken& broken, std::ostream* out) {
  *out << broken.fixture;
}

class RefusalTest : public testing_support::PluginTest, public ::testing::WithParamInterface<Broken> {};

TEST_P(RefusalTest, NamesFileFieldBothValuesAndCure) {
  const Broken& broken = GetParam();
  const fs::path file = fixture(broken.fixture);
  ASSERT_TRUE(fs::exists(file)) << file;
  const std::string text = refusal_of(file);
  EXPECT_THAT(text, HasSubstr(fs::canonical(file).string()));
  for (const char* part : broken.texts) EXPECT_THAT(text, HasSubstr(part));
  const char* ran = std::getenv("FACET_FIXTURE_RAN");
  if (broken.before_loading) {
    EXPECT_EQ(ran, nullptr) << "code of the plugin ran: " << ran;
  }
  // The answer is the same the second time.
  EXPECT_EQ(refusal_of(file), text);
}

INSTANTIATE_TEST_SUITE_P(
    Stamp, RefusalTest,
    ::testing::Values(
        Broken{"older_contract", {"contract is -1", "has 0", "rebuild the plugin"}, true},
        Broken{"newer_contract", {"contract is 7", "has 0", "update this program"}, true},
        Broken{"other_layout", {"layout is 0123456789abcdef", "this program has ", "rebuild the plugin"}, true},
        Broken{"other_sanitizer", {"sanitizer is memory", "this program has ", "FACET_SANITIZE"}, true},
        Broken{"other_stdlib", {"stdlib is libother", "has libstdc++", "same C++ standard library"}, true},
        Broken{"other_containers", {"containers is other", "this program has ", "_GLIBCXX_DEBUG"}, true},
        Broken{"other_arch", {"arch is vax", "this program has ", "build the plugin for"}, true},
        Broken{"missing_key", {"containers is (absent)", "this program has ", "_GLIBCXX_DEBUG"}, true},
        Broken{"static_constructor", {"sanitizer is memory", "this program has ", "FACET_SANITIZE"}, true},
        Broken{"no_stamp", {".facet.stamp is absent", "facet-plugin-stamp", "FACET_EXPORT_PLUGIN"}, true},
        Broken{
            "bad_magic", {".facet.stamp holds '", "starts with 'facet-plugin-stamp;'", "FACET_EXPORT_PLUGIN"}, true}),
    [](const auto& broken) { return std::string(broken.param.fixture); });

INSTANTIATE_TEST_SUITE_P(
    Library, RefusalTest,
    ::testing::Values(
        Broken{"unresolved_symbol", {"facet_removed_host_function", "rebuild the plugin"}, true},
        Broken{"no_entry", {"entry symbol is absent", "facet_plugin_v0", "FACET_EXPORT_PLUGIN"}, false},
        Broken{"throwing_entry", {"facet_plugin_v0() threw 'entry fell over'", "correct the plugin"}, false},
        Broken{"null_descriptor", {"facet_plugin_v0() returned null", "needed is a descriptor", "return"}, false}),
    [](const auto& broken) { return std::string(broken.param.fixture); });

INSTANTIATE_TEST_SUITE_P(
    Descriptor, RefusalTest,
    ::testing::Values(
        Broken{"descriptor_size", {"size of the descriptor is 16", "has 1", "rebuild"}, false},
        Broken{"descriptor_contract", {"contract_version is 9", "has 0", "rebuild"}, false},
        Broken{"descriptor_layout", {"layout_hash is 0000000000000005", "has ", "rebuild"}, false},
        Broken{"other_signature", {"build_signature is '", "says '", "compiler=gcc 1;", "FACET_EXPORT_PLUGIN"}, false},
        Broken{"wrong_kind", {"kind is 77", "1 to 4", "update this program or correct"}, false},
        Broken{"interface_version", {"interface_version is 8", "has 0", "rebuild"}, false},
        Broken{"null_name", {"name is '(null)'", "snake_case", "rebuild"}, false},
        Broken{"bad_name", {"name is 'Not-Snake'", "snake_case", "rebuild"}, false},
        Broken{"bad_version", {"version is '1.0'", "major.minor.patch", "rebuild"}, false},
        Broken{"no_summary", {"summary is ''", "one line", "rebuild"}, false},
        Broken{"no_devices", {"devices is 0x0", "0x3", "rebuild"}, false},
        Broken{"unknown_device", {"devices is 0x11", "0x3", "rebuild"}, false},
        Broken{"unknown_phase", {"phases is 0xc", "0x3", "rebuild"}, false},
        Broken{"unknown_flag", {"flags is 0x200", "0x3f", "update this program"}, false},
        Broken{"null_create", {"create is null", "needed is a function", "rebuild"}, false},
        Broken{"null_destroy", {"destroy is null", "needed is a function", "rebuild"}, false}),
    [](const auto& broken) { return std::string(broken.param.fixture); });

INSTANTIATE_TEST_SUITE_P(
    Schema, RefusalTest,
    ::testing::Values(Broken{"null_options", {"options is null", "option_count is 3", "rebuild"}, false},
                      Broken{"option_name", {"options[1].name is 'Block-Size'", "snake_case", "rebuild"}, false},
                      Broken{"option_default", {"default_integer is 9", "0 to 4", "default inside"}, false},
                      Broken{
                          "option_range", {"min_integer is 5", "max_integer is 4", "min must not be above max"}, false},
                      Broken{"option_nan", {"default_real is nan", "0 to 1", "default inside"}, false},
                      Broken{"option_choice", {"default_text is 'three'", "one, two", "name one of them"}, false},
                      Broken{"option_summary", {"'on'.summary is empty", "one line of text", "rebuild"}, false},
                      Broken{"option_twice", {"option 'depth': the name appears twice", "unique", "rebuild"}, false},
                      Broken{"option_size", {"options[1].size is 8", "has 1", "rebuild"}, false},
                      Broken{"option_type", {"type is 9", "1 to 4", "rebuild"}, false}),
    [](const auto& broken) { return std::string(broken.param.fixture); });

}  // namespace
}  // namespace facet
