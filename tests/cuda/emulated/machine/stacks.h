// Stacks of fibers, kept from run to run.
#pragma once

#include <boost/context/stack_context.hpp>

namespace facet::emulated {

// The allocator that a fiber is made with. Each stack ends in a pattern that is looked at when it comes back.
struct PooledStack {
  boost::context::stack_context allocate();
  void deallocate(boost::context::stack_context& stack) noexcept;
};

// Whether a fiber went past the end of its stack since the last call.
bool stack_overflowed();

}  // namespace facet::emulated
