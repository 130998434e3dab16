#!/usr/bin/env bash
# Stops what up.sh started, by its pid files, and no other process.
work=${1:-${TMPDIR:-/tmp}/pe-lab-slurm}
if [ -s "$work/slurmctld.pid" ]; then
    timeout 10 scancel --quiet --user="$(id -un)"
fi
for name in slurmctld slurmd slurmdbd mariadbd munged; do
    file=$work/$name.pid
    [ $name = mariadbd ] && file=$work/mysql/$name.pid
    if [ -s "$file" ]; then
        pid=$(cat "$file")
        kill "$pid"
        for _ in $(seq 50); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.2
        done
    fi
done
if grep -qsF "# by pe-lab's" /etc/slurm/slurm.conf; then
    rm -f /etc/slurm/slurm.conf /etc/slurm/slurmdbd.conf
fi
