#include <algorithm>

#include <fmt/format.h>

#include <fusegrad/autograd/check.h>
#include <fusegrad/nn/mlp.h>

namespace fusegrad {

using detail::require;

Mlp::Mlp(const Context& context, const MlpOptions& options) : set_(context, options.dtype.value_or(Dtype::f32)) {
  add_layers("", options);
}

Mlp::Mlp(ParameterSet set, const std::string& name, const MlpOptions& options) : set_(std::move(set)) {
  add_layers(name + ".", options);
}

void Mlp::add_layers(const std::string& prefix, const MlpOptions& options) {
  require<ValueError>(options.widths.size() >= 2, "mlp: widths must name at least an input and an output, got {}",
                      options.widths.size());
  require<ValueError>(std::ranges::all_of(options.widths, [](std::int64_t width) { return width >= 1; }),
                      "mlp: every width must be at least 1, got {}",
                      detail::format("{}", fmt::join(options.widths, ", ")));
  const std::size_t count = options.widths.size() - 1;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string layer = detail::format("{}{}.", prefix, i);
    require<ValueError>(!set_.contains(layer + "weight") && !set_.contains(layer + "bias"),
                        "mlp: the set already has parameters of \"{}\"", layer);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const LinearLayerOptions layer{.in = options.widths[i],
                                   .out = options.widths[i + 1],
                                   .activation = i + 1 == count ? options.output_activation : options.activation,
                                   .bias = options.bias,
                                   .initialization = options.initialization,
                                   .dtype = options.dtype,
                                   .seed = options.seed};
    layers_.emplace_back(set_, detail::format("{}{}", prefix, i), layer);
  }
}

Var Mlp::operator()(const Var& x) const {
  Var h = x;
  for (const LinearLayer& layer : layers_) h = layer(h);
  return h;
}

}  // namespace fusegrad
