// y is x under another shape. Backward: dx is dy under x's shape.
#include <fusegrad/autograd/op.h>
#include <fusegrad/ops/pass_gradient.h>
#include <fusegrad/ops/reshape.h>

namespace fusegrad {
namespace {

class ReshapeRule final : public Rule {
 public:
  explicit ReshapeRule(const Shape& shape) : shape_(shape) {}

  void backward(Backward& sweep) override {
    if (sweep.needs(0)) pass_gradient(sweep, 0, sweep.dy().reshape(shape_));
  }

 private:
  Shape shape_;
};

}  // namespace

Var reshape(const Var& x, const Shape& shape) {
  Recording op("reshape", {x});
  return op.finish<ReshapeRule>(op.input(0).reshape(shape), x.shape());
}

}  // namespace fusegrad
