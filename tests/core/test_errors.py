"""grpo/core/errors.py: what of the libraries' exceptions becomes one readable line, and what passes."""

import errno
import re

import pytest
import safetensors.torch

from grpo.core.errors import Gone, UserError, readable, translate

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] "
RUN = {
    "output": "outputs/X",
    "free": lambda: "1.0 MB free",
    "left": lambda: "the newest",
    "way_on": lambda: "To resume",
}


@pytest.fixture
def second(monkeypatch):
    """As the second of two processes."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_librarys_word_for_a_full_disk_is_known(error):
    line = r"the disk of 'outputs/X' is full \(1.0 MB free\); the newest; .* To resume"
    with pytest.raises(UserError, match=line), readable("the run", **RUN):
        raise error
    assert translate(error, "", RUN) is None  # a run's directory is what a run knows of


def test_a_full_disk_is_found_behind_what_was_raised_for_it():
    with pytest.raises(UserError, match="is full"), readable("the run", **RUN):
        try:
            raise OSError(errno.ENOSPC, "full")
        except OSError as error:
            raise RuntimeError("while saving") from error


@pytest.mark.parametrize("error", [ValueError("another"), OSError(errno.EIO, "Input/output error"), KeyError("x")])
def test_other_errors_pass_as_they_are(second, error):
    with pytest.raises(type(error)) as raised, readable("the run", **RUN):
        raise error
    assert raised.value is error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError(f"{GLOO}Connection closed by peer [10.0.0.6]:16592"), "Connection closed by peer"),
        (RuntimeError("NCCL error in: x.cpp:1\nncclRemoteError: A call failed"), "NCCL error in"),
    ],
    ids=["gloo", "nccl"],
)
def test_a_process_that_is_gone_is_one_line(second, monkeypatch, error, reason):
    line = rf"gone or does not answer \({re.escape(reason)}.*nothing was trained"
    with pytest.raises(Gone, match=line) as raised, readable(left="nothing was trained"):
        raise error
    assert "/gloo/" not in str(raised.value)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert translate(error, "", {}) is None


@pytest.mark.parametrize(
    "error",
    [
        ValueError("CUDA out of memory"),
        RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
        ConnectionResetError(104, "Connection reset by peer"),  # of a reward that asks a server
    ],
    ids=["memory", "shapes", "elsewhere"],
)
def test_what_only_looks_like_a_process_that_is_gone_passes(second, error):
    assert translate(error, "", {}) is None


def test_what_hub_and_trl_say_counts_only_where_they_were_asked():
    for doing, line in (("the trainer", "two things"), ("loading", r"'m' does not load \(two things\)")):
        with pytest.raises(UserError, match=line), readable(doing, name="m"):
            raise ValueError("two things")
    with pytest.raises(ValueError, match="two things"), readable("the Hub", remedy="log in"):
        raise ValueError("two things")


def test_a_full_device_has_the_advice_of_who_has_some():
    full = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    with pytest.raises(RuntimeError) as raised, readable("loading", name="m"):
        raise full
    assert raised.value is full
    line = r"out of memory in loading \(it asked for 2.00 GiB more\)"
    with pytest.raises(UserError, match=f"{line}$"), readable(left="nothing"):
        raise full
    with (
        pytest.raises(UserError, match=f"{line}; do less"),
        readable("the run", lambda phase: "do less", **RUN),
    ):
        raise full
