"""`qkv verify`: measures findings again."""

from __future__ import annotations

import click

from qkv.cli.common import (
    FAILED,
    debug_option,
    finding_model_option,
    json_option,
    print_json,
    tell,
)
from qkv.visible import visible


@click.command()
@click.argument("files", nargs=-1, metavar="FILE...", required=True)
@finding_model_option
@json_option
@debug_option
@click.pass_context
def verify(
    context: click.Context, files: tuple[str, ...], model: str | None, as_json: bool
) -> None:
    """Measure the findings in FILEs (.json) again, and say which ones hold.

    A finding holds if the model has the parameters of the finding, words keep their order, and
    probabilities agree to 0.0001. Exit code 0: all hold; 1: one does not; 2: a bad request. Nothing
    is downloaded.
    """
    from qkv.findings.measured import verify_files

    found = verify_files(files, model)
    if as_json:
        print_json([
            {"file": file, "claim": finding.claim, "model": finding.model["name"], **one._asdict()}
            for file, (finding, one) in zip(files, found, strict=True)
        ])  # fmt: skip
    else:
        for file, (finding, one) in zip(files, found, strict=True):
            says = visible(finding.claim or finding.text)
            tell(f"{visible(file)}: {'holds' if one.holds else 'does not hold'}: {says}")
            for difference in one.differences:
                tell(f"  {visible(difference)}")
    if not all(one.holds for _, one in found):
        context.exit(FAILED)
