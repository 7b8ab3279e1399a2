"""What goes before a text."""

from __future__ import annotations

import warnings

from qkv.models.files.sentence import Sentence
from qkv.models.run.truncation import callers
from qkv.text.tokenizer import check_text


def chosen_prompt(
    sentence: Sentence, prompt: str | None, prompt_name: str | None, *, name: str, call: str
) -> str:
    """A prompt that is given, or the one of this name, or the default of the model's files.

    Raises:
        TypeError: the prompt is not a string.
        ValueError: there is no prompt of this name.

    >>> chosen_prompt(Sentence(prompts={"query": "find: "}), None, "query", name="x", call="encode")
    'find: '
    """
    if prompt is not None:
        if prompt_name is not None:
            said = f"{call}: prompt and prompt_name are both given: prompt_name is not used"
            warnings.warn(said, UserWarning, stacklevel=callers())
        return check_text(prompt, call=call, name="prompt")
    wanted = sentence.default_prompt if prompt_name is None else prompt_name
    if wanted is None:
        return ""
    if wanted not in sentence.prompts:
        raise ValueError(
            f"{call}: there is no prompt {wanted!r:.80}: {name} has {', '.join(sentence.prompts)}"
        )
    return sentence.prompts[wanted]
