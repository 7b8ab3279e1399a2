"""`qkv walk`: one head step by step, and on to the likeliest words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qkv.cli.view_command import view_command

if TYPE_CHECKING:
    from qkv.see import View


@click.command()
@click.argument("text")
@view_command()
@click.option("--dim", type=click.IntRange(1), help="Random model: size of the vectors (8).")
@click.option("--heads", type=click.IntRange(1), help="Random model: number of heads (2).")
@click.option("--seed", type=click.IntRange(0), help="Random model: what to draw it from (0).")
@click.option("--causal", is_flag=True, help="Random model: no word sees those after it.")
@click.option("--no-positions", is_flag=True, help="Random model: words without their places.")
def walk(
    text: str,
    model: str | None,
    dim: int | None,
    heads: int | None,
    seed: int | None,
    causal: bool,
    no_positions: bool,
    **options: Any,
) -> View:
    """Each step of one head over TEXT: its formula, its NumPy line, its real numbers.

    From the head on through the layer, its norms and its MLP; then the model's head, to the
    likeliest words at the first [MASK] of TEXT, or at the token of the head's strongest link.
    """
    from qkv import see
    from qkv.models import random_model
    from qkv.see.analysis.inputs import texts_of

    sizes = {"dim": dim, "heads": heads, "seed": seed}
    given: dict[str, Any] = {n: value for n, value in sizes.items() if value is not None}
    flags = {"--causal": causal, "--no-positions": no_positions}
    used = [*(f"--{name}" for name in given), *(name for name in flags if flags[name])]
    if used and model != "random":
        raise click.UsageError(f"{', '.join(used)} shapes the random model: add --model random")
    chosen: Any = model
    if used:
        given |= {"causal": causal, "positions": not no_positions}
        chosen = random_model(texts_of([text], "walk"), **given)
    return see.walk(text, model=chosen, **options)
