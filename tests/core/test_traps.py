import json

from simlab.core.traps import check_traps


def test_every_trap_is_decided_and_prints_as_json():
    rows = [trap.as_row() for trap in check_traps()]
    assert len(json.loads(json.dumps(rows))) == len({row["trap"] for row in rows}) >= 10
    assert all(isinstance(row["holds"], bool) and row["seen"] and row["remedy"] for row in rows)


def test_xla_pitfalls_are_detected_on_cpu():
    # jaxlib 0.10 and 0.12; the others come and go with the compiler (0.12 keeps constant magic numbers).
    held = {trap.trap for trap in check_traps() if trap.holds}
    assert "subnormals are flushed to zero" in held
    assert "a cast to float8 and back also rounds the gradient" in held
