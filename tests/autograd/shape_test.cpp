#include <gtest/gtest.h>

#include <fusegrad/autograd/error.h>
#include <fusegrad/autograd/shape.h>

namespace fusegrad {
namespace {

TEST(ShapeTest, CountsElements) {
  EXPECT_EQ(Shape().size(), 1);
  EXPECT_EQ(Shape({2, 3, 4}).size(), 24);
  EXPECT_EQ(Shape({2, 0, 4}).size(), 0);
}

TEST(ShapeTest, NamesItself) {
  EXPECT_EQ(Shape().to_string(), "[]");
  EXPECT_EQ(Shape({64, 784}).to_string(), "[64, 784]");
}

TEST(ShapeTest, CountsAxesFromTheEnd) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape[-1], 4);
  EXPECT_EQ(shape[-3], 2);
  EXPECT_THROW(shape[3], ShapeError);
  EXPECT_THROW(shape[-4], ShapeError);
}

TEST(ShapeTest, RefusesWhatItCannotHold) {
  EXPECT_THROW(Shape({1, 2, 3, 4, 5}), ShapeError);
  EXPECT_THROW(Shape({2, -1}), ShapeError);
  EXPECT_THROW(Shape({std::int64_t{1} << 40, std::int64_t{1} << 40}), ShapeError);
  EXPECT_THROW(Shape({0, std::int64_t{1} << 40, std::int64_t{1} << 40}), ShapeError) << "partial products overflow";
}

}  // namespace
}  // namespace fusegrad
