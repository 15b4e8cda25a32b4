#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/io/dataset.h>

namespace fusegrad {
namespace {

using detail::require;

Context host() { return Context::cpu({.threads = 1}); }

/// `values` as a contiguous f32 [rows, width] CPU tensor that nobody else can write to, if they hold rows.
Tensor take_table(Tensor values, const char* what, int least_rank) {
  require<ValueError>(values.defined(), "dataset: there are no {}s", what);
  const Shape shape = values.shape();
  require<ShapeError>(shape.rank() >= least_rank, "dataset: {}s must have {} axes or more, got {}", what, least_rank,
                      shape.to_string());
  require<ValueError>(shape[0] > 0, "dataset: there are no rows; the {}s are {}", what, shape.to_string());
  const bool on_host = values.device().type == DeviceType::cpu;
  if (!(values.unique() && on_host && values.dtype() == Dtype::f32)) {
    values = values.dtype() == Dtype::f32 ? values.to(host()) : values.to(host()).to(Dtype::f32);
  }
  const std::int64_t width = shape.size() / shape[0];
  const std::span<const float> flat = values.data<float>();
  const auto bad = std::ranges::find_if(flat, [](float value) { return !std::isfinite(value); });
  if (bad != flat.end()) {
    const std::int64_t at = bad - flat.begin();
    throw ValueError(detail::format("dataset: {} {} of row {} is {}; {}s must be finite in f32", what, at % width,
                                    at / width, *bad, what));
  }
  return values.reshape({shape[0], width});
}

/// Labels as i32, each checked. `classes` is replaced by the largest label plus one if it is unset.
Tensor take_labels(const Tensor& labels, std::int64_t rows, std::optional<std::int64_t>& classes) {
  require<ValueError>(labels.defined(), "dataset: there are no labels");
  require<ShapeError>(labels.shape() == Shape{rows}, "dataset: labels must be [{}], one a row of features, got {}",
                      rows, labels.shape().to_string());
  constexpr std::int64_t kMostClasses = std::int64_t{std::numeric_limits<std::int32_t>::max()} + 1;
  require<ValueError>(!classes || (*classes >= 1 && *classes <= kMostClasses),
                      "dataset: classes must be 1 to {}, got {}", kMostClasses, classes.value_or(0));
  const double limit = static_cast<double>(classes.value_or(kMostClasses));
  Tensor checked = Tensor::empty(host(), {rows}, Dtype::i32);
  detail::visit_any(labels.dtype(), [&]<class T>() {
    const std::vector<T> from = labels.to_vector<T>();
    const std::span<std::int32_t> to = checked.mutable_data<std::int32_t>();
    std::int64_t largest = 0;
    for (std::size_t row = 0; row < from.size(); ++row) {
      const auto label = static_cast<double>(from[row]);
      require<ValueError>(label >= 0 && label < limit && label == std::trunc(label),
                          "dataset: the label of row {} is {}; labels are whole numbers from 0 to {}", row, label,
                          limit - 1);
      to[row] = static_cast<std::int32_t>(label);
      largest = std::max<std::int64_t>(largest, to[row]);
    }
    if (!classes) classes = largest + 1;
  });
  return checked;
}

/// Rows of [n, width] or [n] gathered into a new tensor of the same kind.
Tensor gather_rows(const Tensor& from, std::span<const std::int64_t> rows) {
  const Shape& shape = from.shape();
  const auto count = static_cast<std::int64_t>(rows.size());
  Tensor to = Tensor::empty(from.context(), shape.rank() == 1 ? Shape{count} : Shape{count, shape[1]}, from.dtype());
  const std::size_t bytes = static_cast<std::size_t>(from.bytes() / shape[0]);
  const auto* source = static_cast<const std::byte*>(from.raw());
  auto* target = static_cast<std::byte*>(to.mutable_raw());
  if (bytes == 0) return to;
  for (const std::int64_t row : rows) {
    std::memcpy(target, source + static_cast<std::size_t>(row) * bytes, bytes);
    target += bytes;
  }
  return to;
}

}  // namespace

Dataset::Dataset(Tensor features, Tensor labels, Tensor targets, std::int64_t classes)
    : features_(std::move(features)), labels_(std::move(labels)), targets_(std::move(targets)), classes_(classes) {}

Dataset Dataset::classification(Tensor features, const Tensor& labels, const std::optional<std::int64_t>& classes) {
  Tensor table = take_table(std::move(features), "feature", 2);
  std::optional<std::int64_t> count = classes;
  Tensor checked = take_labels(labels, table.shape()[0], count);
  return Dataset(std::move(table), std::move(checked), Tensor(), *count);
}

Dataset Dataset::regression(Tensor features, Tensor targets) {
  Tensor table = take_table(std::move(features), "feature", 2);
  require<ValueError>(targets.defined(), "dataset: there are no targets");
  require<ShapeError>(targets.shape().rank() == 2 && targets.shape()[0] == table.shape()[0],
                      "dataset: targets must be [{}, t], one row a row of features, got {}", table.shape()[0],
                      targets.shape().to_string());
  return Dataset(std::move(table), Tensor(), take_table(std::move(targets), "target", 2), 0);
}

const Tensor& Dataset::labels() const {
  require<StateError>(labels_.defined(), "dataset: a regression dataset has targets, not labels");
  return labels_;
}

const Tensor& Dataset::targets() const {
  require<StateError>(targets_.defined(), "dataset: a classification dataset has labels, not targets");
  return targets_;
}

Dataset Dataset::scaled(float divisor) const {
  require<ValueError>(std::isfinite(divisor) && divisor != 0, "dataset: the divisor must be finite and not 0, got {}",
                      divisor);
  Tensor table = Tensor::empty(features_.context(), features_.shape(), Dtype::f32);
  std::ranges::transform(features_.data<float>(), table.mutable_data<float>().begin(),
                         [divisor](float value) { return value / divisor; });
  return Dataset(take_table(std::move(table), "feature", 2), labels_, targets_, classes_);
}

Dataset Dataset::select(std::span<const std::int64_t> rows) const {
  require<ValueError>(!rows.empty(), "dataset: select needs at least one row");
  for (const std::int64_t row : rows) {
    require<ValueError>(row >= 0 && row < size(), "dataset: there is no row {}, the rows are 0 to {}", row, size() - 1);
  }
  return Dataset(gather_rows(features_, rows), labels_.defined() ? gather_rows(labels_, rows) : Tensor(),
                 targets_.defined() ? gather_rows(targets_, rows) : Tensor(), classes_);
}

DatasetSplit Dataset::split_every(std::int64_t stride) const {
  require<ValueError>(stride >= 2, "dataset: the stride of a split must be 2 or more, got {}", stride);
  require<ValueError>(size() >= 2, "dataset: a split needs at least two rows, there is {}", size());
  std::vector<std::int64_t> train;
  std::vector<std::int64_t> test;
  for (std::int64_t row = 0; row < size(); ++row) (row % stride == 0 ? test : train).push_back(row);
  return {.train = select(train), .test = select(test)};
}

}  // namespace fusegrad
