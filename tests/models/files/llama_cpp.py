"""Token ids of llama.cpp, for test_gguf_ids.py: write llama_cpp.json again.

    npm install --ignore-scripts --prefix build/llama node-llama-cpp@3.22.1
    pip install sentencepiece==0.2.1
    PYTHONPATH=tests python -m models.files.llama_cpp build/llama

The file holds texts, three small vocabularies, and a check sum of the ids of each text for each
tokenizer of CASES and RULES. `--all` compares the ids of 2,400 texts a tokenizer with those of qkv,
and writes nothing.
"""

import argparse
import ctypes
import json
import tempfile
import zlib
from pathlib import Path

import numpy as np

from models.gguf_files import ADDED, BYTE, CONTROL, NORMAL, UNKNOWN, write
from models.odd_texts import ODD, WORDS, odd_texts
from qkv.models._loading import _of_parts
from qkv.models.files import gguf_tokenizer, read_gguf
from qkv.models.files._gguf_config import TABLES

FILE = Path(__file__).with_name("llama_cpp.json")
LIBRARY = "node_modules/@node-llama-cpp/linux-x64/bins/linux-x64"
# fmt: off
PIECES = [
    *WORDS.split(), *ODD, "1", "12", "1234567", "3.14", "1,000,000", "x2y", "a1b22c333", "DON'T",
    "it'S", "I'\u017f", "'s", "'S 'T", " 'd", "ÉCOLE École eCoLe", "straße STRASSE",
    "fooBar HTTPServer", "नमस्ते दुनिया", "ภาษาไทย", "한국어 텍스트", "ひらがなカタカナ漢字",
    "中文\uff0c测试。", "。、\uff01\uff1f", "...", "?!?!", "(a+b)*c", "$5.00", "a=b", "<=>",
    "^~|`", "#tag @x", "/path/to", "\\n", "\r", "\n \n", "   x", "x   ", "\t\t", "\u2028",
    "\u3000a", "\xa0b", "\u200d", "\U0001f469\u200d\U0001f467", "½", "Ⅷ", "٣٤٥", "😀1", "a\n1",
    "\n\n1", " 12 34", "  1", "__init__", "«q»", "“q”", "—", "IMGIMGABZ", "    return", "U.S.",
    "Σίσυφος", "жЖ", "ǅ", "ʰ", "ﬁ", "▁", "▁a", "<|turn|>", "<think>", "<|unknown|>",
]
# fmt: on
CHANGES = {"É": "e", "\ufb01": "fi", "\u3000": " ", "\u200b": "", "½": "12", "Ⅷ": "the"}


def characters_table(changes: dict[str, str]) -> bytes:
    """Return the table `precompiled_charsmap`: a double array of the keys, and the new texts.

    The array is that of the library Darts-clone: from the base of a node, byte c of a key leads to
    unit `base ^ c`. The unit holds c, whether a key ends there, and its distance from its own base,
    where the value of the key is.
    """
    keys = {key.encode(): new.encode() for key, new in changes.items()}
    nodes = sorted({key[:n] for key in keys for n in range(len(key) + 1)})
    base = {node: 256 * n for n, node in enumerate(nodes, 1)}
    units, texts = np.zeros(256 * (len(nodes) + 1), "<u4"), b""
    units[0] = base[b""] << 10
    for node in nodes[1:]:
        at = base[node[:-1]] ^ node[-1]
        units[at] = (at ^ base[node]) << 10 | (node in keys) << 8 | node[-1]
    for key, new in keys.items():
        units[base[key]] = len(texts) | 1 << 31
        texts += new + b"\0"
    return np.array(units.nbytes, "<u4").tobytes() + units.tobytes() + texts


RULES = [rule for rules in TABLES["pre"].values() for rule in rules]
ENDS = {"bos_token_id": 1, "eos_token_id": 0}
# The keys of tokenizer.ggml of other tokenizers, by name. SentencePiece gives the same ids, but for
# T5's without spaces before texts, where llama.cpp has one if extra spaces are removed.
CASES = {
    "no rule": {"model": "gpt2", **ENDS},
    "last token": {"model": "gpt2", "pre": "llama-bpe", "add_eos_token": True, **ENDS},
    "no first token": {"model": "gpt2", "pre": "llama-bpe", "add_bos_token": False, **ENDS},
    "llama": {"model": "llama", "pre": "default"},
    "llama without spaces": {"model": "llama", "add_space_prefix": False, "add_bos_token": False},
    "llama with a last token": {"model": "llama", "add_eos_token": True, "eos_token_id": 2},
    "t5": {"model": "t5", "remove_extra_whitespaces": True, "add_space_prefix": True},
    "t5 with all spaces": {"model": "t5", "remove_extra_whitespaces": False},
    "t5 without a space": {
        "model": "t5",
        "remove_extra_whitespaces": True,
        "add_space_prefix": False,
    },
    "t5 with a table": {"model": "t5", "precompiled_charsmap": characters_table(CHANGES)},
    "t5 with a first token": {"model": "t5", "add_bos_token": True, "bos_token_id": 0},
}


def write_case(path: Path, keys: dict, vocabularies: dict, architecture: str = "llama") -> Path:
    """Write a GGUF file with a tokenizer and no model."""
    vocabulary = vocabularies[keys["model"]]
    values = {f"tokenizer.ggml.{key}": x for key, x in {**keys, **vocabulary}.items()}
    return write(path, architecture, values, {})


def check_sum(ids: list[int]) -> str:
    """Return four characters that depend on all ids."""
    return f"{zlib.crc32(np.array(ids, '<u4').tobytes()) & 0xFFFF:04x}"


def make_texts(count: int) -> list[str]:
    """Return odd texts of a few pieces each."""
    rng, pool = np.random.default_rng(0), np.array(PIECES, object)
    texts = [*dict.fromkeys(PIECES), "", *odd_texts(count // 4)]
    while len(texts) < count * 1.2:
        texts.append(rng.choice(["", "", " ", "\n"]).join(rng.choice(pool, rng.integers(1, 7))))
    return [text for text in texts if "\0" not in text][:count]  # llama.cpp ends a text there


def train() -> dict:
    """Return vocabularies whose tokens cross the borders between words and kinds of characters."""
    import sentencepiece
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    corpus = [text for text in make_texts(4000)[1000:] if "<" not in text]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|end|>", "<|turn|>", "<think>", "<|unknown|>"]
    options = {"special_tokens": special, "initial_alphabet": letters, "max_token_length": 10}
    made.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=1400, **options))
    model = json.loads(made.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    types = [CONTROL, CONTROL, ADDED, UNKNOWN] + [NORMAL] * (len(tokens) - 4)
    merges = [" ".join(pair) for pair in model["merges"]]
    found = {"gpt2": {"tokens": tokens, "token_type": types, "merges": merges}}
    layouts = {
        "llama": ("bpe", {}),
        "t5": ("unigram", {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}),
    }
    for name, (kind, ids) in layouts.items():
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder, "corpus.txt")
            text.write_text("\n".join(line.replace("\n", " ") for line in corpus), "utf-8")
            sentencepiece.SentencePieceTrainer.train(
                input=str(text),
                model_prefix=f"{folder}/made",
                vocab_size=900,
                hard_vocab_limit=False,
                model_type=kind,
                byte_fallback=kind == "bpe",
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                character_coverage=0.98,
                user_defined_symbols=["<think>"],
                control_symbols=["<|turn|>"],
                **ids,
            )
            made = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/made.model")
        every = range(len(made))
        kinds = {UNKNOWN: made.is_unknown, CONTROL: made.is_control, BYTE: made.is_byte}
        types = [next((kind for kind, is_one in kinds.items() if is_one(n)), NORMAL) for n in every]
        tokens = [made.id_to_piece(n) for n in every]
        types[tokens.index("<think>")] = ADDED
        scores = [made.get_score(n) for n in every]
        found[name] = {"tokens": tokens, "scores": scores, "token_type": types}
    return found


class Params(ctypes.Structure):
    """The options of llama.cpp for a model, of which only `vocab_only` is set."""

    _fields_ = [("other", ctypes.c_ubyte * 72), ("vocab_only", ctypes.c_bool)]
    _fields_ += [("last", ctypes.c_ubyte * 15)]


class Llama:
    """The tokenizer of llama.cpp for a GGUF file."""

    def __init__(self, folder: Path, path: Path) -> None:
        binaries = folder.resolve() / LIBRARY
        self.library = ctypes.CDLL(str(next(binaries.glob("libllama.v*.so"))))
        for name, result, arguments in (
            ("model_default_params", Params, []),
            ("model_load_from_file", ctypes.c_void_p, [ctypes.c_char_p, Params]),
            ("model_get_vocab", ctypes.c_void_p, [ctypes.c_void_p]),
            ("tokenize", ctypes.c_int32, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32,
             ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool, ctypes.c_bool]),
        ):  # fmt: skip
            function = getattr(self.library, f"llama_{name}")
            function.restype, function.argtypes = result, arguments
        params = self.library.llama_model_default_params()
        params.vocab_only = True
        model = self.library.llama_model_load_from_file(bytes(path), params)
        assert model, path
        self.vocabulary = self.library.llama_model_get_vocab(model)

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text, with the tokens around it."""
        raw = text.encode()
        ids = (ctypes.c_int32 * (len(raw) + 9))()
        count = self.library.llama_tokenize(
            self.vocabulary, raw, len(raw), ids, len(ids), True, True
        )
        return ids[:count]


def main() -> None:
    """Write the file, or compare with `--all`."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    vocabularies, texts = train(), make_texts(2400 if options.all else 400)
    cases = CASES | {rule: {"model": "gpt2", "pre": rule, **ENDS} for rule in RULES}
    sums, same, all_ids = {}, {}, {}
    with tempfile.TemporaryDirectory() as made:
        for name, keys in cases.items():
            path = write_case(Path(made, "case.gguf"), keys, vocabularies)
            llama = Llama(options.folder, path)
            ids = [llama.ids(text) for text in texts]
            if options.all:
                ours = _of_parts(gguf_tokenizer(read_gguf(path))).tokenize_batch(texts)
                wrong = sum(one.ids.tolist() != other for one, other in zip(ours, ids, strict=True))
                print(f"{wrong:5} of {len(texts)} texts differ: {name}")
            same[name] = all_ids.setdefault(str(ids), name)
            if same[name] == name:
                sums[name] = "".join(map(check_sum, ids))
    if not options.all:
        values = {"texts": texts, "vocabularies": vocabularies, "same": same, "sums": sums}
        FILE.write_text(json.dumps(values, ensure_ascii=True, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    main()
