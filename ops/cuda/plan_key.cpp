#include <algorithm>
#include <bit>

#include <fusegrad/ops/cuda/plan_key.h>

namespace fusegrad::detail {
namespace {

using kernels::LinearForward;
using kernels::LinearInputGradient;
using kernels::LinearWeightGradient;
using kernels::Transpose;

std::uint64_t word(std::int64_t value) { return static_cast<std::uint64_t>(value); }

/// A bit field.
class Flags {
 public:
  void put(std::uint64_t value, int bits) {
    value_ |= value << used_;
    used_ += bits;
  }
  void put(const void* pointer) { put(static_cast<std::uint64_t>(std::countr_zero(alignment_of(pointer))), 4); }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0;
  int used_ = 0;
};

}  // namespace

std::size_t PlanKeyHash::operator()(const PlanKey& key) const noexcept {
  // The finaliser of splitmix64 over every word.
  std::uint64_t hash = 0;
  for (const std::uint64_t word : key.words) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9u;
    hash ^= hash >> 27;
  }
  return hash;
}

PlanKey key_of(const LtProduct& product) {
  const bool adds = product.c.data != nullptr;
  Flags flags;
  flags.put(static_cast<std::uint64_t>(product.epilogue), 4);
  flags.put(static_cast<std::uint64_t>(product.a.dtype), 3);
  flags.put(static_cast<std::uint64_t>(product.d.dtype), 3);
  flags.put(product.transpose_a == Transpose::yes, 1);
  flags.put(product.transpose_b == Transpose::yes, 1);
  flags.put(adds, 1);
  flags.put(product.c.data == product.d.data, 1);
  for (const void* pointer : {product.a.data, product.b.data, product.c.data, static_cast<const void*>(product.d.data),
                              bias_pointer(product), static_cast<const void*>(product.saved)}) {
    flags.put(pointer);
  }
  return {{word(product.d.rows), word(product.d.cols), word(reduction_length(product)), word(product.a.ld),
           word(product.b.ld), adds ? word(product.c.ld) : 0, word(product.d.ld), word(product.saved_ld),
           flags.value()}};
}

PlanKey key_of(const LinearForward& args) {
  Flags flags;
  flags.put(static_cast<std::uint64_t>(args.x.dtype), 3);
  flags.put(static_cast<std::uint64_t>(args.y.dtype), 3);
  flags.put(static_cast<std::uint64_t>(args.activation), 3);
  flags.put(args.b.data != nullptr, 1);
  flags.put(args.mask != nullptr, 1);
  for (const void* pointer : {args.x.data, args.w.data, args.b.data, static_cast<const void*>(args.y.data),
                              static_cast<const void*>(args.pre_activation.data)}) {
    flags.put(pointer);
  }
  return {{word(args.y.rows), word(args.y.cols), word(args.x.cols), word(args.x.ld), word(args.w.ld), word(args.y.ld),
           word(args.pre_activation.data ? args.pre_activation.ld : 0), 0, flags.value()}};
}

PlanKey key_of(const LinearInputGradient& args) {
  Flags flags;
  flags.put(static_cast<std::uint64_t>(args.dz.dtype), 3);
  flags.put(static_cast<std::uint64_t>(args.dx.dtype), 3);
  flags.put(static_cast<std::uint64_t>(args.bias.dtype), 3);
  flags.put(static_cast<std::uint64_t>(args.activation), 3);
  flags.put(args.c.data != nullptr, 1);
  flags.put(args.c.data == args.dx.data, 1);
  flags.put(args.bias.data != nullptr, 1);
  flags.put(args.bias_c.data != nullptr, 1);
  for (const void* pointer : {args.dz.data, args.w.data, args.c.data, static_cast<const void*>(args.dx.data)}) {
    flags.put(pointer);
  }
  return {{word(args.dx.rows), word(args.dx.cols), word(args.dz.cols), word(args.bias_inputs), word(args.dz.ld),
           word(args.w.ld), word(args.dx.ld), word(args.c.data ? args.c.ld : args.pre_activation.ld), flags.value()}};
}

PlanKey key_of(const LinearWeightGradient& args) {
  Flags flags;
  flags.put(static_cast<std::uint64_t>(args.dz.dtype), 3);
  flags.put(static_cast<std::uint64_t>(args.dw.dtype), 3);
  flags.put(static_cast<std::uint64_t>(args.bias.dtype), 3);
  flags.put(args.c.data != nullptr, 1);
  flags.put(args.c.data == args.dw.data, 1);
  flags.put(args.bias_c.data != nullptr, 1);
  for (const void* pointer : {args.dz.data, args.x.data, args.c.data, static_cast<const void*>(args.dw.data)}) {
    flags.put(pointer);
  }
  return {{word(args.dz.rows), word(args.dw.rows), word(args.dw.cols), word(args.dz.ld), word(args.x.ld),
           word(args.dw.ld), args.c.data ? word(args.c.ld) : 0, 0, flags.value()}};
}

std::optional<PlanKey> key_of(const PlanRecord& record) {
  PlanKey key;
  if (record.key.size() != key.words.size()) return std::nullopt;
  std::ranges::copy(record.key, key.words.begin());
  return key;
}

}  // namespace fusegrad::detail
