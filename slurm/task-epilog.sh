#!/bin/sh
# TaskEpilog (the job's user, right after each task): an empty file whose name and time say which rank ended when, and
# on which node it ran. No exit code tells which rank failed first.
#   slurm.conf: TaskEpilog=/etc/firstfault/hooks/task-epilog.sh
# Writes nothing to the rank's log, where its standard error leads. The folder has the sticky bit; whoever reads it
# believes only files of the job's user.
tasks=/var/spool/firstfault/tasks

exec </dev/null >/dev/null 2>&1
trap 'exit 0' EXIT HUP INT QUIT ABRT USR1 USR2 PIPE ALRM TERM
umask 077
[ -d "$tasks" ] || exit 0
case ${SLURM_STEP_ID:-} in '' | *[!0-9]*) exit 0 ;; esac
for value in "${SLURM_JOB_ID:-x}" "${SLURM_PROCID:-x}" "${SLURM_LOCALID:-x}"; do
  case $value in *[!0-9]*) exit 0 ;; esac
done
printf '' >"$tasks/$SLURM_JOB_ID.$SLURM_STEP_ID.$SLURM_PROCID.$SLURM_LOCALID.${SLURMD_NODENAME:-x}"
exit 0
