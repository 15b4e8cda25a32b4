// The branch decisions of one run: which side of its kink each element of each piecewise op took.
//
// A tape with a branch log runs ops with kinks (relu) so that they write their decisions to the log, or in a replay
// take them from it. The gradient checker compares logs to see whether a finite difference crossed a kink, and replays
// one to differentiate the branch that was taken.
#pragma once

#include <cstddef>
#include <vector>

#include <fusegrad/autograd/tensor.h>

namespace fusegrad {

class BranchLog {
 public:
  /// Forgets everything and records from now on.
  void record() {
    decisions_.clear();
    replaying_ = false;
  }
  /// Hands out the recorded decisions again, from the first.
  void replay() {
    next_ = 0;
    replaying_ = true;
  }
  bool replaying() const { return replaying_; }

  /// Called by ops while recording: the decisions of one op, u8 bit masks whose padding bits are 0.
  void add(const Tensor& decisions) { decisions_.push_back(decisions); }
  /// Called by ops while replaying. Errors: StateError if the run asks for more decisions than were recorded.
  const Tensor& next();

  /// True if both runs took the same branch everywhere.
  bool operator==(const BranchLog& other) const;

 private:
  std::vector<Tensor> decisions_;
  std::size_t next_ = 0;
  bool replaying_ = false;
};

}  // namespace fusegrad
