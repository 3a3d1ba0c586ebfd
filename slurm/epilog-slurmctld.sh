#!/bin/sh
# EpilogSlurmctld (SlurmUser, on the controller, no PATH, no HOME, no SLURM_CONF): notes that a job ended.
#   slurm.conf: EpilogSlurmctld=/etc/firstfault/hooks/epilog-slurmctld.sh
# One ticket per job; the drain asks the controller what the job really was, once for the whole job, after it is over.
spool=/var/spool/firstfault/head

exec </dev/null >/dev/null 2>&1
trap 'exit 0' EXIT HUP INT QUIT ABRT USR1 USR2 PIPE ALRM TERM
PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
export PATH LC_ALL
umask 077

job=${SLURM_JOB_ID:-}
case $job in '' | *[!0-9]*) exit 0 ;; esac
exit2=${SLURM_JOB_EXIT_CODE2:-0:0} restart=${SLURM_JOB_RESTART_COUNT:-0}
case $exit2 in *[!0-9:]*) exit2=0:0 ;; esac
case $restart in *[!0-9]*) restart=0 ;; esac
name=h.$job.$restart.${exit2%%:*}.${exit2##*:}.$$
[ -d "$spool/new" ] || mkdir -p "$spool/new" "$spool/tmp" "$spool/evidence"

if printf '%s\n' "v=1" "job=$job" "restart=$restart" "exit=$exit2" "derived=${SLURM_JOB_DERIVED_EC:-0}" \
  "start=${SLURM_JOB_START_TIME:-}" "het=${SLURM_HET_JOB_ID:-}" "offset=${SLURM_HET_JOB_OFFSET:-}" \
  "array=${SLURM_ARRAY_JOB_ID:-}" "task=${SLURM_ARRAY_TASK_ID:-}" "uid=${SLURM_JOB_UID:-}" \
  "user=${SLURM_JOB_USER:-}" "nodes=${SLURM_JOB_NODELIST:-}" "cluster=${SLURM_CLUSTER_NAME:-}" "end=1" \
  >"$spool/tmp/$name"; then
  mv "$spool/tmp/$name" "$spool/new/$name"
else
  printf '' >"$spool/new/$name"
  rm -f "$spool/tmp/$name"
fi
exit 0
