#include <fusegrad/autograd/cuda/check.h>
#include <fusegrad/autograd/cuda/loss_history.h>

namespace fusegrad::detail {
namespace {

template <class T>
__global__ void append_kernel(LossWords* words, std::int64_t kept, const T* loss) {
  const std::int64_t call = words->count;
  words->losses[call % kept] = static_cast<double>(*loss);
  __threadfence_system();
  *static_cast<volatile std::int64_t*>(&words->count) = call + 1;
}

}  // namespace

void append_loss(CUstream_st* stream, LossWords* words, std::int64_t kept, const void* loss, Dtype dtype) {
  if (dtype == Dtype::f64) {
    append_kernel<<<1, 1, 0, stream>>>(words, kept, static_cast<const double*>(loss));
  } else {
    append_kernel<<<1, 1, 0, stream>>>(words, kept, static_cast<const float*>(loss));
  }
  FUSEGRAD_CUDA_LAUNCH("append_kernel");
}

}  // namespace fusegrad::detail
