"""Regenerates embedded_greedy.json: what transformers says greedily, in float32, for 20 prompts on the embedded model.

    PYTHONSAFEPATH=1 .venv/bin/python tests/data/embedded_greedy.py

transformers reads the GGUF file itself here, with its own dequantization and reordering, so that nothing of ours is on
the oracle's side. Each prompt runs alone, without padding. `gap` is the smallest distance between the best and the
second-best logit on the way: far above what rounding could turn round.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers

from bosquet.runtime.models.source import embedded_file

NEW_TOKENS = 64
CHAT = [
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "Write a haiku about a garden in autumn.",
    "List five fruits, one a line.",
    "How many days are there in a leap year?",
    "Translate 'good morning' into Spanish.",
    "Give me a recipe for pancakes.",
    "Who wrote Romeo and Juliet?",
    "What is 12 times 7?",
    "Summarise: The cat sat on the mat because the floor was cold.",
    "Write a Python function that adds two numbers.",
    "Name three planets and say one thing about each.",
]
PLAIN = [
    "Once upon a time, in a small village by the sea,",
    "The three most important inventions of the nineteenth century were",
    "def fibonacci(n):\n",
    "Dear Sir or Madam,\n\nI am writing to",
    "Photosynthesis is the process by which",
    "1, 2, 3, 5, 8, 13,",
    '{"name": "Ada", "age":',
    "The history of the bicycle begins",
]


def main() -> None:
    file = embedded_file()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, dtype=torch.float32
    ).eval()
    chats = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False)
        for text in CHAT
    ]
    cases = []
    for text in chats + PLAIN:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        made = model.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.int64), max_new_tokens=NEW_TOKENS,
            min_new_tokens=0, do_sample=False, eos_token_id=None, pad_token_id=0, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        best = torch.stack(made.logits).squeeze(1).topk(2).values
        output = made.sequences[0, len(ids) :].tolist()
        cases.append({"prompt": ids, "output": output, "gap": round((best[:, 0] - best[:, 1]).min().item(), 5)})
        print(cases[-1]["gap"], repr(tokenizer.decode(output))[:100], flush=True)
    found = {"transformers": transformers.__version__, "torch": torch.__version__, "cases": cases}
    path = Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(found).replace('{"prompt"', '\n{"prompt"') + "\n")


if __name__ == "__main__":
    main()
