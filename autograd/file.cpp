#include <cerrno>
#include <cstdio>
#include <random>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/file.h>

namespace fusegrad::detail {
namespace {

/// Repeats a system call that a signal interrupted.
template <class Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

[[noreturn]] void fail(const std::string& op, const char* what, const std::string& path, int error) {
  throw IoError(detail::format("{}: cannot {} \"{}\": {}", op, what, path, std::generic_category().message(error)));
}

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return path.substr(0, slash == 0 ? 1 : slash);
}

}  // namespace

int FileCalls::open(const char* path, int flags, mode_t mode) {
  return ::open(path, flags, mode);  // NOLINT(cppcoreguidelines-pro-type-vararg): the system's own interface
}
ssize_t FileCalls::read(int descriptor, void* data, std::size_t bytes) { return ::read(descriptor, data, bytes); }
ssize_t FileCalls::write(int descriptor, const void* data, std::size_t bytes) {
  return ::write(descriptor, data, bytes);
}
int FileCalls::fstat(int descriptor, struct ::stat* status) { return ::fstat(descriptor, status); }
int FileCalls::stat(const char* path, struct ::stat* status) { return ::stat(path, status); }
int FileCalls::fchmod(int descriptor, mode_t mode) { return ::fchmod(descriptor, mode); }
int FileCalls::fsync(int descriptor) { return ::fsync(descriptor); }
int FileCalls::close(int descriptor) { return ::close(descriptor); }
int FileCalls::rename(const char* from, const char* to) { return std::rename(from, to); }
int FileCalls::unlink(const char* path) { return ::unlink(path); }

FileCalls& FileCalls::system() {
  static FileCalls calls;  // has no state
  return calls;
}

InputFile::InputFile(std::string op, std::string path, FileCalls& calls)
    : op_(std::move(op)), path_(std::move(path)), calls_(calls) {
  descriptor_ = uninterrupted([&] { return calls_.open(path_.c_str(), O_RDONLY | O_CLOEXEC, 0); });
  if (descriptor_ < 0) fail(op_, "open", path_, errno);
}

InputFile::~InputFile() { calls_.close(descriptor_); }

std::int64_t InputFile::size() const {
  struct ::stat status = {};
  if (calls_.fstat(descriptor_, &status) != 0) fail(op_, "ask for the size of", path_, errno);
  require<IoError>(S_ISREG(status.st_mode), "{}: \"{}\" is not a regular file", op_, path_);
  return status.st_size;
}

std::size_t InputFile::read_some(void* data, std::size_t bytes) {
  const ssize_t got = uninterrupted([&] { return calls_.read(descriptor_, data, bytes); });
  if (got < 0) fail(op_, "read", path_, errno);
  return static_cast<std::size_t>(got);
}

void InputFile::read(void* data, std::size_t bytes) {
  auto* to = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const std::size_t got = read_some(to, bytes);
    require<IoError>(got > 0, "{}: \"{}\" ends too early: {} more bytes were expected", op_, path_, bytes);
    to += got;
    bytes -= got;
  }
}

OutputFile::OutputFile(std::string op, std::string path, FileCalls& calls)
    : op_(std::move(op)), path_(std::move(path)), calls_(calls) {
  create();
}

OutputFile::~OutputFile() {
  // Failures are not reported: either commit() threw already, or the caller's own exception is under way.
  if (descriptor_ >= 0) calls_.close(descriptor_);
  if (exists_) calls_.unlink(temporary_.c_str());
}

void OutputFile::create() {
  struct ::stat target = {};
  const bool replaces = calls_.stat(path_.c_str(), &target) == 0;
  // A rename would put a plain file in the place of a device such as /dev/stdout.
  require<IoError>(!replaces || S_ISREG(target.st_mode), "{}: \"{}\" is not a regular file", op_, path_);
  if (!replaces && errno != ENOENT) fail("look for", errno);

  constexpr int kAttempts = 16;
  std::random_device random;
  for (int attempt = 0; descriptor_ < 0; ++attempt) {
    temporary_ = detail::format("{}.tmp.{:08x}", path_, random());
    constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    descriptor_ = uninterrupted([&] { return calls_.open(temporary_.c_str(), kFlags, 0666); });
    if (descriptor_ < 0 && (errno != EEXIST || attempt + 1 == kAttempts)) fail("create a temporary for", errno);
  }
  exists_ = true;
  if (replaces && calls_.fchmod(descriptor_, target.st_mode & 07777) != 0) {
    const int error = errno;
    calls_.close(descriptor_);  // the destructor does not run for a constructor that throws
    calls_.unlink(temporary_.c_str());
    fail("set the permissions of the temporary for", error);
  }
}

void OutputFile::write(const void* data, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t written = uninterrupted([&] { return calls_.write(descriptor_, from, bytes); });
    if (written <= 0) fail("write", written == 0 ? ENOSPC : errno);
    from += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void OutputFile::commit() {
  if (uninterrupted([&] { return calls_.fsync(descriptor_); }) != 0) fail("synchronise", errno);
  // Whatever close() says, the descriptor is gone: it is never closed twice.
  if (calls_.close(std::exchange(descriptor_, -1)) != 0) fail("close", errno);

  // Opened before the rename: a directory that cannot be opened is found while the old file is still there.
  const std::string name = directory_of(path_);
  const int directory = uninterrupted([&] { return calls_.open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  if (directory < 0) fail("open the directory of", errno);
  const bool renamed = calls_.rename(temporary_.c_str(), path_.c_str()) == 0;
  const int rename_error = errno;
  if (renamed) exists_ = false;
  const bool synced = renamed && uninterrupted([&] { return calls_.fsync(directory); }) == 0;
  const int sync_error = errno;
  calls_.close(directory);
  if (!renamed) fail("rename the temporary to", rename_error);
  // A file system that has nothing to synchronise for a directory says so with EINVAL.
  if (!synced && sync_error != EINVAL) fail("synchronise the directory of", sync_error);
}

void OutputFile::fail(const char* what, int error) const { detail::fail(op_, what, path_, error); }

}  // namespace fusegrad::detail
