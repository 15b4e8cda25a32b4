// The order in which candidates are tried: by time, but only where that is worthwhile.
#include <vector>

#include <gtest/gtest.h>

#include <fusegrad/ops/plan_order.h>

namespace fusegrad {
namespace {

TEST(PlanOrderTest, OnlyAWorthwhileGainChangesTheOrder) {
  EXPECT_EQ(detail::order_of(std::vector<double>{10, 9.8, 12}), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(detail::order_of(std::vector<double>{10, 9, 8, 11}), (std::vector<int>{2, 1, 0, 3}));
  EXPECT_EQ(detail::order_of(std::vector<double>{-1, 10, 9.9, 5}), (std::vector<int>{3, 1, 2}));
  EXPECT_TRUE(detail::order_of(std::vector<double>{-1, -1}).empty());
}

}  // namespace
}  // namespace fusegrad
