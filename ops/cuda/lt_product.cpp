#include <bit>

#include <fusegrad/autograd/check.h>
#include <fusegrad/ops/cuda/lt_product.h>

namespace fusegrad::detail {
namespace {

// In the order of Epilogue.
constexpr std::string_view kNames[kEpilogues] = {
    "DEFAULT",  "BIAS",          "RELU",  "RELU_BIAS",   "RELU_AUX", "RELU_AUX_BIAS", "GELU",   "GELU_BIAS",
    "GELU_AUX", "GELU_AUX_BIAS", "DRELU", "DRELU_BGRAD", "DGELU",    "DGELU_BGRAD",   "BGRADB",
};

}  // namespace

std::string_view name_of(Epilogue epilogue) { return kNames[static_cast<std::size_t>(epilogue)]; }

std::uint32_t alignment_of(const void* pointer) {
  constexpr std::uintptr_t kEnough = 256;
  const auto address = reinterpret_cast<std::uintptr_t>(pointer) | kEnough;
  return std::uint32_t{1} << std::countr_zero(address);
}

std::string to_string(const LtProduct& product) {
  std::string text = detail::format("{} {} x {} x {} {}", name_of(product.epilogue), product.d.rows, product.d.cols,
                                    reduction_length(product), name_of(product.a.dtype));
  if (product.d.dtype != product.a.dtype) text += detail::format(" to {}", name_of(product.d.dtype));
  if (product.c.data) text += product.c.data == product.d.data ? ", added to d" : ", c added";
  return text;
}

}  // namespace fusegrad::detail
