// A context whose memory is the host's under a GPU's name: whoever reads or writes a tensor without asking for the
// device is found out by Tensor::data(), copies are counted, and memory can be made to end.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>

#include <fusegrad/autograd/backend.h>
#include <fusegrad/autograd/context_state.h>
#include <fusegrad/autograd/cpu/host_memory.h>

namespace fusegrad::test {

class FakeGpu {
 public:
  Context context() const { return context_; }
  int copies_from_host() const { return backend_->copies_from_host; }
  /// Blocks of `bytes` and more are not to be had from now on.
  void refuse_blocks_of(std::size_t bytes) { backend_->refused = bytes; }

 private:
  struct Memory final : detail::Backend {
    Device device() const override { return {.type = DeviceType::cuda, .index = 0}; }
    void* allocate(std::size_t bytes) override { return bytes < refused ? host->allocate(bytes) : nullptr; }
    void release(void* block) override { host->release(block); }
    void copy_from_host(void* to, const void* from, std::size_t bytes) override {
      ++copies_from_host;
      host->copy_from_host(to, from, bytes);
    }
    void copy_to_host(void* to, const void* from, std::size_t bytes) override { host->copy_to_host(to, from, bytes); }
    void copy_within(void* to, const void* from, std::size_t bytes) override { host->copy_within(to, from, bytes); }
    void fill(void* block, const void* element, std::size_t element_bytes, std::size_t count) override {
      host->fill(block, element, element_bytes, count);
    }
    void convert(void* to, Dtype to_dtype, const void* from, Dtype from_dtype, std::size_t count) override {
      host->convert(to, to_dtype, from, from_dtype, count);
    }
    void synchronize() override {}

    std::unique_ptr<detail::Backend> host = detail::make_cpu_backend();
    int copies_from_host = 0;
    std::size_t refused = std::numeric_limits<std::size_t>::max();
  };

  Memory* backend_ = new Memory;  // owned by the context
  Context context_{
      std::make_shared<detail::ContextState>(std::unique_ptr<detail::Backend>(backend_), detail::ContextSettings{})};
};

}  // namespace fusegrad::test
