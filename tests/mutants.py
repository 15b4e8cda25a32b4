#!/usr/bin/env python3
"""Breaks the library in one small way at a time and demands that the tests notice.

  tests/mutants.py               all mutants: a table, and a status that is not zero if one survives
  tests/mutants.py bias adam     those whose name contains one of the words
  tests/mutants.py --list        what there is

Each mutant is a few edits to one file and the tests that must then fail. It is applied to a copy of the tree in
build/mutants, of which only what depends on that file is built again: with ccache, half a minute each. A crash or a hang
is no failure of a test, and counts as survival; so does a test that fails without the mutant.

A mutant whose text is no longer in its file is an error, which tests/structure finds without building anything. When
you write a test for a mistake that is easily made, add the mistake here.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "build" / "mutants"
SECONDS_A_RUN = 300
# What an edit leaves unused is no error.
PROLOGUE = "".join(f'#pragma GCC diagnostic ignored "-Wunused-{kind}"\n'
                   for kind in ("variable", "parameter", "but-set-variable", "function"))


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    edits: tuple  # of (text that is in the file once, what replaces it)
    tests: tuple  # "Suite.Case", at least one of which must fail


MUTANTS = (
    # Activations and masks.
    Mutant("relu closed at zero", "ops/cpu/mask_rows.h",
           (("""      const Acc value = z[j] + b[j];
      y[j] = value < 0 ? Acc{0} : value;
      open[j] = value >= 0 ? 1 : 0;""",
             """      const Acc value = z[j] + b[j];
      y[j] = value < 0 ? Acc{0} : value;
      open[j] = value > 0 ? 1 : 0;"""),),
           ("LinearTest.ReluIsOpenAtExactlyZero",)),
    Mutant("relu that hides NaN", "ops/cpu/mask_rows.h",
           (("""      const Acc value = z[j];
      y[j] = value < 0 ? Acc{0} : value;""",
             """      const Acc value = z[j];
      y[j] = value > 0 ? value : Acc{0};"""),),
           ("ReluKernelsTest.A02_SpecialValuesInEveryColumn",)),
    Mutant("mask bits from the highest", "ops/cpu/mask_rows.h",
           (("word * 0x0102040810204080u >> 56", "word * 0x8040201008040201u >> 56"),
            ("& 0x8040201008040201u;", "& 0x0102040810204080u;")),
           ("LinearMaskTest.MatchesTheReferenceWhateverTheBufferHeld",)),
    Mutant("multiplying instead of selecting", "ops/cpu/mask_rows.h",
           (("open[j] != 0 ? values[j] : Acc{0}", "values[j] * static_cast<Acc>(open[j] != 0)"),),
           ("LinearMaskTest.SelectsInsteadOfMultiplying",)),
    Mutant("gelu slope without the 3", "ops/activation_functions.h",
           (("0.21406444881780074633", "0.071354816272600248776"),),
           ("GeluKernelsTest.C01_TableInF64", "GeluKernelsTest.ErrorsAreAsStated")),
    # Linear forward and backward.
    Mutant("bias dropped", "ops/cpu/linear_forward.cpp",
           (("b.data ? kernels::load(b.data, b.dtype, 0, b.size, shared.take<Acc>(b.size)) : nullptr", "nullptr"),),
           ("LinearTest.BiasIsAddedOnceAndPerFeature",)),
    Mutant("bias gradient without the last row", "ops/cpu/packing.h",
           (("    for (std::int64_t p = 0; p < depth; ++p)\n", "    for (std::int64_t p = 0; p + 1 < depth; ++p)\n"),),
           ("LinearTest.BiasGradientOfManyEqualOnesIsExact", "LinearKernelsTest.WeightGradientIsExactOnIntegers")),
    Mutant("column sum without the last row", "ops/cpu/column_sum.cpp",
           (("std::min((block + 1) * block_rows, rows)", "std::min((block + 1) * block_rows, rows - 1)"),),
           ("LinearTest.BiasGradientSumsTheBatch",)),
    Mutant("bias gradient without the last tile", "ops/cpu/linear_input_gradient.cpp",
           (("finish_column_sums(partial, product.row_tiles(),",
             "finish_column_sums(partial, std::max<std::int64_t>(1, product.row_tiles() - 1),"),),
           ("LinearKernelsTest.InputGradientIsExactOnIntegers", "LinearGridTest.TwoLayersAbsorbExactly")),
    Mutant("bias gradient before the mask", "ops/cpu/linear_input_gradient.cpp",
           (("      gradient_.apply(i, col, n, row, out, strip.spare);\n      if (sums) add_row(sums, out, n, sums);\n",
             "      if (sums) add_row(sums, row, n, sums);\n      gradient_.apply(i, col, n, row, out, strip.spare);\n"),),
           ("LinearGridTest.TwoLayersAbsorbExactly",)),
    Mutant("absorbed without the mask", "ops/cpu/linear_input_gradient.cpp",
           (("gradient_.apply(i, col, n, row, out, strip.spare)", "add_row<Acc>(row, nullptr, n, out)"),),
           ("LinearGridTest.TwoLayersAbsorbExactly",)),
    Mutant("dx without what was contributed before", "ops/cpu/linear_input_gradient.cpp",
           (("if (c_.data) add_row(", "if (false) add_row("),),
           ("LinearTest.FanOutThroughTwoHeads", "LinearTest.FanOutSumsBeforeTheMask")),
    Mutant("dw without what was contributed before", "ops/cpu/linear_weight_gradient.cpp",
           (("add_row(row, c.data ? kernels::load(c.data, c.dtype, i * c.ld + col, n, spare) : nullptr, n, out)",
             "add_row<Acc>(row, nullptr, n, out)"),),
           ("LinearTest.AccumulatesIntoExistingGradients", "LinearTest.SharedLayerAddsItsGradients")),
    Mutant("dw transposed where it is square", "ops/linear.cpp",
           ((".dz = matrix_of(dz), .x = matrix_of(x_), .c",
             ".dz = matrix_of(dz.shape() == x_.shape() ? x_ : dz), .x = matrix_of(dz.shape() == x_.shape() ? dz : x_), .c"),),
           ("LinearTest.AccumulatesIntoExistingGradients", "LinearTest.SharedLayerAddsItsGradients",
            "LinearTest.ReluIsOpenAtExactlyZero", "LinearGridTest.ExactFillsHaveToleranceZero")),
    # The engine.
    Mutant("edges counted once a consumer", "autograd/sweep.cpp",
           (("++slots[input].edges;", "slots[input].edges = 1;"),),
           ("SweepTest.OnlyTheLastContributionIsOfferedTheActivationGradient",
            "LinearTest.ResidualJoinOfAHiddenValueIsAbsorbedByTheLastConsumer")),
    Mutant("edges that do not lead to the root counted", "autograd/sweep.cpp",
           (("    if (!slots[index].reached) continue;\n    for (const std::uint32_t input",
             "    for (const std::uint32_t input"),),
           ("SweepTest.OnlyTheLastContributionIsOfferedTheActivationGradient",)),
    Mutant("absorbed by the first of two consumers", "autograd/sweep.cpp",
           (("  if (slots[index].edges != 1) return AbsorbOutcome::none;", "  "),),
           ("SweepTest.OnlyTheLastContributionIsOfferedTheActivationGradient",)),
    Mutant("an alias written to", "autograd/sweep.cpp",
           (("if (current.unique() && ", "if (current.defined() && "),),
           ("SweepTest.AnAliasedContributionIsAddedToElsewhere", "SweepTest.ASeedIsNeverWritten")),
    Mutant("a second contribution in the place of the first", "autograd/sweep.cpp",
           (("nodes[producer].kind != NodeKind::parameter && !slots[producer].gradient.defined()",
             "nodes[producer].kind != NodeKind::parameter"),),
           ("ArithmeticTest.TheSameInputTwiceCountsTwice", "ArithmeticTest.AValueUsedTwiceGetsBothContributions")),
    Mutant("added to an empty gradient", "autograd/sweep.cpp",
           (("slot.gradient_valid ? slot.gradient : Tensor()", "slot.gradient"),),
           ("ParameterGradientTest.BackwardWritesAnEmptyGradientAndAddsToAValidOne",)),
    Mutant("half a gradient left after an error", "autograd/sweep.cpp",
           (("slot_of(nodes[index]).gradient_valid = false", "slot_of(nodes[index]).gradient_valid = true"),),
           ("GradientHookTest.AThrowingHookLeavesNoHalfGradients",)),
    # Sums.
    Mutant("column sums cut by the number of threads", "ops/cpu/column_sum.cpp",
           (("const std::int64_t block_rows = std::max<std::int64_t>(1, kElementsATask / std::max<std::int64_t>(1, cols));",
             "const std::int64_t block_rows = std::max<std::int64_t>(1, ceil_div(rows, pool.threads()));"),),
           ("LinearKernelsTest.ResultsDoNotDependOnTheNumberOfThreads",)),
    Mutant("sums cut by the number of threads", "ops/cpu/reduce.h",
           (("  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) sum.add(sums[chunk]);\n",
             "  for (int t = 0; t < pool.threads(); ++t) {\n"
             "    double part = 0;\n"
             "    for (std::int64_t chunk = t; chunk < chunks; chunk += pool.threads()) part += sums[chunk];\n"
             "    sum.add(part);\n"
             "  }\n"),),
           ("ReductionTest.AnyNumberOfThreadsGivesTheSameBits", "ArithmeticKernelTest.AnyNumberOfThreadsGivesTheSameBits")),
    # Losses.
    Mutant("mean over ignored rows too", "ops/cpu/softmax_cross_entropy.cpp",
           (("loss.reduction == Reduction::mean ? total_weight.value() : 1",
             "loss.reduction == Reduction::mean ? static_cast<double>(batch) : 1"),),
           ("SoftmaxCrossEntropyTest.IgnoredRowsDoNotCount",)),
    Mutant("label smoothing of the target alone", "ops/cpu/softmax_cross_entropy.cpp",
           (("result.loss += share * (", "result.loss += 0 * ("),),
           ("SoftmaxCrossEntropyTest.LabelSmoothing",)),
    Mutant("smoothing of ignored rows", "ops/cpu/softmax_cross_entropy.cpp",
           (("const double weight = label == loss.ignore_index ? 0 : hit +", "const double weight = hit +"),),
           ("SoftmaxCrossEntropyTest.LabelSmoothingDoesNotSeeIgnoredRows",)),
    Mutant("a gradient for ignored rows", "ops/cpu/softmax_cross_entropy.cpp",
           (("label == loss.ignore_index ? 0 : (1 - loss.label_smoothing) * weight_of(loss, label);",
             "1 - loss.label_smoothing;"),
            ("const double weight = label == loss.ignore_index ? 0 : hit +", "const double weight = hit +")),
           ("SoftmaxCrossEntropyTest.IgnoredRowsDoNotCount",)),
    Mutant("no maximum subtracted", "ops/cpu/softmax_cross_entropy.cpp",
           (("{ m = larger(m, largest(block)); });", "{ m = larger(m, largest(block)); });\n  m = 0;"),),
           ("SoftmaxCrossEntropyTest.SubtractsEachRowsOwnMaximum", "SoftmaxCrossEntropyTest.LogitsFarApart")),
    # Optimizers.
    Mutant("adam without bias correction", "optim/update_functions.h",
           (("learning_rate / one_minus_power(beta1, t)", "learning_rate"),),
           ("AdamTest.CorrectsTheBiasByDefault",)),
    Mutant("adam with epsilon inside the root", "optim/update_functions.h",
           (("root_factor * std::sqrt(v) + epsilon", "root_factor * std::sqrt(v + epsilon)"),),
           ("AdamTest.AddsEpsilonAfterTheBiasCorrection",)),
    Mutant("adamw with coupled decay", "optim/adam.cpp",
           (("WeightDecay::coupled ? 0 : constants_.weight_decay", "WeightDecay::coupled ? 0 : 0"),
            ("WeightDecay::coupled ? constants_.weight_decay : 0", "WeightDecay::coupled ? 0 : constants_.weight_decay")),
           ("AdamTest.DecaysCoupledInAdamAndDecoupledInAdamW",)),
    Mutant("momentum with a damped first step", "optim/update_functions.h",
           (("first ? 1 : 1 - dampening", "1 - dampening"),),
           ("SgdTest.DampensAllButTheFirstStep",)),
    Mutant("loss scale not divided out", "optim/optimizer.cpp",
           (("gradient_factors_.push_back(1 / slot.gradient_scale)", "gradient_factors_.push_back(1)"),),
           ("OptimizerTest.DividesByTheLossScaleExactly",)),
    Mutant("gradients not emptied by a step", "optim/optimizer.cpp",
           (("    parameters_.clear_gradients();\n    return report;", "    return report;"),),
           ("OptimizerTest.MinimisesWhatBackwardDifferentiates", "OptimizerTest.SkipsParametersWithoutAGradient",
            "OptimizerTest.DoesNothingWhereThereIsNothingToDo")),
    # Timelines and reports.
    Mutant("trace events that never end", "autograd/profile.h",
           (("    if (log_ || annotated_) [[unlikely]]\n      close();", ""),),
           ("TraceTest.HasEveryOpBackwardNodeAndOptimizerStepInOrder", "TraceTest.EventsEndWhereAnErrorLeaves")),
    Mutant("trace events that end before the work", "autograd/sweep.cpp",
           (("profile(ProfilePhase::backward, node.op);\n  node.rule->backward(turn);",
             "profile(ProfilePhase::backward, node.op);\n  range = {};\n  node.rule->backward(turn);"),),
           ("TraceTest.ADurationIsThatOfTheWork",)),
    Mutant("trace that goes on after its end", "autograd/trace.cpp",
           (("if (context_.state().trace() == log_) context_.state().set_trace(nullptr);", ""),),
           ("TraceTest.StopsAndGoesOn",)),
    Mutant("saved tensors counted by each op", "autograd/tape_memory.cpp",
           (("  distinct.erase(std::unique(distinct.begin(), distinct.end(), same), distinct.end());\n", ""),),
           ("TapeMemoryTest.CountsASavedTensorOnce",)),
    Mutant("gradient states of a step not compared", "autograd/step_run.cpp",
           (("require<StateError>(slot.gradient_valid == valid,", "require<StateError>(slot.gradient_valid || true,"),),
           ("StepRefusalTest.RefusesGradientsThatStay",)),
    # Files and data.
    Mutant("last partial batch dropped", "io/data_loader.cpp",
           (("full + (rest && !options_.drop_last ? 1 : 0)", "full"),),
           ("DataLoaderTest.KeepsOrDropsTheLastPartialBatch",)),
    Mutant("last row of a CSV file without a line end dropped", "io/csv_rows.cpp",
           (("  spans_.push_back({field, cursor_ - begin_});\n  return true;",
             "  spans_.push_back({field, cursor_ - begin_});\n  return false;"),),
           ("CsvTest.UnderstandsEveryLineEnd",)),
    Mutant("safetensors offsets from the start of the file", "io/weights.cpp",
           (("std::int64_t end = 0;\n  for (const Parameter", "std::int64_t end = kLengthBytes;\n  for (const Parameter"),),
           ("WeightsTest.HaveTheFormatsBytes",)),
    Mutant("safetensors with overlapping tensors accepted", "io/safetensors.cpp",
           (("entry.begin == covered && entry.end", "entry.begin <= covered && entry.end"),),
           ("DamagedWeightsTest.HeadersThatBreakARuleAreRefused",)),
    Mutant("weights renamed before they are on the disk", "autograd/file.cpp",
           (("if (uninterrupted([&] { return calls_.fsync(descriptor_); }) != 0) fail(\"synchronise\", errno);", ""),),
           ("OutputFileTest.WritesSynchronisesRenamesAndSynchronisesTheDirectory",)),
)


def mutated(mutant, text):
    """The text of the mutant's file after its edits."""
    for old, new in mutant.edits:
        if text.count(old) != 1:
            raise ValueError(f'"{mutant.name}": {mutant.file} must have this text once, has it {text.count(old)} times:\n'
                             f"{old}")
        text = text.replace(old, new)
    return PROLOGUE + text


def problems(root, mutants=MUTANTS):
    """What no longer fits the tree: texts that are not in their file once, tests that are not there."""
    sources = "\n".join(path.read_text(encoding="utf-8") for path in sorted((root / "tests").rglob("*_test.cpp")))
    cases = {f"{suite}.{case}" for suite, case in re.findall(r"\bTEST(?:_F|_P)?\((\w+),\s*(\w+)\)", sources)}
    found = []
    for mutant in mutants:
        try:
            text = (root / mutant.file).read_text(encoding="utf-8")
            if mutated(mutant, text) == PROLOGUE + text:
                found.append(f'"{mutant.name}" changes nothing')
        except (OSError, ValueError) as error:
            found.append(str(error))
        found += [f'"{mutant.name}": there is no test {test}' for test in mutant.tests if test not in cases]
    names = [mutant.name for mutant in mutants]
    return found + [f'there are two mutants "{name}"' for name in sorted(set(names)) if names.count(name) > 1]


def sources(root):
    """Files of the tree, relative to it, without builds."""
    found = set()
    for folder, folders, files in os.walk(root):
        if Path(folder) == root:
            folders[:] = [name for name in folders if name not in ("build", ".git")]
        found |= {(Path(folder) / name).relative_to(root) for name in files}
    return found


def copy_tree():
    """Makes TREE the same as ROOT, without builds; what is the same already keeps its time."""
    present = sources(TREE)
    wanted = sources(ROOT)
    for path in present - wanted:
        (TREE / path).unlink()
    for path in wanted:
        if path in present and (ROOT / path).read_bytes() == (TREE / path).read_bytes():
            continue
        (TREE / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, TREE / path)
        shutil.copymode(ROOT / path, TREE / path)


def run(*command, seconds=None):
    """Exit status, None after `seconds`, and output."""
    environment = dict(os.environ, CCACHE_NOHASHDIR="1", GTEST_COLOR="no")
    environment.setdefault("CCACHE_BASEDIR", str(ROOT))
    if shutil.which("ccache"):
        environment.setdefault("CMAKE_CXX_COMPILER_LAUNCHER", "ccache")
    try:
        done = subprocess.run(command, cwd=TREE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", check=False, timeout=seconds)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        return None, ""


def build():
    return run("cmake", "--build", "--preset", "cpu", "--target", "fusegrad_tests")


def run_tests(names):
    """Exit status; which of the tests passed, which failed."""
    patterns = [pattern for name in names for pattern in (name, f"{name}/*", f"*/{name}", f"*/{name}/*")]
    status, output = run(str(TREE / "build/cpu/tests/fusegrad_tests"), "--gtest_filter=" + ":".join(patterns),
                         seconds=SECONDS_A_RUN)

    def outcomes(word):
        lines = re.findall(rf"^\[ *{word} *\] (\S+?)(?:,.*)? \(\d+ ms\)$", output, re.MULTILINE)
        return {name for name in names if any(re.search(rf"(^|/){re.escape(name)}(/|$)", line) for line in lines)}

    return status, outcomes("OK"), outcomes("FAILED")


def try_mutant(mutant):
    """What became of it; "killed" if all is well."""
    path = TREE / mutant.file
    text = path.read_text(encoding="utf-8")
    path.write_text(mutated(mutant, text), encoding="utf-8")
    try:
        status, output = build()
        if status != 0:
            return "DOES NOT COMPILE\n" + output[-2000:]
        status, _, failed = run_tests(mutant.tests)
        if status is None:
            return "HANGS"
        if status == 0:
            return "SURVIVES"
        return "killed" if failed and status == 1 else f"CRASHES, status {status}"
    finally:
        path.write_text(text, encoding="utf-8")


def check_unchanged(mutants):
    """Builds the copy as it is and demands that all tests are there and pass."""
    copy_tree()
    status, output = run("cmake", "--preset", "cpu", "-DFUSEGRAD_TESTS=ON", "-DFUSEGRAD_EXAMPLES=OFF",
                         "-DFUSEGRAD_BENCH=OFF", f"-DFUSEGRAD_TEST_SOURCE_DIR={ROOT}")
    if status == 0:
        status, output = build()
    if status != 0:
        sys.exit("the tree does not build:\n" + output[-4000:])
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    status, passed, failed = run_tests(tests)
    if status != 0 or failed or passed != set(tests):
        sys.exit(f"without a mutant these tests do not pass: {sorted(failed | (set(tests) - passed))}, status {status}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only mutants whose name contains one of these")
    parser.add_argument("--list", action="store_true", help="print the mutants and do nothing")
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS
              if not options.words or any(word in mutant.name for word in options.words)]
    if not chosen:
        sys.exit("no mutant has such a name")
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name:<50}  {mutant.file:<36}  {', '.join(mutant.tests)}")
        return
    if found := problems(ROOT):
        sys.exit("\n".join(found))
    check_unchanged(chosen)
    survivors = 0
    for mutant in chosen:
        start = time.monotonic()
        outcome = try_mutant(mutant)
        survivors += outcome != "killed"
        print(f"{mutant.name:<50}  {mutant.file:<36}  {time.monotonic() - start:4.0f} s  {outcome}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants killed")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
