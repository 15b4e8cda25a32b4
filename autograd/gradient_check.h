// Proves gradients: the fused backward against five-point finite differences of the unfused forward, in f64.
//
// Around each coordinate the function is evaluated at x ± h and x ± 2h, with a log of every branch decision (which side
// of its kink each relu took). If no decision changed, the five-point rule
//   (-f(x + 2h) + 8 f(x + h) - 8 f(x - h) + f(x - 2h)) / (12 h)
// must agree with the gradient (route A, "smooth"). Otherwise h shrinks; where even the smallest h crosses a kink, the
// stencil is evaluated with the decisions of the base point frozen, and the gradient must also lie between the
// one-sided differences (route B, "frozen").
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include <fusegrad/autograd/parameter.h>
#include <fusegrad/autograd/tape.h>

namespace fusegrad {

/// The function under test: records its ops on `tape`, one Var an input, and returns any value that depends on them.
/// It must be deterministic.
using CheckedFunction = std::function<Var(Tape& tape, std::span<const Var> inputs)>;

struct GradientCheckOptions {
  /// A difference passes if it is at most absolute + relative * |gradient| plus the rounding error of the stencil.
  double absolute = 1e-10;
  double relative = 1e-9;
  /// Needed where there is no input. The parameters that the function uses are checked whether they are named here or
  /// not; only a frozen one is a constant.
  std::optional<ParameterSet> parameters = std::nullopt;
  /// Above this number of coordinates in all, random directions are checked instead of every coordinate.
  std::int64_t max_coordinates = 4096;
  /// Number of random directions then.
  int directions = 5;
  /// Names the random weights that reduce a non-scalar output to one number, and the random directions.
  std::uint64_t seed = 1;
};

struct GradientCheckReport {
  bool passed = true;
  /// Largest |gradient - difference|, and the largest ratio of it to its bound: above 1 means failed.
  double largest_error = 0;
  double largest_ratio = 0;
  /// |fused forward - unfused forward| at the base point, under the same bound.
  double forward_error = 0;
  /// Coordinates or directions checked, by route.
  std::int64_t smooth = 0;
  std::int64_t frozen = 0;
  /// The coordinate with the largest ratio: "input 1, element 7: gradient 0.5, difference 0.25".
  std::string worst = {};
};

/// Checks the gradients of `f` at `inputs`, on the inputs' context and by its fusion setting.
/// Inputs, parameter values and gradient states are as before when it returns or throws.
/// Errors: ValueError if there is neither an input nor a parameter; DtypeError unless all are f64, since differences in
/// a narrower type cannot tell a right gradient from a wrong one; DeviceError if inputs are on different contexts;
/// StateError if a parameter holds a gradient; whatever `f` throws.
GradientCheckReport gradient_check(const CheckedFunction& f, std::span<const Tensor> inputs,
                                   const GradientCheckOptions& options = {});

}  // namespace fusegrad
