// Files by system call, every result checked.
//
// InputFile reads; OutputFile replaces a file as a whole: the content goes to a temporary in the same directory, is
// forced to the disk and then renamed over the target, so that at any moment, a crash included, the path holds the old
// content or the new one. Every error is an IoError that names the file and the call. Not installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <sys/stat.h>
#include <sys/types.h>

namespace fusegrad::detail {

/// The system calls that files need. Each returns what its namesake does and sets errno; a test overrides one to make
/// it fail.
class FileCalls {
 public:
  virtual ~FileCalls() = default;
  virtual int open(const char* path, int flags, mode_t mode);
  virtual ssize_t read(int descriptor, void* data, std::size_t bytes);
  virtual ssize_t write(int descriptor, const void* data, std::size_t bytes);
  virtual int fstat(int descriptor, struct ::stat* status);
  virtual int stat(const char* path, struct ::stat* status);
  virtual int fchmod(int descriptor, mode_t mode);
  virtual int fsync(int descriptor);
  virtual int close(int descriptor);
  virtual int rename(const char* from, const char* to);
  virtual int unlink(const char* path);

  /// The operating system's own.
  static FileCalls& system();
};

/// A file open for reading, from its start to its end.
class InputFile {
 public:
  /// `op` begins every error message. Errors: IoError if the file cannot be opened.
  InputFile(std::string op, std::string path, FileCalls& calls = FileCalls::system());
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& op() const { return op_; }
  const std::string& path() const { return path_; }
  /// Bytes in the file. Errors: IoError if it is no regular file (a directory, a pipe, a device).
  std::int64_t size() const;
  /// Reads up to `bytes` bytes; 0 only at the end.
  std::size_t read_some(void* data, std::size_t bytes);
  /// Reads exactly `bytes` bytes. Errors: IoError if the file ends before.
  void read(void* data, std::size_t bytes);

 private:
  std::string op_;
  std::string path_;
  FileCalls& calls_;
  int descriptor_ = -1;
};

/// A file that takes the place of another, or of none, when it is complete.
///
/// The temporary is `path`.tmp. and eight hexadecimal digits, created exclusively and without following a link, with
/// the permissions of the file it replaces. Unless commit() renamed it, the destructor removes it and the old file is
/// untouched. A `path` that is a symbolic link is replaced, not followed.
class OutputFile {
 public:
  /// Errors: IoError if `path` is there but no regular file, or if the temporary cannot be created.
  OutputFile(std::string op, std::string path, FileCalls& calls = FileCalls::system());
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, std::size_t bytes);
  /// Forces the content to the disk, renames it to `path` and forces the directory to the disk. Errors: IoError; if it
  /// says that the directory could not be synchronised the new file is in place, but may be lost with the power.
  void commit();

 private:
  void create();
  [[noreturn]] void fail(const char* what, int error) const;

  std::string op_;
  std::string path_;
  std::string temporary_;
  FileCalls& calls_;
  int descriptor_ = -1;
  bool exists_ = false;  // the temporary is on the disk
};

}  // namespace fusegrad::detail
