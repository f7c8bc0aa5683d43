"""GuideLLM, as `clients.py` runs it: synthetic prompts at several rates against each of the endpoints that it can ask, and its
JSON report, in which every request has ended, with as many tokens as its usage says and a time to its first one."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROFILES = {
    "completions": ("/v1/completions", {"kind": "sweep", "sweep_size": 3}),
    "chat": ("/v1/chat/completions", {"kind": "poisson", "rate": [4.0]}),
    "responses": ("/v1/responses", {"kind": "constant", "rate": [4.0]}),
}
REQUESTS = 6
TOKENS = 100
"""Of a generation: more than the server has for its sentence and the thought before it."""

found = {}
with tempfile.TemporaryDirectory() as name:
    for what, (path, profile) in PROFILES.items():
        report = Path(name) / f"{what}.json"
        backend = {"kind": "openai_http", "target": os.environ["BASE"].removesuffix("/v1"), "request_format": path}
        backend |= {"api_key": os.environ["KEY"], "http2": False}
        options = {
            "backend": backend, "profile": profile, "constraint": {"kind": "max_requests", "count": REQUESTS},
            "tokenizer": {"kind": "huggingface_auto", "model": os.environ["MODEL"]},
            "data": {"kind": "synthetic_text", "prompt_tokens": 20, "output_tokens": TOKENS},
            "output": {"kind": "json", "path": str(report)},
        }  # fmt: skip
        words = [word for key, value in options.items() for word in (f"--{key}", json.dumps(value))]
        subprocess.run([sys.executable, "-P", "-m", "guidellm", "run", *words, "--disable-console"], check=True)
        runs = json.loads(report.read_text(encoding="utf-8"))["benchmarks"]
        assert len(runs) == profile.get("sweep_size", 1), len(runs)
        texts = set()
        for run in runs:
            requests = run["requests"]
            assert len(requests["successful"]) == REQUESTS and not requests["errored"] and not requests["incomplete"], requests
            for one in requests["successful"]:
                times = one["info"]["timings"]
                assert times["request_start"] <= times["first_token_iteration"] <= times["last_token_iteration"], times
                assert one["input_metrics"]["text_tokens"] >= 20 and one["output_metrics"]["text_tokens"] > 1, one
                texts.add(one["output"])
        [found[what]] = texts
print(json.dumps(found))
