"""Servers that are missing, die, hang or answer nonsense, and the checks of their answers."""

import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from simlab.models import TransformerConfig, init_params
from simlab.serving.jax_engine import JaxEngine
from simlab.serving.protocol import EngineError, SamplingRequest, build_samples, check_logps
from simlab.serving.served_engine import install_command
from simlab.serving.server_process import InProcessServer, ServerProcess
from simlab.serving.servers import messages

# Echoes requests until a request names a fault.
SERVER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from messages import receive, send
while True:
    header, arrays = receive(sys.stdin.buffer)
    match header["do"]:
        case "echo": send(sys.stdout.buffer, header, arrays)
        case "die": print("out of memory", file=sys.stderr, flush=True); os._exit(9)
        case "hang": time.sleep(60)
        case "babble": os.write(1, b"Loading checkpoint shards..." * 9); os._exit(0)
        case "half": os.write(1, (99).to_bytes(8, "little") + b"cut"); os._exit(0)
"""


@pytest.fixture
def server():
    folder = str(Path(messages.__file__).parent)
    process = ServerProcess([sys.executable, "-c", SERVER, folder], "peer", "pip install peer", timeout=20.0)
    yield process
    process.close()


def test_server_process_round_trips_messages(server):
    arrays = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.asarray(7)}
    for number in range(2):
        header, found = server.call("echo", arrays, number=number, text="ü")
        assert header == {"do": "echo", "number": number, "text": "ü"}
        assert set(found) == set(arrays)
        np.testing.assert_array_equal(found["x"], arrays["x"])


@pytest.mark.parametrize(
    ("do", "words"),
    [("die", "peer died during 'die': out of memory"), ("half", "peer died"), ("babble", "peer died")],
)
def test_server_process_reports_the_last_line_when_dead(server, do, words):
    with pytest.raises(EngineError, match=words):
        server.call(do)
    with pytest.raises(EngineError, match="peer died during 'echo'"):
        server.call("echo")


def test_server_process_times_out(server):
    server.timeout = 0.3
    with pytest.raises(EngineError, match=r"peer did not answer 'hang' within 0.3 s"):
        server.call("hang")
    assert server.process.poll() is not None


def test_server_process_names_the_install_command(tmp_path):
    with pytest.raises(EngineError, match=r"peer is not installed .* Install: pip install peer"):
        ServerProcess([str(tmp_path / "python")], "peer", "pip install peer", timeout=1.0)


@pytest.mark.parametrize(
    ("has_script", "command"), [(True, "python scripts/make_env.py hf"), (False, "pip install torch")]
)
def test_install_command_is_pip_without_a_checkout(tmp_path, monkeypatch, has_script, command):
    monkeypatch.setattr("simlab.serving.served_engine.checkout_root", lambda: tmp_path)
    if has_script:
        (tmp_path / "scripts").mkdir()
        (tmp_path / "scripts" / "make_env.py").touch()
    assert install_command("hf", "torch") == command


HERE = """
from messages import MAX_BYTES

class Server:
    def echo(self, header, arrays):
        return header, arrays
"""


def test_in_process_server_answers_equally(tmp_path):
    script = tmp_path / "peer_server.py"
    script.write_text(HERE)
    server = InProcessServer(script, "peer", "pip install peer")
    header, found = server.call("echo", {"x": np.arange(3)}, number=1)
    assert (header, found["x"].tolist()) == ({"number": 1}, [0, 1, 2])
    with pytest.raises(EngineError, match="peer failed in 'shout': AttributeError"):
        server.call("shout")
    script.write_text("import no_such_framework")
    with pytest.raises(EngineError, match=r"no_such_framework.*Install: pip install peer"):
        InProcessServer(script, "peer", "pip install peer")
    assert "messages" not in sys.modules


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 0.5])
def test_check_logps_rejects_invalid_values(bad):
    logps = np.full((2, 3), -1.0)
    logps[1, 2] = bad
    with pytest.raises(
        EngineError, match=r"peer returned 1 invalid log-probs of 6 \(first: .* at \[1, 2\]\)"
    ):
        check_logps("peer", logps, (2, 3))
    with pytest.raises(EngineError, match=r"of shape \(2, 4\), got \(2, 3\)"):
        check_logps("peer", logps, (2, 4))


def test_build_samples_masks_after_the_end():
    sampling = SamplingRequest(max_tokens=3, eos_token_id=1, pad_token_id=0)
    logps = np.asarray([[-1.0, -2.0, np.nan], [-1.0, -2.0, -3.0]])
    found = build_samples("peer", [[5, 1, 9], [5, 6, 7]], logps, None, sampling, 2)
    np.testing.assert_array_equal(found.responses, [[5, 1, 0], [5, 6, 7]])
    np.testing.assert_array_equal(found.mask, [[True, True, False], [True] * 3])
    np.testing.assert_array_equal(found.logps, np.float32([[-1, -2, 0], [-1, -2, -3]]))


CONFIG = TransformerConfig(hidden_size=32, num_hidden_layers=1, intermediate_size=32, num_experts=4)


def test_jax_engine_follows_the_protocol():
    engine = JaxEngine("f32")
    prompts = np.arange(8, dtype=np.int32).reshape(2, 4) + 2
    with pytest.raises(EngineError, match="simlab f32 has no weights"):
        engine.score(prompts, prompts)
    assert engine.sync_weights(CONFIG, init_params(jax.random.key(0), CONFIG)) == 0.0
    found = engine.generate(
        prompts, SamplingRequest(max_tokens=3, eos_token_id=1, pad_token_id=0, temperature=0.0)
    )
    assert found.responses.shape == found.logps.shape == (2, 3)
    assert found.routed_experts is not None
    assert found.routed_experts.shape == (2, 6, 1, 2)
    # Decoding and scoring add in different orders: close, not always equal.
    apart = np.where(found.mask, engine.score(prompts, found.responses).logps - found.logps, 0)
    assert np.abs(apart).max() < 1e-4
    assert engine.describe()["engine"] == "simlab f32"


def test_sync_weights_rejects_a_parity_error():
    engine = JaxEngine("bf16", parity=1e-6)
    dense = replace(CONFIG, num_experts=0)
    with pytest.raises(EngineError, match=r"weight sync to simlab bf16 failed: .* at most 1e-06 nats"):
        engine.sync_weights(dense, init_params(jax.random.key(0), dense))
