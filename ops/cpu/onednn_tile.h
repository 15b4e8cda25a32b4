// One tile of a product by oneDNN: the one door to that library. Not installed.
//
// oneDNN is called by each of the library's own threads for a tile of its own and must start none itself, or sums would
// depend on the number of threads. Built for OpenMP, as Debian's is, it asks omp_get_max_threads() on the calling
// thread; that number is a setting of each thread, so it is set to 1 for the call and put back. The two functions are
// looked up among those that the process has loaded, so that whichever OpenMP runtime oneDNN calls is the one that is
// set. Where they are not to be found oneDNN is not used. Built for no threads, or for a thread pool that nobody gives
// it, oneDNN starts none anyway; configuration refuses one that is built for TBB or SYCL.
#pragma once

#include <cstdint>

#include <fusegrad/autograd/context.h>
#include <fusegrad/ops/cpu/tiled_product.h>

namespace fusegrad::detail {

/// Whether oneDNN does this product faster than the kernels of micro_kernel.h. It depends on the factors' layout and
/// the size alone; onednn_tile.cpp has the figures.
bool onednn_is_faster(const Factor& a, const Factor& b, const ProductSize& size);

/// Floats of memory that multiply_tile_by_onednn needs for factors of 16 bits; 0 for f32.
std::int64_t onednn_buffer_size(const Factor& a, std::int64_t rows, std::int64_t cols);

/// sums [rows, cols] = Σ_p a(i, p) b(p, j) over `depth`, at least one term, in an order that oneDNN chooses by the
/// sizes. Factors of f32 are read where they lie, others are converted by way of `buffer`. Errors: std::bad_alloc;
/// StateError if oneDNN refuses.
void multiply_tile_by_onednn(const Factor& a, const Factor& b, Range rows, Range cols, Range depth, float* sums,
                             std::int64_t ld, float* buffer);

}  // namespace fusegrad::detail
