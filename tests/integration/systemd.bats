#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The systemd units, and the daemon as systemd runs it. BUILD is the build directory (default: build).

# The highest exposure level that systemd-analyze security may report (0 is closed, 10 is open).
EXPOSURE_MAX=1.5

setup() {
	here=$(cd "$(dirname "$BATS_TEST_FILENAME")" && pwd)
	BUILD=$(cd "${BUILD:-$here/../../build}" && pwd)
	daemon=$BUILD/daemon/ncclsvcd
	ctl=$BUILD/client/ctl/ncclsvc-ctl
	# shellcheck source=scripts/lib.sh
	. "$here/../../scripts/lib.sh"
	dir=$(mktemp -d)
	pids=()
}

teardown() {
	for p in "${pids[@]}"; do
		end_process "$p" || true
	done
	rm -rf "$dir"
}

needs() {
	command -v "$1" >/dev/null || skip "$1 is not installed"
}

# units FROM: copies the configured units into $dir, with the path of the built daemon.
units() {
	for unit in ncclsvcd.service ncclsvcd.socket; do
		[ -f "$1/$unit" ] || return 1
		sed -E "s|^(Exec[A-Za-z]+=)[^ ]*/ncclsvcd|\\1$daemon|" "$1/$unit" >"$dir/$unit"
	done
}

# eventually COMMAND...: waits for it to succeed, 20 s at most.
eventually() {
	for _ in $(seq 200); do
		"$@" >/dev/null 2>&1 && return 0
		sleep 0.1
	done
	echo "still failing after 20 s: $*"
	return 1
}

has_ended() {
	! kill -0 "$1" 2>/dev/null
}

@test "the system units are in order" {
	needs systemd-analyze
	units "$BUILD/scripts/systemd"
	run systemd-analyze verify --man=no "$dir/ncclsvcd.service" "$dir/ncclsvcd.socket"
	echo "$output"
	[ "$status" -eq 0 ]
	# The output may report faults of this machine's other units.
	[[ $output != *ncclsvc* ]]
}

@test "the service may open NVIDIA's device files, and no others" {
	unit=$BUILD/scripts/systemd/ncclsvcd.service
	grep -qx 'DevicePolicy=closed' "$unit"
	grep -qx 'DeviceAllow=char-nvidia rw' "$unit"
	grep -qx 'DeviceAllow=char-nvidia-uvm rw' "$unit"
	[ "$(grep -c '^DeviceAllow=' "$unit")" -eq "$(grep -c '^DeviceAllow=char-nvidia' "$unit")" ]
}

@test "a reload with a faulty configuration fails, and the daemon keeps the old one" {
	units "$BUILD/scripts/systemd"
	mkdir "$dir/conf"
	echo "ranks = 3" >"$dir/conf/ncclsvcd.conf"
	export CONFIGURATION_DIRECTORY=$dir/conf
	"$daemon" --socket "$dir/s" 2>"$dir/log" 3>&- &
	pids+=($!)
	MAINPID=$!
	eventually "$ctl" --socket "$dir/s" status
	# Like systemd, run the ExecReload= commands in order until one fails.
	reload=$(sed -n 's/^ExecReload=//p' "$dir/ncclsvcd.service" | sed "s/\$MAINPID/$MAINPID/; s|--check-config|& --socket $dir/s|" |
		paste -sd '&' | sed 's/&/ \&\& /')
	run sh -c "$reload"
	echo "$reload: $output"
	[ "$status" -eq 0 ]
	[ -z "$output" ]
	eventually grep -q 'SIGHUP: changed' "$dir/log"
	echo "ranks = many" >"$dir/conf/ncclsvcd.conf"
	run sh -c "$reload"
	echo "$output"
	[ "$status" -eq 2 ]
	[[ $output == *"ranks"* ]]
	[ "$(grep -c SIGHUP "$dir/log")" -eq 1 ]
	"$ctl" --socket "$dir/s" status
}

@test "an installation under another prefix reads its configuration there" {
	grep -qx "Environment=CONFIGURATION_DIRECTORY=$(sed -n 's/#define NCCLSVC_SYSCONFDIR "\(.*\)"/\1/p' "$BUILD/build_config.h")" \
		"$BUILD/scripts/systemd/ncclsvcd.service"
}

@test "no key at a restart leaves the unit failed for good" {
	for unit in "$BUILD/scripts/systemd/ncclsvcd.service" "$BUILD/scripts/systemd/user/ncclsvcd.service"; do
		grep -qx 'StartLimitIntervalSec=0' "$unit"
		grep -qx 'OOMPolicy=continue' "$unit"
	done
}

@test "core files leave out what clients have registered" {
	"$daemon" --socket "$dir/s" 2>"$dir/log" 3>&- &
	pids+=($!)
	eventually "$ctl" --socket "$dir/s" status
	[ "$(cat "/proc/${pids[0]}/coredump_filter")" = 00000031 ]
}

@test "a limit on the size of files fails a session's request, not the daemon" {
	needs prlimit
	"$daemon" --ranks 2 --socket "$dir/s" 2>"$dir/log" 3>&- &
	pids+=($!)
	eventually "$ctl" --socket "$dir/s" status
	prlimit --pid "${pids[0]}" --fsize=262144 # less than a ring
	run timeout 20 "$BUILD/client/perf/ncclsvc-perf" all_reduce --socket "$dir/s" --ranks 2 -b 8 -e 8
	echo "$output"
	[ "$status" -ne 0 ]
	[[ $output == *NO_MEMORY* || $output == *"no memory"* ]]
	"$ctl" --socket "$dir/s" status
}

@test "the user units are in order" {
	needs systemd-analyze
	units "$BUILD/scripts/systemd/user"
	export XDG_RUNTIME_DIR=$dir
	run systemd-analyze verify --user --man=no "$dir/ncclsvcd.service" "$dir/ncclsvcd.socket"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output != *ncclsvcd* ]]
}

@test "the service is closed off (exposure below 1.5 of 10)" {
	needs systemd-analyze
	units "$BUILD/scripts/systemd"
	run systemd-analyze security --offline=true --no-pager "$dir/ncclsvcd.service"
	[ "$status" -eq 0 ] || skip "this systemd-analyze cannot rate a file: ${lines[-1]}"
	score=$(sed -n 's/.*exposure level for ncclsvcd.service: \([0-9.]*\).*/\1/p' <<<"$output")
	echo "# exposure level: $score of 10" >&3
	[ -n "$score" ]
	awk -v s="$score" -v max="$EXPOSURE_MAX" 'BEGIN { exit !(s < max) }'
}

@test "sysusers and tmpfiles make the user and its directory" {
	needs systemd-sysusers
	needs systemd-tmpfiles
	[ "$(id -u)" -eq 0 ] || skip "only root can give a directory to another user"
	mkdir -p "$dir/root/etc" "$dir/root/run"
	systemd-sysusers --root="$dir/root" "$here/../../scripts/systemd/ncclsvcd.sysusers.conf"
	uid=$(awk -F: '$1 == "ncclsvc" { print $3 }' "$dir/root/etc/passwd")
	[ -n "$uid" ]
	grep -q '^ncclsvc:' "$dir/root/etc/group"
	systemd-tmpfiles --root="$dir/root" --create "$here/../../scripts/systemd/ncclsvcd.tmpfiles.conf"
	[ "$(stat -c '%u %a' "$dir/root/run/ncclsvc")" = "$uid 755" ]
}

@test "the installed configuration is valid and lets the group in" {
	run "$daemon" --check-config --socket "$dir/s" --config "$here/../../scripts/systemd/ncclsvcd.conf"
	echo "$output"
	[ "$status" -eq 0 ]
	grep -Eq '^access += group +; from the file' <<<"$output"
}

@test "installation keeps a configuration that is there" {
	script=$here/../../scripts/systemd/install-conf
	DESTDIR=$dir/new "$script" "$here/../../scripts/systemd/ncclsvcd.conf" /etc/ncclsvc
	grep -q '^access = group' "$dir/new/etc/ncclsvc/ncclsvcd.conf"
	echo "access = any" >"$dir/new/etc/ncclsvc/ncclsvcd.conf"
	DESTDIR=$dir/new "$script" "$here/../../scripts/systemd/ncclsvcd.conf" /etc/ncclsvc
	[ "$(cat "$dir/new/etc/ncclsvc/ncclsvcd.conf")" = "access = any" ]
}

@test "installation does without a configuration where it may not write" {
	as=()
	if [ "$(id -u)" -eq 0 ]; then
		needs setpriv
		as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
	fi
	mkdir "$dir/closed"
	chmod 555 "$dir/closed"
	DESTDIR=$dir/closed run "${as[@]}" sh -s -- ncclsvcd.conf /etc/ncclsvc \
		<"$here/../../scripts/systemd/install-conf"
	echo "$output"
	[ "$status" -eq 0 ]
	[ "${#lines[@]}" -eq 1 ]
	[[ ${lines[0]} == *"$dir/closed/etc/ncclsvc"* ]]
	[ ! -e "$dir/closed/etc" ]
}

@test "the first connection starts the daemon on the socket it inherits" {
	needs systemd-socket-activate
	systemd-socket-activate --seqpacket -l "$dir/s" "$daemon" --ranks 3 2>"$dir/log" 3>&- &
	pids+=($!)
	eventually grep -q Listening "$dir/log"
	[ "$(grep -c ready "$dir/log")" -eq 0 ]
	run timeout 20 "$ctl" --socket "$dir/s" status
	echo "$output"
	[ "$status" -eq 0 ]
	grep -q 'ready on the inherited socket: 3 host ranks' "$dir/log"
	end_process "${pids[0]}"
	# The activator owns the socket, so the daemon must not remove it.
	[ -S "$dir/s" ]
}

# A user's systemd runs in namespaces of its own, with the user's units.
@test "ncclsvc-ctl does not start a service that is stopped" {
	needs dbus-daemon
	needs unshare
	[ -x /lib/systemd/systemd ] || skip "systemd is not installed"
	unshare -m -p --fork --mount-proc true 2>/dev/null || skip "no namespaces here"
	units "$BUILD/scripts/systemd/user"
	mkdir -p "$dir/run" "$dir/conf/systemd/user"
	chmod 700 "$dir/run"
	mv "$dir"/ncclsvcd.* "$dir/conf/systemd/user/"
	cat >"$dir/script" <<-'END'
		ctl=$1
		mount -t tmpfs tmpfs /run/systemd && mkdir /run/systemd/system || exit 77
		dbus-daemon --session --address="$DBUS_SESSION_BUS_ADDRESS" --fork --nopidfile
		/lib/systemd/systemd --user --unit=basic.target &
		for _ in $(seq 50); do
			systemctl --user start ncclsvcd.socket 2>/dev/null && break
			sleep 0.1
		done
		[ "$(systemctl --user is-active ncclsvcd.socket)" = active ] || exit 77
		ln "$XDG_RUNTIME_DIR/ncclsvc/ncclsvcd.sock" "$XDG_RUNTIME_DIR/link"
		"$ctl" status; echo "code $?, $(systemctl --user is-active ncclsvcd.service)"
		"$ctl" --socket "$XDG_RUNTIME_DIR/link" tasks; echo "code $?, $(systemctl --user is-active ncclsvcd.service)"
		systemctl --user start ncclsvcd.service
		"$ctl" tasks; echo "code $?, $(systemctl --user is-active ncclsvcd.service)"
		systemctl --user stop ncclsvcd.service
		"$ctl" why; echo "code $?, $(systemctl --user is-active ncclsvcd.service)"
	END
	XDG_RUNTIME_DIR=$dir/run XDG_CONFIG_HOME=$dir/conf DBUS_SESSION_BUS_ADDRESS=unix:path=$dir/run/bus \
		run timeout 60 unshare -m -p --fork --mount-proc bash "$dir/script" "$ctl"
	echo "$output"
	[ "$status" -ne 77 ] || skip "systemd does not run in a namespace here"
	[ "$(grep -c '^code 4, inactive$' <<<"$output")" -eq 3 ]
	[ "$(grep -c '^code 0, active$' <<<"$output")" -eq 1 ]
	[ "$(grep -c 'the service is stopped (`systemctl --user start ncclsvcd` starts it)' <<<"$output")" -eq 3 ]
}

@test "an inherited socket of another type is refused" {
	needs systemd-socket-activate
	systemd-socket-activate -l "$dir/s" "$daemon" 2>"$dir/log" 3>&- &
	pids+=($!)
	eventually grep -q Listening "$dir/log"
	python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])' "$dir/s"
	eventually has_ended "${pids[0]}"
	code=0
	wait "${pids[0]}" || code=$?
	[ "$code" -eq 1 ]
	eventually grep -q 'not a listening AF_UNIX SOCK_SEQPACKET socket' "$dir/log"
}

@test "systemd is notified: ready, status, watchdog, reloading, stopping" {
	mkdir "$dir/n"
	run timeout 60 python3 "$here/notify.py" "$daemon" "$dir/n"
	echo "$output"
	[ "$status" -eq 0 ]
}

@test "the journal's catalog explains every message id of the daemon" {
	needs journalctl
	mkdir -p "$dir/usr/lib/systemd/catalog" "$dir/var/lib/systemd/catalog"
	cp "$here/../../scripts/systemd/ncclsvc.catalog" "$dir/usr/lib/systemd/catalog/"
	journalctl --root="$dir" --update-catalog
	ids=$(sed -nE 's/^#define ID_[A-Z]+[[:space:]]+"([0-9a-f]{32})".*/\1/p' "$here"/../../daemon/comm/*.c)
	[ "$(wc -w <<<"$ids")" -ge 5 ]
	for id in $ids; do
		journalctl --root="$dir" --dump-catalog "$id" | grep -q "^Subject: ."
	done
}
