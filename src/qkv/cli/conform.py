"""`qkv conform`: a report card for anybody's attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qkv.cli.common import FAILED, console, json_option, print_json, writable
from qkv.visible import visible

if TYPE_CHECKING:
    from qkv.marking.conformance import Report

_COLOURS = {"right": "green", "wrong": "bold red", "refused": "yellow", "absent": "dim"}


def _split(context: click.Context, parameter: click.Parameter, given: str | None) -> Any:
    return None if given is None else [one.strip() for one in given.split(",") if one.strip()]


def _pairs(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> Any:
    """theirs=ours, as a dict."""
    pairs = [one for text in given for one in text.split(",")]
    if wrong := [one for one in pairs if one.count("=") != 1]:
        raise click.BadParameter(f"{wrong[0]}: write THEIRS=OURS, as mask=attn_mask")
    return dict(one.split("=") for one in pairs) or None


@click.command()
@click.argument("function")
@click.option(
    "--arrays",
    default="numpy",
    show_default=True,
    metavar="LIBRARY",
    help="What it takes: numpy, torch or jax.",
)
@click.option(
    "--names",
    multiple=True,
    metavar="THEIRS=OURS",
    callback=_pairs,
    help="An argument with another name, as mask=attn_mask; may be given repeatedly.",
)
@click.option(
    "--dtypes",
    default="float32",
    show_default=True,
    callback=_split,
    metavar="TYPE,...",
    help="float16, bfloat16, float32 or float64.",
)
@click.option(
    "--gradient",
    metavar="FUNCTION",
    help="Its backward pass, called with the upstream gradient behind value.",
)
@click.option("--features", callback=_split, metavar="NAME,...", help="Judge these alone.")
@click.option(
    "--aligned",
    default="end",
    show_default=True,
    metavar="start|end",
    help="Where its queries stand if L and S differ and it takes no q_offset.",
)
@click.option("--device", default="", metavar="NAME", help="Where torch or JAX arrays stand.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Draws the random cases.")
@click.option(
    "--seconds", type=float, default=10.0, show_default=True, help="How long one call may take."
)
@click.option(
    "--html",
    callback=writable(".html", ".htm"),
    metavar="FILE",
    help="Also write the card as a page.",
)
@click.option(
    "--junit",
    callback=writable(".xml"),
    metavar="FILE",
    help="Also write a test for each feature as JUnit XML.",
)
@json_option
@click.pass_context
def conform(
    context: click.Context,
    /,
    html: str | None,
    junit: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Judge an attention function against the formula: which features are right, what is wrong?

    FUNCTION is package.module:function, file.py:function, model.onnx, or the attention of a
    library that is installed: torch.sdpa. It is called as function(query, key, value, **arguments)
    with arrays (B, H, L, d), in a process of its own. Exit code 0 means that nothing is wrong, 1
    that something is.
    """
    from qkv.marking.conformance import conform as judge

    report = judge(given.pop("function"), **given)
    if html is not None:
        report.to_html(html)
    if junit is not None:
        report.to_junit(junit)
    if as_json:
        print_json(report.to_dict())
    else:
        _print(report)
    if not report.passed:
        context.exit(FAILED)


def _print(report: Report) -> None:
    """The card, a row for each feature and what went wrong below it."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, status in report.features.items():
        told = Text(visible(report.remark(name)))
        for line in report.details(name):
            style = {"- ": "red", "+ ": "green"}.get(line[:2], "dim")
            told.append("\n" + visible(line), style=style)
        table.add_row(name, Text(status, style=_COLOURS[status]), told)
    screen = console()
    screen.print(Text(visible(report.name), style="bold"))
    screen.print(table)
    screen.print(Text(report.summary()))
