#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/io/fake_gpu.h"
#include "tests/io/faulty_calls.h"
#include "tests/io/message_of.h"
#include "tests/io/temporary_directory.h"

#include <fusegrad/autograd/error.h>
#include <fusegrad/autograd/narrow.h>
#include <fusegrad/io/weights.h>
#include <fusegrad/io/weights_file.h>

namespace fusegrad {
namespace {

using test::FaultyCalls;
using test::message_of;
using test::read_file;
using test::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Named = std::vector<std::pair<std::string, Shape>>;

const Named kLayers{
    {"layers.0.weight", {3, 2}}, {"layers.0.bias", {3}}, {"scale", {}}, {"none", {0, 5}}, {"kernel", {2, 1, 2, 3}}};
constexpr Dtype kDtypes[] = {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16};

Context cpu() { return Context::cpu({.threads = 1}); }

/// Parameters with values that no 16-bit type holds, other ones for every seed.
ParameterSet make_set(Dtype dtype, const Named& parameters, int seed, const Context& context = cpu()) {
  ParameterSet set(context, dtype);
  for (const auto& [name, shape] : parameters) {
    set.add(name, shape, [seed, name = name](std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = std::sin(static_cast<float>(seed) + 10 * static_cast<float>(i) + static_cast<float>(name.size()));
      }
    });
  }
  return set;
}

std::string bytes_of(const Tensor& tensor) {
  std::string bytes(static_cast<std::size_t>(tensor.bytes()), '\0');
  const Tensor host = tensor.device().type == DeviceType::cpu ? tensor : tensor.to(cpu());
  if (!bytes.empty()) std::memcpy(bytes.data(), host.raw(), bytes.size());
  return bytes;
}

/// Every bit of a set: masters and values, by name.
std::vector<std::string> bits_of(const ParameterSet& set, const Named& order) {
  std::vector<std::string> bits;
  for (const auto& [name, shape] : order) {
    bits.push_back(bytes_of(set[name].master()));
    bits.push_back(bytes_of(set[name].value()));
  }
  return bits;
}

void poison(const ParameterSet& set) {
  for (const Parameter& parameter : set) {
    for (Tensor tensor : {parameter.master(), parameter.value()}) {
      if (tensor.bytes() > 0) std::memset(tensor.mutable_raw(), 0xff, static_cast<std::size_t>(tensor.bytes()));
    }
  }
}

std::string safetensors(std::string header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file + header + std::string(data_bytes, '\0');
}

TEST(WeightsTest, ComeBackBitForBit) {
  const TemporaryDirectory directory;
  for (const Dtype dtype : kDtypes) {
    const ParameterSet saved = make_set(dtype, kLayers, 1);
    const std::string path = directory / name_of(dtype);
    save_weights(path, saved);
    const ParameterSet loaded = make_set(dtype, kLayers, 2);
    poison(loaded);
    load_weights(path, loaded);
    EXPECT_EQ(bits_of(loaded, kLayers), bits_of(saved, kLayers)) << name_of(dtype);
    save_weights(directory / "again", loaded);
    EXPECT_EQ(read_file(directory / "again"), read_file(path)) << "the same weights give the same bytes";
  }
}

TEST(WeightsTest, AreFoundByName) {
  const TemporaryDirectory directory;
  const Named same_shapes{{"a", {2, 2}}, {"b", {2, 2}}, {"c", {2, 2}}};
  const Named other_order{{"c", {2, 2}}, {"a", {2, 2}}, {"b", {2, 2}}};
  const ParameterSet saved = make_set(Dtype::f32, same_shapes, 1);
  saved["b"].assign(Tensor::full(cpu(), {2, 2}, Dtype::f32, 7));
  save_weights(directory / "w", saved);
  const ParameterSet loaded = make_set(Dtype::f32, other_order, 2);
  load_weights(directory / "w", loaded);
  EXPECT_EQ(bits_of(loaded, same_shapes), bits_of(saved, same_shapes));
}

TEST(WeightsTest, HaveTheFormatsBytes) {
  const TemporaryDirectory directory;
  ParameterSet set(cpu(), Dtype::bf16);
  set.add("a\"b", {2}, [](std::span<float> values) { values[0] = 1, values[1] = 1 + 0x1p-20f; });
  set.add("c", {1, 0}, [](std::span<float>) {});
  save_weights(directory / "w", set);
  const std::string header = R"({"a\"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                             R"("c":{"dtype":"F32","shape":[1,0],"data_offsets":[8,8]}})";
  std::string expected = safetensors(header + std::string((8 - header.size() % 8) % 8, ' '), 8);
  const float data[] = {1, 1 + 0x1p-20f};
  std::memcpy(expected.data() + expected.size() - 8, data, 8);
  EXPECT_EQ(read_file(directory / "w"), expected);

  save_weights(directory / "empty", ParameterSet(cpu()));
  EXPECT_EQ(read_file(directory / "empty"), safetensors("{}      ", 0));
  EXPECT_NO_THROW(load_weights(directory / "empty", ParameterSet(cpu())));
}

// Files made with the Python package safetensors, by data/make_fixtures.py.
TEST(WeightsTest, AreReadFromOtherPrograms) {
  const std::string data = FUSEGRAD_SOURCE_DIR "/tests/io/data/";
  const ParameterSet f32 =
      make_set(Dtype::f32, {{"layers.0.weight", {2, 3}}, {"layers.1.bias", {2}}, {"größe", {}}, {"empty", {0, 3}}}, 1);
  load_weights(data + "python_f32.safetensors", f32);
  EXPECT_THAT(f32["layers.0.weight"].value().to_vector<float>(),
              ElementsAre(1, 2, 3, -4, 5e-45f, std::numeric_limits<float>::max()));
  EXPECT_THAT(f32["layers.1.bias"].value().to_vector<float>(), ElementsAre(-1.5f, 0.1f));
  EXPECT_EQ(f32["größe"].value().item(), 0.25);

  const ParameterSet bf16_set = make_set(Dtype::bf16, {{"w", {3}}}, 1);
  load_weights(data + "python_bf16.safetensors", bf16_set);
  EXPECT_THAT(bf16_set["w"].master().to_vector<float>(), ElementsAre(1, -3.140625f, 0x1p-133f));
  EXPECT_EQ(bytes_of(bf16_set["w"].value()), std::string("\x80\x3f\x49\xc0\x01\x00", 6));
  EXPECT_THAT(message_of<DtypeError>([&] {
                load_weights(data + "python_bf16.safetensors", make_set(Dtype::f32, {{"w", {3}}}, 1));
              }),
              HasSubstr("\"w\" must be F32, as the parameter is f32, got BF16"));
  EXPECT_THAT(message_of<DtypeError>([&] {
                load_weights(data + "python_bf16.safetensors", make_set(Dtype::f16, {{"w", {3}}}, 1));
              }),
              HasSubstr("\"w\" must be F32 or F16, as the parameter is f16, got BF16"));

  const ParameterSet f64 = make_set(Dtype::f64, {{"w", {2}}}, 1);
  load_weights(data + "python_f64.safetensors", f64);
  EXPECT_THAT(f64["w"].value().to_vector<double>(), ElementsAre(0.1, -2.5));
}

TEST(WeightsTest, RoundTheMastersThatTheyRead) {
  const TemporaryDirectory directory;
  save_weights(directory / "w", make_set(Dtype::f32, kLayers, 3));
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    const ParameterSet loaded = make_set(dtype, kLayers, 4);
    load_weights(directory / "w", loaded);
    const ParameterSet assigned = make_set(dtype, kLayers, 5);
    const ParameterSet original = make_set(Dtype::f32, kLayers, 3);
    for (const Parameter& parameter : assigned) parameter.assign(original[parameter.name()].value());
    EXPECT_EQ(bits_of(loaded, kLayers), bits_of(assigned, kLayers));
  }
}

TEST(WeightsTest, MoveToAndFromAnotherDevice) {
  const TemporaryDirectory directory;
  const test::FakeGpu gpu;
  const ParameterSet saved = make_set(Dtype::bf16, kLayers, 1, gpu.context());
  save_weights(directory / "w", saved);
  const ParameterSet loaded = make_set(Dtype::bf16, kLayers, 2, gpu.context());
  load_weights(directory / "w", loaded);
  EXPECT_EQ(bits_of(loaded, kLayers), bits_of(saved, kLayers));
  EXPECT_EQ(bits_of(loaded, kLayers), bits_of(make_set(Dtype::bf16, kLayers, 1), kLayers));
}

TEST(WeightsTest, LoadingCountsAsAWriteAndLeavesTheRest) {
  const TemporaryDirectory directory;
  save_weights(directory / "w", make_set(Dtype::bf16, kLayers, 1));
  const ParameterSet set = make_set(Dtype::bf16, kLayers, 2);
  set["scale"].freeze();
  const std::uint64_t before = set["kernel"].value().version();
  load_weights(directory / "w", set);
  EXPECT_GT(set["kernel"].value().version(), before) << "a tape must see it";
  EXPECT_TRUE(set["scale"].frozen());
}

TEST(WeightsTest, ThatAreNotFiniteNeedToBeAllowed) {
  const TemporaryDirectory directory;
  const std::string path = directory / "w";
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const ParameterSet good = make_set(Dtype::f32, kLayers, 1);
    save_weights(path, good);
    const std::string file = read_file(path);
    const ParameterSet diverged = make_set(Dtype::f32, kLayers, 1);
    diverged["kernel"].master().mutable_data<float>()[7] = bad;
    EXPECT_THAT(message_of<ValueError>([&] { save_weights(path, diverged); }),
                AllOf(HasSubstr("\"kernel\" is "), HasSubstr("at element 7 of [2, 1, 2, 3]")));
    EXPECT_EQ(read_file(path), file) << "the good file is still there";

    save_weights(path, diverged, {.allow_non_finite = true});
    EXPECT_THAT(message_of<ValueError>([&] { load_weights(path, good); }), HasSubstr("at element 7"));
    EXPECT_EQ(bits_of(good, kLayers), bits_of(make_set(Dtype::f32, kLayers, 1), kLayers));
    load_weights(path, good, {.allow_non_finite = true});
    EXPECT_EQ(bits_of(good, kLayers), bits_of(diverged, kLayers));
  }
}

TEST(WeightsTest, ThatTheParametersTypeCannotHoldNeedToBeAllowed) {
  const TemporaryDirectory directory;
  const std::string path = directory / "w";
  const auto set_of = [](Dtype dtype, float value) {
    ParameterSet set(Context::cpu({.threads = 1}), dtype);
    set.add("p", {2}, [value](std::span<float> values) { values[0] = 1, values[1] = value; });
    return set;
  };
  save_weights(path, set_of(Dtype::f32, 65520));  // f16 ends at 65504
  const ParameterSet half = set_of(Dtype::f16, 2);
  EXPECT_THAT(message_of<ValueError>([&] { load_weights(path, half); }),
              HasSubstr("rounded to f16: \"p\" is inf at element 1 of [2]"));
  EXPECT_EQ(half["p"].master().to_vector<float>(), (std::vector<float>{1, 2}));
  load_weights(path, half, {.allow_non_finite = true});
  EXPECT_EQ(half["p"].master().to_vector<float>(), (std::vector<float>{1, 65520}));
}

/// A small valid file and the set that it fits.
class DamagedWeightsTest : public ::testing::Test {
 protected:
  DamagedWeightsTest() {
    save_weights(directory_ / "good", make_set(Dtype::f32, names_, 1));
    good_ = read_file(directory_ / "good");
    std::uint64_t header = 0;
    std::memcpy(&header, good_.data(), sizeof header);
    data_begin_ = sizeof header + header;
  }

  /// Empty if `file` is accepted; else the message. Then the set must be as it was.
  std::string refusal(const std::string& file) {
    const std::vector<std::string> before = bits_of(set_, names_);
    const std::string path = directory_.write("bad", file);
    try {
      load_weights(path, set_, {.allow_non_finite = true});
    } catch (const Error& error) {
      EXPECT_EQ(bits_of(set_, names_), before) << "changed by a refused file";
      return error.what();
    }
    return "";
  }
  std::string refusal_of_header(const std::string& header, std::size_t data_bytes) {
    return refusal(safetensors(header, data_bytes));
  }

  TemporaryDirectory directory_;
  Named names_{{"a", {2, 2}}, {"b", {3}}};
  std::string good_;
  std::size_t data_begin_ = 0;
  ParameterSet set_ = make_set(Dtype::f32, names_, 2);
};

TEST_F(DamagedWeightsTest, EveryTruncationIsRefused) {
  for (std::size_t length = 0; length < good_.size(); ++length) {
    EXPECT_THAT(refusal(good_.substr(0, length)), HasSubstr("bad\"")) << length;
  }
  EXPECT_EQ(refusal(good_), "");
}

TEST_F(DamagedWeightsTest, EveryBitFlipIsRefusedOrChangesOneBitOfOneWeight) {
  for (std::size_t bit = 0; bit < 8 * good_.size(); ++bit) {
    std::string flipped = good_;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    const std::string message = refusal(flipped);
    EXPECT_EQ(message.empty(), bit / 8 >= data_begin_) << "bit " << bit << ": " << message;
    if (!message.empty()) continue;
    EXPECT_EQ(bytes_of(set_["a"].value()) + bytes_of(set_["b"].value()), flipped.substr(data_begin_));
  }
}

TEST_F(DamagedWeightsTest, EveryTrailingByteIsRefused) {
  EXPECT_THAT(refusal(good_ + '\0'), HasSubstr("the tensors have 28 bytes, the file has 29"));
  EXPECT_NE(refusal(good_ + good_), "");
}

TEST_F(DamagedWeightsTest, HeadersThatBreakARuleAreRefused) {
  const auto a = [](const char* rest) {
    return std::string(R"({"b":{"dtype":"F32","shape":[3],"data_offsets":[16,28]},"a":)") + rest + "}";
  };
  ASSERT_EQ(refusal_of_header(a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16]})"), 28), "");
  ASSERT_EQ(refusal_of_header(a(R"( { "data_offsets":[0 , 16],"shape":[2,2] , "dtype":"F32"}  )") + "   ", 28), "");
  ASSERT_EQ(refusal_of_header(R"({"__metadata__":{"x":"y","z":""},)" +
                                  a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16]})").substr(1),
                              28),
            "");

  const std::pair<std::string, const char*> wrong[] = {
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,12]})"),
       "\"a\" has 12 bytes, but F32 of shape [2, 2] needs 16"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,20]})"), "needs 16"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[16,0]})"), "bytes 16 to 0"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[4,20]})"), "the data before it ends at 0"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[16,32]})"), "the data before it ends at 0"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"c":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})"),
       "\"a\" has bytes 0 to 16, but the data before it ends at 4"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0]})"), "needs two offsets"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16,16]})"), "more than 2 numbers"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,"16"]})"), "a string stands where none may be"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[[0,16]]})"), "an array stands where none may be"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[-0,16]})"), "a negative number"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0.0,16]})"), "a fraction"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,1.6e1]})"), "a fraction"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,016]})"), "not valid JSON"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,9007199254740992]})"), "not below 2^53"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,36893488147419103232]})"), "a fraction"},
      {a(R"({"dtype":"F32","shape":[2147483648,2147483648],"data_offsets":[0,0]})"), "needs more than 2^63"},
      {a(R"({"dtype":"F32","shape":[0,4503599627370496,4503599627370496],"data_offsets":[0,16]})"),
       "\"a\" has 16 bytes"},
      {a(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,16]})"), "more than 8 numbers in \"shape\""},
      {a(R"({"dtype":"F32","shape":4,"data_offsets":[0,16]})"), "a number stands"},
      {a(R"({"dtype":"F32","shape":{},"data_offsets":[0,16]})"), "an object stands"},
      {a(R"({"dtype":"F32","shape":[true],"data_offsets":[0,16]})"), "a boolean stands"},
      {a(R"({"dtype":"F32","shape":null,"data_offsets":[0,16]})"), "null stands"},
      {a(R"({"dtype":["F32"],"shape":[2,2],"data_offsets":[0,16]})"), "an array stands"},
      {a(R"({"dtype":"F8_E4M3","shape":[16],"data_offsets":[0,16]})"), "the type \"F8_E4M3\", which fusegrad does not"},
      {a(R"({"dtype":"f32","shape":[2,2],"data_offsets":[0,16]})"), "the type \"f32\""},
      {a(R"({"dtype":"F32","shape":[2,2]})"), "lacks dtype, shape or data_offsets"},
      {a(R"({"dtype":"F32","data_offsets":[0,16]})"), "lacks"},
      {a(R"({"shape":[2,2],"data_offsets":[0,16]})"), "lacks"},
      {a(R"({})"), "lacks"},
      {a(R"({"dtype":"F32","dtype":"F32","shape":[2,2],"data_offsets":[0,16]})"), "the key \"dtype\" twice"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16],"shape":[2,2]})"), "the key \"shape\" twice"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16],"x":1})"), "unknown key \"x\""},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":1)"), "the key \"b\" appears twice"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"":1)"), "1 to 256 bytes"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"\u0007":1)"), "no control characters"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"c":[])"), "an array stands"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"__metadata__":1)"), "a number stands"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"__metadata__":{"x":1})"), "a number stands"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"__metadata__":{"x":{}})"), "an object stands"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"__metadata__":{"x":"","x":""})"),
       "metadata key \"x\" appears twice"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"), "not valid JSON"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16]})") + "{}", "not valid JSON"},
      {a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16]})") + "\n", "padded with spaces"},
      {" " + a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16]})"), "must be a JSON object"},
      {"\xEF\xBB\xBF" + a(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16]})"), "must be a JSON object"},
      {a("{\"dtype\":\"F32\xff\",\"shape\":[2,2],\"data_offsets\":[0,16]}"), "not valid JSON"},
      {a(R"(/**/{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]})"), "not valid JSON"},
      {"[]", "must be a JSON object"},
      {"    ", "must be a JSON object"},
      {"{\"a\"}", "not valid JSON"},
      {"{\"a\":" + std::string(100000, '[') + "}", "an array stands"},
  };
  for (const auto& [header, reason] : wrong) {
    EXPECT_THAT(refusal_of_header(header, 28), AllOf(HasSubstr("bad\""), HasSubstr(reason))) << header.substr(0, 200);
  }
}

TEST_F(DamagedWeightsTest, HeaderLengthsAreCheckedBeforeTheHeaderIsRead) {
  for (const std::uint64_t length : {std::uint64_t{0}, std::uint64_t{1}, good_.size() - 7, std::uint64_t{1} << 24,
                                     std::uint64_t{1} << 32, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    std::string file = good_;
    std::memcpy(file.data(), &length, sizeof length);
    EXPECT_THAT(refusal(file), HasSubstr(fmt::format("the header must have 2 to {} bytes, the file says {}",
                                                     good_.size() - 8, length)));
  }
  const std::string path = directory_.write("large", good_);
  const std::uint64_t length = (std::uint64_t{1} << 24) + 1;
  std::string head(reinterpret_cast<const char*>(&length), sizeof length);
  directory_.write("large", head);
  std::filesystem::resize_file(path, std::uint64_t{1} << 30);
  EXPECT_THAT(message_of<IoError>([&] { load_weights(path, set_); }), HasSubstr("must have 2 to 16777216 bytes"));
}

TEST_F(DamagedWeightsTest, FilesOfAnotherKindAreNamedAsSuch) {
  const std::string length_of_4("\4\0\0\0\0\0\0\0", 8);
  for (const std::string& file : {std::string(), std::string("PK\3\4"), std::string("PK\3\4") + std::string(500, 'x'),
                                  std::string("1.5,2.5\n3.5,4.5\n"), length_of_4 + "abcdefgh"}) {
    EXPECT_THAT(refusal(file),
                StartsWith(fmt::format("load_weights: \"{}\" is no safetensors file", directory_ / "bad")))
        << file;
  }
}

TEST_F(DamagedWeightsTest, MoreThan100000TensorsAreRefused) {
  const auto header = [](int count) {
    std::string json = "{";
    for (int i = 0; i < count; ++i) {
      json += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", i == 0 ? "" : ",", i);
    }
    return json + "}";
  };
  EXPECT_THAT(refusal_of_header(header(100001), 0), HasSubstr("more than 100000 tensors"));
  EXPECT_THAT(refusal_of_header(header(100000), 0), HasSubstr("no parameter is named"));
}

TEST_F(DamagedWeightsTest, FilesThatDoNotFitTheSetAreRefused) {
  const auto refusal_of = [&]<class E>(Dtype dtype, const Named& saved) {
    const std::string path = directory_ / "other";
    save_weights(path, make_set(dtype, saved, 3));
    const std::vector<std::string> before = bits_of(set_, names_);
    const std::string message = message_of<E>([&] { load_weights(path, set_); });
    EXPECT_EQ(bits_of(set_, names_), before);
    return message;
  };
  EXPECT_THAT(refusal_of.operator()<ValueError>(Dtype::f32, {{"a", {2, 2}}}),
              HasSubstr("the file has no tensor for the parameter \"b\""));
  EXPECT_THAT(refusal_of.operator()<ValueError>(Dtype::f32, {{"a", {2, 2}}, {"b", {3}}, {"c", {1}}}),
              HasSubstr("no parameter is named \"c\""));
  EXPECT_THAT(refusal_of.operator()<ValueError>(Dtype::f32, {}), HasSubstr("no tensor for the parameter"));
  EXPECT_THAT(refusal_of.operator()<ShapeError>(Dtype::f32, {{"a", {2, 2}}, {"b", {4}}}),
              HasSubstr("\"b\" must be [3], as the parameter is, got [4]"));
  EXPECT_THAT(refusal_of.operator()<ShapeError>(Dtype::f32, {{"a", {4}}, {"b", {3}}}),
              HasSubstr("\"a\" must be [2, 2], as the parameter is, got [4]"));
  EXPECT_THAT(refusal_of.operator()<DtypeError>(Dtype::f64, {{"a", {2, 2}}, {"b", {3}}}),
              HasSubstr("\"a\" must be F32, as the parameter is f32, got F64"));
}

TEST_F(DamagedWeightsTest, AnOpenSetStaysOpen) {
  ParameterSet open = make_set(Dtype::f32, names_, 1);
  EXPECT_THROW(load_weights(directory_.write("bad", good_.substr(0, 100)), open), IoError);
  EXPECT_NO_THROW(open.add("c", {1}, [](std::span<float> values) { values[0] = 1; }));
}

TEST_F(DamagedWeightsTest, FailedCallsChangeNothing) {
  const std::string path = directory_ / "good";
  FaultyCalls undisturbed;
  detail::load_weights(path, make_set(Dtype::f32, names_, 2), {}, undisturbed);
  const int count = static_cast<int>(undisturbed.log.size());
  for (int at = 1; at < count; ++at) {  // the last call closes the file, which may fail
    const std::vector<std::string> before = bits_of(set_, names_);
    FaultyCalls calls(FaultyCalls::Fault::error, at);
    EXPECT_THAT(message_of<IoError>([&] { detail::load_weights(path, set_, {}, calls); }), HasSubstr(path)) << at;
    EXPECT_EQ(bits_of(set_, names_), before) << at;
  }
  FaultyCalls slow;
  slow.most_bytes = 1;
  detail::load_weights(path, set_, {}, slow);
  EXPECT_EQ(bits_of(set_, names_), bits_of(make_set(Dtype::f32, names_, 1), names_));
}

TEST(WeightsTest, FailedSavesLeaveTheOldFile) {
  const ParameterSet old_set = make_set(Dtype::bf16, kLayers, 1);
  const ParameterSet new_set = make_set(Dtype::bf16, kLayers, 2);
  FaultyCalls undisturbed;
  const TemporaryDirectory directory;
  const std::string path = directory / "w";
  detail::save_weights(path, old_set, {}, undisturbed);
  const std::string old_file = read_file(path);
  for (int at = 1; at < static_cast<int>(undisturbed.log.size()) - 1; ++at) {
    FaultyCalls calls(FaultyCalls::Fault::error, at, ENOSPC);
    EXPECT_THAT(message_of<IoError>([&] { detail::save_weights(path, new_set, {}, calls); }),
                AllOf(HasSubstr("save_weights: cannot "), HasSubstr(path), HasSubstr("No space left")))
        << at;
    EXPECT_EQ(read_file(path), old_file) << at;
    EXPECT_THAT(directory.names(), ElementsAre("w")) << at;
  }
}

TEST(WeightsTest, RefuseNamesThatTheFormatCannotHold) {
  const TemporaryDirectory directory;
  for (const char* name : {"__metadata__", "\xff", "a\xc3"}) {
    const ParameterSet set = make_set(Dtype::f32, {{name, {1}}}, 1);
    EXPECT_THROW(save_weights(directory / "w", set), ValueError) << name;
  }
  EXPECT_THAT(directory.names(), ElementsAre());
  const Named odd{{"a\\b\"c", {1}}, {"größe/ü", {2}}, {std::string(256, 'x'), {1}}};
  const ParameterSet saved = make_set(Dtype::f32, odd, 1);
  save_weights(directory / "w", saved);
  const ParameterSet loaded = make_set(Dtype::f32, odd, 2);
  load_weights(directory / "w", loaded);
  EXPECT_EQ(bits_of(loaded, odd), bits_of(saved, odd));
}

}  // namespace
}  // namespace fusegrad
