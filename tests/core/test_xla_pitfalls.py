import json
from dataclasses import asdict

from simlab.core.xla_pitfalls import check_pitfalls


def test_every_pitfall_is_decided_and_prints_as_json():
    rows = [asdict(pitfall) for pitfall in check_pitfalls()]
    assert len(json.loads(json.dumps(rows))) == len({row["pitfall"] for row in rows}) >= 10
    assert all(isinstance(row["holds"], bool) and row["observed"] and row["workaround"] for row in rows)


def test_xla_pitfalls_are_detected_on_cpu():
    # jaxlib 0.10 and 0.12; the others come and go with the compiler (0.12 keeps constant magic numbers).
    held = {each.pitfall for each in check_pitfalls() if each.holds}
    assert "subnormals are flushed to zero" in held
    assert "a cast to float8 and back also rounds the gradient" in held
