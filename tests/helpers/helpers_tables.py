"""Tables of hundreds of rows: one test of all, since pytest takes longer for a test of its own than most rows do."""

import functools
import inspect


def each(rows):
    """Decorate a test to check each row, its first argument (a tuple: its first ones), and list all that fail."""
    rows = list(rows)
    assert rows

    def decorate(test):
        @functools.wraps(test)
        def check_all(**fixtures):
            failed = []
            for row in rows:
                try:
                    test(*row if isinstance(row, tuple) else (row,), **fixtures)
                except Exception as error:
                    failed.append(f"{row!r}: {error or type(error).__name__}")
            assert not failed, "\n".join([f"{len(failed)} of {len(rows)} fail", *failed])

        names = list(inspect.signature(test).parameters.values())
        count = len(rows[0]) if isinstance(rows[0], tuple) else 1
        check_all.__signature__ = inspect.Signature(
            [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in names[count:]]
        )
        return check_all

    return decorate
