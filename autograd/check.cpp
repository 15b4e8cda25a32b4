#include <fusegrad/autograd/check.h>

namespace fusegrad::detail {

std::string format_message(fmt::string_view message, fmt::format_args args) { return fmt::vformat(message, args); }

}  // namespace fusegrad::detail
