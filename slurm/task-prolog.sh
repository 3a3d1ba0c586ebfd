#!/bin/sh
# TaskProlog (the job's user, before each task), optional: what it prints as `export NAME=value` is set for the task.
#   slurm.conf: TaskProlog=/etc/firstfault/hooks/task-prolog.sh
# Turns on the flight recorder, its dump at a time-out, Python's stack at a crash and the error file of torch's @record,
# each only where the user has not chosen. A nonzero exit would keep the rank from starting, so it always exits 0.
exec </dev/null 2>/dev/null
trap 'exit 0' EXIT HUP INT QUIT ABRT USR1 USR2 PIPE ALRM TERM
case ${SLURM_STEP_ID:-} in '' | *[!0-9]*) exit 0 ;; esac
case ${SLURM_JOB_ID:-x}${SLURM_PROCID:-x} in *[!0-9]*) exit 0 ;; esac

# 2.5 and older know the first name, later versions both
[ -n "${TORCH_NCCL_TRACE_BUFFER_SIZE+set}${TORCH_FR_BUFFER_SIZE+set}" ] ||
  printf '%s\n' 'export TORCH_NCCL_TRACE_BUFFER_SIZE=2000' 'export TORCH_FR_BUFFER_SIZE=2000'
[ -n "${TORCH_NCCL_DUMP_ON_TIMEOUT+set}" ] || printf '%s\n' 'export TORCH_NCCL_DUMP_ON_TIMEOUT=1'
[ -n "${TORCH_NCCL_DEBUG_INFO_TEMP_FILE+set}${TORCH_FR_DUMP_TEMP_FILE+set}" ] ||
  printf 'export %s=/tmp/nccl_trace_job%s_rank_\n' TORCH_NCCL_DEBUG_INFO_TEMP_FILE "$SLURM_JOB_ID" \
    TORCH_FR_DUMP_TEMP_FILE "$SLURM_JOB_ID"
[ -n "${PYTHONFAULTHANDLER+set}" ] || printf '%s\n' 'export PYTHONFAULTHANDLER=1'
[ -n "${TORCHELASTIC_ERROR_FILE+set}" ] ||
  printf 'export TORCHELASTIC_ERROR_FILE=/tmp/firstfault_job%s_rank_%s_error.json\n' "$SLURM_JOB_ID" "$SLURM_PROCID"
exit 0
