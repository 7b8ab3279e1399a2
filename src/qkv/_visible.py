"""Show untrusted text safely on a terminal or in a log."""


def visible(text: str, keep: str = "") -> str:
    r"""Escape every character that could control a terminal, in the style of Python's `repr`.

    These are the characters that Python considers non-printable: control characters (ESC, line
    breaks), marks that change the writing direction, and lone surrogates.

    Args:
        text: the text.
        keep: characters that are not escaped, such as line breaks.

    >>> print(visible("a\x1b[31mb\nc\u202e"), visible("é, 世"))
    a\x1b[31mb\nc\u202e é, 世
    """
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)
