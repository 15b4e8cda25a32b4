// Sums of columns in a fixed order: rows of a block in order, then blocks in order. Not installed.
#pragma once

#include <fusegrad/autograd/cpu/thread_pool.h>
#include <fusegrad/ops/views.h>

namespace fusegrad::detail {

/// to[j] = Σ_block partial[block * n + j] + c[j], rounded once; c may be `to`, or none.
template <class Acc>
void finish_column_sums(const Acc* partial, std::int64_t blocks, const Vector& to, const ConstVector& c);

}  // namespace fusegrad::detail
