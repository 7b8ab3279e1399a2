"""The rows of docs/coming-from.md, and their expected results from torch on random models."""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

import qkv
from qkv.see.views.view import View

from .hooks import Change, edited
from .models import made
from .sentences import SPECIAL, tokenizer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from.md"
BOUND = 1e-5  # relative to the largest value
LAYERS, HEADS, D = 3, 4, 32
END = "<|endoftext|>"
WIDE = {"intermediate_size": 4 * D}
DECODERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {  # the tests use the first
    "gpt2": (GPT2LMHeadModel, GPT2Config, {}),
    "gpt_neox": (GPTNeoXForCausalLM, GPTNeoXConfig, WIDE),
    "llama": (LlamaForCausalLM, LlamaConfig, WIDE | {"num_key_value_heads": 2}),
}
FENCE = re.compile(r"^```(\S+)[^\n]*\n(.*?)^```$", re.M | re.S)
ROW = re.compile(r"^\*\*(\d+)\.\*\* (.+?) \*([^*]+):\*$", re.M | re.S)


@dataclass(frozen=True)
class Row:
    """A row of the page: a task, and the code for it in another library and in qkv."""

    task: str
    library: str
    theirs: str
    ours: str
    reason: str  # why qkv's code has more statements than theirs, or empty


def page() -> tuple[str, dict[int, Row]]:
    """Return qkv's set-up code, and the rows by number."""
    text = PAGE.read_text(encoding="utf-8")
    starts = [*ROW.finditer(text)]
    ends = [*(start.start() for start in starts[1:]), len(text)]
    rows = {}
    for start, end in zip(starts, ends, strict=True):
        number, task, library = start.groups()
        body = text[start.end() : end]
        (one, theirs), (other, ours) = FENCE.findall(body)
        assert (one, other) == ("python", "{code-cell}"), number
        reason = re.search(r"^(?:One|Two|Three) more, because .*$", body, re.M)
        assert int(number) not in rows, number
        rows[int(number)] = Row(task, library, theirs, ours, reason[0] if reason else "")
    cells = [code for kind, code in FENCE.findall(text[: starts[0].start()]) if kind != "python"]
    return "\n".join(cells), rows


def setups() -> dict[str, str]:
    """Return the page's set-up code for each library other than qkv, keyed by library.

    The code in a library's rows relies on this set-up.
    """
    text = PAGE.read_text(encoding="utf-8")
    begin = text[: next(ROW.finditer(text)).start()]
    found = re.findall(r"\*([^*]+):\*\n\n```python\n(.*?)^```$", begin, re.M | re.S)
    return {library: code for libraries, code in found for library in libraries.split(", ")}


def assigned(code: str) -> list[str]:
    """Return the names assigned outside functions, in order, without `_`."""

    def walk(node: ast.AST) -> Iterator[ast.AST]:
        if not isinstance(node, ast.FunctionDef):
            yield node
            for child in ast.iter_child_nodes(node):
                yield from walk(child)

    nodes = [node for node in walk(ast.parse(code)) if isinstance(node, ast.Assign)]
    targets = [target for node in nodes for target in node.targets]
    names = [node.id for node in flat(targets) if isinstance(node, ast.Name) and node.id != "_"]
    assert names, f"no name is given a value: {code}"
    return names


def flat(targets: list[ast.expr]) -> list[ast.expr]:
    """Return the targets of assignments, with tuples unpacked."""
    return [
        one
        for target in targets
        for one in (flat(target.elts) if isinstance(target, ast.Tuple) else [target])
    ]


def statements(code: str) -> int:
    """Count the statements, also inside functions, without imports and docstrings."""

    def counts(node: ast.AST) -> bool:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        return isinstance(node, ast.stmt) and not (
            docstring or isinstance(node, ast.Import | ast.ImportFrom)
        )

    return sum(map(counts, ast.walk(ast.parse(code))))


def check_form(row: Row) -> None:
    """Check the form of a row's code for qkv.

    Reject private names and loops over layers. If the code has more statements than the code for
    the other library, the row must give a reason. Otherwise, it must give none.
    """
    for node in ast.walk(ast.parse(row.ours)):
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        assert name == "_" or not name.startswith("_"), name
        assert not isinstance(node, ast.While), row.ours
        if isinstance(node, ast.For | ast.comprehension):
            over = f"{ast.unparse(node.target)} in {ast.unparse(node.iter)}"
            assert not re.search("layer|range", over), over
    more = statements(row.ours) - statements(row.theirs)
    assert more <= 0 or row.reason.startswith(("", "One ", "Two ", "Three ")[more]), row.ours
    assert bool(row.reason) == (more > 0), "a reason stands where it is wanted, and there alone"


Expected = Callable[["Theirs"], Any]
EXPECTED: dict[int, Expected] = {}


def row(number: int) -> Callable[[Expected], Expected]:
    """Return a decorator that registers a function under the number of a row.

    The function computes the row's result with torch, such as an array or a dictionary of arrays.
    """

    def mark(expected: Expected) -> Expected:
        assert number not in EXPECTED, number
        EXPECTED[number] = expected
        return expected

    return mark


class Theirs:
    """Random models of transformers with tokenizers, and the results of the page's code on them.

    `text`, `texts` and other variables of the page's set-up are attributes.
    """

    text: str
    texts: list[str]
    clean: str
    corrupted: str
    answer: int
    other: int
    sae_folder: str
    folder: str

    def __init__(self, folder: Path, family: str = "gpt2") -> None:
        setup, self.rows = page()
        words = [*dict.fromkeys(re.findall(r"\w+|[^\w\s]", setup.lower()))]
        bpe = byte_pairs(words)
        bpe.save_pretrained(folder / "decoder")
        tokenizer(words=words).save_pretrained(folder / "encoder")
        sizes = {"hidden_size": D, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
        kind, config_of, more = DECODERS[family]
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        config = config_of(vocab_size=len(bpe), **sizes, **ends, **more)
        decoder = made(folder / "decoder", kind, config)
        bpe.save_pretrained(folder / "changed")
        changed = made(folder / "changed", kind, config, seed=2)
        config = BertConfig(vocab_size=len(words) + len(SPECIAL), intermediate_size=40, **sizes)
        encoder = made(folder / "encoder", BertForMaskedLM, config, seed=1)
        self.decoder, self.encoder, self.changed = decoder.theirs, encoder.theirs, changed.theirs
        loads = {
            ("books-decoder", None): decoder.ours,
            ("books-decoder", "bfloat16"): changed.ours,
            ("books", None): encoder.ours,
        }
        self.sae = autoencoder(folder / "sae")
        setup = setup.replace('"data/books-decoder-sae"', repr(str(folder / "sae")))
        names: dict[str, Any] = {}
        with patch.object(qkv, "load", lambda name, dtype=None: loads[name, dtype]):
            exec(setup, names)
        self.__dict__.update({name: names[name] for name in Theirs.__annotations__})
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "decoder")
        self.encoder_tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "encoder")
        self.found: dict[int, Any] = {}  # the values that each row assigned, or its error
        for number, one in sorted(self.rows.items()):
            try:
                exec(one.ours, names)
                self.found[number] = {name: names[name] for name in assigned(one.ours)}
            except Exception as error:  # the row's own test raises it
                self.found[number] = error
        self.names = names

    def ids(self, text: str) -> torch.Tensor:
        """Return the decoder's ids (1, T) of a text."""
        return torch.tensor(self.tokenizer(text).input_ids)[None]

    def encoder_ids(self, text: str) -> torch.Tensor:
        """Return the encoder's ids (1, T) of a text, with [CLS] and [SEP]."""
        return torch.tensor(self.encoder_tokenizer(text).input_ids)[None]

    def seen(
        self,
        *names: str,
        text: str | None = None,
        ids: torch.Tensor | None = None,
        changes: Mapping[tuple[str, int], Change] = MappingProxyType({}),
    ) -> dict[tuple[str, int], torch.Tensor]:
        """Return the decoder's named activations of every layer, and its logits as ("logits", 0).

        The input is the page's text, another text or ids (1, T); `changes` edits activations. The
        activations retain their gradients.
        """
        ids = self.ids(self.text if text is None else text) if ids is None else ids
        found: dict[tuple[str, int], torch.Tensor] = {}

        def keep(key: tuple[str, int]) -> Change:
            def kept(x: torch.Tensor) -> torch.Tensor:
                x = changes[key](x) if key in changes else x
                if x.requires_grad:
                    x.retain_grad()
                found[key] = x
                return x

            return kept

        keys = [(name, layer) for name in names for layer in range(LAYERS)]
        hooks = {**changes, **{key: keep(key) for key in keys}}
        with edited(self.decoder, "gpt2", hooks):
            found["logits", 0] = self.decoder(ids).logits
        return found

    @torch.no_grad()
    def of_texts(self, name: str, layer: int) -> torch.Tensor:
        """Return an activation at all tokens of all texts, (tokens, ...), one run for each text."""
        return torch.cat([self.seen(name, text=text)[name, layer][0] for text in self.texts])

    def hold(self, number: int) -> None:
        """Check the form of a row and its numbers."""
        row, found = self.rows[number], self.found[number]
        check_form(row)
        if isinstance(found, Exception):
            raise found
        expected = EXPECTED[number](self)
        *_, result = found.values()
        if isinstance(result, View):
            result = result.to_dict()
        if not isinstance(expected, Mapping):
            near(result, expected, row.task)
            return
        assert expected
        for name, part in expected.items():
            near(found[name] if name in found else result[name], part, f"{row.task} {name}")


def autoencoder(folder: Path) -> dict[str, torch.Tensor]:
    """Save a random sparse autoencoder in SAELens's format, and return its parameters."""
    draw = torch.Generator().manual_seed(4)
    shapes = {"W_enc": (D, 3 * D), "W_dec": (3 * D, D), "b_enc": (3 * D,), "b_dec": (D,)}
    found = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    about = {
        **{"architecture": "standard", "d_in": D, "d_sae": 3 * D, "dtype": "float32"},
        **{"device": "cpu", "apply_b_dec_to_input": True, "normalize_activations": "none"},
        "metadata": {"hook_name": "blocks.1.hook_resid_post", "sae_lens_version": "6.54.12"},
    }
    folder.mkdir()
    save_file(found, folder / "sae_weights.safetensors")
    (folder / "cfg.json").write_text(json.dumps(about), encoding="utf-8")
    return found


@dataclass(frozen=True)
class Difference:
    """The number `high - low`, whose error is relative to `high`, not to the difference."""

    high: torch.Tensor
    low: torch.Tensor


def near(found: Any, expected: Any, what: str) -> None:
    """Assert equal shapes and values, up to `BOUND` times the largest value."""
    if isinstance(expected, Difference):
        near(found + float(expected.low), expected.high, what)
        return
    if isinstance(expected, str | list | tuple):
        assert found == expected, what
        return
    expected = expected.detach() if isinstance(expected, torch.Tensor) else expected
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"{what}: {found.shape}, not {expected.shape}"
    assert (np.isnan(found) == np.isnan(expected)).all(), what
    hidden = np.isneginf(expected)
    assert (np.isneginf(found) == hidden).all(), what
    found, expected = (
        np.where(hidden, 0, np.nan_to_num(x)).astype(float) for x in (found, expected)
    )
    off, most = np.abs(found - expected).max(initial=0), np.abs(expected).max(initial=0)
    assert off <= BOUND * most, f"{what}: {off:.1e} of {most:.1e}"


def byte_pairs(words: list[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer like GPT-2's: each of `words`, with the space before it, is one token."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(special_tokens=[END])
    made.train_from_iterator([" ".join(words)] * 2, trainer)
    ends = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), END)
    return PreTrainedTokenizerFast(tokenizer_object=made, **ends)
