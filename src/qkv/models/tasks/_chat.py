"""Answer the last message of a conversation: `Model.chat`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from qkv._argument_errors import public_call
from qkv.edits import Ablate, Edit, Hide
from qkv.models._model_base import ModelBase
from qkv.models._other_libraries import GENERATING, advising
from qkv.models.tasks.generate import Prompt, TextCaches, generate
from qkv.text import Tokenized


@public_call("chat")
@advising(GENERATING)
def chat(
    model: ModelBase,
    messages: Iterable[Mapping[str, Any]],
    *,
    max_new_tokens: int | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stream: bool = False,
    stop: str | Iterable[str] = (),
    trace: bool = False,
    ablate: Ablate = (),
    hide: Hide = (),
    edit: Edit = None,
) -> Any:
    """Answer the last message of a conversation.

    The model's chat template turns the messages into a prompt, and `generate` continues the prompt.
    The model keeps the key/value cache of the last conversation: if the next call begins with the
    same tokens, only the remaining tokens are computed. A call with edits computes all tokens.

    Args:
        messages: the conversation, for example `[{"role": "user", "content": "Hello"}]`. Roles are
            "system", "user" and "assistant"; a template may refuse roles and orders.
        max_new_tokens: the maximum number of new tokens; this and all further arguments are as in
            `generate`.
        temperature: 0 for the most likely tokens; above 0 to sample.
        top_k: the number of most likely tokens to sample from.
        top_p: the total probability of the most likely tokens to sample from.
        seed: the seed of the random numbers.
        stream: whether to yield the answer word by word as it is generated.
        stop: the answer ends before the first of these strings.
        trace: whether to trace the conversation with the answer.
        ablate: heads to ablate.
        hide: words of the conversation, positions and edges to mask. Positions count the tokens of
            the prompt.
        edit: activations to change.

    Returns:
        The text of the answer, a `Generated`; or with `stream=True`, an iterator over strings.

    Raises:
        TypeError: the messages are not a list of dicts, or an argument has the wrong type.
        ValueError: the model has no chat template, no tokenizer or no head for the next token; the
            template is broken or refuses the messages; the conversation is too long for the model's
            positions; or an argument is invalid.
        ImportError: Jinja is not installed.

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> model.tokenizer.chat_template = "{{ messages[-1].content }}:"
    >>> model.chat([{"role": "user", "content": "bank"}]) == model.generate("bank:")
    True
    """
    model.need("generate")
    tokenizer = model.reader.need_tokenizer()
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return answer_prompt(
        model,
        tokenizer.tokenize_prompt(text),
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stream=stream,
        stop=stop,
        trace=trace,
        ablate=ablate,
        hide=hide,
        edit=edit,
    )


def answer_prompt(
    model: ModelBase, prompt: Tokenized, *, stream: bool = False, **options: Any
) -> Any:
    """Continue the prompt of a conversation like `generate`, and keep its key/value cache."""
    past = None
    if model.continues and not any(options.get(name) for name in ("ablate", "hide", "edit")):
        # `pop` is atomic: another thread must not get the same caches
        past = vars(model).pop("conversation", None) or TextCaches()
        model.conversation = None
    answer = generate(model, Prompt(prompt, past), stream=stream, **options)
    if stream:
        return _pieces(model, answer, past)
    model.conversation = past or model.conversation
    return answer


def _pieces(model: ModelBase, pieces: Iterator[str], past: TextCaches | None) -> Iterator[str]:
    """Yield the pieces of an answer, and keep its caches, even if the reader stops early."""
    try:
        yield from pieces
    except GeneratorExit:
        model.conversation = past or model.conversation
        raise
    model.conversation = past or model.conversation
