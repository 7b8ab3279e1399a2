"""Show untrusted text on a terminal or in a log."""

from __future__ import annotations


def visible(text: str, keep: str = "") -> str:
    r"""Return a text with every character escaped, as in Python, that could steer a terminal.

    These are all characters that are not printable: control characters (ESC, line breaks), marks
    that change the direction of writing, halves of surrogate pairs.

    Args:
        text: the text.
        keep: characters that stay, such as the line breaks of a longer text.

    >>> print(visible("a\x1b[31mb\nc\u202e"), visible("é, 世"))
    a\x1b[31mb\nc\u202e é, 世
    """
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)
