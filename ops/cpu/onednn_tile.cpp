#include <algorithm>
#include <new>

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>

#include <fusegrad/autograd/check.h>
#include <fusegrad/ops/cpu/convert.h>
#include <fusegrad/ops/cpu/onednn_tile.h>
#include <fusegrad/ops/cpu/packet.h>

namespace fusegrad::detail {
namespace {

/// The OpenMP runtime that oneDNN calls, or nulls.
struct OpenMp {
  int (*max_threads)() = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  void (*set_threads)(int) = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
};

const OpenMp& open_mp() {
  static const OpenMp functions;
  return functions;
}

constexpr bool kAsksOpenMp = DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP;
static_assert(kAsksOpenMp || DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_SEQ ||
                  DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_THREADPOOL,
              "this oneDNN would start threads that cannot be forbidden");

bool can_be_single_threaded() { return !kAsksOpenMp || (open_mp().max_threads && open_mp().set_threads); }

/// While it lives, oneDNN starts no threads for the calling thread.
class SingleThread {
 public:
  SingleThread() {
    if constexpr (kAsksOpenMp) {
      before_ = open_mp().max_threads();
      if (before_ != 1) open_mp().set_threads(1);
    }
  }
  ~SingleThread() {
    if (before_ != 1) open_mp().set_threads(before_);
  }
  SingleThread(const SingleThread&) = delete;
  SingleThread& operator=(const SingleThread&) = delete;

 private:
  int before_ = 1;
};

// The rule. Measured with oneDNN 2.6 on one core of an EPYC of the fourth generation, AVX-512; GFLOP/s, ours and
// oneDNN's:
//   y of any size                          no gain: oneDNN would pack the transposed factor for each tile, we do once
//   dx 128 x 512 (512 terms)               104, 111
//   dx 16384 x 32 (64 terms)                75,  92
//   dw 64 x 64, 32 x 64, 64 x 16 (16384)    62,  89;  68, 106;  62, 103
//   dw 1024 x 1024 (4096 terms)             63,  82
//   dx, dw 1024 x 1024 (1024 terms)         92,  86; 93, 91
// We share packed factors among tiles, oneDNN packs for each tile: it gains where a side of the result is at most
// kNarrow, so that there are few, or where so many terms are summed that what we have packed leaves the cache.
constexpr std::int64_t kNarrow = 512;
constexpr std::int64_t kDeep = 2048;
// A call costs about a microsecond.
constexpr std::int64_t kWorthACall = std::int64_t{1} << 14;
// We convert 16-bit factors while packing them, for oneDNN that is a pass of its own: for dx it takes all of the gain
// (bf16 128 x 512: 104, 99), for dw not (bf16 64 x 64 of 16384 terms: 74, 80), if it is large.
constexpr std::int64_t kWorthConverting = std::int64_t{1} << 20;
// Terms of 16-bit factors that are converted at a time.
constexpr std::int64_t kConverted = 256;

/// Rows [rows) and columns [cols) of a matrix as floats [rows, cols].
void convert_block(const Factor& from, Range rows, Range cols, float* to) {
  for (std::int64_t i = rows.begin; i < rows.end; ++i, to += cols.size())
    kernels::load(from.data, from.dtype, i * from.ld + cols.begin, cols.size(), to);
}

/// The part of a factor that a tile needs, as floats: where it lies, or converted.
struct FloatFactor {
  const float* data = nullptr;
  std::int64_t ld = 0;
};

FloatFactor as_floats(const Factor& factor, Range rows, Range cols, float* buffer) {
  if (factor.transposed) std::swap(rows, cols);
  if (factor.dtype == Dtype::f32)
    return {static_cast<const float*>(factor.data) + rows.begin * factor.ld + cols.begin, factor.ld};
  convert_block(factor, rows, cols, buffer);
  return {buffer, cols.size()};
}

char letter(const Factor& factor) { return factor.transposed ? 'T' : 'N'; }

}  // namespace

bool onednn_is_faster(const Factor& a, const Factor& b, const ProductSize& size) {
  const std::int64_t work = size.m * size.n * size.depth;
  if (work < kWorthACall || !can_be_single_threaded()) return false;
  // oneDNN looks at the processor when it runs, our kernels when they are compiled: a portable build has SSE2 only.
  if (kLanes<float> < 8) return true;
  if (b.transposed) return false;
  if (a.dtype != Dtype::f32 && (!a.transposed || work < kWorthConverting)) return false;
  return std::min(size.m, size.n) <= kNarrow || (a.transposed && size.depth > kDeep);
}

std::int64_t onednn_buffer_size(const Factor& a, std::int64_t rows, std::int64_t cols) {
  return a.dtype == Dtype::f32 ? 0 : kConverted * (rows + cols);
}

void multiply_tile_by_onednn(const Factor& a, const Factor& b, Range rows, Range cols, Range depth, float* sums,
                             std::int64_t ld, float* buffer) {
  const SingleThread scope;
  const std::int64_t step = a.dtype == Dtype::f32 ? depth.size() : kConverted;
  for (std::int64_t begin = depth.begin; begin < depth.end; begin += step) {
    const Range terms{begin, std::min(begin + step, depth.end)};
    const FloatFactor left = as_floats(a, rows, terms, buffer);
    const FloatFactor right = as_floats(b, terms, cols, buffer + kConverted * rows.size());
    const float keep = begin == depth.begin ? 0.0f : 1.0f;
    const dnnl_status_t status = dnnl_sgemm(letter(a), letter(b), rows.size(), cols.size(), terms.size(), 1.0f,
                                            left.data, left.ld, right.data, right.ld, keep, sums, ld);
    if (status == dnnl_out_of_memory) throw std::bad_alloc();
    require<StateError>(status == dnnl_success, "oneDNN: dnnl_sgemm failed with status {}", static_cast<int>(status));
  }
}

}  // namespace fusegrad::detail
