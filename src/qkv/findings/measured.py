"""Measure, verify and publish findings: the effects of edits at one position of a text."""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qkv._argument_errors import message, public_call, type_error, value_error
from qkv.arrays import quote, whole_number
from qkv.edits import Ablate, Edit, Hide, edits_of
from qkv.files import StrPath
from qkv.findings._finding_files import read, read_article, write
from qkv.models import load
from qkv.models.files.find import find_model, places, shipped_models
from qkv.models.model import Model
from qkv.models.run.truncation import callers
from qkv.models.tasks.predict import mask_positions
from qkv.see.views.play import FindingsView, findings_view
from qkv.text.tokenizer import check_text

if TYPE_CHECKING:
    from qkv.text import Tokenized

TOP = 5  # A finding stores this many words: the words with the highest probabilities.
# Two probabilities count as equal if they differ by at most this number. The file
# screens/findings.js defines the same tolerance, and a second tolerance for pages that round
# numbers.
TOLERANCE = 1e-4

Prediction = tuple[str, float]
AnyModel = Model | StrPath


class Verification(NamedTuple):
    """The result of measuring a finding again.

    Attributes:
        holds: whether both measurements give the same words in the same order, with probabilities
            that differ by at most 0.0001.
        differences: a sentence for each difference between the two measurements.
    """

    holds: bool
    differences: list[str]

    @property
    def verdict(self) -> str:
        """The result in words, "holds" or "does not hold"."""
        return "holds" if self.holds else "does not hold"


@dataclass(frozen=True)
class Finding:
    """Predictions of a model at one position of a text, before and after edits.

    `finding` measures a finding; `Finding.load` reads one from a file.

    Attributes:
        model: a dict with the "name" of the model and the "sha256" of its stored parameters.
        text: the text as it was given.
        position: the index of a token, from 0. An encoder predicts the word at this position. A
            decoder predicts the token at the next position.
        edits: records that fit the schema `qkv.edits.schema()`.
        claim: a sentence about the effect of the edits.
        before: the five most probable words without edits, with their probabilities.
        after: the five most probable words with edits, with their probabilities.

    >>> import qkv
    >>> finding = qkv.finding(qkv.load("books"), "She drank a glass of _.", hide="glass")
    >>> finding.position, finding.edits
    (6, [{'op': 'hide', 'token': 4}])
    >>> finding.verify().holds
    True
    """

    model: dict[str, str]
    text: str
    position: int
    edits: list[dict[str, Any]]
    claim: str
    before: list[Prediction]
    after: list[Prediction]
    _model: Model | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        (was, share), (now, left) = self.before[0], self.after[0]
        return (
            f"<Finding {self.claim or self.text!r} of {self.model['name']}: {was} {share:.4f} "
            f"before, {now} {left:.4f} after>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the file that `save` writes, as values for JSON."""
        pairs = {name: [list(one) for one in getattr(self, name)] for name in ("before", "after")}
        fields = ("model", "text", "position", "edits", "claim")
        return {"qkv_finding": 1, **{name: getattr(self, name) for name in fields}, **pairs}

    def save(self, path: StrPath) -> None:
        """Write the finding to a JSON file; a failed write does not change the file."""
        write(path, self.to_dict())

    @classmethod
    def load(cls, path: StrPath) -> "Finding":
        """Read a finding from a file.

        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: the file is not a finding; the message gives the field and the broken rule.
        """
        fields = read(path)
        del fields["qkv_finding"]
        for name in ("before", "after"):
            fields[name] = [(word, float(share)) for word, share in fields[name]]
        return cls(**fields)

    @public_call("verify")
    def verify(self, model: AnyModel | None = None) -> Verification:
        """Measure the finding again.

        Args:
            model: the model, its folder, its GGUF file or its name. The default is the finding's
                model, if it comes with qkv or its name is "smollm2". Nothing is downloaded.

        Returns:
            A `Verification` that compares the words and their probabilities. If the model's
                parameters differ from those of the finding's model, the model is not run, and
                `.holds` is false.

        Raises:
            FileNotFoundError: the model is not on this machine.
            ValueError: `model` is None and qkv does not know the name of the finding's model; or
                the position or the edits of the finding do not fit the text.
        """
        used = self._choose_model(model)
        other = used.sha256 != self.model["sha256"]
        differences = [self._other(used)] if other else self._differences(used)
        return Verification(not differences, differences)

    @public_call("publish")
    def to_html(self, path: StrPath, model: AnyModel | None = None, *, theme: str = "auto") -> None:
        """Write a page with only this finding; see `publish`."""
        publish(path, [self], model=model, theme=theme)

    def _choose_model(self, model: AnyModel | None) -> Model:
        """Return the model with which the finding is measured."""
        if isinstance(model, Model):
            return model
        if model is not None:
            find_model(model, download=False)
            return load(model)
        if self._model is not None:
            return self._model
        name = self.model["name"]
        if name not in {known for known, *_ in places()}:
            raise value_error(
                f"the finding belongs to {quote(name)}, which does not come with qkv; "
                "pass that model or its folder"
            )
        find_model(name, download=False)
        return load(shipped_models().get(name, name))

    def _differences(self, used: Model) -> list[str]:
        """Describe each difference between new predictions and the finding's predictions."""
        tokens = _tokens(used, self.text)
        measured = _predict(used, tokens, self.position, self.edits)
        differences = []
        pairs = zip(("before", "after"), (self.before, self.after), measured, strict=True)
        for name, old, new in pairs:
            for rank, (one, other) in enumerate(zip_longest(old, new[: len(old)]), 1):
                if other is None or one[0] != other[0] or not abs(one[1] - other[1]) <= TOLERANCE:
                    here = "nothing" if other is None else f"{other[0]} ({other[1]:.4f})"
                    there = f"{one[0]} ({one[1]:.4f})"
                    differences.append(f"{name}, word {rank}: {there} in the finding, {here} here")
        return differences

    def _other(self, used: Model) -> str:
        """Return the error message for a model whose parameters differ from the finding's model."""
        name, sha256 = self.model["name"], self.model["sha256"]
        return (
            f"the parameters differ: the finding belongs to {name}, sha256 {sha256[:12]}..., but "
            f"this model is {used.name}, sha256 {used.sha256[:12]}..."
        )


@public_call("finding")
def finding(
    model: AnyModel,
    text: str,
    *,
    position: int | None = None,
    ablate: Ablate = (),
    hide: Hide = (),
    edit: Edit = None,
    claim: str = "",
) -> Finding:
    """Measure how edits change the predictions at one position of a text.

    Args:
        model: an encoder with a language-model head, or a decoder; or its folder, its GGUF file or
            its name, such as "smollm2".
        text: a string; "[MASK]", "_" or "?" marks a missing word, as in `Model.predict`.
        position: a token's position; negative numbers count from the end. An encoder predicts the
            word at this position. A decoder predicts the token at the next position. By default,
            an encoder uses the first mask token, and a decoder uses the last token.
        ablate: heads to ablate, as in `Model.trace`.
        hide: words, positions and edges to mask, as in `Model.trace`.
        edit: a list of records, or a mapping from activations to arrays, which is converted to
            records. Functions are not allowed, because they cannot be converted.
        claim: a sentence about the effect of the edits.

    Returns:
        The finding: `.before` and `.after` contain the five most probable words.

    Raises:
        TypeError: `model` is not a model or a name, or the text or the claim is not a string.
        ValueError: the model does not predict words; the text is empty or too long, or lacks a
            mask; the position does not exist; or an edit is a function or does not fit the text.

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> finding = qkv.finding(model, "The king and the", ablate=[(0, 1)], claim="0.1 matters.")
    >>> finding.position, [len(finding.before), len(finding.after)]
    (3, [5, 5])
    """
    check_text(claim, name="claim")
    model = model if isinstance(model, Model) else load(model)
    tokens = _tokens(model, text)
    if position is None and model.generates:
        position = -1
    elif position is None:
        [position, *_] = mask_positions(tokens, model.tokenizer, model.name)
    position = whole_number(position, name="position", least=-sys.maxsize)
    position += len(tokens) * (position < 0)
    edits = model.edit_records(edits_of(edit, ablate, hide), tokens)
    before, after = _predict(model, tokens, position, edits)
    about = {"name": model.name, "sha256": model.sha256}
    return Finding(about, text, position, edits, claim, before, after, model)


@public_call("verify")
def verify_files(
    paths: Sequence[StrPath], model: AnyModel | None = None
) -> list[tuple[Finding, Verification]]:
    """Read findings and verify them as `Finding.verify` does. Each model is loaded only once.

    Raises:
        FileNotFoundError, ValueError: `Finding.load` or `Finding.verify` fails; the message names
            the file.
    """
    findings = [Finding.load(path) for path in paths]
    used: dict[str, Model] = {}
    results = []
    for path, one in zip(paths, findings, strict=True):
        name = "" if model is not None else one.model["name"]
        try:
            if name not in used:
                used[name] = one._choose_model(model)
            results.append((one, one.verify(used[name])))
        except ValueError as error:
            raise ValueError(f"{path}: {message(error)}") from error
    return results


@public_call("publish")
def publish(
    path: StrPath,
    findings: Finding | Sequence[Finding] = (),
    *,
    article: StrPath | None = None,
    model: AnyModel | None = None,
    theme: str = "auto",
) -> None:
    """Write one page with findings and their model; the page works offline.

    The page begins with the claims. For each finding, the page shows the predictions before and
    after the edits. The page runs the embedded model again, and says whether the predictions are
    still the same. Readers can change the text and the edits.

    Args:
        path: the HTML file.
        findings: the findings to show, which must all belong to one model.
        article: a Markdown file. Each paragraph `![claim](finding.json)` is replaced by the finding
            in finding.json; the path is relative to the article's folder. Findings that the article
            does not name are shown below the article.
        model: the model, its folder, its GGUF file or its name; needed unless the model is
            "smollm2" or comes with qkv.
        theme: "light", "dark", or "auto" for the system's theme.

    Raises:
        FileNotFoundError: a file or the model is not on this machine.
        ValueError: no finding is given; the findings belong to several models; the model's
            parameters do not match the findings' sha256; a file is damaged; or a page cannot run
            the model.

    >>> import qkv, tempfile
    >>> finding = qkv.finding(qkv.load("books"), "She drank a glass of _.", hide="glass")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     qkv.publish(f"{folder}/page.html", [finding])
    """
    view_of(findings, article=article, model=model, theme=theme).to_html(path)


def view_of(
    findings: Finding | Sequence[Finding],
    *,
    article: StrPath | None = None,
    model: AnyModel | None = None,
    theme: str = "auto",
) -> FindingsView:
    """Return a view object whose HTML page is the page that `publish` writes."""
    title = ""
    listed = [findings] if isinstance(findings, Finding | str) else list(findings)
    for one in listed:
        if not isinstance(one, Finding):
            raise type_error(
                f"`findings` contains {quote(one)}; pass findings from qkv.finding or "
                "qkv.Finding.load"
            )
    parts: list[str | Finding] = []
    if article is not None:
        title, parts = read_article(article, _load)
    in_article = [_content(part) for part in parts if isinstance(part, Finding)]
    parts += [one for one in listed if _content(one) not in in_article]
    every = [part for part in parts if isinstance(part, Finding)]
    if not every:
        where = "" if article is None else f" or placed in {article}"
        raise value_error(f"no finding was given{where}; pass at least one finding")
    names = {one.model["sha256"]: one.model["name"] for one in every}
    if len(names) > 1:
        raise value_error(
            f"the findings belong to {len(names)} models, {' and '.join(names.values())}: "
            "publish one page per model"
        )
    default = next((one._model for one in every if one._model is not None), None)
    used = every[0]._choose_model(default if model is None else model)
    if used.sha256 not in names:
        raise value_error(f"{every[0]._other(used)}; pass the model of the finding")
    for one in every:
        differences = one._differences(used)
        if differences:
            warnings.warn(
                f"{one.claim or one.text!r} does not hold, which the page also reports: "
                f"{differences[0]}",
                UserWarning,
                stacklevel=callers(),
            )
    content = [part if isinstance(part, str) else part.to_dict() for part in parts]
    return findings_view(used, content, title or every[0].claim or every[0].text, theme=theme)


def _content(one: Finding) -> dict[str, Any]:
    """Return the content of a finding without its claim."""
    return one.to_dict() | {"claim": ""}


def _load(path: Path, claim: str) -> Finding:
    """Read a finding from a file; `claim` is used if the file has no claim."""
    one = Finding.load(path)
    return one if one.claim else replace(one, claim=claim)


def _tokens(model: Model, text: str) -> "Tokenized":
    """Return the tokens of a text. Raise an error if the text is too long for the model.

    Raises:
        ValueError: the model does not predict words, or the text is empty or too long.
    """
    check_text(text, name="text")
    model.need("analyse")
    model.need("predict")
    model.reader.need_tokenizer()
    tokens, limit = model.tokenize(text), model.max_seq_length
    if all(tokens.special) and model.mask not in tokens.tokens:
        raise value_error("the text is empty; pass a text with words")
    if limit is not None and len(tokens) > limit:
        raise value_error(
            f"the text has {len(tokens)} tokens, but {model.name} reads at most {limit} "
            "tokens: shorten the text"
        )
    return tokens


def _predict(
    model: Model, tokens: "Tokenized", position: int, edits: Sequence[dict[str, Any]]
) -> list[list[Prediction]]:
    """Return the most probable words at a position, without edits and with edits."""
    if not 0 <= position < len(tokens):
        raise value_error(
            f"position is {quote(position)}, but the text has {len(tokens)} tokens; pass 0 "
            f"to {len(tokens) - 1}"
        )
    top = min(TOP, model.need_words())
    runs = [edits_of(some, argument="edits") for some in ([], list(edits))]
    return [model.guesses(tokens, [position], top, run)[0] for run in runs]
