// Contexts with ContextOptions::deterministic: the same bits in every repetition and in every process.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/dtypes.h"
#include "tests/support/tensors.h"

#include <fusegrad/fusegrad.h>

namespace fusegrad {
namespace {

using namespace fusegrad::test;

/// FNV-1a over the bits of all parameters and losses of a short training, eager or by captured steps.
std::uint64_t hash_of_training(Dtype dtype, bool captured) {
  const Context gpu = Context::cuda({.deterministic = true});
  const Mlp net(gpu, {.widths = {96, 257, 256, 10}, .dtype = dtype, .seed = 1});
  AdamW optimizer(net.parameters(), {.learning_rate = 1e-2});
  const auto function = [&](Tape& tape, const Tensor& x, const Tensor& target) {
    const Var loss = mse_loss(net(tape.input(x)), target);
    tape.backward(loss);
    optimizer.step();
    return loss;
  };
  Step step(gpu, function);
  std::vector<double> x_values(std::size_t{513} * 96);
  std::vector<double> target_values(std::size_t{513} * 10);
  for (std::size_t i = 0; i < x_values.size(); ++i) x_values[i] = static_cast<double>(i * 7919 % 1000) / 500 - 1;
  for (std::size_t i = 0; i < target_values.size(); ++i) target_values[i] = static_cast<double>(i * 31 % 100) / 100;
  const Tensor x = make_tensor(gpu, {513, 96}, x_values, dtype);
  const Tensor target = make_tensor(gpu, {513, 10}, target_values, Dtype::f32);
  std::vector<double> seen;
  for (int i = 0; i < 5; ++i) {
    if (captured) {
      seen.push_back(step(x, target).item());
    } else {
      Tape tape(gpu);
      seen.push_back(function(tape, x, target).value().item());
    }
  }
  for (const Parameter& parameter : net.parameters()) {
    for (const double value : values_of(parameter.master())) seen.push_back(value);
  }
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const double value : seen) {
    unsigned char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  }
  return hash;
}

class DeterminismCudaTest : public EachDtype {
 protected:
  void SetUp() override { skip_without(DeviceType::cuda); }
};
INSTANTIATE_TEST_SUITE_P(Each, DeterminismCudaTest, testing::Values(Dtype::f32, Dtype::bf16, Dtype::f16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(DeterminismCudaTest, TwentyRepetitionsHaveTheSameBits) {
  std::set<std::uint64_t> hashes;
  for (int i = 0; i < 20; ++i) hashes.insert(hash_of_training(dtype(), i % 2 == 1));
  EXPECT_EQ(hashes.size(), 1U);
}

TEST_P(DeterminismCudaTest, AnotherProcessHasTheSameBits) {
  const std::string mine = fmt::format("bits {:016x}", hash_of_training(dtype(), true));
  if (std::getenv("FUSEGRAD_TEST_PRINT_BITS")) {
    std::printf("%s\n", mine.c_str());
    return;
  }
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command =
      fmt::format("env -u GTEST_TOTAL_SHARDS FUSEGRAD_TEST_PRINT_BITS=1 '{}' --gtest_filter={}.{}", program,
                  test.test_suite_name(), test.name());
  FILE* other = popen(command.c_str(), "r");
  ASSERT_TRUE(other);
  std::string output;
  for (char line[512]; std::fgets(line, sizeof line, other);) output += line;
  EXPECT_EQ(pclose(other), 0);
  EXPECT_NE(output.find(mine), std::string::npos) << output;
}

}  // namespace
}  // namespace fusegrad
