#include <algorithm>
#include <utility>

#include <fusegrad/autograd/branches.h>
#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/context_state.h>
#include <fusegrad/autograd/memory.h>

namespace fusegrad::detail {
namespace {

constexpr std::size_t kGranule = 256;  // every block is aligned for vector loads and cuBLASLt
constexpr std::int64_t kFreeCache = std::int64_t{64} << 20;
/// A block of so many bytes is worth waiting for; smaller ones are made anew while a branch still uses the others.
constexpr std::size_t kWorthAWait = std::size_t{16} << 20;

}  // namespace

MemoryCache::~MemoryCache() {
  trim_locked();
  while (descriptors_) delete std::exchange(descriptors_, descriptors_->next);
}

StoragePtr MemoryCache::allocate(std::size_t bytes, std::shared_ptr<ContextState> context) {
  Storage* storage = take(bytes);
  storage->version.store(0, std::memory_order_relaxed);
  storage->context = std::move(context);
  return StoragePtr(storage);
}

Storage* MemoryCache::take(std::size_t bytes) {
  require<OutOfMemoryError>(bytes <= SIZE_MAX / 4, "allocation of {} bytes: more than the address space", bytes);
  const std::size_t rounded = std::max<std::size_t>((bytes + kGranule - 1) / kGranule, 1) * kGranule;
  const std::lock_guard lock(mutex_);
  if (arena_ && suspensions_ == 0) {
    Storage* storage = take_from_arena(rounded);
    return storage ? storage : take_new(rounded, bytes);
  }
  Storage* storage = take_cached(rounded);
  if (!storage) storage = take_new(rounded, bytes);
  use_.in_use += static_cast<std::int64_t>(storage->bytes);
  use_.peak_in_use = std::max(use_.peak_in_use, use_.in_use);
  return storage;
}

StoragePtr MemoryCache::borrow(void* data, std::size_t bytes, std::shared_ptr<ContextState> context) {
  const std::lock_guard lock(mutex_);
  Storage* storage = take_descriptor();
  storage->data = data;
  storage->bytes = bytes;
  storage->borrowed = true;
  storage->version.store(0, std::memory_order_relaxed);
  storage->context = std::move(context);
  return StoragePtr(storage);
}

void MemoryCache::give_back(Storage* storage) {
  const std::lock_guard lock(mutex_);
  if (storage->borrowed) {
    storage->data = nullptr;
    storage->next = std::exchange(descriptors_, storage);
    return;
  }
  if (branches_ && branches_->is_beside()) storage->branch_use = branches_->last_use();
  if (storage->arena) return put(storage->arena->bins_, storage);
  const auto bytes = static_cast<std::int64_t>(storage->bytes);
  use_.in_use -= bytes;
  use_.cached += bytes;
  put(bins_, storage);
}

void MemoryCache::put(std::vector<MemoryBin>& bins, Storage* storage) {
  auto bin = std::ranges::lower_bound(bins, storage->bytes, {}, &MemoryBin::bytes);
  if (bin == bins.end() || bin->bytes != storage->bytes) bin = bins.insert(bin, MemoryBin{storage->bytes, nullptr});
  storage->next = std::exchange(bin->head, storage);
}

void MemoryCache::trim() {
  const std::lock_guard lock(mutex_);
  trim_locked();
}

MemoryUse MemoryCache::use() const {
  const std::lock_guard lock(mutex_);
  return use_;
}

void MemoryCache::use_arena(Arena* arena, Branches* branches, Arena::Growth growth) {
  const std::lock_guard lock(mutex_);
  arena_ = arena;
  growth_ = growth;
  branches_ = branches;
}

void MemoryCache::suspend_arena() {
  const std::lock_guard lock(mutex_);
  ++suspensions_;
}

void MemoryCache::resume_arena() {
  const std::lock_guard lock(mutex_);
  --suspensions_;
}

void MemoryCache::dissolve(Arena& arena) {
  const std::lock_guard lock(mutex_);
  for (Storage* storage : arena.blocks_) storage->arena = nullptr;
  for (MemoryBin& bin : arena.bins_) {
    while (Storage* storage = bin.head) {
      bin.head = storage->next;
      use_.in_use -= static_cast<std::int64_t>(storage->bytes);
      use_.cached += static_cast<std::int64_t>(storage->bytes);
      put(bins_, storage);
    }
  }
  arena.blocks_.clear();
  arena.bins_.clear();
  arena.bytes_ = 0;
}

Storage* MemoryCache::take_cached(std::size_t bytes) {
  for (auto bin = std::ranges::lower_bound(bins_, bytes, {}, &MemoryBin::bytes);
       bin != bins_.end() && bin->bytes - bytes <= bytes / 8; ++bin) {
    if (Storage* storage = bin->head) {
      bin->head = storage->next;
      use_.cached -= static_cast<std::int64_t>(storage->bytes);
      return storage;
    }
  }
  return nullptr;
}

Storage* MemoryCache::take_from_arena(std::size_t bytes) {
  // Blocks of the very size: else a repetition of the same requests might need other blocks than the first time.
  const auto bin = std::ranges::lower_bound(arena_->bins_, bytes, {}, &MemoryBin::bytes);
  if (bin == arena_->bins_.end() || bin->bytes != bytes) return nullptr;
  const bool any = !branches_ || branches_->is_beside();
  Storage** busy = nullptr;
  for (Storage** link = &bin->head; *link; link = &(*link)->next) {
    if (any || !branches_->is_busy(**link)) return std::exchange(*link, (*link)->next);
    if (!busy || (*link)->branch_use < (*busy)->branch_use) busy = link;
  }
  if (!busy || (bytes < kWorthAWait && growth_ == Arena::Growth::free)) return nullptr;
  branches_->join(**busy);
  return std::exchange(*busy, (*busy)->next);
}

Storage* MemoryCache::take_new(std::size_t rounded, std::size_t asked) {
  // Sizes that no longer occur (another batch size, another model) must not pile up.
  const auto held = use_.in_use + use_.cached + static_cast<std::int64_t>(rounded);
  if (held > 2 * use_.peak_in_use + kFreeCache) trim_locked();
  std::unique_ptr<Storage> storage(take_descriptor());
  storage->data = backend_->allocate(rounded);
  if (!storage->data && use_.cached > 0) {
    trim_locked();
    storage->data = backend_->allocate(rounded);
  }
  if (!storage->data) {
    throw OutOfMemoryError(
        detail::format("out of memory on {}: {} bytes were asked for, {} bytes are held by live tensors",
                       backend_->device().to_string(), asked, use_.in_use));
  }
  storage->bytes = rounded;
  storage->borrowed = false;
  storage->branch_use = 0;
  storage->arena = suspensions_ == 0 ? arena_ : nullptr;
  ++use_.system_allocations;
  if (storage->arena) {
    arena_->blocks_.push_back(storage.get());
    arena_->bytes_ += static_cast<std::int64_t>(rounded);
    use_.in_use += static_cast<std::int64_t>(rounded);
    use_.peak_in_use = std::max(use_.peak_in_use, use_.in_use);
  }
  return storage.release();
}

Storage* MemoryCache::take_descriptor() {
  if (descriptors_) return std::exchange(descriptors_, descriptors_->next);
  return new Storage;
}

void MemoryCache::trim_locked() {
  for (MemoryBin& bin : bins_) {
    while (Storage* storage = bin.head) {
      bin.head = storage->next;
      backend_->release(storage->data);
      delete storage;
    }
  }
  bins_.clear();
  use_.cached = 0;
}

}  // namespace fusegrad::detail
