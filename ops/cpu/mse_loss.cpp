#include <fusegrad/ops/cpu/map.h>
#include <fusegrad/ops/cpu/reduce.h>
#include <fusegrad/ops/mse_loss_kernels.h>

namespace fusegrad::kernels {
namespace {

double square(double value) { return value * value; }

template <class Compute>
void backward_in(const CpuExecution& execution, const MseLossBackward& args) {
  // An absent c reads zeros, so that there is one loop for each kind of dy.
  if (args.reduction == Reduction::none) {
    map<Compute>(execution, std::array{args.prediction, args.target, args.dy, args.c}, args.d,
                 [](Compute p, Compute t, Compute dy, Compute c) { return 2 * (p - t) * dy + c; });
    return;
  }
  const double divisor =
      args.reduction == Reduction::mean ? static_cast<double>(std::max<std::int64_t>(args.prediction.size, 1)) : 1;
  const auto slope = static_cast<Compute>(2 * read(args.dy.data, args.dy.dtype) / divisor);
  map<Compute>(execution, std::array{args.prediction, args.target, args.c}, args.d,
               [=](Compute p, Compute t, Compute c) { return slope * (p - t) + c; });
}

}  // namespace

void mse_loss_forward(const CpuExecution& execution, const MseLossForward& args) {
  const ConstVector& p = args.prediction;
  const ConstVector& t = args.target;
  if (args.reduction == Reduction::none) {
    return map<double>(execution, std::array{p, t}, args.y, [](double a, double b) { return square(a - b); });
  }
  const double sum = sum_of_blocks(execution.pool, p.size, [&](std::int64_t first, std::int64_t count) {
    alignas(64) double a_buffer[kBlock];
    alignas(64) double b_buffer[kBlock];
    const double* a = load(p.data, p.dtype, first, count, a_buffer);
    const double* b = load(t.data, t.dtype, first, count, b_buffer);
    alignas(64) double squares[kBlock];
    for (std::int64_t i = 0; i < count; ++i) squares[i] = square(a[i] - b[i]);
    return block_sum(squares, count);
  });
  const bool averaged = args.reduction == Reduction::mean && p.size != 0;
  write(averaged ? sum / static_cast<double>(p.size) : sum, args.y.data, args.y.dtype);
}

void mse_loss_backward(const CpuExecution& execution, const MseLossBackward& args) {
  if (any_f64(args.prediction.dtype, args.target.dtype, args.d.dtype)) return backward_in<double>(execution, args);
  backward_in<float>(execution, args);
}

}  // namespace fusegrad::kernels
