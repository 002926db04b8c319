"""The site holds the pages of results/ too, and links to files of the repository are names there."""

import re
from pathlib import Path

from mkdocs.structure.files import File

RESULTS = Path(__file__).parent.parent / "results"


def on_files(files, config):
    for path in sorted(RESULTS.glob("*")):
        if path.suffix in (".md", ".png"):
            files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    markdown = markdown.replace("](../results/", "](results/")
    return re.sub(r"\[([^\]]+)\]\(\.\./(?!guides|results|solvers|decisions|architecture)[^)]*\)", r"\1", markdown)
