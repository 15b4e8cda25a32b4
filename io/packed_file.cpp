#include <algorithm>
#include <cstring>

#include <zlib.h>

#include <fusegrad/autograd/check.h>
#include <fusegrad/io/packed_file.h>

namespace fusegrad::detail {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 16;
constexpr std::int64_t kMostUnpackedBytes = std::int64_t{1} << 36;
constexpr std::int64_t kMostExpansion = 1032;  // zlib's "Maximum Expansion Factor"
constexpr int kGzipOnly = 16;                  // added to the window's logarithm: gzip's header and checksum, no other
constexpr int kLargestWindow = 15;

}  // namespace

void PackedFile::EndInflate::operator()(z_stream_s* stream) const {
  inflateEnd(stream);
  delete stream;
}

PackedFile::PackedFile(InputFile& file) : file_(file), buffer_(kBufferBytes), most_bytes_(file.size()) {
  while (filled_ < 2 && refill()) {
  }
  if (filled_ < 2 || buffer_[0] != std::byte{0x1f} || buffer_[1] != std::byte{0x8b}) return;
  auto stream = std::make_unique<z_stream>();
  require<OutOfMemoryError>(inflateInit2(stream.get(), kLargestWindow + kGzipOnly) == Z_OK,
                            "{}: no memory is left to unpack \"{}\"", file_.op(), file_.path());
  stream_.reset(stream.release());
  most_bytes_ = std::min(most_bytes_, kMostUnpackedBytes / kMostExpansion) * kMostExpansion;
}

PackedFile::~PackedFile() = default;

void PackedFile::read(void* data, std::size_t bytes) {
  auto* to = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const std::size_t got = read_some(to, bytes);
    if (got == 0) fail("ends too early");
    to += got;
    bytes -= got;
  }
}

void PackedFile::finish() {
  std::byte surplus{};
  if (read_some(&surplus, 1) != 0) fail("is longer than its header says");
}

/// Reads at least one byte, at most `bytes`; 0 only at the end of the content.
std::size_t PackedFile::read_some(std::byte* data, std::size_t bytes) {
  if (packed()) return inflate_some(data, bytes);
  if (next_ == filled_) return file_.read_some(data, bytes);
  const std::size_t count = std::min(bytes, filled_ - next_);
  std::memcpy(data, buffer_.data() + next_, count);
  next_ += count;
  return count;
}

std::size_t PackedFile::inflate_some(std::byte* data, std::size_t bytes) {
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // zlib counts in 32 bits
  const auto wanted = static_cast<uInt>(std::min(bytes, kMostAtOnce));
  stream_->next_out = reinterpret_cast<Bytef*>(data);
  stream_->avail_out = wanted;
  while (stream_->avail_out == wanted) {
    bool input = next_ < filled_ || refill();
    if (member_ended_) {
      // Tapes and block devices fill the last block up with zeros, and gzip ignores them; no member begins with one.
      while (input && buffer_[next_] == std::byte{0}) input = ++next_ < filled_ || refill();
      if (!input) return 0;
      inflateReset(stream_.get());
      member_ended_ = false;
    }
    if (!input) fail("ends within its gzip data");
    stream_->next_in = reinterpret_cast<Bytef*>(buffer_.data() + next_);
    stream_->avail_in = static_cast<uInt>(filled_ - next_);
    const int status = inflate(stream_.get(), Z_NO_FLUSH);
    next_ = filled_ - stream_->avail_in;
    member_ended_ = status == Z_STREAM_END;
    require<OutOfMemoryError>(status != Z_MEM_ERROR, "{}: no memory is left to unpack \"{}\"", file_.op(),
                              file_.path());
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) fail("has damaged gzip data");
  }
  return wanted - stream_->avail_out;
}

/// Replaces used bytes of the file by new ones, or adds to what was peeked at; false at the end of the file.
bool PackedFile::refill() {
  if (next_ == filled_) next_ = filled_ = 0;
  const std::size_t got = file_.read_some(buffer_.data() + filled_, buffer_.size() - filled_);
  filled_ += got;
  return got > 0;
}

void PackedFile::fail(const char* what) const {
  throw IoError(detail::format("{}: \"{}\" {}", file_.op(), file_.path(), what));
}

}  // namespace fusegrad::detail
