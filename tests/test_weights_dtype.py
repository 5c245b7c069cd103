"""benchmarks/weights_dtype.py: what it cannot compare is refused. Its figures stand in benchmarks/RESULTS.md."""

from helpers_runs import DEMO, ROOT

from benchmarks import weights_dtype


def test_an_adapter_is_refused_since_all_weights_are_trained(capsys):
    argv = ["--config", str(ROOT / "recipes" / "demo.yaml"), "--model_name_or_path", str(DEMO / "model")]
    argv += ["--dataset_name", str(DEMO / "train.jsonl"), "--eval_dataset_name", str(DEMO / "test.jsonl")]
    assert weights_dtype.main([*argv, "--use_peft", "true"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: use_peft: True trains an adapter, and here formats of all weights are compared; drop it"
    )
