# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# The parts of scripts/gpu-report, which sources this file. Each prints its section, and notes failures. The backquotes
# are Markdown.
# shellcheck disable=SC2016,SC2034,SC2154

# start_daemon COMMAND...: sets $daemon, and waits until each of its sockets, $sockets, exists
start_daemon() {
	local socket
	"$@" >"$dir/daemon.log" 2>&1 &
	daemon=$!
	for socket in "${sockets[@]}"; do
		for _ in $(seq 600); do
			[ ! -S "$socket" ] || break
			kill -0 "$daemon" 2>/dev/null || break
			sleep 0.1
		done
		if [ ! -S "$socket" ]; then
			printf '\n```\n%s\n```\n' "$(tail -n 20 "$dir/daemon.log")"
			note "the daemon did not start"
			stop_daemon
			return 1
		fi
	done
}

# start_nodes N: starts N daemons, which divide the GPUs
start_nodes() {
	local nodes=$1 k
	sockets=()
	for ((k = 0; k < nodes; k++)); do
		sockets+=("$dir/node$k")
	done
	# The shell that mpirun starts expands $OMPI_COMM_WORLD_RANK.
	# shellcheck disable=SC2016
	OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 start_daemon \
		mpirun --oversubscribe --bind-to none -n "$nodes" bash -c '
			first=$((OMPI_COMM_WORLD_RANK * $1))
			CUDA_VISIBLE_DEVICES=$(seq -s , $first $((first + $1 - 1))) exec "$2" --config /dev/null \
				--device cuda --ranks "$1" --socket "$3" --log-target stderr' \
		node $((gpus / nodes)) "$bin/ncclsvcd" "$dir/node%r"
}

# ---- The example trainer

# trainer_row NAME ARGUMENT...: a row of the table; its losses must equal those of a single process
trainer_row() {
	local name=$1 same=no
	shift
	rm -f "$dir/losses"
	if ! step 60 "the trainer, $name" "$bin/example_trainer" --device cuda --text "$root/README.md" --steps "$steps" \
		--losses "$dir/losses" "$@" >"$dir/said"; then
		tail -n 1 "$dir/said" >>"$dir/trainer.notes"
		show_log 10 >>"$dir/trainer.notes"
		rows+="| $name | failed | | |"$'\n'
		return
	fi
	sort -nu "$dir/losses" | cmp -s - "$dir/expected" && same=yes
	[ "$same" = yes ] || note "the trainer, $name: other losses than one process" >>"$dir/trainer.notes"
	rows+="| $name | $same | $(awk '
		$2 == "start" && $8 > start { start = $8 }
		$2 == "failure" && $8 > failure { failure = $8 }
		END { printf "%.0f | %s", start, failure == "" ? "" : sprintf("%.0f", failure) }' "$dir/log") |"$'\n'
}

part_trainer() {
	local rows='' steps=100 half=$((gpus / 2))
	! $tiny || steps=20
	if ! step 60 "the trainer as one process" "$bin/example_trainer" --single --text "$root/README.md" \
		--steps "$steps" --losses "$dir/expected"; then
		show_log
		return
	fi
	: >"$dir/trainer.notes"
	mkdir -p "$dir/checkpoints"
	sockets=("$dir/socket")
	start_daemon "$bin/ncclsvcd" --config /dev/null --device cuda --ranks "$gpus" --socket "${sockets[0]}" \
		--log-target stderr || return 0
	export NCCLSVC_SOCKET=${sockets[0]}
	trainer_row "$half x 1 x 2" --data "$half" --pipeline 2
	trainer_row "$gpus x 1 x 1, ZeRO" --data "$gpus" --zero --nccl
	[ "$gpus" -lt 4 ] || trainer_row "$half x 2 x 1, ZeRO" --data "$half" --horizontal 2 --zero
	[ "$gpus" -lt 8 ] || trainer_row "2 x 2 x 2, ZeRO" --data 2 --horizontal 2 --pipeline 2 --zero
	trainer_row "$half x 1 x 2, rank 1 killed in step $((steps * 3 / 5))" --data "$half" --pipeline 2 \
		--checkpoints "$dir/checkpoints" --every $((steps / 5)) --kill 1:$((steps * 3 / 5))
	stop_daemon
	printf '\n`example_trainer --device cuda --steps %s`, with the options of each row:\n\n' "$steps"
	printf '| D x H x P | losses of one process, to the last bit | ms to the end of the first step | after a failure |\n'
	printf '| :--- | :--- | ---: | ---: |\n%s' "$rows"
	[ ! -s "$dir/trainer.notes" ] || { echo && cat "$dir/trainer.notes"; }
}

# ---- Operations, against plain NCCL

run_bench() {
	local name=$1
	shift
	! $tiny || set -- "$@" --max 8K
	step 200 "$name" "$root/scripts/bench" --bin "$bin" --device cuda --quick --ranks "$gpus" "$@" || true
	echo
	sed 's/^##/####/' "$dir/log"
}

part_bench() {
	run_bench bench
}

part_bench_no_mps() {
	run_bench bench-no-mps --no-mps
}

part_crossover() {
	local sizes=(-b 256K -e 64M)
	! $tiny || sizes=(-b 1M -e 1M -n 2 --rounds 1)
	step 150 crossover "$bin/ncclsvc-perf" crossover --ranks "$gpus" "${sizes[@]}" || true
	show_log 100
}

# ---- Tests

# tests NAME TEST ARGUMENT...: a row for each test that ran and whose name begins with TEST
tests() {
	local name=$1 test=$2 ran
	shift 2
	step 120 "$name" "$bin/ncclsvc-gpu-tests" --gpus "$gpus" --filter "^$test" "$@" >"$dir/said" ||
		printf '```\n%s\n```\n' "$(sed -n '/^FAIL/,$p' "$dir/log" | head -n 25)" >>"$dir/said"
	grep -v '^`[^`]\|^$' "$dir/said" >>"$dir/tests.notes" || true
	ran=$(awk -v name="$name" '
		function flush() {
			if (test != "")
				print "| " (index(test, name) ? test : name ": " test) " | " how " | " seconds " | " said " |"
			test = ""
		}
		/^(ok|FAIL) / { flush(); how = $1; test = $2; seconds = $3; said = ""; next }
		/^       / && test != "" { sub(/^ +/, ""); said = said (said == "" ? "" : "; ") $0; next }
		{ flush() }
		END { flush() }' "$dir/log")
	if [ -n "$ran" ]; then
		rows+=$ran$'\n'
	elif [ ! -s "$dir/said" ] || ! grep -q '^\*\*' "$dir/said"; then
		note "$name: no such test ran: $(grep -m 1 '^skip' "$dir/log" || echo 'there is none')" >>"$dir/tests.notes"
	fi
}

# show_tests OPTIONS: prints the rows below the command that made them
show_tests() {
	printf '\n`ncclsvc-gpu-tests --gpus %s --repeat %s --filter ^TEST%s`:\n\n' "$gpus" "$rounds" "${1:+ $1}"
	printf '| test | result | s | what it said |\n| :--- | :--- | ---: | :--- |\n'
	grep . <<<"$rows" || true
	[ ! -s "$dir/tests.notes" ] || { echo && cat "$dir/tests.notes"; }
}

storm() {
	local rows='' rounds=20 name
	! $tiny || rounds=2
	: >"$dir/tests.notes"
	# Kills inside NCCL; while small operations run, and wait, in kernels of the trainers; the daemon.
	for name in failures/trainer_inside failures/worker_inside kernels/killed"$four" failures/trainer_awaited \
		failures/worker_between killed_daemon/inside killed_daemon/waiting; do
		tests "$name" "$name" --repeat "$rounds" "$@"
	done
	show_tests "$*"
}

part_storms() {
	local four=''
	[ "$gpus" -lt 4 ] || four=/4
	storm
}

part_storms_mps() {
	local four=''
	[ "$gpus" -lt 4 ] || four=/4
	storm --mps
}

# ratio NODES: AllReduce over all GPUs on that many daemons
ratio() {
	local sizes=(-b 8 -e 64M -f 64 -n 200 --rounds 3 --time-cap 0.2)
	! $tiny || sizes=(-b 8 -e 4K -f 512 -n 5 --rounds 1)
	if [ "$(left)" -lt 10 ] || ! start_nodes "$1"; then
		return
	fi
	step 60 "ratios on $1 daemons" "$bin/ncclsvc-perf" all_reduce --device cuda --socket "$dir/node%r" --nodes "$1" \
		--ranks "$gpus" --baseline nccl "${sizes[@]}" || true
	stop_daemon
	show_log
}

part_nodes() {
	local rows='' name nodes rounds=20 ranks=2
	! $tiny || rounds=2
	: >"$dir/tests.notes"
	ratio 2
	[ "$gpus" -eq 2 ] || ratio "$gpus"
	[ "$gpus" -lt 4 ] || ranks=4
	# These tests start their own daemons: two, or three if the first one must die.
	local names=("values/$ranks" "random/$ranks" trainer_inside worker_inside daemon_inside)
	[ "$gpus" -lt 3 ] || names+=(bystander_busy)
	for name in "${names[@]}"; do
		tests "$name" "nodes/$name" --repeat "$rounds"
	done
	# These tests use as many daemons as requested, with up to 4 ranks.
	for ((nodes = 2; nodes <= ranks; nodes *= 2)); do
		for name in plan/streams plan/any-order plan/one-thread plan/deadlines values/$ranks random/$ranks; do
			tests "$nodes daemons" "$name" --nodes "$nodes"
		done
	done
	show_tests '[--nodes N]'
}

# ---- PyTorch

# torch_step LIMIT NAME SCRIPT ARGUMENT...
torch_step() {
	local limit=$1 name=$2 script=$3
	shift 3
	if ! python3 -c 'import torch' 2>/dev/null; then
		note "$name: no PyTorch here"
		return
	fi
	if step "$limit" "$name" python3 "$root/tests/torch/$script" --dropin "$dropin" --daemon "$bin/ncclsvcd" \
		--gpus "$gpus" "$@" && [ "$script" != run ]; then
		printf '\n'
		cat "$dir/log"
	else
		show_log 80
	fi
}

part_torch() {
	torch_step 240 torch run --ctl "$bin/ncclsvc-ctl" --steps 6
}

part_torch_bench() {
	torch_step 200 torch-bench bench --rounds 3
}

part_torch_decode() {
	local plain
	plain=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib/libnccl.so.2")' 2>/dev/null) || plain=''
	torch_step 90 torch-decode bench-decode --plain "${plain:-libnccl.so.2}"
}
