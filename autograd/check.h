// Argument checks with formatted messages. For fusegrad's own sources; not installed.
#pragma once

#include <string>
#include <utility>

#include <fmt/format.h>

#include <fusegrad/autograd/error.h>

namespace fusegrad::detail {

/// fmt::vformat, compiled in one place: instantiating it in every source would take most of the build's time.
std::string format_message(fmt::string_view message, fmt::format_args args);

/// Use this instead of fmt::format.
template <class... Args>
std::string format(fmt::format_string<Args...> message, Args&&... args) {
  return format_message(message, fmt::make_format_args(args...));
}

/// Throws `E` with the formatted message unless `condition` holds. The arguments are formatted only on failure.
template <class E, class... Args>
void require(bool condition, fmt::format_string<Args...> message, Args&&... args) {
  if (!condition) [[unlikely]]
    throw E(format_message(message, fmt::make_format_args(args...)));
}

}  // namespace fusegrad::detail
