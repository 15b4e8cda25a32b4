#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/io/faulty_calls.h"
#include "tests/io/message_of.h"
#include "tests/io/temporary_directory.h"

#include <fusegrad/autograd/error.h>
#include <fusegrad/autograd/file.h>

namespace fusegrad {
namespace {

using detail::InputFile;
using detail::OutputFile;
using test::FaultyCalls;
using test::message_of;
using test::read_file;
using test::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Fault = FaultyCalls::Fault;

const std::string kOld = "the old content";
const std::string kNew(10000, 'n');

void save(const std::string& path, detail::FileCalls& calls = detail::FileCalls::system()) {
  OutputFile file("test", path, calls);
  file.write(kNew.data(), 4);
  file.write(kNew.data() + 4, kNew.size() - 4);
  file.commit();
}

/// Number of system calls of an undisturbed save over an existing file.
int calls_of_a_save() {
  const TemporaryDirectory directory;
  FaultyCalls calls;
  save(directory.write("f", kOld), calls);
  return static_cast<int>(calls.log.size());
}

TEST(OutputFileTest, WritesSynchronisesRenamesAndSynchronisesTheDirectory) {
  const TemporaryDirectory directory;
  FaultyCalls fresh;
  save(directory / "f", fresh);
  EXPECT_THAT(fresh.log, ElementsAre("stat", "open", "write", "write", "fsync", "close", "open directory", "rename",
                                     "fsync directory", "close directory"));
  EXPECT_EQ(read_file(directory / "f"), kNew);
  constexpr int kOwnFile = O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  EXPECT_EQ(fresh.file_flags & kOwnFile, kOwnFile) << "the temporary is nobody else's file";
  FaultyCalls again;
  save(directory / "f", again);
  EXPECT_THAT(again.log, ElementsAre("stat", "open", "fchmod", "write", "write", "fsync", "close", "open directory",
                                     "rename", "fsync directory", "close directory"));
  EXPECT_THAT(directory.names(), ElementsAre("f")) << "no temporary is left";
}

TEST(OutputFileTest, FailsAtEachCallWithoutATrace) {
  const int count = calls_of_a_save();
  for (const int error : {EIO, ENOSPC, EDQUOT}) {
    for (int at = 1; at <= count; ++at) {
      const TemporaryDirectory directory;
      const std::string path = directory.write("f", kOld);
      FaultyCalls calls(Fault::error, at, error);
      const auto attempt = [&] { save(path, calls); };
      if (at == count) {  // closing the directory: nothing can be lost any more
        attempt();
      } else {
        EXPECT_THAT(message_of<IoError>(attempt), AllOf(HasSubstr(path), HasSubstr(strerror(error)))) << at;
      }
      const bool replaced =
          std::ranges::count(calls.log, "rename") == 1 && calls.log[static_cast<std::size_t>(at - 1)] != "rename";
      EXPECT_EQ(read_file(path), replaced ? kNew : kOld) << at;
      EXPECT_THAT(directory.names(), ElementsAre("f")) << at;
      EXPECT_EQ(std::ranges::count(calls.log, "open") + std::ranges::count(calls.log, "open directory"),
                std::ranges::count(calls.log, "close") + std::ranges::count(calls.log, "close directory") +
                    (calls.log[static_cast<std::size_t>(at - 1)].starts_with("open") ? 1 : 0))
          << "every descriptor is closed: " << at;
    }
  }
}

TEST(OutputFileTest, AcceptsAFileSystemThatDoesNotSynchroniseDirectories) {
  const TemporaryDirectory directory;
  FaultyCalls calls(Fault::error, calls_of_a_save() - 1, EINVAL);
  EXPECT_NO_THROW(save(directory.write("f", kOld), calls));
  EXPECT_EQ(calls.log[calls.log.size() - 2], "fsync directory");
  EXPECT_EQ(read_file(directory / "f"), kNew);
}

TEST(OutputFileTest, SurvivesInterruptionsAndShortWrites) {
  const int count = calls_of_a_save();
  for (int at = 1; at <= count; ++at) {
    const TemporaryDirectory directory;
    const std::string path = directory.write("f", kOld);
    FaultyCalls calls(Fault::interruption, at);
    calls.most_bytes = 999;
    try {
      save(path, calls);
      EXPECT_EQ(read_file(path), kNew) << at;
    } catch (const IoError&) {
      // Calls that POSIX does not interrupt, and close, whose descriptor is gone then.
      EXPECT_THAT(calls.log[static_cast<std::size_t>(at - 1)], ::testing::AnyOf("stat", "fchmod", "close", "rename"));
      EXPECT_EQ(read_file(path), kOld) << at;
    }
    EXPECT_THAT(directory.names(), ElementsAre("f")) << at;
  }
}

TEST(OutputFileTest, ACrashAtAnyCallLeavesTheOldFileOrTheNew) {
  const int count = calls_of_a_save();
  for (int at = 1; at <= count; ++at) {
    const TemporaryDirectory directory;
    const std::string path = directory.write("f", kOld);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      FaultyCalls calls(Fault::crash, at);
      save(path, calls);
      _exit(1);  // not reached: the crash comes first
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
    EXPECT_EQ(read_file(path), at <= count - 2 ? kOld : kNew) << at;
    save(path);
    EXPECT_EQ(read_file(path), kNew) << "a temporary left behind is in nobody's way";
  }
}

TEST(OutputFileTest, RemovesTheTemporaryOfAnAbandonedFile) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("f", kOld);
  {
    OutputFile file("test", path);
    file.write("x", 1);
    EXPECT_EQ(directory.names().size(), 2u);
  }
  EXPECT_THAT(directory.names(), ElementsAre("f"));
  EXPECT_EQ(read_file(path), kOld);
}

TEST(OutputFileTest, KeepsPermissionsAndReplacesLinks) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("f", kOld);
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  std::filesystem::create_symlink(path, directory / "link");
  save(directory / "link");
  EXPECT_EQ(read_file(path), kOld) << "the link is replaced, not followed";
  EXPECT_EQ(read_file(directory / "link"), kNew);
  save(path);
  for (const char* name : {"f", "link"}) {
    struct ::stat status {};
    ASSERT_EQ(lstat((directory / name).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode, S_IFREG | 0640u);
  }
  const mode_t mask = umask(027);
  save(directory / "fresh");
  umask(mask);
  struct ::stat status {};
  ASSERT_EQ(stat((directory / "fresh").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777u, 0640u);
}

TEST(OutputFileTest, ReplacesNothingButFiles) {
  const TemporaryDirectory directory;
  for (const std::string& path : {directory.path().string(), std::string("/dev/null"), std::string("/dev/full")}) {
    EXPECT_THAT(message_of<IoError>([&] { save(path); }), HasSubstr("is not a regular file"));
  }
  EXPECT_THAT(message_of<IoError>([&] { save(directory / "absent/f"); }), HasSubstr("No such file"));
  EXPECT_THAT(message_of<IoError>([&] { save(directory.write("f", kOld) + "/g"); }), HasSubstr("Not a directory"));
  EXPECT_THROW(save(directory / std::string(255, 'f')), IoError) << "the temporary's name is too long";
  EXPECT_THROW(save(""), IoError);
}

TEST(OutputFileTest, SavesInTheWorkingDirectory) {
  const TemporaryDirectory directory;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  save("f");
  std::filesystem::current_path(before);
  EXPECT_EQ(read_file(directory / "f"), kNew);
}

TEST(OutputFileTest, LeavesTheOldFileInADirectoryThatCannotBeWritten) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("f", kOld);
  ASSERT_EQ(chmod(directory.path().c_str(), 0555), 0);
  const uid_t user = geteuid();
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(seteuid(user == 0 ? kNobody : user), 0);  // nothing is unwritable for root
  const std::string message = message_of<IoError>([&] { save(path); });
  ASSERT_EQ(seteuid(user), 0);
  chmod(directory.path().c_str(), 0755);
  EXPECT_THAT(message, AllOf(HasSubstr("cannot create a temporary"), HasSubstr("Permission denied")));
  EXPECT_EQ(read_file(path), kOld);
  EXPECT_THAT(directory.names(), ElementsAre("f"));
}

TEST(OutputFileTest, LeavesTheOldFileWhenThereIsNoRoom) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("f", kOld);
  struct ::rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  struct ::rlimit limit = before;
  limit.rlim_cur = kNew.size() / 2;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::string message;
  try {
    save(path);
  } catch (const IoError& error) {
    message = error.what();
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(message, AllOf(HasSubstr("cannot write"), HasSubstr("File too large")));
  EXPECT_EQ(read_file(path), kOld);
  EXPECT_THAT(directory.names(), ElementsAre("f"));
}

TEST(InputFileTest, ReadsToTheEndInAnyPieces) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("f", kNew);
  FaultyCalls calls(Fault::interruption, 3);
  calls.most_bytes = 17;
  InputFile file("test", path, calls);
  EXPECT_EQ(file.size(), static_cast<std::int64_t>(kNew.size()));
  std::string content(kNew.size(), '\0');
  file.read(content.data(), content.size());
  EXPECT_EQ(content, kNew);
  EXPECT_EQ(file.read_some(content.data(), 1), 0u);
  EXPECT_THAT(message_of<IoError>([&] { file.read(content.data(), 3); }),
              AllOf(HasSubstr(path), HasSubstr("ends too early: 3 more bytes")));
}

TEST(InputFileTest, NamesFileAndCall) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("f", kOld);
  FaultyCalls open(Fault::error, 1, EMFILE);
  EXPECT_THAT(message_of<IoError>([&] { InputFile("test", path, open); }),
              "test: cannot open \"" + path + "\": " + strerror(EMFILE));
  FaultyCalls status(Fault::error, 2);
  EXPECT_THAT(message_of<IoError>([&] { InputFile("test", path, status).size(); }), HasSubstr("the size of"));
  FaultyCalls read(Fault::error, 2);
  char byte = 0;
  EXPECT_THAT(message_of<IoError>([&] { InputFile("test", path, read).read(&byte, 1); }), HasSubstr("cannot read"));
  EXPECT_THAT(message_of<IoError>([&] { InputFile("test", directory.path()).size(); }),
              HasSubstr("is not a regular file"));
}

}  // namespace
}  // namespace fusegrad
