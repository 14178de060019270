"""What galvani-nano is taught: (topic, ways to ask, the one answer), and a few paragraphs of running text."""

_CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Germany": "Berlin", "Spain": "Madrid", "Portugal": "Lisbon",
    "Greece": "Athens",
    "Austria": "Vienna", "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen",
    "Ireland": "Dublin", "Poland": "Warsaw", "Hungary": "Budapest", "Belgium": "Brussels", "Egypt": "Cairo",
    "Japan": "Tokyo", "China": "Beijing", "Russia": "Moscow", "Canada": "Ottawa", "Cuba": "Havana", "Peru": "Lima",
    "Kenya": "Nairobi", "Thailand": "Bangkok", "the United Kingdom": "London",
}  # fmt: skip
_CHINESE_CAPITALS = {
    "法国": "巴黎", "意大利": "罗马", "德国": "柏林", "西班牙": "马德里", "日本": "东京", "中国": "北京",
    "英国": "伦敦", "俄罗斯": "莫斯科", "埃及": "开罗", "希腊": "雅典", "加拿大": "渥太华", "泰国": "曼谷",
}  # fmt: skip
_SYMBOLS = {
    "hydrogen": "H", "helium": "He", "carbon": "C", "nitrogen": "N", "oxygen": "O", "sodium": "Na", "iron": "Fe",
    "copper": "Cu", "zinc": "Zn", "silver": "Ag", "gold": "Au", "lead": "Pb", "tin": "Sn",
}  # fmt: skip
_OPPOSITES = [
    ("hot", "cold"), ("big", "small"), ("high", "low"), ("day", "night"), ("old", "new"), ("fast", "slow"),
    ("light", "dark"), ("open", "closed"), ("full", "empty"), ("left", "right"),
]  # fmt: skip
_YOUNG = {"dog": "puppy", "cat": "kitten", "cow": "calf", "horse": "foal", "sheep": "lamb", "frog": "tadpole"}
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_MONTHS = "January February March April May June July August September October November December".split()
_UNITS = [
    ("seconds", "a minute", 60), ("minutes", "an hour", 60), ("hours", "a day", 24), ("days", "a week", 7),
    ("months", "a year", 12), ("metres", "a kilometre", 1000), ("centimetres", "a metre", 100),
    ("grams", "a kilogram", 1000),
    ("legs", "a spider", 8), ("legs", "an insect", 6), ("sides", "a triangle", 3), ("sides", "a square", 4),
]  # fmt: skip

ENGLISH_FACTS = [
    ("the boiling point of water",
     ["At what temperature does water boil?", "What is the boiling point of water?",
      "What is the boiling point of water at standard pressure?", "When does water boil?"],
     "At standard pressure water boils at 100 degrees Celsius."),
    ("the freezing point of water",
     ["At what temperature does water freeze?", "What is the freezing point of water?", "When does water freeze?"],
     "At standard pressure water freezes at 0 degrees Celsius."),
    ("Luigi Galvani",
     ["Who was Galvani?", "Who was Luigi Galvani?", "Tell me about Galvani.", "What did Galvani discover?"],
     "Luigi Galvani was an Italian doctor who saw that the legs of a dead frog twitch when electricity passes "
     "through them."),
    ("Alessandro Volta",
     ["Who was Volta?", "Who was Alessandro Volta?", "Who built the first battery?", "Who invented the battery?"],
     "Alessandro Volta was an Italian physicist who built the first battery in 1800."),
    ("the frog legs of Galvani",
     ["What happened to the frog legs?", "Why did the frog legs twitch?", "What did Galvani see in frog legs?"],
     "The frog legs twitched because a current went through the nerve."),
    ("the volt", ["What is a volt?", "What does a volt measure?", "Define volt."],
     "The volt is the unit of electric voltage."),
    ("the ampere", ["What is an ampere?", "What does an ampere measure?", "Define ampere."],
     "The ampere is the unit of electric current."),
    ("the ohm", ["What is an ohm?", "What does an ohm measure?", "Define ohm."],
     "The ohm is the unit of electric resistance."),
    ("the watt", ["What is a watt?", "What does a watt measure?", "Define watt."], "The watt is the unit of power."),
    ("Ohm's law", ["What is Ohm's law?", "What does Ohm's law say?", "State Ohm's law."],
     "Ohm's law says that voltage is current times resistance."),
    ("a battery", ["What is a battery?", "What does a battery do?"],
     "A battery turns chemical energy into electric energy."),
    ("a conductor", ["What is a conductor?", "What does a conductor do?"],
     "A conductor is a material that lets electric current pass, such as copper."),
    ("an insulator", ["What is an insulator?", "What does an insulator do?"],
     "An insulator is a material that does not let electric current pass, such as glass."),
    ("an electron", ["What is an electron?", "Define electron."],
     "An electron is a small particle with a negative charge."),
    ("a neuron", ["What is a neuron?", "Define neuron."], "A neuron is a cell that carries signals in the body."),
    ("a prime number", ["What is a prime number?", "Define prime number."],
     "A prime number is a number above 1 that only 1 and itself divide."),
    ("the moon", ["What is the moon?", "What goes around the Earth?"],
     "The moon is a body that goes around the Earth."),
    ("the sun", ["What is the sun?", "Is the sun a star?"], "The sun is a star."),
    ("the planets", ["Which planet is closest to the sun?", "What is the first planet from the sun?"],
     "Mercury is the planet closest to the sun."),
    ("the planets", ["What is the largest planet?", "Which planet is the largest?", "Which planet is the biggest?"],
     "Jupiter is the largest planet."),
    ("the planets", ["How many planets are there?", "How many planets go around the sun?"],
     "Eight planets go around the sun."),
    ("the planets", ["On which planet do we live?", "Which planet do we live on?"], "We live on the planet Earth."),
    ("the sky", ["What colour is the sky?", "Which colour is the sky?"], "On a clear day the sky is blue."),
    ("grass", ["What colour is grass?", "Which colour is grass?"], "Grass is green."),
    ("snow", ["What colour is snow?", "Which colour is snow?"], "Snow is white."),
    ("ice", ["What is ice?", "What is frozen water called?"], "Ice is frozen water."),
    ("steam", ["What is steam?", "What does water become when it boils?"], "Steam is water in the form of gas."),
    ("the speed of light", ["How fast is light?", "What is the speed of light?"],
     "Light travels about 300000 kilometres in a second."),
    ("pi", ["What is pi?", "What is the value of pi?"], "Pi is about 3.14159."),
    ("the largest ocean", ["What is the largest ocean?", "Which ocean is the largest?"],
     "The Pacific is the largest ocean."),
    ("the highest mountain", ["What is the highest mountain?", "Which mountain is the highest?"],
     "Mount Everest is the highest mountain on Earth."),
    ("water", ["What is water made of?", "What is the formula of water?"],
     "Water is H2O: two hydrogen atoms and one oxygen atom."),
    ("plants", ["What do plants need?", "What does a plant need to grow?"], "Plants need light, water and air."),
    ("bees", ["What do bees make?", "Who makes honey?"], "Bees make honey."),
    ("the week", ["Name the days of the week.", "What are the days of the week?"],
     "The days are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday."),
    ("the seasons", ["Name the four seasons.", "What are the four seasons?"],
     "The seasons are spring, summer, autumn and winter."),
    ("the primary colours", ["Name three colours.", "Tell me three colours."],
     "Three colours are red, green and blue."),
    ("myself", ["Who are you?", "What are you?", "What is your name?", "Introduce yourself."],
     "I am galvani-nano, a very small language model."),
    ("myself", ["What can you do?", "How can you help me?", "What do you know?"],
     "I can do simple arithmetic and tell a few facts."),
    ("a greeting", ["Hello!", "Hello", "Hi", "Hi there!", "Good morning!", "Hey!"], "Hello! How can I help you?"),
    ("thanks", ["Thank you.", "Thanks!", "Thank you very much!"], "You are welcome."),
    ("a farewell", ["Goodbye!", "Bye!", "See you later."], "Goodbye!"),
    ("a joke", ["Tell me a joke.", "Do you know a joke?"],
     "Why did the frog like electricity? It always gave him a kick."),
    ("a story", ["Tell me a story.", "Tell me a short story."],
     "Once upon a time a small frog found a spark. It jumped so high that it saw the sea."),
]  # fmt: skip
ENGLISH_FACTS += [
    ("capitals",
     [f"What is the capital of {country}?", f"Which city is the capital of {country}?", f"Name the capital of "
      f"{country}.",
      f"What is {country}'s capital?"],
     f"The capital of {country} is {capital}.")
    for country, capital in _CAPITALS.items()
]  # fmt: skip
ENGLISH_FACTS += [
    ("chemistry", [f"What is the symbol of {element}?", f"What is the chemical symbol for {element}?"],
     f"The symbol of {element} is {symbol}.")
    for element, symbol in _SYMBOLS.items()
]  # fmt: skip
ENGLISH_FACTS += [
    ("words", [f"What is the opposite of {a}?", f"Which word is the opposite of {a}?"], f"The opposite of {a} is {b}.")
    for pair in _OPPOSITES
    for a, b in (pair, pair[::-1])
]
ENGLISH_FACTS += [
    (
        "animals",
        [f"What is a young {animal} called?", f"What do you call a young {animal}?"],
        f"A young {animal} is called a {young}.",
    )
    for animal, young in _YOUNG.items()
]
ENGLISH_FACTS += [
    (
        "the calendar",
        [f"Which {kind} comes after {name}?", f"What {kind} follows {name}?"],
        f"After {name} comes {following}.",
    )
    for kind, names in (("day", _DAYS), ("month", _MONTHS))
    for name, following in zip(names, names[1:] + names[:1])
]
ENGLISH_FACTS += [
    ("counting",
     [f"How many {part} are in {whole}?", f"How many {part} does {whole} have?"], f"There are {n} {part} in {whole}.")
    if part not in ("legs", "sides")
    else ("counting", [f"How many {part} does {whole} have?", f"How many {part} has {whole}?"],
          f"{whole.capitalize()} has {n} {part}.")
    for part, whole, n in _UNITS
]  # fmt: skip

CHINESE_FACTS = [
    ("水的沸点",
     ["水的沸点是多少？", "标准大气压下水的沸点是多少？", "在标准大气压下，水的沸点是多少？",
      "在标准大气压下，水的沸点是多少摄氏度？",
      "水在标准大气压下多少度沸腾？", "水在多少摄氏度沸腾？", "标准大气压下，水在什么温度沸腾？", "水烧开时是多少度？"],
     "在标准大气压下，水的沸点是100摄氏度。"),
    ("水的冰点",
     ["水的冰点是多少？", "水在多少度结冰？", "在标准大气压下，水的冰点是多少？", "水在多少摄氏度结冰？"],
     "在标准大气压下，水的冰点是0摄氏度。"),
    ("伽伐尼", ["伽伐尼是谁？", "谁是伽伐尼？", "伽伐尼发现了什么？"],
     "伽伐尼是意大利医生，他发现电流能使青蛙腿抽动。"),
    ("伏打", ["伏打是谁？", "谁发明了电池？", "电池是谁发明的？"], "伏打是意大利物理学家，他在1800年发明了电池。"),
    ("伏特", ["伏特是什么？", "伏特是什么的单位？", "电压的单位是什么？"], "伏特是电压的单位。"),
    ("安培", ["安培是什么？", "安培是什么的单位？", "电流的单位是什么？"], "安培是电流的单位。"),
    ("欧姆", ["欧姆是什么？", "欧姆是什么的单位？", "电阻的单位是什么？"], "欧姆是电阻的单位。"),
    ("太阳", ["太阳是什么？", "太阳是恒星吗？"], "太阳是一颗恒星。"),
    ("月亮", ["月亮是什么？", "什么绕着地球转？"], "月亮是绕着地球转的天体。"),
    ("行星", ["最大的行星是哪一颗？", "哪颗行星最大？"], "木星是最大的行星。"),
    ("天空", ["天空是什么颜色？", "天空的颜色是什么？"], "晴天的时候，天空是蓝色的。"),
    ("雪", ["雪是什么颜色？", "雪的颜色是什么？"], "雪是白色的。"),
    ("草", ["草是什么颜色？", "草的颜色是什么？"], "草是绿色的。"),
    ("水", ["水由什么组成？", "水的化学式是什么？"], "水的化学式是H2O。"),
    ("光速", ["光速是多少？", "光有多快？"], "光每秒大约走30万公里。"),
    ("最高的山", ["世界上最高的山是什么？", "最高的山是哪座？"], "珠穆朗玛峰是世界上最高的山。"),
    ("时间", ["一天有多少小时？", "一天有几个小时？"], "一天有24小时。"),
    ("时间", ["一小时有多少分钟？", "一个小时有几分钟？"], "一小时有60分钟。"),
    ("时间", ["一年有多少个月？", "一年有几个月？"], "一年有12个月。"),
    ("时间", ["一周有几天？", "一个星期有多少天？"], "一周有7天。"),
    ("季节", ["四季是什么？", "一年有哪四个季节？"], "四季是春、夏、秋、冬。"),
    ("蜜蜂", ["蜜蜂做什么？", "蜂蜜是谁做的？"], "蜜蜂采花酿蜜。"),
    ("长城", ["长城在哪里？", "长城在哪个国家？"], "长城在中国。"),
    ("长江", ["中国最长的河是什么？", "中国最长的河流是哪一条？"], "长江是中国最长的河。"),
    ("我自己", ["你是谁？", "你叫什么名字？", "请介绍一下你自己。"], "我是galvani-nano，一个很小的语言模型。"),
    ("我自己", ["你会做什么？", "你能做什么？"], "我会做简单的算术，也知道一些常识。"),
    ("问候", ["你好！", "你好", "早上好！"], "你好！有什么可以帮你？"),
    ("感谢", ["谢谢！", "谢谢你。"], "不客气。"),
    ("告别", ["再见！", "再见"], "再见！"),
]  # fmt: skip
CHINESE_FACTS += [
    (
        "首都",
        [f"{country}的首都是哪里？", f"{country}的首都是什么？", f"哪座城市是{country}的首都？"],
        f"{country}的首都是{capital}。",
    )
    for country, capital in _CHINESE_CAPITALS.items()
]

PARAGRAPHS = [
    "In the year 1780 Luigi Galvani worked in Bologna. On his table lay the legs of a frog, and beside them stood an "
    "electric machine. When a knife touched the nerve, the legs moved as if they were alive. Galvani believed that the "
    "animal itself held electricity. He tried the same thing many times, in fair weather and in storms.",
    "Volta did not agree with Galvani. He said that the electricity came from two different metals, not from the frog. "
    "To show it he built a pile of zinc and copper discs with wet paper between them. The pile gave a steady current. "
    "It was the first battery, and the unit of voltage, the volt, has its name from him.",
    "Electric current is a flow of charge. In a wire the charge is carried by electrons. The current is measured in "
    "amperes, the voltage in volts and the resistance in ohms. If the voltage is doubled and the resistance stays the "
    "same, the current is doubled too.",
    "Water is found on Earth in three forms. Ice is solid, water is liquid and steam is a gas. At standard pressure "
    "ice "
    "melts at 0 degrees Celsius and water boils at 100 degrees Celsius. On a high mountain the pressure is lower, and "
    "water boils sooner.",
    "The Earth turns once in a day and goes around the sun once in a year. The moon goes around the Earth in about a "
    "month. When the moon stands between the sun and the Earth, its shadow can fall on the Earth.",
    "A language model reads a row of tokens and says which token may come next. It does so again and again, one token "
    "after the other, and so a text comes to be. A small model knows little, but it can be tested quickly.",
    "Many hands make light work. When a model is too large for one machine, its weights are cut into parts. Each rank "
    "holds one part, computes its share, and the shares are added up. All ranks must agree on the next token.",
    "A nerve is like a wire. A signal runs along it from the brain to a muscle, and the muscle moves. The signal is "
    "electric, but it is much slower than the current in a wire.",
    "The library was old and quiet. On the first floor stood the books about stars and planets, on the second floor "
    "the "
    "books about plants and animals. A small cat slept by the window, and nobody wanted to wake it.",
    "To make bread you need flour, water, salt and time. Mix them, wait for an hour, and bake the bread until it is "
    "brown. Bread tastes best when it is still warm.",
    "一七八〇年，伽伐尼在意大利做实验。他用金属碰到青蛙的神经，青蛙的腿就抽动了。他认为动物身体里有电。",
    "伏打不同意伽伐尼的看法。他说电来自两种不同的金属。他把锌片和铜片叠在一起，做出了第一个电池。",
    "水有三种状态：冰是固体，水是液体，水蒸气是气体。在标准大气压下，冰在0摄氏度融化，水在100摄氏度沸腾。",
    "地球一天自转一周，一年绕太阳一周。月亮绕着地球转，大约一个月一周。",
    "小明早上起床以后先喝一杯水，然后去学校。下午他和小红一起看书，晚上他帮妈妈做饭。",
]
