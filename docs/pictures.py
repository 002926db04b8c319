"""Make the pictures of the guides by their code: `make pictures [GUIDES=ratings]`.

Pictures are written to docs/images with as many colours as they need, and what a guide
prints to standard output, for its blocks of text.
"""

import os
import re
import sys
import tempfile
import time
from pathlib import Path

DOCS = Path(__file__).resolve().parent
COLOURS = 200


def code_of(page):
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))


def pictures_of(page):
    """Names of the pictures that a page shows."""
    return re.findall(r"\]\((?:\.\./)?images/(\S+\.png)\)", page.read_text())


def main(names):
    import matplotlib
    from PIL import Image

    matplotlib.rcParams["savefig.dpi"] = 100
    for page in sorted((DOCS / "guides").glob("*.md")):
        if not pictures_of(page) or (names and page.stem not in names):
            continue
        sys.stdout.write(f"--- {page.name}\n")
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            exec(compile(code_of(page), str(page), "exec"), {"__name__": "__main__"})
            for name in pictures_of(page):
                picture = Image.open(name).convert("RGB")
                smaller = picture.quantize(COLOURS, dither=Image.Dither.NONE)
                smaller.save(DOCS / "images" / name, optimize=True)
            os.chdir(DOCS)
        sys.stdout.write(f"--- {time.perf_counter() - began:.0f} s\n")


if __name__ == "__main__":
    main(sys.argv[1:])
