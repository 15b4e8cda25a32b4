"""Writes the C++ blocks of Markdown files to a folder, one file a block.

usage: extract.py FOLDER DOCUMENT...

Block n of embedding.md becomes embedding_n_program.cpp if it has a main, else embedding_n_part.cpp. A line directive
makes the compiler name the document and the line in it.
"""

import re
import sys
from pathlib import Path

PREAMBLE = "#include <fusegrad/fusegrad.h>\nnamespace fg = fusegrad;\n"


def blocks(text):
    """(line of the first line, code) of each ```cpp block."""
    for match in re.finditer(r"^```cpp\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, match.start(1)) + 1, match.group(1)


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.cpp"):
        old.unlink()
    for name in sys.argv[2:]:
        document = Path(name)
        found = list(blocks(document.read_text(encoding="utf-8")))
        if not found:
            sys.exit(f"{document} has no C++ block")
        for number, (line, code) in enumerate(found, 1):
            program = "int main(" in code
            directive = f'#line {line} "{document}"\n'
            text = directive + code if program else PREAMBLE + directive + code
            kind = "program" if program else "part"
            (folder / f"{document.stem}_{number}_{kind}.cpp").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
