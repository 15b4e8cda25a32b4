"""bench/compare.py among stand-ins for the programs that it runs: they measure, crash, hang or are missing.

Environment: FUSEGRAD_SOURCE_DIR, the source tree.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

COMPARE = Path(os.environ["FUSEGRAD_SOURCE_DIR"]) / "bench/compare.py"


class CompareTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.bin = Path(folder.name)
        self.log = self.bin / "log"
        self.output = self.bin / "lines.jsonl"

    def stand_in(self, name, body):
        """A program that logs how it was called and then runs `body`; `line WORKLOAD US` prints a measurement."""
        path = self.bin / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f'#!/bin/sh\necho "{name} $*" >> "{self.log}"\n'
            'line() { echo "{\\"workload\\": \\"$1\\", \\"peer\\": \\"${3:-fusegrad}\\", \\"us\\": $2}"; }\n' + body + "\n",
            encoding="utf-8")
        path.chmod(0o755)

    def compare(self, *arguments):
        done = subprocess.run(
            [sys.executable, "-B", COMPARE, "--bin-dir", self.bin, "--output", self.output, "--commit", "abc", *arguments],
            capture_output=True, text=True, check=False, timeout=60)
        lines = [json.loads(line) for line in self.output.read_text(encoding="utf-8").splitlines()]
        return done, lines

    def calls(self):
        return [call.split(" ")[0] for call in self.log.read_text(encoding="utf-8").splitlines()]

    def test_every_other_round_runs_in_reverse(self):
        self.stand_in("train_step", "line cpu-A 10")
        self.stand_in("inference", "line cpu-I1 10")
        done, lines = self.compare("--device", "cpu", "--workloads", "cpu-A,cpu-I1", "--peers", "", "--rounds", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.calls(), ["train_step", "inference", "inference", "train_step", "train_step", "inference"])
        self.assertEqual([line["round"] for line in lines], [1, 1, 2, 2, 3, 3])
        self.assertIn("commit abc", done.stdout)

    def test_a_crash_is_a_failed_cell(self):
        self.stand_in("train_step", "line cpu-A 10; kill -SEGV $$")
        done, lines = self.compare("--device", "cpu", "--workloads", "cpu-A,cpu-B", "--peers", "", "--rounds", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([(line["workload"], line.get("us"), line.get("error")) for line in lines],
                         [("cpu-A", 10, None), ("cpu-B", None, "ended by SIGSEGV")])
        self.assertIn("| cpu-B | failed |", done.stdout)

    def test_a_program_that_hangs_is_ended_with_its_children(self):
        self.stand_in("train_step", f'line cpu-A 10; sleep 30 & echo $! > "{self.bin}/child"; sleep 30')
        done, lines = self.compare("--device", "cpu", "--workloads", "cpu-A,cpu-B", "--peers", "", "--rounds", "1",
                                   "--timeout", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(lines[-1]["error"], "not done after 1 s")
        self.assertEqual(lines[0]["us"], 10)
        child = Path("/proc", (self.bin / "child").read_text(encoding="utf-8").strip(), "stat")
        for _ in range(100):  # gone, or dead and not yet collected
            if not child.exists() or child.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z":
                return
            time.sleep(0.05)
        self.fail("the program's own child lives on")

    def test_a_missing_program_costs_its_cells_and_nothing_else(self):
        self.stand_in("train_step", "line cpu-A 10")
        done, lines = self.compare("--device", "cpu", "--workloads", "cpu-A,cpu-I1", "--peers", "", "--rounds", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([(line["workload"], line.get("activation"), line.get("error")) for line in lines[1:]],
                         [("cpu-I1", kind, "cannot be run: No such file or directory") for kind in ("relu", "gelu")])

    def test_a_gpu_is_heated_before_the_first_round(self):
        self.stand_in("cuda/products_only", 'line A 5 "products only"')
        self.stand_in("train_step", 'case "$*" in *"--plans measure"*) line A 9 "fusegrad measured" ;; *) line A 10 ;; esac')
        done, _ = self.compare("--workloads", "A", "--modes", "eager", "--peers", "", "--rounds", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.calls(), ["cuda/products_only", "train_step", "train_step", "cuda/products_only"])
        self.assertIn("--warm-up 2", self.log.read_text(encoding="utf-8").splitlines()[0])
        self.assertIn("| A | 10.0 | **9.0** | 5.0 | 1.80 |", done.stdout)

    def test_fails_if_nothing_was_measured(self):
        done, _ = self.compare("--device", "cpu", "--workloads", "cpu-A", "--peers", "", "--rounds", "1")
        self.assertEqual(done.returncode, 1)

    def test_refuses_an_unknown_workload(self):
        done = subprocess.run([sys.executable, "-B", COMPARE, "--workloads", "nine"], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no workload nine", done.stderr)


if __name__ == "__main__":
    unittest.main()
