// Trains a classifier of handwritten digits and prints its accuracy on rows it has not seen.
//
//   train_digits                              the shipped data: 1797 digits of 8 x 8 pixels
//   train_digits --idx-dir mnist --batch 128  MNIST from its four IDX files
//   train_digits --captured                   on a GPU: steps as captured graphs
//   train_digits --help                       all options
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <fusegrad/fusegrad.h>

namespace fg = fusegrad;

namespace {

struct Options {
  std::string device = "best";
  int threads = 0;  // 0: all
  int epochs = 40;
  std::int64_t batch = 64;
  std::vector<std::int64_t> hidden{256, 256};
  fg::Dtype dtype = fg::Dtype::f32;
  fg::MathMode math = fg::MathMode::fp32;
  double learning_rate = 1e-3;
  std::uint64_t seed = 1;
  std::string data = FUSEGRAD_DIGITS_CSV;
  std::string idx_dir;
  std::string save;
  std::string trace;
  bool json = false;
  bool explain = false;
  bool captured = false;
};

/// A check of CLI11's: the number is above zero.
std::string above_zero(const std::string& text) {
  double value = 0;
  return CLI::detail::lexical_cast(text, value) && value > 0 ? "" : "must be a number above 0, got \"" + text + "\"";
}

/// A check of CLI11's: a file can be written there. Training may take long; better to hear of it before.
std::string can_be_written(const std::string& text) {
  const std::filesystem::path path(text);
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  std::error_code error;
  const std::filesystem::file_status target = status(path, error);
  const bool taken = exists(target) && !is_regular_file(target);
  if (!path.has_filename() || taken) return "\"" + text + "\" is no regular file";
  if (access((folder / ".").c_str(), W_OK | X_OK) == 0) return "";
  return "cannot write to the folder \"" + folder.string() + "\": " + std::generic_category().message(errno);
}

/// An option that takes one of `names`.
template <class T>
void add_choice(CLI::App& app, const std::string& option, T& value, const std::map<std::string, T>& names,
                const std::string& description) {
  const auto take = [&value, names](const std::string& text) { value = names.at(text); };
  app.add_option_function<std::string>(option, take, description)->check(CLI::IsMember(names));
}

/// Fills `options` from the command line; the exit code if there is nothing more to do.
std::optional<int> parse(int argc, char** argv, Options& options) {
  CLI::App app("Trains a classifier of handwritten digits with fused forward and backward.");
  app.add_option("--device", options.device, "best, cpu or cuda")->check(CLI::IsMember({"best", "cpu", "cuda"}));
  app.add_option("--threads", options.threads, "CPU threads; results do not depend on it (default: all cores)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--epochs", options.epochs, "passes over the training rows")->check(CLI::Range(1, 1000000));
  app.add_option("--batch", options.batch, "rows a step")->check(above_zero);
  app.add_option("--hidden", options.hidden, "widths of the hidden layers, for example 256,256")
      ->delimiter(',')
      ->check(above_zero);
  using fg::Dtype, fg::MathMode;
  add_choice<Dtype>(app, "--dtype", options.dtype,
                    {{"f64", Dtype::f64}, {"f32", Dtype::f32}, {"bf16", Dtype::bf16}, {"f16", Dtype::f16}},
                    "of weights and products");
  add_choice<MathMode>(app, "--math", options.math, {{"fp32", MathMode::fp32}, {"tf32", MathMode::tf32}},
                       "fp32, or tf32 for a GPU's faster and coarser products of f32");
  app.add_option("--learning-rate", options.learning_rate, "of AdamW")->check(above_zero);
  app.add_option("--seed", options.seed, "of the initial weights and of the order of the rows");
  const auto data = app.add_option("--data", options.data, "a CSV file: pixels, then the label, in each row");
  app.add_option("--idx-dir", options.idx_dir, "a folder with the four MNIST files, plain or gzip")->excludes(data);
  app.add_option("--save", options.save, "write the trained weights to this safetensors file")->check(can_be_written);
  app.add_option("--trace", options.trace, "write a timeline of the first 100 steps to this file, for ui.perfetto.dev")
      ->check(can_be_written);
  const auto json = app.add_flag("--json", options.json, "print one JSON object instead of text");
  const auto explain =
      app.add_flag("--explain", options.explain, "print how each part of the first step ran")->excludes(json);
  app.add_flag("--captured", options.captured, "on a GPU, run each step as one captured graph")->excludes(explain);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  return std::nullopt;
}

fg::Context make_context(const Options& options) {
  fg::ContextOptions context;
  context.math = options.math;
  if (options.threads != 0) context.threads = options.threads;
  if (options.device == "cpu") return fg::Context::cpu(context);
  if (options.device == "cuda") return fg::Context::cuda(context);
  return fg::Context::best(context);
}

/// The library that multiplies: "eigen", "onednn" or "cublaslt".
std::string_view products_of(const fg::Context& context) {
  return context.device().type == fg::DeviceType::cpu ? fg::name_of(context.products()) : "cublaslt";
}

/// Training and test rows. Of a CSV file, every fifth row, starting with the first, is for the test.
fg::DatasetSplit load(const Options& options) {
  if (!options.idx_dir.empty()) {
    return {.train = fg::read_idx_directory(options.idx_dir, fg::IdxPart::train).scaled(255),
            .test = fg::read_idx_directory(options.idx_dir, fg::IdxPart::test).scaled(255)};
  }
  // The shipped digits have pixels from 0 to 16.
  return fg::read_csv(options.data, {.label_column = -1}).scaled(16).split_every(5);
}

/// Number of rows whose largest logit is that of their label.
std::int64_t count_correct(const fg::Tensor& logits, const fg::Tensor& labels) {
  const std::vector<float> z = logits.to(fg::Dtype::f32).to_vector<float>();
  const std::vector<std::int32_t> label = labels.to_vector<std::int32_t>();
  const auto classes = static_cast<std::size_t>(logits.shape()[1]);
  std::int64_t correct = 0;
  for (std::size_t row = 0; row < label.size(); ++row) {
    const auto begin = z.begin() + static_cast<std::ptrdiff_t>(row * classes);
    correct += std::max_element(begin, begin + static_cast<std::ptrdiff_t>(classes)) - begin == label[row];
  }
  return correct;
}

std::int64_t test(const fg::Context& context, const fg::Mlp& net, const fg::Dataset& rows, const Options& options) {
  std::int64_t correct = 0;
  fg::DataLoader batches(context, rows, {.batch_size = 1024, .dtype = options.dtype});
  for (auto [x, label] : batches) {
    fg::Tape tape(context, fg::Mode::inference);
    correct += count_correct(net(tape.input(x)).value(), label);
  }
  return correct;
}

/// Small gradients of f16 networks would flush to zero; a power of two moves them up without rounding.
fg::BackwardOptions backward_options(const Options& options) {
  return {.loss_scale = options.dtype == fg::Dtype::f16 ? 1024.0 : 1.0};
}

/// A timeline of the first steps, if the options want one.
class Timeline {
 public:
  Timeline(const fg::Context& context, const Options& options) : path_(options.trace) {
    if (!path_.empty()) trace_.emplace(context);
  }
  void end_step() {
    constexpr int kSteps = 100;
    if (trace_ && ++steps_ == kSteps) trace_->stop();
  }
  void write() const {
    if (trace_) trace_->write(path_);
  }

 private:
  std::string path_;
  std::optional<fg::Trace> trace_;
  int steps_ = 0;
};

/// The same as train() with steps that a GPU captures and repeats.
double train_captured(const fg::Context& context, const fg::Mlp& net, const fg::Dataset& rows, const Options& options) {
  // A graph has no one to ask whether the gradients are finite.
  fg::AdamW optimizer(net.parameters(), {.learning_rate = options.learning_rate, .skip_nonfinite = false});
  fg::DataLoader batches(context, rows,
                         {.batch_size = options.batch, .shuffle_seed = options.seed, .dtype = options.dtype});
  fg::Step step(context, [&](fg::Tape& tape, const fg::Tensor& x, const fg::Tensor& label) {
    fg::Var loss = fg::softmax_cross_entropy(net(tape.input(x)), label);
    tape.backward(loss, backward_options(options));
    optimizer.step();
    return loss;
  });
  constexpr std::size_t kBehind = 100;  // losses are read so many calls later: the GPU waits for nobody
  Timeline timeline(context, options);
  double loss_sum = 0;
  for (int epoch = 1; epoch <= options.epochs; ++epoch) {
    const std::int64_t first = step.info().calls;
    std::vector<std::int64_t> sizes;
    const auto add_loss = [&](std::size_t i) {
      loss_sum += step.loss(first + static_cast<std::int64_t>(i)) * static_cast<double>(sizes[i]);
    };
    loss_sum = 0;
    for (auto [x, label] : batches) {
      step(x, label);
      timeline.end_step();
      sizes.push_back(label.size());
      if (sizes.size() > kBehind) add_loss(sizes.size() - 1 - kBehind);
    }
    for (std::size_t i = sizes.size() - std::min(sizes.size(), kBehind); i < sizes.size(); ++i) add_loss(i);
  }
  timeline.write();
  return loss_sum / static_cast<double>(rows.size());
}

/// Trains and returns the mean loss of the last epoch.
double train(const fg::Context& context, const fg::Mlp& net, const fg::Dataset& rows, const Options& options) {
  fg::AdamW optimizer(net.parameters(), {.learning_rate = options.learning_rate});
  fg::DataLoader batches(context, rows,
                         {.batch_size = options.batch, .shuffle_seed = options.seed, .dtype = options.dtype});
  const bool progress = isatty(STDOUT_FILENO) != 0 && !options.json;
  bool explain = options.explain;
  Timeline timeline(context, options);
  double mean_loss = 0;
  for (int epoch = 1; epoch <= options.epochs; ++epoch) {
    const auto start = std::chrono::steady_clock::now();
    double loss_sum = 0;
    std::int64_t correct = 0;
    for (auto [x, label] : batches) {
      fg::Tape tape(context);
      const fg::Var logits = net(tape.input(x));
      if (progress) correct += count_correct(logits.value(), label);
      const fg::Var loss = fg::softmax_cross_entropy(logits, label);
      tape.backward(loss, backward_options(options));
      optimizer.step();
      if (std::exchange(explain, false)) fmt::print("{}", tape.explain());
      timeline.end_step();
      loss_sum += loss.item() * static_cast<double>(label.size());
    }
    mean_loss = loss_sum / static_cast<double>(rows.size());
    if (!progress) continue;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    fmt::print("\repoch {:>3}/{}  loss {:.5f}  accuracy {:.4f}  {:.0f} samples/s ", epoch, options.epochs, mean_loss,
               static_cast<double>(correct) / static_cast<double>(rows.size()),
               static_cast<double>(rows.size()) / seconds.count());
    std::fflush(stdout);
  }
  if (progress) fmt::print("\n");
  timeline.write();
  return mean_loss;
}

void run(const Options& options) {
  const fg::Context context = make_context(options);
  const fg::DatasetSplit digits = load(options);
  std::vector<std::int64_t> widths{digits.train.feature_count()};
  widths.insert(widths.end(), options.hidden.begin(), options.hidden.end());
  widths.push_back(digits.train.classes());
  const fg::Mlp net(
      context, {.widths = widths, .activation = fg::Activation::relu, .dtype = options.dtype, .seed = options.seed});
  if (!options.json) {
    fmt::print("training {} values on {} rows, {}, {} thread(s), {}\n", net.parameters().value_count(),
               digits.train.size(), context.device().to_string(), context.threads(), fg::name_of(options.dtype));
  }
  const auto start = std::chrono::steady_clock::now();
  const double final_loss = options.captured ? train_captured(context, net, digits.train, options)
                                             : train(context, net, digits.train, options);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const std::int64_t correct = test(context, net, digits.test, options);
  const double accuracy = static_cast<double>(correct) / static_cast<double>(digits.test.size());
  if (!options.save.empty()) fg::save_weights(options.save, net.parameters());
  if (options.json) {
    const nlohmann::ordered_json result{{"test_accuracy", accuracy},
                                        {"test_correct", correct},
                                        {"test_total", digits.test.size()},
                                        {"final_loss", final_loss},
                                        {"epochs", options.epochs},
                                        {"seconds", seconds.count()},
                                        {"device", context.device().to_string()},
                                        {"threads", context.threads()},
                                        {"products", products_of(context)},
                                        {"dtype", fg::name_of(options.dtype)},
                                        {"seed", options.seed}};
    fmt::print("{}\n", result.dump());
    return;
  }
  fmt::print("trained {} epochs in {:.2f} s, final loss {:.17g}\n", options.epochs, seconds.count(), final_loss);
  fmt::print("test accuracy {:.4f}\n", accuracy);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Options options;
    if (const std::optional<int> code = parse(argc, argv, options)) return *code;
    run(options);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_digits: %s\n", error.what());
    return 1;
  }
}
