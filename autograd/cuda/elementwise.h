// The kernels that tensors need whatever the ops: fill and conversion. Not installed.
#pragma once

#include <cstddef>
#include <cstdint>

#include <fusegrad/autograd/dtype.h>

struct CUstream_st;

namespace fusegrad::detail {

/// to[i] = the element at host address `element`, for i < count; an element has 1, 2, 4 or 8 bytes.
void fill_elements(CUstream_st* stream, void* to, const void* element, std::size_t element_bytes, std::int64_t count);

/// to[i] = from[i] rounded once to `to_dtype`, which is floating-point, for i < count.
void convert_elements(CUstream_st* stream, void* to, Dtype to_dtype, const void* from, Dtype from_dtype,
                      std::int64_t count);

/// True if this build's kernels can run on the current device.
bool kernels_run_on_current_device();

}  // namespace fusegrad::detail
