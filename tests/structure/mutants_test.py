"""Demands that every mutant of tests/mutants.py still fits the tree, without building anything."""

import sys
import unittest
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from mutants import MUTANTS, ROOT, mutated, problems


class MutantsTest(unittest.TestCase):
    def test_all_fit_the_tree(self):
        self.assertEqual(problems(ROOT), [])

    def test_what_does_not_fit_is_named(self):
        mutant = MUTANTS[0]
        (old, new), *_ = mutant.edits
        for wrong, word in ((replace(mutant, edits=(("no such text", new),)), "has it 0 times"),
                            (replace(mutant, edits=(("value", new),)), "must have this text once"),
                            (replace(mutant, edits=((old, old),)), "changes nothing"),
                            (replace(mutant, file="ops/gone.cpp"), "ops/gone.cpp"),
                            (replace(mutant, tests=("LinearTest.Gone",)), "there is no test LinearTest.Gone")):
            with self.subTest(word):
                found = problems(ROOT, [wrong])
                self.assertEqual(len(found), 1, found)
                self.assertIn(word, found[0])
        self.assertIn("two mutants", problems(ROOT, [mutant, mutant])[0])

    def test_edits_are_all_made(self):
        for mutant in MUTANTS:
            text = mutated(mutant, (ROOT / mutant.file).read_text(encoding="utf-8"))
            for _, new in mutant.edits:
                self.assertIn(new, text, mutant.name)


if __name__ == "__main__":
    unittest.main()
