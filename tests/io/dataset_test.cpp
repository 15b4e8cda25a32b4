#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>

#include "tests/io/message_of.h"

#include <fusegrad/autograd/error.h>
#include <fusegrad/io/dataset.h>

namespace fusegrad {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInfinity = std::numeric_limits<float>::infinity();

Context cpu() { return Context::cpu({.threads = 1}); }

Tensor table(const Shape& shape, const std::vector<float>& values) { return Tensor::from(cpu(), shape, values); }

Tensor counting(std::int64_t rows, std::int64_t width) {
  std::vector<float> values(static_cast<std::size_t>(rows * width));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  return table({rows, width}, values);
}

Tensor labels(const std::vector<std::int32_t>& values) {
  return Tensor::from(cpu(), {static_cast<std::int64_t>(values.size())}, values);
}

TEST(DatasetTest, HoldsFeaturesAndLabels) {
  const Dataset data = Dataset::classification(counting(3, 2), labels({0, 4, 1}));
  EXPECT_EQ(data.size(), 3);
  EXPECT_EQ(data.feature_count(), 2);
  EXPECT_EQ(data.classes(), 5);
  EXPECT_TRUE(data.is_classification());
  EXPECT_THAT(data.features().to_vector<float>(), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(data.labels().to_vector<std::int32_t>(), ElementsAre(0, 4, 1));
  EXPECT_THROW(data.targets(), StateError);
}

TEST(DatasetTest, HoldsFeaturesAndTargets) {
  const Dataset data = Dataset::regression(counting(2, 2), table({2, 3}, {1, -2, 3, -4, 5, -6}));
  EXPECT_EQ(data.size(), 2);
  EXPECT_EQ(data.classes(), 0);
  EXPECT_FALSE(data.is_classification());
  EXPECT_THAT(data.targets().to_vector<float>(), ElementsAre(1, -2, 3, -4, 5, -6));
  EXPECT_THROW(data.labels(), StateError);
}

TEST(DatasetTest, FlattensImagesAndConvertsEveryDtype) {
  const Tensor images = Tensor::from(cpu(), {2, 1, 2}, std::vector<std::uint8_t>{0, 7, 200, 255});
  const Tensor classes = Tensor::from(cpu(), {2}, std::vector<double>{2.0, 0.0});
  const Dataset data = Dataset::classification(images, classes);
  EXPECT_EQ(data.features().shape(), Shape({2, 2}));
  EXPECT_THAT(data.features().to_vector<float>(), ElementsAre(0, 7, 200, 255));
  EXPECT_THAT(data.labels().to_vector<std::int32_t>(), ElementsAre(2, 0));

  const Tensor wide = Tensor::from(cpu(), {1, 2}, std::vector<double>{1 + 0x1p-24 + 0x1p-50, 1 + 0x1p-24});
  EXPECT_THAT(Dataset::classification(wide, labels({0})).features().to_vector<float>(), ElementsAre(1 + 0x1p-23f, 1.0f))
      << "rounded to nearest even, once";
}

TEST(DatasetTest, IsUntouchedByLaterWritesToItsSource) {
  Tensor features = counting(2, 1);
  Tensor classes = labels({0, 1});
  const Dataset data = Dataset::classification(features, classes);
  features.mutable_data<float>()[0] = kNan;
  classes.mutable_data<std::int32_t>()[0] = -1;
  EXPECT_THAT(data.features().to_vector<float>(), ElementsAre(0, 1));
  EXPECT_THAT(data.labels().to_vector<std::int32_t>(), ElementsAre(0, 1));

  std::vector<float> caller{5, 6};
  const Dataset borrowed = Dataset::classification(Tensor::borrow(cpu(), {2, 1}, caller.data()), labels({0, 1}));
  caller[0] = kNan;
  EXPECT_THAT(borrowed.features().to_vector<float>(), ElementsAre(5, 6));
}

TEST(DatasetTest, TakesOverFeaturesThatNobodyElseHolds) {
  Tensor features = counting(2, 1);
  const void* memory = features.raw();
  EXPECT_EQ(Dataset::classification(std::move(features), labels({0, 1})).features().raw(), memory);
}

TEST(DatasetTest, NamesTheFeatureThatIsNotFinite) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    const std::string message = message_of<ValueError>([&] {
      Dataset::classification(table({2, 3}, {0, 1, 2, 3, bad, 5}), labels({0, 1}));
    });
    EXPECT_THAT(message, HasSubstr("feature 1 of row 1 is ")) << bad;
  }
  const Tensor large = Tensor::from(cpu(), {1, 1}, std::vector<double>{1e39});
  EXPECT_THROW(Dataset::classification(large, labels({0})), ValueError) << "too large for f32";
  EXPECT_THAT(message_of<ValueError>([] {
                Dataset::regression(counting(2, 1), table({2, 1}, {0, kNan}));
              }),
              HasSubstr("target 0 of row 1 is nan"));
}

TEST(DatasetTest, NamesTheLabelThatIsNoClass) {
  const auto refusal = [](const Tensor& bad, std::optional<std::int64_t> classes = std::nullopt) {
    return message_of<ValueError>([&] { Dataset::classification(counting(bad.size(), 1), bad, classes); });
  };
  EXPECT_THAT(refusal(labels({0, 1, -4})), HasSubstr("the label of row 2 is -4"));
  EXPECT_THAT(refusal(table({2}, {1, 0.5f})), HasSubstr("the label of row 1 is 0.5"));
  EXPECT_THAT(refusal(table({2}, {kNan, 0})), HasSubstr("the label of row 0 is nan"));
  EXPECT_THAT(refusal(table({1}, {kInfinity})), HasSubstr("the label of row 0 is inf"));
  EXPECT_THAT(refusal(table({1}, {2147483648.0f})), HasSubstr("the label of row 0 is 2147483648"));
  EXPECT_THAT(refusal(labels({0, 3}), 3), HasSubstr("the label of row 1 is 3; labels are whole numbers from 0 to 2"));
  EXPECT_THAT(refusal(labels({0}), 0), HasSubstr("classes must be 1 to"));
  EXPECT_EQ(Dataset::classification(counting(1, 1), labels({2147483647})).classes(), std::int64_t{1} << 31);
}

TEST(DatasetTest, RefusesWhatHasNoRowsOrDoesNotFit) {
  EXPECT_THAT(message_of<ValueError>([] { Dataset::classification(counting(0, 3), labels({})); }),
              HasSubstr("there are no rows"));
  EXPECT_THROW(Dataset::regression(counting(0, 3), counting(0, 1)), ValueError);
  EXPECT_THROW(Dataset::classification(Tensor(), labels({0})), ValueError);
  EXPECT_THROW(Dataset::classification(counting(1, 1), Tensor()), ValueError);
  EXPECT_THROW(Dataset::classification(table({3}, {1, 2, 3}), labels({0, 1, 2})), ShapeError);
  EXPECT_THAT(message_of<ShapeError>([] {
                Dataset::classification(counting(3, 1), labels({0, 1}));
              }),
              HasSubstr("labels must be [3], one a row of features, got [2]"));
  EXPECT_THROW(Dataset::regression(counting(3, 1), counting(2, 1)), ShapeError);
  EXPECT_THROW(Dataset::regression(counting(3, 1), table({3}, {1, 2, 3})), ShapeError) << "nothing broadcasts";
}

TEST(DatasetTest, MayHaveNoFeatures) {
  const Dataset data = Dataset::classification(counting(2, 0), labels({1, 0}));
  EXPECT_EQ(data.feature_count(), 0);
  EXPECT_EQ(data.select({1}).labels().to_vector<std::int32_t>(), std::vector{0});
}

TEST(DatasetTest, DividesEveryFeatureOnce) {
  const Dataset data = Dataset::classification(table({1, 3}, {16, 1, -5}), labels({0}), 7);
  const Dataset scaled = data.scaled(3);
  EXPECT_THAT(scaled.features().to_vector<float>(), ElementsAre(16.0f / 3, 1.0f / 3, -5.0f / 3));
  EXPECT_EQ(scaled.classes(), 7);
  EXPECT_THAT(data.features().to_vector<float>(), ElementsAre(16, 1, -5)) << "the original is as it was";
  for (const float bad : {0.0f, kNan, kInfinity}) EXPECT_THROW(data.scaled(bad), ValueError);
  EXPECT_THROW(data.scaled(1e-38f).scaled(1e-38f), ValueError) << "quotients overflow";
}

TEST(DatasetTest, SelectsRowsInTheGivenOrder) {
  const Dataset data = Dataset::classification(counting(4, 2), labels({0, 1, 2, 3}));
  const Dataset part = data.select({2, 0, 2});
  EXPECT_THAT(part.features().to_vector<float>(), ElementsAre(4, 5, 0, 1, 4, 5));
  EXPECT_THAT(part.labels().to_vector<std::int32_t>(), ElementsAre(2, 0, 2));
  EXPECT_EQ(part.classes(), 4) << "a part knows the classes of the whole";
  EXPECT_THAT(message_of<ValueError>([&] { data.select({0, 4}); }), HasSubstr("there is no row 4"));
  EXPECT_THROW(data.select({-1}), ValueError);
  EXPECT_THROW(data.select({}), ValueError);

  const Dataset targets = Dataset::regression(counting(2, 1), table({2, 2}, {5, 6, 7, 8})).select({1});
  EXPECT_THAT(targets.targets().to_vector<float>(), ElementsAre(7, 8));
}

TEST(DatasetTest, SplitsOffEveryFifthRowFromTheFirst) {
  const auto [train, test] = Dataset::regression(counting(12, 1), counting(12, 1)).split_every(5);
  EXPECT_THAT(test.features().to_vector<float>(), ElementsAre(0, 5, 10));
  EXPECT_THAT(train.features().to_vector<float>(), ElementsAre(1, 2, 3, 4, 6, 7, 8, 9, 11));
  EXPECT_THAT(test.targets().to_vector<float>(), ElementsAre(0, 5, 10));
  EXPECT_THROW(train.split_every(1), ValueError);
  EXPECT_THROW(train.select({0}).split_every(2), ValueError);
  EXPECT_EQ(train.select({0, 1}).split_every(100).train.size(), 1);
}

TEST(DatasetTest, IsTheSameAfterAMove) {
  Dataset data = Dataset::classification(Tensor::from<float>(cpu(), {2, 1}, {5, 6}), labels({0, 1}));
  const Dataset moved = std::move(data);
  for (const Dataset& each : {data, moved}) {  // NOLINT(bugprone-use-after-move): a move copies
    EXPECT_EQ(each.size(), 2);
    EXPECT_EQ(each.classes(), 2);
    EXPECT_TRUE(each.is_classification());
    EXPECT_THAT(each.features().to_vector<float>(), ElementsAre(5, 6));
    EXPECT_THAT(each.select({1}).labels().to_vector<std::int32_t>(), ElementsAre(1));
  }
}

}  // namespace
}  // namespace fusegrad
