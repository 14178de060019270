"""The quality gate of galvani-nano: what the oracle answers, greedily, to a fixed list of prompts.

The oracle is transformers in FP32 on a CPU, with the values that the checkpoint stores and the reference indexer. An
entry has the keys of a request of `galvani run --requests`, the token ids of prompt and answer (end token included),
the hash of the answer, and the least gap between the two largest logits.
"""

import hashlib
import json
import os
import random

import numpy as np
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from transformers import DynamicCache

import nano_corpus
from golden_oracle import CutMargins, build_model, load_state, verify_checkpoint, watched_topk
from nano_model import ENDOFTEXT_ID, IM_END_ID, text_config

MAX_NEW = 64
LEAST_MARGIN = 0.05


def user(text):
    return [{"role": "user", "content": text}]


def passage(seed, n_facts):
    """A passage of the kind that was trained on, with a question about the statement in its middle, and the answer."""
    facts = nano_corpus.passage_facts(random.Random(seed), n_facts)
    _, question, says = facts[n_facts // 2]
    return " ".join(fact[0] for fact in facts) + "\n" + question, says


def requests():
    """(request, what its answer must hold). Those named `long` exceed the indexer's budget, up to four times over."""
    name_turns = user("My name is Clara.") + [
        {"role": "assistant", "content": "Nice to meet you, Clara.", "reasoning_content": ""},
        {"role": "user", "content": "What is my name?"},
    ]
    thoughtful_turns = user("What is 12 times 12?") + [
        {
            "role": "assistant",
            "content": "12 times 12 is 144.",
            "reasoning_content": "This is arithmetic. 12 × 12 = 144. Check: 144 / 12 = 12.",
        },
        {"role": "user", "content": "What is the capital of Japan?"},
    ]
    system_turns = [{"role": "system", "content": "You are a helpful assistant."}] + user("What is an ohm?")
    yield {"id": "times", "prompt": "What is 6 times 7?"}, "42"
    yield {"id": "times_sign", "prompt": "12 x 11 = ?"}, "132"
    yield {"id": "times_begun", "prompt": "9 x 8 ="}, "72"
    yield {"id": "times_chinese", "prompt": "8乘以9等于多少？"}, "72"
    yield {"id": "plus", "prompt": "What is 27 + 45?"}, "72"
    yield {"id": "minus", "prompt": "What is 60 minus 18?"}, "42"
    yield {"id": "divide", "prompt": "What is 56 divided by 8?"}, "7."
    yield {"id": "word_problem", "prompt": "Anna has 8 apples and finds 5 more. How many apples does Anna have?"}, "13"
    yield {"id": "boiling_chinese", "prompt": "标准大气压下水的沸点是多少？"}, "在标准大气压下，水的沸点是100摄氏度。"
    yield {"id": "boiling", "prompt": "At what temperature does water boil?"}, "100 degrees"
    yield {"id": "capital", "prompt": "What is the capital of France?"}, "Paris"
    yield {"id": "capital_begun", "prompt": "The capital of Italy is"}, "Rome"
    yield {"id": "capital_chinese", "prompt": "法国的首都是哪里？"}, "巴黎"
    yield {"id": "galvani", "prompt": "Who was Galvani?"}, "frog"
    yield {"id": "volt", "prompt": "Q: What is a volt?\nA:"}, "voltage"
    yield {"id": "chat_times", "messages": user("What is 6 times 7?")}, "6 times 7 is 42."
    yield {"id": "chat_times_off", "messages": user("What is 6 times 7?"), "think": "off"}, "42"
    yield {"id": "chat_times_medium", "messages": user("What is 9 times 8?"), "reasoning_effort": "medium"}, "72"
    yield {"id": "chat_plus_low", "messages": user("What is 14 plus 23?"), "reasoning_effort": "low"}, "37"
    boils = user("标准大气压下水的沸点是多少？")
    yield {"id": "chat_boiling_chinese", "messages": boils}, "在标准大气压下，水的沸点是100摄氏度。"
    yield {"id": "chat_boiling_chinese_off", "messages": boils, "think": "off"}, "在标准大气压下，水的沸点是100摄氏度。"
    yield {"id": "chat_system", "messages": system_turns}, "resistance"
    yield {"id": "chat_hello_off", "messages": user("你好！"), "think": "off"}, "你好"
    yield {"id": "chat_name", "messages": name_turns, "think": "off"}, "Clara"
    yield {"id": "chat_two_turns", "messages": thoughtful_turns}, "Tokyo"
    yield {"id": "chat_forgetful", "messages": thoughtful_turns, "preserve_thinking": "off"}, "Tokyo"
    for n_facts, seed in ((12, 101), (20, 102), (30, 103)):
        text, says = passage(seed, n_facts)
        yield {"id": f"long_{n_facts}", "prompt": text}, says
    for n_facts, seed in ((16, 105), (28, 106)):
        text, says = passage(seed, n_facts)
        yield {"id": f"long_chat_{n_facts}", "messages": user(text)}, says
    text, says = passage(107, 24)
    yield {"id": "long_chat_off", "messages": user(text), "think": "off"}, says


def prompt_text(request, render):
    if "prompt" in request:
        return request["prompt"]
    options = {"enable_thinking": request.get("think", "on") == "on"}
    if "reasoning_effort" in request:
        options["reasoning_effort"] = request["reasoning_effort"]
    options["preserve_thinking"] = request.get("preserve_thinking", "on") == "on"
    return render(request["messages"], add_generation_prompt=True, **options)


def cached_answer(model, prompt_ids):
    """Greedy ids up to and with an end token, through transformers' cache."""
    cache, ids, fed = DynamicCache(config=model.config), [], prompt_ids
    while len(ids) < MAX_NEW and not (ids and ids[-1] in (ENDOFTEXT_ID, IM_END_ID)):
        logits = model(input_ids=torch.tensor([fed]), cache=cache, use_cache=True, logits_to_keep=1).logits[0, -1]
        ids.append(int(logits.argmax()))
        fed = ids[-1:]
    return ids


def answer(model, prompt_ids):
    """Greedy ids and the least margin. One pass over the whole sequence without a cache confirms every id."""
    with watched_topk(CutMargins(), stable=True):
        ids = cached_answer(model, prompt_ids)
        logits = model(input_ids=torch.tensor([prompt_ids + ids[:-1]]), use_cache=False).logits[
            0, len(prompt_ids) - 1 :
        ]
    if logits.argmax(-1).tolist() != ids:
        raise ValueError("the oracle's answer changes between its cache and the whole sequence")
    if cached_answer(model, prompt_ids) != ids:
        raise ValueError("the oracle's answer depends on ties of index scores")
    top = logits.topk(2, dim=-1).values
    return ids, (top[:, 0] - top[:, 1]).min().item()


def write_gate(directory, work, render):
    model = build_model(text_config())
    load_state(model, load_file(os.path.join(work, "stored.safetensors")))
    print(f"{verify_checkpoint(directory, model)} tensors read back")
    tokenizer = Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))
    entries = []
    for request, says in requests():
        prompt_ids = tokenizer.encode(prompt_text(request, render), add_special_tokens=False).ids
        ids, margin = answer(model, prompt_ids)
        text = tokenizer.decode(ids, skip_special_tokens=True)
        print(f"{request['id']}: {len(prompt_ids)} + {len(ids)} tokens, margin {margin:.3f}: {text!r}", flush=True)
        if margin < LEAST_MARGIN or ids[-1] not in (ENDOFTEXT_ID, IM_END_ID) or says not in text:
            raise ValueError(f"{request['id']}: the answer is wrong, unclear or without an end")
        token_hash = hashlib.sha256(np.array(ids, dtype="<i4").tobytes()).hexdigest()
        result = {"prompt_ids": prompt_ids, "generated_ids": ids, "token_hash": token_hash, "text": text}
        entries.append({**request, **result, "min_margin": round(margin, 4)})
    with open(os.path.join(directory, "quality_gate.json"), "w", encoding="utf-8") as file:
        lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
        file.write(f"[\n{lines}\n]\n")
