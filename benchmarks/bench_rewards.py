"""Time per completion of every reward on the worst input we know for it: linear, or it would stall a whole rollout.

python benchmarks/bench_rewards.py
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from rewards import REWARD_FUNCS, is_right

SIZES = (1_000, 10_000, 100_000, 1_000_000)
HEAD = "<reasoning>\n"
# For each: what makes a regular expression or a split expensive
INPUTS = {
    "starts of an answer": lambda n: HEAD + "</reasoning>\n<answer>\n" * (n // 22),
    "ends without a start": lambda n: HEAD + "</reasoning> " * (n // 13),
    "blank space": lambda n: HEAD + "</reasoning>" + " " * n,
    "blank space, again and again": lambda n: HEAD + ("</reasoning>" + " " * 200) * (n // 212),
    "strict all but the end": lambda n: HEAD + "\n</reasoning>\n<answer>\n" + "\n</answer>\n" * (n // 11) + "x",
    "overlapping ends": lambda n: "\n</answer>" * (n // 10) + "\n",
    "near misses": lambda n: "\n</answe" * (n // 8),
    "answers": lambda n: "<answer>" * (n // 8),
    "digits": lambda n: "<answer>" + "1" * n,
    "thousands": lambda n: "1,111," * (n // 6),
    "signs": lambda n: "-$" * (n // 2),
    "steps": lambda n: "<think>" + "\n".join(f"{i} + {i} * 2 - {i} = {i}" for i in range(n // 30)) + "</think>",
    "prose": lambda n: "so 3 + 4 = 7 " * (n // 13),
}


def best_of(function: Callable[[str], object], text: str) -> float:
    """Seconds of the fastest of several calls."""
    times = []
    for _ in range(20 if len(text) < 500_000 else 5):
        start = time.process_time()
        function(text)
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    functions = {
        name: lambda text, reward=reward: reward([text], answer=["7"], completion_ids=[[1]])
        for name, reward in REWARD_FUNCS.items()
    }
    functions["lenient correctness"] = lambda text: is_right(text, "7")
    print(f"{'':28}{'1k':>10}{'10k':>10}{'100k':>10}{'1M':>10}   1M / 100k   worst input")
    for name, function in functions.items():
        worst = None
        for label, make in INPUTS.items():
            times = [best_of(function, make(size)) for size in SIZES]
            if worst is None or times[-1] > worst[0][-1]:
                worst = times, label
        times, label = worst
        cells = "".join(f"{1e6 * seconds:>8.0f}us" for seconds in times)
        print(f"{name:28}{cells}   {times[-1] / times[-2]:>9.1f}   {label}")


if __name__ == "__main__":
    main()
