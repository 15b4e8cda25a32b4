// File calls that are counted, written down, and fail on demand.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include <unistd.h>

#include <fusegrad/autograd/file.h>

namespace fusegrad::test {

class FaultyCalls : public detail::FileCalls {
 public:
  /// What happens at the call with number `at`, from 1; 0 is none.
  enum class Fault { error, interruption, crash };

  FaultyCalls() = default;
  FaultyCalls(Fault fault, int at, int error = EIO) : fault_(fault), at_(at), error_(error) {}

  /// The calls so far, for example "open", "write", "fsync", "fsync directory".
  std::vector<std::string> log;
  /// With which the last file was opened.
  int file_flags = 0;
  /// Reads and writes move at most so many bytes.
  std::size_t most_bytes = SIZE_MAX;

  int open(const char* path, int flags, mode_t mode) override {
    const bool directory = (flags & O_DIRECTORY) != 0;
    if (!enter(directory ? "open directory" : "open")) return -1;
    const int descriptor = FileCalls::open(path, flags, mode);
    if (directory) {
      directory_ = descriptor;
    } else {
      file_flags = flags;
    }
    return descriptor;
  }
  ssize_t read(int descriptor, void* data, std::size_t bytes) override {
    return enter("read") ? FileCalls::read(descriptor, data, std::min(bytes, most_bytes)) : -1;
  }
  ssize_t write(int descriptor, const void* data, std::size_t bytes) override {
    return enter("write") ? FileCalls::write(descriptor, data, std::min(bytes, most_bytes)) : -1;
  }
  int fstat(int descriptor, struct ::stat* status) override {
    return enter("fstat") ? FileCalls::fstat(descriptor, status) : -1;
  }
  int stat(const char* path, struct ::stat* status) override {
    return enter("stat") ? FileCalls::stat(path, status) : -1;
  }
  int fchmod(int descriptor, mode_t mode) override {
    return enter("fchmod") ? FileCalls::fchmod(descriptor, mode) : -1;
  }
  int fsync(int descriptor) override {
    return enter(descriptor == directory_ ? "fsync directory" : "fsync") ? FileCalls::fsync(descriptor) : -1;
  }
  int close(int descriptor) override {
    const bool directory = descriptor == directory_;
    if (directory) directory_ = -1;
    const bool fails = !enter(directory ? "close directory" : "close");
    FileCalls::close(descriptor);  // a close that fails closes all the same
    if (fails) errno = error_;
    return fails ? -1 : 0;
  }
  int rename(const char* from, const char* to) override { return enter("rename") ? FileCalls::rename(from, to) : -1; }
  int unlink(const char* path) override { return enter("unlink") ? FileCalls::unlink(path) : -1; }

 private:
  /// False if the call must fail, with errno set.
  bool enter(const char* name) {
    log.emplace_back(name);
    if (static_cast<int>(log.size()) != at_) return true;
    if (fault_ == Fault::crash) _exit(0);
    errno = fault_ == Fault::interruption ? EINTR : error_;
    return false;
  }

  Fault fault_ = Fault::error;
  int at_ = 0;
  int error_ = EIO;
  int directory_ = -1;
};

}  // namespace fusegrad::test
