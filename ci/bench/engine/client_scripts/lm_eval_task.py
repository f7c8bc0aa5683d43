"""lm-evaluation-harness, as `clients.py` runs it: a task of one question, as chat completions and as completions."""

import json
import os
import tempfile
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

TASK = """
task: sky
dataset_path: json
dataset_kwargs: {data_files: {test: QUESTIONS}}
output_type: generate_until
test_split: test
doc_to_text: "{{question}}"
doc_to_target: "{{reply}}"
generation_kwargs: {until: ["\\n\\n\\n"], max_gen_toks: 100, temperature: 0}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""

found = {}
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    reply = {"question": "Why is the sky blue?", "reply": os.environ["EXPECTED"]}
    (folder / "questions.jsonl").write_text(json.dumps(reply), encoding="utf-8")
    (folder / "sky.yaml").write_text(TASK.replace("QUESTIONS", str(folder / "questions.jsonl")), encoding="utf-8")
    manager = TaskManager(include_path=name, include_defaults=False)
    os.environ["OPENAI_API_KEY"] = os.environ["KEY"]
    for what, model, path in (
        ("chat", "local-chat-completions", "chat/completions"), ("completions", "local-completions", "completions"),
    ):  # fmt: skip
        options = {"model": "talker", "base_url": f"{os.environ['BASE']}/{path}", "tokenizer_backend": None, "max_retries": 1}
        options |= {"tokenized_requests": False} if what == "completions" else {}
        done = lm_eval.simple_evaluate(
            model, options, tasks=["sky"], task_manager=manager, apply_chat_template=what == "chat", log_samples=True
        )
        found[what] = done["samples"]["sky"][0]["filtered_resps"][0]
        assert done["results"]["sky"]["exact_match,none"] == 1, done
print(json.dumps(found))
