"""The site holds the pages of results/; links to files of the repository are names."""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

RESULTS = Path(__file__).parent.parent / "results"


def on_files(files, config):
    for path in sorted(RESULTS.glob("*")):
        if path.suffix in (".md", ".png"):
            address = f"results/{path.name}"
            files.append(File.generated(config, address, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    folder = posixpath.dirname(page.file.src_uri)
    site = {file.src_uri for file in files}

    def within_site(link):
        name, address = link[1], link[2]
        target = posixpath.normpath(posixpath.join(folder, address))
        return link[0] if target in site else name

    markdown = markdown.replace("](../results/", "](results/")
    return re.sub(r"\[([^\]]+)\]\((\.\./[^)#]*)(?:#[^)]*)?\)", within_site, markdown)
