"""Advice for names of other libraries that qkv does not have: attributes and arguments."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from qkv.models.files.read import plain

Given = ParamSpec("Given")
Found = TypeVar("Found")

_DEVICE = "everything is computed on the CPU, and qkv.load(..., dtype=) says in which type"
_PROCESSES = "make `with qkv.models.Pool(model, 4) as pool:`, and call encode(texts, pool=pool)"
_NOTHING = "there is nothing to switch: no dropout, and outputs depend on the inputs alone"

# Attributes and methods of sentence-transformers' models.
ELSEWHERE = {
    **dict.fromkeys(("to", "cpu", "cuda", "half", "bfloat16", "device"), _DEVICE),
    **dict.fromkeys(("start_multi_process_pool", "encode_multi_process"), _PROCESSES),
    **dict.fromkeys(("eval", "train", "requires_grad_", "compile"), _NOTHING),
    **dict.fromkeys(("max_length", "get_max_seq_length"), "it is max_seq_length"),
    **dict.fromkeys(("save_pretrained", "save_to_hub", "push_to_hub"), "call save(folder)"),
    **dict.fromkeys(
        ("truncate_embeddings", "truncate_sentence_embeddings", "truncate_dim"),
        "call encode(texts, truncate_dim=...)",
    ),
    "stop_multi_process_pool": "a pool ends with its `with`, or by pool.close()",
    "fit": "qkv.learn trains models",
    "model_card_data": "evaluators of sentence-transformers take its own models alone",
}

_OUT = ": leave it out"
_SMALLER = 'qkv quantises no weights: give dtype="bfloat16" for half the memory'

# Arguments with which transformers and sentence-transformers load a model.
LOADING = {
    **dict.fromkeys(
        ("device", "device_map", "max_memory", "offload_folder"),
        f"qkv computes on the CPU alone{_OUT}",
    ),
    "torch_dtype": 'give dtype="float32", "float64" or "bfloat16"',
    **dict.fromkeys(
        ("trust_remote_code", "code_revision"), f"qkv runs no code of a model's files{_OUT}"
    ),
    "attn_implementation": f"qkv computes attention itself, and traces it{_OUT}",
    "output_attentions": f"model.trace(text).attentions has them{_OUT}",
    "output_hidden_states": f"model.trace(text).hidden_states has them{_OUT}",
    "low_cpu_mem_usage": f"weights are mapped from their files anyway{_OUT}",
    "use_safetensors": f"qkv reads nothing else{_OUT}",
    **dict.fromkeys(("load_in_8bit", "load_in_4bit", "quantization_config"), _SMALLER),
    "local_files_only": "set the environment variable HF_HUB_OFFLINE=1, or give a folder",
    **dict.fromkeys(
        ("token", "use_auth_token"), "set the environment variable HF_TOKEN, or give a folder"
    ),
    **dict.fromkeys(
        ("cache_dir", "cache_folder"), "set the environment variable HF_HUB_CACHE, or give a folder"
    ),
    "subfolder": "give the path of that folder",
    "force_download": "download with huggingface_hub.snapshot_download, and load its folder",
    "proxies": "set the environment variable HTTPS_PROXY",
    **dict.fromkeys(
        ("tokenizer", "config", "modules", "state_dict"),
        "qkv reads it from the model's folder: put yours into the folder",
    ),
    **dict.fromkeys(
        ("model_kwargs", "tokenizer_kwargs", "config_kwargs", "processor_kwargs", "model_args"),
        "dtype= is all that can be chosen",
    ),
    "backend": "qkv reads safetensors, no ONNX or OpenVINO files; QKV_BACKEND chooses its kernel",
    "gguf_file": "qkv reads no GGUF: name the folder of the same model in safetensors",
    "prompts": "give prompt= or prompt_name= to encode",
    "default_prompt_name": "give prompt_name= to encode",
    "truncate_dim": "give truncate_dim= to encode",
    **dict.fromkeys(
        ("max_length", "max_seq_length", "model_max_length"),
        "set it on the model: model.max_seq_length = 128",
    ),
    **dict.fromkeys(
        ("pretrained_model_name_or_path", "model_name_or_path", "model", "model_name", "path"),
        "give it first and without a name: qkv.load(name)",
    ),
}
# Arguments with which transformers generates text.
GENERATING = {
    "do_sample": "tokens are drawn with a temperature above 0",
    **dict.fromkeys(
        ("num_beams", "repetition_penalty", "no_repeat_ngram_size", "min_p", "typical_p",
         "penalty_alpha", "logits_processor", "min_new_tokens", "min_length"),
        "qkv chooses by temperature, top_k and top_p alone",
    ),
    "num_return_sequences": "give the prompt as often: generate([prompt] * 3)",
    **dict.fromkeys(("max_length", "max_tokens"), "give max_new_tokens, which counts new tokens"),
    **dict.fromkeys(("stop_strings", "stopping_criteria"), "give stop=[...]"),
    **dict.fromkeys(
        ("eos_token_id", "pad_token_id", "generation_config"),
        "ids that end a text are read from generation_config.json",
    ),
    "streamer": "stream=True gives an iterator",
    **dict.fromkeys(
        ("output_attentions", "output_scores", "output_logits", "return_dict_in_generate"),
        "trace=True keeps attention, logits and probabilities",
    ),
    **dict.fromkeys(("input_ids", "inputs"), "give it first and without a name: generate(prompt)"),
    "attention_mask": "give several texts, or a list of ids for each, without padding",
    "use_cache": f"keys and values are always kept{_OUT}",
    **dict.fromkeys(("tokenizer", "device"), _OUT.removeprefix(": ")),
}  # fmt: skip


def advising(
    call: str, advice: Mapping[str, str]
) -> Callable[[Callable[Given, Found]], Callable[Given, Found]]:
    """Make a function give advice about arguments that it does not have.

    Raises:
        TypeError: an argument does not exist; the message has the advice, or the nearest names.

    >>> @advising("load", {"device": "qkv computes on the CPU"})
    ... def load(name): ...
    >>> load("books", device="cuda")
    Traceback (most recent call last):
    TypeError: load: there is no argument device: qkv computes on the CPU
    """

    def wrap(function: Callable[Given, Found]) -> Callable[Given, Found]:
        known = [name for name in inspect.signature(function).parameters if name != "model"]

        @functools.wraps(function)
        def checked(*args: Given.args, **options: Given.kwargs) -> Found:
            for name in options:
                if name not in known:
                    near = difflib.get_close_matches(name, known, n=2) or known
                    hint = advice.get(name, f"the nearest are {', '.join(near)}")
                    raise TypeError(f"{call}: there is no argument {plain(name, 60)}: {hint}")
            return function(*args, **options)

        return checked

    return wrap
