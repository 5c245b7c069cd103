"""grpo/rewarding/answers.py: a table of texts and gold answers, GSM8K's solutions, and texts that are hostile."""

import pytest

from rewards import is_right

XML = "<reasoning>\nr\n</reasoning>\n<answer>\n{}\n</answer>\n"

# = the gold answer, + texts that are right, - texts that are wrong; ⏎ is a newline, ∅∅ the empty text
TABLE = r"""
= 72
+ 72 ¦ 72. ¦ 72.0 ¦ 72.00 ¦ $72 ¦ 72$ ¦ $72.00 ¦ 72% ¦ 72 apples ¦ x = 72 ¦ = 72 ¦ x=72 ¦ 18 * 4 = 72
+ 48 + 24 = 72 clips ¦ 144/2 ¦ **72** ¦ **72** apples ¦ $72$ ¦ \(72\) ¦ \boxed{72} ¦ \$72 ¦ 72\% ¦ 72\text{ apples}
+ 72^\circ ¦ 72° ¦ 72 cm^2 ¦ 72 cm² ¦ 72cm ¦ +72 ¦ 72 or 72.0 ¦ 72, 72 ¦ The answer is 72 ¦ The answer is 72.
+ It is 72! ¦ 72 (seventy-two) ¦ 72, not 71 ¦ not 71 but 72 ¦ 72 instead of 71 ¦ 3 or 4 boxes of 18, so it is 72
+ Is it 71? No, it is 72. ¦ ≈ 72 ¦ about 72 ¦ 072 ¦ \frac{144}{2} ¦ \dfrac{144}{2} ¦ 2^3 \cdot 9 ¦ 8*9 ¦ 8×9
+ 80 - 8 ¦ 70 + 2 = 72 ¦ 8 \times 9 = 72 ¦ \sqrt{5184} ¦ 72/1 ¦ $\boxed{72}$ ¦ <b>72</b> ¦ 72 km/h ¦ 72 dollars.
+ Total: 72 ¦ USD 72 ¦ 7.2e1 ¦ So $x = 72$. ¦ Hence \[x = \frac{144}{2}\] ¦ Answer: 72 ¦ #### 72
+ She has 3 boxes of 24, which is 72. ¦ First 3 or 4, maybe 5.⏎No.⏎In the end there are 72. ¦ 72 = 72
+ x = 72 apples
- 71 ¦ -72 ¦ 7.2 ¦ 720 ¦ 0.72 ¦ 172 ¦ 72 or 71 ¦ 71 or 72 ¦ 72, no 71 ¦ 72 or 71, no 72 ¦ 71, 72 ¦ 72, 71
- either 71 or 72 ¦ 72? 71? ¦ 71? 72? ¦ 72 apples or 71 apples ¦ maybe 71, maybe 72 ¦ 72 or maybe 71 ¦ 72 71
- 71 and 72 ¦ 72; 71 ¦ 72⏎71 ¦ 71⏎72 ¦ 72 (or 71) ¦ not 72 ¦ The answer is not 72 ¦ It isn't 72 ¦ 71, not 72
- 71 instead of 72 ¦ \frac{72}{5} ¦ \sqrt{72} ¦ 72\sqrt{2} ¦ 72\pi ¦ 72x ¦ 72^2 ¦ 2^72 ¦ 72 - 1 ¦ x > 72 ¦ x + 72
- x - 72 ¦ \frac{1}{72} ¦ 1/72 ¦ \pm 72 ¦ 71-72 ¦ 71–72 ¦ (72, 71) ¦ [72, 73) ¦ {72, 71} ¦ no idea ¦ ∅∅ ¦ seventy
- 72 or 71. ¦ I think 72, no wait, 71 ¦ It is 71. ¦ 72 = 71 ¦ The answer is \sqrt{72}. ¦ (1, 72) ¦ so it is $72\pi$
- 72, actually 71 ¦ 72 vs 71 ¦ 72 perhaps 71 ¦ \boxed{71} not 72 ¦ $\boxed{71}$ and 72 is wrong ¦ 72! ¦ 72i ¦ -72.0
- 72 million ¦ 72 000 ¦ 7 2
= -5
+ -5 ¦ −5 ¦ - 5 ¦ $-5 ¦ -$5 ¦ -5.0 ¦ x = -5 ¦ -10/2 ¦ -\frac{10}{2} ¦ 3 - 8 = -5 ¦ -5 degrees
- 5 ¦ +5 ¦ 5- ¦ -(-5) ¦ -5 or 5 ¦ 0-(-5)
= 1000
+ 1,000 ¦ $1,000 ¦ 1000.00 ¦ 10^3 ¦ 1e3 ¦ 1 000 ¦ 1.0 * 10^3 ¦ one = 1,000 grams ¦ 1{,}000 ¦ 1,\!000 ¦ 1 thousand
- 1 ¦ 1.000 ¦ 10,00 ¦ 100 ¦ 1,0000 ¦ 10^4 ¦ 1,000,000
= $1,200
+ 1200 ¦ $1200 ¦ 1,200 dollars ¦ $1,200.00 ¦ \$1{,}200
- 1.2 ¦ 200 ¦ $1,20 ¦ $12000
= 0.5
+ 1/2 ¦ .5 ¦ 0.50 ¦ \frac12 ¦ 50% ¦ ½ ¦ 2/4 ¦ \frac{1}{2}
- 5 ¦ 0.05 ¦ 1.5 ¦ 1/3 ¦ 0.5 or 0.6 ¦ 2
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
- \frac{5}{10} ¦ 5/10 ¦ \frac{2}{5} ¦ \sqrt{2} ¦ 1 or 2
= 5
+ 5 ¦ x=5 ¦ 5 = x ¦ 15 - 10 = 5 ¦ 5 years old ¦ \frac{10}{2} ¦ 5\text{ units} ¦ 5th ¦ five = 5 ¦ -5 + 10
- \frac{10}{5} ¦ \sqrt{5} ¦ 18-5 ¦ $\sqrt{5}$ ¦ So it is \sqrt{5}. ¦ √5 ¦ 2\sqrt{5} ¦ \frac{1}{5} ¦ x^5 ¦ 5π ¦ x<5
- y = 5x
= 0
+ 0 ¦ 0.0 ¦ -0 ¦ zero = 0 ¦ 0% ¦ 5 - 5 ¦ 0 apples
- ∅∅ ¦ 00.1 ¦ 10 ¦ none ¦ O
= 72%
+ 72 ¦ 72% ¦ 72\% ¦ 0.72 ¦ 72 percent ¦ 18/25
- 0.72% ¦ 7.2% ¦ 28% ¦ 720
= 5 cm
+ 5 ¦ 5 cm ¦ 5cm ¦ 5 centimeters ¦ 5.0 cm ¦ 5 centimetres. ¦ 5\text{ cm} ¦ 5\,\mathrm{cm} ¦ The length is 5 cm.
+ 5 CM ¦ 10/2 cm
- 5 m ¦ 5 mm ¦ 5 cm^2 ¦ 6 cm ¦ 50 mm ¦ 5 km ¦ 5 kg ¦ cm ¦ 5 cm or 6 cm ¦ 15 cm
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
+ $5 ¦ 5 ¦ 5 dollars ¦ $5.00 ¦ 5 USD
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
- \frac{3}{2} ¦ 2 ¦ 1 ¦ -1/2 ¦ 1 1/2 ¦ \frac{1}{3} ¦ 1/2 or 1/3 ¦ 0.05 ¦ 5 ¦ 12 ¦ So the answer is \frac{3}{2}.
- 2/1 ¦ 0.5% ¦ \frac{1}{2}x ¦ \frac{1}{2}\pi ¦ The answer is 1/2. No, it is 1/3. ¦ \frac{1}{2}, \frac{1}{3} ¦ half
- \frac{2}{1} ¦ 1:2
= -\frac{3}{4}
+ \frac{-3}{4} ¦ \frac{3}{-4} ¦ -3/4 ¦ -0.75 ¦ −¾
- 3/4 ¦ 0.75 ¦ -4/3 ¦ -0.7
= 1/3
+ \frac13 ¦ 2/6 ¦ 0.333333 ¦ 0.3333333333 ¦ 0.\overline{3} ¦ ⅓
- 0.33 ¦ 0.3 ¦ 0.333334 ¦ 3 ¦ 1/30
= 3\sqrt{2}
+ 3√2 ¦ 3*sqrt(2) ¦ 3 \sqrt{2} ¦ 3\sqrt2 ¦ \sqrt{18} ¦ \sqrt{2}\cdot 3 ¦ 3sqrt(2) ¦ \frac{6}{\sqrt{2}}
+ x = 3\sqrt{2} ¦ 3\sqrt{2} cm ¦ So it is $3\sqrt{2}$.
- 5\sqrt{2} ¦ 3 ¦ 2 ¦ 3\sqrt{3} ¦ 3+\sqrt{2} ¦ -3\sqrt{2} ¦ 4.24 ¦ \sqrt{6} ¦ 3\sqrt[3]{2} ¦ 3\sqrt{2} or 3
= \frac{\sqrt{2}}{2}
+ \frac{1}{\sqrt{2}} ¦ √2/2 ¦ sqrt(2)/2 ¦ \frac{\sqrt2}2 ¦ \cos 45^\circ ¦ \sqrt{\frac12}
- 2 ¦ 1/2 ¦ \sqrt{2}
= \pi
+ π ¦ pi ¦ $\pi$ ¦ x=\pi ¦ 2\pi - \pi ¦ 3.141593
- 3.14 ¦ 3 ¦ 2\pi ¦ 22/7 ¦ p i ¦ pie
= \frac{2\pi}{3}
+ 2π/3 ¦ \frac{2}{3}\pi ¦ 2pi/3 ¦ 2*pi/3
- 2/3 ¦ \frac{\pi}{3} ¦ 2π
= (1,2)
+ (1, 2) ¦ \left(1,2\right) ¦ ( 1 , 2 ) ¦ (1.0, 2) ¦ $(1,2)$ ¦ (x, y) = (1, 2) ¦ The point is (1,2).
+ \boxed{(1,2)} ¦ (1, \frac{4}{2}) ¦ 1, 2
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
+ (x-1)(x+1) ¦ -1+x^2 ¦ x²−1 ¦ x**2-1 ¦ x*x - 1
- x^2+1 ¦ (x-1)^2 ¦ x-1 ¦ 2x-1
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
- 20 ¦ 10 ¦ 2 ¦ 210 ¦ 1023
= x^2 \le 4
+ 4 \ge x^2 ¦ x^2 <= 4
- x^2 < 4 ¦ x^2 \ge 4
= \text{Evelyn}
+ Evelyn ¦ evelyn ¦ \text{Evelyn} ¦ Evelyn. ¦ $\text{Evelyn}$ ¦ **Evelyn** ¦ The answer is Evelyn.
+ \boxed{\text{Evelyn}}
- Eve ¦ Carla ¦ Evelyn or Carla ¦ not Evelyn ¦ n
= Paris
+ paris ¦ Paris. ¦ PARIS ¦ "Paris" ¦ **Paris** ¦ The answer is Paris. ¦ Answer: Paris ¦ \boxed{Paris}
- London ¦ Paris or London ¦ Paris, Texas ¦ P*a*r*i*s ¦ Pari ¦ ∅∅ ¦ paris 5
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
- no ¦ yes and no ¦ y ¦ yesno
= True
+ true ¦ True.
- false ¦ True or False ¦ not true
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
        for how in ("{}", XML, "The boxes.\nAnswer: {}")
        if of == gold and not (how[0] == "T" and "\n" in text) and is_right(how.replace("{}", text), gold) != right
    ]
    assert not wrong
