#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include <fusegrad/autograd/check.h>
#include <fusegrad/io/safetensors.h>

namespace fusegrad::detail {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::size_t kMostTensors = 100'000;
constexpr std::size_t kMostAxes = 8;
constexpr std::size_t kMostNameBytes = 256;
constexpr std::uint64_t kNumberLimit = std::uint64_t{1} << 53;  // what every JSON reader holds exactly
constexpr std::array kDtypes{Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::i32, Dtype::u8};

/// Receives the header as the parser reads it and accepts only what the format allows next. Nothing is built that the
/// header's own length does not bound, and nothing recurses.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  std::vector<SafetensorsEntry> take_entries() { return std::move(entries_); }
  const std::string& problem() const { return problem_; }

  bool start_object(std::size_t) override {
    if (place_ == Place::start) return enter(Place::root);
    if (place_ != Place::root) return unexpected("an object");
    if (key_ == kMetadata) return enter(Place::metadata);
    entries_.emplace_back().name = key_;
    has_dtype_ = has_shape_ = has_offsets_ = false;
    return enter(Place::tensor);
  }

  bool key(std::string& name) override {
    key_ = name;
    if (place_ == Place::root) {
      const bool control = std::ranges::any_of(name, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
      if (name.empty() || name.size() > kMostNameBytes || control) {
        return fail(
            detail::format("a tensor's name must have 1 to {} bytes and no control characters", kMostNameBytes));
      }
      if (!names_.insert(name).second) return fail(detail::format("the key \"{}\" appears twice", name));
      return names_.size() <= kMostTensors || fail(detail::format("there are more than {} tensors", kMostTensors));
    }
    if (place_ == Place::metadata) {
      return metadata_keys_.insert(name).second ||
             fail(detail::format("the metadata key \"{:.64}\" appears twice", name));
    }
    bool* seen = name == "dtype"          ? &has_dtype_
                 : name == "shape"        ? &has_shape_
                 : name == "data_offsets" ? &has_offsets_
                                          : nullptr;
    if (!seen) return fail(detail::format("tensor \"{}\" has an unknown key \"{:.64}\"", entries_.back().name, name));
    if (std::exchange(*seen, true)) {
      return fail(detail::format("tensor \"{}\" has the key \"{}\" twice", entries_.back().name, name));
    }
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::metadata) return true;
    if (place_ != Place::tensor || key_ != "dtype") return unexpected("a string");
    const auto found = std::ranges::find(kDtypes, text, safetensors_name);
    if (found == kDtypes.end()) {
      return fail(detail::format("tensor \"{}\" has the type \"{:.64}\", which fusegrad does not have",
                                 entries_.back().name, text));
    }
    entries_.back().dtype = *found;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::tensor && key_ == "shape") return enter(Place::shape);
    if (place_ != Place::tensor || key_ != "data_offsets") return unexpected("an array");
    offsets_.clear();
    return enter(Place::offsets);
  }

  bool number_unsigned(std::uint64_t number) override {
    if (place_ != Place::shape && place_ != Place::offsets) return unexpected("a number");
    if (number >= kNumberLimit) return fail(detail::format("{} is not below 2^53", number));
    std::vector<std::int64_t>& list = place_ == Place::shape ? entries_.back().shape : offsets_;
    const std::size_t most = place_ == Place::shape ? kMostAxes : 2;
    if (list.size() == most) {
      return fail(detail::format("tensor \"{}\" has more than {} numbers in \"{}\"", entries_.back().name, most, key_));
    }
    list.push_back(static_cast<std::int64_t>(number));
    return true;
  }

  bool end_array() override {
    if (place_ == Place::offsets) {
      if (offsets_.size() != 2) return fail(detail::format("tensor \"{}\" needs two offsets", entries_.back().name));
      entries_.back().begin = offsets_[0];
      entries_.back().end = offsets_[1];
    }
    return enter(Place::tensor);
  }

  bool end_object() override {
    if (place_ == Place::root) return enter(Place::end);
    if (place_ == Place::tensor && !(has_dtype_ && has_shape_ && has_offsets_)) {
      return fail(detail::format("tensor \"{}\" lacks dtype, shape or data_offsets", entries_.back().name));
    }
    return enter(Place::root);
  }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(std::int64_t) override { return unexpected("a negative number"); }
  bool number_float(double, const std::string&) override { return unexpected("a fraction"); }
  bool binary(Json::binary_t&) override { return unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return fail(detail::format("it is not valid JSON at byte {}", position));
  }

 private:
  enum class Place : std::uint8_t { start, root, metadata, tensor, shape, offsets, end };

  bool enter(Place place) {
    place_ = place;
    return true;
  }
  bool fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  bool unexpected(const char* what) {
    return fail(key_.empty() ? detail::format("{} stands where an object must be", what)
                             : detail::format("{} stands where none may be, behind the key \"{:.64}\"", what, key_));
  }

  Place place_ = Place::start;
  std::string key_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> metadata_keys_;
  std::vector<std::int64_t> offsets_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::vector<SafetensorsEntry> entries_;
  std::string problem_;
};

/// Bytes of a tensor, or nothing if they overflow 64 bits.
std::optional<std::int64_t> bytes_of(const SafetensorsEntry& entry) {
  auto bytes = static_cast<std::int64_t>(size_of(entry.dtype));
  for (const std::int64_t extent : entry.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

}  // namespace

std::string_view safetensors_name(Dtype dtype) {
  constexpr std::array<std::string_view, kDtypes.size()> kNames{"F64", "F32", "BF16", "F16", "I32", "U8"};
  return kNames[static_cast<std::size_t>(std::ranges::find(kDtypes, dtype) - kDtypes.begin())];
}

std::string format_header(std::string_view op, const std::vector<SafetensorsEntry>& entries) {
  std::string json = "{";
  for (const SafetensorsEntry& entry : entries) {
    require<ValueError>(entry.name != kMetadata, "{}: the name \"{}\" is reserved in safetensors files", op, kMetadata);
    std::string name;
    try {
      name = Json(entry.name).dump();
    } catch (const Json::type_error&) {
      throw ValueError(detail::format("{}: the name \"{}\" is not UTF-8", op, entry.name));
    }
    json +=
        detail::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", json.size() > 1 ? "," : "",
                       name, safetensors_name(entry.dtype), fmt::join(entry.shape, ","), entry.begin, entry.end);
  }
  json += "}";
  json.resize((json.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  require<ValueError>(static_cast<std::int64_t>(json.size()) <= kMostHeaderBytes,
                      "{}: {} parameters need a header of {} bytes, more than {}", op, entries.size(), json.size(),
                      kMostHeaderBytes);
  static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");
  const std::uint64_t length = json.size();
  std::string head(kLengthBytes, '\0');
  std::memcpy(head.data(), &length, sizeof length);
  return head + json;
}

std::vector<SafetensorsEntry> parse_header(std::string_view where, std::string_view header, std::int64_t data_bytes) {
  const auto check = [&]<class... Args>(bool condition, fmt::format_string<Args...> message, Args&&... args) {
    if (!condition)
      throw IoError(detail::format("{}: {}", where, detail::format(message, std::forward<Args>(args)...)));
  };
  // JSON would allow more around the object: a byte order mark in front, line ends behind.
  const std::size_t last = header.find_last_not_of(' ');
  require<IoError>(header.starts_with('{'), "{} is no safetensors file: the header must be a JSON object", where);
  check(header[last] == '}', "the header must be a JSON object, padded with spaces");
  HeaderReader reader;
  const bool valid = Json::sax_parse(header.begin(), header.end(), &reader);
  check(valid, "the header is wrong: {}", reader.problem());

  std::vector<SafetensorsEntry> entries = reader.take_entries();
  std::ranges::sort(entries, [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::int64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    check(entry.begin == covered && entry.end >= entry.begin,
          "tensor \"{}\" has bytes {} to {}, but the data before it ends at {}", entry.name, entry.begin, entry.end,
          covered);
    const std::optional<std::int64_t> bytes = bytes_of(entry);
    check(bytes == entry.end - entry.begin, "tensor \"{}\" has {} bytes, but {} of shape [{}] needs {}", entry.name,
          entry.end - entry.begin, safetensors_name(entry.dtype), fmt::join(entry.shape, ", "),
          bytes ? fmt::to_string(*bytes) : "more than 2^63");
    covered = entry.end;
  }
  check(covered == data_bytes, "the tensors have {} bytes, the file has {}", covered, data_bytes);
  return entries;
}

}  // namespace fusegrad::detail
