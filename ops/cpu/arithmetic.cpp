// Elementwise arithmetic and full reductions. All are bound by memory: each operand is read once, y is written once.
#include <fusegrad/ops/arithmetic_kernels.h>
#include <fusegrad/ops/cpu/map.h>
#include <fusegrad/ops/cpu/reduce.h>

namespace fusegrad::kernels {
namespace {

template <class Compute>
void weighted_sum_in(const CpuExecution& execution, const WeightedSum& args) {
  const auto alpha = static_cast<Compute>(args.alpha);
  const auto beta = static_cast<Compute>(args.beta);
  if (!args.b.data) {
    map<Compute>(execution, std::array{args.a}, args.y, [=](Compute a) { return alpha * a; });
  } else {
    map<Compute>(execution, std::array{args.a, args.b}, args.y,
                 [=](Compute a, Compute b) { return alpha * a + beta * b; });
  }
}

template <class Compute>
void multiply_add_in(const CpuExecution& execution, const MultiplyAdd& args) {
  if (!args.c.data) {
    map<Compute>(execution, std::array{args.a, args.b}, args.y, [](Compute a, Compute b) { return a * b; });
  } else {
    map<Compute>(execution, std::array{args.a, args.b, args.c}, args.y,
                 [](Compute a, Compute b, Compute c) { return a * b + c; });
  }
}

template <class Compute>
void broadcast_in(const CpuExecution& execution, const Broadcast& args) {
  const auto value = detail::narrow<Compute>(read(args.x.data, args.x.dtype) / args.divisor);
  if (!args.c.data) {
    map<Compute>(execution, std::array<ConstVector, 0>{}, args.y, [=] { return value; });
  } else {
    map<Compute>(execution, std::array{args.c}, args.y, [=](Compute c) { return value + c; });
  }
}

}  // namespace

void weighted_sum(const CpuExecution& execution, const WeightedSum& args) {
  if (any_f64(args.a.dtype, args.b.dtype, args.y.dtype)) return weighted_sum_in<double>(execution, args);
  weighted_sum_in<float>(execution, args);
}

void multiply_add(const CpuExecution& execution, const MultiplyAdd& args) {
  if (any_f64(args.a.dtype, args.b.dtype, args.c.dtype, args.y.dtype)) return multiply_add_in<double>(execution, args);
  multiply_add_in<float>(execution, args);
}

void broadcast(const CpuExecution& execution, const Broadcast& args) {
  if (any_f64(args.c.dtype, args.y.dtype)) return broadcast_in<double>(execution, args);
  broadcast_in<float>(execution, args);
}

void sum(const CpuExecution& execution, const Sum& args) {
  const double sum = detail::visit_floating(args.x.dtype, [&]<class T>() {
    const T* x = static_cast<const T*>(args.x.data);
    return sum_of_blocks(execution.pool, args.x.size, [&](std::int64_t first, std::int64_t count) {
      if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float>) {
        return block_sum(x + first, count);
      } else {
        alignas(64) float buffer[kBlock];
        return block_sum(load(x, args.x.dtype, first, count, buffer), count);
      }
    });
  });
  write(sum / args.divisor, args.y.data, args.y.dtype);
}

}  // namespace fusegrad::kernels
