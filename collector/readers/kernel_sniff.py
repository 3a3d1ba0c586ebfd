"""Tells a kernel log from all else by its first bytes. Decision: a rank's log that quotes kernel lines is none."""

from __future__ import annotations

import re

_COUNTER = re.compile(rb"[a-z_]+ \d+$")
_PRIORITY = rb"(?:<\d+>(?:1 )?|[a-z0-9]+\s*:[a-z]+\s*:\s?)?"
_DMESG_LINE = re.compile(
    _PRIORITY + rb"\[\s*\d+\.\d{6}\]|\d+,\d+,\d+,[^;]{0,40};|(?:Panic|Oops)#\d+ Part\d+|(?:kernel: )?NVRM: "
)
_CTIME_LINE = re.compile(_PRIORITY + rb"\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2}\s+\d+ [\d:]{8} \d{4}\]")
_SYSLOG_LINE = re.compile(
    _PRIORITY + rb"(?:[A-Z][a-z]{2}\s+\d+ [\d:]{8}|\d{10}\.\d{6}|(?:[A-Z][a-z]{2} )?\d{4}-\d\d-\d\d[T ][\d:]{8}\S*"
    rb"(?: (?:UTC|GMT|[A-Z]{1,3}ST|[A-Z]DT|[CE]ET))?) "
)
_DMESG_ISO_LINE = re.compile(_PRIORITY + rb"\d{4}-\d\d-\d\dT[\d:]{8},\d{6}[+-]\d\d:?\d\d ")
_KERNEL_LINE = re.compile(_SYSLOG_LINE.pattern + rb"(?:(?!INFO|WARN|ERROR|DEBUG|-)\S+ )?kernel(?:\[\d+\])?: ")
_DAEMON = re.compile(rb" (?:systemd|systemd-\w+|sshd|CRON|dockerd|kubelet|containerd|audit)(?:\[\d+\])?: ")
_WORDS = re.compile(
    rb"NVRM:|Linux version|oom-kill|oom_reaper|Out of memory|Call Trace|</?TASK>|R[IS]P: |mlx5_core|pcieport|"
    rb"EXT4-fs|XFS|Lustre|nfs:|audit:|systemd\[1\]|usb \d|memory: usage|mce:|EDAC|ACPI|blocked for more than|"
    rb"segfault at|IPv6: ADDRCONF"
)


def looks_like(head: bytes) -> bool:
    """Whether the first bytes of a file are a kernel log (or a cgroup memory counter); false for logs of ranks.

    Most lines have to carry a kernel log's prefix, and where the prefix alone is not telling, the words of a kernel
    have to be there too.
    """
    if b"\0" in head[:1024] or not head.strip():
        return False
    if is_counters(head):
        return True
    lines = [line for line in head.splitlines()[:400] if line.strip() and not line.startswith(b"-- ")]
    if not lines:
        return False
    if lines[0].startswith(b"{"):
        return _is_journal(lines[:50])
    enough = 0.6 * len(lines)
    if sum(1 for line in lines if _DMESG_LINE.match(line)) >= enough:
        return True
    # `dmesg -T` and `dmesg --time-format iso` have a time and no sender at all
    if sum(1 for line in lines if _CTIME_LINE.match(line) or _DMESG_ISO_LINE.match(line)) >= enough:
        return _WORDS.search(head) is not None
    if sum(1 for line in lines if _SYSLOG_LINE.match(line)) < 0.8 * len(lines):
        return False
    if any(_KERNEL_LINE.match(line) for line in lines):
        return True
    return 2 * sum(1 for line in lines if _DAEMON.search(line[:200])) >= len(lines)


def is_counters(head: bytes) -> bool:
    """`memory.oom_control` (cgroup v1) or `memory.events` (v2): only `name number` lines, one of them `oom_kill`."""
    if len(head) > 4096 or b"oom_kill " not in head:
        return False
    return all(_COUNTER.match(line.strip()) for line in head.splitlines() if line.strip())


def _is_journal(lines: list[bytes]) -> bool:
    """Lines of `journalctl -o json` with at least one from the kernel."""
    first = lines[0]
    if b"__REALTIME_TIMESTAMP" not in first or b"MESSAGE" not in first:
        return False
    return any(b'"kernel"' in line for line in lines)
