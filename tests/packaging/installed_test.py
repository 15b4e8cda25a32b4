"""Looks at the installed package as a program sees it: what its headers drag in, and what its library defines.

Environment: FUSEGRAD_PREFIX (where it was installed), CXX, NM and STRIP.
"""

import os
import re
import resource
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

PREFIX = Path(os.environ["FUSEGRAD_PREFIX"])
INCLUDE = PREFIX / "include"
HEADERS = sorted(path.relative_to(INCLUDE).as_posix() for path in INCLUDE.rglob("*") if path.is_file())
# Names that programs and other libraries define as macros, and that a header must therefore not use unguarded.
HOSTILE_MACROS = ["CHECK(x)", "LOG(x)", "ASSERT(x)", "EXPECT(x)", "ERROR", "INFO", "FATAL", "DEBUG", "TRUE", "FALSE",
                  "OPTIONAL", "IN", "OUT", "small", "near", "far", "min(a, b)", "max(a, b)", "I", "B0", "major(x)",
                  "minor(x)"]


def compile_text(text, *arguments):
    """Runs the compiler over `text` with all warnings as errors; the finished process."""
    command = [os.environ["CXX"], "-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{INCLUDE}",
               "-x", "c++", "-", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def includes(headers):
    return "".join(f"#include <{header}>\n" for header in headers)


def standard_headers():
    """The standard headers that the installed ones include."""
    found = set()
    for header in HEADERS:
        found |= set(re.findall(r"^#include <([a-z_]+)>$", (INCLUDE / header).read_text(encoding="utf-8"), re.MULTILINE))
    return sorted(found)


class HeadersTest(unittest.TestCase):
    def compiles(self, text, *arguments):
        done = compile_text(text, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr[:4000])
        return done.stdout

    def test_only_public_headers_are_installed(self):
        self.assertIn("fusegrad/fusegrad.h", HEADERS)
        self.assertFalse((INCLUDE / "fusegrad/fusegrad.h").is_symlink(), "a link into the source tree")
        for header in HEADERS:
            self.assertTrue(header.startswith("fusegrad/"), header)
            self.assertNotRegex(header, r"_kernels\.h|_state\.h|/cpu/|/cuda/|dispatch\.h|views\.h")

    def test_umbrella_header_reaches_no_other_library(self):
        rule = self.compiles(includes(["fusegrad/fusegrad.h"]), "-M")
        files = rule.replace("\\\n", " ").split(":", 1)[1].split()
        self.assertGreater(len(files), 50)
        own = [file for file in files if "/fusegrad/" in file]
        self.assertGreater(len(own), 5)
        for file in own:
            self.assertTrue(Path(file).is_relative_to(INCLUDE), f"{file} is not the installed header")
        for file in set(files) - set(own):
            self.assertNotRegex(file, r"(?i)/(eigen3?|unsupported|cuda|cublas|cub|thrust|fmt|nlohmann|gtest|zlib|zconf)[^/]*(/|\.h)")

    def test_each_header_stands_alone(self):
        for header in HEADERS:
            with self.subTest(header=header):
                self.compiles(includes([header, header]), "-fsyntax-only")

    def test_macros_are_prefixed(self):
        for header in HEADERS:
            text = (INCLUDE / header).read_text(encoding="utf-8")
            for name in re.findall(r"^\s*#\s*define\s+(\w+)", text, re.MULTILINE):
                self.assertTrue(name.startswith("FUSEGRAD_"), f"{header} defines {name}")

    def test_headers_survive_hostile_macros(self):
        hostile = "".join(f"#define {macro} ) this is a macro of the program (\n" for macro in HOSTILE_MACROS)
        self.assertNotEqual(compile_text(hostile + "int small;\n", "-fsyntax-only").returncode, 0)
        self.compiles(includes(standard_headers()) + hostile + includes(HEADERS), "-fsyntax-only")

    def test_headers_compile_in_other_modes_and_with_more_warnings(self):
        self.compiles(includes(HEADERS), "-fsyntax-only", "-std=gnu++20")
        self.compiles(includes(HEADERS), "-fsyntax-only", "-std=c++2b")
        self.compiles(includes(HEADERS), "-fsyntax-only", "-Wshadow", "-Wconversion", "-Wold-style-cast")

    def test_including_it_takes_little_memory(self):
        self.compiles(includes(["fusegrad/fusegrad.h"]), "-fsyntax-only")
        kilobytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        self.assertLess(kilobytes / 1024, 500)


class LibraryTest(unittest.TestCase):
    def setUp(self):
        self.libraries = [path for path in PREFIX.glob("lib*/**/libfusegrad.*") if path.suffix in {".a", ".so"}]
        self.assertEqual(len(self.libraries), 1, self.libraries)
        self.library = self.libraries[0]

    def symbols(self, *arguments):
        dynamic = ["--dynamic"] if self.library.suffix == ".so" else []
        done = subprocess.run([os.environ["NM"], "-C", *dynamic, *arguments, self.library],
                              capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    def test_defines_no_symbol_of_eigen(self):
        lines = self.symbols("--defined-only")
        self.assertTrue(any("fusegrad::Tape::backward" in line for line in lines))
        self.assertEqual([line for line in lines if re.search(r"\bEigen::", line)], [])

    def test_shared_library_exports_only_fusegrad(self):
        if self.library.suffix == ".a":
            self.skipTest("a static library has no export list")
        for line in self.symbols("--defined-only"):
            self.assertRegex(line, r"^[0-9a-f]+ [A-Za-z] ([a-z ]+ for )?fusegrad::")

    def test_stripped_library_is_small(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / self.library.name
            shutil.copy(self.library, copy)
            subprocess.run([os.environ["STRIP"], "--strip-debug", copy], check=True)
            megabytes = copy.stat().st_size / 1e6
            print(f"{self.library.name}: {megabytes:.2f} MB stripped")
            self.assertLess(megabytes, 10)


if __name__ == "__main__":
    unittest.main()
