// The squared error: forward is a sum in fp64, backward an elementwise pass.
#include <algorithm>

#include <fusegrad/ops/cuda/map.cuh>
#include <fusegrad/ops/cuda/reduce.cuh>
#include <fusegrad/ops/mse_loss_kernels.h>

namespace fusegrad::kernels {
namespace {

template <class Compute>
struct SquaredError {
  __device__ Compute operator()(const Compute (&x)[2]) const {
    const double error = static_cast<double>(x[0]) - static_cast<double>(x[1]);
    return convert<Compute>(error * error);
  }
};

/// 2 (prediction - target) dy + c, with one dy for all.
template <class Compute, int K>
struct SharedSlope {
  ConstVector dy;
  double divisor;
  __device__ Compute operator()(const Compute (&x)[K]) const {
    const Compute slope = convert<Compute>(2 * load_one<double>(dy, 0) / divisor);
    Compute d = slope * (x[0] - x[1]);
    if constexpr (K == 3) d += x[2];
    return d;
  }
};

/// 2 (prediction - target) dy + c, with a dy for each.
template <class Compute, int K>
struct OwnSlope {
  __device__ Compute operator()(const Compute (&x)[K]) const {
    Compute d = 2 * (x[0] - x[1]) * x[2];
    if constexpr (K == 4) d += x[3];
    return d;
  }
};

template <class Compute>
void backward_in(const CudaExecution& execution, const MseLossBackward& args) {
  constexpr std::string_view kName = "mse_loss_backward";
  const ConstVector& p = args.prediction;
  const ConstVector& t = args.target;
  if (args.reduction == Reduction::none) {
    if (args.c.data) {
      map<Compute, 4>(execution, kName, OwnSlope<Compute, 4>{}, {{p, t, args.dy, args.c}}, args.d);
    } else {
      map<Compute, 3>(execution, kName, OwnSlope<Compute, 3>{}, {{p, t, args.dy}}, args.d);
    }
    return;
  }
  const double divisor = args.reduction == Reduction::mean ? static_cast<double>(std::max<std::int64_t>(p.size, 1)) : 1;
  if (args.c.data) {
    map<Compute, 3>(execution, kName, SharedSlope<Compute, 3>{args.dy, divisor}, {{p, t, args.c}}, args.d);
  } else {
    map<Compute, 2>(execution, kName, SharedSlope<Compute, 2>{args.dy, divisor}, {{p, t}}, args.d);
  }
}

bool any_f64(const ConstVector& a, const ConstVector& b, const ConstVector& c) {
  return a.dtype == Dtype::f64 || b.dtype == Dtype::f64 || c.dtype == Dtype::f64;
}

}  // namespace

void mse_loss_forward(const CudaExecution& execution, const MseLossForward& args) {
  constexpr std::string_view kName = "mse_loss_forward";
  const ConstVector& p = args.prediction;
  const ConstVector& t = args.target;
  if (args.reduction != Reduction::none) {
    const bool averaged = args.reduction == Reduction::mean && p.size != 0;
    sum_of<2>(execution, kName, SquaredError<double>{}, {{p, t}}, {averaged ? static_cast<double>(p.size) : 1, args.y});
  } else if (any_f64(p, t, args.y)) {
    map<double, 2>(execution, kName, SquaredError<double>{}, {{p, t}}, args.y);
  } else {
    map<float, 2>(execution, kName, SquaredError<float>{}, {{p, t}}, args.y);
  }
}

void mse_loss_backward(const CudaExecution& execution, const MseLossBackward& args) {
  if (any_f64(args.prediction, args.target, args.d)) return backward_in<double>(execution, args);
  backward_in<float>(execution, args);
}

}  // namespace fusegrad::kernels
