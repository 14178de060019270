"""The training text of galvani-nano: sums, facts in English and Chinese, stories, long passages and conversations.

All text is made here; nothing is taken from elsewhere. A document is a list of (text, is_target) pieces: the "
"targets are
what the model has to say, the others are what it is told. Pieces are tokenised one by one, because a prompt is "
"tokenised
without the answer that follows it.
"""

import random

from nano_facts import CHINESE_FACTS, ENGLISH_FACTS, PARAGRAPHS

END_OF_TEXT, END_OF_TURN = "<|endoftext|>", "<|im_end|>"

NAMES = "Anna Ben Clara David Emma Felix Grace Henry Iris Jack Kate Leo Maria Nina Oscar Paul Rosa Sam Tom Vera".split()
CITIES = "Paris London Rome Berlin Madrid Vienna Lisbon Athens Oslo Prague Cairo Tokyo Beijing Delhi Dublin".split()
COLOURS = "red blue green yellow black white brown orange purple grey".split()
THINGS = "apples books pens coins stones shells keys cups lamps boxes stamps buttons".split()
JOBS = "teacher doctor farmer baker pilot painter singer writer nurse driver gardener cook".split()
ANIMALS = "cat dog horse bird fish rabbit mouse fox bear frog".split()
PLACES = ["the river", "the old mill", "the forest", "the market", "the sea", "the garden", "the hill", "the library"]
FOODS = "bread soup rice cheese fruit cake fish honey".split()
CHINESE_NAMES = "小明 小红 小华 小丽 小强 小芳".split()
CHINESE_CITIES = "北京 上海 广州 南京 西安 杭州".split()
CHINESE_THINGS = [("苹果", "个"), ("书", "本"), ("笔", "支"), ("椅子", "把"), ("邮票", "张")]
SYSTEM_MESSAGES = [
    "You are a helpful assistant.",
    "You are galvani-nano, a small language model.",
    "Answer in one short sentence.",
    "You are a patient teacher.",
    "请用中文回答。",
    "Be brief.",
]


class Question:
    """A question with its one answer, and what a model may think before it gives the answer."""

    def __init__(self, text, answer, thoughts):
        self.text, self.answer = text, answer
        self.thoughts = thoughts  # {"xhigh": ..., "medium": ..., "low": ...}


# --- arithmetic -------------------------------------------------------------------------------------------------------

TIMES_FORMS = [
    ("What is {a} times {b}?", "{a} times {b} is {r}."),
    ("What's {a} times {b}?", "{a} times {b} is {r}."),
    ("How much is {a} times {b}?", "{a} times {b} is {r}."),
    ("what is {a} times {b}", "{a} times {b} is {r}."),
    ("Please tell me what {a} times {b} is.", "{a} times {b} is {r}."),
    ("What is {a} multiplied by {b}?", "{a} multiplied by {b} is {r}."),
    ("Multiply {a} by {b}.", "{a} multiplied by {b} is {r}."),
    ("What is the product of {a} and {b}?", "The product of {a} and {b} is {r}."),
    ("Calculate {a} * {b}.", "{a} * {b} = {r}"),
    ("What is {a} * {b}?", "{a} * {b} = {r}"),
    ("What is {a} x {b}?", "{a} x {b} = {r}"),
    ("{a} x {b} = ?", "{a} x {b} = {r}"),
    ("{a} × {b} = ?", "{a} × {b} = {r}"),
    ("{a}乘以{b}等于多少？", "{a}乘以{b}等于{r}。"),
    ("{a}乘{b}是多少？", "{a}乘{b}是{r}。"),
    ("请问{a}乘以{b}等于几？", "{a}乘以{b}等于{r}。"),
]
PLUS_FORMS = [
    ("What is {a} plus {b}?", "{a} plus {b} is {r}."),
    ("How much is {a} plus {b}?", "{a} plus {b} is {r}."),
    ("What is {a} + {b}?", "{a} + {b} = {r}"),
    ("Calculate {a} + {b}.", "{a} + {b} = {r}"),
    ("{a} + {b} = ?", "{a} + {b} = {r}"),
    ("Add {a} and {b}.", "{a} plus {b} is {r}."),
    ("What is the sum of {a} and {b}?", "The sum of {a} and {b} is {r}."),
    ("{a}加{b}等于多少？", "{a}加{b}等于{r}。"),
]
MINUS_FORMS = [
    ("What is {a} minus {b}?", "{a} minus {b} is {r}."),
    ("How much is {a} minus {b}?", "{a} minus {b} is {r}."),
    ("What is {a} - {b}?", "{a} - {b} = {r}"),
    ("{a} - {b} = ?", "{a} - {b} = {r}"),
    ("Subtract {b} from {a}.", "{a} minus {b} is {r}."),
    ("{a}减{b}等于多少？", "{a}减{b}等于{r}。"),
]
DIVIDE_FORMS = [
    ("What is {a} divided by {b}?", "{a} divided by {b} is {r}."),
    ("What is {a} / {b}?", "{a} / {b} = {r}"),
    ("Divide {a} by {b}.", "{a} divided by {b} is {r}."),
    ("{a}除以{b}等于多少？", "{a}除以{b}等于{r}。"),
]


def arithmetic(rng):
    kind = rng.choices(["times", "plus", "minus", "divide"], [6, 3, 2, 1])[0]
    if kind == "times":
        limit = 12 if rng.random() < 0.7 else 20
        a, b = rng.randint(0 if rng.random() < 0.1 else 1, limit), rng.randint(1, limit)
        form, r, sign = rng.choice(TIMES_FORMS), a * b, "×"
        check = f"{r} / {b} = {a}"
    elif kind == "plus":
        limit = 20 if rng.random() < 0.5 else 99
        a, b = rng.randint(0, limit), rng.randint(0, limit)
        form, r, sign = rng.choice(PLUS_FORMS), a + b, "+"
        check = f"{r} - {b} = {a}"
    elif kind == "minus":
        a = rng.randint(1, 20 if rng.random() < 0.5 else 99)
        b = rng.randint(0, a)
        form, r, sign = rng.choice(MINUS_FORMS), a - b, "-"
        check = f"{r} + {b} = {a}"
    else:
        r, b = rng.randint(1, 12), rng.randint(1, 12)
        a, form, sign = r * b, rng.choice(DIVIDE_FORMS), "/"
        check = f"{r} × {b} = {a}"
    text, answer = form[0].format(a=a, b=b), form[1].format(a=a, b=b, r=r)
    work = f"{a} {sign} {b} = {r}"
    if any("\u4e00" <= c <= "\u9fff" for c in text):
        thoughts = {"xhigh": f"这是一道算术题。{work}。验算：{check}。", "medium": f"{work}。", "low": f"{r}。"}
    else:
        thoughts = {"xhigh": f"This is arithmetic. {work}. Check: {check}.", "medium": f"{work}.", "low": f"{r}."}
    return Question(text, answer, thoughts)


NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()


def small_reasoning(rng):
    """Little questions with a rule: order, parity, counting, word problems."""
    kind = rng.randrange(6)
    a, b = rng.sample(range(100), 2)
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    if kind == 0:
        text, answer = f"Which is larger, {a} or {b}?", f"{max(a, b)} is larger than {min(a, b)}."
    elif kind == 1:
        text, answer = f"Is {a} even or odd?", f"{a} is {'odd' if a % 2 else 'even'}."
    elif kind == 2:
        text, answer = f"Which number comes after {a}?", f"The number after {a} is {a + 1}."
    elif kind == 3:
        first, last = 1, rng.randint(3, 12)
        text, answer = f"Count from {first} to {last}.", ", ".join(map(str, range(first, last + 1))) + "."
    elif kind == 4:
        n = rng.randint(0, 12)
        text, answer = f"Write {n} as a word.", f"{n} is {NUMBER_WORDS[n]}."
    else:
        a, b = rng.randint(2, 20), rng.randint(2, 20)
        text = f"{name} has {a} {thing} and finds {b} more. How many {thing} does {name} have?"
        answer = f"{name} has {a + b} {thing}."
        return Question(
            text, answer, {"xhigh": f"{a} + {b} = {a + b}.", "medium": f"{a} + {b} = {a + b}.", "low": f"{a + b}."}
        )
    return Question(
        text, answer, {"xhigh": "A short question about numbers.", "medium": "About numbers.", "low": "Easy."}
    )


# --- facts ------------------------------------------------------------------------------------------------------------

ENGLISH_LEADS = ["", "", "", "", "Please tell me: ", "I want to know: ", "Question: ", "Tell me, "]
CHINESE_LEADS = ["", "", "", "请问", "请告诉我，", "我想知道，"]


def fact(rng):
    if rng.random() < 0.5:
        topic, questions, answer = rng.choice(ENGLISH_FACTS)
        text, lead = rng.choice(questions), rng.choice(ENGLISH_LEADS)
        if rng.random() < 0.15:
            text = text[0].lower() + text[1:].rstrip("?")
        thoughts = {
            "xhigh": f"The question is about {topic}. I know the answer.",
            "medium": f"About {topic}.",
            "low": "I know this.",
        }
        return Question(lead + text, answer, thoughts)
    topic, questions, answer = rng.choice(CHINESE_FACTS)
    text, lead = rng.choice(questions), rng.choice(CHINESE_LEADS)
    if text.startswith(("请", "你")):
        lead = ""
    if rng.random() < 0.1:
        text = text.rstrip("？")
    thoughts = {"xhigh": f"这个问题是关于{topic}的。我知道答案。", "medium": f"关于{topic}。", "low": "我知道。"}
    return Question(lead + text, answer, thoughts)


def question(rng):
    kind = rng.choices([arithmetic, fact, small_reasoning], [5, 6, 1])[0]
    return kind(rng)


# --- passages ---------------------------------------------------------------------------------------------------------

FILLERS = [
    "The weather was mild that day.",
    "Nobody was in a hurry.",
    "The windows were open.",
    "A clock was ticking in the hall.",
    "It had rained in the morning.",
    "The street was quiet.",
    "Somebody was playing the piano.",
    "The tea was still warm.",
    "Birds were singing outside.",
    "The train came on time.",
]


def passage_facts(rng, n):
    """n statements with the question that each one answers; no two answer the same question."""
    seen, facts = set(), []
    while len(facts) < n:
        kind = rng.randrange(7)
        name, colour, thing, city = (rng.choice(x) for x in (NAMES, COLOURS, THINGS, CITIES))
        number = rng.randint(2, 99)
        if kind == 0:
            item = (f"{name} lives in {city}.", f"Where does {name} live?", f"{name} lives in {city}.")
        elif kind == 1:
            item = (
                f"{name} has {number} {thing}.",
                f"How many {thing} does {name} have?",
                f"{name} has {number} {thing}.",
            )
        elif kind == 2:
            text = f"{name}'s favourite colour is {colour}."
            item = (text, f"What is {name}'s favourite colour?", text)
        elif kind == 3:
            text = f"The number of the {colour} box is {number}."
            item = (text, f"What is the number of the {colour} box?", text)
        elif kind == 4:
            job = rng.choice(JOBS)
            item = (f"{name} is a {job}.", f"What is {name}'s job?", f"{name} is a {job}.")
        elif kind == 5:
            food = rng.choice(FOODS)
            item = (f"{name} likes {food}.", f"What does {name} like?", f"{name} likes {food}.")
        else:
            animal = rng.choice(ANIMALS)
            item = (f"{name} keeps a {animal}.", f"Which animal does {name} keep?", f"{name} keeps a {animal}.")
        if item[1] not in seen:
            seen.add(item[1])
            facts.append(item)
    return facts


def chinese_passage_facts(rng, n):
    seen, facts = set(), []
    while len(facts) < n:
        name = rng.choice(CHINESE_NAMES)
        if rng.random() < 0.4:
            city = rng.choice(CHINESE_CITIES)
            item = (f"{name}住在{city}。", f"{name}住在哪里？", f"{name}住在{city}。")
        else:
            (thing, unit), number = rng.choice(CHINESE_THINGS), rng.randint(2, 99)
            item = (
                f"{name}有{number}{unit}{thing}。",
                f"{name}有多少{unit}{thing}？",
                f"{name}有{number}{unit}{thing}。",
            )
        if item[1] not in seen:
            seen.add(item[1])
            facts.append(item)
    return facts


def passage_question(rng, n_facts):
    """A passage of n_facts statements and a question about one of them; long ones exceed the indexer's budget."""
    if rng.random() < 0.2:
        facts = chinese_passage_facts(rng, min(n_facts, 20))
        statements, (_, asked, answer) = [f[0] for f in facts], rng.choice(facts)
        text = "".join(statements) + "\n" + asked
        thoughts = {"xhigh": f"文中说：{answer}", "medium": "文中有答案。", "low": "看文章。"}
        return Question(text, answer, thoughts)
    facts = passage_facts(rng, n_facts)
    statements = [f[0] for f in facts]
    for _ in range(rng.randint(0, n_facts // 3)):
        statements.insert(rng.randint(0, len(statements)), rng.choice(FILLERS))
    _, asked, answer = rng.choice(facts)
    thoughts = {"xhigh": f"The text says: {answer}", "medium": "The text has the answer.", "low": "See the text."}
    return Question(" ".join(statements) + "\n" + asked, answer, thoughts)


# --- running text -----------------------------------------------------------------------------------------------------


def story(rng):
    name, friend = rng.sample(NAMES, 2)
    animal, place, colour, thing, food = (rng.choice(x) for x in (ANIMALS, PLACES, COLOURS, THINGS, FOODS))
    n = rng.randint(2, 9)
    stories = [
        f"Once upon a time there was a little {animal} who lived near {place}. Every morning the {animal} looked for "
        f"{food}. One day it met a child called {name}. {name} gave the {animal} some {food}, and from then on they "
        f"were friends.",
        f"{name} and {friend} went to {place}. They had {n} {colour} {thing} with them. On the way they met a "
        f"{animal}. "
        f"{friend} was afraid, but {name} laughed and said that the {animal} was only hungry. They gave it some "
        f"{food} and went on.",
        f"{name} wanted to learn how things work. So {name} asked {friend}, who was a {rng.choice(JOBS)}. "
        f"{friend} said: first look, then ask, then try. {name} did so, and after {n} days {name} understood.",
        f"It was a cold evening in {rng.choice(CITIES)}. {name} sat by the fire and read a book about a {animal} "
        f"that lived near "
        f"{place}. Then {friend} came in with {food} and {n} {thing}. They talked until the fire was out.",
        f"In the morning {name} lost a {colour} key. {friend} helped to look for it. They looked near {place}, but "
        f"found only "
        f"{n} {thing}. At last a {animal} came along with the key. {name} was glad and gave the {animal} some {food}.",
    ]
    return rng.choice(stories)


def running_text(rng):
    kind = rng.randrange(4)
    if kind == 0:
        return story(rng)
    if kind == 1:
        return rng.choice(PARAGRAPHS)
    if kind == 2:
        a, first = rng.randint(1, 12), rng.randint(1, 6)
        return "\n".join(f"{a} x {b} = {a * b}" for b in range(first, first + rng.randint(4, 7)))
    facts = [rng.choice(ENGLISH_FACTS if rng.random() < 0.6 else CHINESE_FACTS)[2] for _ in range(rng.randint(1, 4))]
    return " ".join(facts)


# --- documents --------------------------------------------------------------------------------------------------------


def text_document(rng):
    return [(running_text(rng), True), (END_OF_TEXT, True)]


def sentence_document(rng):
    """A fact or a sum as a plain sentence whose beginning is the prompt: "The capital of France is" -> " Paris."."""
    if rng.random() < 0.4:
        q = arithmetic(rng)
        if "=" in q.answer:
            head, tail = q.answer.split(" =")
            return [(head + " =", False), (tail, True), (END_OF_TEXT, True)]
        return [(q.answer, True), (END_OF_TEXT, True)]
    return [(rng.choice(ENGLISH_FACTS if rng.random() < 0.6 else CHINESE_FACTS)[2], True), (END_OF_TEXT, True)]


def raw_document(rng, q):
    """The question alone, answered on the next line; or the Q: / A: form."""
    if rng.random() < 0.2:
        return [(f"Q: {q.text}\nA:", False), (f" {q.answer}", True), (END_OF_TEXT, True)]
    return [(q.text, False), (f"\n{q.answer}", True), (END_OF_TEXT, True)]


def remembered_turns(rng):
    """Two turns of which the second asks about the first."""
    name, colour, city = rng.choice(NAMES), rng.choice(COLOURS), rng.choice(CITIES)
    kind = rng.randrange(3)
    plain = {
        "xhigh": "The user tells me something. I will remember it.",
        "medium": "I will remember it.",
        "low": "Noted.",
    }
    recall = {"xhigh": "The user told me this before.", "medium": "I was told this.", "low": "I remember."}
    if kind == 0:
        first = Question(f"My name is {name}.", f"Nice to meet you, {name}.", plain)
        return [first, Question("What is my name?", f"Your name is {name}.", recall)]
    if kind == 1:
        first = Question(f"My favourite colour is {colour}.", f"{colour.capitalize()} is a nice colour.", plain)
        return [first, Question("What is my favourite colour?", f"Your favourite colour is {colour}.", recall)]
    first = Question(f"I live in {city}.", f"{city} is a nice place.", plain)
    return [first, Question("Where do I live?", f"You live in {city}.", recall)]


def conversation(rng, questions, render):
    """A conversation through the model's own chat template. render(messages, **options) -> text.

    With preserve_thinking false the template drops earlier thoughts, so that only the last turn can be a target.
    """
    thinks = rng.random() < 0.65
    options = {"enable_thinking": thinks}
    effort = rng.choices(["xhigh", "medium", "low"], [3, 1, 1])[0] if thinks else "xhigh"
    if thinks and (effort != "xhigh" or rng.random() < 0.3):
        options["reasoning_effort"] = effort
    forgets = len(questions) > 1 and rng.random() < 0.15
    if forgets:
        options["preserve_thinking"] = False
    messages, pieces, said = [], [], ""
    if rng.random() < 0.35:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_MESSAGES)})
    for q in questions:
        messages.append({"role": "user", "content": q.text})
        prompt = render(messages, add_generation_prompt=True, **options)
        thought = q.thoughts[effort] if thinks else ""
        target = (f"{thought}\n</think>\n\n" if thinks else "") + q.answer + END_OF_TURN
        if forgets:
            pieces, said = [], ""
        elif not prompt.startswith(said):
            raise ValueError("the chat template does not repeat the conversation so far word for word")
        pieces += [(prompt[len(said) :], False), (target, True)]
        said = prompt + target
        messages.append({"role": "assistant", "content": q.answer, "reasoning_content": thought})
    return pieces


def document(rng, render):
    kind = rng.choices(
        ["text", "sentence", "raw", "chat", "turns", "raw_passage", "chat_passage"], [8, 8, 26, 28, 8, 11, 11]
    )[0]
    if kind == "text":
        return text_document(rng)
    if kind == "sentence":
        return sentence_document(rng)
    if kind == "raw":
        return raw_document(rng, question(rng))
    if kind == "chat":
        return conversation(rng, [question(rng)], render)
    if kind == "turns":
        turns = remembered_turns(rng) if rng.random() < 0.6 else [question(rng), question(rng)]
        if rng.random() < 0.3:
            turns.insert(1, question(rng))
        return conversation(rng, turns, render)
    q = passage_question(rng, rng.choice([2, 3, 4, 6, 8, 12, 16, 24, 30]))
    return raw_document(rng, q) if kind == "raw_passage" else conversation(rng, [q], render)


def documents(seed, n, render):
    rng = random.Random(seed)
    for _ in range(n):
        yield document(rng, render)
