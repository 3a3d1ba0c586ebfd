"""The child of the comparison with ripgrep: print the numbers of the lines of LOG that any of PATTERNS (JSON) matches.

python benchmarks/scan/count.py LOG PATTERNS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from collector.patterns import compile_patterns, locate

if __name__ == "__main__":
    compiled = compile_patterns(json.loads(Path(sys.argv[2]).read_text()))
    print(*sorted({hit.line for hit in locate(Path(sys.argv[1]), compiled)}), sep="\n")
