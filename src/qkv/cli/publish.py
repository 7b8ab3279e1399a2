"""`qkv publish`: findings as one page."""

from __future__ import annotations

import click

from qkv.cli.common import debug_option, finding_model_option, writable
from qkv.cli.view_command import present

NAME = "qkv-findings.html"


@click.command()
@click.argument("files", nargs=-1, metavar="FILE...", required=True)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    callback=writable(".html", ".htm"),
    default=NAME,
    help=f"Where to write the page. Default: {NAME}.",
)
@click.option("--open", "open_page", is_flag=True, help="Open the page in the browser.")
@finding_model_option
@debug_option
def publish(files: tuple[str, ...], output: str, open_page: bool, model: str | None) -> None:
    """Write FILEs, findings (.json) and up to one article (.md), as one page with the model inside.

    The page measures each finding again, says whether it holds, and lets its reader change
    everything. It needs no network. A paragraph ![claim](finding.json) in the article places a
    finding, relative to the folder of the article; findings that it does not place follow it.

    \b
        qkv publish glass.json -o glass.html
        qkv publish article.md -o article.html
    """  # noqa: D301 (click reads the backspace: what follows is not wrapped)
    from qkv.findings import Finding
    from qkv.findings.measured import view_of

    articles = [file for file in files if file.lower().endswith(".md")]
    if len(articles) > 1:
        raise ValueError(f"there are {len(articles)} articles, {', '.join(articles)}: give one")
    findings = [Finding.load(file) for file in files if file not in articles]
    article = articles[0] if articles else None
    present(
        lambda: view_of(findings, article=article, model=model),
        {"html": output},
        as_json=False,
        open_page=open_page,
    )
