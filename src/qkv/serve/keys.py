"""The keys of each route's body: taken, ignored, or refused as they would change the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from qkv.serve.bodies import read_json, shown
from qkv.serve.errors import Refused


@dataclass(frozen=True)
class Refusal:
    """A key that is refused.

    Attributes:
        neutral: the values that are accepted, since they change nothing.
        way: what to do instead.
    """

    neutral: tuple[Any, ...]
    way: str

    def accepts(self, value: Any) -> bool:
        """Whether a value changes nothing; true is not 1, and null is as if the key were left out.

        >>> refusal = Refusal((1, True), "leave it out")
        >>> [refusal.accepts(value) for value in (1, 1.0, True, None, 2, "1", False)]
        [True, True, True, True, False, False, False]
        """
        return value is None or any(
            one == value and isinstance(one, bool) is isinstance(value, bool)
            for one in self.neutral
        )


class Keys:
    """The keys of a route's body; others are ignored.

    Args:
        call: the route as errors name it.
        taken: the keys that it reads, with blanks between them.
        refused: keys that would change the answer, with blanks between them; the values of each
            that change nothing; and what to do instead.

    Attributes:
        call, taken, ignored: as given, and the keys that change nothing in the answer.
        refused: the others, by name.
    """

    def __init__(
        self, call: str, taken: str, refused: Iterable[tuple[str, tuple[Any, ...], str]]
    ) -> None:
        self.call, self.taken, self.ignored = call, tuple(taken.split()), _IGNORED
        self.refused: Mapping[str, Refusal] = {
            key: Refusal(neutral, way) for keys, neutral, way in refused for key in keys.split()
        }

    def check(self, body: Mapping[str, Any]) -> None:
        """Refuse a body that has a key which would change the answer.

        Raises:
            Refused: 400.
        """
        for key in self.refused.keys() & body.keys():
            refusal, value = self.refused[key], body[key]
            if not refusal.accepts(value):
                raise Refused(
                    400,
                    f"{self.call}: {key} is {shown(value)}, which this server does not support: "
                    f"{refusal.way}",
                    param=key,
                    code="unsupported_parameter",
                )


async def read_body(request: Request) -> dict[str, Any]:
    """The object that a request's body is, if it has no key that its route refuses.

    Raises:
        Refused: 400, otherwise.
    """
    body = await read_json(request)
    KEYS[request.scope["route"].path].check(body)
    return body


# From here on a table of what OpenAI, vLLM, text-embeddings-inference, Ollama, Cohere, Voyage,
# NVIDIA and Jina publish for these routes.
_IGNORED = (
    *("user", "request_id", "priority", "metadata", "service_tier", "keep_alive", "cache_salt"),
    *("store", "safety_identifier", "prompt_cache_key"),
    *("guided_decoding_backend", "guided_whitespace_pattern"),
)
_OUT, _CUT = "leave it out", "texts are cut at their end: cut them yourself"
_CUTTING = (
    ("truncation_direction", ("right", "Right"), _CUT),
    ("truncation_side", ("right",), _CUT),
    ("truncate_prompt_tokens", (-1,), _CUT),
    ("add_special_tokens", (True,), "give ids of tokens in place of texts"),
)
_WHOLE = (("truncate truncation", (True, "END"), _CUT), *_CUTTING)
_CONVERT, _SCORES = "convert the vectors yourself", "scores are those of model.rank"
_CHECK, _SAMPLE = "check the text yourself", "sample with temperature, top_p and top_k"

KEYS: dict[str, Keys] = {
    "/v1/embeddings": Keys(
        "embeddings",
        "input model encoding_format dimensions prompt_name input_type truncate",
        [
            ("inputs texts images messages", (), "give input"),
            ("output_dimension truncate_dim", (), "give dimensions"),
            ("normalize normalized normalize_embeddings", (), "scale the vectors yourself"),
            ("output_dtype embedding_type embed_dtype", ("float", "float32"), _CONVERT),
            ("embedding_types", (["float"],), _CONVERT),
            ("precision", ("float32",), _CONVERT),
            ("endianness", ("little", "native"), "base64 is little-endian: convert it yourself"),
            ("task", (), "give input_type or prompt_name"),
            ("prompt instruction", (), "give prompt_name, or put it before each text"),
            ("late_chunking", (False,), _OUT),
            ("truncation", (True,), "give truncate"),
            ("max_tokens", (), _CUT),
            ("options chat_template_kwargs mm_processor_kwargs", ({},), _OUT),
            ("chat_template", (), _OUT),
            *_CUTTING,
        ],
    ),
    "/v1/completions": Keys(
        "completions",
        "prompt model max_tokens temperature top_p top_k n best_of stop seed logprobs echo stream "
        "stream_options",
        [
            ("suffix", ("",), _OUT),
            ("logit_bias", ({},), _OUT),
            ("presence_penalty frequency_penalty min_p", (0,), _SAMPLE),
            ("repetition_penalty repeat_penalty length_penalty typical_p", (1,), _SAMPLE),
            ("use_beam_search", (False,), _SAMPLE),
            ("response_format", ({"type": "text"},), _CHECK),
            ("guided_json guided_regex guided_choice guided_grammar", (), _CHECK),
            ("structured_outputs structural_tag", (), _CHECK),
            ("prompt_embeds messages", (), "give prompt"),
            ("max_completion_tokens", (), "give max_tokens"),
            ("min_tokens", (0,), _OUT),
            ("stop_token_ids", ([],), "give stop"),
            ("include_stop_str_in_output", (False,), "add the stop text yourself"),
            ("ignore_eos return_token_ids return_tokens_as_token_ids", (False,), _OUT),
            ("skip_special_tokens spaces_between_special_tokens", (True,), _OUT),
            ("allowed_token_ids bad_words logits_processors", ([],), _OUT),
            ("prompt_logprobs", (), "give echo true with logprobs"),
            ("kv_transfer_params vllm_xargs options", ({},), _OUT),
            *_CUTTING,
        ],
    ),
    "/v1/rerank": Keys(
        "rerank",
        "query documents top_n return_documents model",
        [
            ("texts", (), "give documents"),
            ("top_k", (), "give top_n"),
            ("return_text", (False,), "give return_documents"),
            ("rank_fields", (), "give documents as texts"),
            ("max_tokens_per_doc max_chunks_per_doc", (), _CUT),
            ("raw_scores", (False,), _SCORES),
            ("activation use_activation softmax", (True,), _SCORES),
            ("return_embeddings", (False,), "ask /v1/embeddings"),
            ("instruction prompt prompt_name", (), "put the prompt before the query"),
            ("mm_processor_kwargs chat_template_kwargs", ({},), _OUT),
            *_WHOLE,
        ],
    ),
    "/v1/trace": Keys(
        "trace",
        "input model layers heads top_k edits include at inside",
        [
            ("ablate hide edit", (), "give edits"),
            ("names", (), "give inside or include"),
            ("logits", (False,), "give at"),
            ("target", (), _OUT),
            ("prompt prompt_name input_type instruction", (), "put the prompt before the text"),
            ("encoding_format response_format", (), "send Accept"),
            *_WHOLE,
        ],
    ),
}
