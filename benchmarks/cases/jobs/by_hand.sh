#!/bin/bash
# Ranks started by a shell loop with one log file each, as on a workstation; nobody stops the others when one dies.
mkdir -p /scratch/run/out
export MASTER_ADDR=127.0.0.1 MASTER_PORT=${PORT:-29940} WORLD_SIZE=$1
for r in $(seq 0 $(($1 - 1))); do
  if [ "$r" = "$BROKEN_RANK" ]; then NODE=$r; else NODE=x; fi
  RANK=$r LOCAL_RANK=$r NODE=$NODE python "${@:2}" 2>&1 | tee /scratch/run/out/rank_$r.log &
done
wait
