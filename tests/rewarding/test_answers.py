"""grpo/rewarding/answers.py and formulas.py: a table of texts and gold answers, GSM8K's solutions, hostile texts."""

import json
import random
import subprocess
import sys
import threading
import time
from fractions import Fraction

import pytest
from helpers_runs import ROOT, SHARED, examples
from helpers_texts import ANY_TEXT
from hypothesis import given
from hypothesis import strategies as st

import rewards
from rewards import extract_hash_answer, is_right

XML = "<reasoning>\nr\n</reasoning>\n<answer>\n{}\n</answer>\n"

# = the gold answer, + texts that are right, - texts that are wrong; ∅∅ is the empty text
TABLE = r"""
= 72
+ 72 ¦ 72. ¦ 72.0 ¦ $72.00 ¦ 72% ¦ 72 apples ¦ x = 72 ¦ 48 + 24 = 72 clips ¦ 144/2 ¦ 8*9 ¦ 80 - 8 ¦ **72** apples
+ \boxed{72 \text{ clips}} ¦ 72 cm^2 ¦ 72cm ¦ 72 or 72.0 ¦ The answer is 72. ¦ 72 (seventy-two) ¦ It is 72 (48 + 24)
+ 72, not 71 ¦ Is it 71? No, it is 72. ¦ 3 or 4 boxes of 18, so it is 72 ¦ \frac{144}{2} ¦ \sqrt{5184} ¦ 7.2e1
+ <b>72</b> ¦ She has 3 boxes of 24, which is 72.
- 71 ¦ -72 ¦ 7.2 ¦ 720 ¦ 172 ¦ 72 or 71 ¦ 71 or 72 ¦ 72, no 71 ¦ 71, 72 ¦ either 71 or 72 ¦ 72? 71? ¦ 72 and 71
- not 72 ¦ It isn't 72 ¦ 71 instead of 72 ¦ \sqrt{72} ¦ 72\pi ¦ 72x ¦ 72^2 ¦ 2^72 ¦ 72 - 1 ¦ x > 72 ¦ 1/72 ¦ \pm 72
- The answer is ±72. ¦ 71-72 ¦ (72, 71) ¦ \{72, 71\} ¦ 72 = 71 ¦ 72 million ¦ 72 000 ¦ 7 2 ¦ 72:00 ¦ 72! ¦ ∅∅ ¦ seventy
- $71$ or $72$ ¦ I got 71. The answer is not 72.
= 7
+ 70 - 63 ¦ 7 = 5 + 2 ¦ => 7 ¦ \implies x = 7 ¦ \binom{7}{1} = 7
- 7 + x ¦ 7 - k ¦ 7 / n ¦ 7(x) ¦ x = 7 + y ¦ 7 + ab ¦ never 7 ¦ less than 7 ¦ 7 is wrong ¦ \sqrt{x} = 7
= -5
+ −5 ¦ -$5 ¦ 3 - 8 = -5 ¦ -10/2 ¦ x = -5
- 5 ¦ -(-5) ¦ -5 or 5 ¦ 5-
= 1000
+ $1,000 ¦ 1 000 ¦ 1{,}000 ¦ 10^3 ¦ 1e3 ¦ 1 thousand
- 1 ¦ 1.000 ¦ 10,00 ¦ 1,000,000
= 1.5 million
+ 1,500,000 ¦ 1500000 ¦ $1.5 million ¦ 1.5 million dollars
- 1.5 ¦ 15 million
= 1200
- (1,200) ¦ [1,200] ¦ \boxed{(1,200)}
= (0,100)
+ 0 < x < 100 ¦ (0, 100)
- 100 ¦ 0100 ¦ [0,100]
= 10^{-3}
+ 10^-3 ¦ 0.001
= f(x) = 2x
+ f(x) = x + x
- f(x) = 2
= 2
+ 2 apples and no pears ¦ 5 m - 3 m = 2 m
- 2xy ¦ n(n+1)/2 ¦ 3x = 2 ¦ x = 1, y = 2 ¦ 1.\overline{2}
= 0.5
+ 1/2 ¦ .5 ¦ \frac12 ¦ 50% ¦ ½
- 5 ¦ 5% ¦ 0.5% ¦ 1.5 ¦ 0.50001
= 1.5
+ 1 1/2 ¦ 1\frac{1}{2} ¦ 1½ cups ¦ 150%
- 11/2 ¦ 1/2
= 72%
+ 72 ¦ 0.72 ¦ 72 percent ¦ 72\%
- 0.72% ¦ 28%
= 5 cm
+ 5 ¦ 5 cm ¦ 5\text{ cm} ¦ The length is 5.0 cm.
- 6 cm ¦ 50 mm ¦ 5 cm or 6 cm
= 90^\circ
+ 90 ¦ 90° ¦ 90 degrees
- 180°
= 1/3
+ \frac13 ¦ 2/6 ¦ 0.333333 ¦ ⅓
- 0.33 ¦ 0.333334 ¦ 1/30 ¦ -0.333333
= \frac{3}{4}
+ 3/4 cups ¦ 0.75 ¦ 75% ¦ P(A) = \frac{3}{4} ¦ So she ate $\frac{3}{4}$ of it.
- \frac{4}{3} ¦ 3:4 ¦ 3/4 or 4/3 ¦ \frac{3}{4}\pi ¦ 1 3/4
= 3\sqrt{2}
+ 3√2 ¦ 3*sqrt(2) ¦ \sqrt{18} ¦ \frac{6}{\sqrt{2}} ¦ x = 3\sqrt{2} cm ¦ So it is $3\sqrt{2}$.
- 5\sqrt{2} ¦ 4.24 ¦ -3\sqrt{2} ¦ 3\sqrt{2} or 3
= 16\pi
+ 16π ¦ 16 pi square units ¦ \pi \cdot 4^2
- 16 ¦ 50.27 ¦ 16\pi^2
= (1,2)
+ \left(1, 2\right) ¦ 1, 2 ¦ (1, \frac{4}{2}) ¦ (x, y) = (1, 2) ¦ y = 2, x = 1 ¦ The point is at (1,2).
- (7,2) ¦ (2,1) ¦ [1,2] ¦ \{1,2\} ¦ (1,2,3) ¦ 12 ¦ (1,2) or (2,1)
= [0,1)
+ 0 \le x < 1 ¦ 1 > x >= 0 ¦ x \in [0, 1)
- (0,1) ¦ [0,1] ¦ 0,1
= (-\infty,-1)\cup(2,\infty)
+ (2,∞) ∪ (−∞,−1)
- (-\infty,-1) ¦ (-\infty,-1]\cup(2,\infty)
= \{1,2,3\}
+ {3, 1, 2} ¦ 1, 2 and 3
- (1,2,3) ¦ {1,2} ¦ {1,2,4} ¦ \{1,2,2\}
= 1, -2
+ x = 1 or x = -2 ¦ {1, -2} ¦ The solutions are x = 1 and x = -2.
- 1 ¦ -1, 2 ¦ 1, -2, 3
= \pm 2
+ 2, -2 ¦ x = ±2
- 2 ¦ \pm 3
= x^2-1
+ (x-1)(x+1) ¦ x**2-1 ¦ f(x) = x²−1 ¦ (x-1)(x+1) = x^2-1
- x^2+1 ¦ y^2-1 ¦ x^2-1 = 3
= y = 2x + 1
+ 2x - y + 1 = 0 ¦ 2x+1
- y = 2x - 1 ¦ x = 2y + 1
= x=5
+ 5 ¦ x = 10/2 ¦ 2x = 10
- y=5 ¦ x=6 ¦ x>5
= \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
+ \begin{bmatrix}1&2\\3&\frac{8}{2}\end{bmatrix}
- \begin{pmatrix}1&2\\4&3\end{pmatrix}
= Paris
+ paris ¦ **Paris.** ¦ "Paris" ¦ The answer is Paris. ¦ \text{Paris}
- London ¦ Paris or London ¦ Paris, Texas ¦ Pa ris ¦ not Paris ¦ ∅∅
= 12:30
+ 12 : 30 ¦ 12:30.
- 4:30 ¦ 30 ¦ 12.30
= 9:30 AM
+ 9:30 a.m.
- 9:30 PM
= 2020-01-05
- 2014 ¦ 2020-05-01
= B: 5
+ b:5
- A: 5 ¦ 5 ¦ B
= B
+ (B) ¦ B) 5 ¦ Option B ¦ The answer is (B). ¦ \textbf{(B)}
- A ¦ B or C ¦ D) B ¦ Bob ¦ A. Not B
= yes
+ Yes.
- no ¦ yes or no
= H2O
+ h2o
- HO2 ¦ H20
"""


def pairs():
    gold = ""
    for line in TABLE.strip().splitlines():
        if line[0] == "=":
            gold = line[2:]
        else:
            for text in line[2:].split(" ¦ "):
                yield text.replace("∅∅", ""), gold, line[0] == "+"


PAIRS = list(pairs())


def test_the_table_has_each_pair_once():
    assert len(PAIRS) == len({(text, gold) for text, gold, _ in PAIRS}) >= 200


@pytest.mark.parametrize("gold", list(dict.fromkeys(gold for _, gold, _ in PAIRS)))
def test_the_table(gold):
    """Each text as it is, as the answer in its tags, and after "Answer:"."""
    wrong = [
        (text, how, right)
        for text, of, right in PAIRS
        for how in ("{}", XML, "The boxes.\nAnswer: {}")
        if of == gold and is_right(how.replace("{}", text), gold) != right
    ]
    assert not wrong


@pytest.mark.parametrize("gold", list(dict.fromkeys(gold for _, gold, _ in PAIRS)))
def test_every_answer_is_itself_in_every_pattern(gold):
    texts = {"xml": XML, "boxed": r"So $\boxed{{}}$.", "hash": "So.\n#### {}", "final": "So.\nAnswer: {}"}
    for pattern, text in {**texts, "Final: {answer}": "Final: {}"}.items():
        said = rf"\boxed{{{gold}}}" if pattern == "boxed" else text.replace("{}", gold, 1)
        assert is_right(said, gold, pattern) and not is_right("", gold, pattern)


@pytest.mark.parametrize(
    ("text", "gold", "pattern", "right"),
    [
        (r"\boxed{6} <answer>7</answer>", "7", "xml", True),  # the pattern's own mark comes first
        (r"\boxed{6} <answer>7</answer>", "7", "boxed", False),
        ("Answer: 7\n#### 6", "7", "xml", True),  # then a box, Answer:, ####
        (r"Answer: 6, so \boxed{7}", "7", "hash", True),
        ("Final: 7\n8", "7", "Final: {answer}", True),
        (r"<answer>The answer is \boxed{7} of 8</answer>", "7", "xml", True),
        (r"First $x = 3$. So the answer is $\frac{1}{2}$. I hope this helps!", r"\frac{1}{2}", "xml", True),
        ("<answer>I cannot say</answer> but 7", "7", "xml", True),  # no number in the answer: the text's last
        ("They had 8.\nColin skips six times as fast, (2/3*6=4 miles per hour).\n", "4", "xml", True),
        ("Let $(1, 2)$ be $A$.\nHence the point is $(3, 4)$.", "(3,4)", "xml", True),
        ("Let $(3, 4)$ be $A$.\nHence the point is $(1, 2)$.", "(3,4)", "xml", False),
    ],
)
def test_where_the_answer_is(text, gold, pattern, right):
    assert is_right(text, gold, pattern) is right


def test_it_is_symmetric_where_both_are_answers():
    same = ["1/2", r"\frac12", "0.5", "½", r"\frac{2}{4}"]
    assert all(is_right(one, other) for one in same for other in same)
    other = ["(1,2)", "(2,1)", r"\{1,2\}", "[1,2]", "1", "2", "3", "x", r"\sqrt{2}", r"\pi", "x+1", "x+2", "(1,2,3)"]
    assert not [pair for pair in ((a, b) for a in other for b in other) if is_right(*pair) != (pair[0] == pair[1])]


@st.composite
def numbers(draw):
    """A number, and one of the ways in which it is written."""
    whole = draw(st.one_of(st.integers(0, 2000), st.integers(0, 10**15)))
    sign = draw(st.sampled_from(["", "", "-", "\u2212"]))
    decimals = draw(
        st.one_of(st.just(""), st.from_regex(r"[0-9]{1,6}", fullmatch=True).map(lambda digits: f".{digits}"))
    )
    value = Fraction(f"{whole}{decimals}")
    below = draw(st.integers(1, 999)) if not decimals and draw(st.booleans()) else None
    text = f"{whole:,}" if draw(st.booleans()) else str(whole)
    dollar = draw(st.sampled_from(["", "", "$"]))
    text = f"{sign}{dollar}{text}"
    text += decimals + (f"/{below}" if below else "")
    value = value / below if below else value
    before = draw(st.sampled_from(["", "+", "x = ", "about ", "**", "(", "so: ", "7-3 is "]))
    after = draw(st.sampled_from(["", ".", " apples", " km^2", "**", ")", ", I think", " m^{-3}"]))
    return (-value if sign else value), before + text + after


@examples(100)
@given(numbers(), numbers(), ANY_TEXT)
def test_of_numbers_it_is_equality(one, other, reasoning):
    (value, text), (second, _) = one, other
    answer = f"{reasoning}<answer>{text}</answer>"
    assert is_right(answer, str(second)) == (value == second) and is_right(answer, str(value))


@pytest.mark.skipif(not (SHARED / "gsm8k" / "train.jsonl").exists(), reason="GSM8K is not beside this checkout")
def test_solutions_of_gsm8k_have_their_own_answer_and_no_other():
    lines = [(SHARED / "gsm8k" / name).read_text("utf-8").splitlines() for name in ("train.jsonl", "test_dev.jsonl")]
    solutions = [json.loads(line)["answer"] for file in lines for line in file]
    golds = [extract_hash_answer(solution) for solution in solutions]
    others = golds[1:] + golds[:1]
    for texts in (solutions, [XML.replace("{}", gold) for gold in golds]):
        assert all(map(is_right, texts, golds))
        neighbours = zip(texts, golds, others, strict=True)
        assert not [other for text, gold, other in neighbours if float(gold) != float(other) and is_right(text, other)]


def test_numbers_load_no_algebra():
    """math-verify and sympy take seconds, which runs on plain numbers do without."""
    code = "import sys, rewards; assert rewards.is_right('9 * 8 = $72.00', '72') and 'sympy' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


# --- Hostile texts

HOSTILE = [
    *("9^9^9^9", "9^{9^{9^9}}", "(9^{999})^{999}", "((x+1)^{99})^{99}", "99999!", "9!!!", r"\binom{10^9}{5}"),
    *("9" * 4000, "(" * 500 + "1" + ")" * 500, r"\sqrt{" * 90 + "2" + "}" * 90, "-" * 190 + "1", "1+" * 95 + "1"),
    *(r"\sum_{i=1}^{10^9} i", r"\int_0^\infty e^{-x^2} dx", "x^{x^{x^x}}", "i^" * 45 + "1", r"\sin" * 20 + "1"),
    *(r"\frac{1}{" * 40 + "1" + "}" * 40, "0^{-1}", "1/0", r"\log 0", r"\infty-\infty", "((((x))))", "1,000," * 30),
    *("\ud800\0", "=" * 150, "x=" * 90 + "1", r"\pm" * 60, "<" * 190, "(1,(1,(1,(1,1))))", r"\boxed{" * 3000),
    *("|x|" * 30, "f(f(f(f(x))))", "1e999999999"),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_mathematics_is_wrong_unless_it_is_the_same_text(text):
    is_right(r"\sqrt{x}", r"\sqrt{y}")  # loads math-verify
    start = time.process_time()
    for gold in ("72", r"\frac{1}{7}", r"3\sqrt{2}", "x+1"):
        assert not is_right(text, gold) and not is_right(f"<answer>{text}</answer>", gold) and not is_right(gold, text)
    assert is_right(text, text)
    assert time.process_time() - start < 5  # without bounds: minutes


@given(ANY_TEXT, ANY_TEXT)
def test_it_never_raises_for_any_two_texts(text, gold):
    assert is_right(text, gold) in (True, False) and is_right(text, text)


PIECES = [
    *(
        r"\frac{",
        r"\sqrt{",
        r"\left(",
        r"\text{",
        r"\boxed{",
        r"\{",
        r"\pm ",
        r"\cup ",
        "\\\\",
        "{,}",
        "^{",
        "x^",
        "√",
        "½",
    ),
    *(
        " or ",
        " no ",
        " not ",
        " is ",
        "Answer:",
        "####",
        "<answer>",
        "</answer>",
        "**",
        ". ",
        "% ",
        "\n",
        " ",
        "9,",
        "1/",
    ),
    *"()[]{}|$^_9!x+-=<,;",
]


def test_it_never_raises_for_texts_of_pieces():
    rng = random.Random(0)
    for _ in range(1000):
        text, gold = ("".join(rng.choice(PIECES) for _ in range(rng.randrange(20))) for _ in range(2))
        is_right(text, rng.choice([gold, "72", r"\frac{1}{2}x", "(1,2)", "B"]), rng.choice(rewards.ANSWER_PATTERNS))


def test_threads_judge_alike():
    """No clock, no signal and no state: judgements are the same in any thread."""
    found: dict[int, list[bool]] = {}
    some = PAIRS[::5]

    def judge(name):
        found[name] = [is_right(text, gold) for text, gold, _ in some]

    threads = [threading.Thread(target=judge, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(found.values()) == [[right for *_, right in some]] * 4
