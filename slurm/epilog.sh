#!/bin/sh
# Epilog of a compute node (root, no PATH, no HOME): notes that a job ended, and keeps what would die with it.
#   slurm.conf: Epilog=/etc/firstfault/hooks/epilog.sh
# Always exits 0, because anything else drains the node. A job that ended with 0:0 costs one small file and no Python:
# cancel, time limit and requeue look like success here, so the drain asks later. Nothing that the user controls is read.
spool=/var/spool/firstfault/node
limit=1        # seconds that a failed job's Epilog waits for what it keeps; it is still written after that
patience=20    # seconds after which a tool that hangs is given up

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
# all that matters is in the name: it survives a full disk and a power cut
name=n.$job.$restart.${exit2%%:*}.${exit2##*:}.$$
[ -d "$spool/new" ] || mkdir -p "$spool/new" "$spool/tmp" "$spool/evidence"

ticket() {
  printf '%s\n' "v=1" "job=$job" "restart=$restart" "exit=$exit2" "derived=${SLURM_JOB_DERIVED_EC:-0}" \
    "start=${SLURM_JOB_START_TIME:-}" "het=${SLURM_HET_JOB_ID:-}" "uid=${SLURM_JOB_UID:-}" "user=${SLURM_JOB_USER:-}" \
    "node=${SLURMD_NODENAME:-}" "nodes=${SLURM_NODELIST:-}" "gpus=${SLURM_JOB_GPUS:-}" \
    "cluster=${SLURM_CLUSTER_NAME:-}" "conf=${SLURM_CONF:-}" "end=1"
}

kept() { # file, command: its output under that name, whole or not at all; why it failed beside it
  to=$1
  shift
  command -v "$1" >/dev/null || return 0
  if timeout -k 1 "$patience" "$@" >"$to.part" 2>"$to.why"; then mv "$to.part" "$to"; rm -f "$to.why"; fi
  return 0
}

keep() { # what dies with the job, or is overwritten soon; cheap things first
  mkdir "$spool/evidence/$name" && cd "$spool/evidence/$name" || return 0
  number=0
  for file in /sys/fs/cgroup/system.slice/*slurmstepd.scope/job_"$job"/memory.events \
    /sys/fs/cgroup/memory/slurm*/uid_*/job_"$job"/memory.oom_control; do
    [ -r "$file" ] || continue
    number=$((number + 1))
    cat "$file" >"cgroup-$number.txt"
  done
  kept dmesg.full dmesg --time-format=iso
  [ -s dmesg.full ] || kept dmesg.full dmesg
  tail -c 2000000 dmesg.full >dmesg.part && mv dmesg.part dmesg.txt
  rm -f dmesg.full
  kept nvidia-smi.xml nvidia-smi -q -x
  kept rocm-smi.json rocm-smi --showallinfo --json
  printf 'done\n' >complete
}

if ticket >"$spool/tmp/$name"; then
  mv "$spool/tmp/$name" "$spool/new/$name"
else
  printf '' >"$spool/new/$name"
  rm -f "$spool/tmp/$name"
fi
[ "$exit2" = 0:0 ] && exit 0

# in the background with nothing of ours open: a driver that hangs holds no Epilog
(trap - EXIT HUP INT QUIT ABRT USR1 USR2 PIPE ALRM TERM; keep) 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- &
tenths=$((limit * 10))
while [ "$tenths" -gt 0 ] && [ ! -e "$spool/evidence/$name/complete" ]; do
  sleep 0.1
  tenths=$((tenths - 1))
done
exit 0
