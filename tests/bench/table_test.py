"""Tables of measurements: medians over rounds, ratios, failures.

Environment: FUSEGRAD_SOURCE_DIR, the source tree.
"""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.environ["FUSEGRAD_SOURCE_DIR"], "bench"))
import table  # noqa: E402  (its folder is known only now)


def line(workload, peer, us=None, **rest):
    return {"workload": workload, "peer": peer} | ({} if us is None else {"us": us}) | rest


def cells(text, row):
    """{head: cell} of a row of a Markdown table."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    for found in lines[2:]:
        if found[0] == row:
            return dict(zip(lines[0], found))
    raise AssertionError(f"no row {row} in\n{text}")


class TableTest(unittest.TestCase):
    def test_a_cell_is_the_median_over_rounds(self):
        text = table.markdown([line("A", "fusegrad", us) for us in (300, 100, 200)])
        self.assertEqual(cells(text, "A"), {"workload": "A", "fusegrad": "**200**"})

    def test_ratios_are_those_of_the_fastest_of_ours(self):
        text = table.markdown([
            line("B", "fusegrad", 120, peak_mib=80), line("B", "fusegrad + graph", 60, peak_mib=50),
            line("B", "fusegrad unfused", 1), line("B", table.PRODUCTS, 48), line("B", "jax jit", 80),
            line("B", "pytorch eager", 240, peak_mib=100)])
        row = cells(text, "B")
        self.assertEqual((row["to the best peer"], row["to products only"], row["peak memory to PyTorch eager"]),
                         ("0.75", "1.25", "0.50"))

    def test_the_fastest_is_bold_and_the_products_do_not_compete(self):
        text = table.markdown([line("C", "fusegrad", 9000), line("C", table.PRODUCTS, 8000), line("C", "jax jit", 8500)])
        row = cells(text, "C")
        self.assertEqual((row["fusegrad"], row[table.PRODUCTS], row["jax jit"]), ("9000", "8000", "**8500**"))

    def test_activations_are_rows_that_share_the_products(self):
        text = table.markdown([line("I1", "fusegrad", 90, activation="relu"), line("I1", "fusegrad", 99, activation="gelu"),
                               line("P no mask", "fusegrad", 30, activation="relu"), line("P", table.PRODUCTS, 20),
                               line("I1", table.PRODUCTS, 60)])
        self.assertEqual(cells(text, "I1 relu")["to products only"], "1.50")
        self.assertEqual(cells(text, "I1 gelu")["to products only"], "1.65")
        self.assertEqual(cells(text, "P no mask relu")["to products only"], "1.50")

    def test_a_failure_is_a_cell_and_a_reason(self):
        text = table.markdown([line("D", "fusegrad", 50), line("D", "fusegrad", 50), line("D", "jax jit", 60),
                               line("D", "jax jit", error="not done after 5 s"),
                               line("E", "jax jit", error="ended by SIGSEGV"), line("E", table.PRODUCTS, error="no GPU")])
        self.assertEqual(cells(text, "D")["jax jit"], "60.0 failed")
        self.assertEqual(cells(text, "E")["jax jit"], "failed")
        self.assertEqual(cells(text, "E")[table.PRODUCTS], "failed")
        self.assertIn("- D, jax jit: not done after 5 s\n", text)
        self.assertIn("- E, jax jit: ended by SIGSEGV\n", text)

    def test_spread_names_the_shakiest_cell(self):
        lines = [line("A", "fusegrad", us) for us in (100, 110)] + [line("A", "jax jit", us) for us in (100, 150, 120)]
        self.assertEqual(table.spread(lines), (1.5, ("A", "jax jit")))
        self.assertEqual(table.spread(lines[:1]), (1, None))


if __name__ == "__main__":
    unittest.main()
