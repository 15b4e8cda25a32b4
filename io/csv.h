// Datasets from delimited text.
//
//   fusegrad::Dataset digits = fusegrad::read_csv("examples/data/digits.csv", {.label_column = 64});
//
// Understood: LF, CRLF and CR line ends, a last line without one, blank lines (skipped), spaces around fields, fields
// in double quotes with "" for a quote inside, a UTF-8 byte order mark. Numbers are read the same way in every locale:
// decimal point, optional exponent, no thousands separators.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <fusegrad/io/dataset.h>

namespace fusegrad {

/// Whether the first row names the columns.
enum class CsvHeader : std::uint8_t {
  automatic,  ///< it does if not one of its fields is a number
  absent,
  present
};

struct CsvOptions {
  /// The column that holds the class, from 0; a negative one counts from the last.
  std::optional<int> label_column = std::nullopt;
  /// The columns that hold the numbers to predict, in the order of the targets; likewise.
  std::vector<int> target_columns = {};
  /// ASCII punctuation or a tab; neither a quote nor a character that numbers are written with.
  char delimiter = ',';
  CsvHeader header = CsvHeader::automatic;
};

/// Reads a file of numbers: one column is the label, or some are targets, all others are features, in their order.
/// The file is read in one pass and is never in memory as a whole; a pipe will do.
/// Types:  features and targets are rounded once to f32 (what is too small for it becomes 0).
/// Errors: ValueError unless exactly one of label_column and target_columns is given and the columns are there, once
///         each, with a feature left over; IoError, with line and column from 1, for a file that cannot be read, is
///         empty, has rows of different lengths or a field that is no number; ValueError, with the line, for a
///         feature or target that is not finite in f32 and, with row (from 0) and value, for a label that is not a
///         whole number from 0 to 2147483647.
Dataset read_csv(const std::string& path, const CsvOptions& options = {});

}  // namespace fusegrad
