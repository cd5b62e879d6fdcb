# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# A private Slurm on this machine, for scripts/slurm-test: a controller, and nodes with their own network, host name and
# temporary directory. It runs in namespaces together with everything it starts: when the first process of slurm_enter
# ends, so does all of it.

slurm_packages=(slurmctld slurmd slurm-client munge)

# Installs without starting anything, because Debian would start the machine's own Slurm.
slurm_install() {
	local policy=/usr/sbin/policy-rc.d made=0
	if [ ! -e "$policy" ]; then
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod +x "$policy"
		made=1
	fi
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${slurm_packages[@]}" ||
		{ [ "$made" = 0 ] || rm "$policy"; die "apt-get could not install ${slurm_packages[*]}"; }
	[ "$made" = 0 ] || rm "$policy"
}

# Checks what it needs of this machine, and says what is missing.
slurm_check() {
	local program
	for program in slurmctld slurmd srun sbatch scancel squeue scontrol munged munge unmunge; do
		command -v "$program" >/dev/null || die "no $program: --install installs ${slurm_packages[*]}"
	done
	for program in unshare nsenter ip mpirun python3; do
		command -v "$program" >/dev/null ||
			die "no $program: install util-linux, iproute2, openmpi-bin and python3"
	done
	unshare --net --uts --mount --ipc --pid --fork --mount-proc true 2>/dev/null ||
		die "this machine (or the container's settings) does not let root create namespaces"
}

# slurm_enter COMMAND...: runs the command where slurm_start may be called.
slurm_enter() {
	unshare --net --uts --mount --ipc --pid --fork --kill-child --mount-proc "$@"
}

slurm_configuration() {
	local dir=$1 nodes=$2 cpus
	cpus=$(nproc)
	cat <<-END
		ClusterName=ncclsvc
		SlurmctldHost=control
		SlurmUser=root
		SlurmdUser=root
		AuthType=auth/munge
		CredType=cred/munge
		StateSaveLocation=$dir/state
		SlurmdSpoolDir=$dir/spool-%n
		TmpFS=$dir/tmp
		SlurmctldPidFile=$dir/slurmctld.pid
		SlurmdPidFile=$dir/slurmd-%n.pid
		SlurmctldLogFile=$dir/slurmctld.log
		SlurmdLogFile=$dir/slurmd-%n.log
		ProctrackType=proctrack/linuxproc
		TaskPlugin=task/affinity
		SelectType=select/cons_tres
		SelectTypeParameters=CR_Core
		SlurmdParameters=config_overrides
		MpiDefault=none
		ReturnToService=2
		GresTypes=gpu
		NodeName=n[0-$((nodes - 1))] CPUs=$cpus RealMemory=1000 Gres=gpu:2 State=UNKNOWN
		PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
	END
}

# slurm_node DIRECTORY INDEX: the node's network is a bridge that all share. Files that Slurm and MPI write to /tmp are
# the node's own.
slurm_node() {
	local dir=$1 i=$2
	mkdir -p "$dir/spool-n$i" "$dir/tmp-n$i"
	ip netns add "n$i"
	ip link add "v$i" type veth peer name eth0 netns "n$i"
	ip link set "v$i" master bridge up
	ip -n "n$i" link set lo up
	ip -n "n$i" address add "10.77.0.$((i + 1))/24" dev eth0
	ip -n "n$i" link set eth0 up
	# shellcheck disable=SC2016 # the inner shell's
	nsenter --net="/run/netns/n$i" unshare --uts --mount sh -ec '
		hostname "n$1"
		mount --bind "$2/tmp-n$1" "$2/tmp"
		# UCX finds the interfaces of the node in /sys. Slurm needs the cgroups there.
		mkdir -p "$2/cgroup-n$1"
		mount --rbind /sys/fs/cgroup "$2/cgroup-n$1"
		umount -l /sys
		mount -t sysfs sysfs /sys
		mount --rbind "$2/cgroup-n$1" /sys/fs/cgroup
		exec slurmd' sh "$i" "$dir"
}

# slurm_start DIRECTORY NODES: call inside slurm_enter. Sets SLURM_CONF.
slurm_start() {
	local dir=$1 nodes=$2 i
	mount -t tmpfs tmpfs /run
	mount -t tmpfs tmpfs /dev/shm
	mkdir -p /run/munge "$dir/state" "$dir/tmp"
	hostname control
	{
		echo 127.0.0.1 localhost
		echo 10.77.0.254 control
		for i in $(seq 0 $((nodes - 1))); do
			echo "10.77.0.$((i + 1)) n$i"
		done
	} >"$dir/hosts"
	mount --bind "$dir/hosts" /etc/hosts
	ip link set lo up
	ip link add bridge type bridge
	ip address add 10.77.0.254/24 dev bridge
	ip link set bridge up

	head -c 64 /dev/urandom >"$dir/munge.key"
	chmod 400 "$dir/munge.key"
	munged --force --key-file="$dir/munge.key" --pid-file=/run/munge/munged.pid \
		--log-file="$dir/munged.log" --seed-file="$dir/munged.seed" 2>/dev/null
	slurm_configuration "$dir" "$nodes" >"$dir/slurm.conf"
	mknod "$dir/gpu0" c 1 3 # Slurm only checks that they exist
	mknod "$dir/gpu1" c 1 3
	echo "Name=gpu File=$dir/gpu[0-1]" >"$dir/gres.conf"
	export SLURM_CONF=$dir/slurm.conf TMPDIR=$dir/tmp
	slurmctld
	for i in $(seq 0 $((nodes - 1))); do
		slurm_node "$dir" "$i"
	done
	for _ in $(seq 300); do
		[ "$(sinfo -h -t idle -o %D 2>/dev/null)" != "$nodes" ] || return 0
		sleep 0.1
	done
	tail -n 20 "$dir"/slurm*.log >&2
	die "Slurm's nodes did not become idle"
}

# slurm_cut INDEX up|down: plugs or unplugs the node's cable.
slurm_cut() {
	ip link set "v$1" "$2"
}

# slurm_clear NODES: plugs in all cables, and ends all jobs and their processes.
slurm_clear() {
	local i
	for i in $(seq 0 $(($1 - 1))); do
		slurm_cut "$i" up
	done
	scancel -u root
	for _ in $(seq 400); do
		[ -n "$(squeue -h)" ] || return 0
		sleep 0.1
	done
	squeue >&2
	die "a job did not end"
}
