# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# The GPU part of scripts/bench, which sources it. Uses $perf, $dir, $ranks, $mps and $max, and sets $failed. The
# backquotes are Markdown.
# shellcheck disable=SC2016,SC2034,SC2154

daemon=''

stop_cuda() {
	[ -z "$daemon" ] || end_process "$daemon" || true
	daemon=''
}

# One daemon for everything, because no measurement includes its start.
start_daemon() {
	local socket=$dir/ncclsvcd.sock
	"$NCCLSVCD" --config /dev/null --socket "$socket" --device cuda --ranks "$ranks" \
		--log-target stderr >"$dir/daemon.log" 2>&1 &
	daemon=$!
	for _ in $(seq 300); do
		[ ! -S "$socket" ] || break
		kill -0 "$daemon" 2>/dev/null || break
		sleep 0.1
	done
	if [ ! -S "$socket" ] || ! kill -0 "$daemon" 2>/dev/null; then
		tail -n 20 "$dir/daemon.log" >&2
		die "ncclsvcd did not start"
	fi
	export NCCLSVC_SOCKET=$socket
}

failure() {
	printf '\nThis failed:\n\n```\n%s\n```\n' "$(tail -n 20 "$dir/log")"
	failed=1
}

# measure ARGUMENT...: a run against plain NCCL, with JSON in $dir/json
measure() {
	"$perf" "$@" --device cuda --ranks "$ranks" --timeout 60 --json "$dir/json" >"$dir/log" 2>&1
}

# row NAME ARGUMENT...: rows of a table of operations, after $name
row() {
	local name=$1
	shift
	if ! measure "$@" --baseline nccl; then
		failure
		return
	fi
	python3 - "$dir/json" "$name" <<-'END'
		import json, sys
		with open(sys.argv[1], encoding="utf-8") as f:
		    result = json.load(f)
		def number(value, digits=2):
		    return "n/a" if value is None else f"{value:.{digits}f}"
		for r in result["rows"]:
		    wrong = "-" if r["wrong"] is None else r["wrong"]
		    print(f"| {sys.argv[2] or r['op']} | {r['bytes']} | {number(r['time_us'])} | "
		          f"{number(r['baseline_us'])} | {number(r['ratio'])} | {number(r['busbw'])} | {wrong} |")
	END
}

# start_row NAME: a row of the table of starts
start_row() {
	if ! measure all_reduce -b 8 -e 8 -n 1 -w 0 -c 0 --rounds 1 --baseline nccl; then
		failure
		return
	fi
	python3 - "$dir/json" "$1" <<-'END'
		import json, sys
		with open(sys.argv[1], encoding="utf-8") as f:
		    r = json.load(f)
		print(f"| {sys.argv[2]} | {r['start_ms']:.2f} | {r['baseline_start_ms']:.2f} | "
		      f"{r['start_ms'] / r['baseline_start_ms']:.4f} | {r['start_gpu_bytes'] / 2**20:.1f} | "
		      f"{r['baseline_start_gpu_bytes'] / 2**20:.1f} |")
	END
}

# at_most SIZE: SIZE, or --max if that is smaller
at_most() {
	local size
	size=$(numfmt --from=iec "$1")
	[ -z "$max" ] || [ "$size" -le "$max" ] || size=$max
	echo "$size"
}

table() {
	printf '\n### %s\n\n' "$1"
	printf '| %s | bytes | service us | NCCL us | ratio | busbw GB/s | wrong |\n' "$2"
	printf '| :--- | ---: | ---: | ---: | ---: | ---: | ---: |\n'
}

# own_table TITLE ARGUMENT...: prints the program's own table
own_table() {
	printf '\n### %s\n' "$1"
	shift
	command_line "$@" --device cuda --ranks "$ranks"
	if measure "$@"; then
		printf '```\n%s\n```\n' "$(cat "$dir/log")"
	else
		failure
	fi
}

bench_cuda() {
	local op sync top large rounds=(--rounds 5 --time-cap 0.3)
	top=$(at_most 1G) large=(-b "$(at_most 256M)" -e "$top" -f 4)
	! $quick || { top=$(at_most 64M) large=(-b "$top" -e "$top") rounds=(--rounds 3 --time-cap 0.2); }
	trap 'stop_cuda; rm -rf "$dir"' EXIT
	$mps || export NCCLSVCD_MPS=off
	start_daemon
	printf -- '- GPUs: %s; %s ranks; %s; NCCL_NVLS_ENABLE=%s\n' \
		"$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null |
			sort | uniq -c | sed 's/^ *//' | paste -sd ';' || true)" \
		"$ranks" "$($mps && echo 'through MPS' || echo 'without MPS')" "${NCCL_NVLS_ENABLE-unset}"
	printf '\n## GPUs, against plain NCCL\n'

	printf '\n### From a CUDA context to the end of a first AllReduce\n\n'
	printf '| daemon | service ms | NCCL ms | ratio | service MiB of each GPU | NCCL MiB |\n'
	printf '| :--- | ---: | ---: | ---: | ---: | ---: |\n'
	start_row 'has no communicator yet'
	start_row 'has one'
	start_row 'has one'
	table 'Every operation, `--sync stream`' operation
	for op in all_reduce all_gather reduce_scatter broadcast reduce alltoall gather scatter sendrecv barrier; do
		row '' "$op" -b 8 -e "$top" -f 512 --rounds 3 --time-cap 0.1
	done
	table 'AllReduce, `--sync each`' operation
	row '' all_reduce --sync each -b 8 -e "$(at_most 32K)" -f 8 -n 200 "${rounds[@]}"
	row '' all_reduce --sync each -b "$(at_most 1M)" -e "$(at_most 16M)" -f 16 -n 200 "${rounds[@]}"
	table 'A short kernel before each operation: `--kernel`' operation
	row '' all_reduce -b 8 -e "$(at_most 256K)" -f 8 -n 200 --kernel "${rounds[@]}"
	table '50 operations in a CUDA graph, a short kernel before each: `--graph 50 --kernel -n 1000`' operation
	for op in all_reduce all_gather reduce_scatter alltoall sendrecv; do
		row '' "$op" -b 8 -e "$(at_most 256K)" -f 32 -n 1000 --graph 50 --kernel "${rounds[@]}"
	done
	row '' all_reduce -b "$(at_most 1M)" -e "$(at_most 4M)" -f 4 -n 200 --graph 50 --kernel "${rounds[@]}"
	table 'Large, `--sync stream`' operation
	row '' all_reduce -b "$(at_most 16M)" -e "$(at_most 16M)" "${rounds[@]}"
	for op in all_reduce all_gather reduce_scatter sendrecv; do
		row '' "$op" "${large[@]}" -c 0 "${rounds[@]}"
	done
	table 'Large, `--sync each`' operation
	for op in all_reduce all_gather reduce_scatter sendrecv; do
		row '' "$op" --sync each "${large[@]:0:2}" -c 0 "${rounds[@]}"
	done
	table '200 small tasks, the last waited for: `-n 200 --sync last`' operation
	row '' all_reduce -b 1K -e 1K -n 200 --sync last "${rounds[@]}"
	table 'A twentieth of a training step: `-n 20 --compute-ms 20`' operation
	row '' all_reduce -b "$(at_most 64M)" -e "$(at_most 64M)" -n 20 --compute-ms 20 --rounds 5
	for sync in stream last; do
		own_table "CPU time of a submission, \`--sync $sync\`" all_reduce -b 1K -e 1K -n 200 -c 0 --rounds 25 \
			--every 0 --sync "$sync" --baseline nccl
	done
	own_table 'CPU time of a busy daemon' all_reduce -b 1K -e 1K -n 40000 -c 0 --rounds 1 --sync each --every 0
	own_table 'CPU time of an idle daemon' all_reduce -b 1K -e 1K -n 2 -w 0 -c 0 --rounds 1 --every 2000000 --time-cap 60
	printf '\nThis took %s s.\n' "$SECONDS"
}
