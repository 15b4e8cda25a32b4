"""Plants each kind of violation in a small tree and demands that include_rules finds it, and nothing else."""

import tempfile
import unittest
from pathlib import Path

from include_rules import violations

CLEAN = {
    "fusegrad.h": "#pragma once\n#include <fusegrad/autograd/tape.h>\n#include <fusegrad/nn/mlp.h>\n",
    "autograd/tape.h": "// A tape.\n#pragma once\n#include <vector>\n",
    "autograd/state.h": "// State that is\n// not installed.\n#pragma once\n#include <fmt/format.h>\n",
    "autograd/tape.cpp": "#include <sched.h>\n#include <fusegrad/autograd/state.h>\n",
    "autograd/cuda/stream.cpp": "#include <cuda_runtime.h>\n",
    "ops/linear.h": "#pragma once\n#include <fusegrad/autograd/tape.h>\n",
    "ops/cpu/linear.cpp": "#include <Eigen/Core>\n#include <oneapi/dnnl/dnnl.h>\n#include <fusegrad/ops/linear.h>\n",
    "ops/cuda/linear.cu": "#include <cublasLt.h>\n",
    "nn/mlp.h": "#pragma once\n#include <fusegrad/ops/linear.h>\n",
    "optim/sgd.cpp": "#include <fusegrad/autograd/tape.h>\n",
    "io/csv.cpp": "#include <zlib.h>\n",
    "examples/train.cpp": "#include <fusegrad/fusegrad.h>\n",
    "tests/ops/linear_test.cpp": '#include <fusegrad/autograd/state.h>\n#include "tests/ops/reference.h"\n',
    "tests/ops/reference.h": "#pragma once\n",
    "tests/packaging/own_eigen.cpp": "#include <Eigen/Dense>\n",
    "tests/fake_gpu/runtime.cpp": "#include <cuda_runtime_api.h>\n",
}
PUBLIC = {"fusegrad.h", "autograd/tape.h", "ops/linear.h", "nn/mlp.h"}


class IncludeRulesTest(unittest.TestCase):
    def found(self, changes=None, public=PUBLIC):
        """Violations in the clean tree after `changes`: path -> lines added at the end, or None to remove the file."""
        with tempfile.TemporaryDirectory() as folder:
            tree = dict(CLEAN)
            for path, text in (changes or {}).items():
                if text is None:
                    del tree[path]
                else:
                    tree[path] = tree.get(path, "") + text
            for path, text in tree.items():
                file = Path(folder) / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            return violations(folder, public)

    def expect_one(self, place, word, changes=None, public=PUBLIC):
        found = self.found(changes, public)
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(place), found[0])
        self.assertIn(word, found[0])

    def test_accepts_the_clean_tree(self):
        self.assertEqual(self.found(), [])

    def test_finds_includes_against_the_order(self):
        for path, target in [
            ("autograd/tape.cpp", "ops/linear.h"),
            ("autograd/tape.cpp", "nn/mlp.h"),
            ("ops/cpu/linear.cpp", "nn/mlp.h"),
            ("optim/sgd.cpp", "nn/mlp.h"),
            ("io/csv.cpp", "nn/mlp.h"),
            ("nn/mlp.cpp", "tests/ops/reference.h"),
        ]:
            with self.subTest(path=path, target=target):
                folders = f"{path.split('/')[0]} must not include {target.split('/')[0]}"
                self.expect_one(path, folders, {path: f"#include <fusegrad/{target}>\n"})

    def test_finds_the_umbrella_header_inside_the_library(self):
        self.expect_one("nn/mlp.cpp:1", "umbrella", {"nn/mlp.cpp": "#include <fusegrad/fusegrad.h>\n"})

    def test_finds_cuda_outside_its_folders(self):
        for header in ["cuda_runtime.h", "cuda.h", "cuda_bf16.h", "cublasLt.h", "cub/cub.cuh", "nccl.h", "nvtx3/nvtx3.hpp"]:
            with self.subTest(header=header):
                self.expect_one("ops/linear.cpp:1", "CUDA", {"ops/linear.cpp": f"#include <{header}>\n"})

    def test_finds_eigen_outside_its_folders(self):
        for header in ["Eigen/Core", "unsupported/Eigen/SpecialFunctions"]:
            with self.subTest(header=header):
                self.expect_one("tests/ops/linear_test.cpp:3", "Eigen",
                                {"tests/ops/linear_test.cpp": f"#  include <{header}>\n"})

    def test_finds_onednn_outside_its_folders(self):
        for header in ["dnnl.h", "oneapi/dnnl/dnnl.hpp", "mkldnn.h"]:
            with self.subTest(header=header):
                self.expect_one("ops/linear.cpp:1", "oneDNN", {"ops/linear.cpp": f"#include <{header}>\n"})

    def test_finds_foreign_headers_in_public_ones(self):
        for header in ["fmt/format.h", "nlohmann/json.hpp", "zlib.h", "sched.h"]:
            with self.subTest(header=header):
                self.expect_one("autograd/tape.h:4", header, {"autograd/tape.h": f"#include <{header}>\n"})

    def test_finds_private_headers_in_public_ones_and_in_examples(self):
        self.expect_one("ops/linear.h:3", "not installed", {"ops/linear.h": "#include <fusegrad/autograd/state.h>\n"})
        self.expect_one("examples/train.cpp:2", "not installed",
                        {"examples/train.cpp": "#include <fusegrad/autograd/state.h>\n"})

    def test_finds_headers_whose_comment_and_installation_disagree(self):
        self.expect_one("nn/mlp.h:1", "does not say so", {"fusegrad.h": None, "examples/train.cpp": None},
                        PUBLIC - {"nn/mlp.h", "fusegrad.h"})
        self.expect_one("autograd/other.h:1", "says",
                        {"autograd/other.h": "// Not installed.\n#pragma once\n"}, PUBLIC | {"autograd/other.h"})

    def test_finds_missing_files(self):
        self.expect_one("io/csv.cpp:2", "there is no", {"io/csv.cpp": "#include <fusegrad/io/gone.h>\n"})
        self.expect_one("io/gone.h:1", "does not exist", {}, PUBLIC | {"io/gone.h"})

    def test_finds_bad_form(self):
        self.expect_one("tests/ops/other.h:1", "#pragma once", {"tests/ops/other.h": "int x;\n"})
        self.expect_one("ops/linear.cpp:1", "must be written", {"ops/linear.cpp": '#include "ops/linear.h"\n'})


if __name__ == "__main__":
    unittest.main()
