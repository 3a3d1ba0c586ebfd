"""Consistent pseudonyms for people and machines: the same name gives the same pseudonym wherever the same key is used.

Keyed (HMAC-SHA256), because names of users and hosts are few and a bare hash of them is undone by trying all. A fleet
that keeps its key can still count failures by node and by user; who lacks the key learns neither.
"""

from __future__ import annotations

import hashlib
import hmac
import re

_LENGTH = 10
"""Hexadecimal digits of a pseudonym: 40 bits, a collision among 10,000 names has a chance of 1 in 20,000."""

_HOME = re.compile(r"(?P<root>/(?:[\w.-]+/)*(?:home|homes|Users|users)/)(?P<user>[^/\s\"':,;()\[\]<>]+)")
_TILDE = re.compile(r"(?P<before>^|[\s\"'=:(])~(?P<user>[A-Za-z_][\w.-]*)")
_ADDRESS = re.compile(r"\[?(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f:]*:[0-9A-Fa-f:]+)\]?")


class Pseudonymiser:
    """Replaces users, hosts and home folders; names once given to `user` or `host` also in paths and text."""

    def __init__(self, key: bytes) -> None:
        """`key`: any secret of at least 16 bytes; ValueError if it is shorter."""
        if len(key) < 16:
            raise ValueError("the pseudonym key must have at least 16 bytes")
        self._key = key
        self._known: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None

    def host(self, name: str) -> str:
        """`host-<hex>`. A host and its fully qualified name are one host, in any case; an address is one too."""
        bare = name.strip()
        label = bare if _ADDRESS.fullmatch(bare) else bare.partition(".")[0]
        return self._remember(label, self._pseudonym("host", label.lower())) if label else name

    def user(self, name: str) -> str:
        """`user-<hex>`; root stays root, since it says something about the failure and nothing about a person."""
        bare = name.strip()
        if not bare or bare == "root":
            return name
        return self._remember(bare, self._pseudonym("user", bare))

    def path(self, path: str) -> str:
        """The path with the user of a home folder replaced, and every part that is a known user or host."""
        return self.text(path)

    def text(self, text: str) -> str:
        """The text with the users of home folders and all known names replaced."""
        text = _HOME.sub(lambda match: match["root"] + self.user(match["user"]), text)
        text = _TILDE.sub(lambda match: f"{match['before']}~{self.user(match['user'])}", text)
        if not self._known:
            return text
        if self._pattern is None:
            # Longest first: node-1 must not eat the beginning of node-10. A name ends where no name could go on.
            names = "|".join(re.escape(name) for name in sorted(self._known, key=len, reverse=True))
            self._pattern = re.compile(rf"(?<![\w-])(?:{names})(?![\w-])")
        return self._pattern.sub(lambda match: self._known[match[0]], text)

    def _remember(self, name: str, pseudonym: str) -> str:
        if name not in self._known:
            self._known[name] = pseudonym
            self._pattern = None
        return pseudonym

    def _pseudonym(self, kind: str, name: str) -> str:
        if re.fullmatch(rf"{kind}-[0-9a-f]{{{_LENGTH}}}", name):
            return name  # done before: doing it again must change nothing
        digest = hmac.new(self._key, f"{kind}\0{name}".encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
        return f"{kind}-{digest[:_LENGTH]}"
