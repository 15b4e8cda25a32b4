// A program of its own that uses an installed fusegrad: fits y = sin(x) on [-3, 3] with a small network.
//
//   cmake -S . -B build -DCMAKE_PREFIX_PATH=<where fusegrad is installed> && cmake --build build && build/my_program
#include <cmath>
#include <cstdio>
#include <vector>

#include <fusegrad/fusegrad.h>

namespace fg = fusegrad;

int main() {
  constexpr int kPoints = 256;
  std::vector<float> inputs(kPoints);
  std::vector<float> targets(kPoints);
  for (std::size_t i = 0; i < kPoints; ++i) {
    inputs[i] = -3.0f + 6.0f * static_cast<float>(i) / (kPoints - 1);
    targets[i] = std::sin(inputs[i]);
  }

  const fg::Context ctx = fg::Context::best();
  const fg::Tensor x = fg::Tensor::from(ctx, {kPoints, 1}, inputs);
  const fg::Tensor y = fg::Tensor::from(ctx, {kPoints, 1}, targets);
  fg::Mlp net(ctx, {.widths = {1, 32, 32, 1}, .activation = fg::Activation::gelu_tanh, .seed = 1});
  fg::AdamW optimizer(net.parameters(), {.learning_rate = 1e-2});

  double error = 0;
  for (int step = 0; step < 500; ++step) {
    fg::Tape tape(ctx);
    const fg::Var loss = fg::mse_loss(net(tape.input(x)), y);
    tape.backward(loss);
    optimizer.step();
    error = loss.item();
  }
  std::printf("mean squared error %.6f after 500 steps on %s\n", error, ctx.device().to_string().c_str());
  return error < 1e-3 ? 0 : 1;
}
