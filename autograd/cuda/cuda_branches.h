// The branches of a step on a GPU: two streams beside the main one, and the events by which they wait for each other.
// While a graph is captured the waits become its edges. Not installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <fusegrad/autograd/branches.h>
#include <fusegrad/autograd/cuda/stream.h>

namespace fusegrad::detail {

class CudaBackend;

class CudaBranches final : public Branches {
 public:
  /// `backend` outlives it; its device is the current one. Errors: CudaError.
  explicit CudaBranches(CudaBackend& backend) : backend_(backend) {}

  /// A step begins: the backend's stream is the main line from now on, and there is nothing to wait for.
  /// `expects_updates`: optimizers will step what its sweeps complete.
  void start(bool expects_updates);
  /// The host waits for both branches.
  void synchronize() const;
  /// It ended, or failed: work goes to the main line, which waits for all that the branches were given. `captured`: a
  /// graph was to be made of it, and none of it runs.
  void stop(bool captured) noexcept;

  void begin_beside() override;
  void end_beside() noexcept override;
  void join(const Storage& storage) override;
  void join_all() override;
  std::int64_t mark() override;
  void begin_update(std::int64_t point) override;
  void wait_in_update(std::int64_t point) override;
  void end_update() noexcept override;

 private:
  struct Point {
    const Event* main;
    std::int64_t use;  ///< last work beside the main line
  };

  Event& record(const Stream& stream);
  void join_use(std::int64_t use);

  CudaBackend& backend_;
  Stream beside_{Stream::Priority::second};
  Stream update_{Stream::Priority::last};
  const Stream* main_ = nullptr;
  // Events of this step, reused by the next.
  std::vector<std::unique_ptr<Event>> events_;
  std::size_t event_count_ = 0;
  std::vector<const Event*> uses_;  ///< ends of the works beside, from first_use_ on; null: it could not be recorded
  std::int64_t first_use_ = 1;
  std::vector<Point> points_;  ///< from first_point_ on
  std::int64_t first_point_ = 1;
  std::int64_t update_use_ = 0;  ///< last work beside that the optimizers' branch waits for
};

}  // namespace fusegrad::detail
