"""Sparse autoencoders: vectors of a model as sums of a few features out of many."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array, as_array, is_float, is_whole_number, shown, whole_number
from qkv.circuits.checks import check_model
from qkv.circuits.sae_files import ARCHITECTURES, read_folder, write_folder
from qkv.circuits.sae_training import largest, measures, shuffled, trained
from qkv.circuits.streaming import one_site, rows_of
from qkv.models.model import Model
from qkv.ops.linear import linear
from qkv.ops.packing import frozen
from qkv.progress import progress
from qkv.trace import Recorder
from qkv.trace.activations import parse

_INNER = {"z": "attn.", "q": "attn.", "k": "attn.", "v": "attn.", "pre": "mlp.", "post": "mlp."}


class SAE:
    """A sparse autoencoder: it writes vectors of a model as sums of a few features out of many.

    `features = encode(x)` are n numbers of at least 0, few of them above 0; `decode(features)` is
    `features @ W_dec + b_dec`, which should be near `x`. What `encode` does follows from what is
    given:

    - `relu((x - b_dec) @ W_enc + b_enc)`;
    - with `k`, the k largest of these in each row, all others 0 (TopK);
    - with `threshold`, those above it, all others 0 (JumpReLU);
    - with `b_gate`, `b_mag` and `r_mag`, for `y = (x - b_dec) @ W_enc` a feature is
      `relu(y * exp(r_mag) + b_mag)` where `y + b_gate` is above 0 (gated).

    An SAE is an edit of its site: `model.trace(text, edit={sae.at: sae})` runs the model on what it
    decodes. The trace then has the features too, by the name that SAELens gives them
    ("blocks.3.hook_resid_post.hook_sae_acts_post", or ("sae_acts_post", 3)), and an edit of that
    name changes features on the way.

    Args:
        encoder: `W_enc` (D, n). For a site of heads ("z") D is the size of all heads together.
        decoder: `W_dec` (n, D).
        b_enc: (n,), 0 unless given; not for a gated one.
        b_dec: (D,), 0 unless given.
        at: the activation, by its full name or as ("resid_post", 3).
        k: how many features of a row fire at most.
        threshold: (n,), below which a feature is 0.
        b_gate: (n,).
        b_mag: (n,).
        r_mag: (n,).
        subtracts_bias: whether `b_dec` is taken from `x` before it is encoded.
        metadata: what the file says beside: "model_name" and its like.

    Attributes:
        architecture: "standard", "topk", "jumprelu" or "gated".
        parameters: the arrays by their names in the file, float32 or float64, read-only.
        at: the full name of the activation, or None.
        keeps_error: whether, as an edit, it adds what it does not reconstruct (`keeping_error`).

    Raises:
        TypeError: an argument is of a wrong type.
        ValueError: shapes do not fit, or arguments of two architectures are given.

    Source:
        Bricken et al. 2023, "Towards Monosemanticity"; Gao et al. 2024, "Scaling and evaluating
        sparse autoencoders" (TopK); Rajamanoharan et al. 2024, "Jumping Ahead" (JumpReLU) and
        "Improving Dictionary Learning with Gated Sparse Autoencoders".

    >>> sae = SAE(np.eye(2), np.eye(2), at=("resid_post", 0), k=1)
    >>> sae.encode(np.array([[3.0, 1.0]])), sae(np.array([[3.0, 1.0]])), sae.at
    (array([[3., 0.]]), array([[3., 0.]]), 'blocks.0.hook_resid_post')
    """

    hooks: ClassVar[tuple[str, ...]] = ("hook_sae_acts_post",)

    def __init__(
        self,
        encoder: ArrayLike,
        decoder: ArrayLike,
        b_enc: ArrayLike | None = None,
        b_dec: ArrayLike | None = None,
        *,
        at: str | tuple[str, int] | None = None,
        k: int | None = None,
        threshold: ArrayLike | None = None,
        b_gate: ArrayLike | None = None,
        b_mag: ArrayLike | None = None,
        r_mag: ArrayLike | None = None,
        subtracts_bias: bool = True,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        gate = {"b_gate": b_gate, "b_mag": b_mag, "r_mag": r_mag}
        kinds = {"topk": k, "jumprelu": threshold, "gated": next(
            (array for array in gate.values() if array is not None), None)}  # fmt: skip
        own = [name for name, given in kinds.items() if given is not None]
        if len(own) > 1:
            raise ValueError(
                f"SAE: arguments of {' and '.join(own)} are given: give k, threshold, or b_gate, "
                "b_mag and r_mag"
            )
        self.architecture = own[0] if own else "standard"
        if self.architecture == "gated" and b_enc is not None:
            raise ValueError("SAE: b_enc is given, and a gated one has b_gate and b_mag instead")
        arrays = {"W_enc": encoder, "W_dec": decoder, "b_enc": b_enc, "b_dec": b_dec}
        arrays |= {"threshold": threshold, **gate}
        self.parameters = _checked(arrays, self.architecture)
        self.k = None if k is None else whole_number(
            k, call="SAE", name="k", least=1, most=self.num_features
        )  # fmt: skip
        self.at: str | None = _full_name(at)
        self.subtracts_bias = subtracts_bias
        self.metadata = dict(metadata or {})
        self.keeps_error = False

    def __repr__(self) -> str:
        where = f" of {self.at}" if self.at else ""
        return f"<SAE{where}: {self.architecture}, {self.num_features} features of {self.dim}>"

    @property
    def dim(self) -> int:
        """D, the size of the vectors."""
        return len(self.parameters["W_enc"])

    @property
    def num_features(self) -> int:
        """How many features it has, n."""
        return len(self.parameters["W_dec"])

    @classmethod
    def train(
        cls,
        model: Model,
        texts: Iterable[Any] | Array,
        *,
        at: str | tuple[str, int],
        features: int,
        k: int = 32,
        tokens: int = 1_000_000,
        seed: int = 0,
    ) -> Self:
        """Train a TopK autoencoder on the activations of texts, as they come.

        Texts are run a few at a time, and their activations are shuffled in a pool of 64 MB: memory
        does not grow with the number of texts. Adam makes a step for every 1,024 tokens, at a rate
        that rises for a twentieth of the run and then falls to 0. Features that have not fired for
        32,768 tokens learn to reconstruct what the others miss.

        Args:
            model: one that `qkv.load` has read, of one text at a time.
            texts: any iterable of texts, or of the ids of their tokens. A list is read again as
                often as needed; an iterator is read once.
            at: one activation of one layer with a vector for each token.
            features: n, how many features there are.
            k: how many of them fire for each token at most.
            tokens: how many tokens it learns from.
            seed: of the first directions and of the order.

        Warns:
            UserWarning: an iterator ended before so many tokens.

        Raises:
            TypeError: an argument is of a wrong type.
            ValueError: there is no such activation or number, or the texts hold no token.

        Source:
            Gao et al. 2024, "Scaling and evaluating sparse autoencoders".

        >>> import qkv
        >>> texts = ["the cat sat on the mat", "I love you", "a dog ran"]
        >>> sae = SAE.train(
        ...     qkv.load("random"), texts, at=("resid_post", 0), features=16, k=2, tokens=3000
        ... )
        >>> sae
        <SAE of blocks.0.hook_resid_post: topk, 16 features of 8>
        """
        call = "SAE.train"
        model = check_model(model, call)
        name = one_site(model, at, call, "at")
        features = whole_number(features, call=call, name="features", least=1)
        k = whole_number(k, call=call, name="k", least=1, most=features)
        tokens = whole_number(tokens, call=call, name="tokens", least=1)
        rng = np.random.default_rng(whole_number(seed, call=call, name="seed", least=0))
        with progress("Training", tokens, unit="tokens") as advance:
            arrays, seen = trained(
                shuffled(_again(model, texts, name, call), tokens, rng),
                features=features,
                k=k,
                tokens=tokens,
                rng=rng,
                advance=advance,
            )
        if seen < tokens:
            warnings.warn(
                f"{call}: texts ended after {seen:,} of {tokens:,} tokens, before the rate had "
                "fallen: give a list, which is read again, or fewer tokens",
                stacklevel=2,
            )
        return cls(
            arrays["W_enc"],
            arrays["W_dec"],
            arrays["b_enc"],
            arrays["b_dec"],
            at=name,
            k=k,
            metadata={"model_name": model.name, "training_tokens": seen},
        )

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read an autoencoder from a folder as SAELens writes them.

        Args:
            folder: has "cfg.json" and "sae_weights.safetensors". The architectures "standard",
                "topk", "jumprelu" and "gated" are read, those of SAELens before version 6 too.

        Returns:
            The autoencoder, in float32, or float64 where the file has it. Its `.at` is the file's
            `hook_name`. SAELens runs TransformerLens's models, which put a token of their own in
            front of each text where `.metadata["prepend_bos"]` says so.

        Raises:
            FileNotFoundError: there is no such folder, or a file is missing.
            ModelError: a file is broken; or it has another architecture, activation function or
                normalization of activations than is supported, which the message names.
        """
        found, arrays = read_folder(folder, "SAE.load")
        return cls(arrays.pop("W_enc"), arrays.pop("W_dec"), **arrays, **found)

    def save(self, folder: str | os.PathLike[str], *, dtype: Any = None) -> None:
        """Write the autoencoder to a folder, as SAELens reads it.

        Args:
            folder: is made if it is not there.
            dtype: of the weights in the file: "float16", "bfloat16", "float32" or "float64"; that
                of the parameters unless given.

        Raises:
            ValueError: the type does not hold one of the numbers.
            OSError: the folder cannot be written.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     SAE(np.eye(2), np.eye(2), k=1).save(folder)
        ...     SAE.load(folder)
        <SAE: topk, 2 features of 2>
        """
        heads = self.at is not None and self.at.endswith("attn.hook_z")
        config: dict[str, Any] = {
            "apply_b_dec_to_input": self.subtracts_bias,
            "reshape_activations": "hook_z" if heads else "none",
            "metadata": {**self.metadata, "hook_name": self.at},
        }
        if self.k is not None:
            config |= {"k": self.k, "rescale_acts_by_decoder_norm": False}
        write_folder(folder, self.parameters, self.architecture, config, dtype, "SAE.save")

    def encode(self, x: ArrayLike) -> Array:
        """The features of vectors, (..., n), each at least 0.

        Args:
            x: (..., D), float; for a site of heads also (..., Hq, d).

        Raises:
            TypeError: `x` is not of floats.
            ValueError: its vectors have another size.
        """
        parameters = self.parameters
        rows = self._rows(x, "encode")
        if self.subtracts_bias:
            rows = rows - parameters["b_dec"]
        found = linear(rows, parameters["W_enc"], parameters.get("b_enc"))  # (..., n)
        if self.architecture == "gated":
            fires = found + parameters["b_gate"] > 0
            found = found * np.exp(parameters["r_mag"]) + parameters["b_mag"]
            return np.where(fires, np.maximum(found, 0), 0)
        if self.k is not None:
            return largest(found, self.k)
        if self.architecture == "jumprelu":
            found = np.where(found > parameters["threshold"], found, 0)
        return np.maximum(found, 0)

    def decode(self, features: ArrayLike) -> Array:
        """The vectors (..., D) that features (..., n) stand for.

        Raises:
            TypeError: `features` are not floats.
            ValueError: they are another number.
        """
        array = self._float(features, "decode", "features")
        if array.shape[-1:] != (self.num_features,):
            raise ValueError(
                f"SAE.decode: features has shape {array.shape} and there are {self.num_features}: "
                f"give (..., {self.num_features})"
            )
        return linear(array, self.parameters["W_dec"], self.parameters["b_dec"])

    def __call__(self, x: ArrayLike) -> Array:
        """What it makes of vectors: `decode(encode(x))`, of the shape of `x`."""
        return self.run(self._float(x, "encode", "x"))

    def run(self, x: Array, *, record: Recorder | None = None) -> Array:
        """What takes the place of an activation where it is an edit, of the shape of `x`.

        `record` is told of the features, and may give others in their place.
        """
        features = self.encode(x)
        kept = features if record is None else record("hook_sae_acts_post", features)
        found = self.decode(kept).reshape(x.shape)
        if self.keeps_error:
            found += x - self.decode(features).reshape(x.shape)
        return found

    def backward(self, x: Array, grad: Array, *, record: Recorder | None = None) -> Array:
        """The gradient of `sum(grad * run(x))` for `x`, of its shape.

        Which features are above 0 counts as given. `record` is told of the gradient for the
        features, and may give another in its place.
        """
        parameters = self.parameters
        slopes = linear(self._rows(grad, "backward"), parameters["W_dec"].T)  # (..., n)
        kept = slopes if record is None else record("hook_sae_acts_post", slopes)
        slopes = (kept - slopes if self.keeps_error else kept) * (self.encode(x) > 0)
        if self.architecture == "gated":
            slopes = slopes * np.exp(parameters["r_mag"])
        found = linear(slopes, parameters["W_enc"].T).reshape(x.shape)
        return found + grad if self.keeps_error else found

    def keeping_error(self) -> Self:
        """The same, but as an edit it adds the part of `x` that it does not reconstruct.

        The run is then that of the model as it is, until an edit changes features: what follows is
        due to them alone.

        Source:
            Marks et al. 2024, "Sparse Feature Circuits", section 2 (the error term).
        """
        found = copy(self)
        found.keeps_error = True
        return found

    def explained_variance(self, x: ArrayLike) -> float:
        """How much of the variance of vectors (..., D) it reconstructs: 1 for all of it.

        It is 1 less the squared lengths of `x - self(x)` over those of `x` about its mean.
        """
        rows = self._rows(x, "explained_variance")
        left = np.square(rows - self(rows)).sum(dtype=np.float64)
        rows = rows.reshape(-1, self.dim)
        return 1 - float(left / np.square(rows - rows.mean(0)).sum(dtype=np.float64))

    def l0(self, x: ArrayLike) -> float:
        """How many features are above 0 in each of these vectors (..., D), on average."""
        return float((self.encode(x) > 0).sum(-1).mean())

    def evaluate(self, model: Model, texts: Iterable[Any] | Array) -> dict[str, float]:
        """What it does on texts: measure it on others than those it was trained on.

        Args:
            model: whose activations it encodes.
            texts: any iterable of texts, or of the ids of their tokens, which are read once.

        Returns:
            "explained_variance" and "l0", over all tokens; "dead", the share of features that never
            fire; and for a decoder the mean loss of a token in nats, "loss" as it is,
            "loss_spliced" with the autoencoder in place of its site, and "loss_mean" with the mean
            of the activation there: "loss_recovered" is how much of the way from the last to the
            first the second goes. NaN where there is nothing to measure.

        Raises:
            TypeError: an argument is of a wrong type.
            ValueError: the autoencoder has no `at`, or its vectors another size.
        """
        call = "SAE.evaluate"
        if self.at is None:
            raise ValueError(f"{call}: {self!r} has no site: set its at, as ('resid_post', 3)")
        model = check_model(model, call)
        at = one_site(model, self.at, call, "at")
        return measures(model, texts, at, self.encode, self.decode, self, call)

    def _rows(self, x: ArrayLike, call: str) -> Array:
        """Vectors as (..., D) in the type of the parameters, those of heads joined."""
        array = self._float(x, call, "x")
        if array.shape[-1:] == (self.dim,):
            return array
        if array.ndim > 1 and array.shape[-2] * array.shape[-1] == self.dim:
            return array.reshape(*array.shape[:-2], self.dim)
        raise ValueError(
            f"SAE.{call}: x has shape {array.shape} and {self!r} takes vectors of {self.dim}: give "
            f"(..., {self.dim})"
        )

    def _float(self, given: ArrayLike, call: str, name: str) -> Array:
        array = as_array(given, call=f"SAE.{call}", name=name)
        if not is_float(array.dtype):
            raise TypeError(f"SAE.{call}: {name} is {array.dtype}: give floats")
        return array.astype(self.parameters["W_enc"].dtype, copy=False)


def _checked(given: Mapping[str, ArrayLike | None], architecture: str) -> dict[str, Array]:
    """The arrays that an architecture has, once their shapes fit."""
    arrays = {
        name: as_array(array, call="SAE", name=name)
        for name, array in given.items()
        if array is not None
    }
    for name, array in arrays.items():
        if not is_float(array.dtype):
            raise TypeError(f"SAE: {name} is {array.dtype}: give floats")
    kind = np.result_type(np.float32, *(array.dtype for array in arrays.values()))
    shape = arrays["W_enc"].shape
    if len(shape) != 2:
        raise ValueError(f"SAE: encoder has shape {shape}: give (D, n)")
    size, features = shape
    shapes: dict[str, tuple[int, ...]] = {"W_enc": shape, "W_dec": (features, size)}
    shapes |= {"b_dec": (size,), **dict.fromkeys(ARCHITECTURES[architecture], (features,))}
    found = {}
    for name, wanted in shapes.items():
        if name not in arrays and architecture == "gated" and name != "b_dec":
            raise ValueError(f"SAE: {name} is missing: a gated one has b_gate, b_mag and r_mag")
        array = np.array(arrays.get(name, np.zeros(wanted)), kind)
        if array.shape != wanted:
            raise ValueError(
                f"SAE: {name} has shape {array.shape} and the encoder {shape}: give {wanted}"
            )
        found[name] = frozen(array)
    return found


def _full_name(at: Any) -> str | None:
    """The full name of an activation of a layer."""
    if at is None or (isinstance(at, str) and parse(at).layer is not None):
        return at
    short, layer = at if isinstance(at, tuple) and len(at) == 2 else ("", -1)
    if isinstance(short, str) and is_whole_number(layer) and layer >= 0:
        return f"blocks.{layer}.{_INNER.get(short, '')}hook_{short}"
    raise ValueError(
        f'SAE: at is {shown(at)}: give the full name of an activation, or one as ("resid_post", 3)'
    )


def _again(model: Model, texts: Any, name: str, call: str) -> Iterator[Array]:
    """The rows (n, D) of texts, again and again unless they are an iterator."""
    for turn in itertools.count():
        count = 0
        for _, rows in rows_of(model, texts, [name], call):
            array = rows[name]
            count += len(array)
            yield array.reshape(len(array), -1)
        if not count and not turn:
            raise ValueError(f"{call}: texts hold no token: give some")
        if not count or isinstance(texts, Iterator):
            return
