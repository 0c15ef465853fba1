#include "facet/base/error.h"

#include <gtest/gtest.h>

namespace facet {
namespace {

TEST(Error, ExitCodesAreTheContract) {
  EXPECT_EQ(exit_code(ErrorKind::usage), 2);
  EXPECT_EQ(exit_code(ErrorKind::config), 2);
  EXPECT_EQ(exit_code(ErrorKind::plugin), 3);
  EXPECT_EQ(exit_code(ErrorKind::checkpoint), 3);
  EXPECT_EQ(exit_code(ErrorKind::request), 1);
  EXPECT_EQ(exit_code(ErrorKind::run), 1);
}

TEST(Error, ContextFollowsTheMessage) {
  Error error(ErrorKind::run, "kernel failed");
  error.add_context("in layer 17").add_context("in request 3");
  EXPECT_STREQ(error.what(), "kernel failed");
  EXPECT_EQ(error.full_text(), "kernel failed\n  in layer 17\n  in request 3");
}

TEST(Problems, AllAreReportedAtOnce) {
  Problems problems;
  problems.throw_if_any(ErrorKind::config, "nothing");
  problems.add("line {}: a", 1);
  problems.add("line {}: b", 2);
  try {
    problems.throw_if_any(ErrorKind::config, "two mistakes:");
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_EQ(error.message(), "two mistakes:\n  line 1: a\n  line 2: b");
  }
}

}  // namespace
}  // namespace facet
