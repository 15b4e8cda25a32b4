// Hands a gradient on unchanged: for rules whose input gradient is dy, or a view of it. Not installed.
#pragma once

#include <fusegrad/autograd/op.h>

namespace fusegrad {

/// The gradient of input `index` is `gradient`: an alias where nothing was contributed yet and the destination is free,
/// else one kernel that adds what was contributed.
void pass_gradient(Backward& sweep, int index, const Tensor& gradient);

}  // namespace fusegrad
