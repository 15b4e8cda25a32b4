#include "tests/support/two_layer_step.h"

#include <gtest/gtest.h>

#include "tests/support/fills.h"
#include "tests/support/tensors.h"

#include <fusegrad/fusegrad.h>

namespace fusegrad::test {

std::vector<Values> two_layer_step(const Context& context, Dtype dtype, const TwoLayerStep& options) {
  const std::int64_t batch = options.batch;
  ParameterSet set(context, dtype);
  const auto initial = [](const Values& values) { return fill_with(values.elements); };
  const Parameter w1 = set.add("w1", {96, 64}, initial(integers(96, 64, 1, 1)));
  const Parameter b1 = set.add("b1", {96}, initial(integers(1, 96, 2, 2)));
  const Parameter w2 = set.add("w2", {40, 96}, initial(integers(40, 96, 3, 1)));
  const Parameter b2 = set.add("b2", {40}, initial(integers(1, 40, 4, 2)));
  Tape tape(context);
  const Var x = tape.variable(tensor_of(context, dtype, thinned_integers(batch, 64, 5, 1, 24, 64)));
  const Var h = linear(x, tape.parameter(w1), tape.parameter(b1), {.activation = Activation::relu});
  const Var y = linear(h, tape.parameter(w2), tape.parameter(b2));
  std::vector<Values> results{test::values_of(y.value())};
  tape.backward(y, tensor_of(context, dtype, thinned_integers(batch, 40, 6, 1, 2, 40)));
  results.push_back(test::values_of(tape.gradient(x)));
  for (const Parameter& parameter : {w1, b1, w2, b2}) results.push_back(test::values_of(parameter.gradient()));
  if (options.explained) *options.explained = tape.explain();
  return results;
}

void expect_equal(const std::vector<Values>& results, const std::vector<Values>& expected) {
  ASSERT_EQ(results.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(results[i].elements, expected[i].elements) << i;
}

}  // namespace fusegrad::test
