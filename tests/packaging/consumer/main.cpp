// Multiplies small integers, exact in any order, by fusegrad and by the program's own Eigen: the results are equal to
// the last bit as long as neither library runs the other's code.
#include <cstdio>
#include <vector>

#include "own_eigen.h"

#include <fusegrad/fusegrad.h>

namespace fg = fusegrad;

int main() {
  constexpr int kRows = 67;
  constexpr int kCols = 45;
  constexpr int kInner = 131;
  const fg::Context ctx = fg::Context::cpu({.threads = 2});
  const auto integers = [&](int rows, std::uint64_t seed) {
    const fg::Random random(seed, 0);
    std::vector<float> values;
    for (int i = 0; i < rows * kInner; ++i)
      values.push_back(static_cast<float>(random.below(static_cast<std::uint64_t>(i), 17)) - 8.0f);
    return fg::Tensor::from(ctx, {rows, kInner}, values);
  };
  const fg::Tensor x = integers(kRows, 1);
  const fg::Tensor w = integers(kCols, 2);

  fg::Tape tape(ctx);
  const fg::Var y = fg::linear(tape.variable(x), tape.variable(w));
  const std::vector<float> ours = y.value().to_vector<float>();
  if (ours != product_by_own_eigen(x, w)) {
    std::puts("fusegrad's product differs from that of the program's own Eigen");
    return 1;
  }
  try {
    fg::linear(tape.input(x), tape.input(fg::Tensor::zeros(ctx, {3, 4}, fg::Dtype::f32)));
  } catch (const fg::ShapeError& error) {
    std::printf("equal products; an error crosses the library's boundary: %s\n", error.what());
    return 0;
  }
  std::puts("no ShapeError for shapes that do not fit");
  return 1;
}
