#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/parameter_store.h>
#include <fusegrad/nn/mlp.h>

namespace fusegrad {

using detail::require;

Mlp::Mlp(const Context& context, const MlpOptions& options) : set_(context, options.dtype.value_or(Dtype::f32)) {
  add_layers("", options);
}

Mlp::Mlp(const ParameterSet& set, const std::string& name, const MlpOptions& options) : set_(set) {
  add_layers(name.empty() ? "" : name + ".", options);
}

void Mlp::add_layers(const std::string& prefix, const MlpOptions& options) {
  require<ValueError>(options.widths.size() >= 2, "mlp: widths must name at least an input and an output, got {}",
                      options.widths.size());
  for (std::size_t i = 0; i < options.widths.size(); ++i) {
    require<ValueError>(options.widths[i] >= 1, "mlp: every width must be at least 1, number {} is {}", i,
                        options.widths[i]);
  }
  const std::size_t count = options.widths.size() - 1;
  detail::Addition addition(set_.store());
  for (std::size_t i = 0; i < count; ++i) {
    const LinearLayerOptions layer{.in = options.widths[i],
                                   .out = options.widths[i + 1],
                                   .activation = i + 1 == count ? options.output_activation : options.activation,
                                   .bias = options.bias,
                                   .initialization = options.initialization,
                                   .dtype = options.dtype,
                                   .seed = options.seed};
    layers_.emplace_back(set_, prefix + std::to_string(i), layer);
  }
  addition.keep();
}

Var Mlp::operator()(const Var& x) const {
  require<StateError>(!layers_.empty(), "mlp: this network was moved from");
  require<StateError>(x.defined(), "mlp: x is an empty Var");
  const std::int64_t in = layers_.front().weight().shape()[1];
  require<ShapeError>(x.shape().rank() >= 2 && x.shape()[-1] == in,
                      "mlp: x must be [batch, {}] ({} = the network's first width), got {}", in, in, x.shape());
  require<DtypeError>(x.dtype() == set_.dtype(), "mlp: x must be {} as the network's parameters are, got {}",
                      name_of(set_.dtype()), name_of(x.dtype()));
  Var h = x;
  for (const LinearLayer& layer : layers_) h = layer(h);
  return h;
}

}  // namespace fusegrad
