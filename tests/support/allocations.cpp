#include "tests/support/allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::int64_t> count{0};

void* counted(void* block) {
  count.fetch_add(1, std::memory_order_relaxed);
  if (!block) throw std::bad_alloc();
  return block;
}

}  // namespace

// The array and nothrow forms of the standard library call these.
void* operator new(std::size_t bytes) { return counted(std::malloc(bytes ? bytes : 1)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit + (bytes ? 0 : unit)));
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { std::free(block); }

std::int64_t fusegrad::test::allocations() { return count.load(std::memory_order_relaxed); }
