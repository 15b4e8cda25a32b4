// Argument checks with formatted messages. For fusegrad's own sources; not installed.
#pragma once

#include <concepts>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <fusegrad/autograd/context.h>
#include <fusegrad/autograd/error.h>
#include <fusegrad/autograd/shape.h>

/// Shapes and devices are arguments of a message themselves: their text is made only if the message is, which is what
/// keeps the checks of a small step from taking a quarter of its time.
template <class T>
requires std::same_as<T, fusegrad::Shape> || std::same_as<T, fusegrad::Device>
struct fmt::formatter<T> : fmt::formatter<fmt::string_view> {
  template <class FormatContext>
  auto format(const T& value, FormatContext& context) const {
    return fmt::formatter<fmt::string_view>::format(value.to_string(), context);
  }
};

namespace fusegrad::detail {

/// fmt::vformat, compiled in one place: instantiating it in every source would take most of the build's time.
std::string format_message(fmt::string_view message, fmt::format_args args);

/// Use this instead of fmt::format.
template <class... Args>
std::string format(fmt::format_string<Args...> message, Args&&... args) {
  return format_message(message, fmt::make_format_args(args...));
}

/// Throws `E` with the formatted message unless `condition` holds. The arguments are formatted only on failure, so pass
/// them as they are: shape(), not shape().to_string().
template <class E, class... Args>
void require(bool condition, fmt::format_string<Args...> message, Args&&... args) {
  if (!condition) [[unlikely]]
    throw E(format_message(message, fmt::make_format_args(args...)));
}

}  // namespace fusegrad::detail
