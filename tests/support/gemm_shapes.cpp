#include "tests/support/gemm_shapes.h"

#include <array>

#include <fmt/format.h>

#include <fusegrad/autograd/random.h>

namespace fusegrad::test {
namespace {

constexpr std::array<std::int64_t, 22> kEdges = {0,  1,  2,  3,  7,  8,   9,   15,  16,  17,  31,
                                                 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257};

constexpr GemmShape kSkinny[] = {{1, 1, 4096},   {1, 4096, 1},   {4096, 1, 1},  {1, 1000, 333},
                                 {1000, 1, 333}, {777, 333, 1},  {16384, 8, 3}, {3, 16384, 8},
                                 {8, 3, 16384},  {5000, 17, 16}, {2, 3, 70001}, {4099, 64, 64}};

constexpr GemmShape kLayers[] = {{64, 256, 64},  {64, 256, 256},  {64, 10, 256},    {37, 256, 64},
                                 {32, 64, 64},   {32, 1, 64},     {128, 512, 784},  {128, 512, 512},
                                 {128, 16, 512}, {100, 300, 784}, {100, 100, 300},  {512, 128, 128},
                                 {1024, 64, 32}, {2048, 64, 64},  {2048, 16, 64},   {16, 1024, 256},
                                 {8, 3072, 768}, {1, 1024, 1024}, {1024, 128, 512}, {1024, 1024, 256}};

}  // namespace

std::string to_string(const GemmShape& shape) { return fmt::format("m={} n={} k={}", shape.m, shape.n, shape.k); }

std::vector<GemmShape> gemm_shapes(std::uint64_t seed) {
  std::vector<GemmShape> shapes;
  // 40 triples in which the edges meet each other: steps coprime to 22 visit every edge in every place.
  for (std::size_t i = 0; i < 40; ++i)
    shapes.push_back({kEdges[i % 22], kEdges[(i * 5 + i / 22 * 3 + 1) % 22], kEdges[(i * 9 + i / 22 * 7 + 2) % 22]});
  shapes.insert(shapes.end(), std::begin(kSkinny), std::end(kSkinny));
  shapes.insert(shapes.end(), std::begin(kLayers), std::end(kLayers));
  const Random random(seed, 0x5a9e);
  for (std::uint64_t i = 0; i < 24; ++i)
    shapes.push_back(
        {1 + random.below(3 * i, 300), 1 + random.below(3 * i + 1, 300), 1 + random.below(3 * i + 2, 600)});
  return shapes;
}

std::vector<GemmShape> gemm_shapes(std::uint64_t seed, std::int64_t limit) {
  std::vector<GemmShape> shapes = gemm_shapes(seed);
  std::erase_if(shapes, [&](const GemmShape& shape) { return shape.multiplications() > limit; });
  return shapes;
}

}  // namespace fusegrad::test
