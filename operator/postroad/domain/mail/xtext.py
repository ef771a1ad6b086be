"""xtext: how DSN parameters carry any ASCII text inside one word, and an address in UTF-8 in ASCII.

Source: RFC 3461 4; RFC 6533 3.
"""

import re

from postroad.errors import InvalidInput

_FORM = re.compile(r"(?:[!-*,-<>-~]|\+[0-9A-Fa-f]{2})*")
_ESCAPE = re.compile(r"\+([0-9A-Fa-f]{2})")


def encode_xtext(text: str) -> str:
    """Encode printable ASCII and spaces.

    Raises: InvalidInput for anything else, which no DSN parameter may hold.

    >>> encode_xtext("a+b=c d")
    'a+2Bb+3Dc+20d'
    """
    if any(not 32 <= ord(char) <= 126 for char in text):
        raise InvalidInput("a DSN parameter holds a character that is not printable ASCII")
    return "".join(char if char not in "+= " else f"+{ord(char):02X}" for char in text)


def decode_xtext(xtext: str) -> str:
    """Decode; also lower-case digits, which some clients write against RFC 3461. Raises:
    InvalidInput for what is not xtext, or hides a control character in it.

    >>> decode_xtext("a+2Bb+2bc")
    'a+b+c'
    """
    if not _FORM.fullmatch(xtext):
        raise InvalidInput("a DSN parameter is not xtext")
    text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), xtext)
    if any(not 32 <= ord(char) <= 126 for char in text):
        raise InvalidInput("a DSN parameter holds a character that is not printable ASCII")
    return text


def encode_address(address: str) -> str:
    """Encode an address in UTF-8 as a field of a report in ASCII has it (`utf-8-addr-xtext`).

    >>> encode_address("jörg+x@example.net")
    'j\\\\x{F6}rg\\\\x{2B}x@example.net'
    """
    return "".join(
        char if "!" <= char <= "~" and char not in "+=\\" else f"\\x{{{ord(char):02X}}}"
        for char in address
    )
