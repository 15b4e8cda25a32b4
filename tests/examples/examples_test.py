"""Runs the example programs as a user does: what they print, what they refuse, and how.

Environment: TRAIN_DIGITS and CHECK_GRADIENTS, the programs.
"""

import gzip
import json
import os
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path


def run(program, *arguments):
    return subprocess.run([os.environ[program], *map(str, arguments)], capture_output=True, text=True, check=False,
                          timeout=120)


class TrainDigitsTest(unittest.TestCase):
    def train(self, *arguments):
        done = run("TRAIN_DIGITS", "--device", "cpu", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()

    def refused(self, expected, *arguments):
        done = run("TRAIN_DIGITS", *arguments)
        self.assertNotIn(done.returncode, (0, -6, -11), arguments)
        self.assertIn(expected, done.stderr, arguments)
        self.assertLess(len(done.stderr), 300, "longer than anyone reads")

    def test_learns_to_read(self):
        label, accuracy = self.train()[-1].rsplit(" ", 1)
        self.assertEqual(label, "test accuracy")
        self.assertGreaterEqual(float(accuracy), 0.972)

    def test_json_is_one_object(self):
        lines = self.train("--json", "--epochs", 2, "--seed", 3)
        self.assertEqual(len(lines), 1)
        result = json.loads(lines[0])
        for key in ("test_accuracy", "test_correct", "test_total", "final_loss", "epochs", "seconds", "device", "threads"):
            self.assertIn(key, result)
        self.assertEqual((result["test_total"], result["epochs"], result["device"]), (360, 2, "cpu"))
        self.assertIn(result["products"], ("eigen", "onednn"))

    def test_the_number_of_threads_changes_no_bit(self):
        for dtype in ("f64", "f32", "bf16", "f16"):
            options = ("--json", "--epochs", 2, "--hidden", "250,37", "--dtype", dtype)
            losses = {json.loads(self.train(*options, "--threads", threads)[-1])["final_loss"] for threads in (1, 2, 4)}
            self.assertEqual(len(losses), 1, dtype)

    def test_captured_steps_learn_the_same(self):
        options = ("--json", "--epochs", 2, "--batch", 7)
        eager, captured = (json.loads(self.train(*options, *more)[-1]) for more in ((), ("--captured",)))
        self.assertEqual(captured["final_loss"], eager["final_loss"])

    def test_reads_mnist_files(self):
        with tempfile.TemporaryDirectory() as folder:
            for part, rows in (("train", 12), ("t10k", 4)):
                pixels = bytes(200 if column == row % 3 else 0 for row in range(rows) for column in range(6))
                images = struct.pack(">4B3I", 0, 0, 8, 3, rows, 2, 3) + pixels
                labels = struct.pack(">4BI", 0, 0, 8, 1, rows) + bytes(row % 3 for row in range(rows))
                Path(folder, f"{part}-images-idx3-ubyte").write_bytes(images)
                Path(folder, f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
            saved = Path(folder, "weights")
            lines = self.train("--idx-dir", folder, "--hidden", 8, "--epochs", 200, "--save", saved)
            self.assertEqual(lines[-1], "test accuracy 1.0000")
            self.assertTrue(saved.exists())

    def test_writes_a_timeline_of_the_first_steps(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "trace.json")
            for epochs, steps, *how in ((1, 23), (6, 100), (1, 23, "--captured")):
                self.train("--trace", file, "--epochs", epochs, *how)
                events = [event for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]
                names = [event["name"] for event in events]
                self.assertEqual(names.count("adamw step"), steps)
                self.assertEqual(names.count("linear backward"), 3 * steps)
                self.assertEqual(names.count("step"), steps if how else 0)
                self.assertTrue(all(event["dur"] > 0 for event in events))

    def test_names_a_wrong_option(self):
        for option in ("--hidden", "--batch", "--learning-rate"):
            for value in ("0", "-4", "many", "nan"):
                self.refused(f'{option}: must be a number above 0, got "{value}"', f"{option}={value}")
        self.refused("--dtype: f8 not in {bf16,f16,f32,f64}", "--dtype", "f8")
        self.refused("--dtype: 3 not in", "--dtype", "3")
        self.refused("--threads: Value 0 not in range 1 to 1024", "--threads", 0)
        self.refused("--epochs: Value -1 not in range", "--epochs=-1")
        self.refused("--seed", "--seed", "x")
        self.refused("--data excludes --idx-dir", "--data", "x", "--idx-dir", "y")
        self.refused('cannot open "/nowhere"', "--data", "/nowhere")
        self.refused('in "/nowhere"', "--idx-dir", "/nowhere")
        self.refused("out of memory", "--hidden", 4000000000000)

    def test_refuses_to_train_for_a_file_that_cannot_be_written(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "file")
            file.touch()
            for path, reason in ((Path(folder, "none", "w"), "No such file or directory"), (Path(file, "w"), "Not a directory"),
                                 (folder, "is no regular file"), (folder + "/", "is no regular file")):
                self.refused(reason, "--save", path, "--epochs", 1000000)
                self.refused("--save: ", "--save", path, "--epochs", 1000000)
                self.refused(reason, "--trace", path, "--epochs", 1000000)
            self.train("--save", file, "--epochs", 1)
            self.assertGreater(file.stat().st_size, 100000)


class CheckGradientsTest(unittest.TestCase):
    def test_finds_every_gradient_right(self):
        for seed in (1, 2):
            done = run("CHECK_GRADIENTS", "--seed", seed)
            self.assertEqual(done.returncode, 0, done.stdout)
            passed, _, total, *_ = done.stdout.splitlines()[-1].split()
            self.assertEqual(passed, total)


if __name__ == "__main__":
    unittest.main()
