"""grpo/rewarding/answers.py: a table of texts and gold answers, GSM8K's solutions, and texts that are hostile."""

import json
import random
import re
import threading
import time

import pytest
from helpers_runs import SHARED
from helpers_texts import ANY_TEXT
from hypothesis import given

import rewards
from rewards import extract_hash_answer, is_right, last_number

XML = "<reasoning>\nr\n</reasoning>\n<answer>\n{}\n</answer>\n"

# = the gold answer, + texts that are right, - texts that are wrong; ⏎ is a newline, ∅∅ the empty text
TABLE = r"""
= 72
+ 72 ¦ 72. ¦ 72.0 ¦ 72.00 ¦ $72 ¦ 72$ ¦ $72.00 ¦ 72% ¦ 72 apples ¦ x = 72 ¦ = 72 ¦ x=72 ¦ 18 * 4 = 72
+ 48 + 24 = 72 clips ¦ 144/2 ¦ **72** ¦ **72** apples ¦ $72$ ¦ \(72\) ¦ \boxed{72} ¦ \$72 ¦ 72\% ¦ 72\text{ apples}
+ 72^\circ ¦ 72° ¦ 72 cm^2 ¦ 72 cm² ¦ 72cm ¦ +72 ¦ 72 or 72.0 ¦ 72, 72 ¦ The answer is 72 ¦ The answer is 72.
+ It is 72! ¦ 72 (seventy-two) ¦ 72, not 71 ¦ not 71 but 72 ¦ 72 instead of 71 ¦ 3 or 4 boxes of 18, so it is 72
+ Is it 71? No, it is 72. ¦ ≈ 72 ¦ about 72 ¦ 072 ¦ \frac{144}{2} ¦ \dfrac{144}{2} ¦ 2^3 \cdot 9 ¦ 8*9 ¦ 8×9 ¦ 80 - 8
+ 70 + 2 = 72 ¦ 8 \times 9 = 72 ¦ \sqrt{5184} ¦ 72/1 ¦ $\boxed{72}$ ¦ <b>72</b> ¦ 72 km/h ¦ 72 dollars. ¦ Total: 72
+ USD 72 ¦ 7.2e1 ¦ So $x = 72$. ¦ Hence \[x = \frac{144}{2}\] ¦ Answer: 72 ¦ #### 72
+ She has 3 boxes of 24, which is 72. ¦ First 3 or 4, maybe 5.⏎No.⏎In the end there are 72. ¦ 72 = 72 ¦ x = 72 apples
+ 72 apples and 0 pears... total 72 ¦ Let me check: 71? no. 72? yes. So 72. ¦ 72.⏎⏎Let me know if you have questions!
+ 72 or seventy-two ¦ The total is $72 or 72 dollars ¦ **72 clips** in total ¦ \boxed{72 \text{ clips}}
+ \boxed{\text{72}} ¦ \boxed{x=72} ¦ \(\boxed{72}\) ¦ = 72 clips ¦ 72 clips ¦ 72, because 48+24=72
+ It is 72 (48 + 24) ¦ She sold 48 in April and 24 in May, 72 altogether.
- 71 ¦ -72 ¦ 7.2 ¦ 720 ¦ 0.72 ¦ 172 ¦ 72 or 71 ¦ 71 or 72 ¦ 72, no 71 ¦ 72 or 71, no 72 ¦ 71, 72 ¦ 72, 71
- either 71 or 72 ¦ 72? 71? ¦ 71? 72? ¦ 72 apples or 71 apples ¦ maybe 71, maybe 72 ¦ 72 or maybe 71 ¦ 72 71
- 71 and 72 ¦ 72; 71 ¦ 72⏎71 ¦ 71⏎72 ¦ 72 (or 71) ¦ not 72 ¦ The answer is not 72 ¦ It isn't 72 ¦ 71, not 72
- 71 instead of 72 ¦ \frac{72}{5} ¦ \sqrt{72} ¦ 72\sqrt{2} ¦ 72\pi ¦ 72x ¦ 72^2 ¦ 2^72 ¦ 72 - 1 ¦ x > 72 ¦ x + 72
- x - 72 ¦ \frac{1}{72} ¦ 1/72 ¦ \pm 72 ¦ 71-72 ¦ 71–72 ¦ (72, 71) ¦ [72, 73) ¦ {72, 71} ¦ no idea ¦ ∅∅ ¦ seventy
- 72 or 71. ¦ I think 72, no wait, 71 ¦ It is 71. ¦ 72 = 71 ¦ The answer is \sqrt{72}. ¦ (1, 72) ¦ so it is $72\pi$
- 72, actually 71 ¦ 72 vs 71 ¦ 72 perhaps 71 ¦ \boxed{71} not 72 ¦ $\boxed{71}$ and 72 is wrong ¦ 72! ¦ 72i ¦ -72.0
- 72 million ¦ 72 000 ¦ 7 2 ¦ 72 or so, maybe 80 ¦ I got 71. The answer is not 72. ¦ 72 (wrong), 71 ¦ 71 (or 72)
- 72+1 ¦ 72 to 75 ¦ 72.5 ¦ 72,5 ¦ 7,2 ¦ 72e1 ¦ 72 = x+1, so x = 71 ¦ 72 < x < 80 ¦ at (72, 0) ¦ 72:00 or 71:00
- The answer is 72 or 73, I'm not sure. ¦ Either 72 or 73. ¦ 70-75 ¦ 72, 73, 74 ¦ 72 no 71 ¦ 72 maybe 71 ¦ 72/71
- 72 | 71 ¦ 72 & 71 ¦ 72 and 71 ¦ 71 or, 72 ¦ A) 72 B) 71 ¦ 1. 71 2. 72 3. 73
- The answer is ±72. ¦ It is ± 72 apples ¦ She has +/- 72 left. ¦ There are \pm 72 in all. ¦ It is 72 ± 3.
= -5
+ -5 ¦ −5 ¦ - 5 ¦ $-5 ¦ -$5 ¦ -5.0 ¦ x = -5 ¦ -10/2 ¦ -\frac{10}{2} ¦ 3 - 8 = -5 ¦ -5 degrees
- 5 ¦ +5 ¦ 5- ¦ -(-5) ¦ -5 or 5 ¦ 0-(-5) ¦ The answer is +/-5.
= 1000
+ 1,000 ¦ $1,000 ¦ 1000.00 ¦ 10^3 ¦ 1e3 ¦ 1 000 ¦ 1.0 * 10^3 ¦ one = 1,000 grams ¦ 1{,}000 ¦ 1,\!000 ¦ 1 thousand
- 1 ¦ 1.000 ¦ 10,00 ¦ 100 ¦ 1,0000 ¦ 10^4 ¦ 1,000,000 ¦ 1.000,5 ¦ 10.00 ¦ 1000000
= $1,200
+ 1200 ¦ $1200 ¦ 1,200 dollars ¦ $1,200.00 ¦ \$1{,}200
- 1.2 ¦ 200 ¦ $1,20 ¦ $12000
= 0.5
+ 1/2 ¦ .5 ¦ 0.50 ¦ \frac12 ¦ 50% ¦ ½ ¦ 2/4 ¦ \frac{1}{2}
- 5 ¦ 0.05 ¦ 1.5 ¦ 1/3 ¦ 0.5 or 0.6 ¦ 2 ¦ 0.5x ¦ 0.50001 ¦ 5%
= 1.5
+ 3/2 ¦ 1 1/2 ¦ 1\frac{1}{2} ¦ 1½ ¦ 1 1/2 cups ¦ She needs 1 1/2 cups. ¦ 150%
- 1/2 ¦ 1 1/3 ¦ 15 ¦ 11/2
= 2.50
+ $2.50 ¦ 2.5 ¦ 5/2 ¦ 2.50 dollars
- 250 ¦ 2.05 ¦ 25
= 8
+ 2^3 ¦ 2**3 ¦ 2^{3} ¦ 2³ ¦ 8. ¦ x=2^3=8 ¦ \sqrt{64} ¦ \sqrt[3]{512} ¦ \log_2 256 ¦ 4!/3 ¦ |−8|
- 2^4 ¦ 3^2 ¦ 23 ¦ 2·3
= 2
+ \frac{10}{5} ¦ 10 \div 5 ¦ 10/5 ¦ The result is $\frac{10}{5}$. ¦ \sqrt4 ¦ 2 dozen ¦ 2 apples and no pears
+ \log_{10} 100 ¦ \frac{2}{1}
- \frac{5}{10} ¦ 5/10 ¦ \frac{2}{5} ¦ \sqrt{2} ¦ 1 or 2
= 5
+ 5 ¦ x=5 ¦ 5 = x ¦ 15 - 10 = 5 ¦ 5 years old ¦ \frac{10}{2} ¦ 5\text{ units} ¦ 5th ¦ five = 5 ¦ -5 + 10 ¦ 5-year-old
- \frac{10}{5} ¦ \sqrt{5} ¦ 18-5 ¦ $\sqrt{5}$ ¦ So it is \sqrt{5}. ¦ √5 ¦ 2\sqrt{5} ¦ \frac{1}{5} ¦ x^5 ¦ 5π ¦ x<5
- y = 5x ¦ 2 or 3 or 5 ¦ 5 - 0.5 ¦ 5^5 ¦ x=5y ¦ 5 \pm 1
= 0
+ 0 ¦ 0.0 ¦ -0 ¦ zero = 0 ¦ 0% ¦ 5 - 5 ¦ 0 apples ¦ 0.00 ¦ $0 ¦ \frac{0}{5}
- ∅∅ ¦ 00.1 ¦ 10 ¦ none ¦ O
= 72%
+ 72 ¦ 72% ¦ 72\% ¦ 0.72 ¦ 72 percent ¦ 18/25
- 0.72% ¦ 7.2% ¦ 28% ¦ 720
= 5 cm
+ 5 ¦ 5 cm ¦ 5cm ¦ 5 centimeters ¦ 5.0 cm ¦ 5 centimetres. ¦ 5\text{ cm} ¦ 5\,\mathrm{cm} ¦ The length is 5 cm.
+ 5 CM ¦ 10/2 cm
- 5 m ¦ 5 mm ¦ 5 cm^2 ¦ 6 cm ¦ 50 mm ¦ 5 km ¦ 5 kg ¦ cm ¦ 5 cm or 6 cm ¦ 15 cm ¦ 5 inches
= 10 apples
+ 10 ¦ 10 apples ¦ 10 apple ¦ ten = 10 apples ¦ 10 apples in total ¦ 10 red apples ¦ 10 of them
+ She has 10 apples left. ¦ $10$ apples
- 10 oranges ¦ 11 apples ¦ 10 oranges and 3 pears ¦ apples
= 5 m^2
+ 5 ¦ 5 m² ¦ 5 square meters ¦ 5 m^2 ¦ 5\text{ m}^2 ¦ 5 sq m
- 5 m ¦ 5 m^3 ¦ 5 cm^2
= 60 km/h
+ 60 ¦ 60 km/h ¦ 60 km per hour ¦ 60 kph ¦ 60 kilometers per hour
- 60 km ¦ 60 mph ¦ 60 m/s ¦ 16 km/h
= 3 hours
+ 3 ¦ 3 hours ¦ 3 hrs ¦ 3 h ¦ 3 hour ¦ 3.0 hours
- 3 minutes ¦ 180 ¦ 2 hours ¦ 3 days
= 5 dollars
+ $5 ¦ 5 ¦ 5 dollars ¦ $5.00 ¦ 5 USD ¦ five = $5
- €5 ¦ 5 cents ¦ 50
= 90^\circ
+ 90 ¦ 90° ¦ 90 degrees ¦ $90^\circ$ ¦ 90^{\circ}
- 9 ¦ 90 radians ¦ 180°
= \frac{1}{2}
+ 1/2 ¦ 0.5 ¦ .5 ¦ ½ ¦ \frac12 ¦ \dfrac{1}{2} ¦ \tfrac12 ¦ $\frac{1}{2}$ ¦ \(\frac{1}{2}\) ¦ \boxed{\frac{1}{2}}
+ 2/4 ¦ \frac{2}{4} ¦ 50% ¦ 50\% ¦ x = 1/2 ¦ x = \frac{1}{2} ¦ 1 / 2 ¦ So the answer is \frac{1}{2}.
+ So the answer is 1/2. ¦ \left(\frac{1}{2}\right) ¦ \frac{1}{2}. ¦ 2^{-1} ¦ \sin 30^\circ ¦ The probability is 1/2
+ Thus x = 0.5. ¦ **1/2** ¦ $$\frac{1}{2}$$ ¦ We get \[\frac{1}{2}\] ¦ So she ate $\frac{1}{2}$ of the cake.
+ 1/2 of the cake ¦ \frac{1}{2} cup ¦ \frac{ 1 }{ 2 } ¦ \frac{3}{2} - 1 = \frac{1}{2} ¦ -(-1/2)
+ First $\frac{3}{2}$, then $\frac{1}{2}$. ¦ one half = 1/2
- \frac{3}{2} ¦ 2 ¦ 1 ¦ -1/2 ¦ 1 1/2 ¦ \frac{1}{3} ¦ 1/2 or 1/3 ¦ 0.05 ¦ 5 ¦ 12 ¦ So the answer is \frac{3}{2}. ¦ 2/1
- 0.5% ¦ \frac{1}{2}x ¦ \frac{1}{2}\pi ¦ The answer is 1/2. No, it is 1/3. ¦ \frac{1}{2}, \frac{1}{3} ¦ half
- \frac{2}{1} ¦ 1:2
= -\frac{3}{4}
+ \frac{-3}{4} ¦ \frac{3}{-4} ¦ -3/4 ¦ -0.75 ¦ −¾
- 3/4 ¦ 0.75 ¦ -4/3 ¦ -0.7
= 1/3
+ \frac13 ¦ 2/6 ¦ 0.333333 ¦ 0.3333333333 ¦ 0.\overline{3} ¦ ⅓
- 0.33 ¦ 0.3 ¦ 0.333334 ¦ 3 ¦ 1/30 ¦ 0.333 ¦ -0.333333
= 3\sqrt{2}
+ 3√2 ¦ 3*sqrt(2) ¦ 3 \sqrt{2} ¦ 3\sqrt2 ¦ \sqrt{18} ¦ \sqrt{2}\cdot 3 ¦ 3sqrt(2) ¦ \frac{6}{\sqrt{2}}
+ x = 3\sqrt{2} ¦ 3\sqrt{2} cm ¦ So it is $3\sqrt{2}$.
- 5\sqrt{2} ¦ 3 ¦ 2 ¦ 3\sqrt{3} ¦ 3+\sqrt{2} ¦ -3\sqrt{2} ¦ 4.24 ¦ \sqrt{6} ¦ 3\sqrt[3]{2} ¦ 3\sqrt{2} or 3
= \frac{\sqrt{2}}{2}
+ \frac{1}{\sqrt{2}} ¦ √2/2 ¦ sqrt(2)/2 ¦ \frac{\sqrt2}2 ¦ \cos 45^\circ ¦ \sqrt{\frac12}
- 2 ¦ 1/2 ¦ \sqrt{2}
= \pi
+ π ¦ pi ¦ $\pi$ ¦ x=\pi ¦ 2\pi - \pi ¦ 3.141593
- 3.14 ¦ 3 ¦ 2\pi ¦ 22/7 ¦ p i ¦ pie ¦ \frac{22}{7}
= \frac{2\pi}{3}
+ 2π/3 ¦ \frac{2}{3}\pi ¦ 2pi/3 ¦ 2*pi/3
- 2/3 ¦ \frac{\pi}{3} ¦ 2π
= (1,2)
+ (1, 2) ¦ \left(1,2\right) ¦ ( 1 , 2 ) ¦ (1.0, 2) ¦ $(1,2)$ ¦ (x, y) = (1, 2) ¦ The point is (1,2). ¦ \boxed{(1,2)}
+ (1, \frac{4}{2}) ¦ 1, 2
- (7,2) ¦ (2,1) ¦ (1,2,3) ¦ [1,2] ¦ \{1,2\} ¦ (1,3) ¦ 1 ¦ 2 ¦ 12 ¦ (1,2)(3,4) ¦ 1.2 ¦ (-1,2) ¦ (1;3)
= (3, \frac{\pi}{2})
+ (3, \pi/2) ¦ \left(3,\frac{\pi}{2}\right) ¦ (3, π/2)
- (\frac{\pi}{2}, 3) ¦ (3, \pi) ¦ 3
= [0,1)
+ \left[0,1\right) ¦ [0, 1) ¦ 0 \le x < 1 ¦ 0 <= x < 1 ¦ x \in [0,1) ¦ 1 > x >= 0
- (0,1) ¦ [0,1] ¦ (0,1] ¦ 0 < x < 1 ¦ [0,2) ¦ 0,1
= (-\infty, 3)
+ x < 3 ¦ (-∞, 3) ¦ 3 > x ¦ (-\infty,3)
- x > 3 ¦ x \le 3 ¦ (-\infty, 3] ¦ 3 ¦ (3,\infty)
= (-\infty,-1)\cup(2,\infty)
+ (2,\infty) \cup (-\infty,-1) ¦ (-∞,-1) U (2,∞) ¦ (−∞, −1) ∪ (2, ∞)
- (-\infty,-1) ¦ (-1,2) ¦ (-\infty,-1]\cup(2,\infty)
= \{1,2,3\}
+ {1,2,3} ¦ {3, 1, 2} ¦ 1, 2, 3 ¦ \left\{1,2,3\right\} ¦ 1, 2 and 3 ¦ \{3,2,1\}
- (1,2,3) ¦ {1,2} ¦ {1,2,4} ¦ 123 ¦ 3 ¦ {1,2,3,4}
= 1, -2
+ -2, 1 ¦ x = 1 or x = -2 ¦ x=1, x=-2 ¦ 1 and -2 ¦ {1, -2} ¦ x = 1\text{ or }x=-2 ¦ 1,-2
+ The solutions are x = 1 and x = -2.
- 1 ¦ -2 ¦ 1, 2 ¦ -1, 2 ¦ 1, -2, 3
= \pm 2
+ 2, -2 ¦ ±2 ¦ x = ±2 ¦ -2 or 2
- 2 ¦ -2 ¦ \pm 3
= x+1
+ 1+x ¦ x + 1 ¦ (x+1) ¦ $x+1$ ¦ \frac{2x+2}{2} ¦ y = x + 1
- x-1 ¦ x ¦ x+2 ¦ y+1 ¦ 1 ¦ 2x+1
= x^2-1
+ (x-1)(x+1) ¦ -1+x^2 ¦ x²−1 ¦ x**2-1 ¦ x*x - 1 ¦ (x-1)(x+1) = x^2-1 ¦ x^2 - 1 = (x-1)(x+1)
- x^2+1 ¦ (x-1)^2 ¦ x-1 ¦ 2x-1 ¦ x^2-1 = 3 ¦ 2x = x^2-1
= 2xy
+ 2yx ¦ 2*x*y ¦ xy+xy ¦ 2x \cdot y
- 2x ¦ xy ¦ 2 ¦ 2x+y
= y = 2x + 1
+ y=2x+1 ¦ y = 1 + 2x ¦ 2x + 1 = y ¦ 2x - y + 1 = 0 ¦ 2x+1
- y = 2x - 1 ¦ y = x + 1 ¦ x = 2y + 1 ¦ 1 ¦ 2
= x=5
+ 5 ¦ x = 5 ¦ x = 10/2 ¦ 2x = 10
- y=5 ¦ x=6 ¦ x>5 ¦ 15
= \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
+ \begin{bmatrix}1&2\\3&4\end{bmatrix} ¦ \begin{pmatrix}1&2\\3&\frac{8}{2}\end{pmatrix}
- \begin{pmatrix}1&2\\4&3\end{pmatrix} ¦ \begin{pmatrix}1&2&3&4\end{pmatrix} ¦ 4
= 3+4i
+ 4i+3 ¦ 3 + 4i ¦ 3+4\mathrm{i}
- 3-4i ¦ 7 ¦ 3 ¦ 4+3i ¦ 5
= 2^{10}
+ 1024 ¦ 2^10 ¦ 4^5 ¦ 1,024
- 20 ¦ 10 ¦ 2 ¦ 210 ¦ 1023 ¦ 2^{11}
= x^2 \le 4
+ 4 \ge x^2 ¦ x^2 <= 4
- x^2 < 4 ¦ x^2 \ge 4
= \text{Evelyn}
+ Evelyn ¦ evelyn ¦ \text{Evelyn} ¦ Evelyn. ¦ $\text{Evelyn}$ ¦ **Evelyn** ¦ The answer is Evelyn.
+ \boxed{\text{Evelyn}}
- Eve ¦ Carla ¦ Evelyn or Carla ¦ not Evelyn ¦ n
= Paris
+ paris ¦ Paris. ¦ PARIS ¦ "Paris" ¦ **Paris** ¦ The answer is Paris. ¦ Answer: Paris ¦ \boxed{Paris}
- London ¦ Paris or London ¦ Paris, Texas ¦ P*a*r*i*s ¦ Pari ¦ ∅∅ ¦ paris 5 ¦ paris france ¦ The capital of France
= pi day
+ Pi Day ¦ pi  day.
- pi ¦ day pi ¦ \pi day ¦ 3.14
= New York
+ new york ¦ New  York. ¦ New⏎York
- York ¦ NewJersey ¦ York New
= 12:30
+ 12:30 ¦ 12 : 30 ¦ 12:30.
- 4:30 ¦ 12:31 ¦ 30 ¦ 12 ¦ 0.4 ¦ 12.30 ¦ 30:12
= B: 5
+ B: 5 ¦ b:5 ¦ B: 5.
- A: 5 ¦ B: 6 ¦ 5 ¦ B
= B
+ B ¦ b ¦ (B) ¦ B. ¦ B) ¦ B) Paris ¦ (B) 5 ¦ **B** ¦ Option B ¦ The answer is B. ¦ The answer is (B). ¦ \boxed{B}
+ \text{(B)} ¦ Answer: B
- A ¦ C ¦ A) Paris ¦ B or C ¦ A, B ¦ AB ¦ D) B ¦ Bob ¦ ∅∅ ¦ 8
= yes
+ Yes ¦ yes. ¦ YES
- no ¦ yes and no ¦ y ¦ yesno ¦ Yes or no
= True
+ true ¦ True.
- false ¦ True or False ¦ not true ¦ False
= March 5, 2020
+ March 5, 2020 ¦ march 5, 2020. ¦ March  5,2020
- March 6, 2020 ¦ May 5, 2020 ¦ 2020 ¦ March 5 ¦ 5
= 2020-01-05
+ 2020-01-05
- 2014 ¦ 2020-05-01 ¦ 05
= 3-2
+ 3-2 ¦ 3 - 2
- 1 ¦ 2-3 ¦ 2 ¦ 3
= 2:3
+ 2:3 ¦ 2 : 3
- 3:2 ¦ 3 ¦ 2/3 or 3/2 ¦ 4:3
= 10-20
+ 10-20 ¦ 10 - 20
- 20 ¦ -10 ¦ 10-30
= red, blue
+ Red, blue ¦ red,blue.
- red ¦ blue ¦ red, green
= A, C
+ A, C ¦ a,c
- A ¦ A, B ¦ C
= H2O
+ H2O ¦ h2o
- 2 ¦ HO2 ¦ H20
= 52_8
+ 52_8 ¦ 52_{8}
- 52_9 ¦ 8 ¦ 25_8
= \emptyset
+ \varnothing ¦ ∅ ¦ \{\}
- 0 ¦ \{0\} ¦ 1
= \infty
+ ∞ ¦ infinity ¦ +\infty
- -\infty ¦ 0 ¦ 8
= \frac{x+1}{x-1}
+ (x+1)/(x-1) ¦ \dfrac{1+x}{x-1} ¦ -\frac{x+1}{1-x}
- x+1/x-1 ¦ \frac{x-1}{x+1} ¦ -1
= $\frac{7}{9}$
+ 7/9 ¦ \frac{7}{9} ¦ \frac79 ¦ \frac{14}{18}
- 7 ¦ 9 ¦ 9/7 ¦ 0.78 ¦ 7/90
= 11\frac{1}{2}
+ 11.5 ¦ 23/2 ¦ 11 1/2
- 11/2 ¦ 1/2 ¦ 5.5 ¦ 11
= 10,\!000
+ 10000 ¦ 10,000 ¦ 10{,}000 ¦ 10^4
- 10 ¦ 1000 ¦ 0
= \sqrt{x^2}
+ |x| ¦ \sqrt{x^2}
- x ¦ -x ¦ 2
= n!
+ n!
- n ¦ 1
= 18
+ The answer is 18 dollars every day. ¦ Janet makes 9 * 2 = $18 every day at the farmer's market. ¦ $18.00 per day
+ 18 (since 9 * 2 = 18) ¦ \boxed{18}. This is because 9 \times 2 = 18 and 16 - 7 = 9. ¦ The answer is \boxed{\$18}.
+ **Final answer: 18** ¦ Final answer: $\boxed{18}$ ¦ 18 dollars or $18 ¦ ### Answer⏎18
+ <answer>$18 (eighteen dollars)</answer> ¦ Therefore, Janet makes $\boxed{18}$ dollars. ¦ \[ \boxed{18} \]
+ x=18, so the answer is 18 ¦ The final answer is: $18$. ¦ Eighteen (18) ¦ 18 and that's it ¦ 36/2 ¦ 18.000
+ 1.8 \times 10^1 ¦ $x=18$ ¦ 18 hours ¦ about 18 ¦ approximately 18 dollars ¦ 3 times 6 = 18
+ 18, which is 9 times 2... so 18 ¦ = $18 ¦ 18 :) ¦ Answer = 18 ¦ n = 18 ¦ 18 ¦ \text{18} ¦ \textbf{18} ¦ {18} ¦ (18)
+ [18] ¦ "18" ¦ '18' ¦ `18` ¦ <b>18</b> ¦ _18_ ¦ __18__ ¦ ~18 ¦ 18 $ ¦ 18€ ¦ Rs. 18 ¦ Rs.18 ¦ USD18 ¦ US$18 ¦ #18
+ 18 eggs + 0 = 18 ¦ 0018 ¦ 18. ¦ 18, ¦ 18; ¦ The answer is 18 because 9 × 2 = 18 ¦ 18 apples/day ¦ 18\%
+ 18 \text{ cm}^2 ¦ 18 cm³ ¦ 18 m/s^2 ¦ 18\ \text{dollars} ¦ 18~\text{km} ¦ 18\,\mathrm{km/h} ¦ 18 sq. ft.
+ 3 hours and 18 minutes - no wait that was the last question. It's 18
- 81 ¦ 18 or 19 ¦ 17 or 18 ¦ 18/19 ¦ 18.5 ¦ 1.8 ¦ 180 ¦ 18^2 ¦ 118 ¦ -18 ¦ 18 and 19 ¦ between 17 and 18 ¦ 17 to 18
- 17-18 ¦ The answer is either 18 or 20. ¦ I think it's 18. Or maybe 20. ¦ 18? No, 20. ¦ 18, 20, 22
- It could be 18 or 20 or 22. ¦ 20 or 18 ¦ 18 (or 20) ¦ not 18 ¦ 18 thousand ¦ 18k ¦ 18i ¦ x^{18} ¦ \sqrt{18}
- \frac{1}{18} ¦ \frac{18}{1}8 ¦ 18x ¦ 18\pi ¦ 18\sqrt{2} ¦ x < 18 ¦ x \le 18 ¦ x \neq 18 ¦ 18 < x ¦ \pm 18
- (18, 18) ¦ (0, 18) ¦ [0, 18] ¦ \{17, 18\} ¦ 18:00 ¦ eighteen ¦ 18 = 19 ¦ 1 8 ¦ 18 - 1 ¦ 18 + 1 ¦ 2 \times 18
- Answer: 19⏎not 18 ¦ <answer>19</answer> 18 ¦ \boxed{19} 18 ¦ 0.18 ¦ .18 ¦ 18.0.0 ¦ y = 18x
= 1000000
+ 1 million ¦ $1 million ¦ 1,000,000 people ¦ 10^6 ¦ 1 \times 10^{6} ¦ 1e6
= 2.5
+ 2 1/2 ¦ 2½ ¦ 5/2 ¦ 2.50 ¦ two and a half = 2.5
= 0.25
+ 25% ¦ 1/4 ¦ \frac14 ¦ 25 percent
= 25%
+ 1/4 ¦ 0.25
= 25\%
+ 25 ¦ 25%
= 25 \%
+ 25 percent
= -3
+ -3 ¦ minus 3 = -3 ¦ negative: -3 ¦ x = -3 ¦ $-3$ ¦ \(-3\) ¦ -3.0 ¦ -\frac{6}{2}
- 3 ¦ 0-(-3) ¦ 3-
= \frac{3}{4}
+ 3/4 cups ¦ three quarters, i.e. 3/4 ¦ 75% ¦ \frac{3}{4}\text{ cup} ¦ $\frac{3}{4}$.
+ The probability is $\frac{3}{4}$ or 0.75. ¦ \frac{3}{4} = 0.75 ¦ 0.75 = \frac{3}{4} ¦ 3 / 4 ¦ {3 \over 4}
+ \frac 3 4 ¦ \frac{3}4 ¦ \frac3{4} ¦ \frac{{3}}{{4}} ¦ \displaystyle\frac{3}{4} ¦ \boxed{ \dfrac{3}{4} }
+ P = \frac{3}{4} ¦ P(A) = \frac{3}{4} ¦ \mathbf{\frac{3}{4}} ¦ 3/4. ¦ \sfrac{3}{4} ¦ the fraction is 3/4
- \frac{4}{3} ¦ 3 ¦ 4 ¦ 3:5 ¦ 0.7 ¦ 75 ¦ 0.75% ¦ 3/4 or 4/3 ¦ 1 3/4 ¦ -3/4 ¦ \frac{3}{4}\pi ¦ 3/4x ¦ 34 ¦ 3, 4
- (3,4) ¦ \sqrt{3/4}
= \frac{-1}{2}
+ -\frac{1}{2}
= -\frac{1}{2}
+ \frac{1}{-2}
- \frac{1}{2}
= \sqrt{3}
+ 3^{1/2} ¦ 3^{0.5} ¦ \sqrt3 ¦ sqrt3 ¦ sqrt(3) ¦ \frac{3}{\sqrt{3}} ¦ \tan 60^\circ ¦ The length is \(\sqrt{3}\).
+ The length is $\sqrt{3}$ units. ¦ \sqrt{3}\text{ cm} ¦ \sqrt{3} ≈ 1.732 ¦ \sqrt{3} \approx 1.73
- 3 ¦ \sqrt{5} ¦ 1.73 ¦ -\sqrt{3} ¦ \pm\sqrt{3} ¦ 3\sqrt{3} ¦ \sqrt[3]{3} ¦ \sqrt{3} or \sqrt{2}
= 2\sqrt{3}+1
+ 1+2\sqrt{3} ¦ 1 + 2√3
= 2+\sqrt{3}
+ \frac{1}{2-\sqrt{3}}
= \frac{1+\sqrt{5}}{2}
+ (1+sqrt(5))/2 ¦ \frac{\sqrt{5}+1}{2} ¦ 0.5 + \frac{\sqrt{5}}{2}
= \frac{\pi}{6}
+ pi/6 ¦ π / 6 ¦ \pi/6 \text{ radians}
= 16\pi
+ 16π ¦ 16 pi ¦ 16*pi square units ¦ 16\pi \text{ cm}^2 ¦ The area is 16π. ¦ $16\pi$ square inches ¦ \pi \cdot 4^2
- 16 ¦ 50.27 ¦ 50.24 ¦ 16\pi^2 ¦ 6\pi ¦ 4\pi
= e^2
+ e^{2} ¦ \exp(2)
- 2e ¦ 7.39
= \ln 2
+ \ln(2) ¦ ln 2
- 2 ¦ \log 2
= \log_2 3
+ \frac{\ln 3}{\ln 2}
= (3, -4)
+ (3,-4) ¦ $(3, -4)$ ¦ (x, y) = (3, -4) ¦ x = 3, y = -4 ¦ The vertex is at (3, -4). ¦ \left( 3, -4 \right)
+ (3.0, -4.0) ¦ (\frac{6}{2}, -4) ¦ (3,−4)
- (-4, 3) ¦ (3, 4) ¦ (3, -4, 0) ¦ [3, -4] ¦ 3 ¦ -4 ¦ \{3, -4\} ¦ (13, -4) ¦ x = -4, y = 3
= (1,2),(3,4)
+ (3,4),(1,2) ¦ (1, 2) and (3, 4) ¦ \{(1,2),(3,4)\}
= [2,5]
+ 2 \le x \le 5 ¦ 2 ≤ x ≤ 5 ¦ x \in [2,5] ¦ x ∈ [2, 5]
- (2,5) ¦ [2,5) ¦ [5,2] ¦ 2,5 ¦ 2 < x < 5
= (2,\infty)
+ x > 2 ¦ (2, ∞) ¦ (2,+\infty) ¦ (2, \infty)
= x > 2
+ 2 < x ¦ (2,\infty)
- x < 2 ¦ x = 2 ¦ 2 ¦ x \ge 2
= x \ge 2
+ x ≥ 2 ¦ x \geq 2 ¦ x>=2
= x \geq 2
+ 2 \leq x ¦ x \geqslant 2
= \{1, 2, 3\}
+ {1,2,3} ¦ 3, 2, 1
- \{1, 2\} ¦ (1, 2, 3) ¦ \{1, 2, 3, 4\}
= \{-1, 1\}
+ \pm 1 ¦ x = \pm 1 ¦ -1 and 1
= 2, 3
+ x = 2, 3 ¦ x = 2 or x = 3 ¦ 3 and 2 ¦ x=2,x=3 ¦ 2 and 3 ¦ The roots are 2 and 3. ¦ x_1 = 2, x_2 = 3 ¦ \boxed{2, 3}
+ $x=2$ and $x=3$ ¦ $2$ and $3$
- 2 ¦ 3 ¦ 2, 4 ¦ 23 ¦ 2.3 ¦ -2, -3 ¦ x = 2 or x = 4
= 1,2,3
+ 1, 2, 3 ¦ 1, 2, and 3
= x^2+3x+2
+ (x+1)(x+2) ¦ x^{2} + 3 x + 2 ¦ 2+3x+x^2 ¦ x² + 3x + 2 ¦ f(x) = x^2 + 3x + 2 ¦ x*x + 3*x + 2
- x^2+3x-2 ¦ x^2+2x+3 ¦ 2 ¦ (x+1)(x-2) ¦ y^2+3y+2
= (x+1)(x-1)
+ x^2-1
= \frac{x}{x+1}
+ x/(x+1) ¦ 1 - \frac{1}{x+1}
= y=2x+3
+ y = 3 + 2x ¦ y - 2x = 3
- y=2x-3 ¦ y=3x+2 ¦ 3 ¦ x=2y+3
= y=\frac{1}{2}x
+ y = x/2
= x^2+y^2=25
+ y^2 + x^2 = 25 ¦ x^2+y^2-25=0
= 3x-2y=6
+ 6 = 3x - 2y
= 3+2i
+ 2i+3 ¦ 3 + 2i
- 3-2i ¦ 3 ¦ 5 ¦ 2+3i
= -i
+ \frac{1}{i}
= \begin{pmatrix}1\\2\end{pmatrix}
+ \begin{pmatrix} 1 \\ 2 \end{pmatrix}
- \begin{pmatrix}2\\1\end{pmatrix} ¦ \begin{pmatrix}1&2\end{pmatrix} ¦ 2
= \begin{pmatrix} -2 \\ \frac{1}{2} \end{pmatrix}
+ \begin{bmatrix}-2\\0.5\end{bmatrix}
= \text{(C)}
+ C ¦ (C) ¦ \text{C} ¦ \boxed{C}
= \textbf{(C)}\ 5
+ (C) 5
= C
+ C. ¦ The correct answer is C. ¦ The answer is (C). ¦ C) because it is the largest ¦ c ¦ \boxed{\text{C}}
+ Answer: C ¦ Answer: (C) 12 ¦ The correct option is C. ¦ Option C ¦ (C) Paris ¦ **C** ¦ **C) Paris**
- B ¦ A, C ¦ C or D ¦ not C ¦ B) C ¦ ABC ¦ Cat ¦ D. C is wrong ¦ A. Not C
= \text{even}
+ even ¦ Even.
- odd ¦ not even
= \text{Saturday}
+ saturday
= Tuesday
+ tuesday.
- Thursday ¦ Tuesday or Thursday
= No
+ no ¦ No.
- Yes ¦ Not ¦ no or yes ¦ None
= \text{June 20}
+ June 20
= \text{no solution}
+ No solution
= 9:30
+ 9:30
- 9:31 ¦ 10:30 ¦ 30 ¦ 9.30
= 9:30 AM
+ 9:30 am ¦ 9:30 a.m.
- 9:30 PM
= 3:15 p.m.
+ 3:15 pm
= 7.50
+ $7.50
= $7.50
+ 7.5 ¦ 7.50 dollars
= \$7.50
+ $7.50 ¦ 7.50
= \$32,348
+ 32348
= 32,\!348
+ 32,348
= 15\text{ cm}
+ 15
- 15\text{ m} ¦ 15 cm^2 ¦ 0.15 m ¦ 5 cm
= 15\mbox{ cm}^2
+ 15 cm^2 ¦ 15
= 6\text{ feet}
+ 6 ft
= 120^\circ
+ 120 ¦ 120 degrees
= 120
+ 120^\circ
= 5 kg
+ 5 kilograms
= 12 square inches
+ 12 ¦ 12 in^2 ¦ 12 sq in
= 100 miles per hour
+ 100 mph
= $20
+ 20 dollars
- 20 cents and 5 ¦ $200
= 20 minutes
+ 20 min
= 2 hours
+ 2
- 2 minutes ¦ 120 ¦ 3 hours
= 1 hour
+ 1 hr
= 3 boxes
+ 3 ¦ 3 box
= 4 people
+ 4
- 4 dogs
= 204_5
+ 204_{5} ¦ 204_5
- 204_6 ¦ 205_5
= 1.\overline{3}
+ 4/3
= 0.1\overline{6}
+ \frac16
= \frac{1}{3}
+ 0.\overline{3}
= 2^{-3}
+ 1/8 ¦ 0.125
= 10!
+ 3628800
- 10
= \binom{5}{2}
+ 10
= \dbinom{5}{2}
+ 10
= \sqrt[3]{4}
+ 4^{1/3} ¦ ∛4
= a^2+b^2
+ b^2+a^2
= \frac{a}{b}
+ a/b ¦ \frac ab ¦ \frac{a} {b}
- \frac ba ¦ ab ¦ \frac a2
= 2a
+ a \cdot 2
- 2b ¦ a ¦ a^2
= n(n+1)/2
+ \frac{n(n+1)}{2}
= \frac{n(n+1)}{2}
+ \frac{n^2+n}{2}
= 2n+1
+ 1+2n
= |x-1|
+ |1-x|
- x-1
= \sin x
+ \sin(x)
- \cos x ¦ sin
= \sin^2 x
+ (\sin x)^2 ¦ 1-\cos^2 x
= -\cos x + C
+ C - \cos x
= \mathbb{R}
+ \mathbb{R}
= x \ne 0
+ x \neq 0 ¦ x ≠ 0
= \angle ABC
+ \angle ABC
= AB
+ AB
= 3:2
+ 3:2 ¦ 3 : 2
- 2:3 ¦ 1.5
= 7/2
+ 3.5 ¦ 3\frac{1}{2} ¦ 3 1/2 ¦ 3.50
= 2/3
+ 4/6 ¦ 0.66666667 ¦ \frac{2}{3} \approx 0.67 ¦ 0.666666
- 0.67 ¦ 3/2 ¦ 0.666665
= 1/2
+ one half (1/2) ¦ It is 1/2. ¦ 1/2 or 50% ¦ 0.5 or 1/2 ¦ \frac{1}{2} = 50\% ¦ 1/2 (one half) ¦ ½ of the pie
- 1/2 or 1/4 ¦ 1/2 or 1/3 ¦ 1/2, 1/3 ¦ 2/4x ¦ 1-2 ¦ 1,2
= 100
+ 1e2 ¦ 100.00%
- 1e3 ¦ 10^{3}
= 99
+ 99 red balloons
= 4
+ 2+2 ¦ 2 + 2 = 4 ¦ 2+2=4 apples ¦ \frac{8}{2} = 4 ¦ \lfloor 4.7 \rfloor ¦ \sqrt{16} = 4 ¦ |-4| ¦ 4 \quad
+ x = 4 \text{ or } x = 4 ¦ 4 oz. ¦ 4 out of 10 is not asked; it is 4 ¦ 4th
= June 20
- June 21 ¦ July 20 ¦ 20
= Evelyn
- Eve
= 1, 2, 3
- 3
= 12
+ 12 noon
= 50
+ 50%
= 5:30 PM
+ 5:30 pm ¦ 5:30 PM.
- 5:30 AM ¦ 17:3
= (2, 3)
+ x=2 and y=3
= (2,3)
+ (2,3). ¦ $\boxed{(2,3)}$
- x=3, y=2 ¦ 2/3 ¦ (2,3) or (3,2) ¦ (2;4)
= (a,b)
+ (a, b)
= x=2
+ x = 2
- x=-2 ¦ x=2 or x=3
= x = 2, y = 3
+ (x,y)=(2,3) ¦ y=3, x=2
- x=3, y=2
= 3x+2
+ 3x + 2 ¦ 2 + 3x ¦ f(x)=3x+2
- 3x+2=0 or 1 ¦ 3x
= -1
+ x=-1
= \frac{1}{x}
+ x^{-1} ¦ 1/x
= 10%
+ 10 % ¦ 0.1 ¦ 1/10
- 10%%5 ¦ 0.01 ¦ 1%
= 1,234.56
+ $1,234.56
= $1,234.56
+ 1234.56
= \$1,234
+ 1234
= A
+ A. ¦ (a) ¦ A) ¦ Answer: A ¦ **A** ¦ A. 12 ¦ The answer is A ¦ the answer is: A
- a and b ¦ A or B ¦ B, not A ¦ An apple ¦ A B ¦ Not A ¦ I am B ¦ AA
= D
+ \boxed{D} ¦ \textbf{(D)}
= ABC
+ abc
= 3 hours 20 minutes
+ 3 hours 20 minutes
- 3 hours ¦ 20 minutes ¦ 2 hours 20 minutes
= January 1, 2000
+ january 1, 2000
- January 2, 2000
= Monday
+ The answer is Monday.
- Monday or Tuesday ¦ Tuesday ¦ Mon day
= blue
+ Blue. ¦ \text{blue}
- not blue ¦ light blue
= 24
+ 4! ¦ 4 \times 6 ¦ 2^3 \cdot 3
- 4 ¦ 24 = 25
= 1
+ \sin^2 x + \cos^2 x ¦ e^0 ¦ 100% ¦ \frac{\pi}{\pi} ¦ \{1\}
= -2
+ -\sqrt{4}
= 1.41421356
+ \sqrt{2}
= \sqrt{2}
+ 1.41421356
- \sqrt{2}i ¦ 2^{1/3}
= 6
+ 3!
= 314
+ 3.14 \times 10^2 ¦ 3.14e2
= 0.1
+ 10^{-1}
= 0.001
+ 1e-3
= 16
+ 4^2 ¦ 4²
= -8
+ (-2)^3
= 7
+ |{-7}| ¦ \left|-7\right|
- 7 or -7 ¦ \pm 7
= \frac{2}{3}
+ 2/3 cups ¦ \frac{2}{3} \text{ cups} ¦ 0.666667 ¦ 0.6666666
- 0.67 ¦ 2 ¦ -\frac{2}{3}
= 2\sqrt{3}
+ \sqrt{12}
= \sqrt{12}
+ 2\sqrt3
= x^2+1
+ x^2 + 1
= \{1\}
+ 1
= \{2, 4, 6\}
+ 2, 4, 6
= [1, 2]
+ [1,2]
= 1 \le x \le 2
+ [1,2]
- 1 < x \le 2
= (-\infty, \infty)
+ (-\infty,\infty) ¦ \mathbb{R}
= all real numbers
+ All real numbers.
- real numbers only
= no solution
+ No solution.
- 0 ¦ solution
= y=x
+ x=y
- y=-x
= y = mx + b
+ y=b+mx
= \frac{1}{2}bh
+ \frac{bh}{2}
= \pi r^2
+ \pi r^{2} ¦ πr²
- 2\pi r
= 2\pi r
+ 2πr
= 4\pi
+ 4π cm ¦ 12.566371
- 4 ¦ 12.57
= 45^\circ
+ 45 degrees
= 45
+ 45°
= 1:3
+ 1:3
- 3:1
= 3\text{ to }1
+ 3 to 1
= 25 mph
+ 25 miles per hour
- 25 km/h
= 2 dozen
+ 2 dozen
= 24 eggs
+ 24
= 1st
+ 1st ¦ 1
- 2nd
= H
+ h
= T
+ T
= \left(\frac{3}{5},\frac{8}{3}\right]
+ (\frac35, \frac83]
= 6 - 5i
+ -5i+6
= p - q
+ -q+p
= 5x - 7y + 11z + 4 = 0
+ 4+11z+5x-7y=0
= \text{east}
+ East
- west
= x^3+3x-6
+ 3x + x^3 - 6
= \begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}
+ \begin{pmatrix} -\frac13 \\ \frac23 \\ \frac53 \end{pmatrix}
= 1,2,3,4
+ 4,3,2,1
= 18,\!480
+ 18480
= -\frac{35}{9}
+ -35/9
= \frac{\sqrt{3}}{3}
+ \frac{1}{\sqrt3}
= \frac{270}7\text{ degrees}
+ 270/7
= \frac{3\sqrt{3}}{4}
+ 3√3/4
= 3\sqrt{13}
+ 3√13
= .0000672
+ 6.72e-5
= 0.0000672
+ 6.72\times 10^{-5}
= 1\frac{4}{5}
+ 9/5 ¦ 1.8
= \frac{43}{2}
+ 21.5
= 4210_{5}
+ 4210_5
= 70\sqrt{2}
+ 70 √2
= 225
+ \boxed{225}^\circ
- 22.5
= \text{(B)}
+ B
= -50
+ −50
- 50
= 6+9i
+ 9i+6
- 6-9i
= \frac{9}{256}
+ 9/256
= 5 \text{ cm}
+ 5cm
= 10 + 4 = 14
+ 14
= 1,234
- 1.234
= \{2,4,6\}
- \{2,4\}
= 3
- three dogs and 4 cats ¦ 3 cats or 4 cats
= 10 + 4
- 104
= 2+3i
- 5
= 12 cm
- 12 cm^2 ¦ 12 in ¦ 12 m
= -7
- \pm 7
= 0.3
- 3/10x
= \frac{\pi}{4}
- 45
= 3.14
- \pi
"""


def pairs():
    gold = ""
    for line in TABLE.strip().splitlines():
        if line[0] == "=":
            gold = line[2:]
        else:
            for text in line[2:].split(" ¦ "):
                yield text.replace("⏎", "\n").replace("∅∅", ""), gold, line[0] == "+"


PAIRS = list(pairs())


def test_the_table_has_each_pair_once_and_is_large():
    assert len(PAIRS) == len({(text, gold) for text, gold, _ in PAIRS}) >= 800


@pytest.mark.parametrize("gold", list(dict.fromkeys(gold for _, gold, _ in PAIRS)))
def test_the_table(gold):
    """Each text as it is, as the answer in its tags, and after "Answer:"."""
    wrong = [
        (text, how, right)
        for text, of, right in PAIRS
        for how in ("{}", XML, *["The boxes.\nAnswer: {}"] * ("\n" not in text))
        if of == gold and is_right(how.replace("{}", text), gold) != right
    ]
    assert not wrong


@pytest.mark.parametrize("gold", list(dict.fromkeys(gold for _, gold, _ in PAIRS)))
def test_every_answer_is_itself_in_every_pattern(gold):
    patterns = {"xml": XML, "boxed": r"So $\boxed{{}}$.", "hash": "So.\n#### {}", "final": "So.\nAnswer: {}"}
    for pattern, text in patterns.items():
        assert is_right(text.replace("{}", gold, 1) if pattern != "boxed" else rf"\boxed{{{gold}}}", gold, pattern)
        assert is_right(f"Final: {gold}", gold, "Final: {answer}")
        assert not is_right("", gold, pattern)


@pytest.mark.parametrize(
    ("text", "gold", "pattern", "right"),
    [
        (r"\boxed{6} <answer>7</answer>", "7", "xml", True),  # the pattern's own mark comes first
        (r"\boxed{6} <answer>7</answer>", "7", "boxed", False),
        ("Answer: 7\n#### 6", "7", "xml", True),  # then a box, Answer:, ####
        (r"Answer: 6, so \boxed{7}", "7", "hash", True),
        ("#### 7", "7", "Final: {answer}", True),
        ("Final: 7\n8", "7", "Final: {answer}", True),
        (r"<answer>The answer is \boxed{7} of 8</answer>", "7", "xml", True),
        (r"First $x = 3$. So the answer is $\frac{1}{2}$. I hope this helps!", "1/2", "xml", True),
        (r"First $x = \frac{1}{2}$. So the answer is $3$. I hope this helps!", "1/2", "xml", False),
        (r"The answer is \frac12. Wait, it is \frac13.", "1/2", "xml", False),
        ("<answer>I cannot say</answer> but 7", "7", "xml", True),  # no number in the answer: the text's last
        ("x\nThe area is 9\\pi, where r = 3.", r"9\pi", "xml", True),
        ("They had 8.\nColin skips six times as fast, (2/3*6=4 miles per hour).\n", "4", "xml", True),
        ("Let $(1, 2)$ be $A$.\nHence the point is $(3, 4)$.", "(3,4)", "xml", True),
        ("Let $(3, 4)$ be $A$.\nHence the point is $(1, 2)$.", "(3,4)", "xml", False),
    ],
)
def test_where_the_answer_is(text, gold, pattern, right):
    assert is_right(text, gold, pattern) is right


def test_it_is_symmetric_where_both_are_answers():
    """Values in one form or another: which of them is the gold answer makes no difference."""
    same = ["1/2", r"\frac12", "0.5", "½", r"\frac{2}{4}", "2^{-1}"]
    assert all(is_right(one, other) for one in same for other in same)
    other = ["(1,2)", "(2,1)", r"\{1,2\}", "[1,2]", "1", "2", "3", "x", r"\sqrt{2}", r"\pi", "x+1", "x+2", "(1,2,3)"]
    assert not [pair for pair in ((a, b) for a in other for b in other) if is_right(*pair) != (pair[0] == pair[1])]


@pytest.mark.skipif(not (SHARED / "gsm8k" / "test_dev.jsonl").exists(), reason="GSM8K is not beside this checkout")
def test_solutions_of_gsm8k_have_their_own_answer_and_no_other():
    rows = [json.loads(line) for line in (SHARED / "gsm8k" / "test_dev.jsonl").read_text("utf-8").splitlines()]
    solutions = [row["answer"] for row in rows]
    golds = [extract_hash_answer(solution) for solution in solutions]
    for how in ("{}", XML, r"\boxed{{}}"):
        texts = [how.replace("{}", gold) if how != "{}" else text for text, gold in zip(solutions, golds, strict=True)]
        assert all(map(is_right, texts, golds))
        others = golds[1:] + golds[:1]
        assert not [
            (text, other)
            for text, gold, other in zip(texts, golds, others, strict=True)
            if last_number(gold) != last_number(other) and is_right(text, other)
        ]


# separated by spaces; ␣ is a space
PIECES = r"""( [ { \{ | $ \ \\ \frac{ \frac \sqrt{ \sqrt \left( \text{ \boxed{ \boxed{} ^ ^{ _ _{ 9 9, 1,000, 1/ 9^ 9!
! x x^ x+ - -- = < x= 1< , ; a, or␣ 1␣or␣ no␣ not␣1␣ is␣ answer␣is␣ answer:␣ Final␣answer:␣ #### .␣ ?␣ % 5␣cm␣ ** "
1e9 \pm \cup \in \sin \log_ \binom \begin{pmatrix} & √ ½ ² − １ ٣ <answer> </answer> <answer>1</answer> $1$␣ \(1 (1 (1,
[1,2] 1. 1.1.1 .. (A)␣ million␣ per␣ a/ 10^ \overline{3} \frac{1}{2}x a_1 ° 30° f( f(x)= \infty |x| e^ i^ ~ \mathbb{
{,} = =1␣ __import__('os')._exit(1) lambda␣x:␣ exec('1') 1␣1/2␣ '"""
PIECES = [piece.replace("␣", " ") for piece in re.split(r"\s", PIECES)] + [
    " ",
    "\n",
    "\t",
    "\0",
    "\ud800",
    "__class__",
]
GOLDS = ["72", r"\frac{1}{2}", "(1,2)", "x+1", "Paris", "5 cm", "B", r"\{1,2\}", "x=5", "12:30", r"3\sqrt{2}", "x<3"]


def seconds(text, gold):
    start = time.process_time()
    is_right(text, gold)
    return time.process_time() - start


@pytest.mark.parametrize("length", [290, 10_000])
def test_hostile_texts_are_judged_in_no_time(length):
    """Each within 50 ms of one core; here twice that, at the best of three: a collection of garbage may fall in it."""
    is_right("1/2", r"\frac12")
    for place, piece in enumerate(PIECES):
        text = piece * (length // len(piece))
        for said in (text, f"<answer>{text}1</answer>", f"The answer is {text}"):
            gold = GOLDS[place % len(GOLDS)] if said[0] != "T" else text + "1"
            assert any(seconds(said + " " * attempt, gold) < 0.1 for attempt in range(3)), (said[:50], gold)


@pytest.mark.parametrize(
    "expression",
    [
        *(
            "9^9^9^9",
            "9^{9^{9^9}}",
            "10^{10^{10}}",
            "(9^999)^999",
            "((x+1)^99)^99",
            "99999!",
            "9!!!",
            r"\binom{10^9}{5}",
        ),
        *("1e999999999", "9" * 4000, "(" * 500 + "1" + ")" * 500, r"\sqrt{" * 90 + "2" + "}" * 90, "-" * 299 + "1"),
        *(
            r"\sum_{i=1}^{10^9} i",
            r"\int_0^\infty e^{-x^2} dx",
            r"\lim_{x\to 0} x",
            "2^{2^{2^{2^{2^2}}}}",
            "x^{x^{x^x}}",
        ),
        *(r"\frac{1}{" * 40 + "1" + "}" * 40, "|x|" * 90, "0^{-1}", "1/0", r"\log 0", r"\infty-\infty"),
    ],
)
def test_hostile_mathematics_is_wrong_unless_it_is_the_same_text(expression):
    start = time.process_time()
    assert (
        not is_right(expression, "72") and not is_right(expression, r"\frac{1}{2}") and not is_right("72", expression)
    )
    assert is_right(expression, expression)
    assert time.process_time() - start < 1


@given(ANY_TEXT, ANY_TEXT)
def test_it_never_raises_for_any_two_texts(text, gold):
    assert is_right(text, gold) in (True, False) and is_right(text, text)


def test_it_never_raises_for_texts_of_pieces():
    rng = random.Random(0)
    for _ in range(3000):
        text, gold = ("".join(rng.choice(PIECES) for _ in range(rng.randrange(40))) for _ in range(2))
        is_right(text, rng.choice(GOLDS))
        is_right(text, gold, rng.choice(rewards.ANSWER_PATTERNS))


def test_threads_judge_alike():
    """No clock, no signal and no state: judgements are reproducible in any thread."""
    found: dict[int, list[bool]] = {}
    some = PAIRS[::9]

    def judge(name):
        found[name] = [is_right(text, gold) for text, gold, _ in some]

    threads = [threading.Thread(target=judge, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(found.values()) == [[right for *_, right in some]] * 4
