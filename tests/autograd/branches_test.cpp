// What products leave to optimizers that run beside them. How work runs beside other work: step_*_test.cpp.
#include <gtest/gtest.h>

#include <fusegrad/autograd/branches.h>

namespace fusegrad::detail {
namespace {

/// No lines but the main one.
class Lines final : public Branches {
 public:
  explicit Lines(bool expects_updates) { expects_updates_ = expects_updates; }

  void begin_beside() override {}
  void end_beside() noexcept override {}
  void join(const Storage& /*storage*/) override {}
  void join_all() override {}
  std::int64_t mark() override { return 1; }
  void begin_update(std::int64_t /*point*/) override {}
  void wait_in_update(std::int64_t /*point*/) override {}
  void end_update() noexcept override {}
};

// A layer of 4096 x 16384 with a batch of 8192.
constexpr std::int64_t kElements = std::int64_t{4096} * 16384;
constexpr double kOperations = 2.0 * 8192 * kElements;

TEST(BranchesTest, OneProductMakesRoomForALayerOfItsSize) {
  Lines lines(true);
  EXPECT_EQ(lines.make_room(kOperations), 0) << "nothing is complete";
  lines.complete(kElements);
  EXPECT_FALSE(lines.made_room());
  const double share = lines.make_room(kOperations);
  EXPECT_GT(share, 0);
  EXPECT_LT(share, 0.2);
  EXPECT_TRUE(lines.made_room());
  EXPECT_EQ(lines.make_room(kOperations), 0) << "the first one is enough";
}

TEST(BranchesTest, WhatOneProductCannotHideTheNextOneDoes) {
  Lines lines(true);
  lines.complete(3 * kElements);
  EXPECT_GT(lines.make_room(kOperations), 0);
  EXPECT_GT(lines.make_room(kOperations), 0);
  EXPECT_EQ(lines.make_room(kOperations), 0);
}

TEST(BranchesTest, LittleWorkIsNotWorthAnyRoom) {
  Lines lines(true);
  lines.complete(kElements / 2);
  EXPECT_EQ(lines.make_room(kOperations), 0);
  EXPECT_FALSE(lines.made_room());
  lines.complete(kElements / 2);
  EXPECT_GT(lines.make_room(kOperations), 0) << "what waits adds up";
}

TEST(BranchesTest, NoneWhereNoOptimizerFollows) {
  Lines lines(false);
  lines.complete(4 * kElements);
  EXPECT_EQ(lines.make_room(kOperations), 0);
  EXPECT_FALSE(lines.made_room());
}

}  // namespace
}  // namespace fusegrad::detail
