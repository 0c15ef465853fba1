// probe() and create() of plugins that misbehave there.
#include "plugin_fixture.h"

namespace facet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::fixture;

class CreateTest : public testing_support::PluginTest {
 protected:
  std::string create_refusal(const std::string& name) {
    PluginRegistry plugins = registry();
    const LoadedPlugin& plugin = plugins.load_file(fixture(name));
    const std::string text = refusal([&] { plugins.create<abi::Scheduler>(plugin, OptionSet(*plugin.descriptor)); });
    EXPECT_THAT(text, AllOf(HasSubstr(fs::canonical(fixture(name)).string()), HasSubstr("scheduler plugin 'broken'")));
    return text;
  }
};

TEST_F(CreateTest, ThrowingProbe) {
  EXPECT_THAT(create_refusal("throwing_probe"), AllOf(HasSubstr("probe says failed"), HasSubstr("needed is ok"),
                                                      HasSubstr("probe fell over"), HasSubstr("must not throw")));
}

TEST_F(CreateTest, UnavailableGivesAllReasons) {
  EXPECT_THAT(create_refusal("unavailable"),
              AllOf(HasSubstr("probe says unavailable"), HasSubstr("needed is ok"),
                    HasSubstr("no device of this sort; no driver either"), HasSubstr("choose another plugin")));
}

// A CUDA plugin with the static runtime loads everywhere; only its probe needs the driver.
TEST_F(CreateTest, CudaPluginLoadsWithoutADriver) {
#ifdef FACET_HAS_CUDA
  PluginRegistry plugins = registry();
  const LoadedPlugin& plugin = plugins.load_file(fixture("cuda_probe"));
  EXPECT_STREQ(plugin.descriptor->name, "cuda_probe");
  if (fs::exists("/dev/nvidiactl")) {
    EXPECT_TRUE(plugins.create<abi::Scheduler>(plugin, OptionSet(*plugin.descriptor)));
    return;
  }
  const std::string text = refusal([&] { plugins.create<abi::Scheduler>(plugin, OptionSet(*plugin.descriptor)); });
  EXPECT_THAT(text, AllOf(HasSubstr("probe says unavailable"), HasSubstr("no GPU: there is no NVIDIA driver"),
                          Not(HasSubstr("insufficient"))));
#else
  GTEST_SKIP() << "built without CUDA: no nvcc was found, or FACET_CUDA is OFF";
#endif
}

TEST_F(CreateTest, ThrowingCreate) {
  EXPECT_THAT(create_refusal("throwing_create"),
              AllOf(HasSubstr("create says failed"), HasSubstr("unknown exception"), HasSubstr("must not throw")));
}

TEST_F(CreateTest, FailingCreate) {
  EXPECT_THAT(create_refusal("failing_create"),
              AllOf(HasSubstr("create says invalid argument"), HasSubstr("needed is ok"),
                    HasSubstr("depth 3 needs breadth 4"), HasSubstr("correct its options")));
}

TEST_F(CreateTest, NullInstance) {
  EXPECT_THAT(create_refusal("null_instance"),
              AllOf(HasSubstr("null instance"), HasSubstr("needed is an instance"), HasSubstr("correct the plugin")));
}

TEST_F(CreateTest, InstanceOfAnotherKind) {
  PluginRegistry plugins = registry();
  const LoadedPlugin& plugin = plugins.load_file(fixture("scheduler_minimal"));
  EXPECT_THAT(refusal([&] { plugins.create<abi::Linear>(plugin, OptionSet(*plugin.descriptor)); }),
              AllOf(HasSubstr("kind is scheduler"), HasSubstr("instance of linear")));
}

TEST_F(CreateTest, OptionsOfAnotherSchema) {
  PluginRegistry plugins = registry();
  const LoadedPlugin& with_option = plugins.load_file(fixture("scheduler_minimal"));
  const LoadedPlugin& without = plugins.load_file(fixture("linear_minimal"));
  EXPECT_THAT(refusal([&] { plugins.create<abi::Scheduler>(with_option, OptionSet(*without.descriptor)); }),
              AllOf(HasSubstr("0 option values"), HasSubstr("schema of 1"), HasSubstr("resolve the options")));
}

TEST_F(CreateTest, HostTableIsNeeded) {
  EXPECT_THAT(refusal([] { PluginRegistry(nullptr, {}); }), HasSubstr("needs a host table"));
}

}  // namespace
}  // namespace facet
