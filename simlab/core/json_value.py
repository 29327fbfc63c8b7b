"""The type of values that JSON can hold."""

from typing import Any

Json = Any
"""None, a bool, int, float or str, or a list or table of these. A recursive type would need a check of the
type at each access to a nested value."""
