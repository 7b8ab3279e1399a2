"""Tests of arguments of other libraries: each is an error that names the alternative."""

import inspect

import pytest

import qkv
from qkv.models._other_libraries import GENERATING, LOADING
from qkv.models.model import Model


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("device", "computes only on the CPU: omit this argument"),
        ("device_map", "computes only on the CPU: omit this argument"),
        ("torch_dtype", 'pass dtype="float32", "float64" or "bfloat16"'),
        ("trust_remote_code", "never runs code from a model's files"),
        ("attn_implementation", "computes attention itself"),
        ("output_attentions", r"model\.trace\(text\)\.attentions"),
        ("output_hidden_states", r"model\.trace\(text\)\.hidden_states"),
        ("low_cpu_mem_usage", "maps weights from their files"),
        ("load_in_8bit", 'dtype="bfloat16"'),
        ("local_files_only", "HF_HUB_OFFLINE=1"),
        ("token", "HF_TOKEN"),
        ("cache_dir", "HF_HUB_CACHE"),
        ("subfolder", "pass the path of that folder"),
        ("use_safetensors", "never loads pickled weights: omit this argument"),
        ("tokenizer", "put your file into that folder"),
        ("max_seq_length", "model.max_seq_length = 128"),
    ],
)
def test_an_argument_of_another_library_says_what_to_do(name: str, way_out: str) -> None:
    with pytest.raises(TypeError, match=f"^load: unknown argument {name}: .*{way_out}"):
        qkv.load("random", **{name: "cpu"})


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("do_sample", "pass a temperature above 0"),
        ("num_beams", "use only temperature, top_k and top_p"),
        ("max_length", "pass max_new_tokens"),
        ("output_scores", "trace=True"),
        ("max_new_token", "the nearest are max_new_tokens"),
    ],
)
def test_generate_names_the_alternative_to_an_unknown_argument(name: str, way_out: str) -> None:
    with pytest.raises(TypeError, match=f"^generate: unknown argument {name}: .*{way_out}"):
        qkv.load("books-decoder").generate("bank:", **{name: 3})


def test_an_unknown_argument_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="unknown argument revison: the nearest are revision"):
        qkv.load("random", revison="main")
    with pytest.raises(TypeError, match=r"argument a\\nb: choose from name_or_path, rev"):
        qkv.load("random", **{"a\nb": 1})


def test_the_signatures_stay_as_they_are() -> None:
    names = ["name_or_path", "revision", "dtype", "cache_dtype"]
    assert [*inspect.signature(qkv.load).parameters] == names
    assert not {*inspect.signature(qkv.load).parameters} & {*LOADING}
    assert not {*inspect.signature(Model.generate).parameters} & {*GENERATING}
