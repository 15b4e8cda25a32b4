// A context whose memory is the host's under a GPU's name: whoever reads or writes a tensor without asking for the
// device is found out by Tensor::data(), and copies are counted.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <fusegrad/autograd/backend.h>
#include <fusegrad/autograd/context_state.h>

namespace fusegrad::test {

class FakeGpu {
 public:
  Context context() const { return context_; }
  int copies_from_host() const { return backend_->copies_from_host; }

 private:
  struct Memory final : detail::Backend {
    Device device() const override { return {.type = DeviceType::cuda, .index = 0}; }
    void* allocate(std::size_t bytes) override { return std::aligned_alloc(256, (bytes + 255) / 256 * 256); }
    void release(void* block) override { std::free(block); }  // NOLINT(cppcoreguidelines-no-malloc)
    void copy_from_host(void* to, const void* from, std::size_t bytes) override {
      ++copies_from_host;
      copy_within(to, from, bytes);
    }
    void copy_to_host(void* to, const void* from, std::size_t bytes) override { copy_within(to, from, bytes); }
    void copy_within(void* to, const void* from, std::size_t bytes) override {
      if (bytes != 0) std::memmove(to, from, bytes);
    }
    void fill_zero(void* block, std::size_t bytes) override {
      if (bytes != 0) std::memset(block, 0, bytes);
    }
    void synchronize() override {}

    int copies_from_host = 0;
  };

  Memory* backend_ = new Memory;  // owned by the context
  Context context_{std::make_shared<detail::ContextState>(std::unique_ptr<detail::Backend>(backend_), 1, Fusion::on)};
};

}  // namespace fusegrad::test
