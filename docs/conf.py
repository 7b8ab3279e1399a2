"""Sphinx configuration: every page is executed on every build, and a warning is an error."""

import json
import os
import re
import sys
from pathlib import Path

# Matplotlib builds its font cache at this import, before any cell runs. Otherwise, a cell would
# build the cache, and the page would show Matplotlib's message about the cache.
import matplotlib.font_manager  # noqa: F401
from docutils import nodes
from sphinx.util.inspect import TypeAliasForwardRef

import qkv

sys.path.insert(0, str(Path(__file__).parent))  # Sphinx does not add this file's folder to sys.path
import live
import notebooks
import slides
from substitutions import filled

# Sphinx would print "tuple[TypeAliasForwardRef('Array'), ...]" for an alias inside another type.
TypeAliasForwardRef.__repr__ = lambda alias: alias.name

project = "qkv"
author = "the qkv authors"
copyright = f"2026, {author}"
version = release = qkv.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx-mathjax-offline",
]
# `write_findings` publishes the articles in findings/
exclude_patterns = ["_build", "README.md", "findings/*"]

myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

nb_execution_mode = "force"
nb_execution_show_tb = True  # if a cell fails, the build fails, but only after all pages are built
nb_execution_timeout = 120
nb_merge_streams = True
nb_output_stderr = "warn"  # output on standard error fails the build
# do not log that a worker outlives its scheduler; real failures still raise errors
os.environ["DASK_LOGGING__DISTRIBUTED"] = "critical"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_type_aliases = {"Array": "Array", "ArrayLike": "ArrayLike"}
autodoc_preserve_defaults = True
default_role = "code"  # docstrings write `code` with single backticks
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # fields of named tuples are members too: describe them only once

html_theme = "furo"
html_title = "qkv"
html_static_path = ["static"]
html_css_files = ["course.css"]
# a page opened from a disk may not read other pages, so the search cannot show excerpts
ALONE = 'if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;'
html_js_files = [(None, {"body": ALONE})]
html_copy_source = False  # pages do not link to their source


def tidy_notebooks(app, error):
    """Remove links from downloaded notebooks if they work only on the site; fold hidden cells."""
    for path in Path(app.outdir, "_downloads").rglob("*.ipynb"):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                text = re.sub(r"^.*\{nb-download\}.*\n?", "", "".join(cell["source"]), flags=re.M)
                cell["source"] = re.sub(r"\[([^\]]+)\]\([\w./-]+\.md[^)]*\)", r"\1", text)
            elif "remove-cell" in cell["metadata"].get("tags", []):
                cell["metadata"]["jupyter"] = {"source_hidden": True}
        path.write_text(json.dumps(notebook, indent=1), encoding="utf-8")


def fill_in(app, docname, source):
    """Put the numbers of the included models into a page."""
    source[0] = filled(source[0])


def offer_notebooks(app, doctree):
    """Put the links to a lesson's two notebooks and to its slides under its title."""
    page = Path(app.env.doc2path(app.env.docname))
    if page in notebooks.lessons():
        links = [
            f'<a href="{page.stem}-{kind}.ipynb" download>the {kind}\'s</a>'
            for kind in notebooks.KINDS
        ]
        links = (
            f'As a notebook: {" or ".join(links)}. As <a href="{page.stem}-slides.html">slides</a>'
        )
        line = f'<p class="notebooks">{links}.</p>'
        title = next(iter(doctree.findall(nodes.title)))
        title.parent.insert(title.parent.index(title) + 1, nodes.raw("", line, format="html"))


def fold_boxes(app, doctree):
    """Fold the hints and the notes for teachers."""
    for box in doctree.findall(nodes.admonition):
        if {"dropdown", "teacher"} & set(box["classes"]):
            box["collapsible"] = "closed"


def write_notebooks(app, error):
    """Write the notebooks of each lesson into the folder of its page."""
    if error is None and app.builder.format == "html":
        for page in notebooks.lessons():
            notebooks.write(page, Path(app.outdir, "course"))


def write_slides(app, error):
    """Write the slides of each lesson into the folder of its page."""
    if error is None and app.builder.format == "html":
        for page in notebooks.lessons():
            slides.write(Path(app.outdir, "course", f"{page.stem}.html"))


def write_play(app, error):
    """Write the live page, which index.md shows in a frame, into the output folder."""
    if error is None and app.builder.format == "html":
        qkv.play().to_html(Path(app.outdir, "play.html"))


def write_findings(app, error):
    """Publish the articles in findings/, which findings.md links to."""
    if error is None and app.builder.format == "html":
        folder = Path(app.outdir, "findings")
        folder.mkdir(exist_ok=True)
        for article in Path(app.srcdir, "findings").glob("*.md"):
            qkv.publish(folder / f"{article.stem}.html", article=article)


def setup(app):
    """Register the functions above; Sphinx calls this function after reading the configuration."""
    live.setup(app)
    app.connect("source-read", fill_in)
    app.connect("doctree-read", offer_notebooks)
    app.connect("doctree-read", fold_boxes)
    app.connect("build-finished", tidy_notebooks)
    app.connect("build-finished", write_notebooks)
    app.connect("build-finished", write_slides)
    app.connect("build-finished", write_play)
    app.connect("build-finished", write_findings)
