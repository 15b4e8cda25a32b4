#include <clocale>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "tests/io/message_of.h"
#include "tests/io/temporary_directory.h"

#include <fusegrad/autograd/error.h>
#include <fusegrad/io/csv.h>

namespace fusegrad {
namespace {

using test::message_of;
using test::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CsvTest : public ::testing::Test {
 protected:
  Dataset read(std::string_view text, const CsvOptions& options = {.label_column = -1}) {
    return read_csv(directory_.write("data.csv", text), options);
  }
  std::vector<float> features(std::string_view text, const CsvOptions& options = {.label_column = -1}) {
    return read(text, options).features().to_vector<float>();
  }
  template <class E>
  std::string refusal(std::string_view text, const CsvOptions& options = {.label_column = -1}) {
    return message_of<E>([&] { read(text, options); });
  }

  TemporaryDirectory directory_;
};

TEST_F(CsvTest, ReadsTheShippedDigits) {
  const Dataset digits = read_csv(FUSEGRAD_SOURCE_DIR "/examples/data/digits.csv", {.label_column = 64});
  EXPECT_EQ(digits.size(), 1797);
  EXPECT_EQ(digits.feature_count(), 64);
  EXPECT_EQ(digits.classes(), 10);
  const std::span<const float> pixels = digits.features().data<float>();
  EXPECT_EQ(std::accumulate(pixels.begin(), pixels.end(), 0.0), 561718);
  std::vector<int> counts(10);
  for (const std::int32_t label : digits.labels().data<std::int32_t>()) ++counts[static_cast<std::size_t>(label)];
  EXPECT_THAT(counts, ElementsAre(178, 182, 177, 183, 181, 182, 181, 179, 174, 180));
  const auto [train, test] = digits.split_every(5);
  EXPECT_EQ(train.size(), 1437);
  EXPECT_EQ(test.size(), 360);
}

TEST_F(CsvTest, TakesTheLabelFromAnyColumn) {
  const std::string text = "1,20,3\n4,50,6\n";
  for (const int column : {1, -2}) {
    const Dataset data = read(text, {.label_column = column});
    EXPECT_THAT(data.features().to_vector<float>(), ElementsAre(1, 3, 4, 6));
    EXPECT_THAT(data.labels().to_vector<std::int32_t>(), ElementsAre(20, 50));
  }
}

TEST_F(CsvTest, TakesTargetsInTheGivenOrder) {
  const Dataset data = read("1,2,3,4\n5,6,7,8\n", {.target_columns = {-1, 0}});
  EXPECT_THAT(data.features().to_vector<float>(), ElementsAre(2, 3, 6, 7));
  EXPECT_EQ(data.targets().shape(), Shape({2, 2}));
  EXPECT_THAT(data.targets().to_vector<float>(), ElementsAre(4, 1, 8, 5));
}

TEST_F(CsvTest, UnderstandsEveryLineEnd) {
  for (const char* text : {"1,2,0\n3,4,1\n", "1,2,0\n3,4,1", "1,2,0\r\n3,4,1\r\n", "1,2,0\r3,4,1\r", "1,2,0\r3,4,1",
                           "1,2,0\r\n3,4,1", "\n1,2,0\n\n  \r\n3,4,1\n\n\n",
                           "\xEF\xBB\xBF"
                           "1,2,0\n3,4,1\n"}) {
    EXPECT_THAT(features(text), ElementsAre(1, 2, 3, 4)) << text;
  }
}

TEST_F(CsvTest, UnderstandsSpacesQuotesAndDelimiters) {
  EXPECT_THAT(features(" 1 ,\t2,0 \n  3,4\t , 1\n"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(features("\"1\",\" 2 \", \"0\" \n3,\"4\",1\n"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(features("1;2;0\n", {.label_column = 2, .delimiter = ';'}), ElementsAre(1, 2));
  EXPECT_THAT(features("1\t2\t0\n", {.label_column = 2, .delimiter = '\t'}), ElementsAre(1, 2));
  EXPECT_THAT(features("1 | 2|0\n", {.label_column = 2, .delimiter = '|'}), ElementsAre(1, 2));
}

TEST_F(CsvTest, ReadsNumbersToTheNearestFloat) {
  EXPECT_THAT(features("+1,-2.5e-3,.5,5.,1E2,0\n"), ElementsAre(1, -2.5e-3f, .5f, 5, 100));
  // Halfway between 1 and the next float, and a little above: a detour through double would round the latter down.
  EXPECT_THAT(features("1.000000059604644775390625,1.000000059604644775390626,0\n"), ElementsAre(1, 1 + 0x1p-23f));
  EXPECT_THAT(features("3.4028235e38,1e-45,1e-46,-1e-400,1e-4000,0\n"),
              ElementsAre(std::numeric_limits<float>::max(), 0x1p-149f, 0, -0.0f, 0));
  EXPECT_TRUE(std::signbit(features("-1e-400,0\n")[0]));
  // Out of the range of every type, the exponent's included.
  const std::string zeros(6000, '0');
  EXPECT_THAT(features("1e-5000,-1E-5000,0." + zeros + "1,1e-" + zeros + "99999999999999999999,0\n"), Each(0));
  EXPECT_THAT(features("0." + zeros + "1e+6001,1" + zeros + "e-6000,0e99999,0\n"), ElementsAre(1, 1, 0));
}

TEST_F(CsvTest, DoesNotDependOnTheLocale) {
  const std::string before = std::setlocale(LC_ALL, nullptr);
  // Any locale with a decimal comma; not every machine has one.
  const bool comma = std::setlocale(LC_ALL, "de_DE.UTF-8") || std::setlocale(LC_ALL, "fr_FR.UTF-8");
  const std::vector<float> values = features("1.5,1e-400,0\n");
  std::setlocale(LC_ALL, before.c_str());
  EXPECT_THAT(values, ElementsAre(1.5f, 0));
  if (!comma) GTEST_SKIP() << "no locale with a decimal comma is installed; ran in the C locale";
}

TEST_F(CsvTest, FindsAHeader) {
  const std::string text = "width,\"height, in mm\",class\n1,2,0\n";
  EXPECT_THAT(features(text), ElementsAre(1, 2));
  EXPECT_THAT(features(text, {.label_column = 2, .header = CsvHeader::present}), ElementsAre(1, 2));
  EXPECT_THAT(refusal<IoError>(text, {.label_column = 2, .header = CsvHeader::absent}),
              HasSubstr("line 1, column 1: \"width\" is no number"));
  EXPECT_THAT(features("8,8,0\n1,2,1\n", {.label_column = 2, .header = CsvHeader::present}), ElementsAre(1, 2));
  EXPECT_THAT(features("8,8,0\n1,2,1\n"), ElementsAre(8, 8, 1, 2));
  EXPECT_THAT(refusal<IoError>("1,x,0\n1,2,1\n"),
              AllOf(HasSubstr("line 1, column 2: \"x\" is no number"), HasSubstr("CsvHeader::present")))
      << "a typing error in the first row is no header";
  EXPECT_THAT(refusal<IoError>(",,\n1,2,0\n"), HasSubstr("line 1, column 1: the field is empty"));
  EXPECT_THAT(refusal<IoError>("a,b,c\n"), HasSubstr("a header but no rows"));
}

TEST_F(CsvTest, CountsLinesAcrossQuotesAndBlankLines) {
  EXPECT_THAT(refusal<IoError>("\"a\nb\",\"say \"\"x\"\"\",c\r\n\r\n1,2,0\n1,oops,0\n"),
              HasSubstr("line 5, column 2: \"oops\" is no number"));
}

TEST_F(CsvTest, NamesLineAndColumnOfWhatIsNoNumber) {
  for (const char* bad :
       {"x", "1x", "1 2", "0x10", "--1", "+-1", "+", "-", "1e", "\"1,5\"", ".", "\"1\"\"\"", "1..2"}) {
    EXPECT_THAT(refusal<IoError>(std::string("1,2,0\n3,") + bad + ",1\n"), HasSubstr("data.csv, line 2, column 2: "))
        << bad;
  }
  EXPECT_THAT(refusal<IoError>("1,2,0\n3,,1\n"), HasSubstr("line 2, column 2: the field is empty"));
  EXPECT_THAT(refusal<IoError>("1,2,0\n3,4,x\n"), HasSubstr("line 2, column 3: \"x\" is no number"));
  EXPECT_THAT(refusal<IoError>(std::string("1,2,0\n3,4\0,1\n", 13)), HasSubstr("line 2, column 2"));
}

TEST_F(CsvTest, NamesLineAndColumnWhereARowIsRagged) {
  EXPECT_THAT(refusal<IoError>("1,2,0\n1,2,0\n1,2\n"),
              HasSubstr("line 3, column 3: the row has 2 columns, the first row has 3"));
  EXPECT_THAT(refusal<IoError>("1,2,0\n1,2,0,\n"),
              HasSubstr("line 2, column 4: the row has 4 columns, the first row has 3"));
  EXPECT_THAT(refusal<IoError>("a,b\n1,2,0\n"),
              HasSubstr("line 2, column 3: the row has 3 columns, the first row has 2"));
}

TEST_F(CsvTest, RefusesBrokenQuotes) {
  EXPECT_THAT(refusal<IoError>("1,2,0\n\"1,2,0\n1,2,0\n"), HasSubstr("line 2: a quoted field is not closed"));
  EXPECT_THAT(refusal<IoError>("1,2,0\n\"1\"x,2,0\n"), HasSubstr("line 2: text follows a closing quote"));
  EXPECT_THAT(refusal<IoError>("1,2,0\n\"1\" \"2\",2,0\n"), HasSubstr("line 2: text follows a closing quote"));
  EXPECT_THAT(refusal<IoError>("1,2,0\n1,\"2"), HasSubstr("line 2: a quoted field is not closed"));
  EXPECT_THAT(refusal<IoError>("1,2,0\n1\",2,0\n"), HasSubstr("line 2, column 1: \"1\"\" is no number"));
}

TEST_F(CsvTest, NamesRowAndValueOfALabelThatIsNoClass) {
  for (const char* bad : {"nan", "-1", "2.5", "inf", "2147483648", "1e300"}) {
    EXPECT_THAT(refusal<ValueError>(std::string("h,l\n\n1,0\n1,") + bad + "\n"),
                HasSubstr(std::string("line 4, column 2: the label of row 1 is ") + bad))
        << bad;
  }
  EXPECT_THAT(read("1,2147483647\n1,3.0\n").labels().to_vector<std::int32_t>(), ElementsAre(2147483647, 3));
}

TEST_F(CsvTest, NamesTheFeatureThatIsNotFinite) {
  for (const char* bad : {"nan", "-NaN", "inf", "-Infinity", "1e39", "-3.5e38", "1e999"}) {
    EXPECT_THAT(refusal<ValueError>(std::string("1,2,0\n3,") + bad + ",0\n"),
                HasSubstr(std::string("line 2, column 2: ") + bad + " is not finite in f32"));
    EXPECT_THROW(read(std::string("1,2\n3,") + bad, {.target_columns = {1}}), ValueError);
  }
  const std::string nines(6000, '9');
  for (const std::string& bad :
       std::vector<std::string>{nines, "-" + nines, nines + "e-10", "1e5000", "1e+99999999999999999999"}) {
    EXPECT_THAT(refusal<ValueError>("1,2,0\n3," + bad + ",0\n"),
                AllOf(HasSubstr("line 2, column 2: " + bad.substr(0, 40)), HasSubstr("is not finite in f32")));
  }
  EXPECT_LT(refusal<ValueError>("1," + nines + "\n").size(), 300u) << "a label: only the start is shown";
}

TEST_F(CsvTest, RefusesEmptyFiles) {
  for (const char* text : {"", "\n", " \n\r\n", "\xEF\xBB\xBF"}) {
    EXPECT_THAT(refusal<IoError>(text), HasSubstr("data.csv\" is empty")) << text;
  }
  EXPECT_THAT(message_of<IoError>([&] { read_csv(directory_ / "absent.csv", {.label_column = 0}); }),
              HasSubstr("cannot open"));
  EXPECT_THAT(message_of<IoError>([&] { read_csv(directory_.path(), {.label_column = 0}); }), HasSubstr("cannot read"));
}

TEST_F(CsvTest, RefusesOptionsThatNameNoColumn) {
  EXPECT_THAT(refusal<ValueError>("1,2,0\n", {}), HasSubstr("either label_column or target_columns"));
  EXPECT_THROW(read("1,2,0\n", {.label_column = 0, .target_columns = {1}}), ValueError);
  EXPECT_THAT(refusal<ValueError>("1,2,0\n", {.label_column = 3}),
              AllOf(HasSubstr("label_column must name one of the 3 columns"), HasSubstr("got 3")));
  EXPECT_THROW(read("1,2,0\n", {.label_column = -4}), ValueError);
  EXPECT_THAT(refusal<ValueError>("1,2,0\n", {.target_columns = {2, -1}}), HasSubstr("names column 2 twice"));
  EXPECT_THROW(read("1,2\n", {.target_columns = {0, 1}}), ValueError);
  EXPECT_THAT(refusal<ValueError>("1;2;0\n", {.label_column = 0}), HasSubstr("each row has 1 with the delimiter ','"));
  for (const char bad : {'"', '+', '-', '.', ' ', '\n', '\r', '\0', '7', 'e', '\x7f', '\xff'}) {
    EXPECT_THROW(read("1,2,0\n", {.label_column = 0, .delimiter = bad}), ValueError) << static_cast<int>(bad);
  }
}

// Rows of every length around the reader's buffer, so that each border falls on each byte of a row.
TEST_F(CsvTest, ReadsRowsAcrossItsBuffer) {
  std::string text;
  std::vector<float> expected;
  for (int row = 0; row < 20000; ++row) {
    text += std::to_string(row) + (row % 3 == 0 ? ",\"0.5\",\"" : ",0.25,") + std::to_string(row % 7);
    text += row % 3 == 0 ? "\"\r\n" : row % 2 == 0 ? "\n" : "\r";
    expected.push_back(static_cast<float>(row));
    expected.push_back(row % 3 == 0 ? 0.5f : 0.25f);
  }
  EXPECT_EQ(features(text), expected);
  for (int shift = 1; shift < 24; ++shift) {
    EXPECT_EQ(features(std::string(static_cast<std::size_t>(shift), '\n') + text), expected) << shift;
  }
}

TEST_F(CsvTest, ReadsRowsLongerThanItsBuffer) {
  std::string row;
  for (int i = 0; i < 50000; ++i) row += "1.5,";
  const Dataset data = read(row + "0\n" + row + "1");
  EXPECT_EQ(data.features().shape(), Shape({2, 50000}));
  EXPECT_EQ(data.features().to_vector<float>(), std::vector<float>(100000, 1.5f));
}

TEST_F(CsvTest, RefusesARowWithoutEnd) {
  const std::string path = directory_.write("data.csv", "1,2,0\n");
  std::filesystem::resize_file(path, 100 << 20);  // a hole of zeros
  EXPECT_THAT(message_of<IoError>([&] { read_csv(path, {.label_column = 0}); }),
              HasSubstr("line 2: the row has more than 64 MiB"));
}

TEST_F(CsvTest, ReadsAPipe) {
  const std::string path = directory_ / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(path) << "1,2,0\n" << std::flush << "3,4,1\n"; });
  const Dataset data = read_csv(path, {.label_column = -1});
  writer.join();
  EXPECT_THAT(data.features().to_vector<float>(), ElementsAre(1, 2, 3, 4));
}

}  // namespace
}  // namespace fusegrad
