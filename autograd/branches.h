// Work of a step that runs beside the main line on a GPU: weight gradients on one branch, optimizers on another.
//
// The main line is the context's stream, in the order of the program. Work beside it starts after all that the main
// line has been given so far; what the main line is given later waits for it only where it must:
//
//   it wants memory that work beside it still uses, for a new value or to write to it   is_busy(), join()
//   anything but the sweep and the optimizers runs next                                 join_all(), by itself
//   the step ends                                                                       join_all()
//
// A *point* is a state of the main line and of the work beside it that an optimizer can start from: the engine marks
// one for each parameter, when its gradient is complete and all that reads its value has been enqueued.
//
// Products that fill the GPU leave nothing to a branch. Where an optimizer has enough to do beside one, the product
// leaves it some of the multiprocessors: arithmetic waits for them and optimizers for memory, so that both together
// take less time than one after the other. See make_room().
//
// A context has branches only while a Step runs on a GPU; else all work is on the main line. Not installed.
#pragma once

#include <cstdint>
#include <initializer_list>

#include <fusegrad/autograd/context_state.h>
#include <fusegrad/autograd/memory.h>

namespace fusegrad::detail {

class Branches {
 public:
  virtual ~Branches() = default;

  static constexpr int kLines = 3;
  /// Which of the lines gets work now: 0 the main one, 1 beside it, 2 the optimizers'.
  int line() const { return static_cast<int>(line_); }
  /// True between begin_beside() and end_beside().
  bool is_beside() const { return line_ == Line::beside; }
  /// Number of the last work beside the main line. Numbers grow as long as the context lives.
  std::int64_t last_use() const { return last_use_; }
  /// True if work beside the main line uses `storage`, and the main line does not wait for it yet.
  bool is_busy(const Storage& storage) const { return storage.branch_use > joined_use_; }

  /// From now on work goes beside the main line, after all that the main line has been given.
  virtual void begin_beside() = 0;
  virtual void end_beside() noexcept = 0;
  /// The main line waits for the work that uses `storage`.
  virtual void join(const Storage& storage) = 0;
  /// The main line waits for all work. Points that were marked are past.
  virtual void join_all() = 0;
  /// The main line is about to be used by anything: by anyone but the sweep it joins all work.
  void use_main_line() {
    if (line_ == Line::main && !sweeping_ && dirty_) join_all();
  }

  void begin_sweep();
  void end_sweep() noexcept { sweeping_ = false; }

  /// Marks a point; numbers start at 1 and grow as long as the context lives.
  virtual std::int64_t mark() = 0;
  /// True if the main line has run nothing outside of sweeps since.
  bool is_valid(std::int64_t point) const { return point >= first_valid_point_; }
  /// The last point at which a sweep began, or 0: all of forward has been enqueued there.
  std::int64_t sweep_begin() const { return is_valid(sweep_begin_) ? sweep_begin_ : 0; }
  /// From now on work goes to the optimizers' branch, after `point`.
  virtual void begin_update(std::int64_t point) = 0;
  /// What follows there also waits for `point`.
  virtual void wait_in_update(std::int64_t point) = 0;
  virtual void end_update() noexcept = 0;

  /// A gradient of so many elements is complete: an optimizer may step its parameter beside what the main line does.
  void complete(std::int64_t elements) { waiting_ += expects_updates_ ? static_cast<double>(elements) : 0; }
  /// The share of the GPU's multiprocessors that a product on the main line, of so many operations and one that fills
  /// the GPU, is to leave to optimizers. Called once for each such product.
  double make_room(double operations);
  /// True if there is a product that leaves them any.
  bool made_room() const { return made_room_; }

 protected:
  enum class Line : std::uint8_t { main, beside, update };

  Line line_ = Line::main;
  bool sweeping_ = false;
  bool updates_ = false;  ///< the main line has not joined the optimizers' branch
  bool dirty_ = false;    ///< there are points or work that the main line has not joined
  std::int64_t last_use_ = 0;
  std::int64_t joined_use_ = 0;
  std::int64_t sweep_begin_ = 0;
  std::int64_t first_valid_point_ = 1;
  bool expects_updates_ = false;  ///< optimizers will step what the sweeps complete
  double waiting_ = 0;            ///< elements that they have nothing to be stepped beside yet
  bool made_room_ = false;
};

/// Work beside the main line while this lives, where there are branches; else on it. Memory that is taken meanwhile is
/// the branch's.
class Beside {
 public:
  /// `reads`: what the work reads, each defined or not. Errors: CudaError.
  Beside(const Context& context, std::initializer_list<const Tensor*> reads);
  ~Beside();
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;

  /// The work also reads or writes `tensor`, defined or not.
  void uses(const Tensor& tensor);

 private:
  Branches* branches_;  // null where there are none
};

}  // namespace fusegrad::detail
