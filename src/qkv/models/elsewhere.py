"""What is done otherwise here than in sentence-transformers, by the name that it has there."""

from __future__ import annotations

_DEVICE = "everything is computed on the CPU, and qkv.load(..., dtype=) says in which type"
_PROCESSES = "make `with qkv.models.Pool(model, 4) as pool:`, and call encode(texts, pool=pool)"
_NOTHING = "there is nothing to switch: no dropout, and nothing depends on more than its inputs"

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
