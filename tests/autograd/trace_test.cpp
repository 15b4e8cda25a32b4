// Timelines: which events there are, how they nest, and what they say.
#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tests/io/message_of.h"
#include "tests/io/temporary_directory.h"
#include "tests/support/allocations.h"
#include "tests/support/device.h"

#include <fusegrad/autograd/op.h>
#include <fusegrad/fusegrad.h>

namespace fusegrad {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// "forward linear", in the order of their beginnings.
std::vector<std::string> names_of(const std::vector<json>& events) {
  std::vector<std::string> names;
  for (const json& event : events) {
    names.push_back(event.at("cat").get<std::string>() + " " + event.at("name").get<std::string>());
  }
  return names;
}

double begin_of(const json& event) { return event.at("ts").get<double>(); }
double end_of(const json& event) { return begin_of(event) + event.at("dur").get<double>(); }

class TraceTest : public test::DeviceTest {
 protected:
  bool on_gpu() const { return GetParam() == DeviceType::cuda; }

  json written(const Trace& trace) {
    const std::string path = folder_ / "trace.json";
    trace.write(path);
    return json::parse(test::read_file(path));
  }
  /// Events of one row: that of the device, or the host's.
  std::vector<json> events(const Trace& trace, const std::string& row) {
    const json file = written(trace);
    std::map<std::string, int> rows;
    for (const json& event : file.at("traceEvents")) {
      if (event.at("name") == "thread_name") rows[event.at("args").at("name")] = event.at("tid").get<int>();
    }
    std::vector<json> found;
    for (const json& event : file.at("traceEvents")) {
      if (event.at("ph") == "X" && event.at("tid") == rows.at(row)) found.push_back(event);
    }
    return found;
  }
  std::vector<json> events(const Trace& trace) { return events(trace, context().device().to_string()); }

  Var loss(Tape& tape) {
    return mse_loss(net()(tape.input(Tensor::full(context(), {32, 8}, Dtype::f32, 1))),
                    Tensor::zeros(context(), {32, 4}, Dtype::f32));
  }
  void step() {
    Tape tape(context());
    tape.backward(loss(tape));
    optimizer().step();
  }
  const Mlp& net() {
    if (!net_) net_.emplace(context(), MlpOptions{.widths = {8, 16, 4}, .activation = Activation::relu, .seed = 1});
    return *net_;
  }
  AdamW& optimizer() {
    if (!optimizer_) optimizer_.emplace(net().parameters(), AdamWOptions{});
    return *optimizer_;
  }

  test::TemporaryDirectory folder_;

 private:
  std::optional<Mlp> net_;
  std::optional<AdamW> optimizer_;
};
INSTANTIATE_TEST_SUITE_P(Each, TraceTest, test::kDevices, test::device_name);

const std::vector<std::string> kStep{
    "forward linear",           "forward linear",           "forward mse_loss",    "backward mse_loss backward",
    "backward linear backward", "backward linear backward", "optimizer adamw step"};

TEST_P(TraceTest, HasEveryOpBackwardNodeAndOptimizerStepInOrder) {
  step();
  Trace trace(context());
  step();
  EXPECT_EQ(names_of(events(trace)), kStep);
  EXPECT_EQ(trace.size(), static_cast<std::int64_t>(kStep.size()));
}

TEST_P(TraceTest, TimesAreInOrderAndWithinTheRun) {
  step();
  Trace trace(context());
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) step();
  context().synchronize();
  const std::chrono::duration<double, std::micro> run = std::chrono::steady_clock::now() - start;
  const std::vector<json> all = events(trace);
  ASSERT_EQ(all.size(), 3 * kStep.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_GT(all[i].at("dur").get<double>(), on_gpu() ? -1e-9 : 0.0);
    EXPECT_GE(begin_of(all[i]), i == 0 ? 0 : end_of(all[i - 1]) - 1e-6) << i;
  }
  EXPECT_LT(end_of(all.back()) - begin_of(all.front()), run.count() + 1);
}

TEST_P(TraceTest, ADurationIsThatOfTheWork) {
  class SlowRule final : public Rule {
   public:
    void backward(Backward& sweep) override {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      sweep.alias(0, sweep.dy());
    }
  };
  Trace trace(context());
  Tape tape(context());
  const Var x = tape.variable(Tensor::full(context(), {}, Dtype::f32, 1));
  const Var y = [&] {
    Recording op("slow", {x});
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return op.finish<SlowRule>(x.value());
  }();
  tape.backward(y);
  // A GPU's clock is in the order of its work; the host's row has this on both.
  const std::vector<json> all = events(trace, on_gpu() ? "host" : "cpu");
  ASSERT_THAT(names_of(all), ElementsAre("forward slow", "backward slow backward"));
  EXPECT_GE(all[0].at("dur").get<double>(), 10e3);
  EXPECT_GE(all[1].at("dur").get<double>(), 20e3);
  EXPECT_GE(begin_of(all[1]), end_of(all[0]));
}

TEST_P(TraceTest, AGpuHasTheHostsRowToo) {
  if (!on_gpu()) GTEST_SKIP() << "a CPU is its own host";
  Trace trace(context());
  step();
  const std::vector<json> host = events(trace, "host");
  const std::vector<json> device = events(trace);
  ASSERT_EQ(names_of(host), names_of(device));
  // Work is done after it was enqueued: the clocks are aligned to far less than this.
  for (std::size_t i = 0; i < host.size(); ++i) EXPECT_GT(end_of(device[i]), begin_of(host[i]) - 1000);
}

TEST_P(TraceTest, ArgumentsAreTheOutputAndTheNotesOfExplain) {
  Trace trace(context());
  Tape tape(context());
  tape.backward(loss(tape));
  const std::vector<json> all = events(trace);
  ASSERT_EQ(all.size(), 6U);
  EXPECT_EQ(all[0].at("args").at("shape"), json({32, 16}));
  EXPECT_EQ(all[0].at("args").at("dtype"), "f32");
  EXPECT_EQ(all[2].at("args").at("shape"), json::array());
  std::vector<json> nodes;
  const json explained = json::parse(tape.explain(ExplainFormat::json));
  for (const json& node : explained.at("nodes")) {
    if (node.at("kind") == "op") nodes.push_back(node);
  }
  ASSERT_EQ(nodes.size(), 3U);
  const auto notes_of = [](const json& event) { return event.at("args").value("notes", json::array()); };
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(notes_of(all[i]), nodes[i].at("forward"));
    json expected = nodes[2 - i].at("backward");
    if (nodes[2 - i].at("absorb") == "absorbed") {
      expected.push_back("activation gradient absorbed by the consumer, with the bias gradient");
    }
    EXPECT_EQ(notes_of(all[3 + i]), expected);
    EXPECT_EQ(all[3 + i].at("args").at("shape"), nodes[2 - i].at("shape"));
  }
  EXPECT_THAT(all.back().dump(), HasSubstr("absorbed by the consumer"));
}

TEST_P(TraceTest, StopsAndGoesOn) {
  Trace first(context());
  step();
  first.stop();
  step();
  EXPECT_EQ(names_of(events(first)), kStep);
  {
    Trace second(context());
    step();
    EXPECT_EQ(names_of(events(second)), kStep);
    step();
    EXPECT_EQ(events(second).size(), 2 * kStep.size()) << "a trace may be written while it records";
  }
  Trace third(context());
  EXPECT_THAT(events(third), IsEmpty());
  EXPECT_EQ(names_of(events(first)), kStep);
}

TEST_P(TraceTest, IsOneAContext) {
  Trace trace(context());
  EXPECT_THAT(test::message_of<StateError>([&] { Trace second(context()); }), HasSubstr("another trace"));
  const Context other = test::context_on(GetParam());
  const Trace of_other(other);
  step();
  EXPECT_EQ(names_of(events(trace)), kStep);
  EXPECT_EQ(of_other.size(), 0);

  Trace moved = std::move(trace);
  EXPECT_THROW(trace.size(), StateError);  // NOLINT(bugprone-use-after-move)
  step();
  EXPECT_EQ(moved.size(), static_cast<std::int64_t>(2 * kStep.size()));
  moved = Trace(other.device().type == DeviceType::cpu ? Context::cpu() : Context::cuda());
  step();
  EXPECT_EQ(moved.size(), 0);
  EXPECT_NO_THROW(Trace{context()}) << "the one that was assigned to has stopped";
}

TEST_P(TraceTest, EventsEndWhereAnErrorLeaves) {
  class FaultyRule final : public Rule {
   public:
    void backward(Backward&) override { throw std::runtime_error("faulty"); }
  };
  Trace trace(context());
  {
    Tape tape(context());
    const Var x = tape.variable(Tensor::full(context(), {}, Dtype::f32, 1));
    const Var y = Recording("faulty", {x}).finish<FaultyRule>(x.value());
    EXPECT_THROW(linear(x, x), ShapeError);
    EXPECT_THROW(tape.backward(y), std::runtime_error);
  }
  step();
  std::vector<std::string> expected{"forward faulty", "forward linear", "backward faulty backward"};
  expected.insert(expected.end(), kStep.begin(), kStep.end());
  EXPECT_EQ(names_of(events(trace)), expected);
}

TEST_P(TraceTest, MayEndOrBeginInAHook) {
  std::optional<Trace> trace(context());
  Tape tape(context());
  const Var h = net()(tape.input(Tensor::full(context(), {32, 8}, Dtype::f32, 1)));
  tape.on_gradient(h, [&](const Tensor&) { trace.reset(); });
  tape.backward(mean(h));
  EXPECT_NO_THROW(trace.emplace(context()));
  EXPECT_EQ(trace->size(), 0);
}

TEST_P(TraceTest, NamesThatAreNoTextGiveValidJson) {
  class NoRule final : public Rule {
   public:
    void backward(Backward& sweep) override { sweep.alias(0, sweep.dy()); }
  };
  Trace trace(context());
  Tape tape(context());
  const Var x = tape.variable(Tensor::full(context(), {}, Dtype::f32, 1));
  Recording(std::string("\xff \"quoted\"\n"), {x}).finish<NoRule>(x.value());
  tape.reset();
  EXPECT_THAT(events(trace)[0].at("name").get<std::string>(), HasSubstr(" \"quoted\"\n"));
}

TEST_P(TraceTest, NamesTheFileThatCannotBeWritten) {
  const Trace trace(context());
  EXPECT_THAT(test::message_of<IoError>([&] { trace.write("/nowhere/trace.json"); }),
              HasSubstr("trace: cannot create a temporary for \"/nowhere/trace.json"));
}

TEST_P(TraceTest, ACallOfAStepIsOneEvent) {
  const auto function = [&](Tape& tape, const Tensor& x) {
    const Var value = mse_loss(net()(tape.input(x)), Tensor::full(context(), {32, 4}, Dtype::f32, 1));
    tape.backward(value);
    optimizer().step();
    return value;
  };
  const Tensor x = Tensor::full(context(), {32, 8}, Dtype::f32, 1);
  Step captured(context(), function);
  Trace trace(context());
  for (int i = 0; i < 3; ++i) captured(x);
  const std::vector<json> all = events(trace);
  if (on_gpu()) {
    const std::string replay = "step step (graph of " + std::to_string(captured.info().graph_nodes) + " nodes)";
    EXPECT_THAT(names_of(all), ElementsAre("step step (first run)", "step step (capture)", replay, replay));
    return;
  }
  // A CPU runs the function each time: its ops are inside the call.
  ASSERT_EQ(all.size(), 3 * (1 + kStep.size()));
  EXPECT_EQ(names_of(all)[0], "step step");
  for (std::size_t i = 1; i <= kStep.size(); ++i) {
    EXPECT_EQ(names_of(all)[i], kStep[i - 1]);
    EXPECT_LE(end_of(all[i]), end_of(all[0]) + 1e-6);
  }
}

TEST_P(TraceTest, CannotBeginInsideAStepsFunction) {
  Step captured(context(), [&](Tape& tape) {
    EXPECT_THAT(test::message_of<StateError>([&] { Trace trace(context()); }), HasSubstr("inside a step function"));
    return loss(tape);
  });
  captured();
}

TEST_P(TraceTest, CannotBeWrittenInsideAStepsFunctionOnAGpu) {
  Trace trace(context());
  Step captured(context(), [&](Tape& tape) {
    if (on_gpu()) {
      EXPECT_THAT(test::message_of<StateError>([&] { trace.write(folder_ / "trace.json"); }),
                  HasSubstr("a trace was written inside the step function"));
    } else {
      EXPECT_NO_THROW(trace.write(folder_ / "trace.json"));
    }
    return loss(tape);
  });
  captured();
}

TEST_P(TraceTest, WithoutOneAStepAllocatesNothing) {
  { const Trace trace(context()); }
  const Tensor x = Tensor::full(context(), {32, 8}, Dtype::f32, 1);
  const Tensor target = Tensor::zeros(context(), {32, 4}, Dtype::f32);
  const auto run = [&] {
    Tape tape(context());
    tape.backward(mse_loss(net()(tape.input(x)), target));
    optimizer().step();
  };
  for (int i = 0; i < 3; ++i) run();
  const std::int64_t before = test::allocations();
  for (int i = 0; i < 3; ++i) run();
  EXPECT_EQ(test::allocations() - before, 0);
}

}  // namespace
}  // namespace fusegrad
