"""Which files are a job's output: `%`-patterns as Slurm expands them, and the patterns that only its script names.

After the end no tool of Slurm (before 25.05) knows where a step wrote, so the batch script is read for srun's `-o` and
torchrun's `--log-dir`. A pattern becomes a glob, and a regular expression that says which rank or node a file it finds
belongs to. Sources: sbatch(1) and srun(1) "filename pattern"/"IO Redirection".
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from collector.slurm_record import JobRecord

_ESCAPE = re.compile(r"%(?:%|(\d*)([aAbJjNnstux]))")
_SPECIAL = re.compile(r"([*?\[\]])")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
_ASSIGNMENT = re.compile(r"^(?:export\s+|readonly\s+|local\s+)?([A-Za-z_]\w*)=(.*)$")
_COMMAND = re.compile(r"\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`")
_OPTIONS = {"-o": "stdout", "--output": "stdout", "-e": "stderr", "--error": "stderr"}
_PROGRAM = re.compile(
    r"(?:^|/)(?:python[\d.]*|torchrun|bash|sh|zsh|env|deepspeed|accelerate|numactl|time|nsys|apptainer|singularity|enroot)$"
    r"|^[^-=%]+\.(?:py|sh)$"
)
_LOG_DIRS = ("--log-dir", "--log_dir", "--logdir")
_MAX_SCRIPT = 1 << 20


@dataclass(frozen=True, slots=True)
class FilePattern:
    """Where files may lie and what their names say."""

    glob: str
    """Absolute; `*`, `?`, `[...]` as in fnmatch, `**` for any depth."""
    regex: str = ""
    """For the whole path, with groups `rank`, `node`, `nodeid`, `step` where the name tells; empty for none."""
    stream: str | None = None
    """stdout | stderr, if the two were separated."""
    origin: str = "record"
    """Who named it: record | script | config | search | local."""


def escape(text: str) -> str:
    """`text` as a glob that matches only itself."""
    return _SPECIAL.sub(r"[\1]", text)


def values(record: JobRecord, cluster: str | None = None) -> dict[str, str]:
    """What `%`-letters stand for in the batch step of a job. Slurm's names of single letters, in its own forms."""
    master = record.array or record.job
    known = {
        "A": str(master),
        "a": str(record.task) if record.task is not None else "4294967294",
        "b": str(record.task % 10) if record.task is not None else "4",
        # each component of a heterogeneous job has its own id here, unlike in SLURM_JOB_ID
        "j": str(record.job),
        "u": record.user or "*",
        "x": record.name or "*",
    }
    del cluster
    return known


def pattern(
    text: str, known: Mapping[str, str], base: str, *, stream: str | None = None, origin: str = "record"
) -> FilePattern | None:
    r"""A file pattern of Slurm as a FilePattern; None for what is no file of its own (`/dev/null`, `none`).

    `known`: letter -> value; other letters match anything. A backslash anywhere switches `%` off, as in Slurm.
    """
    if text in ("", "none", "/dev/null", "all") or text.isdigit():
        return None
    path = posixpath.normpath(posixpath.join(base or "/", text))
    if "\\" in path:
        plain = path.replace("\\", "")
        return FilePattern(escape(plain), "", stream, origin)
    glob, regex, at = "", "", 0
    for match in _ESCAPE.finditer(path):
        before = path[at : match.start()]
        glob, regex, at = glob + _literal(before, origin), regex + _expression(before, origin), match.end()
        letter, width = match[2], int(match[1] or 0)
        if letter is None:
            glob, regex = glob + "%", regex + "%"
            continue
        value = known.get(letter)
        if value is not None and value != "*":
            if value.isdigit():
                # more than ten digits of padding are ignored by Slurm
                value = value.zfill(min(width, 10))
            glob, regex = glob + escape(value), regex + re.escape(value)
        else:
            glob += "*"
            regex += _group(letter, regex)
    glob, regex = glob + _literal(path[at:], origin), regex + _expression(path[at:], origin)
    return FilePattern(glob, regex, stream, origin)


def _literal(text: str, origin: str) -> str:
    """Text of a pattern as a glob. In a script's pattern a star is ours: it stands for a variable nobody knows."""
    return "*".join(map(escape, text.split("*"))) if origin == "script" else escape(text)


def _expression(text: str, origin: str) -> str:
    return "[^/]*".join(map(re.escape, text.split("*"))) if origin == "script" else re.escape(text)


def _group(letter: str, before: str) -> str:
    name = {"t": "rank", "N": "node", "n": "nodeid", "s": "step"}.get(letter)
    inside = r"[^/]*" if letter in "Nux" else r"[^/]*?" if letter == "J" else r"\d+"
    return f"(?P<{name}>{inside})" if name and f"(?P<{name}>" not in before else inside


def of_record(record: JobRecord) -> list[FilePattern]:
    """The output files that the record names: its own text if it is expanded, else the default name."""
    known, base = values(record), record.work_dir or "/"
    default = "slurm-%A_%a.out" if record.task is not None else "slurm-%j.out"
    both = [(record.stdout or default, "stdout"), (record.stderr or "", "stderr")]
    apart = bool(record.stderr) and record.stderr != record.stdout
    found = [pattern(text, known, base, stream=stream if apart else None) for text, stream in both if text]
    return unique(one for one in found if one is not None)


def of_script(script: str, record: JobRecord) -> list[FilePattern]:
    """What the batch script says about outputs of its steps: srun's -o and -e, torchrun's log folder."""
    variables = _variables(record)
    known, base = values(record), record.work_dir or "/"
    found: list[FilePattern | None] = []
    for words in _commands(script[:_MAX_SCRIPT]):
        if len(words) == 1 and (match := _ASSIGNMENT.match(words[0])):
            variables[match[1]] = _substituted(match[2], variables)
            continue
        if words[0] == "export" or (words[0] == "cd" and len(words) > 1):
            if words[0] == "cd":
                base = posixpath.normpath(posixpath.join(base, _substituted(words[1], variables)))
            for word in words[1:]:
                if match := _ASSIGNMENT.match(word):
                    variables[match[1]] = _substituted(match[2], variables)
            continue
        names = {word.rpartition("/")[2] for word in words}
        if "srun" in names:
            options = [(_substituted(text, variables), stream) for text, stream in _outputs(_of_srun(words))]
            apart = {stream for _, stream in options} >= {"stdout", "stderr"}
            found += [pattern(t, known, base, stream=s if apart else None, origin="script") for t, s in options]
        found += [_log_dir(_substituted(text, variables), base) for text in _options(words, _LOG_DIRS)]
    return unique(one for one in found if one is not None and one.glob.count("*") < 12)


def _log_dir(text: str, base: str) -> FilePattern | None:
    path = posixpath.normpath(posixpath.join(base, text))
    # torchrun: <log dir>/<run id>/attempt_K/<local rank>/{stdout,stderr}.log
    return FilePattern(f"{_literal(path, 'script')}/**/attempt_*/*/*", "", None, "script") if path != "/" else None


def _of_srun(words: list[str]) -> list[str]:
    """The words up to the program that srun starts: its options are not srun's."""
    program = next((index for index, word in enumerate(words) if index and _PROGRAM.search(word)), len(words))
    return words[:program]


def _outputs(words: list[str]) -> list[tuple[str, str]]:
    found = []
    for option, stream in _OPTIONS.items():
        found += [(text, stream) for text in _options(words, (option,))]
    return found


def _options(words: list[str], names: Iterable[str]) -> list[str]:
    """Values of options in a command line, `--name value`, `--name=value` or `-xvalue`."""
    found = []
    for index, word in enumerate(words):
        for name in names:
            if word == name and index + 1 < len(words):
                found.append(words[index + 1])
            elif name.startswith("--") and word.startswith(name + "="):
                found.append(word[len(name) + 1 :])
            elif not name.startswith("--") and word.startswith(name) and len(word) > 2:
                found.append(word[2:].removeprefix("="))
    return found


def _commands(script: str) -> list[list[str]]:
    """The words of each command line of a shell script, as far as a line can be read without running it."""
    joined = script.replace("\\\n", " ")
    commands = []
    for line in joined.splitlines():
        if line.lstrip().startswith("#"):
            continue
        line = _COMMAND.sub("*", line)
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            words = line.split()
        current: list[str] = []
        for word in words:
            if word in ("&&", "||", ";", "|", "&", "then", "do", "else"):
                commands.append(current)
                current = []
            else:
                current.append(word.rstrip(";"))
        commands.append(current)
    return [words for words in commands if words]


def _variables(record: JobRecord) -> dict[str, str]:
    known = {
        "SLURM_JOB_ID": str(record.het or record.job),
        "SLURM_JOBID": str(record.het or record.job),
        "SLURM_JOB_NAME": record.name,
        "SLURM_JOB_USER": record.user,
        "USER": record.user,
        "SLURM_SUBMIT_DIR": record.work_dir,
        "PWD": record.work_dir,
        "SLURM_ARRAY_JOB_ID": str(record.array) if record.array else None,
        "SLURM_ARRAY_TASK_ID": str(record.task) if record.task is not None else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _substituted(text: str, variables: Mapping[str, str]) -> str:
    """`text` with the variables that are known; `%` in their values is Slurm's, unknown ones match anything."""

    def value(match: re.Match[str]) -> str:
        known = variables.get(match[1] or match[3])
        return known if known is not None else match[2] if match[2] is not None else "*"

    return _VARIABLE.sub(value, text.strip("\"'"))


def unique(patterns: Iterable[FilePattern]) -> list[FilePattern]:
    """Each glob once, the first that named it."""
    return list({one.glob: one for one in reversed(list(patterns))}.values())[::-1]


def config_pattern(text: str, known: Mapping[str, str], base: str) -> FilePattern:
    """A glob of the configuration, in which `%`-letters are expanded and `*`, `?`, `[...]`, `**` mean themselves."""

    def value(match: re.Match[str]) -> str:
        if match[2] is None:
            return "%"
        found = known.get(match[2])
        return escape(found) if found is not None and found != "*" else "*"

    return FilePattern(posixpath.normpath(posixpath.join(base or "/", _ESCAPE.sub(value, text))), "", None, "config")
