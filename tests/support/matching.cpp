#include "tests/support/matching.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace fusegrad::test {

bool within(double got, double ref, double tolerance, Dtype dtype) {
  if (std::isnan(ref)) return std::isnan(got);
  if (std::isinf(ref)) return got == ref;
  return got >= on_grid(ref - tolerance, dtype) && got <= on_grid(ref + tolerance, dtype);
}

testing::AssertionResult near(const Values& got, const Values& ref, const Values& tolerance, Dtype dtype) {
  if (got.rows != ref.rows || got.cols != ref.cols)
    return testing::AssertionFailure() << fmt::format("got [{}, {}], expected [{}, {}]", got.rows, got.cols, ref.rows,
                                                      ref.cols);
  std::int64_t wrong = 0;
  double worst = 0;
  testing::AssertionResult failure = testing::AssertionFailure();
  for (std::int64_t i = 0; i < ref.rows; ++i)
    for (std::int64_t j = 0; j < ref.cols; ++j) {
      const double allowed = tolerance.elements.empty() ? 0 : tolerance.at(i, j);
      if (within(got.at(i, j), ref.at(i, j), allowed, dtype)) continue;
      if (wrong++ == 0)
        failure << fmt::format("({}, {}): got {:.17g}, expected {:.17g} as {} (tolerance {:.3g})", i, j, got.at(i, j),
                               ref.at(i, j), name_of(dtype), allowed);
      worst = std::max(worst, std::fabs(got.at(i, j) - ref.at(i, j)));
    }
  if (wrong == 0) return testing::AssertionSuccess();
  return failure << fmt::format("; {} of {} elements wrong, by up to {:.3g}", wrong, ref.size(), worst);
}

testing::AssertionResult equal(const Values& got, const Values& ref, Dtype dtype) {
  return near(got, ref, Values(), dtype);
}

testing::AssertionResult mostly_nonzero(const Values& values, double share) {
  const auto zeros = std::count(values.elements.begin(), values.elements.end(), 0.0);
  if (static_cast<double>(zeros) <= share * static_cast<double>(values.size())) return testing::AssertionSuccess();
  return testing::AssertionFailure() << fmt::format("{} of {} elements are zero", zeros, values.size());
}

}  // namespace fusegrad::test
