"""Checks that includes go one way and that the public headers are what they claim to be.

usage: include_rules.py ROOT PUBLIC
ROOT is the source tree; PUBLIC is a file that lists the installed headers, one path relative to ROOT a line.

Every rule that a file breaks is one line, path:line: what is wrong; the exit status is 1 if there is any.

  order      examples, tests, bench -> nn, optim, io -> ops -> autograd: a file includes its own folder or lower ones
  CUDA       its headers only in folders named cuda (and in tests/fake_gpu, which stands in for its libraries)
  Eigen      only in folders named cpu (and in the test of a program that has its own)
  oneDNN     its headers only in folders named cpu
  public     an installed header includes the C++ standard library and other installed headers, nothing else;
             examples include installed headers only
  private    a header says "Not installed" in its opening comment if and only if it is not installed
  form       own headers as <fusegrad/path>, and they exist; every header has #pragma once
"""

import re
import sys
from pathlib import Path

LAYERS = {"autograd": 0, "ops": 1, "nn": 2, "optim": 2, "io": 2, "examples": 3, "tests": 3, "bench": 3}
LIBRARY = ("autograd", "ops", "nn", "optim", "io")
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CUDA = re.compile(r"^(cuda|cublas|curand|cusparse|cusolver|nccl|nvrtc|nvtx|nvToolsExt|cub/|thrust/|cutlass/|cute/|mma\.h"
                  r"|cooperative_groups|device_launch|vector_types|library_types)")
EIGEN = re.compile(r"^(unsupported/)?Eigen/")
ONEDNN = re.compile(r"^(oneapi/)?(dnnl|mkldnn)")
STANDARD = re.compile(r"^[a-z_]+$")  # <vector>, <cstdint>: no dot and no folder


def sources(root):
    """All source files of the tree, sorted; the umbrella header included."""
    files = [root / "fusegrad.h"] if (root / "fusegrad.h").exists() else []
    for folder in LAYERS:
        files += (path for path in (root / folder).rglob("*") if path.suffix in SUFFIXES)
    return sorted(files)


def opening_comment(text):
    lines = []
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        lines.append(line.lstrip("/ "))
    return " ".join(lines)


def include_problems(name, kind, target, root, public):
    """What is wrong with `#include <target>` in the file `name`, both relative to the root."""
    folders = name.split("/")[:-1]
    top = folders[0] if folders else ""
    if CUDA.match(target) and "cuda" not in folders and folders[:2] != ["tests", "fake_gpu"]:
        yield f"{target} belongs to CUDA, whose headers are only for folders named cuda"
    if EIGEN.match(target) and "cpu" not in folders and folders[:2] != ["tests", "packaging"]:
        yield f"{target} belongs to Eigen, whose headers are only for folders named cpu"
    if ONEDNN.match(target) and "cpu" not in folders:
        yield f"{target} belongs to oneDNN, whose headers are only for folders named cpu"
    if kind == '"' and (top in LIBRARY or not top):
        yield f'"{target}" must be written <fusegrad/...>'

    if not target.startswith("fusegrad/"):
        if name in public and kind == "<" and not STANDARD.match(target):
            yield f"an installed header includes {target}, which is neither the standard library's nor installed"
        return
    own = target.removeprefix("fusegrad/")
    if not (root / own).exists():
        yield f"there is no {own}"
        return
    if (name in public or top == "examples") and own not in public:
        yield f"{own} is not installed"
    if top not in LAYERS:
        return  # the umbrella header
    other = own.split("/")[0]
    if other == "fusegrad.h":
        if LAYERS[top] < 3:
            yield "the library does not include its own umbrella header"
    elif other != top and LAYERS[other] >= LAYERS[top]:
        yield f"{top} must not include {other}"


def violations(root, public):
    """All broken rules as "path:line: text" lines. `public` is the set of installed headers, relative to root."""
    root = Path(root)
    found = [f"{name}:1: is to be installed but does not exist" for name in sorted(public) if not (root / name).exists()]
    for path in sources(root):
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        if path.suffix in {".h", ".cuh"}:
            if not re.search(r"^#pragma once$", text, re.MULTILINE):
                found.append(f"{name}:1: has no #pragma once")
            if name.split("/")[0] in LIBRARY:
                private = "not installed" in opening_comment(text).lower()
                if private and name in public:
                    found.append(f'{name}:1: says "Not installed" but is')
                if not private and name not in public:
                    found.append(f'{name}:1: is not installed and does not say so')
        for number, line in enumerate(text.splitlines(), 1):
            if match := INCLUDE.match(line):
                for problem in include_problems(name, *match.groups(), root, public):
                    found.append(f"{name}:{number}: {problem}")
    return found


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    root = Path(sys.argv[1])
    public = set(Path(sys.argv[2]).read_text(encoding="utf-8").split())
    checked = len(sources(root))
    found = violations(root, public)
    for line in found:
        print(line)
    print(f"{checked} files checked, {len(public)} installed headers, {len(found)} rules broken")
    # An empty list or tree means that the check looked in the wrong place.
    sys.exit(1 if found or not public or checked <= len(public) else 0)


if __name__ == "__main__":
    main()
