// The content of a file, be it plain or packed with gzip; its first two bytes tell which. Zeros behind gzip data are
// padding, as they are for gzip itself. Not installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <fusegrad/autograd/file.h>

struct z_stream_s;  // zlib's, without its header

namespace fusegrad::detail {

class PackedFile {
 public:
  /// Reads from `file`, a regular one at its start, which must outlive this object. Errors: IoError; OutOfMemoryError.
  explicit PackedFile(InputFile& file);
  ~PackedFile();
  PackedFile(const PackedFile&) = delete;
  PackedFile& operator=(const PackedFile&) = delete;

  bool packed() const { return stream_ != nullptr; }
  /// No content is longer: the size of a plain file; 1032 times that of a packed one, which is as far as deflate
  /// packs, and at most 64 GiB. Whoever allocates by a number from the content compares it with this first.
  std::int64_t most_bytes() const { return most_bytes_; }
  /// Reads exactly `bytes` bytes. Errors: IoError if the content ends before or its packing is damaged.
  void read(void* data, std::size_t bytes);
  /// Errors: IoError unless the content ends here, with the checksum that the packing promises.
  void finish();

 private:
  struct EndInflate {
    void operator()(z_stream_s* stream) const;
  };
  bool refill();
  std::size_t read_some(std::byte* data, std::size_t bytes);
  std::size_t inflate_some(std::byte* data, std::size_t bytes);
  [[noreturn]] void fail(const char* what) const;

  InputFile& file_;
  std::vector<std::byte> buffer_;  // bytes of the file
  std::size_t next_ = 0;           // of them, the first that is not used
  std::size_t filled_ = 0;
  std::int64_t most_bytes_ = 0;
  std::unique_ptr<z_stream_s, EndInflate> stream_;
  bool member_ended_ = false;  // a gzip file may be several, one after the other
};

}  // namespace fusegrad::detail
