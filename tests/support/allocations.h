// Counts the heap allocations of the whole test program: what steady state promises is that there are none.
#pragma once

#include <cstdint>

namespace fusegrad::test {

/// Calls of operator new so far, in every form, by every thread.
std::int64_t allocations();

}  // namespace fusegrad::test
