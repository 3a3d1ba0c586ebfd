#!/bin/sh
# A node whose clock is wrong: CLOCK holds the faketime command, or nothing.
exec $CLOCK python "$@"
