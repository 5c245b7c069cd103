"""Kinds of words and what the rules ask of them: the kinds of lexicon.py, joined to what a rule needs, and phrases."""

from collections.abc import Iterable

from exact_answers import units
from exact_answers.lexicon import WORDS

# --- Verbs -----------------------------------------------------------------------------------------------------------

COPULAS = WORDS["copula"]
AUXILIARIES = WORDS["auxiliary"]
VERBS = WORDS["verb"]
HAVING = WORDS["having"]
STATING = WORDS["stating"]
SAYING = WORDS["saying"]
GETTING = WORDS["getting"]
ASSERTING = WORDS["asserting"]
LINKING = WORDS["linking"]
STAYING = WORDS["staying"]
TRIALS = WORDS["trial"]
NEEDING = WORDS["needing"]
OPERATIONS = WORDS["operation"]
CONTINUES = WORDS["beginning-of-work"]
ASKING = WORDS["asking"]
WOULD = WORDS["would"]
UNREAL = WORDS["unreal"]

# --- Denials, doubts, retractions ------------------------------------------------------------------------------------

DENYING = WORDS["denial"]
NO = WORDS["no"]
FALSE = WORDS["false"]
WRONG = WORDS["wrong"]
JUDGING = WORDS["judging"]
REFUSALS = WORDS["refusal"]
RETRACTIONS = WORDS["retraction"]
NOT_RETRACTING = WORDS["not-retracting"]
RESTRICTING = WORDS["restricting"]
EVERYTHING = WORDS["everything"]
UNSURE = WORDS["unsure"]
PAST = WORDS["past"]
NEAR = WORDS["near"]
ABOUT = WORDS["about"]
CONDITIONS = WORDS["condition"]
UNDONE = WORDS["undoing"]

# --- What supports an answer, or is beside it ------------------------------------------------------------------------

APPROVING = WORDS["approving"]
ASSERTED = WORDS["asserted"]
PROPERTIES = WORDS["property"]
EXPLAINING = WORDS["explaining"]
WANTED, ANSWERING, OCCURRING = WORDS["wanted"], WORDS["answering"], WORDS["occurring"]
WORKING = WORDS["working"]
CERTAINTY = WORDS["certainty"]
OTHERS = WORDS["other"]
DOUBTFUL = WORDS["doubtful"]

# --- What points, and who speaks -------------------------------------------------------------------------------------

POINTING = WORDS["pointing"]
IT = WORDS["it"]
IS = WORDS["is"]
OWN = WORDS["own"]
FIRST_PERSON = WORDS["first-person"]
PRONOUNS = WORDS["pronoun"]
FOREIGN_SUBJECTS = WORDS["foreign-subject"]
ARTICLES = WORDS["article"]
AFTER_ONE = WORDS["after-one"]
RELATIVE = WORDS["relative"]

# --- What joins clauses and phrases ----------------------------------------------------------------------------------

CONNECTING = WORDS["connecting"]
CORRECTING = WORDS["correcting"]
PREMISES = WORDS["premise"]
ALSO_PREPOSITIONS = WORDS["premise-or-preposition"]
REASONS = WORDS["reason"]
CONCEDING = WORDS["conceding"]
OR = WORDS["or"]
CONJUNCTIONS = WORDS["conjunction"]
ENDING = WORDS["ending"]
BESIDE = WORDS["beside"]
PHRASING = WORDS["phrasing"]
BEGINNING = WORDS["beginning"]
PREPOSITIONS = WORDS["preposition"]
PLACING = WORDS["placing"]
PART_OF = WORDS["part-of"]
PERIODS = WORDS["period"]

# --- Nouns -----------------------------------------------------------------------------------------------------------

ANSWERS = WORDS["answer"]
TOTALS = WORDS["total"]
TOTAL_ADJECTIVES = WORDS["total-adjective"]
OPTION_NOUNS = WORDS["option"]
STEPS = WORDS["step"]
AFTER_VALUE = WORDS["after-value"]
COUNTERS = WORDS["counter"]
PLURALS = WORDS["plural"]
LINKS = WORDS["link"]
WHOLE = WORDS["whole"]

# --- What makes another number ---------------------------------------------------------------------------------------

COMPARING = WORDS["comparing"]
ALTERING = WORDS["altering"]
ALTERING_OF = WORDS["altering-of"]
BOUNDS = WORDS["bound"]
CODE = WORDS["code"]

# --- Joined kinds, and signs --------------------------------------------------------------------------------------

HEDGES = WORDS["hedge"] | UNSURE
RESULTS = WORDS["result"] | CONNECTING | CORRECTING  # words before which an earlier number was a step
ALTERNATIVES = WORDS["alternative"] | OR | {"|", "/"}
ADDING = WORDS["and"] | {"&"}
JOINING = (OR | ADDING) - {"y", "o"}  # letters of formulas, too
TYING = ALTERNATIVES | ADDING | {"i.e.", "namely"}
SPLITTING = WORDS["splitting"] | CONNECTING | PREMISES | ADDING | (ALTERNATIVES - {"o", "|", "/", "或", "或者"})
DETERMINERS = WORDS["determiner"] | ARTICLES
FILLERS = WORDS["filler"] | {"~"}
LABELS = WORDS["label"] | ANSWERS
POINTING_BACK = WORDS["pointing-back"] | POINTING | {",", ".", "!"}
BREAKING = WORDS["breaking"] | units.UNKNOWN_SCALES
CHANGING = BREAKING | COMPARING | {"so", "up", "thereabouts", "some", "something", "change"} - {"out", "per", "pi"}
PREDICATES = COPULAS | AUXILIARIES | {"seems", "looks", "would", "isn't"}
VERB_LEADS = {kind.removeprefix("with-"): found for kind, found in WORDS.items() if kind.startswith("with-")}
RECKONED = {"by", "adding", "multiplying", "dividing", "subtracting"}  # was found by adding
REPLACING = RESULTS | RETRACTIONS | NO | {"mean"}  # between two claims: the later one stands
ASIDE = PREPOSITIONS | PREMISES  # before a number that is beside the point
BARE_JOINTS = {",", "then", "=>", "->", "-->", "...", "..", "–", "—"}  # between two values that have no verb
TIED = PART_OF | ALTERNATIVES | ALTERING | {"and"}  # directly before a number it is not beside the point
TRANSPARENT = ARTICLES | FILLERS | TOTAL_ADJECTIVES
SPOILING = OPERATIONS | ALTERING | {"than"}
GOING_ON = COPULAS | CONJUNCTIONS | DENYING | {"of"}  # at the end of a line that goes on
REFUTING = FALSE | REFUSALS
REFUSING_WORDS = DENYING | REFUTING | HEDGES | RETRACTIONS | PAST
_HARMLESS = (
    "approving explaining linking connecting correcting result premise stating getting and ending own step needing",
    "copula auxiliary article determiner filler total total-adjective pronoun preposition conjunction answer label",
    "verb comparing about it is beside would pointing neutral option after-value counter property",
)
HARMLESS = set().union(*(WORDS[kind] for kind in " ".join(_HARMLESS).split())) - REFUSING_WORDS  # beside an answer

# --- Phrases ------------------------------------------------------------------------------------------------------

AFFIRMING = (
    "no doubt", "not only", "without doubt", "without a doubt", "beyond doubt", "none other than", "nothing but",
    "of course", "without question", "without any question", "no question", "nothing other than", "beyond a doubt",
    "in no particular order", "in no special order", "beyond any doubt", "there is no doubt", "without any doubt",
)  # fmt: skip
RETRACTING_PHRASES = (
    "take that back", "take it back", "never mind", "just kidding", "ignore that", "edit :", "update :",
    "scratch that", "strike that", "second thought", "hold on", "i mean", "off by one", "no ,", "let me re",
    "one moment",
)  # fmt: skip
NUMBER_OF = (" number of ", " amount of ", " fraction of ", " percentage of ", " share of ", " total of ")
EXAMPLES = (  # before a mark that shows a form
    "for example", "for instance", "e.g.", "like this", "like so", "such as", "should look like", "one might",
    "one could", "you might", "your reply", "your response", "your answer should", "use the format",
)  # fmt: skip
PASSING = (  # of an answer: it does not stay
    "at first", "for now", "to start with", "to begin with", "in theory", "up to now", "so far", "at best", "at worst",
    "give or take", "in principle", "for the moment",
)  # fmt: skip
LEFT_OVER = (  # after a value: it is a step of unfinished work
    "need to", "needs to", "have to", "has to", "must be", "remains to", "to be added",
)  # fmt: skip
COURTESIES = (  # sentences that close an answer
    "let me know", "hope this", "hope that", "hope it", "feel free", "thank you", "thanks", "you're welcome",
    "good luck", "have a great", "have a nice", "have a good", "happy to help", "glad to help", "anything else",
    "any questions", "more questions", "other questions", "need further", "need more help", "need any", "need help",
    "please ask", "best regards", "good job", "great job", "well done", "that's it", "that's all", "that is all",
    "makes sense", "the end", "nothing else", "we are done", "we're done", "i'm done",
)  # fmt: skip


def any_of(lows: Iterable[str], table: set[str]) -> bool:
    """True if one of these words is in a table."""
    return not table.isdisjoint(lows)


def denies(low: str) -> bool:
    """True for a word that denies, in small letters: not, isn't, kein."""
    return low in DENYING or low.endswith("n't")


def is_harmless(low: str) -> bool:
    """True for a word that a sentence about an answer may have: none that denies, doubts, takes back or is unknown."""
    return (low in HARMLESS or (low.endswith("est") and len(low) > 5)) and not denies(low)


def denies_in(lows: Iterable[str]) -> bool:
    """True if a word denies, and does not merely restrict: not, but no without."""
    lows = list(lows)
    return any(
        denies(low) and low not in RESTRICTING and lows[place - 1 : place] != ["with"]
        for place, low in enumerate(lows)
    )


def is_plural(low: str) -> bool:
    """True for a word that looks like the plural of a noun."""
    return (low.endswith("s") and not low.endswith(("ss", "us", "is"))) or low in PLURALS
