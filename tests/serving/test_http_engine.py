"""What an HTTP engine sends and makes of answers, right and wrong ones, from a server on this machine."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from simlab.serving.http_engine import HttpEngine
from simlab.serving.protocol import EngineError, Sampling

PROMPTS = np.asarray([[5, 6], [7, 8], [9, 4]], np.int32)
SAMPLING = Sampling(length=4, end=1, pad=0)


def tokens_and_logps(asked) -> tuple[list[int], list]:
    """What the server says: the prompt's last token counted down to the end token, log-prob -token / 8."""
    said = (
        [1, 1] if asked["prompt"][-1] < 5 else [asked["prompt"][-1] - k for k in range(asked["max_tokens"])]
    )
    said = said[: said.index(1) + 1] if 1 in said else said
    logps = [-token / 8 for token in said]
    if asked.get("echo"):
        return asked["prompt"] + said, [None, *(-token / 8 for token in asked["prompt"][1:]), *logps]
    return said, logps


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
        with contextlib.suppress(OSError):  # the client has given up
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


def test_tokens_and_log_probs_arrive(engine, server):
    found = engine.generate(PROMPTS, SAMPLING)
    np.testing.assert_array_equal(found.responses, [[6, 5, 4, 3], [8, 7, 6, 5], [1, 0, 0, 0]])
    np.testing.assert_array_equal(found.mask.sum(1), [4, 4, 1])
    np.testing.assert_array_equal(found.logps, np.float32(found.responses * found.mask) / -8)
    assert found.experts is None
    # A seed of its own for each prompt: with one for all, their samples would be alike.
    assert len({asked["seed"] for asked in server.requests}) == 3
    assert {asked["model"] for asked in server.requests} == {"policy"}
    scored = engine.score(PROMPTS, found.responses)
    np.testing.assert_array_equal(scored.logps, np.float32(found.responses) / -8)
    assert engine.describe()["model"] == "policy"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("missing", "returned no log-probs"),
        ("texts", "returned token texts, no ids"),
        ("nothing", "returned no completion"),
        ("html", "something else than JSON"),
        ("refuse", "refused 'completions' with 400: .*too long"),
        ("hang up", "cannot be reached"),
        ("nan", "log-probs that are none"),
        ("long", "returned 36 tokens, asked for 1 to 4"),
    ],
)
def test_a_bad_answer_is_one_clear_error(engine, server, fault, words):
    server.fault = fault
    with pytest.raises(EngineError, match=words):
        engine.generate(PROMPTS[:1], SAMPLING)


def test_an_echo_of_other_tokens_is_refused(engine, server):
    server.fault = "other"
    with pytest.raises(EngineError, match="echoed other tokens"):
        engine.score(PROMPTS, PROMPTS)


def test_a_slow_server_is_given_up(engine, server):
    server.fault, engine.timeout = "slow", 0.1
    with pytest.raises(EngineError, match=r"did not answer 'completions' within 0.1 s"):
        engine.generate(PROMPTS[:1], SAMPLING)


def test_no_server_and_no_such_model(server):
    address = f"http://127.0.0.1:{server.server_port}"
    with pytest.raises(EngineError, match="does not serve 'gpt'; it has: policy"):
        HttpEngine(address, "gpt")
    with pytest.raises(EngineError, match=r"cannot be reached .*; start one with: vllm serve"):
        HttpEngine("http://127.0.0.1:9")
