// The header of a safetensors file: where each tensor lies, and of what type and shape it is.
//
//   8 bytes: length of the header, little-endian   then the header, JSON, padded with spaces   then the data
//   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {"key": "value"}}
//
// Source: https://github.com/huggingface/safetensors, "Format". Not installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <fusegrad/autograd/dtype.h>

namespace fusegrad::detail {

/// One tensor of the file.
struct SafetensorsEntry {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  ///< first byte, counted from the start of the data
  std::int64_t end = 0;    ///< byte after the last
};

/// No header is longer: it is read, and kept, as a whole.
inline constexpr std::int64_t kMostHeaderBytes = std::int64_t{1} << 24;
/// Bytes of the header's length in front of it.
inline constexpr std::int64_t kLengthBytes = 8;

/// "F64", "F32", "BF16", "F16", "I32" or "U8".
std::string_view safetensors_name(Dtype dtype);

/// The file up to its data: length and header, a multiple of 8 bytes.
/// Errors: ValueError, which `op` begins, for a name that is no UTF-8 or "__metadata__", or for too long a header.
std::string format_header(std::string_view op, const std::vector<SafetensorsEntry>& entries);

/// The tensors that `header` (without its length) describes, in the order of their data; metadata is checked and left
/// out. On return they cover [0, data_bytes) without gap or overlap and each is as long as its type and shape say.
/// Errors: IoError, which `where` begins, for whatever else: no strict JSON, a key twice, missing or unknown, a number
///         that is not a plain decimal below 2^53, a type that fusegrad does not have, more than 100 000 tensors, more
///         than 8 axes, a name that is empty, longer than 256 bytes or has control characters.
std::vector<SafetensorsEntry> parse_header(std::string_view where, std::string_view header, std::int64_t data_bytes);

}  // namespace fusegrad::detail
