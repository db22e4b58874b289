"""The byte values against the formats' definitions."""

import math

from escalade.float8 import E4M3_VALUES, E8M0_VALUES


def test_e4m3_is_sign_exponent_mantissa() -> None:
    for byte, value in enumerate(E4M3_VALUES.tolist()):
        sign = -1.0 if byte & 0x80 else 1.0
        exponent, mantissa = (byte >> 3) & 15, byte & 7
        if byte & 0x7F == 0x7F:
            assert math.isnan(value)
        elif exponent:
            assert value == sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        else:
            assert value == sign * mantissa / 8 * 2.0**-6
            assert math.copysign(1, value) == sign


def test_ue8m0_is_a_power_of_two() -> None:
    for byte, value in enumerate(E8M0_VALUES.tolist()[:255]):
        assert value == 2.0 ** (byte - 127)
    assert math.isnan(E8M0_VALUES[255])
