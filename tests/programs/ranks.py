"""train_grpo.py whose processes each write a digest of every weight that they end with: rank0.json, rank1.json."""

import hashlib
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import train_grpo
from grpo.training.run_trainer import RunTrainer

train = RunTrainer.train


def train_and_tell(self, *args, **kwargs):
    result = train(self, *args, **kwargs)
    weights = {
        name: hashlib.sha256(weight.detach().numpy().tobytes()).hexdigest()
        for name, weight in self.model.named_parameters()
    }
    Path(f"rank{os.environ['RANK']}.json").write_text(json.dumps(weights))
    return result


if __name__ == "__main__":
    RunTrainer.train = train_and_tell
    sys.exit(train_grpo.main())
