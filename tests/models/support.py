"""Small models of the BERT family on disk, and a plain float64 BERT to compare with."""

import json
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

CONFIG = {
    "model_type": "bert",
    "vocab_size": 30,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "hidden_act": "gelu",
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
WORDS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "on", "mat", "a", "dog", "ran"),
    *("##s", "##ning", ".", ",", "bank", "river", "run"),
]


def bert_tensors(config, seed=0, dtype=np.float32):
    """Return random tensors with the names and shapes of BERT files."""
    rng = np.random.default_rng(seed)
    dim, hidden = config["hidden_size"], config["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], dim),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], dim),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], dim),
        "embeddings.LayerNorm.weight": (dim,),
        "embeddings.LayerNorm.bias": (dim,),
    }
    for layer in range(config["num_hidden_layers"]):
        here = f"encoder.layer.{layer}."
        linear = {
            "attention.self.query": (dim, dim),
            "attention.self.key": (dim, dim),
            "attention.self.value": (dim, dim),
            "attention.output.dense": (dim, dim),
            "intermediate.dense": (hidden, dim),
            "output.dense": (dim, hidden),
        }
        for name, shape in linear.items():
            shapes[f"{here}{name}.weight"], shapes[f"{here}{name}.bias"] = shape, shape[:1]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"{here}{name}.weight"] = shapes[f"{here}{name}.bias"] = (dim,)
    return {
        name: (rng.standard_normal(shape) * 0.5 + ("Norm.weight" in name)).astype(dtype)
        for name, shape in shapes.items()
    }


def tokenizer_json(words=WORDS):
    """Return the JSON of a WordPiece tokenizer that puts [CLS] and [SEP] around a text."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    ids = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    return tokenizer.to_str()


class Folder:
    """The folder of a model, which tests write, change and break."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        self.config = dict(CONFIG)
        self.tensors = bert_tensors(CONFIG)

    def write(self):
        self.json("config.json", self.config)
        self.weights("model.safetensors", self.tensors)
        self.text("tokenizer.json", tokenizer_json())
        return self.path

    def json(self, name, values):
        self.text(name, json.dumps(values))

    def text(self, name, content):
        (self.path / name).parent.mkdir(exist_ok=True)
        (self.path / name).write_text(content, encoding="utf-8")

    def weights(self, name, tensors):
        save_file(tensors, self.path / name, {"format": "pt"})

    def sentence(self, pooling, *, normalize=False, limit=None):
        """Write the files of sentence-transformers."""
        kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
        places = ["", "1_Pooling", "2_Normalize"]
        self.json(
            "modules.json",
            [
                {"idx": number, "path": place, "type": f"sentence_transformers.models.{kind}"}
                for number, (kind, place) in enumerate(zip(kinds, places, strict=False))
            ],
        )
        self.json("1_Pooling/config.json", pooling)
        if limit is not None:
            self.json("sentence_bert_config.json", {"max_seq_length": limit})


MASK_HEAD = "cls.predictions.transform"


def mask_bert(folder, **others):
    """Write a BERT that predicts masked words; return its tensors.

    The returned names of the body's tensors have no prefix. Keyword arguments set config values.
    """
    from tokenizers import Tokenizer

    made, config = Folder(folder), {**CONFIG, "architectures": ["BertForMaskedLM"], **others}
    rng = np.random.default_rng(7)
    body = bert_tensors(config)
    head = {
        f"{MASK_HEAD}.dense.weight": rng.standard_normal((12, 12)),
        f"{MASK_HEAD}.dense.bias": rng.standard_normal(12),
        f"{MASK_HEAD}.LayerNorm.weight": 1 + 0.3 * rng.standard_normal(12),
        f"{MASK_HEAD}.LayerNorm.bias": rng.standard_normal(12),
        "cls.predictions.bias": rng.standard_normal(30),
    }
    head = {name: array.astype(np.float32) for name, array in head.items()}
    made.config, made.tensors = config, {f"bert.{name}": x for name, x in body.items()} | head
    made.write()
    words = [*WORDS, "[MASK]"]
    tokenizer = Tokenizer.from_str(tokenizer_json(words))
    tokenizer.add_special_tokens(["[MASK]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return body | head


def _norm(x, weight, bias, eps):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * weight + bias


def _gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def plain_bert(tensors, config, ids, hidden=(), ablated=()):
    """Run a plain BERT in float64, one text and one head at a time.

    `hidden` lists the positions of masked tokens. `ablated` lists pairs (layer, head); the output
    of each of these heads is 0. Returns the hidden states (T, D) and each layer's weights
    (heads, T, T).
    """
    p = {name: array.astype(np.float64) for name, array in tensors.items()}
    eps, heads = config["layer_norm_eps"], config["num_attention_heads"]
    act = {"gelu": _gelu, "relu": lambda x: np.maximum(x, 0)}[config["hidden_act"]]
    x = (
        p["embeddings.word_embeddings.weight"][ids]
        + p["embeddings.position_embeddings.weight"][: len(ids)]
        + p["embeddings.token_type_embeddings.weight"][0]
    )
    ln = "embeddings.LayerNorm"
    x = _norm(x, p[f"{ln}.weight"], p[f"{ln}.bias"], eps)
    states, weights = [x], []
    for layer in range(config["num_hidden_layers"]):

        def dense(x, name, here=f"encoder.layer.{layer}."):
            return x @ p[f"{here}{name}.weight"].T + p[f"{here}{name}.bias"]

        def ln(x, name, here=f"encoder.layer.{layer}."):
            return _norm(x, p[f"{here}{name}.weight"], p[f"{here}{name}.bias"], eps)

        q, k, v = (dense(x, f"attention.self.{name}") for name in ("query", "key", "value"))
        size = q.shape[1] // heads
        parts, layer_weights = [], []
        for head in range(heads):
            at = slice(head * size, (head + 1) * size)
            scores = q[:, at] @ k[:, at].T / math.sqrt(size)
            scores[:, list(hidden)] = -np.inf
            w = np.exp(scores - scores.max(-1, keepdims=True))
            w /= w.sum(-1, keepdims=True)
            layer_weights.append(w)
            parts.append(w @ v[:, at] * ((layer, head) not in ablated))
        mid = ln(
            x + dense(np.hstack(parts), "attention.output.dense"), "attention.output.LayerNorm"
        )
        x = ln(
            mid + dense(act(dense(mid, "intermediate.dense")), "output.dense"), "output.LayerNorm"
        )
        states.append(x)
        weights.append(np.stack(layer_weights))
    return states, weights


def pair_json():
    """Return the JSON of the small tokenizer for pairs: a [SEP] between texts, two segment ids."""
    values = json.loads(tokenizer_json())
    special = {"[CLS]": WORDS.index("[CLS]"), "[SEP]": WORDS.index("[SEP]")}

    def piece(name, segment):
        kind = "SpecialToken" if name in special else "Sequence"
        return {kind: {"id": name, "type_id": segment}}

    first = [piece("[CLS]", 0), piece("A", 0), piece("[SEP]", 0)]
    values["post_processor"] = {
        "type": "TemplateProcessing",
        "single": first,
        "pair": [*first, piece("B", 1), piece("[SEP]", 1)],
        "special_tokens": {
            name: {"id": name, "ids": [number], "tokens": [name]}
            for name, number in special.items()
        },
    }
    return json.dumps(values)


def cross_encoder(path):
    """Write a small BERT that gives a query and a document one score; return its `Folder`."""
    made, rng = Folder(path), np.random.default_rng(3)
    made.tensors = {f"bert.{name}": x for name, x in made.tensors.items()}
    shapes = {"bert.pooler.dense.weight": (12, 12), "bert.pooler.dense.bias": (12,)}
    shapes |= {"classifier.weight": (1, 12), "classifier.bias": (1,)}
    made.tensors |= {
        name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    made.config |= {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "LABEL_0"},
    }
    made.write()
    made.text("tokenizer.json", pair_json())
    return made
