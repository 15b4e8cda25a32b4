// Times the library's own GPU kernels beside what bounds them, the copy bandwidth of the card in the same run.
//
//   kernel_times [FILTER]        only kernels whose name contains FILTER
//
// Prints one JSON object a line, the first with the copy bandwidth, then
//   {"kernel", "shape", "us", "bytes", "copy_us", "over_copy", "l2"}
// `us` is the median time of one call in a graph of 20, `bytes` what it has to read and write, `copy_us` the time that
// the card's copy bandwidth allows for so many bytes, and `over_copy` their ratio: 1 is the best there is. Calls rotate
// among buffers that together do not fit into the second-level cache ("cold"); small ones use one set ("warm"), as they
// find it in training.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <fusegrad/autograd/cuda/check.h>
#include <fusegrad/autograd/tensor.h>
#include <fusegrad/ops/activation_kernels.h>
#include <fusegrad/ops/arithmetic_kernels.h>
#include <fusegrad/ops/dispatch.h>
#include <fusegrad/ops/linear_kernels.h>
#include <fusegrad/ops/mse_loss_kernels.h>
#include <fusegrad/ops/softmax_cross_entropy_kernels.h>
#include <fusegrad/optim/optimizer_kernels.h>

namespace fusegrad {
namespace {

constexpr int kCalls = 20;           // of a graph
constexpr int kRepeats = 15;         // of the graph
constexpr double kCold = 256 << 20;  // bytes that together do not fit into the cache
constexpr double kWarm = 16 << 20;   // bytes below which a call finds its data in the cache in training, too

/// Median time in microseconds of one of the kCalls calls call(0), call(1), ... in a captured graph.
double time_of(const Context& gpu, CUstream_st* stream, const std::function<void(int)>& call) {
  for (int i = 0; i < kCalls; ++i) call(i);  // whatever is set up once, is
  gpu.synchronize();
  FUSEGRAD_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kCalls; ++i) call(i);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  FUSEGRAD_CUDA(cudaStreamEndCapture(stream, &graph));
  FUSEGRAD_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  FUSEGRAD_CUDA(cudaEventCreate(&begin));
  FUSEGRAD_CUDA(cudaEventCreate(&end));
  std::vector<double> times;
  for (int repeat = 0; repeat < kRepeats + 2; ++repeat) {
    FUSEGRAD_CUDA(cudaEventRecord(begin, stream));
    FUSEGRAD_CUDA(cudaGraphLaunch(executable, stream));
    FUSEGRAD_CUDA(cudaEventRecord(end, stream));
    FUSEGRAD_CUDA(cudaEventSynchronize(end));
    float milliseconds = 0;
    FUSEGRAD_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
    if (repeat >= 2) times.push_back(1000.0 * milliseconds / kCalls);
  }
  FUSEGRAD_CUDA(cudaEventDestroy(end));
  FUSEGRAD_CUDA(cudaEventDestroy(begin));
  FUSEGRAD_CUDA(cudaGraphExecDestroy(executable));
  FUSEGRAD_CUDA(cudaGraphDestroy(graph));
  std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
  return times[kRepeats / 2];
}

class Bench {
 public:
  Bench(const Context& gpu, CUstream_st* stream, std::string_view filter)
      : gpu_(gpu), stream_(stream), filter_(filter) {
    // Normal-looking values; zeros would run faster than real data does.
    std::vector<float> values(1 << 20);
    std::uint32_t state = 1;
    for (float& value : values) {
      value = 0;
      for (int i = 0; i < 4; ++i) value += static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-23f;
      value -= 4;
    }
    noise_ = Tensor::from(gpu_, {static_cast<std::int64_t>(values.size())}, values);
  }

  /// Random values of any dtype; bytes of a u8 tensor are random too.
  Tensor random(const Shape& shape, Dtype dtype) {
    Tensor tensor = Tensor::empty(gpu_, shape, dtype);
    const Tensor noise = dtype == Dtype::u8 ? noise_ : noise_.to(dtype);
    auto* to = static_cast<std::byte*>(tensor.mutable_raw());
    for (std::int64_t done = 0; done < tensor.bytes();) {
      const std::int64_t part = std::min(noise.bytes(), tensor.bytes() - done);
      gpu_.state().backend().copy_within(to + done, noise.raw(), static_cast<std::size_t>(part));
      done += part;
    }
    return tensor;
  }

  /// Works for two seconds, since a cold card is faster, and measures the copy bandwidth: of cudaMemcpy or of a kernel
  /// that copies, whichever is faster.
  void warm_up() {
    const std::int64_t bytes = std::int64_t{1} << 30;
    const Tensor from = random({bytes / 4}, Dtype::f32);
    Tensor to = Tensor::empty(gpu_, {bytes / 4}, Dtype::f32);
    const auto memcpy = [&](int) {
      FUSEGRAD_CUDA(cudaMemcpyAsync(to.mutable_raw(), from.raw(), static_cast<std::size_t>(bytes),
                                    cudaMemcpyDeviceToDevice, stream_));
    };
    const auto kernel = [&](int) {
      dispatch(gpu_, [&](const auto& execution) {
        kernels::weighted_sum(execution, {.a = vector_of(from), .y = mutable_vector_of(to)});
      });
    };
    double memcpy_us = 0;
    double kernel_us = 0;
    const auto start = std::chrono::steady_clock::now();
    do {
      memcpy_us = time_of(gpu_, stream_, memcpy);
      kernel_us = time_of(gpu_, stream_, kernel);
    } while (std::chrono::steady_clock::now() - start < std::chrono::seconds(2));
    const auto moved = 2.0 * static_cast<double>(bytes);
    copy_bytes_per_us_ = moved / std::min(memcpy_us, kernel_us);
    fmt::print("{{\"copy\": {:.0f}, \"memcpy_terabytes_per_s\": {:.3f}, \"kernel_terabytes_per_s\": {:.3f}}}\n", moved,
               moved / memcpy_us / 1e6, moved / kernel_us / 1e6);
  }

  /// Times a kernel. make() allocates a set of operands and returns a function that launches the kernel on them.
  template <class Make>
  void run(std::string_view kernel, std::string_view shape, double bytes, Make&& make) {
    if (kernel.find(filter_) == std::string_view::npos) return;
    const bool warm = bytes < kWarm;
    const int sets = warm ? 1 : std::clamp(static_cast<int>(kCold / bytes) + 1, 1, kCalls);
    std::vector<std::function<void()>> calls;
    for (int i = 0; i < sets; ++i) calls.push_back(make());
    const double us = time_of(gpu_, stream_, [&](int i) { calls[static_cast<std::size_t>(i % sets)](); });
    const double copy_us = bytes / copy_bytes_per_us_;
    fmt::print(
        "{{\"kernel\": \"{}\", \"shape\": \"{}\", \"us\": {:.2f}, \"bytes\": {:.0f}, \"copy_us\": {:.2f}, "
        "\"over_copy\": {:.3f}, \"l2\": \"{}\"}}\n",
        kernel, shape, us, bytes, copy_us, us / copy_us, warm ? "warm" : "cold");
    std::fflush(stdout);
  }

  /// A launch of a kernel with arguments that point into tensors, which it keeps alive.
  template <class Kernel, class Args>
  std::function<void()> launch(Kernel kernel, const Args& args, std::vector<Tensor> tensors) {
    return [this, kernel, args, tensors = std::move(tensors)] {
      dispatch(gpu_, [&](const auto& execution) { kernel(execution, args); });
    };
  }

  void copy(std::int64_t bytes);
  void activation_backward(std::int64_t rows, std::int64_t cols, Dtype dtype, Activation activation, bool with_c);
  void activation_forward(std::int64_t rows, std::int64_t cols, Dtype z_dtype, Activation activation);
  void column_sum(std::int64_t rows, std::int64_t cols, Dtype dtype);
  void arithmetic(std::int64_t size, Dtype dtype);
  void softmax_cross_entropy(std::int64_t batch, std::int64_t classes, Dtype dtype);
  void mse_loss(std::int64_t size);
  void optimizers(std::int64_t parameters);

 private:
  Context gpu_;
  CUstream_st* stream_;
  std::string_view filter_;
  Tensor noise_;
  double copy_bytes_per_us_ = 0;
};

std::string shape_of(std::int64_t rows, std::int64_t cols, Dtype dtype) {
  return fmt::format("{} x {} {}", rows, cols, name_of(dtype));
}

double size_in(Dtype dtype) { return static_cast<double>(size_of(dtype)); }

/// What a kernel that only copies takes for so many bytes, read and written: launch and tail included.
void Bench::copy(std::int64_t bytes) {
  const std::int64_t elements = bytes / 2 / 4;
  run("copy", fmt::format("{} bytes", bytes), static_cast<double>(bytes), [&] {
    const Tensor from = random({elements}, Dtype::f32);
    Tensor to = Tensor::empty(gpu_, {elements}, Dtype::f32);
    const kernels::WeightedSum args{.a = vector_of(from), .y = mutable_vector_of(to)};
    return launch([](const auto& e, const auto& x) { kernels::weighted_sum(e, x); }, args, {from, to});
  });
}

void Bench::activation_backward(std::int64_t rows, std::int64_t cols, Dtype dtype, Activation activation, bool with_c) {
  const auto elements = static_cast<double>(rows * cols);
  const bool relu = activation == Activation::relu;
  const double saved = relu ? static_cast<double>(mask_bytes(rows, cols)) : elements * size_in(dtype);
  const std::string name = fmt::format("activation_backward {}{}", name_of(activation), with_c ? " + c" : "");
  run(name, shape_of(rows, cols, dtype), elements * size_in(dtype) * (with_c ? 3 : 2) + saved, [&] {
    Tensor dz = random({rows, cols}, dtype);
    const Tensor c = with_c ? random({rows, cols}, dtype) : Tensor();
    const Tensor saved_tensor = relu ? random({mask_bytes(rows, cols)}, Dtype::u8) : random({rows, cols}, dtype);
    Tensor bias = Tensor::zeros(gpu_, {cols}, accumulation_dtype(dtype));
    kernels::ActivationBackward args{.dy = matrix_of(dz),
                                     .c = matrix_of(c),
                                     .dz = mutable_matrix_of(dz),
                                     .activation = activation,
                                     .bias = mutable_vector_of(bias),
                                     .bias_c = vector_of(bias)};
    if (relu) args.mask = static_cast<const std::uint8_t*>(saved_tensor.raw());
    if (!relu) args.pre_activation = matrix_of(saved_tensor);
    return launch([](const auto& e, const auto& a) { kernels::activation_backward(e, a); }, args,
                  {dz, c, saved_tensor, bias});
  });
}

void Bench::activation_forward(std::int64_t rows, std::int64_t cols, Dtype z_dtype, Activation activation) {
  constexpr Dtype kOut = Dtype::bf16;
  const auto elements = static_cast<double>(rows * cols);
  const bool relu = activation == Activation::relu;
  const double saved = relu ? static_cast<double>(mask_bytes(rows, cols)) : elements * size_in(kOut);
  run(fmt::format("activation_forward {}", name_of(activation)), shape_of(rows, cols, z_dtype),
      elements * (size_in(z_dtype) + size_in(kOut)) + saved, [&] {
        const Tensor z = random({rows, cols}, z_dtype);
        const Tensor b = random({cols}, kOut);
        Tensor y = Tensor::empty(gpu_, {rows, cols}, kOut);
        Tensor kept =
            relu ? Tensor::empty(gpu_, {mask_bytes(rows, cols)}, Dtype::u8) : Tensor::empty(gpu_, {rows, cols}, kOut);
        kernels::ActivationForward args{
            .z = matrix_of(z), .b = vector_of(b), .y = mutable_matrix_of(y), .activation = activation};
        if (relu) args.mask = static_cast<std::uint8_t*>(kept.mutable_raw());
        if (!relu) args.pre_activation = mutable_matrix_of(kept);
        return launch([](const auto& e, const auto& a) { kernels::activation_forward(e, a); }, args, {z, b, y, kept});
      });
}

void Bench::column_sum(std::int64_t rows, std::int64_t cols, Dtype dtype) {
  run("column_sum", shape_of(rows, cols, dtype), static_cast<double>(rows * cols) * size_in(dtype), [&] {
    const Tensor dz = random({rows, cols}, dtype);
    Tensor bias = Tensor::empty(gpu_, {cols}, accumulation_dtype(dtype));
    const kernels::ColumnSum args{.dz = matrix_of(dz), .bias = mutable_vector_of(bias)};
    return launch([](const auto& e, const auto& a) { kernels::column_sum(e, a); }, args, {dz, bias});
  });
}

void Bench::arithmetic(std::int64_t size, Dtype dtype) {
  const std::string shape = fmt::format("{} {}", size, name_of(dtype));
  const double bytes = static_cast<double>(size) * size_in(dtype);
  run("weighted_sum", shape, 3 * bytes, [&] {
    const Tensor a = random({size}, dtype);
    const Tensor b = random({size}, dtype);
    Tensor y = Tensor::empty(gpu_, {size}, dtype);
    const kernels::WeightedSum args{.a = vector_of(a), .b = vector_of(b), .y = mutable_vector_of(y)};
    return launch([](const auto& e, const auto& x) { kernels::weighted_sum(e, x); }, args, {a, b, y});
  });
  run("multiply_add", shape, 4 * bytes, [&] {
    const Tensor a = random({size}, dtype);
    const Tensor b = random({size}, dtype);
    Tensor y = random({size}, dtype);
    const kernels::MultiplyAdd args{.a = vector_of(a), .b = vector_of(b), .c = vector_of(y), .y = mutable_vector_of(y)};
    return launch([](const auto& e, const auto& x) { kernels::multiply_add(e, x); }, args, {a, b, y});
  });
  run("sum", shape, bytes, [&] {
    const Tensor a = random({size}, dtype);
    Tensor y = Tensor::empty(gpu_, {}, accumulation_dtype(dtype));
    const kernels::Sum args{.x = vector_of(a), .y = mutable_vector_of(y)};
    return launch([](const auto& e, const auto& x) { kernels::sum(e, x); }, args, {a, y});
  });
}

void Bench::softmax_cross_entropy(std::int64_t batch, std::int64_t classes, Dtype dtype) {
  const Dtype wide = accumulation_dtype(dtype);
  const double bytes = static_cast<double>(batch * classes) * size_in(dtype);
  const auto make = [&](bool forward) {
    const Tensor logits = random({batch, classes}, dtype);
    const Tensor labels = Tensor::zeros(gpu_, {batch}, Dtype::i32);
    Tensor statistics = Tensor::full(gpu_, {2 * batch + 1}, wide, 1);
    Tensor y = Tensor::full(gpu_, {}, wide, 1);
    Tensor d = Tensor::empty(gpu_, {batch, classes}, dtype);
    const kernels::SoftmaxCrossEntropy loss{.logits = matrix_of(logits), .labels = vector_of(labels)};
    const std::vector<Tensor> kept{logits, labels, statistics, y, d};
    if (forward) {
      const kernels::SoftmaxCrossEntropyForward args{
          .loss = loss, .statistics = mutable_vector_of(statistics), .y = mutable_vector_of(y)};
      return launch([](const auto& e, const auto& x) { kernels::softmax_cross_entropy_forward(e, x); }, args, kept);
    }
    const kernels::SoftmaxCrossEntropyBackward args{
        .loss = loss, .statistics = vector_of(statistics), .dy = vector_of(y), .d = mutable_matrix_of(d)};
    return launch([](const auto& e, const auto& x) { kernels::softmax_cross_entropy_backward(e, x); }, args, kept);
  };
  run("softmax_cross_entropy forward", shape_of(batch, classes, dtype), bytes, [&] { return make(true); });
  run("softmax_cross_entropy backward", shape_of(batch, classes, dtype), 2 * bytes, [&] { return make(false); });
}

void Bench::mse_loss(std::int64_t size) {
  const auto elements = static_cast<double>(size);
  const auto make = [&](bool forward) {
    const Tensor prediction = random({size}, Dtype::bf16);
    const Tensor target = random({size}, Dtype::f32);
    Tensor y = Tensor::full(gpu_, {}, Dtype::f32, 1);
    Tensor d = Tensor::empty(gpu_, {size}, Dtype::bf16);
    const std::vector<Tensor> kept{prediction, target, y, d};
    if (forward) {
      const kernels::MseLossForward args{
          .prediction = vector_of(prediction), .target = vector_of(target), .y = mutable_vector_of(y)};
      return launch([](const auto& e, const auto& x) { kernels::mse_loss_forward(e, x); }, args, kept);
    }
    const kernels::MseLossBackward args{.prediction = vector_of(prediction),
                                        .target = vector_of(target),
                                        .dy = vector_of(y),
                                        .d = mutable_vector_of(d)};
    return launch([](const auto& e, const auto& x) { kernels::mse_loss_backward(e, x); }, args, kept);
  };
  const std::string shape = fmt::format("{} bf16, targets f32", size);
  run("mse_loss forward", shape, 6 * elements, [&] { return make(true); });
  run("mse_loss backward", shape, 8 * elements, [&] { return make(false); });
}

void Bench::optimizers(std::int64_t parameters) {
  const auto elements = static_cast<double>(parameters);
  // Two slots, as of a layer; they and their scalars outlive every launch.
  static std::vector<kernels::FlatSlot> slots;
  static const std::vector<kernels::AdamScalars> adam_scalars(2, {.step_size = 1e-6, .decay = 1e-9});
  static const std::vector<kernels::SgdScalars> sgd_scalars(
      2, {.learning_rate = 1e-6, .velocity_keep = 0.9, .velocity_gain = 1});
  slots = {{0, parameters - 128}, {parameters - 128, 128}};
  const std::string shape = fmt::format("{} f32, values bf16", parameters);
  const auto make = [&](bool adam) {
    const Tensor gradients = random({parameters}, Dtype::f32);
    Tensor masters = random({parameters}, Dtype::f32);
    Tensor values = Tensor::empty(gpu_, {parameters}, Dtype::bf16);
    Tensor m = Tensor::zeros(gpu_, {parameters}, Dtype::f32);
    Tensor v = Tensor::zeros(gpu_, {adam ? parameters : 0}, Dtype::f32);
    const std::vector<Tensor> kept{gradients, masters, values, m, v};
    const kernels::FlatParameters flat{.slots = slots,
                                       .gradients = vector_of(gradients),
                                       .masters = mutable_vector_of(masters),
                                       .values = mutable_vector_of(values)};
    if (adam) {
      const kernels::AdamStep args{.parameters = flat,
                                   .scalars = adam_scalars,
                                   .m = mutable_vector_of(m),
                                   .v = mutable_vector_of(v),
                                   .beta1 = 0.9,
                                   .beta2 = 0.999,
                                   .epsilon = 1e-8};
      return launch([](const auto& e, const auto& x) { kernels::adam_step(e, x); }, args, kept);
    }
    const kernels::SgdStep args{.parameters = flat,
                                .scalars = sgd_scalars,
                                .kind = kernels::Momentum::classic,
                                .velocity = mutable_vector_of(m),
                                .momentum = 0.9};
    return launch([](const auto& e, const auto& x) { kernels::sgd_step(e, x); }, args, kept);
  };
  run("adam_step", shape, 30 * elements, [&] { return make(true); });
  run("sgd_step momentum", shape, 22 * elements, [&] { return make(false); });
}

void run_all(std::string_view filter) {
  cudaStream_t stream = nullptr;
  FUSEGRAD_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  {
    Bench bench(Context::cuda({.stream = stream}), stream, filter);
    bench.warm_up();
    constexpr std::pair<std::int64_t, std::int64_t> kShapes[] = {
        {16384, 4096}, {8192, 16384}, {262144, 64}, {262144, 128}, {4096, 2048}, {1024, 1024}, {128, 512}, {32, 64}};
    for (const auto& [rows, cols] : kShapes) bench.copy(rows * cols * 4);  // as the pass below, but for the mask
    for (const auto& [rows, cols] : kShapes) {
      bench.activation_backward(rows, cols, Dtype::bf16, Activation::relu, false);
    }
    for (const auto& [rows, cols] : kShapes) bench.column_sum(rows, cols, Dtype::bf16);
    bench.activation_backward(16384, 4096, Dtype::f32, Activation::relu, false);
    bench.activation_backward(16384, 4096, Dtype::f16, Activation::relu, false);
    bench.activation_backward(16384, 4096, Dtype::bf16, Activation::relu, true);
    bench.activation_backward(16384, 4096, Dtype::bf16, Activation::gelu_tanh, false);
    bench.activation_backward(16384, 4096, Dtype::bf16, Activation::gelu_erf, false);
    bench.activation_backward(16384, 1001, Dtype::bf16, Activation::relu, false);  // no packets
    bench.column_sum(16384, 4096, Dtype::f32);
    for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{16384, 4096}, {262144, 64}}) {
      bench.activation_forward(rows, cols, Dtype::bf16, Activation::relu);
      bench.activation_forward(rows, cols, Dtype::bf16, Activation::gelu_tanh);
      bench.activation_forward(rows, cols, Dtype::f32, Activation::gelu_erf);
    }
    for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) bench.arithmetic(std::int64_t{1} << 26, dtype);
    bench.softmax_cross_entropy(64, 10, Dtype::f32);
    bench.softmax_cross_entropy(16384, 4096, Dtype::bf16);
    bench.softmax_cross_entropy(65536, 1000, Dtype::bf16);
    bench.softmax_cross_entropy(4096, 50257, Dtype::f32);
    bench.softmax_cross_entropy(4096, 50304, Dtype::bf16);
    bench.mse_loss(262144 * 16);
    bench.mse_loss(16384 * 4096);
    for (const std::int64_t parameters : {128 * 1024, 3 << 20, 67 << 20}) bench.optimizers(parameters);
  }
  FUSEGRAD_CUDA(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace fusegrad

int main(int argc, char** argv) {
  try {
    fusegrad::run_all(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
