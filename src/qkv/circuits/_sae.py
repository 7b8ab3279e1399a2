"""Sparse autoencoders: express each vector of a model as a sum of a few features."""

import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from typing import Any, ClassVar, Self

import numpy as np

from qkv._argument_errors import public_call, type_error, value_error
from qkv.arrays import Array, ArrayLike, as_array, is_float, is_whole_number, quote, whole_number
from qkv.circuits._reader import check_model, one_site, rows_of
from qkv.circuits._sae_files import ARCHITECTURES, read_folder, write_folder
from qkv.circuits._sae_training import largest, measures, train_sae
from qkv.files import StrPath
from qkv.models.files.read import ModelError
from qkv.models.model import Model
from qkv.models.run.truncation import callers
from qkv.ops.linear import linear
from qkv.ops.packing import frozen
from qkv.trace import Recorder
from qkv.trace.activations import parse

_INNER = {"z": "attn.", "q": "attn.", "k": "attn.", "v": "attn.", "pre": "mlp.", "post": "mlp."}


class SAE:
    """A sparse autoencoder, which expresses each vector as a sum of a few of its n features.

    `features = encode(x)` returns n non-negative numbers, of which only a few are above 0.
    `decode(features)` is `features @ W_dec + b_dec`, which should be close to `x`. The arguments
    determine how `encode` works:

    - the features are `relu((x - b_dec) @ W_enc + b_enc)`;
    - with `k` (TopK), the k largest features of each vector are kept, and the others become 0;
    - with `threshold` (JumpReLU), features at or below their threshold become 0;
    - with `b_gate`, `b_mag` and `r_mag`, the SAE is gated: a feature is
      `relu(y * exp(r_mag) + b_mag)` if `y + b_gate` is above 0, and otherwise 0. Here, `y` is
      `(x - b_dec) @ W_enc`.

    An SAE can edit an activation: `model.trace(text, edit={sae.at: sae})` replaces the activation
    by the decoded vectors. The trace then also holds the features, named as in SAELens:
    "blocks.3.hook_resid_post.hook_sae_acts_post", or ("sae_acts_post", 3). To change the features
    before they are decoded, edit ("sae_acts_post", 3).

    Args:
        encoder: `W_enc` (D, n). For activations of heads ("z"), D is the total size of all heads.
        decoder: `W_dec` (n, D).
        b_enc: (n,), by default 0; not used by a gated SAE.
        b_dec: (D,), by default 0.
        at: the activation that the SAE encodes: a full name, or a short name such as ("resid_post",
            3).
        k: the maximum number of active features per vector.
        threshold: (n,), the threshold of each feature.
        b_gate: (n,).
        b_mag: (n,).
        r_mag: (n,).
        subtracts_bias: whether `b_dec` is subtracted from `x` before encoding.
        metadata: more information to save in the file, such as "model_name".

    Attributes:
        architecture: "standard", "topk", "jumprelu" or "gated".
        parameters: read-only arrays of float32 or float64, keyed by their name in the file.
        at: the full name of the activation, or None.
        keeps_error: whether an edit with this SAE adds the reconstruction error (see
            `keeping_error`).

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: shapes do not match, or the arguments belong to two architectures.

    Source:
        Bricken et al. 2023, "Towards Monosemanticity"; Gao et al. 2024, "Scaling and evaluating
        sparse autoencoders" (TopK); Rajamanoharan et al. 2024, "Jumping Ahead" (JumpReLU) and
        "Improving Dictionary Learning with Gated Sparse Autoencoders".

    >>> sae = SAE(np.eye(2), np.eye(2), at=("resid_post", 0), k=1)
    >>> sae.encode(np.array([[3.0, 1.0]])), sae(np.array([[3.0, 1.0]])), sae.at
    (array([[3., 0.]]), array([[3., 0.]]), 'blocks.0.hook_resid_post')
    """

    hooks: ClassVar[tuple[str, ...]] = ("hook_sae_acts_post",)

    @public_call("SAE")
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
        kinds: dict[str, list[Any]] = {"topk": [k], "jumprelu": [threshold]}
        kinds["gated"] = [*gate.values()]
        names = [kind for kind, values in kinds.items() if any(x is not None for x in values)]
        if len(names) > 1:
            raise value_error(
                f"arguments of {' and '.join(names)} are given: give only k, only threshold, or "
                "only b_gate, b_mag and r_mag"
            )
        self.architecture = names[0] if names else "standard"
        if self.architecture == "gated" and b_enc is not None:
            raise value_error(
                "b_enc is given, but a gated autoencoder has b_gate and b_mag instead: omit b_enc"
            )
        arrays = {"W_enc": encoder, "W_dec": decoder, "b_enc": b_enc, "b_dec": b_dec}
        arrays |= {"threshold": threshold, **gate}
        self.parameters = _check_arrays(arrays, self.architecture)
        most = self.num_features
        self.k = None if k is None else whole_number(k, name="k", least=1, most=most)
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
        """The number of features, n."""
        return len(self.parameters["W_dec"])

    @classmethod
    @public_call("SAE.train")
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
        """Train a TopK autoencoder on the activations of texts.

        Texts run in small batches. A buffer of 64 MB stores and shuffles the activations, so memory
        does not grow with the number of texts. The optimizer is Adam, with one step per 1,024
        tokens. The learning rate rises during the first 5% of the run and then falls to 0. Features
        that have been inactive for 32,768 tokens are trained to reconstruct the error that the
        active features leave.

        Args:
            model: a text encoder or decoder from `qkv.load`.
            texts: any iterable of texts. A text is a string or an array of ids. A list of texts
                that contains too few tokens is read several times. An iterator can be read only
                once.
            at: one activation of one layer, with one vector per token.
            features: n, the number of features.
            k: the maximum number of active features per token.
            tokens: the number of training tokens.
            seed: the random seed for the initial directions and the order of tokens.

        Warns:
            UserWarning: an iterator ended before all training tokens were read.

        Raises:
            TypeError: an argument has a wrong type.
            ValueError: the activation does not exist, a number is out of range, or the texts hold
                no token.

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
        model = check_model(model)
        name = one_site(model, at, "at")
        features = whole_number(features, name="features", least=1)
        k = whole_number(k, name="k", least=1, most=features)
        tokens = whole_number(tokens, name="tokens", least=1)
        seed = whole_number(seed, name="seed", least=0)
        rows = _again(model, texts, name)
        arrays, seen = train_sae(rows, features, k, tokens, seed)
        if seen < tokens:
            warnings.warn(
                f"`texts` ended after {seen:,} of {tokens:,} tokens, before the learning "
                "rate had fallen to 0: give a list, which is read again, or reduce tokens=",
                stacklevel=callers(),
            )
        metadata = {"model_name": model.name, "training_tokens": seen}
        weights = (arrays[parameter] for parameter in ("W_enc", "W_dec", "b_enc", "b_dec"))
        return cls(*weights, at=name, k=k, metadata=metadata)

    @classmethod
    @public_call("SAE.load")
    def load(cls, folder: StrPath) -> Self:
        """Read an autoencoder from a folder in the format of SAELens.

        If `.metadata["prepend_bos"]` is true, the autoencoder was trained on texts that start with
        an extra token, which TransformerLens adds.

        Args:
            folder: a folder with "cfg.json" and "sae_weights.safetensors". The architectures
                "standard", "topk", "jumprelu" and "gated" are supported, including files from
                versions before SAELens 6.

        Returns:
            The autoencoder, in float64 if the file has float64, otherwise in float32.
            Its attribute `.at` is the `hook_name` from the file.

        Raises:
            FileNotFoundError: the folder or a file in it does not exist.
            ModelError: a file is broken; its architecture, activation function or normalization
                of activations is not supported; the sizes in the two files differ; or "k" is
                missing in a file that SAELens wrote before version 6. (In later files, a missing
                "k" means 100, as in SAELens.) The message names the problem.
        """
        about, arrays = read_folder(folder)
        try:
            return cls(arrays.pop("W_enc"), arrays.pop("W_dec"), **arrays, **about)
        except (TypeError, ValueError) as error:
            raise ModelError(f"{folder}: {error}") from error

    @public_call("SAE.save")
    def save(self, folder: StrPath, *, dtype: Any = None) -> None:
        """Write the autoencoder to a folder that SAELens can read.

        Args:
            folder: the path of the folder, which is created if it is missing.
            dtype: the dtype of the weights in the file: "float16", "bfloat16", "float32" or
                "float64"; by default, the dtype of the parameters.

        Raises:
            ValueError: a weight is too large for the dtype.
            OSError: the folder cannot be written.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     SAE(np.eye(2), np.eye(2), k=1).save(folder)
        ...     SAE.load(folder)
        <SAE: topk, 2 features of 2>
        """
        heads = self.at is not None and self.at.endswith("attn.hook_z")
        config: dict[str, Any] = {
            "architecture": self.architecture,
            "apply_b_dec_to_input": self.subtracts_bias,
            "reshape_activations": "hook_z" if heads else "none",
            "metadata": {**self.metadata, "hook_name": self.at},
        }
        if self.k is not None:
            config |= {"k": self.k, "rescale_acts_by_decoder_norm": False}
        write_folder(folder, self.parameters, config, dtype)

    @public_call("SAE.encode")
    def encode(self, x: ArrayLike) -> Array:
        """Return the non-negative features (..., n) of vectors.

        Args:
            x: floats (..., D); for activations of heads, also (..., Hq, d).

        Raises:
            TypeError: `x` does not hold floats.
            ValueError: the vectors in `x` do not have the size D.
        """
        parameters = self.parameters
        rows = self._rows(x)
        if self.subtracts_bias:
            rows = rows - parameters["b_dec"]
        features = linear(rows, parameters["W_enc"], parameters.get("b_enc"))  # (..., n)
        if self.architecture == "gated":
            fires = features + parameters["b_gate"] > 0
            features = features * np.exp(parameters["r_mag"]) + parameters["b_mag"]
            return np.where(fires, np.maximum(features, 0), 0)
        if self.k is not None:
            return largest(features, self.k)
        if self.architecture == "jumprelu":
            features = np.where(features > parameters["threshold"], features, 0)
        return np.maximum(features, 0)

    @public_call("SAE.decode")
    def decode(self, features: ArrayLike) -> Array:
        """Reconstruct vectors (..., D) from features (..., n).

        Raises:
            TypeError: `features` does not hold floats.
            ValueError: the last dimension of `features` is not n.
        """
        array = self._float(features, "features")
        if array.shape[-1:] != (self.num_features,):
            raise value_error(
                f"`features` has shape {array.shape} for "
                f"{self.num_features} features: give (..., {self.num_features})"
            )
        return linear(array, self.parameters["W_dec"], self.parameters["b_dec"])

    @public_call("SAE.encode")
    def __call__(self, x: ArrayLike) -> Array:
        """Return `decode(encode(x))`, in the shape of `x`."""
        return self.run(self._float(x, "x"))

    def run(self, x: Array, *, record: Recorder | None = None) -> Array:
        """Return the reconstruction that replaces the activation `x`, in the shape of `x`.

        `record` is called with the features. The features that `record` returns are decoded.
        """
        features = self.encode(x)
        new_features = features if record is None else record("hook_sae_acts_post", features)
        out = self.decode(new_features).reshape(x.shape)
        if self.keeps_error:
            out += x - self.decode(features).reshape(x.shape)
        return out

    @public_call("SAE.backward")
    def backward(self, x: Array, grad: Array, *, record: Recorder | None = None) -> Array:
        """Return the gradient of `sum(grad * run(x))` with respect to `x`.

        The set of active features is treated as constant. `record` receives the gradient of the
        features and may return a different gradient for the rest of the backward pass.
        """
        parameters = self.parameters
        slopes = linear(self._rows(grad), parameters["W_dec"].T)  # (..., n)
        new_slopes = slopes if record is None else record("hook_sae_acts_post", slopes)
        slopes = (new_slopes - slopes if self.keeps_error else new_slopes) * (self.encode(x) > 0)
        if self.architecture == "gated":
            slopes = slopes * np.exp(parameters["r_mag"])
        out = linear(slopes, parameters["W_enc"].T).reshape(x.shape)
        return out + grad if self.keeps_error else out

    def keeping_error(self) -> Self:
        """Return a copy that, used as an edit, adds the reconstruction error to decoded vectors.

        A run through the SAE then differs from the original run only if features are edited.

        Source:
            Marks et al. 2024, "Sparse Feature Circuits", section 2 (the error term).
        """
        other = copy(self)
        other.keeps_error = True
        return other

    @public_call("SAE.explained_variance")
    def explained_variance(self, x: ArrayLike) -> float:
        """Return the fraction of the variance that the reconstruction explains, at most 1.

        For vectors (..., D), the fraction is
        `1 - sum((x - self(x)) ** 2) / sum((x - mean(x)) ** 2)`.
        """
        rows = self._rows(x)
        left = np.square(rows - self(rows)).sum(dtype=np.float64)
        rows = rows.reshape(-1, self.dim)
        return 1 - float(left / np.square(rows - rows.mean(0)).sum(dtype=np.float64))

    def l0(self, x: ArrayLike) -> float:
        """Return the mean number of active features per vector, for vectors (..., D)."""
        return float((self.encode(x) > 0).sum(-1).mean())

    @public_call("SAE.evaluate")
    def evaluate(self, model: Model, texts: Iterable[Any] | Array) -> dict[str, float]:
        """Evaluate the autoencoder on texts, which should not be its training texts.

        "explained_variance" and "l0" are measured over all tokens. "dead" is the fraction of
        features that are never active. For a decoder, the result also holds mean losses per token,
        in nats. "loss" is the loss of the unchanged model. "loss_spliced" is the loss if each
        activation is replaced by its reconstruction. "loss_mean" is the loss if each activation is
        replaced by the mean activation. "loss_recovered" is
        `(loss_mean - loss_spliced) / (loss_mean - loss)`.

        Args:
            model: the model whose activations the autoencoder encodes.
            texts: an iterable of texts, read once. A text is a string or an array (T,) of token
                ids.

        Returns:
            The measured numbers, keyed by name. A value that cannot be measured is NaN.

        Raises:
            TypeError: an argument has a wrong type.
            ValueError: the autoencoder has no `at`, or the activation's vectors do not have the
                size D.
        """
        if self.at is None:
            raise value_error(
                f"{self!r} has no activation name: set its attribute, for example "
                "sae.at = ('resid_post', 3)"
            )
        model = check_model(model)
        at = one_site(model, self.at, "at")
        return measures(model, texts, at, self)

    def _rows(self, x: ArrayLike) -> Array:
        """Return vectors (..., D) in the dtype of the parameters; join the vectors of heads."""
        array = self._float(x, "x")
        if array.shape[-1:] == (self.dim,):
            return array
        if array.ndim > 1 and array.shape[-2] * array.shape[-1] == self.dim:
            return array.reshape(*array.shape[:-2], self.dim)
        raise value_error(
            f"`x` has shape {array.shape} but {self!r} takes vectors of size "
            f"{self.dim}: give (..., {self.dim})"
        )

    def _float(self, x: ArrayLike, name: str) -> Array:
        array = _floats(x, name)
        return array.astype(self.parameters["W_enc"].dtype, copy=False)


def _floats(x: ArrayLike, name: str) -> Array:
    """Return an argument as an array of floats."""
    array = as_array(x, name=name)
    if not is_float(array.dtype):
        raise type_error(f"{name} is {array.dtype}: give floats")
    return array


def _check_arrays(values: Mapping[str, ArrayLike | None], architecture: str) -> dict[str, Array]:
    """Check the shapes of an architecture's arrays; return the arrays."""
    arrays = {name: _floats(x, name) for name, x in values.items() if x is not None}
    kind = np.result_type(np.float32, *(array.dtype for array in arrays.values()))
    shape = arrays["W_enc"].shape
    if len(shape) != 2:
        raise value_error(f"encoder has shape {shape}: give (D, n)")
    size, features = shape
    shapes: dict[str, tuple[int, ...]] = {"W_enc": shape, "W_dec": (features, size)}
    shapes |= {"b_dec": (size,), **dict.fromkeys(ARCHITECTURES[architecture], (features,))}
    parameters = {}
    for name, expected in shapes.items():
        if name not in arrays and architecture == "gated" and name != "b_dec":
            raise value_error(
                f"{name} is missing: a gated autoencoder needs b_gate, b_mag and r_mag"
            )
        array = np.array(arrays.get(name, np.zeros(expected)), kind)
        if array.shape != expected:
            raise value_error(
                f"{name} has shape {array.shape} and the encoder has {shape}: give {expected}"
            )
        parameters[name] = frozen(array)
    return parameters


def _full_name(at: Any) -> str | None:
    """Return the full name of an activation of a layer."""
    if at is None or (isinstance(at, str) and parse(at).layer is not None):
        return at
    short, layer = at if isinstance(at, tuple) and len(at) == 2 else ("", -1)
    if isinstance(short, str) and is_whole_number(layer) and layer >= 0:
        return f"blocks.{layer}.{_INNER.get(short, '')}hook_{short}"
    raise value_error(
        f'`at` is {quote(at)}: give a full name, or a short name such as ("resid_post", 3)'
    )


def _again(model: Model, texts: Any, name: str) -> Iterator[Array]:
    """Yield the rows (n, D) of all texts, again and again; if `texts` is an iterator, only once."""
    for turn in itertools.count():
        if turn and isinstance(texts, Iterator):
            return
        empty = True
        for _, rows in rows_of(model, texts, name, may_be_empty=turn > 0):
            empty = False
            yield rows
        if empty:
            return
