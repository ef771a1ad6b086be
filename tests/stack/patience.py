"""How long the stack, the demo and the e2e tests wait on this machine.

Their deadlines fit two busy cores. A machine on which all takes a dozen times longer, an emulated
one for example, names a factor; each wait that ends in an error is so many times longer there.
"""

import math
import os

from stack.errors import StackError

VARIABLE = "POSTROAD_STACK_PATIENCE"
"""Names the factor: a number from 1."""


def stretched(seconds: float) -> float:
    """Return how long to wait on this machine for what may take so long on a usual one.

    Raises:
        StackError: the variable has no such number.
    """
    return seconds * _factor()


def _factor() -> float:
    value = os.environ.get(VARIABLE) or "1"
    try:
        factor = float(value)
    except ValueError:
        factor = math.nan
    if not 1 <= factor < math.inf:
        raise StackError(f"{VARIABLE} is {value!r}: give a number from 1, such as 10")
    return factor
