#include <algorithm>
#include <cstddef>

#include <fusegrad/ops/plan_order.h>

namespace fusegrad::detail {

std::vector<int> order_of(std::span<const double> us) {
  std::vector<int> order;
  const auto preferred = std::find_if(us.begin(), us.end(), [](double t) { return t >= 0; });
  if (preferred == us.end()) return order;
  const double bar = *preferred * (1 - kWorthwhile);
  for (std::size_t i = 0; i < us.size(); ++i) {
    if (us[i] >= 0 && us[i] < bar) order.push_back(static_cast<int>(i));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return us[static_cast<std::size_t>(a)] < us[static_cast<std::size_t>(b)]; });
  for (std::size_t i = 0; i < us.size(); ++i) {
    if (us[i] >= bar) order.push_back(static_cast<int>(i));
  }
  return order;
}

}  // namespace fusegrad::detail
