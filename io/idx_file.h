// One IDX file: a header with element type and extents, then the elements, big-endian, row-major.
//
//   byte 0, 1: zero   byte 2: type   byte 3: rank   then one 32-bit extent an axis, then the elements
//
// Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits", file formats. Not installed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <fusegrad/autograd/file.h>
#include <fusegrad/io/packed_file.h>

namespace fusegrad::detail {

class IdxFile {
 public:
  /// Opens a plain or gzip file and checks its header; nothing is allocated by what the header says.
  /// Errors: IoError, with the file, unless the first two bytes are zero, the type is known, the rank is 1 to 8, and
  /// the elements number less than 2^63 and fill the file exactly (packed: fit what the file can unpack to).
  IdxFile(std::string op, std::string path);

  const std::string& path() const { return file_.path(); }
  /// Extents of the axes.
  const std::vector<std::int64_t>& extents() const { return extents_; }
  /// Number of elements.
  std::int64_t count() const { return count_; }
  /// Reads all elements, each rounded once, and checks that the file ends behind them. `to` has count() places. May be
  /// called once. Errors: IoError.
  void read(std::span<float> to);
  void read(std::span<double> to);

 private:
  template <class To>
  void read_as(std::span<To> to);
  [[noreturn]] void fail(const std::string& what) const;

  InputFile file_;
  PackedFile content_;
  int type_ = 0;
  std::vector<std::int64_t> extents_;
  std::int64_t count_ = 0;
};

}  // namespace fusegrad::detail
