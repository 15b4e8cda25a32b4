#include <fusegrad/autograd/context_state.h>
#include <fusegrad/optim/device_progress.h>

namespace fusegrad::detail {
namespace {

constexpr std::size_t kLearningRate = 0;
constexpr std::size_t kGradientFactor = 1;
constexpr std::size_t kHeaderBytes = 256;

std::size_t counts_bytes(std::size_t parameters) { return (parameters * sizeof(std::int64_t) + 255) / 256 * 256; }

}  // namespace

DeviceProgress::DeviceProgress(const Context& context, std::size_t parameters, std::size_t scalar_bytes,
                               double learning_rate)
    : context_(context),
      parameters_(parameters),
      scalar_bytes_(scalar_bytes),
      memory_(Tensor::zeros(
          context, {static_cast<std::int64_t>(kHeaderBytes + counts_bytes(parameters) + parameters * scalar_bytes)},
          Dtype::u8)) {
  set_learning_rate(learning_rate);
  set_gradient_factor(1);
}

std::vector<std::int64_t> DeviceProgress::steps() const {
  context_.state().check_host_copy("step counts were read");
  std::vector<std::int64_t> steps(parameters_);
  context_.state().backend().copy_to_host(steps.data(), static_cast<const std::byte*>(memory_.raw()) + kHeaderBytes,
                                          parameters_ * sizeof(std::int64_t));
  return steps;
}

void DeviceProgress::set_steps(std::span<const std::int64_t> steps) {
  context_.state().check_host_copy("step counts were set");
  context_.state().backend().copy_from_host(static_cast<std::byte*>(memory_.mutable_raw()) + kHeaderBytes, steps.data(),
                                            steps.size_bytes());
}

void DeviceProgress::set_learning_rate(double learning_rate) { set(kLearningRate, learning_rate); }
void DeviceProgress::set_gradient_factor(double factor) { set(kGradientFactor, factor); }

void DeviceProgress::set(std::size_t place, double value) {
  context_.state().backend().fill(static_cast<double*>(memory_.mutable_raw()) + place, &value, sizeof value, 1);
}

kernels::DeviceProgress DeviceProgress::view(std::size_t first, std::size_t count) {
  auto* const header = static_cast<double*>(memory_.mutable_raw());
  auto* const counts = reinterpret_cast<std::int64_t*>(static_cast<std::byte*>(memory_.mutable_raw()) + kHeaderBytes);
  return {.slots = static_cast<std::int64_t>(count),
          .steps = counts + first,
          .learning_rate = header + kLearningRate,
          .gradient_factor = header + kGradientFactor};
}

void* DeviceProgress::scalars(std::size_t first) {
  return static_cast<std::byte*>(memory_.mutable_raw()) + kHeaderBytes + counts_bytes(parameters_) +
         first * scalar_bytes_;
}

}  // namespace fusegrad::detail
