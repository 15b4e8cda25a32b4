#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/op.h>
#include <fusegrad/autograd/parameter_store.h>
#include <fusegrad/nn/linear_layer.h>
#include <fusegrad/ops/linear.h>

namespace fusegrad {

using detail::require;

LinearLayer::LinearLayer(const Context& context, const LinearLayerOptions& options)
    : set_(context, options.dtype.value_or(Dtype::f32)), activation_(options.activation) {
  add_parameters("", options);
}

LinearLayer::LinearLayer(const ParameterSet& set, const std::string& name, const LinearLayerOptions& options)
    : set_(set), activation_(options.activation) {
  add_parameters(name.empty() ? "" : name + ".", options);
}

void LinearLayer::add_parameters(const std::string& prefix, const LinearLayerOptions& options) {
  require<ValueError>(options.in >= 1 && options.out >= 1, "linear layer: in and out must be at least 1, got {} and {}",
                      options.in, options.out);
  require<DtypeError>(!options.dtype || *options.dtype == set_.dtype(), "linear layer: the set's dtype is {}, not {}",
                      name_of(set_.dtype()), name_of(options.dtype.value_or(set_.dtype())));
  const Initialization initialization = options.initialization.value_or(
      options.activation == Activation::none ? Initialization::xavier_uniform : Initialization::he_uniform);
  detail::Addition addition(set_.store());
  // The parameter's number in the set names its stream of random numbers, so that layers of one seed differ.
  weight_ = set_.add(prefix + "weight", {options.out, options.in},
                     layer_weights(initialization, options.in, options.out, options.seed, set_.size()));
  if (options.bias) bias_ = set_.add(prefix + "bias", {options.out}, constant(0));
  addition.keep();
}

Var LinearLayer::operator()(const Var& x) const {
  const Var w = parameter_beside(x, weight_);
  if (!bias_.defined()) return linear(x, w, {.activation = activation_});
  return linear(x, w, parameter_beside(x, bias_), {.activation = activation_});
}

}  // namespace fusegrad
