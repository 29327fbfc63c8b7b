"""HTTP engine: requests, and valid and invalid answers of a local server."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from simlab.serving.http_engine import HttpEngine
from simlab.serving.protocol import EngineError, SamplingRequest

PROMPTS = np.asarray([[5, 6], [7, 8], [9, 4]], np.int32)
SAMPLING = SamplingRequest(max_tokens=4, eos_token_id=1, pad_token_id=0)


def tokens_and_logps(asked) -> tuple[list[int], list]:
    """Count down from the last prompt token to the end token, with log-prob -token / 8."""
    tokens = (
        [1, 1] if asked["prompt"][-1] < 5 else [asked["prompt"][-1] - k for k in range(asked["max_tokens"])]
    )
    tokens = tokens[: tokens.index(1) + 1] if 1 in tokens else tokens
    logps = [-token / 8 for token in tokens]
    if asked.get("echo"):
        return asked["prompt"] + tokens, [None, *(-token / 8 for token in asked["prompt"][1:]), *logps]
    return tokens, logps


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.reply({"data": [{"id": "policy"}]})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(asked)
        tokens, logps = tokens_and_logps(asked)
        names = [f"token_id:{token}" for token in tokens]
        match self.server.fault:
            case "slow":
                time.sleep(1.0)
            case "missing":
                return self.reply({"choices": [{"text": "x", "logprobs": None}]})
            case "nan":
                logps[-1] = float("nan")
            case "texts":
                names = ["a"] * len(names)
            case "other":
                names[0] = "token_id:3"
            case "long":
                names, logps = names * 9, logps * 9
            case "nothing":
                return self.reply({"choices": []})
            case "html":
                return self.reply(None, body=b"<html>gateway</html>")
            case "refuse":
                return self.reply({"error": {"message": "the prompt is too long"}}, status=400)
            case "hang up":
                return self.connection.close()
        return self.reply({"choices": [{"logprobs": {"tokens": names, "token_logprobs": logps}}]})

    def reply(self, content, *, body=None, status=200):
        body = json.dumps(content).encode() if body is None else body
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):  # the client has disconnected
            self.wfile.write(body)


@pytest.fixture
def server():
    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.requests, found.fault = [], None
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


@pytest.fixture
def engine(server):
    return HttpEngine(f"http://127.0.0.1:{server.server_port}/")


def test_generate_and_score_read_tokens_and_logps(engine, server):
    found = engine.generate(PROMPTS, SAMPLING)
    np.testing.assert_array_equal(found.responses, [[6, 5, 4, 3], [8, 7, 6, 5], [1, 0, 0, 0]])
    np.testing.assert_array_equal(found.mask.sum(1), [4, 4, 1])
    np.testing.assert_array_equal(found.logps, np.float32(found.responses * found.mask) / -8)
    assert found.routed_experts is None
    # Each prompt has its own seed; a shared seed would give equal samples.
    assert len({asked["seed"] for asked in server.requests}) == 3
    assert {asked["model"] for asked in server.requests} == {"policy"}
    scored = engine.score(PROMPTS, found.responses)
    np.testing.assert_array_equal(scored.logps, np.float32(found.responses) / -8)
    assert engine.describe()["model"] == "policy"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("missing", "returned no log-probs"),
        ("texts", "returned token texts, not ids"),
        ("nothing", "returned no completion"),
        ("html", "must answer 'completions' with JSON"),
        ("refuse", "rejected 'completions' with status 400: .*too long"),
        ("hang up", "is unreachable"),
        ("nan", "1 invalid log-probs of 4"),
        ("long", "must return 1 to 4 tokens, got 36"),
    ],
)
def test_generate_rejects_invalid_answers(engine, server, fault, words):
    server.fault = fault
    with pytest.raises(EngineError, match=words):
        engine.generate(PROMPTS[:1], SAMPLING)


def test_score_rejects_another_echo(engine, server):
    server.fault = "other"
    with pytest.raises(EngineError, match="must echo the tokens"):
        engine.score(PROMPTS, PROMPTS)


def test_generate_times_out(engine, server):
    server.fault, engine.timeout = "slow", 0.1
    with pytest.raises(EngineError, match=r"did not answer 'completions' within 0.1 s"):
        engine.generate(PROMPTS[:1], SAMPLING)


def test_connect_rejects_unknown_model_and_server(server):
    address = f"http://127.0.0.1:{server.server_port}"
    with pytest.raises(EngineError, match="must be one of policy, got 'gpt'"):
        HttpEngine(address, "gpt")
    with pytest.raises(EngineError, match=r"is unreachable .* Start it: vllm serve"):
        HttpEngine("http://127.0.0.1:9")
