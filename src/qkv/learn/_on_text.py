"""Training on text files: a tokenizer, a fresh model, and the training loop."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self

from qkv._argument_errors import invalid, public_call, type_error, value_error
from qkv.arrays import whole_number
from qkv.files import StrPath, named_folder
from qkv.learn._corpus import ENDS, Corpus, Files, need_two_words, paragraphs, running
from qkv.learn._loop import Trained, checked_limits, train
from qkv.learn._network import Network
from qkv.learn._objectives import Causal, Masked, Objective
from qkv.learn._tokenizer import MAX_TOKENS, SAMPLE, train_tokenizer
from qkv.learn.optimizer import Schedule
from qkv.learn.run_folder import last_checkpoint, need_free, need_same, saving, tokenizer_path
from qkv.models.files.read import TOKENIZER
from qkv.models.untrained import fresh_model
from qkv.text import SubwordTokenizer, Tokenizer

STEPS = 1000  # The number of steps if neither steps nor minutes are given.
_RANGES = {  # The minimum and the maximum of each setting.
    **{"layers": (1, 10_000), "heads": (1, 10_000), "dim": (1, 1_000_000)},
    **{"vocabulary": (300, MAX_TOKENS), "length": (8, 10_000_000)},
    "tokens_per_step": (1, 1_000_000_000),
}


@dataclass(frozen=True)
class TextRun:
    """The settings of `train_on_text`.

    Attributes:
        corpus: the paths of UTF-8 text files.
        objective: "masked" for an encoder (BERT), "causal" for a decoder (GPT-2).
        layers: the number of layers.
        heads: the number of heads in each layer.
        dim: D, the size of the vectors; the hidden size of the MLPs is four times D.
        vocabulary: V, the maximum number of tokens in the vocabulary.
        length: the maximum number of tokens in a text, including special tokens.
        steps: the number of steps; 1000 if neither `steps` nor `minutes` is given.
        minutes: the maximum duration in minutes.
        tokens_per_step: the minimum number of tokens in a step.
        rate: the highest learning rate.
        seed: the seed of the initial weights and of all random numbers.
        tokenizer: the path of a tokenizer.json or of its folder; None trains a tokenizer on the
            corpus.
    """

    corpus: tuple[str, ...]
    objective: Literal["masked", "causal"]
    layers: int = 4
    heads: int = 4
    dim: int = 128
    vocabulary: int = 8192
    length: int = 128
    steps: int | None = None
    minutes: float | None = None
    tokens_per_step: int = 4096
    rate: float = 1e-3
    seed: int = 0
    tokenizer: str | None = None

    @public_call("train")
    def __post_init__(self) -> None:
        if self.objective not in ("masked", "causal"):
            raise value_error(f"objective is {self.objective!r}: choose masked or causal")
        for name, (least, most) in _RANGES.items():
            whole_number(getattr(self, name), name=name, least=least, most=most)
        if self.dim % self.heads:
            raise value_error(
                f"dim is {self.dim} and heads is {self.heads}: dim must be a multiple of heads"
            )
        checked_limits(self.steps, self.minutes, self.seed)
        Schedule(self.rate)
        if isinstance(self.corpus, str | os.PathLike):
            raise type_error(f"corpus is {str(self.corpus)!r}; pass a list of files")
        paths = [
            str(Path(path).absolute()) for path in self.corpus
        ]  # absolute paths, because a run may be resumed in a different folder
        object.__setattr__(self, "corpus", tuple(paths))

    @classmethod
    @public_call("train")
    def of(cls, folder: StrPath, changes: Mapping[str, Any]) -> Self:
        """Read the settings of the run in a folder.

        Raise an error if a setting in `changes` differs from the setting of the run.

        Raises:
            FileNotFoundError: the folder has no run.
            ValueError: a setting differs.
        """
        saved = last_checkpoint(Path(folder))
        if saved is None:
            raise invalid(FileNotFoundError, f"{folder} contains no checkpoint to resume from")
        settings = saved.about["settings"].get("text")
        if not isinstance(settings, dict):
            raise value_error(f"{saved.path} does not belong to a run on text")
        known = {item.name: settings[item.name] for item in fields(cls) if item.name in settings}
        again = cls(**known | dict(changes))
        need_same(settings, asdict(again), saved.path)
        return again

    def config(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """Return the contents of the model's config.json."""
        ids = tokenizer.vocabulary
        if self.objective == "masked":
            return {
                "model_type": "bert",
                "architectures": ["BertForMaskedLM"],
                "vocab_size": len(tokenizer),
                "hidden_size": self.dim,
                "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads,
                "intermediate_size": 4 * self.dim,
                "max_position_embeddings": self.length,
                "hidden_act": "gelu",
                "layer_norm_eps": 1e-12,
                "type_vocab_size": 2,
                "pad_token_id": ids.get("[PAD]", 0),
            }
        end = next((ids[name] for name in ENDS if name in ids), None)
        return {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "vocab_size": len(tokenizer),
            "n_embd": self.dim,
            "n_layer": self.layers,
            "n_head": self.heads,
            "n_positions": self.length,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
            **{"bos_token_id": end, "eos_token_id": end},
        }


@public_call("train")
def train_on_text(
    run: TextRun,
    folder: StrPath,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda _: None,
    show_progress_bar: bool | None = None,
) -> Trained:
    """Train a model on text, and write the model to a folder for `qkv.load` and transformers.

    Args:
        run: the settings.
        folder: a new or empty folder for the model; with `resume`, the folder of the run.
        resume: continue from the last checkpoint.
        say: a function that is called with a message about each part of the work.
        show_progress_bar: as for `train`.

    Raises:
        ValueError: the corpus is empty, has only one word or is not UTF-8; or the folder holds
            other files or a damaged run.
        OSError: a file cannot be read or written.
        Diverged: as for `train`.
        Interrupted: as for `train`.
    """
    home = named_folder(folder)
    if not resume:
        need_free(home)
    need_writable(home)
    files = Files(run.corpus)
    need_two_words(files)
    count, size = len(files.paths), sum(files.sizes)
    say(f"corpus: {count} file{'s' * (count != 1)}, {size:,} bytes")
    tokenizer, how = _tokenizer(run, home, files, resume)
    say(f"tokenizer: {len(tokenizer):,} tokens, {how}")
    model = fresh_model(run.config(tokenizer), tokenizer, seed=run.seed, name=home.name)
    network, objective = Network(model), _objective(run, files, tokenizer)
    say(
        f"model: {model.config['model_type']}, {run.layers} layers, {run.heads} heads, vectors of "
        f"{run.dim}, {network.flat.size:,} numbers"
    )
    path = tokenizer_path(home)
    if not resume:
        with saving("the tokenizer", home):
            path.parent.mkdir(parents=True, exist_ok=True)
            tokenizer.save(path)
    return train(
        network,
        objective,
        folder=home,
        steps=STEPS if run.steps is None and run.minutes is None else run.steps,
        minutes=run.minutes,
        schedule=run.rate,
        seed=run.seed,
        resume=resume,
        settings={"text": asdict(run), "tokenizer": _checksum(path)},
        show_progress_bar=show_progress_bar,
    )


def need_writable(folder: Path) -> None:
    """Raise an OSError if a folder is not writable; the folder need not exist yet."""
    made = []
    try:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise invalid(type(error), f"{folder} cannot be written: {error.strerror}") from None
    finally:
        for path in made:
            with suppress(OSError):
                path.rmdir()


def _tokenizer(
    run: TextRun, home: Path, files: Files, resume: bool
) -> tuple[SubwordTokenizer, str]:
    """Return the tokenizer, and a phrase that says where the tokenizer comes from."""
    if resume:
        path, saved = tokenizer_path(home), last_checkpoint(home)
        tokenizer = SubwordTokenizer.from_file(path)
        if saved is not None and saved.about["settings"].get("tokenizer") != _checksum(path):
            problem = f"its checksum differs from the checksum in {saved.path.name}"
            raise value_error(f"{path} is damaged: {problem}")
        return tokenizer, "from the folder of the run"
    if run.tokenizer is not None:
        path = Path(run.tokenizer)
        path = path / TOKENIZER if path.is_dir() else path
        return SubwordTokenizer.from_file(path), f"from {path}"
    kind: Literal["wordpiece", "bytes"] = "wordpiece" if run.objective == "masked" else "bytes"
    return train_tokenizer(files.lines(SAMPLE), kind, run.vocabulary), "trained on the corpus"


def _checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _objective(run: TextRun, files: Files, tokenizer: Tokenizer) -> Objective:
    """Return the training objective of a run.

    The masked objective learns from paragraphs. The causal objective learns from running text.
    """
    causal = run.objective == "causal"
    cut = running(tokenizer, run.length) if causal else paragraphs(tokenizer, run.length)
    corpus, count = Corpus(files, cut, seed=run.seed), run.tokens_per_step
    if causal:
        return Causal(corpus, tokens_per_step=count)
    return Masked(corpus, tokenizer, tokens_per_step=count)
