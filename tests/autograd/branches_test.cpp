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

constexpr std::int64_t kElements = 4096 * 4096;
constexpr double kOperations = 2.0 * 16384 * 4096 * 4096;

TEST(BranchesTest, OneProductMakesRoomForALayerOfItsSize) {
  Lines lines(true);
  EXPECT_EQ(lines.make_room(kOperations), 0) << "nothing is complete";
  lines.complete(kElements);
  EXPECT_FALSE(lines.made_room());
  const double some = lines.make_room(kOperations);
  EXPECT_GT(some, 0);
  EXPECT_LT(some, 0.2);
  EXPECT_TRUE(lines.made_room());
  EXPECT_EQ(lines.make_room(kOperations), 0) << "the first one is enough";
}

TEST(BranchesTest, WhatWaitsLongerGetsMore) {
  Lines some(true);
  Lines more(true);
  some.complete(kElements);
  more.complete(4 * kElements);
  EXPECT_LT(some.make_room(kOperations), more.make_room(kOperations));
  EXPECT_GT(more.make_room(kOperations), 0) << "one product is not enough";
}

TEST(BranchesTest, LittleWorkIsNotWorthAnyRoom) {
  Lines lines(true);
  lines.complete(kElements / 4);
  EXPECT_EQ(lines.make_room(kOperations), 0);
  lines.complete(kElements);
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
