#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>

#include <fusegrad/autograd/cpu/host_memory.h>
#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/autograd/narrow.h>

namespace fusegrad::detail {
namespace {

constexpr std::align_val_t kAlignment{256};

class CpuBackend final : public Backend {
 public:
  Device device() const override { return {}; }
  void* allocate(std::size_t bytes) override { return ::operator new(bytes, kAlignment, std::nothrow); }
  void release(void* block) override { ::operator delete(block, kAlignment); }
  void copy_from_host(void* to, const void* from, std::size_t bytes) override { copy_within(to, from, bytes); }
  void copy_to_host(void* to, const void* from, std::size_t bytes) override { copy_within(to, from, bytes); }
  void copy_within(void* to, const void* from, std::size_t bytes) override {
    if (bytes != 0) std::memmove(to, from, bytes);
  }
  void fill(void* block, const void* element, std::size_t element_bytes, std::size_t count) override {
    auto* out = static_cast<std::byte*>(block);
    for (std::size_t i = 0; i < count; ++i) std::memcpy(out + i * element_bytes, element, element_bytes);
  }
  void convert(void* to, Dtype to_dtype, const void* from, Dtype from_dtype, std::size_t count) override {
    visit_any(from_dtype, [&]<class From>() {
      visit_floating(to_dtype, [&]<class To>() {
        const auto* source = static_cast<const From*>(from);
        std::transform(source, source + count, static_cast<To*>(to),
                       [](From value) { return narrow<To>(static_cast<double>(value)); });
      });
    });
  }
  void synchronize() override {}
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace fusegrad::detail
