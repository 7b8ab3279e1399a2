"""`qkv conform`, which prints a report card for an attention function."""

from typing import TYPE_CHECKING, Any

import click

from qkv._visible import visible
from qkv.cli._options import json_option, writable
from qkv.cli._output import console, print_json
from qkv.cli._program import FAILED

if TYPE_CHECKING:
    from qkv_marking.conformance.report import Report

_COLOURS = {
    "right": "green",
    "wrong": "bold red",
    "fragile": "magenta",
    "refused": "yellow",
    "absent": "dim",
}


def _split(context: click.Context, parameter: click.Parameter, text: str | None) -> Any:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _pairs(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> Any:
    """Parse options of the form `theirs=ours` into a dict."""
    pairs = [pair for text in texts for pair in text.split(",")]
    if wrong := [pair for pair in pairs if pair.count("=") != 1]:
        raise click.BadParameter(
            f"{wrong[0]} is not a pair; write THEIRS=OURS, for example mask=attn_mask"
        )
    return dict(pair.split("=") for pair in pairs) or None


@click.command()
@click.argument("function")
@click.option(
    "--arrays",
    default="numpy",
    show_default=True,
    metavar="LIBRARY",
    help="The array library that the function uses: numpy, torch or jax.",
)
@click.option(
    "--names",
    multiple=True,
    metavar="THEIRS=OURS",
    callback=_pairs,
    help="The function's name for an argument, then qkv's name, for example mask=attn_mask; may be"
    " repeated.",
)
@click.option(
    "--dtypes",
    default="float32",
    show_default=True,
    callback=_split,
    metavar="TYPE,...",
    help="The types of the arrays, separated by commas: float16, bfloat16, float32, float64.",
)
@click.option(
    "--gradient",
    metavar="FUNCTION",
    help="The backward pass, called as gradient(query, key, value, grad_out, **arguments).",
)
@click.option("--features", callback=_split, metavar="NAME,...", help="Test only these features.")
@click.option(
    "--aligned",
    default="end",
    show_default=True,
    metavar="start|end",
    help="How a function without q_offset aligns queries with keys if there are not as many "
    "queries as keys: 'start' aligns the first query with the first key, 'end' aligns the last "
    "query with the last key.",
)
@click.option("--device", default="", metavar="NAME", help="The device of torch or JAX arrays.")
@click.option("--strict", is_flag=True, help="Count fragile features as wrong.")
@click.option("--seed", type=click.IntRange(0), default=0, help="The seed of the random cases.")
@click.option(
    "--seconds", type=float, default=10.0, show_default=True, help="The time limit of each call."
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
    help="Also write the results as JUnit XML, with one test case for each feature.",
)
@json_option
def conform(html: str | None, junit: str | None, as_json: bool, **options: Any) -> None:
    """Compare an attention function with the attention formula, feature by feature.

    FUNCTION is package.module:function, file.py:function, model.onnx, or the attention of an
    installed library, for example torch.sdpa. The command calls FUNCTION in a separate process
    as function(query, key, value, **arguments) with arrays of shape (B, H, L, d). The exit code is
    0 if no feature is wrong, else 1. A feature is fragile if it is right for ordinary inputs but
    fails for inputs with NaN or infinity or for queries that see no key, or if two runs do not give
    the same bits.
    """
    from qkv_marking.conformance.card import conform as judge

    report = judge(options.pop("function"), **options)
    if html is not None:
        report.to_html(html)
    if junit is not None:
        report.to_junit(junit)
    if as_json:
        print_json(report.to_dict())
    else:
        _print(report)
    if not report.passed:
        click.get_current_context().exit(FAILED)


def _print(report: "Report") -> None:
    """Print the report card: a row for each feature, and a summary."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, status in report.features.items():
        says = Text(visible(report.remark(name)))
        for line in report.details(name):
            style = {"- ": "red", "+ ": "green"}.get(line[:2], "dim")
            says.append("\n" + visible(line), style=style)
        table.add_row(name, Text(status, style=_COLOURS[status]), says)
    screen = console()
    screen.print(Text(visible(report.name), style="bold"))
    screen.print(table)
    for line in (*report.notes(), report.summary()):
        screen.print(Text(visible(line)))
