// Elementwise arithmetic. All kernels are bound by memory: each operand is read once, y is written once.
#include <fusegrad/ops/arithmetic_kernels.h>
#include <fusegrad/ops/cuda/map.cuh>

namespace fusegrad::kernels {
namespace {

template <class Compute>
struct Scaled {
  Compute alpha;
  __device__ Compute operator()(const Compute (&x)[1]) const { return alpha * x[0]; }
};

template <class Compute>
struct ScaledSum {
  Compute alpha;
  Compute beta;
  __device__ Compute operator()(const Compute (&x)[2]) const { return alpha * x[0] + beta * x[1]; }
};

template <class Compute>
struct Multiplied {
  __device__ Compute operator()(const Compute (&x)[2]) const { return x[0] * x[1]; }
};

template <class Compute>
struct MultipliedAndAdded {
  __device__ Compute operator()(const Compute (&x)[3]) const { return x[0] * x[1] + x[2]; }
};

/// The value is on the device: an eager loss must not wait for it.
template <class Compute>
struct DeviceQuotient {
  ConstVector dividend;
  double divisor;
  __device__ Compute value() const { return convert<Compute>(load_one<double>(dividend, 0) / divisor); }
  __device__ Compute operator()(const Compute (&)[1]) const { return value(); }
};

template <class Compute>
struct QuotientAdded {
  DeviceQuotient<Compute> quotient;
  __device__ Compute operator()(const Compute (&c)[1]) const { return quotient.value() + c[0]; }
};

template <class Compute>
void weighted_sum_in(const CudaExecution& execution, const WeightedSum& args) {
  const auto alpha = static_cast<Compute>(args.alpha);
  const auto beta = static_cast<Compute>(args.beta);
  if (args.b.data) {
    map<Compute, 2>(execution, "weighted_sum", ScaledSum<Compute>{alpha, beta}, {{args.a, args.b}}, args.y);
  } else {
    map<Compute, 1>(execution, "weighted_sum", Scaled<Compute>{alpha}, {{args.a}}, args.y);
  }
}

template <class Compute>
void multiply_add_in(const CudaExecution& execution, const MultiplyAdd& args) {
  if (args.c.data) {
    map<Compute, 3>(execution, "multiply_add", MultipliedAndAdded<Compute>{}, {{args.a, args.b, args.c}}, args.y);
  } else {
    map<Compute, 2>(execution, "multiply_add", Multiplied<Compute>{}, {{args.a, args.b}}, args.y);
  }
}

template <class Compute>
void broadcast_in(const CudaExecution& execution, const Broadcast& args) {
  const DeviceQuotient<Compute> quotient{args.x, args.divisor};
  if (args.c.data) {
    map<Compute, 1>(execution, "broadcast", QuotientAdded<Compute>{quotient}, {{args.c}}, args.y);
  } else {
    map<Compute, 0>(execution, "broadcast", quotient, Operands<0>{}, args.y);
  }
}

template <class... Dtypes>
bool any_f64(Dtypes... dtypes) {
  return ((dtypes == Dtype::f64) || ...);
}

}  // namespace

void weighted_sum(const CudaExecution& execution, const WeightedSum& args) {
  if (any_f64(args.a.dtype, args.b.dtype, args.y.dtype)) return weighted_sum_in<double>(execution, args);
  weighted_sum_in<float>(execution, args);
}

void multiply_add(const CudaExecution& execution, const MultiplyAdd& args) {
  if (any_f64(args.a.dtype, args.b.dtype, args.c.dtype, args.y.dtype)) return multiply_add_in<double>(execution, args);
  multiply_add_in<float>(execution, args);
}

void broadcast(const CudaExecution& execution, const Broadcast& args) {
  if (any_f64(args.c.dtype, args.y.dtype)) return broadcast_in<double>(execution, args);
  broadcast_in<float>(execution, args);
}

}  // namespace fusegrad::kernels
