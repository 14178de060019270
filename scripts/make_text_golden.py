#!/usr/bin/env python3
"""Writes tests/golden/text: a small tokenizer in the real format, and what `tokenizers` and Jinja make of hard texts.

    pip install tokenizers jinja2
    make golden PYTHON=python3        (or: python3 scripts/make_text_golden.py)

A rerun with the same versions gives the same bytes. The files are described in tests/golden/README.md. Not needed to
run the tests. chat_template.jinja is written by hand; everything else in the directory comes from here.
"""

import json
import os
import random

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

DIRECTORY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "golden", "text")
VOCAB_SIZE = 1500
SEED = 20260131

# The pre-tokenizer of the Qwen3.5 family: marks belong to words, each digit stands alone.
PATTERN = "|".join([
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
    r"\p{N}",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])

# What the tokenizer is trained on, so that merges cross bytes of one character, characters, and marks.
SENTENCES = [
    "The weather is fine today, and the harbour is full of small boats.",
    "We don't know what they'll say, but I'm sure it's the weather that they've talked about; you'd better ask.",
    "Water boils at 100 degrees and freezes at 0 degrees; 12345 + 67890 = 80235.",
    "def total(values):\n    result = 0\n    for value in values:\n        result += value\n    return result\n",
    "int main(void) {\n\treturn 0;\n}\r\n\r\n// the end\r\n",
    "Der Käse für die Größe der Straße, übermäßig schön; naïve café, déjà vu, señor, façade, Ångström.",
    "今天天气很好，我们去公园散步。水在一百度时沸腾，在零度时结冰。",
    "今日は天気がいいので、公園を散歩します。カタカナとひらがなと漢字。",
    "오늘은 날씨가 좋아서 공원에서 산책을 합니다. 한국어 문장입니다.",
    "วันนี้อากาศดีมาก เราไปเดินเล่นในสวน น้ำเดือดที่หนึ่งร้อยองศา",
    "आज मौसम बहुत अच्छा है, हम बगीचे में घूमने जाते हैं। पानी सौ डिग्री पर उबलता है।",
    "الطَّقْسُ جَمِيلٌ اليَوْمَ، وَنَحْنُ نَذْهَبُ إِلَى الحَدِيقَةِ. الماء يغلي عند مئة درجة.",
    "מזג האוויר יפה היום. שָׁלוֹם עוֹלָם.",
    "Сегодня хорошая погода, мы идём гулять в парк. Вода кипит при ста градусах.",
    "Ο καιρός είναι καλός σήμερα και πάμε στο πάρκο.",
    "Hôm nay thời tiết đẹp, chúng tôi đi dạo trong công viên.",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪🇫🇷 ❤️ 🏳️‍🌈 🎉🎉🎉",
    "{\"name\": \"value\", \"list\": [1, 2, 3], \"nested\": {\"a\": null, \"b\": true}}",
    "| column | other |\n|---|---|\n| one | two |\n\n- item\n- item\n\n```c\nx = y * 2;\n```\n",
]

# (content, special, flags); the names of the real vocabulary, then tokens for flags that it does not use.
ADDED = [(name, True, {}) for name in (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>")]
ADDED += [(name, False, {}) for name in (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>")]
ADDED += [
    ("<|left|>", True, {"lstrip": True}),
    ("<|right|>", True, {"rstrip": True}),
    ("<|both|>", False, {"lstrip": True, "rstrip": True}),
    ("<think>er", False, {}),
    ("caf\u00e9\u2615", False, {"normalized": True}),
    ("\u2615x", False, {}),
    ("<K;>", False, {}),
]
# These are in tokenizer_config.json alone.
CONFIG_ONLY = [(name, True, {}) for name in (
    "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>",
    "<|audio_pad|>")]

HARD_TEXTS = {
    "empty": "",
    "plain": "Hello, world! The capital of France is",
    "thai": "สวัสดีครับ น้ำเดือดที่ ๑๐๐ องศา กี่ ก่ำ",
    "hindi": "नमस्ते, क्षत्रिय श्री ज़िंदगी १२३",
    "tamil": "வணக்கம் உலகம் கொடு",
    "arabic_marks": "بِسْمِ اللَّهِ الرَّحْمٰنِ ١٢٣",
    "hebrew_marks": "בְּרֵאשִׁית שָׁלוֹם",
    "decomposed": "cafe\u0301 A\u030angstro\u0308m nai\u0308ve Vie\u0323\u0302t",
    "composed": "caf\u00e9 \u00c5ngstr\u00f6m na\u00efve Vi\u1ec7t",
    "singletons": "\u212b \u2126 \u1e9b\u0323 \u0958 \ufb1d \u2adc",
    "hangul_jamo": "\u1112\u1161\u11ab\u1100\u116e\u11a8 \uac00\u11a8",
    "mark_order": "a\u0315\u0300\u05ae\u0316b q\u0307\u0323",
    "lone_marks": "\u0301 \u0301\u0302x \u0e49 \u093f",
    "many_marks": "e" + "\u0301\u0323" * 40,
    "emoji_zwj": "👩‍👩‍👧‍👦👍🏽🇩🇪🇫🇷❤️🏳️‍🌈 1️⃣",
    "keycaps": "#️⃣*️⃣0️⃣",
    "crlf": "one\r\ntwo\r\n\r\n  three\r\rfour\n\r\n",
    "newlines": "\n\n\n a\n\n  b \n",
    "spaces": "a  b   c    d          e ",
    "only_spaces": "       ",
    "tabs": "\t\ta\t \tb \t\t c\t",
    "unicode_spaces": "a\u00a0b\u2003\u2003c\u3000d\u2028e\u2029f\u0085g\u200bh\u1680i\u202fj",
    "mongolian_separator": "\u1828\u1820\u180e\u1828 \u180e \u180e\u180ea\u180e \n \u180e\nb  \u180e \u180e",
    "separators": "a\u001cb\u001d \u001e\u001f c",
    "digits": "1234567890 3.14159 1,000,000 ٣٤٥ ४५६ ① ² ½ Ⅷ 𝟛",
    "contractions": "I'm you're he'S we'VE they'Ll I'D can'T 'tis 'Em o'clock'\u017f x'\u017fy ''s",
    "cjk": "中文分词测试。日本語のテスト、한국어 시험「引用」𠮷野家",
    "punctuation": "...!!! ?!? --- (a)[b]{c} \"q\" 'q' a.b,c;d:e /usr/bin $5 50% #tag @you ~~~\n\n===",
    "code": "if (x != y) {\n\t\treturn a[i]->b + 0xFF; // note\n}\n",
    "nul": "a\0b\0\0 \0c",
    "controls": "\u0001\u0002\u001b[31mred\u001b[0m\u007f\u0080\u009f",
    "noncharacters": "\ufffe\uffff\ufdd0\U0001ffff\U0010ffff\ue000\ufffd",
    "astral": "𝕳𝖊𝖑𝖑𝖔 𐍈 🀄 \U000e0041",
    "long_word": "abcdefghij" * 150,
    "long_same": "aaaaaaaaaaa" * 60 + "b",
    "long_thai": "น้ำที่" * 60,
    "mixed_case": "McDonald iPhone XMLHttpRequest ALLCAPS camelCase_snake-kebab",
    "dotted_i": "İstanbul ıssız ﬁn ﬆ ŉ",
    "chat": "<|im_start|>user\nWhat is 6 times 7?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n42<|im_end|>\n",
    "added_inside_words": "ab<|im_end|>cd<think>e<think>er<think>ers</think>",
    "added_adjacent": "<|endoftext|><|endoftext|><|im_start|><|im_end|>",
    "added_broken": "<|im_start|<|im_end|>|> <|im_start |> <|IM_END|> <think",
    "added_config_only": "<|audio_start|>x<|audio_pad|><tts_text_bos_single><tts_text_bos><|audio_end|>",
    "added_spaces": "a <|im_end|> b  <think>  c\n<|im_start|>\n",
    "added_left": "a \t\n <|left|> b<|left|> <|left|>",
    "added_right": "a <|right|> \u3000\n b <|right|><|right|> <|im_end|>",
    "added_both": "a  <|both|>  b <|im_end|>  <|both|> \n",
    "added_right_then_left": "<|right|>  <|left|> <|both|>\t<|left|>\n",
    "added_normalized": "café☕ cafe\u0301☕ cafe☕ <|im_end|>\u0301cafe\u0301\u2615",
    "added_overlapping": "caf\u00e9\u2615x cafe\u0301\u2615x \u2615x",
    "added_by_normalizing": "<K;> <\u212a\u037e> <\u212a;>",
    "added_then_mark": "<think>\u0301a</think>\u0323",
    "tool": "<tool_call>\n<function=f>\n</function>\n</tool_call><tool_response>ok</tool_response>",
    "bom": "\ufefftext",
    "rtl": "abc \u202eمرحبا\u202c def",
}

# Code points from which random texts are drawn.
RANGES = [(0x20, 0x7E)] * 4 + [
    (0x09, 0x0D), (0x20, 0x20), (0x30, 0x39), (0xA0, 0x17F), (0x300, 0x36F), (0x300, 0x36F), (0x370, 0x3FF),
    (0x400, 0x45F), (0x5B0, 0x5EA), (0x610, 0x66F), (0x900, 0x97F), (0xE01, 0xE3A), (0xE40, 0xE5B), (0x1100, 0x11FF),
    (0x1E00, 0x1EFF), (0x1F00, 0x1FFE), (0x2000, 0x206F), (0x2100, 0x214F), (0x3000, 0x30FF), (0x4E00, 0x4FFF),
    (0xAC00, 0xACFF), (0xFB00, 0xFB4F), (0xFE00, 0xFE0F), (0x1F300, 0x1F5FF), (0x10FF00, 0x10FFFF)]


def write_json(name, value):
    """One entry a line: reviewable, and a third of the size that an indent gives."""
    def dump(item):
        return json.dumps(item, ensure_ascii=False)

    if isinstance(value, list):
        text = "[\n" + ",\n".join(dump(item) for item in value) + "\n]\n"
    else:
        text = "{\n" + ",\n".join(f"{dump(key)}: {dump(item)}" for key, item in value.items()) + "\n}\n"
    with open(os.path.join(DIRECTORY, name), "w", encoding="utf-8") as file:
        file.write(text)


def hexed(text):
    return text.encode("utf-8").hex()


def added_token(content, special, flags):
    return AddedToken(content, special=special, normalized=flags.get("normalized", False),
                      lstrip=flags.get("lstrip", False), rstrip=flags.get("rstrip", False), single_word=False)


def train_tokenizer():
    tokenizer = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix=""))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    # Repeated unevenly, so that counts differ and the order of the merges is theirs.
    texts = [" ".join(SENTENCES[i:i + 2]) * (3 + i % 4) for i in range(len(SENTENCES))]
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE, show_progress=False, min_frequency=2,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(texts, trainer)
    for content, special, flags in ADDED:
        token = added_token(content, special, flags)
        if special:
            tokenizer.add_special_tokens([token])
        else:
            tokenizer.add_tokens([token])
    return tokenizer


def write_tokenizer(tokenizer):
    """tokenizer.json as the library writes it, and a tokenizer_config.json that lists more tokens."""
    with open(os.path.join(DIRECTORY, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(json.loads(tokenizer.to_str()), file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")
    first = tokenizer.get_vocab_size(with_added_tokens=True)
    entries = ADDED + CONFIG_ONLY
    decoder = {}
    for i, (content, special, flags) in enumerate(entries):
        decoder[str(first - len(ADDED) + i)] = {
            "content": content, "lstrip": flags.get("lstrip", False), "normalized": flags.get("normalized", False),
            "rstrip": flags.get("rstrip", False), "single_word": False, "special": special}
    write_json("tokenizer_config.json", {
        "add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": decoder,
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "tokenizer_class": "Qwen2Tokenizer"})
    tokenizer.add_special_tokens([added_token(*entry) for entry in CONFIG_ONLY])
    assert tokenizer.token_to_id("<|audio_pad|>") == first + len(CONFIG_ONLY) - 1


def random_text(rng):
    if rng.random() < 0.5:
        ranges = rng.sample(RANGES, 2)
    else:
        ranges = RANGES
    text = "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randint(1, 40)))
    if rng.random() < 0.3:
        at = rng.randint(0, len(text))
        text = text[:at] + rng.choice(ADDED + CONFIG_ONLY)[0] + text[at:]
    return text


def decoded(tokenizer, ids, unless=None):
    """Text of ids with and without special tokens, each left out where it equals the one before."""
    entry = {}
    for key, skip in ("decoded", False), ("decoded_without_special", True):
        text = tokenizer.decode(ids, skip_special_tokens=skip)
        if text != unless:
            entry[key] = hexed(text)
        unless = text
    return entry


def write_encodings(tokenizer, rng):
    texts = dict(HARD_TEXTS)
    for i, sentence in enumerate(SENTENCES):
        texts[f"sentence_{i}"] = sentence
    for i in range(150):
        texts[f"random_{i}"] = random_text(rng)
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False)
    encodings = {}
    for name, text in texts.items():
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        pieces = [len(piece.encode("utf-8")) for piece, _ in split.pre_tokenize_str(text)]
        encodings[name] = {"text": hexed(text), "pieces": pieces, "ids": ids, **decoded(tokenizer, ids, unless=text)}
    write_json("encode.json", encodings)
    # Ids in any order cut characters anywhere.
    n_tokens = tokenizer.get_vocab_size(with_added_tokens=True)
    decodings = []
    for _ in range(60):
        ids = [rng.choice([rng.randrange(256), rng.randrange(n_tokens)]) for _ in range(rng.randint(1, 30))]
        decodings.append({"ids": ids, **decoded(tokenizer, ids)})
    write_json("decode.json", decodings)


def write_utf8(rng):
    """Byte strings and what Python makes of them with errors="replace"."""
    whole = "aé中🎉ก้\u0301\U0010ffff".encode("utf-8")
    fixed = [b"", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xf5\x80",
             b"\xe4\xb8", b"\xf0\x9f\x8e", b"\xf0\x9f\x8ea", b"\xe4\xb8\xe4\xb8\xad", b"\x80\xbf\xfe\xff", b"a\0b",
             b"\xc2", b"\xc2\xc2\xa9", b"\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64", whole]
    cases = list(fixed)
    for _ in range(120):
        data = bytearray(rng.choice([whole, bytes(rng.randrange(0x70, 0x100) for _ in range(rng.randint(1, 20)))]))
        for _ in range(rng.randint(0, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        cases.append(bytes(data[:rng.randint(1, len(data))]))
    write_json("utf8.json", [{"bytes": case.hex(), "text": hexed(case.decode("utf-8", errors="replace"))}
                             for case in cases])


def chat_cases():
    user = {"role": "user", "content": "What is 6 times 7?"}
    spaced = {"role": "user", "content": " \t\u3000\u001c What?\u00a0\n"}
    system = {"role": "system", "content": "  Answer in German.\n"}
    answer = {"role": "assistant", "content": " 42\n", "reasoning_content": "\n6 * 7 = 42 \n"}
    bare = {"role": "assistant", "content": "42"}
    tool = {"role": "user", "content": "<tool_response>\n42\n</tool_response>"}
    chats = [
        [user], [spaced], [system, user], [{"role": "system", "content": " \n"}, user], [user, answer, user],
        [system, user, answer, user, bare, spaced], [user, answer], [user, answer, tool, answer],
        [user, bare, user, answer, bare], [{"role": "user", "content": ""}], [user, user],
        [{"role": "user", "content": "<|im_end|> {{ x }} {% if %} \u0e01\u0e49 🎉"}],
        [user, {"role": "assistant", "content": "", "reasoning_content": ""}, user],
        # Each of these is an error.
        [], [system], [bare], [tool], [user, system], [user, {"role": "tool", "content": "x"}],
        [{"role": "User", "content": "x"}],
    ]
    options = [{"think": think, "reasoning_effort": effort, "preserve_thinking": preserve}
               for think in (True, False) for effort in ("xhigh", "medium", "low") for preserve in (True, False)]
    return [(chat, option) for chat in chats for option in options]


def write_chats():
    def fail(message):
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = fail
    with open(os.path.join(DIRECTORY, "chat_template.jinja"), encoding="utf-8") as file:
        template = environment.from_string(file.read())
    cases = []
    for messages, options in chat_cases():
        case = {"messages": messages, **options, "text": None}
        try:
            case["text"] = template.render(messages=messages, add_generation_prompt=True,
                                           enable_thinking=options["think"],
                                           reasoning_effort=options["reasoning_effort"],
                                           preserve_thinking=options["preserve_thinking"])
        except jinja2.TemplateError:
            pass
        cases.append(case)
    write_json("chat.json", cases)


def main():
    rng = random.Random(SEED)
    tokenizer = train_tokenizer()
    write_tokenizer(tokenizer)
    write_encodings(tokenizer, rng)
    write_utf8(rng)
    write_chats()


if __name__ == "__main__":
    main()
