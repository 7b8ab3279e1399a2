"""The commands `qkv publish` and `qkv verify`, which read files of findings."""

import click

from qkv._visible import visible
from qkv.cli._options import json_option
from qkv.cli._output import print_json, tell
from qkv.cli._program import FAILED
from qkv.cli._views import page_options, present

_model_option = click.option(
    "--model",
    metavar="NAME",
    help="The model that the findings are about: a folder, a GGUF file, or the name of a model "
    "that is already downloaded. Not needed for findings about smollm2 or a model that comes with "
    "qkv.",
)


@click.command()
@click.argument("files", nargs=-1, metavar="FILE...", required=True)
@page_options("qkv-findings.html")
@_model_option
def publish(files: tuple[str, ...], output: str, open_page: bool, model: str | None) -> None:
    """Write findings (.json) and at most one article (.md) as one page that contains the model.

    The page measures each finding again, says whether the finding holds, and lets readers change
    its sentence and edits. The page needs no network. To insert a finding into the article, write a
    paragraph ![claim](finding.json), with a path relative to the article's folder. All other
    findings appear below the article.

    \b
        qkv publish glass.json -o glass.html
        qkv publish article.md -o article.html
    """  # noqa: D301 (\b tells click not to wrap the next lines)
    from qkv.findings import Finding
    from qkv.findings.measured import view_of

    articles = [file for file in files if file.lower().endswith(".md")]
    if len(articles) > 1:
        raise ValueError(
            f"there are {len(articles)} articles, {', '.join(articles)}; pass only one"
        )
    findings = [Finding.load(file) for file in files if file not in articles]
    article = articles[0] if articles else None
    present(
        lambda: view_of(findings, article=article, model=model),
        {"html": output},
        open_page=open_page,
    )


@click.command()
@click.argument("files", nargs=-1, metavar="FILE...", required=True)
@_model_option
@json_option
def verify(files: tuple[str, ...], model: str | None, as_json: bool) -> None:
    """Measure the findings in FILEs (.json) again, and say which of them hold.

    A finding holds if the model's parameters and the order of the predicted words are the same as
    in the file, and the probabilities differ from those in the file by at most 0.0001. The exit
    code is 0 if all findings hold, 1 if any finding does not hold, and 2 for a bad request. The
    command never downloads a model.
    """
    from qkv.findings.measured import verify_files

    verified = [(file, *pair) for file, pair in zip(files, verify_files(files, model), strict=True)]
    if as_json:
        print_json([
            {
                **{"file": file, "claim": finding.claim, "model": finding.model["name"]},
                **result._asdict(),
            }
            for file, finding, result in verified
        ])  # fmt: skip
    else:
        for file, finding, result in verified:
            claim = visible(finding.claim or finding.text)
            tell(f"{visible(file)}: {result.verdict}: {claim}")
            for difference in result.differences:
                tell(f"  {visible(difference)}")
    if not all(result.holds for *_, check in verified):
        click.get_current_context().exit(FAILED)
