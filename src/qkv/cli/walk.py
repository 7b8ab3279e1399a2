"""`qkv walk`: one head step by step."""

from __future__ import annotations

from typing import Any

import click

from qkv.cli.common import Output, present, view_options


@click.command()
@click.argument("text")
@view_options(layer=0, head=0)
@click.option("--dim", type=click.IntRange(1), help="Random model: size of the vectors (8).")
@click.option("--heads", type=click.IntRange(1), help="Random model: number of heads (2).")
@click.option("--seed", type=click.IntRange(0), help="Random model: what to draw it from (0).")
@click.option("--causal", is_flag=True, help="Random model: no word sees those after it.")
@click.option("--no-positions", is_flag=True, help="Random model: words without their places.")
def walk(
    text: str,
    layer: int,
    head: int,
    model: str | None,
    dim: int | None,
    heads: int | None,
    seed: int | None,
    causal: bool,
    no_positions: bool,
    stretch: bool,
    **output: Any,
) -> None:
    """Each step of one head over TEXT: its formula, its NumPy line, its real numbers."""
    from qkv import see
    from qkv.see.analysis import inputs

    named = {"--dim": dim, "--heads": heads, "--seed": seed}
    named |= {"--causal": causal or None, "--no-positions": no_positions or None}
    used = [name for name, value in named.items() if value is not None]
    if used and model != "random":
        raise click.UsageError(f"{', '.join(used)} shapes the random model: add --model random")
    options: dict[str, Any] = {"causal": causal, "positions": not no_positions}
    sizes = {"dim": dim, "heads": heads, "seed": seed}
    options |= {name: value for name, value in sizes.items() if value is not None}

    def make() -> see.WalkView:
        chosen: Any = inputs.lesson_model([text], "walk", **options) if used else model
        return see.walk(text, layer, head, model=chosen, stretch=stretch)

    present(make, Output(**output))
