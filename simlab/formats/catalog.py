"""The number formats by name. Adding one is one declaration here."""

from simlab.formats.format import Format

NAN = float("nan")

FORMATS: dict[str, Format] = {
    # IEEE-like: infinities, NaNs, -0.
    "fp32": Format.declare(23, -126, (2 - 2**-23) * 2.0**127),
    "tf32": Format.declare(10, -126, (2 - 2**-10) * 2.0**127),
    "bf16": Format.declare(7, -126, (2 - 2**-7) * 2.0**127),
    "fp16": Format.declare(10, -14, 65504.0),
    "e5m2": Format.declare(2, -14, 57344.0),
    "e4m3": Format.declare(3, -6, 240.0),
    "e3m4": Format.declare(4, -2, 15.5),
    # NaN but no infinity: what overflows becomes NaN.
    "e4m3fn": Format.declare(3, -6, 448.0, overflow_value=NAN),
    "e4m3fnuz": Format.declare(3, -7, 240.0, overflow_value=NAN, negative_zero=False),
    "e5m2fnuz": Format.declare(2, -15, 57344.0, overflow_value=NAN, negative_zero=False),
    # Powers of two, without sign and zero: both become NaN.
    "e8m0": Format.declare(0, -127, 2.0**127, min_finite=2.0**-127, overflow_value=NAN, negative_zero=False),
    # Finite values only: overflow saturates, NaN becomes a zero of flipped sign (as in ml_dtypes).
    "e3m2": Format.declare(2, -2, 28.0, overflow_value=28.0, nan_value=-0.0),
    "e2m3": Format.declare(3, 0, 7.5, overflow_value=7.5, nan_value=-0.0),
    "e2m1": Format.declare(1, 0, 6.0, overflow_value=6.0, nan_value=-0.0),
    # Two's complement integers: the complete range is subnormal, and -2^(bits-1) exists.
    "int8": Format.declare(
        7, 7, 127.0, min_finite=-128.0, overflow_value=127.0, nan_value=0.0, negative_zero=False
    ),
    "int4": Format.declare(
        3, 3, 7.0, min_finite=-8.0, overflow_value=7.0, nan_value=0.0, negative_zero=False
    ),
}
