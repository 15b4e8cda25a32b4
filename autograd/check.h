// Argument checks with formatted messages. For fusegrad's own sources; not installed.
#pragma once

#include <fmt/format.h>

#include <fusegrad/autograd/error.h>

namespace fusegrad::detail {

/// Throws `E` with the formatted message unless `condition` holds. The arguments are formatted only on failure.
template <class E, class... Args>
void require(bool condition, fmt::format_string<Args...> message, Args&&... args) {
  if (!condition) [[unlikely]]
    throw E(fmt::format(message, std::forward<Args>(args)...));
}

}  // namespace fusegrad::detail
