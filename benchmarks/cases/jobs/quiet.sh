#!/bin/bash
# An entry point that shows a rank's output only when the rank has ended; the rank in SLOW_UPLOAD first sends a report.
out=$(mktemp)
python "$@" >"$out" 2>&1
code=$?
if [ "$RANK" = "$SLOW_UPLOAD" ] && [ $code -ne 0 ]; then sleep 6; fi
cat "$out"
rm -f "$out"
exit $code
