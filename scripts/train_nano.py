#!/usr/bin/env python3
"""Makes galvani-nano, the small model in tests/models/nano, from nothing.

  train_nano.py --stage data     text, tokenizer and token rows                -> WORK/
  train_nano.py --stage train    weights, best on a GPU (PyTorch, transformers) -> WORK/weights-*.safetensors
  train_nano.py --stage export   the checkpoint in its published layout         -> OUT/
  train_nano.py --stage gate     the oracle's greedy answers                    -> OUT/quality_gate.json

Stages may be joined with commas. PyTorch, transformers >= 5.16, tokenizers, jinja2 and safetensors are needed. The
model is in nano_model.py, its text in nano_corpus.py and nano_facts.py, the gate in nano_gate.py.
"""

import argparse
import json
import math
import os
import re
import shutil
import time

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROW_LENGTHS = (128, 512)
ROWS_PER_STEP = {128: 128, 512: 16}
TARGET_BIT = 1 << 15  # set on the ids that the model has to say
PROMPT_WEIGHT = 0.1  # weight in the loss of what it is told
N_HELD_OUT_ROWS = 64

PRE_TOKENIZER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ADDED_TOKENS = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
    "<tool_response> </tool_response> <think> </think>"
).split()
CONFIG_ONLY_TOKENS = (  # as in the real model, these are in tokenizer_config.json alone
    "<|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single> <|audio_pad|>"
).split()
ORDINARY_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


# --- data -------------------------------------------------------------------------------------------------------------


def chat_renderer(template_path):
    """render(messages, **options) -> text, with the environment in which transformers runs chat templates."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message):
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = raise_exception
    with open(template_path, encoding="utf-8") as file:
        template = environment.from_string(file.read())
    return lambda messages, **options: template.render(messages=messages, **options)


def is_special(token):
    return token not in ORDINARY_TOKENS and token.startswith("<|")


def train_tokenizer(texts, n_bpe_tokens):
    """Byte-level BPE of exactly n_bpe_tokens entries, then the added tokens, laid out as the real tokenizer.json."""
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENIZER), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=n_bpe_tokens,
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=9,  # three Chinese characters: longer entries would be whole questions
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != n_bpe_tokens:
        raise ValueError(f"the corpus yields {tokenizer.get_vocab_size()} BPE entries, not {n_bpe_tokens}")
    for token in ADDED_TOKENS:
        tokenizer.add_tokens([AddedToken(token, normalized=False, special=is_special(token))])
    return tokenizer


def tokenizer_config(first_added_id):
    described = {
        str(first_added_id + i): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": is_special(token),
        }
        for i, token in enumerate(ADDED_TOKENS + CONFIG_ONLY_TOKENS)
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": described,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 4096,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def pack_rows(documents, length, end_id, rng):
    """uint16 rows of whole documents with <|endoftext|> between and after them; each row begins with a document."""
    rows, row = [], []
    order = rng.permutation(len(documents))
    for i in order:
        ids = documents[i]
        if len(row) + len(ids) > length:
            rows.append(row + [end_id] * (length - len(row)))
            row = []
        row = row + ids
        if row[-1] & ~TARGET_BIT != end_id and len(row) < length:
            row.append(end_id)
    return np.array(rows, dtype=np.uint16)


def make_data(args):
    import nano_corpus
    from nano_model import ENDOFTEXT_ID, N_BPE_TOKENS

    os.makedirs(args.work, exist_ok=True)
    render = chat_renderer(args.template)
    documents = list(nano_corpus.documents(args.seed, args.documents, render))
    special = re.compile("|".join(map(re.escape, ADDED_TOKENS)))
    sample = (part for document in documents[:40000] for text, _ in document for part in special.split(text) if part)
    tokenizer = train_tokenizer(sample, N_BPE_TOKENS)
    tokenizer.save(os.path.join(args.work, "tokenizer.json"))
    with open(os.path.join(args.work, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump(tokenizer_config(N_BPE_TOKENS), file, indent=2, ensure_ascii=False)

    pieces = [piece for document in documents for piece in document]
    encoded = iter(tokenizer.encode_batch([text for text, _ in pieces], add_special_tokens=False))
    by_length = {length: [] for length in ROW_LENGTHS}
    for document in documents:
        ids = []
        for _, is_target in document:
            ids += [i | (TARGET_BIT if is_target else 0) for i in next(encoded).ids]
        fitting = [length for length in ROW_LENGTHS if len(ids) <= length]
        if fitting:
            by_length[fitting[0]].append(ids)
    rng = np.random.default_rng(args.seed)
    rows = {str(length): pack_rows(by_length[length], length, ENDOFTEXT_ID, rng) for length in ROW_LENGTHS}
    np.savez_compressed(os.path.join(args.work, "rows.npz"), **rows)
    for length in ROW_LENGTHS:
        n_tokens = sum(map(len, by_length[length]))
        print(f"rows of {length}: {len(rows[str(length)])} with {len(by_length[length])} documents, {n_tokens} tokens")


# --- training ---------------------------------------------------------------------------------------------------------


def learning_rate(progress, peak):
    """Warm-up over the first 2 %, then a cosine down to 1 % of the peak."""
    if progress < 0.02:
        return peak * max(progress / 0.02, 0.01)
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (progress - 0.02) / 0.98)))


def phase_of(progress):
    """(sparse attention, simulated quantisation): the indexer learns, then it selects, then storage is simulated."""
    return progress > 0.3, progress > 0.6


class Trainer:
    """One training step over a batch of rows of each length; on a GPU the step is a CUDA graph per phase."""

    def __init__(self, args, device):
        import torch
        import nano_model

        self.torch, self.nano_model, self.args, self.device = torch, nano_model, args, device
        self.model = nano_model.build_model(args.seed).to(device).train()
        self.state = nano_model.make_trainable(self.model)
        matrices = [
            p for n, p in self.model.named_parameters() if p.dim() >= 2 and "embed" not in n and "conv" not in n
        ]
        matrix_ids = {id(p) for p in matrices}
        others = [p for p in self.model.parameters() if id(p) not in matrix_ids]
        self.lr = torch.tensor(1e-5, device=device)
        on_gpu = device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
            lr=self.lr,
            betas=(0.9, 0.98),
            capturable=on_gpu,
            foreach=on_gpu,
        )
        scale = 1 if on_gpu else 16
        self.rows = {n: np.load(os.path.join(args.work, "rows.npz"))[str(n)] for n in ROW_LENGTHS}
        self.rows = {n: torch.from_numpy(rows.astype(np.int32)).to(device) for n, rows in self.rows.items()}
        self.batches = {
            n: torch.zeros(max(1, ROWS_PER_STEP[n] // scale), n, dtype=torch.int32, device=device) for n in ROW_LENGTHS
        }
        self.metrics = torch.zeros(4, device=device)  # loss, share of target tokens said right, balance, indexer
        self.graphs = {}

    def batch_loss(self, batch):
        torch = self.torch
        ids = (batch & (TARGET_BIT - 1)).long()
        is_target = (batch & TARGET_BIT) != 0
        end_id = self.nano_model.ENDOFTEXT_ID
        with torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False):
            logits = self.nano_model.forward_logits(self.model, ids)
        logits = logits[:, :-1].float()
        weight = torch.where(is_target[:, 1:], 1.0, torch.where(ids[:, 1:] == end_id, 0.0, PROMPT_WEIGHT))
        log_z = logits.logsumexp(-1)
        nll = log_z - logits.gather(-1, ids[:, 1:, None]).squeeze(-1)
        loss = ((nll + 1e-4 * log_z**2) * weight).sum() / weight.sum()
        balance, indexer = self.state.take_losses()
        with torch.no_grad():
            right = (logits.argmax(-1) == ids[:, 1:]) & is_target[:, 1:]
            accuracy = right.sum() / is_target[:, 1:].sum()
        return loss, accuracy, balance / len(self.model.model.layers), indexer

    def step_eagerly(self):
        torch = self.torch
        self.optimizer.zero_grad(set_to_none=True)
        self.metrics.zero_()
        for batch in self.batches.values():
            loss, accuracy, balance, indexer = self.batch_loss(batch)
            ((loss + 0.02 * balance + 0.2 * indexer) / len(self.batches)).backward()
            values = torch.stack([loss.detach(), accuracy, balance.detach(), indexer.detach()])
            self.metrics.add_(values / len(self.batches))
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()

    def capture(self):
        """The step of the current phase as a CUDA graph, after a few real steps on a side stream."""
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.draw_batches()
                self.step_eagerly()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.graphs.values())).pool() if self.graphs else None
        with torch.cuda.graph(graph, pool=pool):
            self.step_eagerly()
        return graph

    def draw_batches(self):
        for n, batch in self.batches.items():
            chosen = self.torch.randint(N_HELD_OUT_ROWS, len(self.rows[n]), (len(batch),), device=self.device)
            batch.copy_(self.rows[n][chosen])

    def step(self, progress):
        self.lr.fill_(learning_rate(progress, self.args.lr))
        phase = phase_of(progress)
        self.state.sparse, self.state.quantised = phase
        if self.device.type != "cuda" or self.args.eager:
            self.draw_batches()
            self.step_eagerly()
            return
        if phase not in self.graphs:
            self.graphs[phase] = self.capture()
        self.draw_batches()
        self.graphs[phase].replay()

    def held_out(self):
        """Loss and share of target tokens said right on rows that were not trained on, as the exported model runs."""
        self.state.sparse, self.state.quantised = True, True
        result = {}
        with self.torch.no_grad():
            for n in ROW_LENGTHS:
                loss, accuracy, _, _ = self.batch_loss(self.rows[n][:N_HELD_OUT_ROWS])
                result[n] = (loss.item(), accuracy.item())
        return result


def train(args):
    import torch
    import nano_model

    if not args.skip_check:
        print(f"training forms against transformers: {nano_model.check_against_reference():.1e}", flush=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = True
    trainer = Trainer(args, device)
    n_parameters = sum(p.numel() for p in trainer.model.parameters())
    print(f"{n_parameters} parameters, {sum(b.numel() for b in trainer.batches.values())} tokens a step", flush=True)
    start, step, progress = time.monotonic(), 0, 0.0
    while progress < 1.0:
        trainer.step(progress)
        step += 1
        elapsed = time.monotonic() - start
        progress = step / args.steps if args.steps else elapsed / (60 * args.minutes)
        if step % args.log_every == 0:
            loss, accuracy, balance, indexer = trainer.metrics.tolist()
            print(
                f"step {step} {elapsed:.0f} s progress {progress:.3f} loss {loss:.4f} accuracy {accuracy:.4f} "
                f"balance {balance:.3f} indexer {indexer:.3f}",
                flush=True,
            )
    print(f"{step} steps in {time.monotonic() - start:.0f} s; held out: {trainer.held_out()}", flush=True)
    save_weights(trainer.model, args.weights or args.work)


def save_weights(model, directory):
    """FP32 weights in parts below 16 MiB."""
    from safetensors.torch import save_file

    os.makedirs(directory, exist_ok=True)
    parts, size = [{}], 0
    for name, tensor in model.state_dict().items():
        n_bytes = tensor.numel() * tensor.element_size()
        if size + n_bytes > 15 << 20:
            parts.append({})
            size = 0
        parts[-1][name] = tensor.detach().cpu().contiguous()
        size += n_bytes
    for i, part in enumerate(parts):
        save_file(part, os.path.join(directory, f"weights-{i}.safetensors"))


def load_weights(directory):
    from safetensors.numpy import load_file

    state = {}
    for name in sorted(os.listdir(directory)):
        if name.startswith("weights-"):
            state.update(load_file(os.path.join(directory, name)))
    return state


# --- export -----------------------------------------------------------------------------------------------------------


def name_vision_tokens(config_path, first_added_id):
    """Puts the ids of this tokenizer into config.json. The model sees no pictures; the real file has the fields."""
    fields = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    with open(config_path, encoding="utf-8") as file:
        config = json.load(file)
    config.update({field: first_added_id + ADDED_TOKENS.index(token) for field, token in fields.items()})
    with open(config_path, "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2, ensure_ascii=False)


def export(args):
    """Quantises the weights and writes the checkpoint; keeps what a reader must decode in WORK for the gate."""
    from safetensors.numpy import save_file

    import checkpoint_writer
    import nano_model
    from checkpoint_layout import Layout

    layout = Layout(n_expert_files=1, n_ple_files=3, skipped_groups=False)
    for name in os.listdir(args.out) if os.path.isdir(args.out) else []:
        if name.endswith(".safetensors"):
            os.remove(os.path.join(args.out, name))
    state = load_weights(args.weights or args.work)
    stored = checkpoint_writer.write_checkpoint(args.out, nano_model.text_config(), state, layout)
    save_file(stored, os.path.join(args.work, "stored.safetensors"))
    name_vision_tokens(os.path.join(args.out, "config.json"), nano_model.N_BPE_TOKENS)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(os.path.join(args.work, name), os.path.join(args.out, name))
    shutil.copyfile(args.template, os.path.join(args.out, "chat_template.jinja"))
    total = sum(entry.stat().st_size for entry in os.scandir(args.out))
    print(f"{args.out}: {total} bytes in {len(os.listdir(args.out))} files")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", default="data,train,export,gate", help="data, train, export, gate")
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "nano"), help="intermediate files")
    parser.add_argument("--out", default=os.path.join(ROOT, "tests", "models", "nano"), help="the checkpoint")
    parser.add_argument("--weights", help="directory of the trained weights, if not WORK")
    parser.add_argument("--template", default=os.path.join(ROOT, "tests", "golden", "text", "chat_template.jinja"))
    parser.add_argument("--documents", type=int, default=400000)
    parser.add_argument("--minutes", type=float, default=7.0, help="training time on a GPU")
    parser.add_argument("--steps", type=int, help="train for this many steps instead")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--skip-check", action="store_true", help="do not compare with transformers first")
    args = parser.parse_args()
    for stage in args.stage.split(","):
        if stage == "gate":
            import nano_gate

            nano_gate.write_gate(args.out, args.work, chat_renderer(args.template))
        else:
            {"data": make_data, "train": train, "export": export}[stage](args)


if __name__ == "__main__":
    main()
