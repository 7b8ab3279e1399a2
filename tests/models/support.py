"""Small models of the BERT family on disk, and a plain float64 BERT to compare with."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from qkv.models import ModelError, load

from .formulas import ACTIVATIONS, attend, layer_norm

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
        """Write the files of sentence-transformers; return the list in modules.json."""
        kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
        places = ["", "1_Pooling", "2_Normalize"]
        modules = [
            {"idx": number, "path": place, "type": f"sentence_transformers.models.{kind}"}
            for number, (kind, place) in enumerate(zip(kinds, places, strict=False))
        ]
        self.json("modules.json", modules)
        self.json("1_Pooling/config.json", pooling)
        if limit is not None:
            self.json("sentence_bert_config.json", {"max_seq_length": limit})
        return modules

    def shards(self, *names):
        """Write the model with its weights in these files; return the file of each tensor."""
        self.write()
        (self.path / "model.safetensors").unlink()
        where, tensors = {}, list(self.tensors)
        for number, file in enumerate(names):
            part = tensors[number :: len(names)]
            self.weights(file, {name: self.tensors[name] for name in part})
            where |= dict.fromkeys(part, file)
        self.json("model.safetensors.index.json", {"metadata": {}, "weight_map": where})
        return where


def close(found, expected, bound=1e-12):
    """Assert that two arrays are equal, up to `bound` of the largest number."""
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= bound * max(1, np.abs(expected).max())


def padded(rows, side="right", width=None, fill=0):
    """Return the ids (B, width) and the mask of texts that are padded on one side."""
    width = max(map(len, rows)) if width is None else width
    ids, mask = np.full((len(rows), width), fill), np.zeros((len(rows), width), int)
    for number, row in enumerate(rows):
        at = slice(len(row)) if side == "right" else slice(width - len(row), width)
        ids[number, at], mask[number, at] = row, 1
    return ids, mask


def seen_in(call, *args, names, **options):
    """Return the activations of a call by their full names, as edit functions receive them."""
    seen = {}

    def look(x, at):
        seen[at.name] = x
        return x

    call(*args, edit=dict.fromkeys(names, look), **options)
    return seen


def refused(path, *parts):
    """Assert that loading fails with one line that names the folder and contains these parts."""
    with pytest.raises(ModelError) as caught:
        load(path)
    message = str(caught.value)
    assert message.isprintable(), message
    assert len(message) <= 2000
    assert message.startswith("load: ")
    assert not message.startswith("load: load")
    for part in (path.name, *parts):
        assert part in message, message
    return message


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


def plain_bert(tensors, config, ids, hidden=(), ablated=()):
    """Run a plain BERT in float64, one text and one head at a time.

    `hidden` lists the positions of masked tokens. `ablated` lists pairs (layer, head); the output
    of each of these heads is 0. Returns the hidden states (T, D) and each layer's weights
    (heads, T, T).
    """
    p = {name: array.astype(np.float64) for name, array in tensors.items()}
    heads, act = config["num_attention_heads"], ACTIVATIONS[config["hidden_act"]]
    visible = ~np.isin(np.arange(len(ids)), hidden)

    def dense(x, name):
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    def norm(x, name):
        return layer_norm(x, p[f"{name}.weight"], p[f"{name}.bias"], config["layer_norm_eps"])

    x = (
        p["embeddings.word_embeddings.weight"][ids]
        + p["embeddings.position_embeddings.weight"][: len(ids)]
        + p["embeddings.token_type_embeddings.weight"][0]
    )
    states, weights = [norm(x, "embeddings.LayerNorm")], []
    for layer in range(config["num_hidden_layers"]):
        here = f"encoder.layer.{layer}."
        q, k, v = (
            dense(states[-1], f"{here}attention.self.{name}") for name in ("query", "key", "value")
        )
        for head in (head for number, head in ablated if number == layer):
            np.split(v, heads, axis=1)[head][:] = 0
        joined, shares = attend(q, k, v, heads, visible=visible)
        mid = states[-1] + dense(joined, f"{here}attention.output.dense")
        mid = norm(mid, f"{here}attention.output.LayerNorm")
        hidden_units = act(dense(mid, f"{here}intermediate.dense"))
        x = mid + dense(hidden_units, f"{here}output.dense")
        states.append(norm(x, f"{here}output.LayerNorm"))
        weights.append(shares)
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
