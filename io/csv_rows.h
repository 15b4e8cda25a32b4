// The rows of a delimited text file, one at a time, as text: knows lines, fields and quotes, but no numbers.
// Not installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <fusegrad/autograd/file.h>

namespace fusegrad::detail {

class CsvRows {
 public:
  /// Reads from `file`, which must outlive this object.
  CsvRows(InputFile& file, char delimiter);

  /// Moves to the next row that is not blank; false at the end of the file. Errors: IoError for an unclosed quote, text
  /// after a closing quote, a row of more than 64 MiB, or a failed read.
  bool next();
  /// The row's fields, without quotes and the spaces around them; valid until the next call of next().
  const std::vector<std::string_view>& fields() const { return fields_; }
  /// The line, from 1, in which the row begins.
  std::int64_t line() const { return line_; }

 private:
  /// A field's place in the buffer, relative to the row's first byte.
  struct Span {
    std::size_t begin;
    std::size_t end;
  };
  bool scan_row();
  bool at_end();
  bool refill();
  void take_field(Span raw);
  [[noreturn]] void fail(std::string_view what) const;

  InputFile& file_;
  char delimiter_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;   // of the row
  std::size_t cursor_ = 0;  // next byte to look at
  std::size_t size_ = 0;    // bytes in the buffer
  std::int64_t line_ = 0;
  std::int64_t next_line_ = 1;
  std::vector<Span> spans_;
  std::vector<std::string_view> fields_;
};

}  // namespace fusegrad::detail
