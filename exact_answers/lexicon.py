"""The words of a sentence, each once, with all that it can be: of English, and of what answers need of German, French,
Spanish, Chinese and a few other languages. Sentences are read by these kinds alone.
"""


def vocabulary(*rows: str) -> set[str]:
    """Return the words of a table, which spaces separate."""
    return {word for row in rows for word in row.split()}


# What a word of a kind does to the numbers, letters and names beside it
KINDS = {
    "copula": "is, equals: what follows it is said of its subject",
    "auxiliary": "does, can, will, has",
    "verb": "what people, things and calculations do in a word problem: its object may be the answer",
    "wanted": "need, find: what is still to be done",
    "answering": "answered, wrote: of others it is their word",
    "occurring": "attained, occurs: it says where an answer stands",
    "having": "has, contains: of the answer it tells a property, such as 58 digits",
    "stating": 'shows, means: before a value or "that"',
    "saying": "says, thinks: of others it is their word, not the text's",
    "getting": "gets, finds: what a trial gives",
    "asserting": 'what "I" and "we" do with an answer that they stand by',
    "linking": 'confirms, matches: after "this" it supports the answer',
    "staying": "remains, fits: after a bare value it leaves it as it is",
    "trial": "plugging, setting: what comes after it is tried",
    "needing": "needs, wants: before an infinitive whose object may be the answer",
    "operation": "verbs of an unfinished sum: adds, divided",
    "beginning-of-work": "next, let's: the first word of a step",
    "asking": "is, can: the first word of a question",
    "would": "would, I'd",
    "unreal": 'had, were: after "if" and beside "would" it is not so',
    "denial": "not, never: in any language",
    "no": "no, nein: alone it takes back what was said",
    "false": "wrong, bogus",
    "wrong": "false, mistaken: after a pointing word it takes back what was said",
    "judging": "right, wrong: at the end of a question about the answer",
    "refusal": "verbs that refuse what comes after them: rejects, differs",
    "retraction": "wait, sorry: what was said before it is taken back",
    "not-retracting": "only, initially: a sentence with it takes nothing back",
    "restricting": "without, except: in an adjunct it denies nothing",
    "everything": 'anything, none: before "but"',
    "unsure": "perhaps: alone it is no answer",
    "hedge": "could, likely: it claims nothing for certain",
    "past": "thought, initially: it was so",
    "near": "almost, close",
    "about": "roughly",
    "condition": "if, unless",
    "undoing": 'but, had: after "it would be 72", it is not',
    "approving": "correct, required, even: said of an answer, it leaves it as it is",
    "asserted": 'right, possible: said of an answer with "not", it is denied',
    "property": 'prime, negative: said of an answer with "not", it stays',
    "explaining": "check, note: before sentences that show why",
    "working": "explanation: before work that ends with the answer again",
    "certainty": "confidence: before a share that is no answer",
    "other": "different, previous: the answer to something else",
    "doubtful": "possible, old: an answer among others",
    "pointing": "this, the answer: what was said",
    "pointing-back": "beside a pointing word, in a sentence that takes it back",
    "it": "it, that",
    "is": 'is, must, so: between "it" and a value',
    "own": "I, we, the equation: those who speak for the text",
    "first-person": "I, let's",
    "pronoun": "him, each",
    "foreign-subject": 'il, elle: before "a", which is a verb',
    "article": "the, my",
    "determiner": "no, each",
    "after-one": 'of, who: after "one", which is no number then',
    "relative": "that, who: it begins a clause about the word before it",
    "connecting": "so, then: an earlier number was a step",
    "correcting": "actually",
    "result": "finally, now: like connecting, at the start of a sentence",
    "premise": "because, if, given: what comes after it is no claim",
    "premise-or-preposition": "after, before: a premise only with a verb",
    "conceding": "although: what comes after it may deny the claim",
    "reason": "because: what comes after it supports the claim",
    "or": "in any language",
    "alternative": "either, vs",
    "and": "in any language",
    "conjunction": "but, yet",
    "ending": "because, which: it ends what is said of a value",
    "beside": "to, who: the verb after it has a subject of its own",
    "phrasing": "it begins a phrase after a claim",
    "splitting": "it begins a clause",
    "beginning": "with a capital it begins a sentence although no sign ended the one before",
    "preposition": "of, in, if",
    "placing": "in, for: before an answer that is no sentence",
    "part-of": "than, over: directly before a number it changes it",
    "filler": "exactly, in all: it leaves a value as it is",
    "period": 'weekend, summer: after "this"',
    "answer": "the answer, in any language: the sentence claims one",
    "label": "result, total: before a value",
    "total": 'cost, sum: before "of"',
    "total-adjective": "combined, weekly",
    "option": "choice, pick: before a letter",
    "step": "step: before its number",
    "after-value": "です: after a value it is a verb",
    "counter": "個: after a number in Japanese and Korean",
    "plural": "people: a plural without s",
    "comparing": 'more, older: after a number, with "than"',
    "altering": "half, twice: it makes another number",
    "altering-of": 'square: before "of"',
    "breaking": "after a number it makes another one: dozen, percentile, factorial",
    "bound": 'most, least: after "at"',
    "code": "def: a program is no sentence",
    "link": "of, per: between counted words",
    "whole": 'total, all: after "in"',
    "neutral": "a word that may stand beside an answer",
    "with-to": 'came, amounts: its number stands after "to"',
    "with-by": 'increased: after "by"',
    "with-for": 'sold: after "for"',
    "with-at": 'starts: after "at"',
    "with-with": 'ended: after "with"',
    "with-in": 'finished: after "in"',
    "with-de": 'est: after "de"',
    "with-as": 'gets: after "as"',
    "with-out": 'turns: after "out"',
}

# kind kind …: words that are of all these kinds, and of no other
_ROWS = """
copula: adalah became c'est called ergibt fait hay he's here's i.e. ist lauten lautet macht
    named namely she's sind there's they're total's totals war we're what's beträgt là sería são
    wären är это است هو هي है हैं คำตอบคือ คือ は 为 了 得 是 有 為 等于 는 은
copula auxiliary: been being
copula auxiliary asking pointing-back is with-at: was
copula auxiliary asking pointing-back is with-at with-as: is
copula auxiliary asking with-at: are
copula auxiliary unreal undoing with-at: were
copula auxiliary pointing-back is: be
copula verb linking: gives yields
copula stating linking result: means
copula linking staying: equals
copula staying approving with-to: equal
copula pointing it: it's
copula pointing it own: that's
copula pronoun with-de: es
copula with-de: era est son sont è é était
auxiliary: shall
auxiliary verb: did do having
auxiliary verb having getting asserting needing with-as: have
auxiliary verb having asserting needing unreal undoing: had
auxiliary verb having needing: has
auxiliary verb asking: does
auxiliary wanted needing is after-one: must
auxiliary needing: will
auxiliary asking unreal hedge: could
auxiliary asking after-one: can
auxiliary would: would
auxiliary unsure after-one: might
auxiliary hedge after-one: may
auxiliary is: should
verb: accommodate accommodates afford affords ate attend attended attends averaged averages bake
    baked bakes become becomes begin bezahlen bezahlt bike biked bikes bleiben bleibt borrow
    borrowed borrows bring brought build builds built burn burned burns call calls carried
    carries carry catch catches caught charged chooses chop chopped chops clean cleaned cleans
    climb climbed climbs collect collected collects consume consumed consumes contain contained
    contribute contributed contributes cook cooked cooks count counted counts cover covered
    covers create created creates cuesta cuestan cut cuts cycle cycled cycles deliver delivers
    deposit deposited deposits doing donate donated donates drain drained drains drank draw
    draws drew drink drinks drive earn earned earns eat eats employ employed employs enter
    enters expect expects fed feed feeds fill filled fills finds finish fitted fly fold folded
    folds gagne gain gained gains gana gather gathered gathers generate generated generates
    getting gotten ha haben hanno happened happens harvest harvested harvests hat held hike
    hiked hikes hire hired hires hit hits hold holds included includes intersect intersects
    invite invited invites jump jumped jumps kauft keep keeps kept knit knits knitted knock
    knocked knocks kosten kostet laid lay lays lend lends lent lift lifted lifts lose loses lost
    made measure measured measures miss missed misses move mow mowed mows necesita obtains
    occurred ont open opened ordered orders owe owed owes own owned owns pack packed packs paint
    painted paints pass passed passes perform performed performs picks place placed places plan
    planned plant planted plants print printed prints produce produced produces provide provided
    provides pull pulled pulls purchase purchased purchases puts queda quedan raise raises
    reached reaches read reads receive received receives record recorded records remained remove
    removed removes represent represents require requires reste restent return returned returns
    ride rides rode save saved saves saw scored scores sees send sends sent serve served serves
    sew sewed sews shares show sign signed signs slice sliced slices solves spart spend spends
    spent stand store stored stores studies study supplied supplies supply swam swim swims takes
    taught teach teaches tem threw throw throws tiene tienen took trade traded trades travel
    turn turned type typed types uses vend vende vendu verdient verkauft visit visited visits
    wash washed washes watch watched watches weigh weighed weighs win wins won writes yield
    yielded coûte coûtent têm vendió 买 付 到 剩 剩下 卖 吃 用 看 花 要 读 赚 走 还剩 还剩下 需要
verb wanted stating getting asserting with-as: find
verb wanted asserting needing: want
verb wanted asserting needing beginning-of-work property: need
verb answering: answered
verb answering asserting: wrote
verb occurring: occurs
verb having: contains
verb stating getting asserting beginning-of-work neutral: see
verb stating asserting: conclude
verb stating linking: shows
verb getting asserting: obtain
verb getting asserting with-for with-as: get
verb asserting: calculate calculated compute computed found gave give got obtained put reach solve solved use
    used write
verb asserting staying asserted pointing beginning answer: answer
verb asserting approving: wanted
verb asserting option: pick picked
verb asserting option breaking: choose
verb asserting with-for: go
verb asserting with-at: arrive
verb linking: completes
verb linking staying approving: makes
verb linking staying answer: answers
verb linking with-with with-in: finishes
verb staying: fit make
verb staying needing: remain
verb staying approving: fits
verb staying approving with-to with-for with-out: works
verb staying asserted with-for: work
verb staying with-with: remains
verb needing: needs order plans wants
verb needing approving: needed
verb needing with-at with-with: left
verb operation: share
verb operation approving with-to: rounded
verb operation breaking: raised
verb beginning-of-work: take
verb approving: complete required
verb property: include
verb total: average mean
verb total breaking: score
verb total with-for: cost
verb neutral with-for: last
verb with-to: brings come round rounds
verb with-to with-by: decrease decreased decreases dropped drops fall falls fell grew grow grows increase
    increased increases rise rises rose
verb with-to with-by with-at: went
verb with-to with-for with-at: goes
verb with-to with-for with-as: gets
verb with-to with-with with-out: comes
verb with-to with-out: came
verb with-by: drop
verb with-for: bought buy buys charge charges lasted lasts lived lives paid pay pays play played plays rent
    rented rents run sell sleep sleeps slept walk
verb with-for with-at: costs ran runs sells sold walked walks
verb with-for with-out: worked
verb with-at: began drives drove flew flies moved moves opens stands start starts stood traveled travelled
    travels
verb with-at with-with: begins leave leaves
verb with-at with-in: arrives meets
verb with-with: started
verb with-with with-in: finished
verb with-in: completed meet
verb with-out: turns
wanted approving: asked
occurring neutral: achieved attained
stating asserting: know
stating linking: follows implies
saying: argue argues believes claims insists said says suggest suggests thinks
saying asserting: believe claim say think
saying hedge: guess guesses
getting with-to: leads
asserting: derive derived determine determined double-checked report state submit trust
asserting operation beginning-of-work: divide multiply subtract
asserting operation beginning-of-work with-to: add
asserting approving: checked
asserting approving explaining neutral: verified
asserting explaining: confirm verify
asserting explaining beginning: check
asserting option: chose select selected
asserting neutral with-with: end
asserting with-to: simplify
asserting with-with with-in: ended
linking: agrees concludes proves
linking staying: satisfies
linking staying approving: matches
linking explaining: confirms
linking with-to: corresponds
staying: satisfy
staying approving: match
staying with-for: stay stays
trial: plug setting substitute testing try trying
trial neutral: plugging substituting
trial neutral with-at: set
needing: able going
needing neutral: remaining
operation: added compared divides multiplies shared split subtracted subtracts
operation label total with-to: sum
operation altering breaking: cubed doubled halved minus plus squared tripled
operation breaking: divided multiplied
operation breaking neutral: times
operation with-to: adds
beginning-of-work other: next second
beginning-of-work other pointing-back: first
beginning-of-work is result beginning filler: now
beginning-of-work first-person: let's we'll
beginning-of-work first-person premise beginning: let
beginning-of-work connecting phrasing beginning: then
beginning-of-work step: step
beginning-of-work altering-of: third
asking: aren't wasn't
asking pointing-back: isn't
would: he'd she'd they'd
would own first-person: i'd we'd
denial: aint arent aucun aucune barely cant doesnt dont excepto hardly isnt jamais kein keine
    keinen keiner keines lest n'a n'est n'y ne nem never nicht nie niemals ninguna ninguno
    nobody nothing nowhere nunca ohne pas salvo sans sauf scarcely sin tampoco unlike wasnt
    weder wont außer chưa chẳng değil jamás không não né не нет ни لا ليس ليست نیست नहीं ไม่
    ไม่ใช่ じゃない ではありません ではない 不 別 别 勿 否 无 未 没 無 非 아 아닙니다
denial no: non
denial no everything pointing-back determiner beginning: no
denial not-retracting restricting condition undoing premise: unless
denial restricting: besides except excluding
denial restricting undoing preposition: without
denial everything: none
denial pointing-back: cannot
denial pointing-back beginning: not
denial conjunction: neither nor
denial breaking: ni
no: nein
false: absurd bogus disregarding distractor doubtful erroneous excluded extraneous falsa falsch
    falso fausse faux forgetting impossible inaccurate incorrecta incorrecto invalid
    misconception misleading misreading neglecting nonsense overlooking rejected ruled salah
    trap unacceptable unlikely untrue erróneo неверно неправильно ผิด 錯 错
false wrong: false mistaken
false wrong judging: incorrect
false wrong judging other: wrong
false retraction: error mistake
judging approving asserted: correct right true
refusal: avoid contradict contradicts cross denies deny differ differs disagree disagrees discard dismiss
    disprove disregard doubt doubts eliminate eliminated eliminates exceed exceeds exclude excludes fail failed
    fails ignore omit refute reject rejects rule surpasses violates
retraction: apologies apologize correcting entschuldigung meant miscalculated miscounted misread
    nope rather recalculate recheck recompute reconsider redo ups whoops desolé perdón
retraction pointing-back beginning: hmm oops sorry
retraction pointing-back beginning with-for: wait
retraction beginning: correction
not-retracting past: initially originally previously
not-retracting past other: earlier
not-retracting condition undoing premise ending beside phrasing beginning preposition: if
not-retracting approving filler: only
not-retracting premise premise-or-preposition beside preposition: before
everything: anything everything
everything determiner: any
everything determiner preposition link: every
everything filler whole: all
unsure: maybe perhaps possibly vielleicht möglicherweise peut-être quizá quizás 也许 可能 大概 或许
hedge: ballpark could've estimate guessing probably random tal unknown könnte podría
hedge other: placeholder tentative
hedge doubtful: likely
hedge premise: whether
hedge alternative conjunction: either
past: assumed believed guessed mistakenly supposed thought
near: almost close closer near nearly
about preposition filler: about around
about filler: approx approximately ca circa environ etwa roughly ungefähr
undoing pointing-back conjunction phrasing splitting beginning: but
undoing pointing-back beginning: however
approving: absolutely accurate best boxed certain classic clear completely confident confirmed
    consistent correctly decimal described desired exact expected fraction fully fun good great
    highest integers interesting largest length lowest maximal minimal nearest nice numeric
    numerical obvious ok okay percentage perfect perfect-square plausible proven qed really
    reasonable requested respectively same sense sensible shown simple simplest smallest sought
    stated straightforward totally tricky unique very yes voilà
approving asserted: valid
approving asserted doubtful: possible
approving property: integer positive prime simplified
approving property filler: even
approving property altering: negative
approving property breaking: odd
approving doubtful: common standard typical
approving pointing own breaking: above
approving premise premise-or-preposition: given
approving filler: indeed
approving total breaking: maximum minimum
approving altering: divisible
approving altering-of: multiple
approving breaking: greatest
approving bound: least most
approving neutral: sure whole
approving with-in: done
asserted: case
asserted working answer: solution
asserted pointing connecting label: result
property: change difficult easy hard improved
explaining: checking checks confirming double-check notice recall remember sanity validation
explaining working: justification reasoning
explaining working beginning: explanation proof
explaining certainty: certainty confidence
explaining beginning: note verification
working: steps
working own: working
working answer: conclusion lösung solución
other: alternatives bound different etc other others related reward similar subtotal template unrelated upper
other doubtful: candidate
other doubtful neutral: old
other pointing-back: previous
other after-one filler: another
other comparing: lower
doubtful option neutral: alternative
doubtful neutral: usual
pointing it own pronoun beginning: it
pointing it own article beginning link: this
pointing it article after-one relative beside phrasing splitting beginning preposition link: that
pointing own: calculation
pointing determiner relative connecting ending phrasing preposition: which
pointing-back: can't looks oh seems unfortunately
pointing-back first-person article beginning: my
pointing-back article beginning link: the
pointing-back article filler link: a
pointing-back correcting beginning filler: actually
pointing-back and conjunction phrasing beginning: and
pointing-back beside beginning preposition placing: to
pointing-back filler: clearly definitely obviously
is connecting ending phrasing beginning preposition: so
is connecting beginning: thus
own: equations math mathematics
own first-person beginning: i we
own neutral: equation
first-person: i'll i'm i've we've
first-person pronoun: me us
first-person article: our
pronoun: er everybody everyone herself himself lui sie themselves you
pronoun foreign-subject: elle
pronoun article beginning link with-with: her
pronoun determiner preposition link: each
pronoun beginning: he she they
pronoun neutral: le les
pronoun with-with: him them
foreign-subject preposition placing: on
foreign-subject neutral: il
article: these those your
article beginning link: his
article filler link: an
article link: its their
after-one: day side way
after-one relative beside phrasing splitting preposition: who
after-one preposition part-of link: of
after-one period: time
relative premise premise-or-preposition preposition: where
relative preposition: whom whose
connecting: ainsi alors also bringing consequently daher deshalb donc entonces folglich giving
    leaving luego making meaning thereby totaling totalling yielding 因此 所以 故
connecting beginning: hence therefore
correcting: instead
result: accordingly afterwards ultimately
result beginning filler: finally
result filler: altogether overall
result filler label total whole neutral: total
result total-adjective: combined
premise: assume assuming considering cuando da hypothetically imagine parce pretend puisque si
    starting suppose wenn whenever 如果
premise premise-or-preposition: once
premise premise-or-preposition reason phrasing preposition: as
premise premise-or-preposition beside preposition: after
premise conceding: despite
premise conceding phrasing: although though
premise conceding phrasing preposition: while
premise reason: porque weil 因为
premise reason ending beside phrasing beginning preposition: because
premise reason ending phrasing beginning preposition: since
premise ending beside phrasing beginning preposition: when
premise preposition breaking: until
conceding: whereas
or: 或 或者
or conjunction: o oder ou
or conjunction phrasing: or
alternative: alternatively versus vs
and conjunction: et und y
conjunction: e sino yet
conjunction splitting: aber mais pero
beside preposition placing: for
beginning: edit there update
beginning filler: just
preposition: across against along among between down during into like off onto toward towards upon via within
preposition placing: at
preposition placing option: with
preposition placing link: in
preposition part-of: by from over under
preposition part-of filler with-with: up
preposition part-of breaking: than
preposition breaking: out through
preposition breaking link neutral: per
filler: additional again already aproximadamente away both certainly currently exactly extra
    home insgesamt itself noch precisely quite simply still surely together unos 一 一共 全部で 共 大约 总
    总共 総計 约 총
filler neutral: das
filler with-with: back
period: afternoon autumn evening morning night season semester spring summer weekend winter
period altering-of: quarter
answer: ans answer's antwoord antwort cevap final jawaban jawabannya resposta respuesta risposta
    svar svaret vastaus odpověď odpowiedź réponse răspuns válasz відповідь ответ الجواب پاسخ
    उत्तर 答案
answer after-value: 答 답
label: ergebnis resultado résultat всего итого 结果
total: balance distance loss price profit speed
total neutral: value
total-adjective: daily monthly net weekly
total-adjective breaking: grand
option: graph item letter option options response statement 选 选项
option neutral: choice figure
step: paso schritt étape
after-value: が である です になります 答え 가 예요 이 이다 이에요 입니다 정답
counter: つ 개 권 달러 마리 명 분 살 시간 원
plural: aircraft alumni bacteria boys businessmen cacti cattle children data deer dice feet firemen fish
    fishermen fungi geese gentlemen girls grandchildren lego media men mice moose offspring oxen pence people
    pieces police policemen popcorn salesmen salmon series sheep shrimp spacecraft species squid swine teeth
    trout women
comparing: ahead bigger cheaper farther faster fewer further greater heavier higher larger less lighter longer
    more older shorter slower smaller taller younger
altering: double halves inverse inverted opposite quadruple reciprocal reversed swapped thrice triple twice
altering altering-of: logarithm
altering breaking: half mod modulo
altering-of: complement cube digit digits divisor divisors factor factors fifth fourth multiples predecessor
    quarters remainder root sixth square successor supplement tenth thirds
altering-of breaking: power
breaking: base dozens entre factorial fois ish mal max mehr menos mille min moins nd percentile
    permille pi point ppm rd recurring repeating something st sur tens th upwards veces weniger
    más 以上 以下 以内 余 倍 几 分之 半 多 餘
breaking neutral: below short
code: def elif else lambda
link: d' des
link neutral: de
neutral: adding alright applying au aux big bonne box brackets calculating canceling cancelling
    collecting combining comparing completing computing consensus converting correcta correcte
    corretta counting den der det die differentiating distributing dividing doubling du dunque
    een el en evaluating exercise expanding expression factoring finale format full gesamt
    giusta grouping halving here het high how im integrating isolating jadi knowing korrekte la
    large las letting line little lo long los low majority maka multiplying new noting number
    observing para pertanto por problem quantity question quindi rearrangement rearranging
    recalling revised richtige rounding simplification simplifying small solving squaring
    substitution subtracting summing tags taking tanto task un una unit units using well what zu
    zum zusammen så
neutral with-to: amount
with-to: amounts boils converts equates equivalent evaluates simplifies sums
with-to with-by: reduces
with-by: changed reduced
with-for: jog jogged jogs live stayed waited waits
with-at: closes departs driving lands priced traveling travelling valued
with-at with-with with-in: ends
with-at with-in: arrived
with-in: met
"""


def _read(rows: str) -> dict[str, set[str]]:
    """Return the words of each kind."""
    found: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for row in rows.strip().replace("\n    ", " ").splitlines():
        kinds, _, words = row.partition(": ")
        for kind in kinds.split():
            found[kind].update(words.split())
    return found


WORDS = _read(_ROWS)
