#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include <fusegrad/autograd/check.h>
#include <fusegrad/io/csv.h>
#include <fusegrad/io/csv_rows.h>

namespace fusegrad {
namespace {

using detail::CsvRows;
using detail::require;

/// True if the number `text`, of which a converter said that it is out of range, is too large and not too small.
bool is_large(std::string_view text) {
  const std::size_t end = std::min(text.find_first_of("eE"), text.size());
  const std::string_view digits = text.substr(0, end);
  const std::size_t first = digits.find_first_of("123456789");
  if (first == std::string_view::npos) return false;
  std::string_view power = text.substr(std::min(end + 1, text.size()));
  if (power.starts_with('+')) power.remove_prefix(1);
  std::int64_t exponent = 0;
  const auto [stop, error] = std::from_chars(power.data(), power.data() + power.size(), exponent);
  if (error == std::errc::result_out_of_range) return power[0] != '-';
  const std::size_t point = std::min(digits.find('.'), digits.size());
  // The leading digit's exponent, or one more: what is out of range is far from 1.
  return exponent > static_cast<std::int64_t>(first) - static_cast<std::int64_t>(point);
}

/// `text` as the nearest T. "inf" and "nan" are numbers here, and so is what is too large (infinity) or too small (0).
template <class T>
std::optional<T> parse_number(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);  // from_chars knows no plus sign
  const char* last = text.data() + text.size();
  T value = 0;
  auto [stop, error] = std::from_chars(text.data(), last, value);
  if (text.empty() || stop != last || error == std::errc::invalid_argument) return std::nullopt;
  if (error == std::errc::result_out_of_range) {
    value = std::copysign(is_large(text) ? std::numeric_limits<T>::infinity() : T{0}, text[0] == '-' ? T{-1} : T{1});
  }
  return value;
}

/// What of a field a message shows.
std::string_view shown(std::string_view field) {
  constexpr std::size_t kMost = 40;
  return field.substr(0, kMost);
}

/// What becomes of each column.
struct Columns {
  std::size_t count = 0;
  std::vector<std::size_t> features = {};
  std::vector<std::size_t> targets = {};  // or the one label
};

Columns assign_columns(const CsvOptions& options, std::size_t count, const std::string& path) {
  Columns columns{.count = count};
  const auto resolve = [&](int column, const char* option) {
    const auto total = static_cast<std::int64_t>(count);
    require<ValueError>(column >= -total && column < total,
                        "read_csv: {} must name one of the {} columns of \"{}\", got {}", option, count, path, column);
    columns.targets.push_back(static_cast<std::size_t>(column < 0 ? column + total : column));
  };
  if (options.label_column) resolve(*options.label_column, "label_column");
  for (const int column : options.target_columns) resolve(column, "target_columns");
  for (std::size_t column = 0; column < count; ++column) {
    const auto named = std::ranges::count(columns.targets, column);
    require<ValueError>(named <= 1, "read_csv: target_columns names column {} twice", column);
    if (named == 0) columns.features.push_back(column);
  }
  require<ValueError>(!columns.features.empty(),
                      "read_csv: no column of \"{}\" is left for the features; each row has {} with the delimiter '{}'",
                      path, count, options.delimiter);
  return columns;
}

bool is_header(const std::vector<std::string_view>& fields) {
  if (std::ranges::all_of(fields, &std::string_view::empty)) return false;
  return std::ranges::none_of(fields, [](std::string_view field) { return parse_number<float>(field).has_value(); });
}

/// Parses rows and keeps their numbers.
class Reader {
 public:
  Reader(detail::InputFile& file, const CsvOptions& options)
      : rows_(file, options.delimiter), options_(options), path_(file.path()) {}

  Dataset read() {
    bool more = rows_.next();
    require<IoError>(more, "read_csv: \"{}\" is empty", path_);
    columns_ = assign_columns(options_, rows_.fields().size(), path_);
    const bool header =
        options_.header == CsvHeader::present || (options_.header == CsvHeader::automatic && is_header(rows_.fields()));
    if (header) more = rows_.next();
    require<IoError>(more, "read_csv: \"{}\" has a header but no rows", path_);
    for (; more; more = rows_.next()) take_row();
    return build();
  }

 private:
  void take_row() {
    const std::size_t count = rows_.fields().size();
    require<IoError>(count == columns_.count,
                     "read_csv: {}, line {}, column {}: the row has {} columns, the first row has {}", path_,
                     rows_.line(), std::min(count, columns_.count) + 1, count, columns_.count);
    for (const std::size_t column : columns_.features) features_.push_back(finite_number(column));
    if (options_.label_column) {
      labels_.push_back(label(columns_.targets[0]));
    } else {
      for (const std::size_t column : columns_.targets) targets_.push_back(finite_number(column));
    }
    ++row_;
  }

  template <class T>
  T number(std::size_t column) const {
    const std::string_view field = rows_.fields()[column];
    const std::optional<T> value = parse_number<T>(field);
    if (value) [[likely]]
      return *value;
    throw IoError(
        detail::format("read_csv: {}, line {}, column {}: {}{}", path_, rows_.line(), column + 1,
                       field.empty() ? "the field is empty" : detail::format("\"{}\" is no number", shown(field)),
                       row_ == 0 && options_.header == CsvHeader::automatic
                           ? "; if this row is a header, say so with .header = CsvHeader::present"
                           : ""));
  }

  float finite_number(std::size_t column) const {
    const float value = number<float>(column);
    require<ValueError>(std::isfinite(value), "read_csv: {}, line {}, column {}: {} is not finite in f32", path_,
                        rows_.line(), column + 1, shown(rows_.fields()[column]));
    return value;
  }

  std::int32_t label(std::size_t column) const {
    const double value = number<double>(column);
    constexpr std::int32_t kLargest = std::numeric_limits<std::int32_t>::max();
    require<ValueError>(value >= 0 && value <= kLargest && value == std::trunc(value),
                        "read_csv: {}, line {}, column {}: the label of row {} is {}; labels are whole numbers from 0 "
                        "to {}",
                        path_, rows_.line(), column + 1, row_, shown(rows_.fields()[column]), kLargest);
    return static_cast<std::int32_t>(value);
  }

  Dataset build() {
    const Context host = Context::cpu({.threads = 1});
    const auto width = static_cast<std::int64_t>(columns_.features.size());
    Tensor features = Tensor::from(host, {row_, width}, features_);
    features_ = {};  // at most one copy beside the dataset's own
    if (options_.label_column) return Dataset::classification(std::move(features), Tensor::from(host, {row_}, labels_));
    const auto target_width = static_cast<std::int64_t>(columns_.targets.size());
    return Dataset::regression(std::move(features), Tensor::from(host, {row_, target_width}, targets_));
  }

  CsvRows rows_;
  const CsvOptions& options_;
  const std::string& path_;
  Columns columns_;
  std::int64_t row_ = 0;  // rows taken so far
  std::vector<float> features_;
  std::vector<float> targets_;
  std::vector<std::int32_t> labels_;
};

void check_options(const CsvOptions& options) {
  require<ValueError>(options.label_column.has_value() != !options.target_columns.empty(),
                      "read_csv: give either label_column or target_columns");
  const auto code = static_cast<unsigned char>(options.delimiter);
  const bool punctuation = code > 0x20 && code < 0x7f && std::isalnum(code) == 0;
  constexpr std::string_view kPartsOfNumbers = "\"+-.";
  require<ValueError>(
      options.delimiter == '\t' || (punctuation && kPartsOfNumbers.find(options.delimiter) == std::string_view::npos),
      "read_csv: the delimiter must be a tab or punctuation other than \" + - . (character code {})", code);
}

}  // namespace

Dataset read_csv(const std::string& path, const CsvOptions& options) {
  check_options(options);
  detail::InputFile file("read_csv", path);
  return Reader(file, options).read();
}

}  // namespace fusegrad
