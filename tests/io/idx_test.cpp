#include <bit>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <zlib.h>

#include "tests/io/message_of.h"
#include "tests/io/temporary_directory.h"

#include <fusegrad/autograd/error.h>
#include <fusegrad/io/idx.h>

namespace fusegrad {
namespace {

using test::message_of;
using test::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Bits>
std::string big_endian(Bits bits) {
  std::string bytes;
  for (int shift = 8 * static_cast<int>(sizeof(Bits)) - 8; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>(static_cast<std::uint64_t>(bits) >> shift & 0xff));
  }
  return bytes;
}

std::string header(int type, const std::vector<std::uint32_t>& extents) {
  std::string bytes{'\0', '\0', static_cast<char>(type), static_cast<char>(extents.size())};
  for (const std::uint32_t extent : extents) bytes += big_endian(extent);
  return bytes;
}

std::string gzip(const std::string& content, int level = 6) {
  z_stream stream{};
  deflateInit2(&stream, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string packed(deflateBound(&stream, content.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

const std::string kImages =
    header(0x08, {3, 2, 2}) + std::string("\x00\x01\x7f\x7e\x10\x11\x12\x13\x40\x30\x20\x10", 12);
const std::string kLabels = header(0x08, {3}) + std::string("\x02\x00\x09", 3);
const std::vector<float> kFeatures{0, 1, 127, 126, 16, 17, 18, 19, 64, 48, 32, 16};

class IdxTest : public ::testing::Test {
 protected:
  Dataset read(const std::string& images, const std::string& labels = kLabels) {
    return read_idx(directory_.write("images", images), directory_.write("labels", labels));
  }
  std::string refusal(const std::string& images, const std::string& labels = kLabels) {
    return message_of<IoError>([&] { read(images, labels); });
  }
  /// Features if the files are accepted, nothing if they are refused with an IoError.
  std::vector<float> features_or_nothing(const std::string& images) {
    try {
      return read(images).features().to_vector<float>();
    } catch (const IoError&) {
      return {};
    }
  }

  TemporaryDirectory directory_;
};

TEST_F(IdxTest, ReadsImagesAndLabels) {
  for (const bool packed : {false, true}) {
    const Dataset data = packed ? read(gzip(kImages), gzip(kLabels)) : read(kImages);
    EXPECT_EQ(data.features().shape(), Shape({3, 4}));
    EXPECT_EQ(data.features().to_vector<float>(), kFeatures);
    EXPECT_THAT(data.labels().to_vector<std::int32_t>(), ElementsAre(2, 0, 9));
    EXPECT_EQ(data.classes(), 10);
  }
}

TEST_F(IdxTest, ReadsEveryElementType) {
  const auto features = [&](int type, const std::string& elements) {
    return read(header(type, {1, 2}) + elements, header(0x08, {1}) + '\x01').features().to_vector<float>();
  };
  EXPECT_THAT(features(0x08, "\xff\x7f"), ElementsAre(255, 127));
  EXPECT_THAT(features(0x09, "\xff\x7f"), ElementsAre(-1, 127));
  EXPECT_THAT(features(0x0B, big_endian<std::uint16_t>(0x8001) + big_endian<std::uint16_t>(0x0102)),
              ElementsAre(-32767, 258));
  EXPECT_THAT(features(0x0C, big_endian<std::uint32_t>(0x01020304) + big_endian<std::uint32_t>(0xfffffffe)),
              ElementsAre(16909060, -2));
  EXPECT_THAT(features(0x0D, big_endian(std::bit_cast<std::uint32_t>(-1.1f)) +
                                 big_endian(std::bit_cast<std::uint32_t>(0x1p-149f))),
              ElementsAre(-1.1f, 0x1p-149f));
  EXPECT_THAT(features(0x0E, big_endian(std::bit_cast<std::uint64_t>(1 + 0x1p-24 + 0x1p-50)) +
                                 big_endian(std::bit_cast<std::uint64_t>(1 + 0x1p-24))),
              ElementsAre(1 + 0x1p-23f, 1))
      << "rounded to nearest even, once";

  const auto label = [&](int type, const std::string& element) {
    return read(header(0x08, {1, 1}) + '\x05', header(type, {1}) + element).labels().to_vector<std::int32_t>();
  };
  EXPECT_THAT(label(0x0C, big_endian<std::uint32_t>(0x7fffffff)), ElementsAre(2147483647));
  EXPECT_THAT(label(0x0E, big_endian(std::bit_cast<std::uint64_t>(3.0))), ElementsAre(3));
}

TEST_F(IdxTest, NamesTheLabelThatIsNoClassAndTheFeatureThatIsNotFinite) {
  EXPECT_THAT(message_of<ValueError>([&] { read(kImages, header(0x09, {3}) + "\x01\x01\xfc"); }),
              HasSubstr("the label of row 2 is -4"));
  const std::uint32_t half = std::bit_cast<std::uint32_t>(0.5f);
  EXPECT_THAT(message_of<ValueError>([&] {
                read(header(0x08, {1, 1}) + '\0', header(0x0D, {1}) + big_endian(half));
              }),
              HasSubstr("the label of row 0 is 0.5"));
  const std::uint32_t nan = std::bit_cast<std::uint32_t>(std::numeric_limits<float>::quiet_NaN());
  EXPECT_THAT(message_of<ValueError>([&] {
                read(header(0x0D, {1, 1}) + big_endian(nan), header(0x08, {1}) + '\0');
              }),
              HasSubstr("feature 0 of row 0 is nan"));
}

TEST_F(IdxTest, RefusesEveryTruncation) {
  for (std::size_t length = 0; length < kImages.size(); ++length) {
    EXPECT_THAT(refusal(kImages.substr(0, length)), HasSubstr("images\"")) << length;
  }
  for (std::size_t length = 0; length < kLabels.size(); ++length) {
    EXPECT_THAT(refusal(kImages, kLabels.substr(0, length)), HasSubstr("labels\"")) << length;
  }
  const std::string packed = gzip(kImages);
  for (std::size_t length = 0; length < packed.size(); ++length) {
    EXPECT_THAT(refusal(packed.substr(0, length)), HasSubstr("images\"")) << length;
  }
}

TEST_F(IdxTest, RefusesEveryBitFlipOfAHeaderButOne) {
  for (std::size_t bit = 0; bit < 8 * std::size_t{16}; ++bit) {
    std::string flipped = kImages;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    // u8 turned into i8 is a file as good as before, and here its elements mean the same.
    const bool still_good = bit == 2 * 8;
    EXPECT_EQ(features_or_nothing(flipped), still_good ? kFeatures : std::vector<float>{}) << "bit " << bit;
  }
}

TEST_F(IdxTest, NoBitFlipOfAPackedFileChangesTheData) {
  const std::string packed = gzip(kImages);
  int refused = 0;
  for (std::size_t bit = 0; bit < 8 * packed.size(); ++bit) {
    std::string flipped = packed;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    const std::vector<float> features = features_or_nothing(flipped);
    refused += features.empty() ? 1 : 0;
    if (!features.empty()) {
      EXPECT_EQ(features, kFeatures) << "bit " << bit;
    }
  }
  // Harmless: time, level, system and the text flag of the header, and the bits that fill deflate's last byte.
  EXPECT_GE(refused, static_cast<int>(8 * packed.size()) - (6 * 8 + 1) - 7);
}

TEST_F(IdxTest, RefusesBytesBehindTheData) {
  EXPECT_THAT(refusal(kImages + '\0'), HasSubstr("must have 28 bytes, as its header says, but has 29"));
  EXPECT_THAT(refusal(gzip(kImages + '\0')), HasSubstr("is longer than its header says"));
  EXPECT_THAT(refusal(gzip(kImages) + "behind the gzip data"), HasSubstr("has damaged gzip data"));
  EXPECT_THAT(refusal(gzip(kImages) + gzip("x")), HasSubstr("is longer than its header says"));
  EXPECT_THAT(refusal(gzip(kImages) + gzip("").substr(0, 5)), HasSubstr("ends within its gzip data"));
}

TEST_F(IdxTest, ReadsAPackedFileOfSeveralMembers) {
  for (std::size_t cut = 0; cut <= kImages.size(); ++cut) {
    const std::string packed = gzip(kImages.substr(0, cut)) + gzip("") + gzip(kImages.substr(cut));
    EXPECT_EQ(read(packed).features().to_vector<float>(), kFeatures) << cut;
  }
}

TEST_F(IdxTest, IgnoresZerosBehindPackedData) {
  for (const std::size_t zeros : {1, 511, 1 << 16, 200000}) {
    const std::string padding(zeros, '\0');
    EXPECT_EQ(read(gzip(kImages) + padding, gzip(kLabels) + padding).features().to_vector<float>(), kFeatures) << zeros;
    const std::string cut = gzip(kImages.substr(0, 7)) + padding + gzip(kImages.substr(7));
    EXPECT_EQ(read(cut).features().to_vector<float>(), kFeatures) << zeros;
    EXPECT_THAT(refusal(gzip(kImages) + padding + "x"), HasSubstr("gzip data")) << zeros;
  }
}

TEST_F(IdxTest, ChecksAnnouncedSizesBeforeItAllocates) {
  // 2^47 elements, 16 bytes of file: an allocation by the header would fail with another exception.
  const std::string huge = header(0x08, {0x80000000, 0x10000});
  EXPECT_THAT(refusal(huge), HasSubstr("must have 140737488355340 bytes, as its header says, but has 12"));
  EXPECT_THAT(refusal(gzip(huge)), HasSubstr("can unpack to at most"));
  EXPECT_THAT(refusal(header(0x0E, std::vector<std::uint32_t>(8, 0xffffffff))), HasSubstr("overflow 64 bits"));
  // 2^64 elements and 2^61 of 8 bytes: products that wrap to 0.
  EXPECT_THAT(refusal(header(0x08, {0x80000000, 0x80000000, 4})), HasSubstr("overflow 64 bits"));
  EXPECT_THAT(refusal(header(0x0E, {0x80000000, 0x40000000})), HasSubstr("overflow 64 bits"));
  EXPECT_THAT(refusal(header(0x08, {0, 0x80000000, 0x80000000, 4})), HasSubstr("overflow 64 bits"))
      << "extents that only a zero hides";
}

TEST_F(IdxTest, UnpacksNearlyAsFarAsDeflatePacks) {
  constexpr std::uint32_t kRows = 4000;
  constexpr std::uint32_t kWidth = 1000;
  const std::string packed = gzip(header(0x08, {kRows, kWidth}) + std::string(kRows * kWidth, '\0'), 9);
  EXPECT_GT(kRows * kWidth / packed.size(), 1000u);
  const Dataset data = read(packed, header(0x08, {kRows}) + std::string(kRows, '\1'));
  EXPECT_EQ(data.features().to_vector<float>(), std::vector<float>(kRows * kWidth, 0.0f));
}

TEST_F(IdxTest, RefusesWhatIsNoIdxFile) {
  EXPECT_THAT(refusal("\x01" + kImages.substr(1)), HasSubstr("its first two bytes must be zero"));
  for (const int type : {0x00, 0x07, 0x0A, 0x0F, 0x88, 0xff}) {
    EXPECT_THAT(refusal(header(type, {3, 4}) + std::string(12, '\0')), HasSubstr("has elements of type 0x")) << type;
  }
  EXPECT_THAT(refusal(header(0x08, {})), HasSubstr("has 0 axes"));
  EXPECT_THAT(refusal(header(0x08, std::vector<std::uint32_t>(9, 1)) + '\0'), HasSubstr("has 9 axes"));
  EXPECT_EQ(read(header(0x08, {1, 1, 1, 1, 1, 1, 1, 2}) + "\x05\x06", header(0x08, {1}) + '\1').feature_count(), 2);
  EXPECT_THAT(message_of<IoError>([&] { read_idx(directory_ / "absent", directory_ / "labels"); }),
              HasSubstr("cannot open"));
  EXPECT_THAT(message_of<IoError>([&] { read_idx(directory_.path(), directory_.path()); }),
              HasSubstr("is not a regular file"));
}

TEST_F(IdxTest, RefusesImagesAndLabelsThatDoNotFit) {
  EXPECT_THAT(refusal(kLabels), HasSubstr("has one axis; images have two or more"));
  EXPECT_THAT(refusal(kImages, kImages), HasSubstr("has 3 axes; labels have one"));
  EXPECT_THAT(refusal(kImages, header(0x08, {2}) + "\1\1"),
              AllOf(HasSubstr("has 3 images"), HasSubstr("has 2 labels")));
  EXPECT_THAT(refusal(header(0x08, {0, 4}), header(0x08, {0})), HasSubstr("has no images"));
}

TEST_F(IdxTest, FindsTheFilesOfADirectory) {
  const std::string path = directory_.path();
  EXPECT_THAT(message_of<IoError>([&] { read_idx_directory(path, IdxPart::train); }),
              HasSubstr("there is no train-images-idx3-ubyte"));
  directory_.write("train-images-idx3-ubyte.gz", gzip(kImages));
  EXPECT_THAT(message_of<IoError>([&] { read_idx_directory(path, IdxPart::train); }),
              HasSubstr("there is no train-labels-idx1-ubyte"));
  directory_.write("train-labels.idx1-ubyte", kLabels);
  EXPECT_EQ(read_idx_directory(path, IdxPart::train).features().to_vector<float>(), kFeatures);
  EXPECT_EQ(read_idx_directory(path + "/", IdxPart::train).size(), 3);

  EXPECT_THROW(read_idx_directory(path, IdxPart::test), IoError);
  directory_.write("t10k-images.idx3-ubyte.gz", gzip(header(0x08, {1, 1}) + '\x21'));
  directory_.write("t10k-labels-idx1-ubyte", header(0x08, {1}) + '\x04');
  EXPECT_THAT(read_idx_directory(path, IdxPart::test).features().to_vector<float>(), ElementsAre(33));
}

}  // namespace
}  // namespace fusegrad
