"""DSN parameters carry any printable ASCII."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.mail.seven_bits import decode_xtext, encode_xtext
from postroad.errors import InvalidInput


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_what_is_encoded_is_one_word_and_decodes_again(text: str) -> None:
    xtext = encode_xtext(text)

    assert not set(xtext) & set(" =")
    assert decode_xtext(xtext) == text


@pytest.mark.parametrize(
    "xtext", ["a b", "a=b", "a+2", "a+2g", "a+", "+0D", "+0A", "é", "a\r\nb", "+1F", "+7F", "+80"]
)
def test_what_is_not_xtext_or_hides_a_control_is_refused(xtext: str) -> None:
    with pytest.raises(InvalidInput):
        decode_xtext(xtext)


@pytest.mark.parametrize("text", ["a\r\nRCPT TO:<x@y>", "\x00", "\x1f", "\x7f", "é"])
def test_what_no_parameter_may_hold_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        encode_xtext(text)
