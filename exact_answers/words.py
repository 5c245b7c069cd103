"""Words that say how a number or an answer is meant, by their kind: tables of English, and of what answers need of
German, French, Spanish, Chinese and a few other languages. A sentence is read by these kinds alone (prose.py).
"""

from collections.abc import Iterable, Sequence

from exact_answers import units
from exact_answers.writing import Token, get, vocabulary

# --- Denials, by language -----------------------------------------------------------------------------------------

DENIALS = {
    "English": vocabulary(
        "not never cannot neither nor none nobody nothing nowhere without hardly scarcely barely no except",
        "excluding",
        "besides unlike unless lest isnt arent wasnt dont doesnt cant wont aint",  # and each n't
    ),
    "German": vocabulary("nicht kein keine keinen keiner keines nie niemals weder ohne außer"),
    "French": vocabulary("pas jamais aucun aucune ni sans sauf ne n'est n'a n'y"),
    "Spanish": vocabulary("no nunca jamás ninguno ninguna tampoco sin excepto salvo ni"),
    "Chinese": vocabulary("不 没 非 否 未 无 別 别 勿"),
    "Arabic": vocabulary("ليس ليست لا"),
    "Hindi": vocabulary("नहीं"),
    "Japanese": vocabulary("無 ではない ではありません じゃない"),
    "Korean": vocabulary("아닙니다 아"),
    "Persian": vocabulary("نیست"),
    "Portuguese and Italian": vocabulary("não non nem né"),
    "Thai": vocabulary("ไม่ ไม่ใช่"),
    "Russian": vocabulary("не нет ни"),
}
DENYING = set().union(*DENIALS.values())
FALSE = vocabulary(
    "wrong incorrect false untrue impossible invalid mistaken erroneous unlikely doubtful absurd unacceptable",
    "inaccurate rejected excluded ruled extraneous nonsense bogus misleading distractor trap mistake error",
    "misconception falsch faux fausse incorrecto incorrecta falso falsa erróneo 错 錯 неверно неправильно",
)
REFUSALS = vocabulary(  # verbs that refuse what comes after them
    "exclude excludes reject rejects eliminate eliminates eliminated ignore doubt doubts rule discard",
    "dismiss",
    "avoid deny denies refute disprove disregard omit cross differs differ exceeds exceed surpasses fails fail",
    "failed",
    "contradicts contradict violates disagree disagrees",
)
AFFIRMING = ("no doubt", "not only", "without doubt", "without a doubt")
NO = vocabulary("no nein non")
WRONG = vocabulary("wrong incorrect mistaken false")  # that is wrong: it takes back what was said
RETRACTIONS = vocabulary(
    "wait oops sorry correction correcting nope mistake error recompute recalculate recheck reconsider redo meant",
    "hmm",
    "rather whoops ups apologies apologize miscalculated miscounted misread perdón desolé entschuldigung",
)
RETRACTING_PHRASES = (
    "take that back", "take it back", "never mind", "just kidding", "ignore that", "edit :", "update :",
    "scratch that", "strike that", "second thought", "hold on", "i mean", "off by one", "no ,", "let me re",
    "one moment",
)  # fmt: skip
NOT_RETRACTING = vocabulary("only if unless earlier initially before previously originally")
POINTING = vocabulary("that this it which that's it's answer above calculation result")
POINTING_BACK = POINTING | vocabulary(
    "was the not a clearly definitely obviously can't cannot be wait , no but hmm actually oh however",
    "unfortunately to",
    "is isn't seems looks my previous first sorry oops . and !",
)
# A number is denied by a word of its subject only if the subject is the answer, and not "the number of wrong guesses"
NUMBER_OF = (" number of ", " amount of ", " fraction of ", " percentage of ", " share of ", " total of ")
REFUSED_BY = vocabulary(", ( — – - which that it this \\) *")  # before the words that refuse a marked answer
REFUSING = vocabulary(
    "is was be can't cannot isn't a the definitely clearly obviously certainly just not right correct answer"
)
ASSERTED = vocabulary("answer correct right true valid result solution case possible work")
EVERYTHING = vocabulary("anything everything nothing all any none every no")

# --- Doubts, premises, results ------------------------------------------------------------------------------------

UNSURE = vocabulary("might maybe perhaps possibly vielleicht möglicherweise peut-être quizás quizá 可能 也许 或许")
HEDGES = UNSURE | vocabulary("could may guess guesses either whether tal probably likely could've könnte podría")
ABOUT = vocabulary("about approximately approx roughly around circa ca environ etwa ungefähr")
CONNECTING = vocabulary(
    "so thus hence therefore thereby consequently then giving making leaving meaning yielding totaling totalling",
    "which bringing result daher deshalb folglich donc alors ainsi entonces luego also 所以 因此 故",
)
CORRECTING = vocabulary("actually instead")
RESULTS = CONNECTING | CORRECTING  # words before which an earlier number was a step
RESULTS |= vocabulary("accordingly finally overall altogether combined ultimately means total now afterwards")
IT, IS = vocabulary("it it's this that that's"), vocabulary("is was should must be so thus now")
PREMISES = vocabulary(
    "because since if when whenever unless suppose assuming assume given while although though after before until",
    "whether once as where let considering starting despite weil da wenn parce puisque si porque cuando",
    "因为 如果",
)
ALSO_PREPOSITIONS = vocabulary("after before given once as where")  # after 3 days: no verb follows
STATING = vocabulary("follows means shows implies conclude find see know")  # it follows that
TRIALS = vocabulary("plugging plug substituting substitute setting set trying try testing")  # substituting x = 3
GETTING = vocabulary("get find obtain have see leads")  # what a trial gives is a claim
OR = vocabulary("or oder ou o 或 或者")
ALTERNATIVES = OR | vocabulary("alternatively vs versus either | /")
ADDING = vocabulary("and und et y &")
SPLITTING = (
    CONNECTING
    | PREMISES
    | ADDING
    | (ALTERNATIVES - {"o", "|", "/", "或", "或者"})
    | vocabulary("but which who that pero aber mais")
)
ENDING = vocabulary("because since if when so which")
BESIDE = vocabulary("to if when because for after before who that")
PAST = vocabulary("thought guessed assumed believed supposed initially originally earlier previously mistakenly")
OWN = vocabulary("i i'd we we'd this it that's above equation equations calculation math mathematics working")
SAYING = vocabulary(
    "say says think thinks believe believes claim claims argue argues guess guesses said suggest suggests insists",
)
WOULD = vocabulary("would i'd we'd she'd he'd they'd")
CONDITIONS = vocabulary("if unless")
UNDONE = vocabulary("if unless but however without had were")  # after "it would be 72": it is not
ASKING = vocabulary("is was isn't wasn't are aren't can could does")  # Is that right?
LEFT_OVER = (  # after a value: it is a step of unfinished work
    "need to", "needs to", "have to", "has to", "must be", "remains to", "to be added",
)  # fmt: skip
EXAMPLES = (  # before a mark that shows a form
    "for example", "for instance", "e.g.", "like this", "like so", "such as", "should look like", "one might",
    "one could", "you might", "your reply", "your response", "your answer should", "use the format",
)  # fmt: skip
CONTINUES = vocabulary("next step let let's now then first second third need we'll multiply divide subtract add")
STEPS = vocabulary("step schritt étape paso")
NEEDING = vocabulary(
    "need needs needed has have had going able must will want wants order left remain remaining plans has"
)

JUDGING = vocabulary("right correct wrong true incorrect")

# --- Words that make another number of one ------------------------------------------------------------------------

OPERATIONS = vocabulary(  # verbs of an unfinished sum
    "add adds added subtract subtracts subtracted multiply multiplies multiplied divide divides divided split share",
    "shared plus minus times squared cubed doubled tripled halved raised rounded compared sum",
)
ALTERING = vocabulary(
    "half twice thrice double triple quadruple doubled tripled halved reciprocal inverse opposite plus minus",
    "negative",
    "divisible logarithm modulo mod squared cubed halves",
)
ALTERING_OF = vocabulary(  # the square of, the digits of
    "square cube root factor factors multiple multiples divisor divisors digit digits successor predecessor third",
    "thirds",
    "quarter quarters fourth fifth sixth tenth logarithm power",
)
COMPARING = vocabulary(
    "more less fewer younger older taller shorter heavier lighter longer farther further faster slower higher lower",
    "cheaper bigger larger smaller greater ahead",
)
BREAKING = (
    vocabulary(  # after a number
        "than times plus minus squared cubed doubled halved tripled below above upwards maximum minimum max min",
        "short out",
        "modulo mod choose factorial point odd something grand score ish percentile ppm permille mille per until",
        "through",
        "st nd rd th half divided multiplied raised power greatest base pi mehr weniger moins más menos ni sur",
        "entre mal fois",
        "倍 半 多 余 餘 几 以上 以下 以内 veces dozens",
    )
    | units.UNKNOWN_SCALES
)
CODE = vocabulary("else lambda def elif")  # a program is no sentence
REASONS = vocabulary("because since as weil porque 因为")  # premises that state what they say
BOUNDS = {"most", "least"}
CHANGING = BREAKING | COMPARING | vocabulary("so up thereabouts some something change") - {"out", "per", "pi"}

# --- Words around a claim -----------------------------------------------------------------------------------------

COPULAS = vocabulary(
    "is are was were be been being equals equal became totals namely i.e. means gives",
    "it's that's there's he's she's here's what's total's they're we're",
    "lautet lauten ist sind war wären beträgt ergibt macht est sont était fait c'est es son era sería hay 是 为 為 有",
    "คือ คำตอบคือ är là adalah",
    "等于 得 了",
    "هو هي است है हैं это 는 은 は é è são",
)
AUXILIARIES = vocabulary(
    "does did do will would can could shall should must may might has have had having be been being is are was were"
)
PREDICATES = COPULAS | AUXILIARIES | vocabulary("seems looks would isn't")
FOREIGN_SUBJECTS = vocabulary("il elle on")  # elle a 72 euros
ARTICLES = vocabulary("a an the his her their its our my your this that these those")
DETERMINERS = ARTICLES | vocabulary("no each every any which")
AFTER_ONE = vocabulary("of day can must may who that might another way side time")
FILLERS = (
    vocabulary(
        "exactly precisely only just now still again simply actually indeed another additional extra",
        "altogether",
        "already currently both all up a an total overall together noch quite even itself",
        "finally clearly obviously insgesamt unos aproximadamente 约 大约 一 总 共 一共 总共 全部で 総計 총",
        "das back away home ~",
    )
    | ABOUT
)
TOTALS = vocabulary("total sum profit average score cost price value maximum minimum loss balance distance mean speed")
TOTAL_ADJECTIVES = vocabulary("grand combined daily weekly monthly net")
PRONOUNS = vocabulary(
    "him her them us me you it each everyone everybody himself herself themselves le les lui sie er es elle"
)
PREPOSITIONS = vocabulary(
    "of in on at to for from by with within without into onto over under between among during through per each",
    "every",
    "after before until since across along around about against via out off up down than as like toward towards",
    "upon",
    "if when while because so that who which whose where whom",
)
PLACING = vocabulary("in on at to for with")  # before an answer that is no sentence: at 60 mph
PART_OF = vocabulary("of by than over under from up")
CONJUNCTIONS = vocabulary("and or but nor yet either neither und oder aber et ou mais y o pero sino e")
ANSWERS = vocabulary(  # "the answer is 72" stands, whatever comes after it
    "answer answer's ans solution conclusion final antwort lösung réponse respuesta solución",
    "ответ الجواب उत्तर پاسخ risposta resposta 答案 答 답",
)
COUNTERS = vocabulary("つ 개 명 원 마리 권 살 분 시간 달러")  # Japanese and Korean; katakana is a noun
AFTER_VALUE = vocabulary("です である になります 입니다 이다 이에요 예요 が 가 이 答え 答 정답 답")
HAVING = vocabulary("has have had contains")
LABELS = ANSWERS | vocabulary("total result sum ergebnis résultat resultado 结果 итого всего")

_VERBS = """
have has had having | get gets got getting gotten | need needs needed | cost costs | spend spends spent | buy buys
| bought | make makes made | take takes took | pay pays paid | sell sells sold | eat eats ate | earn earns earned |
score scores scored | read reads | use uses used | weigh weighs weighed | receive receives received | save saves |
saved | collect collects collected | catch catches caught | run runs ran | give gives gave | win wins won | find |
finds found | drink drinks drank | pick picks picked | leave leaves left | see sees saw | walk walks walked |
contain contains contained | work works worked | plant plants planted | travel travels traveled travelled | drive |
drives drove | produce produces produced | become becomes | charge charges charged | bring brings brought | hold |
holds held | perform performs performed | raise raises raised | write writes wrote | lose loses lost | keep keeps |
kept | send sends sent | play plays played | cover covers covered | bake bakes baked | donate donates donated |
gain gains gained | represent represents | require requires required | carry carries carried | order orders ordered
| complete completes completed | watch watches watched | contribute contributes contributed | count counts counted
| sleep sleeps slept | grow grows grew | remove removes removed | draw draws drew | answer answers answered | put
puts | drop drops dropped | ride rides rode | wash washes washed | consume consumes | consumed | serve serves
served | purchase purchases purchased | paint paints painted | go goes went | climb climbs | climbed | lay lays
laid | want wants wanted | fit fits fitted | average averages averaged | jump jumps jumped | burn burns burned |
deliver delivers | own owns owned | chop chops chopped | lift lifts lifted | return returns | returned | hit hits |
cook cooks cooked | study studies | open opens opened | yield yields yielded | reach reaches | reached | harvest
harvests harvested | fill fills filled | last lasts | lasted | fly flies flew | cut cuts | fold | folds folded |
swim swims swam | visit visits visited | finish finishes finished | come comes came | feed feeds fed | place places
placed | pull pulls pulled | teach teaches taught | accommodate accommodates | deposit deposits | deposited | throw
throws threw | borrow borrows borrowed | owe owes owed | lend lends lent | rent rents rented | build builds built |
gather gathers gathered | invite invites invited | knit knits knitted | sew sews sewed | trade | trades traded |
remain remains remained | obtain obtains obtained | calculate calculated | compute computed | conclude | expect |
expects | show shows | measure measures measured | pack packs packed | hire hires | hired | employ employs employed
| type types typed | miss misses missed | start starts started | begin begins began | solve solves solved | attend
attends attended | enter enters | increase increases increased | decrease decreases | decreased | rise rises rose |
fall falls fell | afford affords | choose chooses | create creates created | provide | provides provided | include
includes included | generate generates generated | call calls | cycle cycles cycled | bike bikes biked | hike hikes
hiked | move moves moved | arrive arrives | gives is-left | lived lives | pass passes passed | stand stands stood |
store stores stored | supply supplies supplied | throw | turn turns | turned | share shares | clean cleans cleaned
| mow mows mowed | print prints printed | record records recorded | sign signs signed | slice slices sliced | do
does did doing mean | rounds round rounded | knock knocks knocked | plan | plans planned | drain drains drained
| kostet kosten verkauft hat haben bleiben bleibt verdient coûte | coûtent vendu vend ont reste restent gagne tiene
tienen vendió vende quedan queda cuesta | cuestan gana necesita 需要 | 剩 剩下 还剩 还剩下 赚 花 卖 买 要
bezahlt bezahlen kauft spart tem têm ha hanno 用 付 到 看 吃 走 读
"""
VERBS = set(_VERBS.replace("|", " ").split())
VERB_LEADS = {  # words between a verb and its number
    "to": vocabulary(
        "come comes came amount amounts add adds sum sums equal simplifies simplify reduces evaluates works",
        "increase",
        "increases increased decrease decreases decreased rise rises rose fall falls fell grow grows grew drops",
        "dropped",
        "rounds rounded round leads brings equates corresponds went goes gets boils converts equivalent",
    ),
    "by": vocabulary(
        "increase increases increased decrease decreases decreased rise rises rose fall falls fell drop drops",
        "dropped",
        "grow grows grew reduced changed went reduces",
    ),
    "for": vocabulary(
        "sell sells sold buy buys bought pay pays paid go goes get gets last lasts lasted run runs ran charge",
        "charges",
        "rent rents rented cost costs work works worked walk walks walked sleep sleeps slept wait waits waited live",
        "lives lived jog jogs jogged play plays played stay stays stayed",
    ),
    "at": vocabulary(
        "is are was were sells sold priced valued stands stood arrive arrives arrived start starts costs set meets",
        "leaves leave left departs begins began ends opens closes lands travels traveled travelled drives drove runs",
        "ran goes went moves moved flies flew walks walked traveling travelling driving",
    ),
    "with": vocabulary(
        "leaves left leave ends end ended remains started up begins finishes finished back comes him her them"
    ),
    "in": vocabulary("finishes finished ends ended done meet meets met arrives arrived completed"),
    "de": vocabulary("est sont était es son era é è"),
    "as": vocabulary("is get gets find have"),
    "out": vocabulary("turns comes works came worked"),
}

REPLACING = RESULTS | RETRACTIONS | NO | {"mean"}  # between two claims: the later one stands
REFUTING = FALSE | REFUSALS
TYING = ALTERNATIVES | ADDING | {"i.e.", "namely"}
ASIDE = PREPOSITIONS | PREMISES  # before a number that is beside the point
BARE_JOINTS = {",", "then", "=>", "->", "-->", "...", "..", "—", "–"}  # between two values that have no verb
TIED = PART_OF | ALTERNATIVES | ALTERING | {"and"}  # directly before it, it is not
TRANSPARENT = ARTICLES | FILLERS | TOTAL_ADJECTIVES
SPOILING = OPERATIONS | ALTERING | {"than"}
GOING_ON = COPULAS | CONJUNCTIONS | DENYING | {"of"}  # at the end of a line that goes on
NOT_COUNTED = (
    DENYING | REFUTING | HEDGES | COMPARING | PREPOSITIONS | CONJUNCTIONS | AUXILIARIES | BREAKING | COPULAS | ARTICLES
) - {"each", "per", "every", "of", "mistake", "error"}
_LINKS = vocabulary("of per each every the a an in his her their its this that de des d'")
_CLOSED_LINKS = _LINKS - {"of", "per", "each", "every", "de", "des", "d'"}  # they link only to total and all
_WHOLE = vocabulary("total all")
_MAX_COUNTED = 12  # tokens after a number that name what it counts


def any_of(lows: Iterable[str], table: set[str]) -> bool:
    """True if one of these words is in a table."""
    return not table.isdisjoint(lows)


def denies(low: str) -> bool:
    """True for a word that denies, in small letters: not, isn't, kein."""
    return low in DENYING or low.endswith("n't")


def is_kana_or_hangul(low: str) -> bool:
    """True for Japanese and Korean, of which few words are known: beside a number each must be in a table."""
    return "\u3040" <= low[0] <= "\u309f" or "\uac00" <= low[0] <= "\ud7a3"


def is_counted(token: Token) -> bool:
    """True if a word may name what a number counts: apples, but not dozen, than, wrong or x."""
    low = token.low
    if is_kana_or_hangul(low):
        return low in COUNTERS
    if token.kind == "han":
        return low not in BREAKING and low not in DENYING and low not in FALSE and low not in units.SCALES
    if token.kind != "word" or low in NOT_COUNTED or low in units.CARDINALS or low.endswith("n't"):
        return False
    if not low.isascii():
        return True
    return not token.glued and (len(low) > 2 or low == "us" or (len(low) > 1 and bool(units.symbol_of(token.text))))


def counted(tokens: Sequence[Token], place: int = 0) -> int:
    """Return the place after the words that a number counts: `red apples`, `bolts of fiber`, `dollars per day`."""
    end, nouns = min(len(tokens), place + _MAX_COUNTED), 0
    while place < end:
        token, after = tokens[place], get(tokens, place + 1)
        if token.text in ("/", "-"):
            taken = 2 if nouns and _is_compound(token, after) else 0
        elif token.kind == "word" and token.low in _LINKS:
            taken = _linked(tokens, place)
        else:
            taken = int(nouns < 5 and is_counted(token))
        if not taken:
            break
        place, nouns = place + taken, nouns + 1
    return place


def _is_compound(sign: Token, after: Token | None) -> bool:
    """True for the sign of words/section and of half-brothers."""
    word = after is not None and after.kind == "word" and after.low not in NOT_COUNTED
    return word and (sign.text == "/" or (sign.glued and after is not None and after.glued))


def _linked(tokens: Sequence[Token], place: int) -> int:
    """Return how many tokens link a counted word to the next: of the cake, per day, in total, of them, each."""
    end, low = place, tokens[place].low
    while end < len(tokens) and tokens[end].low in _LINKS | _WHOLE:
        end += 1
    if tokens[end - 1].low in _WHOLE:
        return end - place
    if low not in _CLOSED_LINKS and end < len(tokens):
        if is_counted(tokens[end]):
            return end - place
        if low == "of" and tokens[end].low in PRONOUNS:
            return end + 1 - place
    return int(low in ("each", "every"))


def are_counted(tokens: Sequence[Token]) -> bool:
    """True if tokens are nothing but the words that a number counts."""
    return bool(tokens) and counted(tokens) == len(tokens)
