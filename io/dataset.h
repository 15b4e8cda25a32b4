// Examples to learn from: rows of features, each with a class label or with regression targets.
//
//   fusegrad::Dataset digits = fusegrad::read_csv("digits.csv", {.label_column = 64});
//   auto [train, test] = digits.scaled(16).split_every(5);
//
// A Dataset lives in host memory, wherever its tensors were, and never changes; copies share it. Whatever it holds was
// checked when it was built: every feature and target is finite, every label is a class index.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

#include <fusegrad/autograd/tensor.h>

namespace fusegrad {

struct DatasetSplit;

class Dataset {
 public:
  /// Examples with one class each. `classes` is the number of classes; unset: the largest label plus one.
  /// Shapes: features [n, ...], flattened to [n, features]; labels [n]; n >= 1.
  /// Types:  features of any dtype, rounded once to f32; labels i32, u8, or floating-point with whole values.
  /// Memory: f32 features that come as the only handle to a CPU tensor are taken over, all else is copied.
  /// Errors: ShapeError; ValueError, with row and value, for a feature that is not finite in f32 or a label that is
  ///         fractional, NaN, negative or not below `classes`; ValueError if there are no rows.
  static Dataset classification(Tensor features, const Tensor& labels,
                                const std::optional<std::int64_t>& classes = std::nullopt);
  /// Examples with t numbers each to predict.
  /// Shapes: features [n, ...], flattened to [n, features]; targets [n, t]; n >= 1.
  /// Types:  any dtype, rounded once to f32. Memory: as classification, for both.
  /// Errors: ShapeError; ValueError, with row and column, for a value that is not finite in f32, or without rows.
  static Dataset regression(Tensor features, Tensor targets);

  // A move copies: no dataset is ever empty.
  Dataset(const Dataset&) = default;
  Dataset& operator=(const Dataset&) = default;
  ~Dataset() = default;

  /// Number of rows, n.
  std::int64_t size() const { return features_.shape()[0]; }
  /// Numbers in a row of features.
  std::int64_t feature_count() const { return features_.shape()[1]; }
  /// Number of classes, or 0 for regression. A part of a dataset has as many as the whole.
  std::int64_t classes() const { return classes_; }
  bool is_classification() const { return labels_.defined(); }

  /// f32 [n, features], on the CPU. Shared by all copies of the dataset: not to be written to.
  const Tensor& features() const { return features_; }
  /// i32 [n], on the CPU; likewise. Errors: StateError for regression.
  const Tensor& labels() const;
  /// f32 [n, t], on the CPU; likewise. Errors: StateError for classification.
  const Tensor& targets() const;

  /// The same dataset with every feature divided by `divisor`, rounded once.
  /// Errors: ValueError if the divisor is zero or not finite, or a quotient is not finite.
  Dataset scaled(float divisor) const;
  /// The named rows in the named order; a row may appear more than once.
  /// Errors: ValueError for a row that is not there, or if there are no rows.
  Dataset select(std::span<const std::int64_t> rows) const;
  Dataset select(std::initializer_list<std::int64_t> rows) const {
    return select(std::span<const std::int64_t>(rows.begin(), rows.size()));
  }
  /// Rows 0, stride, 2 stride, ... for the test, all others for training.
  /// Range: 2 <= stride. Errors: ValueError if the stride is out of range or there are not at least two rows.
  DatasetSplit split_every(std::int64_t stride) const;

 private:
  Dataset(Tensor features, Tensor labels, Tensor targets, std::int64_t classes);

  Tensor features_;
  Tensor labels_;   // of a classification
  Tensor targets_;  // of a regression
  std::int64_t classes_ = 0;
};

/// A dataset in two parts without a common row: `auto [train, test] = digits.split_every(5);`
struct DatasetSplit {
  Dataset train;
  Dataset test;
};

}  // namespace fusegrad
