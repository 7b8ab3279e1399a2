"""Render chat templates: Jinja programs from model files that turn messages into a prompt."""

import functools
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import permutations
from types import GeneratorType
from typing import Any, NoReturn

from qkv._argument_errors import type_error, value_error
from qkv._visible import visible
from qkv.extras import need

MOST_TEMPLATE = 2**18  # characters; the longest known templates have about 30,000
# The limits of one rendering. Templates come from strangers' files, and a Jinja sandbox limits
# neither time nor memory.
_WORK = 10**8  # the maximum sum of all characters written and of the costs of all steps
_STEP = 500  # the cost of one step
_SECONDS = 2  # the maximum processor time
_ENTRY = 16  # the cost of an entry of a list or dict, in characters
_MOST_CHARS = 10**7  # the maximum length of one value
_MOST_WIDTH = 10**4
_MOST_INDENT = 64
_BITS = 4096  # the maximum number of bits of an integer
# Names of filters that no template can spell.
_LOOP, _JOIN, _LIST, _SLICE, _COMPARED = (
    "loop items",
    "join texts",
    "new list",
    "new slice",
    "compared value",
)
# Functions with a width or count, and functions whose result can be as long as the product of their
# arguments' lengths.
_WIDTHS = {"center", "ljust", "rjust", "zfill", "batch", "indent", "wordwrap", "expandtabs"}
_WIDTHS |= {"round", "to_bytes"}
_PRODUCTS = {"indent", "wordwrap", "expandtabs", "translate", "replace"}
_SLOW = {"dictsort", "groupby", "pprint", "sort", "title"}
_SLOW |= {"unique", "urlencode", "urlize", "wordwrap"}
# Widths of format strings that could make a result much longer than the string. Field names that
# contain brackets could hide a width.
_WIDE = re.compile(
    r"%\([^()]*\(|%(\([^()]*\))?[^a-zA-Z%]*(\d{4}|\*)|\{[^{}]*(\d{4}|\{|\[[^\]{}]*[{}])"
)
_ITERATORS: Any = (GeneratorType, type(iter([])))
_REASONING = ("reasoning_content", "thinking", "reasoning")
# Arguments of `apply_chat_template` in transformers that qkv does not support.
_OTHERS = (
    *("continue_final_message", "sanitize_control_tokens", "padding", "truncation", "max_length"),
    *("return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
)


def chat_prompt(
    messages: Any,
    templates: str | Mapping[str, str] | None,
    chosen: str | None,
    named: Mapping[str, str],
    variables: Mapping[str, Any],
) -> str:
    """Return the prompt for messages, with the special tokens that the template writes.

    Args:
        messages: the messages of one conversation, each with a role.
        templates: the tokenizer's template, or its templates by name.
        chosen: a template, or the name of one of several templates; None for the default.
        named: the texts of the special tokens, keyed by names such as "bos_token".
        variables: further variables for the template.

    Raises:
        TypeError: the messages are not a list of dicts.
        ValueError: there is no template or no message, or the template fails.
    """
    for name in _OTHERS:
        if variables.get(name):
            raise value_error(f"{name} is not supported: omit {name}")
    given = {"tools": None, "documents": None, **named, **_plain(variables, "a variable")}
    template = _choose(templates, chosen, given["tools"])
    return render(template, {**given, "messages": _plain_messages(messages)})


def _choose(templates: str | Mapping[str, str] | None, chosen: str | None, tools: Any) -> str:
    """Return the chosen template, by the same rules as transformers."""
    if chosen is not None and not isinstance(chosen, str):
        raise type_error(f"chat_template is {type(chosen).__name__}; pass a string")
    if isinstance(templates, Mapping):
        default = "tool_use" if tools is not None and "tool_use" in templates else "default"
        if chosen is None and default not in templates:
            names = visible(", ".join(templates))
            raise value_error(
                f"the model has no default chat template; choose chat_template from {names}"
            )
        return templates.get(chosen, chosen) if chosen is not None else templates[default]
    template = templates if chosen is None else chosen
    if template is None:
        raise value_error(
            "the model's files have no chat template; pass chat_template, or load a model that "
            "was trained on conversations (its name often ends in Instruct or Chat)"
        )
    return template


def _plain(values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return a copy that consists of JSON values, whose methods a template may call."""
    try:
        copy: dict[str, Any] = json.loads(json.dumps(values))
    except (TypeError, ValueError, RecursionError) as error:
        raise type_error(f"{what} contains values that JSON does not allow: {error}") from None
    return copy


def _plain_messages(messages: Any) -> list[dict[str, Any]]:
    """Return copies of the messages that consist of JSON values, without entries that are None."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        raise type_error(
            f"messages is {type(messages).__name__}; pass a list of dicts such as "
            '{"role": "user", "content": "Hello"}'
        )
    plain: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            kind = type(message).__name__
            raise type_error(f"message {number} is {kind}; pass a dict with role and content")
        if not isinstance(message.get("role"), str):
            raise value_error(
                f'message {number} has no role; pass "role", for example "user", and "content"'
            )
        entries = {key: value for key, value in message.items() if value is not None}
        copy = _plain(entries, f"message {number}")
        reasoning = next((copy[key] for key in _REASONING if copy.get(key) is not None), None)
        if reasoning is not None:
            copy = {"thinking": reasoning, **copy, "reasoning_content": reasoning}
        plain.append(copy)
    if not plain:
        raise value_error("no message is given; pass at least one")
    return plain


def render(template: str, variables: Mapping[str, Any]) -> str:
    """Render a template in Jinja's sandbox, with transformers' functions and filters.

    Raises:
        ValueError: the template is broken or too long, runs too long, writes too much, reads unsafe
            attributes, or refuses the messages.

    >>> render("{% for m in messages %}<{{ m.role }}>{% endfor %}", {"messages": [{"role": "me"}]})
    '<me>'
    """
    jinja = need("jinja2", "chat")
    if len(template) > MOST_TEMPLATE:
        raise value_error(
            f"the chat template has {len(template):,} characters: the maximum is {MOST_TEMPLATE:,}"
        )
    try:
        rendered: str = _sandbox(_Limits()).from_string(template).render(variables)
        return rendered
    except _TooMuch as error:
        reason = f"runs too long or writes too much: {error}"
    except _Refusal as error:
        reason = f"refuses the messages: {error}"
    except jinja.TemplateSyntaxError as error:
        reason = f"is not valid Jinja: line {error.lineno}: {error.message}"
    except jinja.exceptions.SecurityError as error:
        reason = f"is not safe: {error}"
    except jinja.UndefinedError as error:
        reason = f"reads a value that is not given: {error}"
    except Exception as error:  # a template is a program, and can fail with any error
        reason = f"fails: {type(error).__name__}: {error}"
    raise value_error(f"the chat template {visible(reason[:400])}")


class _TooMuch(Exception):
    """A template has reached a limit."""


class _Refusal(Exception):
    """A template has called `raise_exception`."""


class _Limits:
    """Counts the work of one rendering."""

    def __init__(self) -> None:
        self._left, self._end = _WORK, time.thread_time() + _SECONDS
        # The sizes, keyed by id, of lists and dicts that a template cannot change. The values are
        # kept, so that no other value gets the same id.
        self._known: dict[int, tuple[Any, int]] = {}

    def spend(self, work: int = 0, step: int = _STEP) -> None:
        """Count a step and its work."""
        self._left -= step + work
        if self._left < 0 or time.thread_time() > self._end:
            raise _TooMuch("too many steps, or too much text")

    def size(self, value: Any) -> int:
        """Return the number of characters in a value, including nested values."""
        if isinstance(value, str):
            return self._fits(len(value))
        if not isinstance(value, list | tuple | dict):
            return self._fits(_ENTRY * len(value)) if hasattr(value, "__len__") else 1
        if id(value) not in self._known:
            inner = [*value.keys(), *value.values()] if isinstance(value, dict) else value
            size = self._fits(_ENTRY * len(value) + sum(map(self.size, inner)))
            self._known[id(value)] = value, size
        return self._known[id(value)][1]

    @staticmethod
    def _fits(size: int) -> int:
        if size > _MOST_CHARS:
            raise _TooMuch(f"a value of more than {_MOST_CHARS:,} characters")
        return size

    def write(self, value: Any) -> str:
        """Count a value that is written, and return its text."""
        self.spend(self.size(value))
        text: str = self.result(str(value))
        return text

    def concat(self, texts: Iterable[str]) -> str:
        """Join texts, including the parts of the template that are not code."""
        return "".join(map(self.result, texts))

    def collect(self, value: Any) -> Any:
        """Count a list, tuple or dict that the template makes, and return it."""
        self.spend(self.size(value))
        return value

    def cut(self, value: Any) -> Any:
        """Count a slice, without nested values, and return it."""
        self.spend(len(value) * (1 if isinstance(value, str) else _ENTRY), step=0)
        return value

    def result(self, value: Any) -> Any:
        """Count the result of a function or filter, and return it."""
        if isinstance(value, bytes):
            raise _TooMuch("bytes")
        if isinstance(value, int) and value.bit_length() > _BITS:
            raise _TooMuch("a number with too many digits")
        self.spend(self.size(value) if isinstance(value, str | list | tuple) else 0, step=0)
        return value

    def compare(self, value: Any) -> Any:
        """Check the time limit before a value is compared or tested, and return the value."""
        self.spend(step=0)
        return value

    def items(self, values: Any) -> Iterator[Any]:
        """Count the items of a loop, or of the result of a filter."""
        for item in values:
            self.spend()
            yield item

    def join(self, values: Any) -> str:
        """Join the operands of Jinja's operator `~`."""
        return "".join(map(self.write, values))

    def arguments(self, name: str, values: Iterable[Any]) -> list[Any]:
        """Count the arguments of a function; refuse arguments that could make a huge result.

        Returns:
            The arguments; an iterator is replaced by an iterator over the counted items.
        """
        values = [*values]
        lists: list[Any] = [
            [*value] if isinstance(value, _ITERATORS) else value for value in values
        ]
        sizes: list[int] = []
        for value in lists:
            is_width = name in _WIDTHS and isinstance(value, int)
            if is_width and value > _MOST_WIDTH:
                raise _TooMuch(f"the width {str(value)[:20]}")
            if name == "format" and isinstance(value, str) and _WIDE.search(value):
                raise _TooMuch("a wide format")
            sizes.append(max(1, value if is_width else self.size(value)))
        if name == "sum" and any(isinstance(value, list | tuple) for value in lists[1:]):
            raise _TooMuch("a sum of lists")
        most = math.prod(sizes) if name in _PRODUCTS else 0
        if name == "format" and isinstance(lists[0], str):
            most = sum(map(lists[0].count, "%{")) * sum(sizes[1:])
        elif name == "replace" and all(isinstance(value, str) for value in lists[:3]):
            text, *pair = lists[:3]  # named arguments can have either order
            most = max(text.count(old) * len(new) for old, new in permutations(pair, 2))
        elif name == "join":
            most = math.prod(len(x) if hasattr(x, "__len__") else 1 for x in lists)
        elif name in _SLOW:
            most = max(most, sizes[0] ** 2 // 1024)
        self._fits(most)
        self.spend(sum(sizes) // 64)
        given = zip(values, lists, strict=True)
        return [iter(new) if new is not old else old for old, new in given]

    def operator(self, operator: str, left: Any, right: Any) -> None:
        """Count an operator whose result can be longer than its operands."""
        whole = isinstance(left, int) and isinstance(right, int)
        if operator == "%" and isinstance(left, str):
            self.arguments("format", [left, right])
        elif whole:
            bits = left.bit_length() * abs(right) if operator == "**" else 0
            if max(bits, left.bit_length() + right.bit_length()) > _BITS:
                raise _TooMuch("a number with too many digits")
        elif operator in "+*":
            sizes = [x if isinstance(x, int) else self.size(x) for x in (left, right)]
            self.spend(self._fits(math.prod(sizes) if operator == "*" else sum(sizes)))

    def limit(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter that counts its arguments and its result."""
        own = hasattr(function, "jinja_pass_arg")  # whether Jinja adds a first argument

        @functools.wraps(function)
        def run(*args: Any, **options: Any) -> Any:
            head, args = args[:own], args[own:]
            given = self.arguments(name, (*args, *options.values()))
            options = dict(zip(options, given[len(args) :], strict=True))
            result = function(*head, *given[: len(args)], **options)
            return self.items(result) if isinstance(result, Iterator) else self.result(result)

        return run


def _sandbox(limits: _Limits) -> Any:
    """Return Jinja's sandbox with limits, set up as in transformers."""
    from jinja2 import nodes, pass_context
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.visitor import NodeTransformer

    def make_filter(node: Any, name: str) -> nodes.Filter:
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)

    class Bounds(NodeTransformer):
        """Insert filters that count the work."""

        def visit_For(self, node: nodes.For) -> nodes.Node:
            self.generic_visit(node)
            node.iter = make_filter(node.iter, _LOOP)
            return node

        def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
            self.generic_visit(node)
            return make_filter(nodes.List(node.nodes, lineno=node.lineno), _JOIN)

        def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
            self.generic_visit(node)
            return make_filter(node, _SLICE) if isinstance(node.arg, nodes.Slice) else node

        def visit_Compare(self, node: nodes.Node) -> nodes.Node:
            self.generic_visit(node)
            field = "node" if isinstance(node, nodes.Test) else "expr"
            setattr(node, field, make_filter(getattr(node, field), _COMPARED))
            return node

        visit_Operand = visit_Test = visit_Compare

        def visit_List(self, node: nodes.Expr) -> nodes.Node:
            self.generic_visit(node)
            return node if getattr(node, "ctx", "load") == "store" else make_filter(node, _LIST)

        visit_Tuple = visit_Dict = visit_List

    class Generation(Extension):
        """The block `{% generation %}`, which marks answers for training."""

        tags = {"generation"}  # noqa: RUF012 (as in the base class)

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    class Sandbox(ImmutableSandboxedEnvironment):
        """A sandbox that counts loops, calls and operators."""

        concat: Any = staticmethod(limits.concat)
        intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

        def _generate(self, source: nodes.Template, *args: Any, **options: Any) -> Any:
            bounded = Bounds().visit(source)
            bounded.set_environment(self)
            return super()._generate(bounded, *args, **options)

        def call(self, context: Any, function: Any, /, *args: Any, **options: Any) -> Any:
            name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
            _, *given = limits.arguments(name, (owner, *args, *options.values()))
            options = dict(zip(options, given[len(args) :], strict=True))
            return limits.result(super().call(context, function, *given[: len(args)], **options))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            limits.operator(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def wrap_str_format(self, value: Any) -> Any:
            wrapped: Any = super().wrap_str_format(value)

            def run(*args: Any, **options: Any) -> str:
                limits.arguments("format", [value.__self__, *args, *options.values()])
                return str(wrapped(*args, **options))

            return wrapped and run

        def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
            raise SecurityError(f"it reads {attribute!r} of a {type(obj).__name__}")

    sandbox = Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,  # so that constant expressions are counted too
        finalize=pass_context(lambda _, value: limits.write(value)),
        extensions=[Generation, "jinja2.ext.loopcontrols"],
    )
    sandbox.filters["tojson"] = _to_json
    for name, function in sandbox.filters.items():
        sandbox.filters[name] = limits.limit(name, function)
    sandbox.filters |= {_LOOP: limits.items, _JOIN: limits.join, _LIST: limits.collect}
    sandbox.filters |= {_SLICE: limits.cut, _COMPARED: limits.compare}
    del sandbox.globals["lipsum"]
    sandbox.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda format: datetime.now().strftime(format),
        # A function, because a template could read the attributes of the class `dict`.
        "dict": lambda *args, **options: dict(*args, **options),
    }
    return sandbox


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return a value as JSON; unlike Jinja's own filter, do not escape HTML."""
    if (len(indent) if isinstance(indent, str) else indent or 0) > _MOST_INDENT:
        raise _TooMuch(f"an indent of more than {_MOST_INDENT}")
    options: dict[str, Any] = {"separators": separators, "sort_keys": sort_keys, "indent": indent}
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _refuse(message: str) -> NoReturn:
    raise _Refusal(message)
