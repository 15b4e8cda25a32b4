"""The benchmark programs: that they time the workloads that they name, and what a step costs the host.

Environment: FUSEGRAD_SOURCE_DIR, the source tree; FUSEGRAD_BENCH_DIR, the folder of the programs.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BENCH = Path(os.environ["FUSEGRAD_BENCH_DIR"])
SCRIPTS = Path(os.environ["FUSEGRAD_SOURCE_DIR"]) / "bench"
sys.path.insert(0, str(SCRIPTS))
import workloads  # noqa: E402  (its folder is known only now)

QUICK = ("--repeats", "2", "--warm-up", "0")


def run(program, *arguments):
    return subprocess.run([BENCH / program, *arguments], capture_output=True, text=True, check=False, timeout=120)


class ProgramsTest(unittest.TestCase):
    def lines(self, program, *arguments):
        done = run(program, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_programs_and_scripts_know_the_same_workloads(self):
        for program, table in (("train_step", workloads.TRAINING), ("inference", workloads.INFERENCE)):
            listed = self.lines(program, "--list", "--device", "gpu") + self.lines(program, "--list", "--device", "cpu")
            self.assertEqual({line["workload"]: (line["batch"], line["widths"], line["policy"]) for line in listed}, table)

    def test_train_step_prints_a_line_a_workload(self):
        line, = self.lines("train_step", "--workloads", "cpu-small", "--threads", "1", *QUICK)
        self.assertEqual([line[key] for key in ("workload", "peer", "mode", "policy", "device", "threads")],
                         ["cpu-small", "fusegrad", "eager", "fp32", "cpu", 1])
        self.assertGreater(line["us"], 0)
        self.assertGreater(line["peak_mib"], 0)

    def test_a_captured_step_is_another_peer_and_is_timed_in_blocks(self):
        line, = self.lines("train_step", "--workloads", "cpu-small", "--mode", "graph", *QUICK)
        self.assertEqual((line["peer"], line["mode"]), ("fusegrad + graph", "graph"))
        self.assertGreater(line["steps_per_wait"], 1)

    def test_the_unfused_definition_is_another_peer(self):
        line, = self.lines("train_step", "--workloads", "cpu-small", "--no-fusion", *QUICK)
        self.assertEqual(line["peer"], "fusegrad unfused")

    def test_inference_prints_a_line_an_activation(self):
        lines = self.lines("inference", "--device", "cpu", "--workloads", "cpu-I1", *QUICK)
        self.assertEqual([(line["workload"], line["activation"]) for line in lines], [("cpu-I1", "relu"), ("cpu-I1", "gelu")])
        values = 512 * 2048 + 2048 + 2048 * 512 + 512
        self.assertEqual(lines[0]["weight_mib"], round(4 * values / 2**20, 1))

    def test_a_captured_pass_is_another_peer(self):
        lines = self.lines("inference", "--device", "cpu", "--workloads", "cpu-I1", "--mode", "graph", *QUICK)
        self.assertEqual({(line["peer"], line["mode"]) for line in lines}, {("fusegrad + graph", "graph")})

    def test_unknown_workloads_are_refused(self):
        for program in ("train_step", "inference"):
            done = run(program, "--device", "cpu", "--workloads", "nine")
            self.assertEqual(done.returncode, 1)
            self.assertIn('there is no workload "nine"', done.stderr)

    def test_recording_and_backward_allocate_nothing(self):
        lines = self.lines("host_cost", "--repeats", "50")
        self.assertEqual([line["op"] for line in lines], ["linear", "linear_relu", "relu", "add", "mul"])
        for line in lines:
            self.assertEqual(line["allocations"], 0, line)
            # Some twenty times what a node takes on a machine that does nothing else.
            self.assertLess(line["record_ns"], 40000, line)
            self.assertLess(line["backward_ns"], 40000, line)

    def test_a_peer_that_is_not_installed_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            for module in ("torch", "jax"):
                Path(folder, f"{module}.py").write_text(f'raise ImportError("{module} is a stand-in")\n', encoding="utf-8")
            done = subprocess.run([sys.executable, "-B", SCRIPTS / "peers.py", "--device", "cpu"], capture_output=True,
                                  text=True, check=False, env=os.environ | {"PYTHONPATH": folder})
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertEqual(done.stderr.splitlines(),
                         ["peers.py: pytorch cannot be timed on this machine: torch is a stand-in",
                          "peers.py: jax cannot be timed on this machine: jax is a stand-in"])

    @unittest.skipUnless((BENCH / "cuda/products_only").exists(), "built without a GPU backend")
    def test_products_only_says_that_it_needs_a_gpu(self):
        done = subprocess.run([BENCH / "cuda/products_only", "--workloads", "A"], capture_output=True, text=True,
                              check=False, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(done.returncode, 1)
        self.assertIn("needs a GPU", done.stderr)


if __name__ == "__main__":
    unittest.main()
