#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include <fusegrad/autograd/check.h>
#include <fusegrad/io/idx_file.h>

namespace fusegrad::detail {
namespace {

constexpr int kMostAxes = 8;

/// Bytes of an element of IDX type `type`; 0 if there is no such type.
constexpr std::int64_t element_bytes(int type) {
  switch (type) {
    case 0x08:  // u8
    case 0x09:  // i8
      return 1;
    case 0x0B:  // i16
      return 2;
    case 0x0C:  // i32
    case 0x0D:  // f32
      return 4;
    case 0x0E:  // f64
      return 8;
    default: return 0;
  }
}

template <class Bits>
Bits load_big_endian(const std::byte* from) {
  Bits bits = 0;
  for (std::size_t i = 0; i < sizeof(Bits); ++i) bits = static_cast<Bits>(bits << 8) | static_cast<Bits>(from[i]);
  return bits;
}

/// Converts `to.size()` elements stored as `From`, whose bytes are those of `Bits`.
template <class From, class Bits, class To>
void convert(const std::byte* from, std::span<To> to) {
  for (To& value : to) {
    value = static_cast<To>(std::bit_cast<From>(load_big_endian<Bits>(from)));
    from += sizeof(Bits);
  }
}

template <class To>
void convert(int type, const std::byte* from, std::span<To> to) {
  switch (type) {
    case 0x08: return convert<std::uint8_t, std::uint8_t>(from, to);
    case 0x09: return convert<std::int8_t, std::uint8_t>(from, to);
    case 0x0B: return convert<std::int16_t, std::uint16_t>(from, to);
    case 0x0C: return convert<std::int32_t, std::uint32_t>(from, to);
    case 0x0D: return convert<float, std::uint32_t>(from, to);
    default: return convert<double, std::uint64_t>(from, to);
  }
}

}  // namespace

IdxFile::IdxFile(std::string op, std::string path) : file_(std::move(op), std::move(path)), content_(file_) {
  std::array<std::byte, 4> magic;
  content_.read(magic.data(), magic.size());
  if (magic[0] != std::byte{0} || magic[1] != std::byte{0}) {
    fail("is no IDX file: its first two bytes must be zero");
  }
  type_ = static_cast<int>(magic[2]);
  const std::int64_t size = element_bytes(type_);
  if (size == 0) fail(detail::format("has elements of type 0x{:02x}; known are 08, 09, 0b, 0c, 0d and 0e", type_));
  const int rank = static_cast<int>(magic[3]);
  if (rank < 1 || rank > kMostAxes) fail(detail::format("has {} axes; 1 to {} are possible", rank, kMostAxes));

  bool overflow = false;
  std::int64_t row = 1;  // elements behind one index of the first axis
  for (int axis = 0; axis < rank; ++axis) {
    std::array<std::byte, 4> extent;
    content_.read(extent.data(), extent.size());
    extents_.push_back(load_big_endian<std::uint32_t>(extent.data()));
    if (axis > 0) overflow |= __builtin_mul_overflow(row, extents_.back(), &row);
  }
  std::int64_t bytes = 0;
  overflow |= __builtin_mul_overflow(extents_[0], row, &count_);
  overflow |= __builtin_mul_overflow(count_, size, &bytes);
  overflow |= __builtin_add_overflow(bytes, 4 + 4 * std::int64_t{rank}, &bytes);
  if (overflow) fail("has a header whose extents overflow 64 bits");
  const std::int64_t limit = content_.most_bytes();
  if (content_.packed() ? bytes > limit : bytes != limit) {
    fail(detail::format("must have {} bytes, as its header says, but {} {}", bytes,
                        content_.packed() ? "can unpack to at most" : "has", limit));
  }
}

void IdxFile::read(std::span<float> to) { read_as(to); }
void IdxFile::read(std::span<double> to) { read_as(to); }

template <class To>
void IdxFile::read_as(std::span<To> to) {
  std::array<std::byte, std::size_t{1} << 14> chunk;
  const auto size = static_cast<std::size_t>(element_bytes(type_));
  while (!to.empty()) {
    const std::size_t count = std::min(to.size(), chunk.size() / size);
    content_.read(chunk.data(), count * size);
    convert(type_, chunk.data(), to.first(count));
    to = to.subspan(count);
  }
  content_.finish();
}

void IdxFile::fail(const std::string& what) const {
  throw IoError(detail::format("{}: \"{}\" {}", file_.op(), file_.path(), what));
}

}  // namespace fusegrad::detail
