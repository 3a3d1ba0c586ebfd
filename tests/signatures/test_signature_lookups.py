"""The lookup tables of exit codes and exception types use the closed vocabularies and agree with the system's own."""

from __future__ import annotations

import builtins
import signal

import pytest

from analyzers.case import CAUSES, ROLES
from collector.data import lookup

CODES = lookup("exit_codes")
EXCEPTIONS = lookup("exceptions")


@pytest.mark.parametrize("code", CODES["codes"])
def test_an_exit_code_is_complete(code: int) -> None:
    row = CODES["codes"][code]
    assert row["role"] in ROLES and row["meaning"] and set(row["causes"]) <= set(CAUSES)
    if code < 0:
        assert row["signal"] == -code
    elif code > 128 and "signal" in row:
        assert row["signal"] == code - 128


@pytest.mark.parametrize("number", CODES["signals"])
def test_a_signal_has_its_name_and_both_exit_codes(number: int) -> None:
    row = CODES["signals"][number]
    assert signal.Signals(number).name == row["name"]
    assert CODES["codes"][-number]["name"] == CODES["codes"][128 + number]["name"] == row["name"]


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_an_exception_type_is_complete(name: str) -> None:
    row = EXCEPTIONS[name]
    assert set(row) == {"cause", "role", "title_hint"}
    assert row["cause"] in CAUSES and row["role"] in ROLES and row["title_hint"]


def test_every_builtin_error_that_can_end_a_program_is_known() -> None:
    own = {
        name
        for name, value in vars(builtins).items()
        if isinstance(value, type) and issubclass(value, BaseException) and not issubclass(value, Warning)
    }
    unknown = own - set(EXCEPTIONS) - {"EnvironmentError", "BaseExceptionGroup", "ExceptionGroup"}
    assert unknown <= {"UnicodeTranslateError", "EncodingWarning", "PythonFinalizationError"}
