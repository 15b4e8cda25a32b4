// Memory behind tensors: reference-counted blocks that return to their context's cache and are reused by exact size.
//
// A training loop asks for the same sizes in the same order every step, so after the first step every block comes from
// the cache: a step in steady state allocates nothing, neither blocks nor the objects that describe them.
//
// What a captured step uses must stay where it is as long as its graph lives: its blocks come from an arena, which
// lends them to nothing else. Not installed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <fusegrad/autograd/backend.h>
#include <fusegrad/autograd/context.h>
#include <fusegrad/autograd/tensor.h>

namespace fusegrad::detail {

class Arena;
class Branches;  // branches.h

/// One block of memory, owned by a context's cache or borrowed from the caller.
struct Storage {
  void* data = nullptr;
  std::size_t bytes = 0;
  /// Grows with every write through the tensor interface; the tape compares it to find values changed behind its back.
  std::atomic<std::uint64_t> version{0};
  std::atomic<std::int64_t> references{0};
  bool borrowed = false;
  std::int64_t branch_use = 0;            ///< last work beside the main line that uses it; see branches.h
  Arena* arena = nullptr;                 ///< that it belongs to
  std::shared_ptr<ContextState> context;  ///< set while referenced; empty in the cache
  StoragePtr parent;                      ///< kept alive by a part that has its own version; see carve()
  Storage* next = nullptr;                ///< link in the cache
};

/// Elements [offset, offset + shape.size()) of `flat` as a tensor with a version of its own: a write through it does
/// not count as a write to its neighbours. Keeps `flat`'s memory alive.
Tensor carve(const Tensor& flat, std::int64_t offset, const Shape& shape);

/// Free blocks of one size.
struct MemoryBin {
  std::size_t bytes;
  Storage* head;
};

/// Blocks that the cache has set apart. The bytes of all of them count as in use.
class Arena {
 public:
  /// Whether blocks are added where others would have to be waited for.
  enum class Growth : std::uint8_t { free, last_resort };

  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::int64_t bytes() const { return bytes_; }

 private:
  friend class MemoryCache;
  std::vector<MemoryBin> bins_;
  std::vector<Storage*> blocks_;
  std::int64_t bytes_ = 0;
};

/// The blocks of one context. Thread-safe: a tensor may be dropped by any thread.
class MemoryCache {
 public:
  explicit MemoryCache(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}
  ~MemoryCache();
  MemoryCache(const MemoryCache&) = delete;
  MemoryCache& operator=(const MemoryCache&) = delete;

  Backend& backend() { return *backend_; }
  /// An uninitialised block. Errors: OutOfMemoryError, after the cache was given back in vain.
  StoragePtr allocate(std::size_t bytes, std::shared_ptr<ContextState> context);
  /// A block that the caller owns.
  StoragePtr borrow(void* data, std::size_t bytes, std::shared_ptr<ContextState> context);
  /// An uninitialised block outside any tensor, to be given back. Errors: as allocate().
  Storage* take(std::size_t bytes);
  void give_back(Storage* storage);
  void trim();
  MemoryUse use() const;

  /// From now on blocks come from `arena`, new ones are its own, and work may run on `branches`, if there are any; null
  /// ends that.
  void use_arena(Arena* arena, Branches* branches, Arena::Growth growth = Arena::Growth::free);
  /// Blocks come from the cache again until as many calls have resumed the arena.
  void suspend_arena();
  void resume_arena();
  /// Makes the arena's blocks ordinary ones.
  void dissolve(Arena& arena);

 private:
  Storage* take_cached(std::size_t bytes);
  Storage* take_from_arena(std::size_t bytes);
  Storage* take_new(std::size_t rounded, std::size_t asked);
  Storage* take_descriptor();
  static void put(std::vector<MemoryBin>& bins, Storage* storage);
  void trim_locked();

  std::unique_ptr<Backend> backend_;
  mutable std::mutex mutex_;
  std::vector<MemoryBin> bins_;     // sorted by bytes
  Storage* descriptors_ = nullptr;  // Storage objects without a block
  MemoryUse use_;
  Arena* arena_ = nullptr;
  Arena::Growth growth_ = Arena::Growth::free;
  int suspensions_ = 0;
  Branches* branches_ = nullptr;
};

}  // namespace fusegrad::detail
