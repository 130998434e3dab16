#!/usr/bin/env bash
# A SLURM of one node on this machine, accounts and preemption in it, for tests/slurm: about 15 s.
# Needs Debian or Ubuntu and root; no systemd, no cgroups. Stop it with down.sh.
set -euo pipefail
work=${1:-${TMPDIR:-/tmp}/pe-lab-slurm}
conf=/etc/slurm
ours="# by pe-lab's tests/slurm/up.sh"

if [ "$(id -u)" != 0 ]; then
    echo "up.sh: SLURM's daemons need root here: run make test-slurm as root, in a container" >&2
    exit 2
fi
if [ -e $conf/slurm.conf ] && ! grep -qF "$ours" $conf/slurm.conf; then
    echo "up.sh: $conf/slurm.conf belongs to another SLURM, which is left alone" >&2
    exit 2
fi
for program in munged slurmctld slurmd slurmdbd mariadbd sbatch sacct; do
    if ! command -v $program >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -q >/dev/null
        apt-get install -q -y --no-install-recommends munge slurmctld slurmd slurm-client \
            slurm-wlm-basic-plugins mariadb-server slurmdbd >/dev/null
        break
    fi
done

wait_for() { # SECONDS COMMAND..
    local left=$1
    shift
    until timeout 5 "$@" >/dev/null 2>&1; do
        [ "$left" -gt 0 ] || { echo "up.sh: waited in vain for: $*; see $work" >&2; exit 1; }
        left=$((left - 1))
        sleep 1
    done
}

host=$(hostname -s)
rm -rf "$work"
mkdir -p "$work"/{state,spool,mysql} /run/munge /run/mysqld $conf
chown munge:munge /run/munge /var/lib/munge /var/log/munge
chmod 755 /run/munge
chown mysql:mysql "$work/mysql" /run/mysqld
if [ ! -s /etc/munge/munge.key ]; then
    (umask 077 && head -c 128 /dev/urandom >/etc/munge/munge.key)
    chown munge:munge /etc/munge/munge.key
fi
if ! munge -n >/dev/null 2>&1; then
    su -s /bin/sh munge -c "/usr/sbin/munged --pid-file=/run/munge/munged.pid"
    ln -s /run/munge/munged.pid "$work/munged.pid"
fi

password=$(head -c 12 /dev/urandom | od -An -tx1 | tr -d ' \n')
socket=$work/mysql/socket
# A TMPDIR of root's is not mysql's to write to.
mariadb-install-db --user=mysql --datadir="$work/mysql" --tmpdir="$work/mysql" \
    --auth-root-authentication-method=socket >"$work/mysql.log" 2>&1 \
    || { echo "up.sh: MariaDB made no tables: see $work/mysql.log" >&2; exit 1; }
setsid nohup mariadbd --no-defaults --user=mysql --datadir="$work/mysql" --tmpdir="$work/mysql" \
    --socket="$socket" \
    --bind-address=127.0.0.1 --port=3307 --pid-file="$work/mysql/mariadbd.pid" \
    --innodb-buffer-pool-size=64M --innodb-lock-wait-timeout=900 \
    >>"$work/mysql.log" 2>&1 </dev/null &
wait_for 30 mariadb -S "$socket" -e 'select 1'
mariadb -S "$socket" -e "
    create database slurm_acct_db;
    create user slurm@localhost identified by '$password';
    create user slurm@'127.0.0.1' identified by '$password';
    grant all on slurm_acct_db.* to slurm@localhost;
    grant all on slurm_acct_db.* to slurm@'127.0.0.1';"

cat >$conf/slurmdbd.conf <<EOF
$ours
AuthType=auth/munge
DbdHost=localhost
DbdAddr=127.0.0.1
SlurmUser=root
LogFile=$work/slurmdbd.log
PidFile=$work/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=3307
StorageUser=slurm
StoragePass=$password
StorageLoc=slurm_acct_db
EOF
chmod 600 $conf/slurmdbd.conf
# Two processors whatever the machine has: two jobs run and two are queued.
cat >$conf/slurm.conf <<EOF
$ours
ClusterName=lab
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
ReturnToService=2
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldPort=6817
SlurmdPort=6818
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
JobAcctGatherType=jobacct_gather/linux
JobCompType=jobcomp/none
KillWait=5
NodeName=$host NodeAddr=127.0.0.1 CPUs=2 RealMemory=$(awk '/MemTotal/{print int($2 / 1200)}' /proc/meminfo) State=UNKNOWN
PartitionName=debug Nodes=$host Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=$host MaxTime=INFINITE State=UP PriorityTier=2
EOF

slurmdbd
wait_for 30 sacctmgr -n show cluster
# Before slurmctld, which waits for ever for a cluster that is not there.
timeout 30 sacctmgr -i add cluster lab >/dev/null
slurmctld
wait_for 30 scontrol ping
slurmd
wait_for 30 srun --ntasks=1 --time=1 true
wait_for 30 sh -c 'sinfo --noheader --format=%t | grep -q idle'
sinfo --noheader --format="SLURM is up: partition %P, %D node, %t"
