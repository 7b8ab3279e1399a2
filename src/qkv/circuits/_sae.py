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
from qkv.circuits._sae_files import ARCHITECTURES, NORMALIZATIONS, read_folder, write_folder
from qkv.circuits._sae_training import largest, measures, train_sae
from qkv.files import StrPath
from qkv.models.files.read import ModelError
from qkv.models.model import Model
from qkv.models.run.truncation import callers
from qkv.ops.linear import linear
from qkv.ops.packing import frozen
from qkv.trace import Recorder
from qkv.trace.activations import parse

_NO_CODER = ("topk", "gated")  # architectures that SAELens's transcoders do not have
_EPS = 1e-5  # SAELens adds this number to the standard deviation.
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
    with the decoded vectors. The trace then also holds the features, named as in SAELens:
    "blocks.3.hook_resid_post.hook_sae_acts_post", or ("sae_acts_post", 3). To change the features
    before they are decoded, edit ("sae_acts_post", 3).

    With `at_out`, the SAE is a transcoder: it encodes the activation `at`, and its decoded vectors
    should be close to the activation `at_out`. With `skip`, `x @ skip.T` is added to these vectors.
    To edit with a transcoder, pass its output:
    `edit={coder.at_out: coder(model.trace(text, names=[coder.at])[coder.at])}`.

    Args:
        encoder: `W_enc` (D, n). For activations of heads ("z"), D is the total size of all heads.
        decoder: `W_dec` (n, D); for a transcoder, (n, D_out).
        b_enc: (n,), by default 0; not used by a gated SAE.
        b_dec: (D,), by default 0; for a transcoder, (D_out,).
        at: the activation that the SAE encodes, as a full name or a short name such as
            ("resid_post", 3).
        k: the maximum number of active features per vector.
        threshold: (n,), the threshold of each feature.
        b_gate: (n,), for a gated SAE.
        b_mag: (n,), for a gated SAE.
        r_mag: (n,), for a gated SAE.
        subtracts_bias: whether `b_dec` is subtracted from `x` before encoding.
        metadata: more information to save in the file, such as "model_name".
        normalize: how vectors are normalised before they are encoded, as in SAELens; decoded
            vectors are scaled back. "layer_norm" subtracts the mean and divides by the standard
            deviation plus 1e-5; "constant_norm_rescale" scales to the length `sqrt(D)`.
        skip: `W_skip` (D_out, D), the skip connection of a transcoder.
        at_out: the activation that a transcoder reconstructs, named like `at`.

    Attributes:
        architecture: "standard", "topk", "jumprelu" or "gated".
        parameters: read-only arrays of float32 or float64, keyed by their name in the file.
        at: the full name of the activation, or None.
        keeps_error: whether an edit with this SAE adds the reconstruction error (see
            `keeping_error`).

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: shapes do not match, or the arguments belong to different architectures.

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
        normalize: str | None = None,
        skip: ArrayLike | None = None,
        at_out: str | tuple[str, int] | None = None,
    ) -> None:
        gate = {"b_gate": b_gate, "b_mag": b_mag, "r_mag": r_mag}
        kinds: dict[str, list[Any]] = {"topk": [k], "jumprelu": [threshold]}
        kinds["gated"] = [*gate.values()]
        names = [kind for kind, values in kinds.items() if any(x is not None for x in values)]
        if len(names) > 1:
            raise value_error(
                f"arguments of several architectures are given ({' and '.join(names)}); pass only "
                "k, only threshold, or only b_gate, b_mag and r_mag"
            )
        self.architecture = names[0] if names else "standard"
        if self.architecture == "gated" and b_enc is not None:
            raise value_error(
                "b_enc is given, but a gated autoencoder has b_gate and b_mag instead: omit b_enc"
            )
        arrays = {"W_enc": encoder, "W_dec": decoder, "b_enc": b_enc, "b_dec": b_dec}
        arrays |= {"threshold": threshold, **gate, "W_skip": skip}
        if normalize not in (None, *NORMALIZATIONS):
            raise value_error(
                f"`normalize` is {quote(normalize)}; choose {' or '.join(NORMALIZATIONS)}, or None"
            )
        self.at: str | None = _full_name(at)
        self.at_out = _full_name(at_out, "at_out")
        wide = not subtracts_bias and np.shape(decoder)[1:] != np.shape(encoder)[:1]
        self.is_transcoder = at_out is not None or skip is not None or wide
        if self.is_transcoder and (subtracts_bias or normalize or self.architecture in _NO_CODER):
            raise value_error(
                f"the {self.architecture} autoencoder has at_out, skip or a decoder of another "
                "size, so it is a transcoder; pass subtracts_bias=False, and omit normalize "
                "and the arguments of topk and gated"
            )
        self.normalize = normalize
        self.parameters = _check_arrays(arrays, self.architecture, self.is_transcoder)
        most = self.num_features
        self.k = None if k is None else whole_number(k, name="k", least=1, most=most)
        self.subtracts_bias = subtracts_bias
        self.metadata = dict(metadata or {})
        self.keeps_error = False

    def __repr__(self) -> str:
        where = f" of {self.at}" if self.at else ""
        where += f" to {self.at_out}" if self.at_out else ""
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
            ValueError: the activation does not exist, a number is out of range, or the texts
                contain no tokens.

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
                "rate had fallen to 0; pass a list, which is read again, or reduce tokens=",
                stacklevel=callers(),
            )
        metadata = {"model_name": model.name, "training_tokens": seen}
        weights = (arrays[parameter] for parameter in ("W_enc", "W_dec", "b_enc", "b_dec"))
        return cls(*weights, at=name, k=k, metadata=metadata)

    @classmethod
    @public_call("SAE.load")
    def load(cls, folder: StrPath) -> Self:
        """Read an autoencoder or transcoder from a folder, or from a single file.

        The file names determine the format, so keep the names that the files have on the Hub:

        - SAELens: "cfg.json" and "sae_weights.safetensors", including versions before 6;
        - Gemma Scope: "params.npz"; Gemma Scope 2: "params.safetensors". The layer and the
          activation are those in the folders' names (".../layer_20/width_16k/average_l0_71");
        - dictionary_learning: "ae.pt" and "config.json";
        - Llama Scope: "hyperparams.json" and "checkpoints/final.safetensors";
        - Qwen Scope: a file such as "layer12.sae.pt", in a folder whose name ends with "L0_50".

        The features are those that SAELens 6.54 computes. A torch file (".pt") is read without
        running any code in it.

        If `.metadata["prepend_bos"]` is true, the autoencoder was trained on texts that start with
        an extra token, which TransformerLens adds.

        Args:
            folder: the folder, or the file. The supported SAELens architectures are "standard",
                "topk", "jumprelu", "gated", "transcoder", "skip_transcoder", "jumprelu_transcoder"
                and "jumprelu_skip_transcoder".

        Returns:
            The autoencoder, in float64 if the file has float64, otherwise in float32.
            Its attribute `.at` is the `hook_name` from the file; None if neither the file nor the
            folder names the activation.

        Raises:
            FileNotFoundError: the folder or a file in it does not exist.
            ModelError: a file is broken; its architecture, activation function or normalisation of
                activations is not supported; the sizes in the two files differ; or "k" is missing
                in a file that SAELens wrote before version 6. (In later files, a missing "k" means
                100, as in SAELens.) The message names the problem.
        """
        about, arrays = read_folder(folder)
        try:
            encoder, decoder = arrays.pop("W_enc"), arrays.pop("W_dec")
            skip = arrays.pop("W_skip", None)
            return cls(encoder, decoder, skip=skip, **arrays, **about)
        except (TypeError, ValueError) as error:
            raise ModelError(f"{folder}: {error}") from error

    @public_call("SAE.save")
    def save(self, folder: StrPath, *, dtype: Any = None) -> None:
        """Write the autoencoder to a folder that SAELens can read.

        Args:
            folder: the path of the folder, which is created if it is missing.
            dtype: the dtype of the weights in the file ("float16", "bfloat16", "float32" or
                "float64"); by default, the dtype of the parameters.

        Raises:
            ValueError: a weight is too large for the dtype.
            OSError: the folder cannot be written.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     SAE(np.eye(2), np.eye(2), k=1).save(folder)
        ...     SAE.load(folder)
        <SAE: topk, 2 features of 2>
        """
        heads = self.at is not None and self.at.endswith(("attn.hook_z", "attn.o.hook_in"))
        kind = self.architecture
        if self.is_transcoder:
            middle = "_skip" * ("W_skip" in self.parameters)
            kind = f"{'' if kind == 'standard' else kind}{middle}_transcoder".removeprefix("_")
        config: dict[str, Any] = {
            "architecture": kind,
            "apply_b_dec_to_input": self.subtracts_bias,
            "reshape_activations": "hook_z" if heads else "none",
            "normalize_activations": self.normalize or "none",
            "metadata": {**self.metadata, "hook_name": self.at},
        }
        if self.at_out is not None:
            config["metadata"]["hook_name_out"] = self.at_out
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
            ValueError: the vectors in `x` are not of size D.
        """
        parameters = self.parameters
        rows, _, _ = self._normalize_rows(self._rows(x))
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
    def decode(self, features: ArrayLike, x: ArrayLike | None = None) -> Array:
        """Reconstruct vectors (..., D) from features (..., n).

        Args:
            features: floats (..., n).
            x: the encoded vectors (..., D). Only an SAE with `normalize` or `skip` needs them.

        Raises:
            TypeError: `features` does not hold floats.
            ValueError: the last dimension of `features` is not n, or `x` is missing.
        """
        array = self._float(features, "features")
        if array.shape[-1:] != (self.num_features,):
            raise value_error(
                f"`features` has shape {array.shape} for "
                f"{self.num_features} features; pass (..., {self.num_features})"
            )
        out = linear(array, self.parameters["W_dec"], self.parameters["b_dec"])
        skip = self.parameters.get("W_skip")
        if self.normalize is None and skip is None:
            return out
        if x is None:
            why = "a skip connection" if self.normalize is None else f"normalize={self.normalize!r}"
            raise value_error(f"{self!r} has {why}; pass the encoded vectors too: (features, x)")
        rows = self._rows(x)
        if skip is not None:
            return out + linear(rows, skip.T)
        _, shift, scale = self._normalize_rows(rows)
        decoded: Array = out * scale + shift
        return decoded

    def _normalize_rows(self, rows: Array) -> tuple[Array, Any, Any]:
        """Normalise vectors (..., D); also return the offset and the factor that undo this."""
        if self.normalize is None:
            return rows, 0, 1
        if self.normalize == "layer_norm":
            shift = rows.mean(-1, keepdims=True)
            scale = rows.std(-1, ddof=1, keepdims=True)
            return (rows - shift) / (scale + _EPS), shift, scale
        scale = np.linalg.norm(rows, axis=-1, keepdims=True) / np.sqrt(rows.dtype.type(self.dim))
        return rows / scale, 0, scale

    def _normalize_back(
        self, rows: Array, grad: Array, grad_scale: Array, grad_shift: Any
    ) -> Array:
        """Convert the gradient at `_normalize_rows(rows)[0]` to the gradient at `rows` (..., D)."""
        _, shift, scale = self._normalize_rows(rows)
        added = _EPS if self.normalize == "layer_norm" else 0
        centred = rows - shift
        grad_scale = grad_scale - (grad * centred).sum(-1, keepdims=True) / (scale + added) ** 2
        count = self.dim - (self.normalize == "layer_norm")
        out: Array = grad / (scale + added) + grad_scale * centred / (scale * count)
        if self.normalize == "layer_norm":
            out += grad_shift / self.dim - out.mean(-1, keepdims=True)
        return out

    @public_call("SAE.encode")
    def __call__(self, x: ArrayLike) -> Array:
        """Return `decode(encode(x))`, in the shape of `x`; for a transcoder, (..., D_out)."""
        return self.run(self._float(x, "x"))

    def run(self, x: Array, *, record: Recorder | None = None) -> Array:
        """Return the reconstruction that replaces the activation `x`, in the shape of `x`.

        `record` is called with the features. The features that `record` returns are decoded.
        """
        features = self.encode(x)
        new_features = features if record is None else record("hook_sae_acts_post", features)
        out = self.decode(new_features, x)
        if self.is_transcoder:
            return out
        out = out.reshape(x.shape)
        if self.keeps_error:
            out += x - self.decode(features, x).reshape(x.shape)
        return out

    @public_call("SAE.backward")
    def backward(self, x: Array, grad: Array, *, record: Recorder | None = None) -> Array:
        """Return the gradient of `sum(grad * run(x))` with respect to `x`.

        The set of active features is treated as constant. `record` receives the gradient of the
        features and may return a different gradient for the rest of the backward pass.
        """
        parameters, rows = self.parameters, self._rows(x)
        if self.normalize is not None and record and record.changes(*self.hooks):
            raise value_error(
                f"{self!r} normalizes vectors, and qkv cannot compute a gradient through its "
                "edited features; pass activations of later layers in `at`"
            )
        upstream = self._float(grad, "grad").reshape(*rows.shape[:-1], -1)
        _, _, scale = self._normalize_rows(rows)
        slopes = linear(upstream * scale, parameters["W_dec"].T)  # (..., n)
        new_slopes = slopes if record is None else record("hook_sae_acts_post", slopes)
        slopes = (new_slopes - slopes if self.keeps_error else new_slopes) * (self.encode(x) > 0)
        if self.architecture == "gated":
            slopes = slopes * np.exp(parameters["r_mag"])
        out = linear(slopes, parameters["W_enc"].T)
        if "W_skip" in parameters:
            out += linear(upstream, parameters["W_skip"])
        if self.normalize is not None:
            upstream = upstream * (not self.keeps_error)  # the terms of the error cancel these
            decoded = linear(self.encode(x), parameters["W_dec"], parameters["b_dec"])
            direct = (upstream * decoded).sum(-1, keepdims=True)
            out = self._normalize_back(rows, out, direct, upstream.sum(-1, keepdims=True))
        out = out.reshape(x.shape)
        return out + grad if self.keeps_error else out

    def keeping_error(self) -> Self:
        """Return a copy that, as an edit, adds the reconstruction error to the decoded vectors.

        A run through the SAE then differs from the original run only if features are edited.

        Source:
            Marks et al. 2024, "Sparse Feature Circuits", section 2 (the error term).
        """
        self._need_autoencoder("keeping_error")
        other = copy(self)
        other.keeps_error = True
        return other

    @public_call("SAE.explained_variance")
    def explained_variance(self, x: ArrayLike) -> float:
        """Return the fraction of the variance that the reconstruction explains, at most 1.

        For vectors (..., D), the fraction is
        `1 - sum((x - self(x)) ** 2) / sum((x - mean(x)) ** 2)`.
        """
        self._need_autoencoder("explained_variance")
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
        activation is replaced with its reconstruction. "loss_mean" is the loss if each activation
        is replaced with the mean activation. "loss_recovered" is `(loss_mean - loss_spliced) /
        (loss_mean - loss)`.

        Args:
            model: the model whose activations the autoencoder encodes.
            texts: an iterable of texts, read once. A text is a string or an array (T,) of token
                ids.

        Returns:
            The measured numbers, keyed by name. A value that cannot be measured is NaN.

        Raises:
            TypeError: an argument has a wrong type.
            ValueError: the autoencoder has no `at`, or the activation's vectors are not of size D.
        """
        if self.at is None:
            raise value_error(
                f"{self!r} has no activation name: set its attribute `at`, for example "
                "sae.at = ('resid_post', 3)"
            )
        self._need_autoencoder("evaluate")
        model = check_model(model)
        at = one_site(model, self.at, "at")
        return measures(model, texts, at, self)

    def _need_autoencoder(self, purpose: str) -> None:
        if self.is_transcoder:
            raise value_error(
                f"{self!r} is a transcoder, and {purpose} compares vectors with their own "
                "reconstructions; choose an autoencoder"
            )

    def _rows(self, x: ArrayLike) -> Array:
        """Return vectors (..., D) in the dtype of the parameters; join the vectors of heads."""
        array = self._float(x, "x")
        if array.shape[-1:] == (self.dim,):
            return array
        if array.ndim > 1 and array.shape[-2] * array.shape[-1] == self.dim:
            return array.reshape(*array.shape[:-2], self.dim)
        raise value_error(
            f"`x` has shape {array.shape} but {self!r} takes vectors of size "
            f"{self.dim}; pass (..., {self.dim})"
        )

    def _float(self, x: ArrayLike, name: str) -> Array:
        array = _floats(x, name)
        return array.astype(self.parameters["W_enc"].dtype, copy=False)


def _floats(x: ArrayLike, name: str) -> Array:
    """Return an argument as an array of floats."""
    array = as_array(x, name=name)
    if not is_float(array.dtype):
        raise type_error(f"{name} is {array.dtype}; pass floats")
    return array


def _check_arrays(
    values: Mapping[str, ArrayLike | None], architecture: str, is_transcoder: bool
) -> dict[str, Array]:
    """Check the shapes of an architecture's arrays; return the arrays."""
    arrays = {name: _floats(x, name) for name, x in values.items() if x is not None}
    kind = np.result_type(np.float32, *(array.dtype for array in arrays.values()))
    shape = arrays["W_enc"].shape
    if len(shape) != 2:
        raise value_error(f"encoder has shape {shape}; pass a matrix (D, n)")
    size, features = shape
    out = arrays["W_dec"].shape[-1] if is_transcoder and arrays["W_dec"].ndim else size
    shapes: dict[str, tuple[int, ...]] = {"W_enc": shape, "W_dec": (features, out)}
    if "W_skip" in arrays:
        shapes["W_skip"] = out, size
    shapes |= {"b_dec": (out,), **dict.fromkeys(ARCHITECTURES[architecture], (features,))}
    parameters = {}
    for name, expected in shapes.items():
        if name not in arrays and architecture == "gated" and name != "b_dec":
            raise value_error(
                f"{name} is missing: a gated autoencoder needs b_gate, b_mag and r_mag"
            )
        array = np.array(arrays.get(name, np.zeros(expected)), kind)
        if array.shape != expected:
            raise value_error(
                f"{name} has shape {array.shape} and the encoder has {shape}; pass shape {expected}"
            )
        parameters[name] = frozen(array)
    return parameters


def _full_name(at: Any, name: str = "at") -> str | None:
    """Return the full name of an activation of a layer, or of the embedding."""
    if at is None or (isinstance(at, str) and (parse(at).layer is not None or at == "hook_embed")):
        return at
    short, layer = at if isinstance(at, tuple) and len(at) == 2 else ("", -1)
    if isinstance(short, str) and is_whole_number(layer) and layer >= 0:
        return f"blocks.{layer}.{_INNER.get(short, '')}hook_{short}"
    raise value_error(
        f"`{name}` is {quote(at)}; pass the full name of an activation, "
        'or a short name such as ("resid_post", 3)'
    )


def _again(model: Model, texts: Any, name: str) -> Iterator[Array]:
    """Yield the rows (n, D) of all texts repeatedly, or only once if `texts` is an iterator."""
    for turn in itertools.count():
        if turn and isinstance(texts, Iterator):
            return
        empty = True
        for _, rows in rows_of(model, texts, name, may_be_empty=turn > 0):
            empty = False
            yield rows
        if empty:
            return
