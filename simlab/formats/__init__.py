"""Number formats: what a value becomes when it is stored in fewer bits."""

from simlab.formats.catalog import FORMATS
from simlab.formats.format import Format, stack
from simlab.formats.gradients import GRADIENTS, Quantized
from simlab.formats.quantize import dequantize, quantize, quantize_with_scale
from simlab.formats.rounding import round_to_format
from simlab.formats.rounding_modes import OVERFLOWS, ROUNDINGS, Rounding, StochasticRounding
from simlab.formats.scaling import SCALINGS, Scaling, expand_scale, find_scale

__all__ = [
    "FORMATS",
    "GRADIENTS",
    "OVERFLOWS",
    "ROUNDINGS",
    "SCALINGS",
    "Format",
    "Quantized",
    "Rounding",
    "Scaling",
    "StochasticRounding",
    "dequantize",
    "expand_scale",
    "find_scale",
    "quantize",
    "quantize_with_scale",
    "round_to_format",
    "stack",
]
