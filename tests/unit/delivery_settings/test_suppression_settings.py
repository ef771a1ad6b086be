"""What the schema of the suppression list refuses."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from postroad.delivery_settings.delivery import SuppressionSettings


@pytest.mark.parametrize("after", [True, "2", 0, 101])
def test_suppression_after_refuses_what_is_no_number_of_refusals(after: object) -> None:
    with pytest.raises(ValidationError, match="after"):
        SuppressionSettings.model_validate({"after": after})
