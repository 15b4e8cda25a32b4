#include <algorithm>

#include <fusegrad/autograd/branch_log.h>
#include <fusegrad/autograd/check.h>

namespace fusegrad {

const Tensor& BranchLog::next() {
  detail::require<StateError>(next_ < decisions_.size(),
                              "branch log: the replay asks for more decisions than the {} recorded", decisions_.size());
  return decisions_[next_++];
}

bool BranchLog::operator==(const BranchLog& other) const {
  return std::ranges::equal(decisions_, other.decisions_, [](const Tensor& a, const Tensor& b) {
    return a.shape() == b.shape() && a.to_vector<std::uint8_t>() == b.to_vector<std::uint8_t>();
  });
}

}  // namespace fusegrad
