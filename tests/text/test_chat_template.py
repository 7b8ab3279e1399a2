"""Tests of chat templates: prompts written by hand, errors, and the limits of a template."""

from __future__ import annotations

import re
import signal
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, processors

from chat_templates import ASKED, SYSTEM, TEMPLATES
from qkv import WordTokenizer
from qkv.text import SubwordTokenizer
from qkv.text._chat_template import render
from rows import failing

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]


@pytest.fixture
def tokenizer() -> SubwordTokenizer:
    library = Tokenizer(models.WordPiece({"[UNK]": 0, "<": 1, "a": 2, "##b": 3}))
    library.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 4)]
    )
    made = SubwordTokenizer(library)
    made.named_tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    return made


# Expected prompts are written by hand from the models' documentation.
PROMPTS = {
    "ChatML": "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    "<|im_start|>assistant\n",
    "Llama 2": "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST]",
    "Llama 3": "<s><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December "
    "2023\nToday Date: {today}\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
    "Hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "Mistral": "<s>[INST] Be brief.\n\nHi[/INST]",
    "Phi 3": "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n",
    "Qwen 3": "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    "<|im_start|>assistant\n",
    "Zephyr": "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\n",
    "Granite": "<|start_of_role|>system<|end_of_role|>Be brief.<|end_of_text|>\n<|start_of_role|>"
    "user<|end_of_role|>Hi<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    "SmolLM2": "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    "<|im_start|>assistant\n",
}


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_of_known_models(name: str, tokenizer: SubwordTokenizer) -> None:
    tokenizer.chat_template = TEMPLATES
    messages = [{"role": "system", "content": "Be brief."}, CHAT[0]]
    options: dict[str, Any] = {"add_generation_prompt": True, "tokenize": False}
    prompt = tokenizer.apply_chat_template(messages, chat_template=name, **options)
    assert prompt == PROMPTS[name].replace("{today}", datetime.now().strftime("%d %b %Y"))


def test_special_tokens_in_the_text_become_their_ids(tokenizer: SubwordTokenizer) -> None:
    tokenizer.chat_template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    messages = [{"role": "user", "content": "ab"}]
    assert tokenizer.apply_chat_template(messages) == [4, 2, 3, 5]
    assert tokenizer.tokenize("ab").ids.tolist() == [4, 2, 3]
    tokens = tokenizer.tokenize_prompt("<s>ab</s>")
    assert tokens.special == [True, False, False, True]
    assert tokens.offsets == [(0, 3), (3, 4), (4, 5), (5, 9)]


def test_choosing_a_template(tokenizer: SubwordTokenizer) -> None:
    def written(**options: Any) -> str:
        return tokenizer.apply_chat_template(CHAT, tokenize=False, **options)

    with pytest.raises(ValueError, match=r"^apply_chat_template: the model's files have no chat t"):
        written()
    assert written(chat_template="given {{ extra }}", extra=3) == "given 3"
    tokenizer.chat_template = "one"
    assert (written(), written(chat_template="given")) == ("one", "given")
    tokenizer.chat_template = {"default": "one", "tool_use": "{{ tools | tojson }}", "rag": "two"}
    assert (written(), written(chat_template="rag")) == ("one", "two")
    assert written(tools=[{"name": "<f>"}]) == '[{"name": "<f>"}]'
    assert written(chat_template="{{ tools }} {{ documents }}") == "None None"
    tokenizer.chat_template = {"rag": "two", "b\x1b": "three"}
    with pytest.raises(ValueError, match=r"choose chat_template from rag, b\\x1b$"):
        written()
    with pytest.raises(TypeError, match="chat_template is int; pass a string"):
        written(chat_template=3)
    with pytest.raises(ValueError, match="return_tensors is not supported: omit return_tensors"):
        written(chat_template="rag", return_tensors="np", return_dict=False)
    assert WordTokenizer(["a b"]).apply_chat_template(CHAT, chat_template="b a") == [1, 0]


def test_wrong_messages(tokenizer: SubwordTokenizer) -> None:
    for messages, kind, said in (
        ("Hi", TypeError, "messages is str; pass a list of dicts"),
        (None, TypeError, "messages is NoneType"),
        ([], ValueError, "no message is given; pass at least one"),
        ([CHAT[0], "Hi"], TypeError, "message 1 is str; pass a dict with role and content"),
        ([CHAT], TypeError, "message 0 is list"),
        ([{"content": "Hi"}], ValueError, "message 0 has no role"),
        ([{"role": "user", "content": np.zeros(2)}], TypeError, "message 0 contains values that"),
    ):
        with failing(messages), pytest.raises(kind, match=f"^apply_chat_template: {said}"):
            tokenizer.apply_chat_template(messages, chat_template="")


def test_messages_are_plain_copies(tokenizer: SubwordTokenizer) -> None:
    class Odd(str):
        """A string with a method."""

        def secret(self) -> str:
            return "secret"

    message = {"role": Odd("user"), "content": None}
    template = "{{ 'content' in messages[0] }} {{ messages[0].role.secret is defined }}"
    written = tokenizer.apply_chat_template([message], chat_template=template, tokenize=False)
    assert written == "False False"
    with pytest.raises(TypeError, match="a variable contains values that JSON does not allow"):
        tokenizer.apply_chat_template([message], chat_template="", tools=[np.zeros(2)])
    template = "{{ messages[0].reasoning_content }} {{ messages[0].thinking }}"
    messages = [{"role": "assistant", "reasoning": "hm"}]
    written = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
    assert written == "hm hm"


def test_functions_and_filters_of_templates() -> None:
    for template, expected in (
        ("{{ {'b': '<é>', 'a': [1]} | tojson }}", '{"b": "<é>", "a": [1]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, indent=1) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{{ 'é' | tojson(ensure_ascii=true, separators=(',', ':')) }}", '"\\u00e9"'),
        ("  {% if true %}\nx\n  {% endif %}\ny\n", "x\ny"),
        ("{% for i in range(5) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("{% for i in 'ab' %}{{ loop.index }}{{ loop.length }}{{ loop.last }}{% endfor %}", "12False22True"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% else %}none{% endfor %}", "a1"),
        ("{% for i in [] %}{{ i }}{% else %}none{% endfor %}", "none"),
        ("{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("{% set ns = namespace(n=1) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "4"),
        ("{% macro f(x, y='!') %}{{ x ~ y ~ 1 }}{% endmacro %}{{ f('a') }}{{ f('b', y='?') }}", "a!1b?1"),
        ("{% generation %}a{% set x = 1 %}{% endgeneration %}{{ x }}", "a"),
        ("{{ messages | map(attribute='role') | join(', ') }}", "user, assistant"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ dict(a=1).a }}{{ '%s-%03d' % ('a', 7) }}{{ '{}-{:>3}'.format(1, 2) }}", "1a-0071-  2"),
        ("{{ 12345678901 | string }}{{ 2 ** 10 }}{{ 'ab' * 2 }}{{ [1] + [2] }}", "123456789011024abab[1, 2]"),
        ("{{ strftime_now('%Y') }}", f"{datetime.now():%Y}"),
        ("{{ missing }}{{ messages[0].missing is defined }}", "False"),
        ("{% if [] | select %}a{% endif %}{{ [3, 4] | map('string') | list | length }}", "a2"),
        ("{{ [1, 2] | sum }}{{ 'aXb' | replace(new='-', old='X') }}{{ 'a\nb' | indent(2) }}", "3a-ba\n  b"),
        ("{% set x = [1, 2] | map('string') %}{{ x | join('+') }}{{ x | join('+') }}", "1+2"),
        ("{{ ('x y ' * 9000).replace('x y ', '/think') | length }}", "54000"),
        ("{{ 'abc'[::-1] }}{{ [1, 2][1:] }}{{ 1 < 2 <= 2 }}{{ 7 // 2 }}{{ 3 - 1 }}", "cba[2]True32"),
        ("{{ '%(a b)3d' % {'a b': 7} }}{{ '{a[b]:3}'.format(a={'b': 7}) }}", "  7  7"),
    ):  # fmt: skip
        assert render(template, {"messages": CHAT}) == expected, template


DOUBLING = "{%% set ns = namespace(x=%s) %%}{%% for i in range(60) %%}%s{%% endfor %%}{{ ns.x }}"
ENDLESS = {
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    "text in loops": "{% for i in range(99999) %}" + 99999 * "x" + "{% endfor %}",
    "filters in loops": "{% for i in range(999) %}{% set x = range(99999) | list %}{% endfor %}",
    "lazy filters": "{{ 'a' | slice(99999999) | list }}",
    "+": DOUBLING % ("'a'", "{% set ns.x = ns.x + ns.x %}"),
    "~": DOUBLING % ("'a'", "{% set ns.x = ns.x ~ ns.x %}"),
    "*": DOUBLING % ("'a'", "{% set ns.x = ns.x * 9 %}"),
    "lists": DOUBLING % ("[1]", "{% set ns.x = ns.x + ns.x %}"),
    "nested lists": DOUBLING % ("[1]", "{% set ns.x = [ns.x, ns.x] %}"),
    "nested pairs": DOUBLING % ("(1,)", "{% set ns.x = ns.x, ns.x %}"),
    "nested dicts": DOUBLING % ("{}", "{% set ns.x = {'a': ns.x, 'b': ns.x} %}"),
    "blocks": DOUBLING % ("'a'", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
    "joined texts": "{{ ('a' * 999999).join(range(9999) | map('string')) }}",
    "joined numbers": "{{ range(99999) | join('a' * 9999) }}",
    "replaced text": "{{ ('a' * 999999).replace('a', 'b' * 999999) }}",
    "a large number": "{{ 9 ** 9999 }}",
    "a larger number": DOUBLING % ("9", "{% set ns.x = ns.x * ns.x %}"),
    "a wide text": "{{ 'a'.center(999999999) }}",
    "a wide filter": "{{ 'a' | center(999999999) }}",
    "a wide %": "{{ '%999999999d' % 1 }}",
    "a wide argument": "{{ '%*d' % (999999999, 1) }}",
    "a wide format": "{{ '{:>999999999}'.format(1) }}",
    "a wide field": "{{ '{:>{}}'.format(1, 999999999) }}",
    "a wide format filter": "{{ '%999999999d' | format(1) }}",
    "a wide batch": "{{ range(9) | batch(999999999, 'x') | list }}",
    "a wide indent": "{{ [1] | tojson(indent=999999999) }}",
    "a wide named %": "{{ '%(a)999999999d' % {'a': 1} }}",
    "a hidden width": "{{ '{a[}]:999999999}'.format(a={'}': 1}) }}",
    "many arguments": "{% set x = 'a' * 999999 %}{{ ('%(x)s' * 99999) % {'x': x} }}",
    "many fields": "{% set x = 'a' * 999999 %}{{ ('{0}' * 99999).format(x) }}",
    "texts in variables": "{% for i in range(99999) %}{% set x = 'a'.ljust(9999) %}{% endfor %}",
    "slices": "{% set x = 'a' * 9999999 %}" + 99 * "{% set y = x[::-1] %}",
    "parts": "{% set x = 'a' * 9999999 %}" + 99 * "{% set y = x.split('a') %}",
    "pairs of parts": "{% set x = 'a' * 9999999 %}" + 99 * "{% set y = x.partition('a') %}",
    "text in a macro": "{% macro f() %}" + 99999 * "x" + "{% endmacro %}"
    "{% for i in range(99999) %}{% set x = f() %}{% endfor %}",
    "translated text": "{{ ('a' * 999999).translate({97: 'b' * 999999}) }}",
    "bytes of a number": "{{ (1).to_bytes(9999999999, 'big') | length }}",
    "bytes": "{{ '%999999999d'.encode() % 1 }}",
    "a number of a text": "{{ ('f' * 9999999) | int(base=16) // 3 }}",
    "a rounded number": "{{ 1 | round(999999999, 'ceil') }}",
    "a sum of lists": "{{ ([[1]] * 9999) | sum(start=[]) | length }}",
    "wrapped text": "{{ ('a' * 999999) | wordwrap(1) }}",
    "sorted text": "{{ ('ab' * 999999) | sort }}",
    "searches": "{% set x = 'a' * 9999999 %}{% for i in range(99999) %}{% if 'b' in x %}{% endif %}"
    "{% endfor %}",
    "tests": "{% set x = 'a' * 9999999 %}{% for i in range(99999) %}{% if x is lower %}{% endif %}"
    "{% endfor %}",
    "a long list": "{% for i in range(99999) %}{% set x = [" + 99999 * "1," + "] %}{% endfor %}",
    "long code": "{% for i in range(99999) %}" + 9999 * "{% set a = b %}" + "{% endfor %}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_templates_without_end_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.text._chat_template._SECONDS", 0.3)
    with pytest.raises(ValueError, match="the chat template runs too long or writes too much: "):
        render(ENDLESS[name], {})


def test_a_long_conversation_is_within_the_limits() -> None:
    turns = [[ASKED, {"role": "assistant", "content": "Paris. " * 100}] for _ in range(500)]
    messages = [SYSTEM, *(message for turn in turns for message in turn)]
    for name in ("ChatML", "Llama 3", "Mistral", "Qwen 3"):
        named = {"bos_token": "<s>", "eos_token": "</s>"}
        assert len(render(TEMPLATES[name], {"messages": messages, **named})) > 350_000


@pytest.mark.parametrize(
    "reach",
    [
        "''.__class__",
        "''['__class__']",
        "'' | attr('__class__')",
        "[''] | map(attribute='__class__') | list",
        "messages.append(1)",
        "messages[0].update(a=1)",
        "raise_exception.__globals__",
        "namespace.__init__.__globals__",
        "'{0.__class__}'.format(1)",
        "self._TemplateReference__context",
    ],
)
def test_attributes_are_refused(reach: str) -> None:
    with pytest.raises(ValueError, match=r"the chat template is not safe: .*(reads|unsafe)"):
        render(f"{{{{ {reach} }}}}", {"messages": CHAT})


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% if x %}", "is not valid Jinja: line 1: Unexpected end of template"),
        ("a\n{{ 'x' | nothing }}", "is not valid Jinja: line 2: No filter named 'nothing'"),
        ("{{ raise_exception('no \x1b[31msystem') }}", r"refuses the messages: no \x1b[31msystem"),
        ("{{ a.b.c }}", "reads a value that is not given: 'a' is undefined"),
        ("{{ 1 / 0 }}", "fails: ZeroDivisionError: division by zero"),
        ("{{ messages | lipsum }}", "is not valid Jinja: line 1: No filter named 'lipsum'"),
        ("{% include 'x' %}", "fails: TypeError: no loader for this environment specified"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "fails: RecursionError"),
        ("{{ " + 5000 * "(" + "}}", "fails: RecursionError"),
        ("{{ [1] | map('string') | tojson }}", "fails: TypeError: Object of type list_iterator"),
        ("{{ range(10 ** 9) }}", "fails: OverflowError: Range too big"),
        ("x" * (2**18 + 1), "has 262,145 characters: the maximum is 262,144"),
    ],
)
def test_broken_templates(template: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"the chat template {said}")):
        render(template, {"messages": CHAT})


def test_ctrl_c_ends_a_template() -> None:
    with pytest.raises(KeyboardInterrupt):
        render("{{ stop() }}", {"stop": lambda: signal.raise_signal(signal.SIGINT)})


def test_the_error_without_jinja_names_the_extra(
    tokenizer: SubwordTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"jinja2.*not installed: pip install '\.\[chat\]'"):
        tokenizer.apply_chat_template(CHAT, chat_template="x")
