"""Hooks of the documentation site (mkdocs.yml).

The pages are readable in the repository as well as on the site. Three things differ on the site:
the notebooks and the texts at the top of the repository become pages, links to source files lead
to the repository, and every file of docs/decisions has its place in the navigation.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
# Texts at the top of the repository -> pages of the site.
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    pages = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    pages.sort(key=lambda name: name != "index.md")
    for entry in config.nav or []:
        if "Decisions" in entry:
            entry["Decisions"] = [f"decisions/{name}" for name in pages]
    return config


@event_priority(100)  # before mkdocs-jupyter looks for notebooks
def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        name, urls = f"notebooks/{path.name}", config.use_directory_urls
        files.append(File(name, str(ROOT), config.site_dir, urls))
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they are in the repository become links of the site."""
    sources = {v: k for k, v in PAGES.items()}
    here = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), link[1]))
        if target in PAGES:
            target = PAGES[target]
        elif target.startswith("docs/") and not target.endswith((".py", ".json")):
            target = target.removeprefix("docs/")
        elif not target.startswith("notebooks/"):
            return f"{config.extra['source']}/blob/main/{target}{link[2] or ''}"
        return posixpath.relpath(target, posixpath.dirname(page.file.src_uri)) + (link[2] or "")

    return LINK.sub(moved, markdown)
