"""Extract the answer from a text, and decide by the lenient rule whether it is right, however it is written.

Numbers are compared exactly (numbers.py), formulas by their values (formulas.py), all else as text. Two different
answers ("72 or 71") are wrong. A verdict depends only on the texts, without timeouts or signals, in any thread.
"""

import functools
import re
from collections.abc import Iterator
from fractions import Fraction

from exact_answers.amounts import (
    NUMBER,
    OTHER_WORDS,
    SHORT_UNITS,
    Number,
    number_of,
    quantities,
    read_number,
    split_unit,
    unit_of,
    with_slashes,
)
from exact_answers.formulas import NO_FORMULA, both_cases, is_formula, read, same
from exact_answers.writing import clean
from rewards import extract_xml_answer

# Named answer patterns; a template such as "Final: {answer}" works, too
ANSWER_PATTERNS = ("xml", "boxed", "hash", "final", "text")

# --- Extraction ---------------------------------------------------------------------------------------------------

# Everything that opens or closes a brace in LaTeX, and the rest of a line after "Answer:", also "**Final answer**:"
_BRACES = re.compile(r"\\[\\{}]|(?:\\(?:boxed|fbox)\s{0,9})?\{|\}")
_FINAL = re.compile(r"(?i)(?<![a-z])(?:(?:final )?answer|final)(?: is)?[*_]{0,3} ?[:：][*_]{0,3}")


def extract_answer(text: str, pattern: str = "xml") -> str:
    r"""Extract the answer from a completion or gold solution, stripped; the whole text if the mark is missing.

    Patterns: `xml`, the last `<answer>…</answer>`; `boxed`, the last `\boxed{…}` or `\fbox{…}` that is closed; `hash`,
    the line after the last `####`, cleaned like GSM8K's; `final`, the line after the last `Answer:`, `Final:` or
    `Final answer is:`, without bold type, dollar delimiters and a final full stop; `text`, the whole text; or a
    template, `Final: {answer}`, the last one, up to what follows `{answer}` in it, or to the end of the line.

    >>> extract_answer(r"So $x = \boxed{\frac{1}{2}}$.", "boxed"), extract_answer("2 + 2 = 4\n#### $4,000", "hash")
    ('\\frac{1}{2}', '4000')
    >>> extract_answer("**Answer:** $72$.", "final"), extract_answer("So [[72]], of course", "[[{answer}]]")
    ('72', '72')
    """
    if pattern == "xml":
        return extract_xml_answer(text)
    answer = find_answer(text, pattern)
    return text.strip() if answer is None else answer


def find_answer(text: str, pattern: str) -> str | None:
    """Extract the answer like `extract_answer`; None if the mark is missing."""
    check_pattern(pattern)
    if pattern == "text":
        return text.strip()
    if pattern == "boxed":
        return _last_box(text)
    if pattern == "hash":
        _, mark, rest = text.rpartition("####")
        answer = _first_line(rest)
        # keep the comma of (1, 200) and the dollars of a formula
        if not re.search(r"[\\({[]", answer):
            answer = re.sub(r"\$|(?<=[0-9]),(?=[0-9]{3})", "", answer)
        return answer if mark else None
    if pattern == "final":
        *_, end = 0, *(mark.end() for mark in _FINAL.finditer(text))
        line = re.split(r"(?<=[0-9])\.\s+(?=[A-Z(])", _first_line(text[end:]))[0]  # drop a remark after a number
        return without_marks(line) if end else None
    before, _, after = ("<answer>{answer}</answer>" if pattern == "xml" else pattern).partition("{answer}")
    _, mark, rest = text.rpartition(before.strip())
    closing = re.escape(after.strip()) + r"(?!(?<=[.,])[0-9])"  # the first stop of 3.5. is part of the number
    answer = re.split(closing, rest, maxsplit=1)[0].strip() if after.strip() else _first_line(rest)
    return answer if mark else None


def last_marked(text: str) -> str | None:
    """Extract the answer at the last mark of any kind; None without a mark.

    >>> last_marked("So <answer>42</answer>. No. Answer: 41"), last_marked("#### 41, no: <answer>42</answer>")
    ('41', '42')
    """
    starts = {
        "xml": text.rfind("<answer>"),
        "boxed": max((start for start, _, _ in _boxes(text)), default=-1),
        "final": max((mark.end() for mark in _FINAL.finditer(text)), default=-1),
        "hash": text.rfind("####"),
    }
    last = max(starts, key=lambda mark: starts[mark])
    return find_answer(text, last) if starts[last] >= 0 else None


def check_pattern(pattern: str) -> None:
    """Raise ValueError unless `find_answer` knows this pattern.

    >>> check_pattern("latex")
    Traceback (most recent call last):
    ValueError: answer pattern 'latex': use xml, boxed, hash, final or text, or a template such as 'Final: {answer}'
    """
    before, mark, _ = pattern.partition("{answer}")
    if pattern not in ANSWER_PATTERNS and not (mark and before.strip() and pattern.count("{answer}") == 1):
        known = "use xml, boxed, hash, final or text, or a template such as 'Final: {answer}'"
        raise ValueError(f"answer pattern {pattern!r}: {known}")


def without_marks(answer: str) -> str:
    """Strip spaces, bold type, dollar delimiters and a full stop from an answer.

    >>> [without_marks(answer) for answer in ("**72**.", "$x + 1$.", "$5", "9 a.m.")]
    ['72', 'x + 1', '$5', '9 a.m.']
    """
    answer = re.sub(r"(?<![.\s])(?<![A-Za-z]\.[A-Za-z])\.$", "", answer.strip().strip("*").strip()).strip("*").strip()
    in_dollars = len(answer) > 2 and answer[0] == answer[-1] == "$" and answer.count("$") == 2
    return answer[1:-1].strip() if in_dollars else answer


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0].strip()


def _boxes(text: str) -> list[tuple[int, int, str]]:
    """Return start, end and text of each closed box, in the order of their starts."""
    opened: list[re.Match[str]] = []
    boxes = []
    for brace in _BRACES.finditer(text):
        if brace[0] == "}" and opened:
            opening = opened.pop()
            if opening[0] != "{":
                boxes.append((opening.start(), brace.end(), text[opening.end() : brace.start()].strip()))
        elif brace[0].startswith(("{", "\\boxed", "\\fbox")):
            opened.append(brace)
    # `\boxed 5`, as in some rows of MATH
    bare = re.finditer(r"\\(?:boxed|fbox)\s+(-?[\w./]*\w)", text)
    return sorted([*boxes, *((box.start(), box.end(), box[1]) for box in bare)])


_BETWEEN = re.compile(r"[\s$]{0,9}(?:,|,?\s?\b(?:and|or)\b)[\s$]{0,9}")


def _last_box(text: str) -> str | None:
    r"""The text of the last box, or of all that a comma, "and" or "or" joins: `\boxed{6} or \boxed{9}` is `6, 9`."""
    boxes = _boxes(text)
    answer, start = None, len(text)
    for begin, end, inside in reversed(boxes):
        if answer is not None and not (end <= start and _BETWEEN.fullmatch(text[end:start][:30])):
            break
        answer, start = inside if answer is None else f"{inside}, {answer}", begin
    return answer


# --- The lenient rule ---------------------------------------------------------------------------------------------

MAX_TEXT = 10_000  # only this many characters at the end of a text are searched

# What comes before a conclusion, and what ends it
_SAID = re.compile(r"(?i)\b(?:is|are|at|equals|answer|option|choice)\b:?\s|:\s")
_CLAUSE = re.compile(
    r"[.;!?](?=\s|$)|,\s(?!or\b|and\b)(?=[a-z]{2})|\s(?=(?:because|since|so|which|where|when|as|if|for)\b)"
)
_DELIMITED = re.compile(r"\$\$?([^$]+)\$\$?|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_MATHEMATICS = re.compile(r"[0-9=<>^]|\\[a-zA-Z{]|[-+*/]\s?[A-Za-z(]|^\[")
_MORE_THAN_NUMBERS = re.compile(r"\\[a-z]|\^|[0-9]!(?=[-+*/]|$)|^\||^[(\[{\\\]].*[,;]")  # roots, powers, tuples
_VARIABLES = re.compile(  # n(n + 1), 3x = 6 and x = 1, y = 2, but not 5 m + 3 m = 8 m
    r"(?<![A-Za-z])(?![mgshlL])[A-Za-z]\s?[-+*/(]|[0-9](?![mgshlLkKMB])[A-Za-z](?![A-Za-z])[^=]*=|=.*,.*="
)

_GREEK = re.compile(r"\\[A-Z][a-z]+")  # \Delta is not \delta

# Before a number: it is denied, and what was said earlier counts; or it is a part of what is said, and nothing counts
_FILLERS = (
    r"(?:\s(?:possibly|really|actually|simply|just|quite|even|going|to|be|been|have|equal|equals|the|exactly|answer|a|any"
    r"|necessarily|true|correct|that|it|is|was|think|believe|say|it['’]s))*"
)
_DENIALS = (
    rf"(?:\b(?:not|never|cannot|neither|nor)|n['’]t){_FILLERS}"
    rf"|\b(?:impossible|false|untrue|wrong|incorrect|unlikely|doubtful){_FILLERS}"
    r"|\b(?:except|excluding|besides|unless|unlike|without|(?:apart|aside) from|ignore|reject|rule out|doubt|hardly"
    r"|no (?:longer|way)|(?:anything|everything|nothing|all|none|number|value) but)"
    r"(?:\s(?:for|that|the|answer|it|it['’]s|is))*"
    r"|\b(?:wrong|incorrect)(?:\s(?:answer|value))?(?:\s(?:is|was|would be))?:?"
    r"|\b(?:(?:rather|other) than|instead of|different from|differs? from|far from|unequal to|rounded from|up from"
    r"|compared? (?:to|with))(?:\s(?:be|the|more|obvious))*"
    r"|\bout of(?:\sthe)?|\b(?:left|remain|remaining) of(?:\s(?:the|her|his|their|its))?"
)
_PARTS = (
    r"\b(?:(?:less|fewer|more|greater|larger|smaller|bigger|lower|higher) than(?: or equal to)?|at (?:least|most)"
    r"|up to|between\s\S+\sand|exceeds?|below|above|under|over|beyond|past|until|through|nearly|almost|close to"
    r"|starting from|as (?:many|few) as|short of|(?:minimum|maximum)(?: of)?|plus|times|divided by|multiplied by|per"
    r"|mod|modulo|base|choose|raised to|to the(?: power(?: of)?)?|every|(?:[0-9]+|one) in|after|before|next to"
    r"|(?:plus or )?minus|negative|twice|thrice|double|triple|divisible by|divides|from\s\S+\sto)(?:\sthe)?"
    r"|\b(?:half|twice|double|triple)(?:\s[a-z]+){1,2}\s(?:is|equals)"
    r"|\b(?:half|halves|thirds?|quarters?|fourths?|fifths?|tenths?|square|cube|root|factors?|multiples?|divisors?"
    r"|digits?|reciprocal|inverse|opposite|negative|logarithm|percent|successor|some|one|any|most|(?<=[0-9] )[a-z]+)"
    r"\sof(?:\s(?:the|all|her|his|their|its))?|[0-9]\s?%?\sof(?:\s(?:the|her|his|their|its))?"
)
_TIES = (  # signs
    r"\\[pm]m|\\sqrt(?:\[3\])?|[\^<>_]|!=|\\ne|[<>]=|[0-9]:|\b0[xob]|(?<![A-Za-z])[A-Za-z]{1,2}\s?[-+*/]"
    r"|[A-Za-z]{1,3}[-+*/]|[!'\]]\s?[-+*/]|_[0-9a-z]\s?[-+*/]|[A-Za-z]\([^()]{0,20}\)\s?[-+*/]"
)
_BEFORE = re.compile(rf"(?i)(?:{_DENIALS}|{_PARTS}|{_TIES})\s*[{{$(]*$")
_PART_OF = re.compile(rf"(?i)(?:{_PARTS}|{_TIES})\s*[{{$(]*$")
_DENIED = (  # after an answer: is wrong, cannot be right
    r"(?:(?:is|was|are|were|seems?|looks?|would be)\s(?:clearly\s|obviously\s|just\s|a\s|the\s)?"
    r"(?:not|never|wrong|incorrect|impossible|false|too|unlikely|excluded|invalid|absurd|no|ruled|rejected|extraneous"
    r"|half|twice|double|less|more|greater|square|cube)\b"
    r"|(?:has been|must be) (?:ruled|rejected|excluded)\b|contradicts?\b"
    r"|(?:is|was|are|were|do|does|did|ca|could|wo|would|should)n['’]t\b|can\s?not\b"
    r"|(?:does|did|will|would|could) not\b|fails?\b)"
)
_UNITS = rf"(?:{SHORT_UNITS}|am|pm|[mgshlL](?!\s?[-+*/=^(]\s?[0-9A-Za-z(]))"
_WORDS = r"(?:a|I|is|in|of|to|or|at|as|if|we|he|so|by|an|no|on|up|it|my|us|me|be|do|go|sq|cu)"
_AFTER = re.compile(  # a variable, but not 72cm; a power; 72:00; a relation; 72/x, 72 + x; 72 dozen; 72 is wrong
    rf"(?!{_UNITS}\b)[A-Za-z]{{1,2}}(?![A-Za-z])|\s{{1,3}}(?!(?:{_UNITS}|{_WORDS})\b)[A-Za-z]{{1,2}}(?![A-Za-z.'])"
    r"|\s?(?:abc|xyz|bil|mil)\b|[‰'\"]"
    r"|\}?\s?(?:\^|_|\\(?:sqrt|pi|pm))|:[0-9]|\s?[<>]|/?[0-9]|\s?/\s?(?![mgshlL]\b)[A-Za-z](?![A-Za-z])"
    r"|\s?[-+*]\s?[A-Za-z]{1,3}(?![A-Za-z]|\s[A-Za-z]{2})|\([A-Za-z]|[-+](?=\s|$)|-(?:fold|digit|year|sided)|[万億千百十]"
    rf"|\s{OTHER_WORDS}|th root|\?\s*(?:$|\?|[Nn]o\b)|[$)]*\s(?:(?!which|that|and|who|so)[a-z]+\s)?{_DENIED}"
)
# Two numbers that are two answers: `72 or 71`, `72, no 71`, `71, 72`
_OR = r"\b(?:or|no|nope|maybe|perhaps|possibly|wait|actually|vs)\b"
_HEDGE = re.compile(rf"(?:\s+[a-z]+){{0,3}}[\s,;:?($-]*{_OR}(?:[\s,;:?($]|{_OR}|\b(?:it|is|I|mean)\b)*")
_STATED = re.compile(r"(?i)\banswer is[^.!?\n]*[0-9][^!?\n]*?[.!](?=\s)")
_CORRECTS = re.compile(
    r"(?i)\b(?:wait|no|not|actually|correct(?:ion|ed|ing)?|instead|should|oops|sorry|check|answer|so)\b"
)
_AND = re.compile(r"\s*(?:[,;&]|,?\s?and)\s*")
_ONLY_NUMBERS = re.compile(rf"(?:[\s,;|&?!().:$\[\]/-]|{_OR}|\b(?:and|either|both|between|from|to|not)\b)*")
_COUNTED = re.compile(r"(?:\s?[A-Za-z]+(?:\s?\^\{?[0-9]\}?)?){1,4}(?:/[A-Za-z]+)?")  # the words after a number
# 5 left after 3 days: how long it took
_ADJUNCT = re.compile(r"(?<=[a-z])\s+after\s+[0-9]+\s+(?:second|minute|hour|day|week|month|year)s?[\s.]*$")

# Words that deny a marked answer: before its mark (is not \boxed{72}), after it (\boxed{72} is wrong), or in the next
# sentence (Wait, that's incorrect). A noun between is what is counted: \boxed{5} answers were wrong
_OPENS = r"[*$ ]*(?:\s*(?:\\[(\[]|\$\$)\s*)?(?:(?:<answer>|####|\\(?:boxed|fbox)\s?\{)\s*)?[*$ ]*"  # on the same line
_CLOSES = r"(?:</answer>|\\[)\]]|[}*$\s])*+"
_DENIES = re.compile(
    r"(?i)(?:(?<!than )(?<!or )\bnot|n['’]t|\bcannot)(?:\sbe)?(?:\sthe(?:\scorrect|\sright)?\sanswer)?"
    rf"{_OPENS}\Z"
)
_FALSE = r"(?:[a-z]+ly\s)?(?:wrong|incorrect|a mistake|not (?:right|correct|the (?:right |correct )?answer))\b"
_FALSE += r"(?!\s(?:to|only|if|unless)\b)"
_REFUSED = re.compile(
    rf"(?i){_CLOSES}(?:(?:is|was)\s{_FALSE}|can(?:not|['’]t) be (?:right|correct)\b|[.,;:!?…(–—-]*+\s*+"
    r"(?:(?:but|wait|no|hmm|oh|oops|sorry|actually|however|unfortunately)\b[,.!…\s]*+)*+"
    rf"(?:(?:that|this|it|which)(?:\sanswer)?(?:['’]s|\sis|\swas)\s{_FALSE}"
    r"|that (?:isn['’]t|can['’]t be) (?:right|correct)\b))"
)


def _denied_at(text: str, answer: str, gold: str) -> int | None:
    """Return where a marked answer ends if the words beside its mark deny it, else None.

    A letter names an option, which may be the wrong one that a question asks for.
    """
    *_, found = None, *re.finditer(rf"(?i)(?:>|####|[{{:]|\bis)[\s$*]*({re.escape(answer)})", text)
    if not (answer and found) or (len(gold) == 1 and gold.isalpha()):
        return None
    denied = _DENIES.search(text[max(found.start(1) - 60, 0) : found.start(1)]) or _REFUSED.match(text, found.end())
    return found.end() if denied else None


def is_right(text: str, gold: str, pattern: str = "xml") -> bool:
    r"""The lenient rule: True if the answer equals the gold answer, however it is written. Never raises.

    The same text is right up to case, spaces and a final full stop. If the gold answer is a number or mathematics, any
    text with the same value is right. The answer is taken from the pattern's mark, else from the last mark of any kind
    (a box, "Answer:", ####, tags), else from the conclusion of the text. Two different answers are wrong. So is one
    that the words beside its mark deny: `not \boxed{72}`.

    >>> is_right("So it is $1,000.", "1000"), is_right("<answer>Paris.</answer>", "paris"), is_right("no idea", "7")
    (True, True, False)
    >>> is_right(r"\boxed{\frac{1}{2}}", "0.5"), is_right("(7,2)", "(1,2)"), is_right("72 or 71", "72")
    (True, False, False)
    """
    marked = find_answer(text, pattern)
    if marked and text != gold and (end := _denied_at(text, marked, gold)):
        return last_marked(text[end:]) is not None and same_answer(text[end:], gold)
    answer = extract_answer(text, pattern)
    return gold in (text, answer) or same_answer(answer, gold, text)


def same_answer(answer: str, gold: str, text: str = "") -> bool:
    r"""Apply the lenient rule to an extracted answer. Never raises.

    Args:
        answer: a number or formula, or a sentence that ends with one. A mark inside it counts.
        gold: the gold answer.
        text: the whole completion; its last number counts if the answer has none.

    >>> same_answer("so it is $1,000.", "1000"), same_answer("72 or 71", "72"), same_answer("Paris.", "paris")
    (True, False, True)
    >>> same_answer(r"x = \frac{1}{2}", "0.5"), same_answer("(7,2)", "(1,2)"), same_answer(r"\sqrt{18}", r"3\sqrt{2}")
    (True, False, True)
    """
    if len(gold) > MAX_TEXT:
        return False
    answer = answer[-MAX_TEXT:]
    if text.strip() and not answer.strip():
        return False  # its mark is empty
    marked = last_marked(answer)
    if marked and _denied_at(answer, marked, gold):
        return False
    answer, wanted = clean(answer if marked is None else marked), clean(gold)
    for stated in _STATED.finditer(answer):  # "The answer is 73. Some might say 72."
        if not _CORRECTS.search(answer[stated.end() :]):
            answer = answer[: stated.end()]
            break
    kind = kind_of(gold)
    other_case = kind == "mathematics" and both_cases(answer + wanted)
    other_case |= _GREEK.findall(answer) != _GREEK.findall(wanted)
    if plain(answer) == plain(wanted) and not other_case:
        return True
    if amounts := quantities(wanted):
        return amounts in map(quantities, (answer, *_concluded(answer)))
    if kind == "text":
        return _same_text(answer, wanted)
    if kind == "number" and is_formula(answer) and _VARIABLES.search(answer):
        return same(read(answer), read(wanted))
    if kind == "number" and is_formula(answer) and "=" in answer and same(read(answer), read(wanted)):
        return True  # 72 = 70 + 2
    for candidate in (answer, *_concluded(answer)):
        if is_formula(candidate) and (kind == "mathematics" or _MORE_THAN_NUMBERS.search(candidate)):
            meaning = read(candidate)
            if meaning is not None or (candidate is answer and "\\" in answer):
                return same(meaning, read(wanted)) and _same_unit(candidate, wanted)
    if kind == "mathematics":
        return False
    if quantities(answer):
        return False  # 5 feet 6 inches is not 6
    meaning = read(answer) if read_number(answer) else _last_number(answer)
    if meaning is None and not NUMBER.search(answer):
        words = filter(None, map(read_number, _concluded(answer)))
        meaning = next(words, None) or _last_number(clean(text[-MAX_TEXT:]))
    return same(meaning, read(wanted))


def _same_unit(answer: str, gold: str) -> bool:
    """True unless both have a unit and the units differ."""
    one, other = (split_unit(re.sub(r"\$|\\[()\[\]]", "", text))[1] for text in (answer, gold))
    if one == "degree" and not other and r"\pi" in gold:
        return False
    return not (one and other) or one == other


@functools.lru_cache(maxsize=2**14)
def kind_of(gold: str) -> str:
    r"""Return how a gold answer is compared: as number, mathematics or text.

    >>> [kind_of(gold) for gold in ("1,000", "5 cm", r"\frac{1}{2}", r"3\sqrt{2}", "(1,2)", "12:30", "Paris")]
    ['number', 'number', 'number', 'mathematics', 'mathematics', 'text', 'text']
    """
    text = clean(gold) if len(gold) <= MAX_TEXT else ""
    if NO_FORMULA.search(text):
        return "text"
    if read_number(text):
        return "number"
    return "mathematics" if is_formula(text) and _MATHEMATICS.search(text) else "text"


def plain(text: str) -> str:
    """Normalize a clean text for comparison: no case, redundant spaces, quotes or final full stop.

    >>> plain(' "New  York". '), plain("( 1, 2 )"), plain("9 a.m."), plain("Mon day")
    ('new york', '(1,2)', '9 am', 'mon day')
    """
    text = re.sub(r"\b([ap])\.\s?m\b\.?", r"\1m", text.casefold().replace("\\", ""))
    text = re.sub(r"(?<=[0-9]):00\s?(?=[ap]m\b)|(?<=[0-9])(?=[ap]m\b)", " ", text)  # 4:00 pm is 4 pm
    text = " ".join(text.strip().rstrip(".").strip("*$`").rstrip(".").split())
    if text[:1] in "\"'“‘":
        text = text.strip("\"'“”‘’").rstrip(".")
    return re.sub(r" (?=[^\w\s])|(?<=[^\w\s]) ", "", text)


_CHOSEN = re.compile(  # B is correct; the right option B is the answer
    r"(?:(?:the )?(?:correct |right )?(?:option|choice|answer) )?(.+?)"
    r" is (?:the )?(?:correct|right|answer)(?: answer| option| choice| one)?"
)
_PICKED = re.compile(  # I pick C; it must be C; so (C)
    r"\b(?:choose|pick|select|go with|it's|must be|so|is|answer|option|choice)\W{1,3}([a-j])\)?"
    r"(?=\W?$|[:,]\s?(?![a-j]\b)|\W?\()"
)
_LETTERS = re.compile(r"(?:both )?(?:[a-z]|\([a-z]\))(?:(?:[,&\s]|and)+(?:[a-z]|\([a-z]\)))+")


def _same_text(answer: str, gold: str) -> bool:
    """True if an answer is the gold text, ends with it, or chooses its letter: `(B)`, `B) 5`, `Option B`."""
    wanted = plain(gold)
    letter = re.fullmatch(r"[(\[]?([a-z])[).\]]?", wanted)
    for said in map(plain, (answer, _said(answer).split(". ")[0])):
        chosen = _CHOSEN.fullmatch(said)
        if (
            wanted == said
            or (letter and letter[1] == said.strip("()[]"))
            or (chosen and wanted.strip("()[]") == chosen[1].strip("()[]"))
        ):
            return True
        if wanted in ("yes", "no", "true", "false") and re.match(rf"{wanted}[,.;:](?![0-9])", said):
            return not re.search(r"\b(?:yes|no|true|false|but|however|or)\b", said[len(wanted) :])
        if _LETTERS.fullmatch(wanted) and _LETTERS.fullmatch(said):  # A and C, in any order
            return sorted(re.findall(r"\b[a-z]\b", said)) == sorted(re.findall(r"\b[a-z]\b", wanted))
        option = re.match(r"\(?([a-z])(?:[).:]|$)(.*)", said, re.DOTALL)
        if letter and option and letter[1] == option[1]:
            return not re.search(rf"\b[a-j](?:[).:]|$)|\b(?:or|and|not)\b|{_DENIED}", option[2])  # not: B) or C)
    picked = _PICKED.search(plain(answer))
    return bool(letter and picked and letter[1] == picked[1])


def _said(text: str) -> str:
    """Return the text after the last "is" or colon; nothing if the text denies it."""
    said = _SAID.split(text)[-1]
    return "" if _BEFORE.search(text[: len(text) - len(said)][-40:]) else said


def _concluded(answer: str) -> Iterator[str]:
    """Yield possible conclusions of a text: after its last "is" or colon, then its last formula in dollar signs."""
    end = answer[-500:]
    yield _CLAUSE.split(_said(end), maxsplit=1)[0].strip(" .$")
    formulas = [part for part in _DELIMITED.finditer(end) if not _BEFORE.search(end[: part.start()])][-2:]
    hedged = len(formulas) == 2 and _HEDGE.fullmatch(end[formulas[0].end() : formulas[1].start()])
    if formulas and not hedged and not _AFTER.match(end, formulas[-1].end()):
        yield next(filter(None, formulas[-1].groups())).strip()


def _last_number(text: str) -> Number | None:
    """Return the number at the end of a clean text; None if it ends with two, `72 or 71`, or in a formula."""
    text = with_slashes(_ADJUNCT.sub("", text[-500:]))
    text = re.sub(r"([0-9][A-Za-z ]{0,30})\([^()]*[-+*/=][^()]*\)[\s.]*$", r"\1", text)  # 72 (48 + 24) is 72
    powers = re.sub(r"(?<=[A-Za-z])\s?\^\{?-?[0-9]\}?", lambda power: " " * len(power[0]), text)  # 72 cm^2 is 72
    backwards = list(NUMBER.finditer(powers))[::-1]
    if backwards and _PART_OF.search(text[: backwards[0].start()][-40:]):
        return None
    stated = (match for match in backwards if not _BEFORE.search(text[: match.start()][-40:]))
    two = next(stated, None)
    one = next(stated, two)
    if one is None or two is None or max(len(one[0]), len(two[0])) > 100 or _AFTER.match(powers, two.end()):
        return None
    is_list = len(powers) < 200 and _ONLY_NUMBERS.fullmatch(NUMBER.sub("", powers).lower())
    between = powers[one.end() : two.start()]
    hedged = is_list or _HEDGE.fullmatch(between) or _AND.fullmatch(between)
    if hedged and not same(number_of(one), number_of(two)):
        return None
    counted = _COUNTED.match(text, two.end())
    return number_of(two, unit_of(counted[0] if counted else ""))


def last_number(text: str) -> Fraction | None:
    """Return the value of the number at the end of a text; None without one, or if the text ends with two.

    >>> last_number("He has $1,000.50 left."), last_number("18-5"), last_number("= -5"), last_number("72 or 71")
    (Fraction(2001, 2), None, Fraction(-5, 1), None)
    """
    number = _last_number(clean(text[-MAX_TEXT:]))
    return number.value if number else None
