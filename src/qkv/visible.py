"""Text from outside, as a terminal or a log can show it."""

from __future__ import annotations


def visible(text: str, keep: str = "") -> str:
    r"""Text in which whatever would steer a terminal is escaped, as Python would write it.

    Escaped are all that is not printable: control characters (ESC, line breaks), marks that change
    the direction of writing, halves of surrogate pairs.

    Args:
        text: the text.
        keep: what of it stays as it is: the line breaks of a text of several lines.

    >>> print(visible("a\x1b[31mb\nc\u202e"), visible("é, 世"))
    a\x1b[31mb\nc\u202e é, 世
    """
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)
